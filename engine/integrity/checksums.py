"""The one checksum of everything that is stored or sent: XXH3, by the ``xxhash`` library.

It finds damage (bits that flip, files cut short or mixed up), not forgery: who can write into a folder can write a
checksum too. Two widths: 128 bits for what is stored and compared over years, as 32 hexadecimal digits; 64 bits for a
frame between two processes, as a number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import xxhash


def digest(*parts: Any) -> str:
    """The digest of the bytes of all ``parts`` (anything with the buffer protocol), one after the other."""
    return digest_of(parts)


def digest_of(pieces: Iterable[Any]) -> str:
    """The digest of pieces that come one by one, of a file say: that of their bytes together."""
    state = xxhash.xxh3_128()
    for piece in pieces:
        state.update(piece)
    return state.hexdigest()


def running_digest() -> Any:
    """Bytes go in through ``update``; ``hexdigest`` gives the digest so far."""
    return xxhash.xxh3_128()


def parquet_hash(content: bytes) -> int:
    """The hash that Parquet's bloom filters are made of: XXH64 with seed 0."""
    return xxhash.xxh64_intdigest(content)


_NUMBERS = struct.Struct("<4q")


def number_checksum(first: int, second: int, third: int, fourth: int) -> int:
    """The 64-bit checksum of four numbers: what a batch is known by in the ledgers of channels."""
    return xxhash.xxh3_64_intdigest(_NUMBERS.pack(first, second, third, fourth))


def frame_checksum(parts: Sequence[Any]) -> int:
    """The 64-bit checksum of the bytes of a frame."""
    if len(parts) == 1:
        return xxhash.xxh3_64_intdigest(parts[0])
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return state.intdigest()


SEAL = b',"seal":{"bytes":'


def sealed(record: bytes) -> bytes:
    """A JSON object (not an empty one) with its length and digest as its last member; still one JSON object."""
    return b'%s%s%d,"xxh3":"%s"}}' % (record[:-1], SEAL, len(record), digest(record).encode())


def unsealed(data: bytes) -> bytes:
    """The object that was sealed. Raises ValueError unless every byte is the one that was written."""
    end = data.rfind(SEAL)
    if end < 0:
        raise ValueError("its length and digest, which should stand at its end, are missing")
    record = data[:end] + b"}"
    if sealed(record) != data:
        raise ValueError("its bytes do not fit the length and the digest at its end")
    return record

"""The bytes of a message of any sender: a head, a note, a body. Pure: no sockets, no threads.

Rules:

1. The head says how long note and body are, and has a checksum of both and one of itself. It is checked before a length
   in it is believed: a length that was damaged would be waited for, or allocated.
2. Nothing of a message is used before all of it has been checked. What fails is a :class:`DamagedError`, and ends the
   connection: nobody knows where the next message begins.
3. A checksum finds damage, not forgery: who knows the job's token can send what he likes.
4. Who sends keeps to the limits that who receives checks, so that what is too large is an error where it is made.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...engine.integrity.checksums import frame_checksum

_LENGTHS = struct.Struct("<IQQ")
_CHECKSUM = struct.Struct("<Q")

HEAD_BYTES = _LENGTHS.size + _CHECKSUM.size
"""Bytes of the note, bytes of the body, checksum of both; checksum of these three."""

BODY_LIMIT = 64 * 2**30
"""A longer body is garbage."""


class GarbageError(Exception):
    """The bytes are none that this version writes."""


class DamagedError(GarbageError):
    """The bytes are not those that were sent."""


class Head(NamedTuple):
    """What the head of a message says."""

    note: int
    body: int
    checksum: int

    def check(self, *parts: Any) -> None:
        """Raises DamagedError unless these are the note and the body that were sent, or both in one."""
        found = frame_checksum(parts)
        if found != self.checksum:
            raise DamagedError(
                f"of {self.note + self.body} bytes the checksum is {found:016x} and should be {self.checksum:016x}"
            )


def head_of(note: bytes, body: Sequence[Any] = ()) -> bytes:
    """The head of a message with this note, and with the parts of its body."""
    lengths = _LENGTHS.pack(len(note), sum(map(bytes_of, body)), frame_checksum((note, *body)))
    return lengths + _CHECKSUM.pack(frame_checksum((lengths,)))


def in_one(note: bytes, body: bytes) -> bytes:
    """A whole message, of one that is small."""
    content = note + body
    lengths = _LENGTHS.pack(len(note), len(body), frame_checksum((content,)))
    return lengths + _CHECKSUM.pack(frame_checksum((lengths,))) + content


def read_head(data: bytes | bytearray | memoryview, note_limit: int, at: int = 0) -> Head:
    """The head at ``at``. Raises DamagedError; GarbageError if it announces more than is ever sent."""
    (checksum,) = _CHECKSUM.unpack_from(data, at + _LENGTHS.size)
    if frame_checksum((memoryview(data)[at : at + _LENGTHS.size],)) != checksum:
        raise DamagedError("the head of a message has a wrong checksum")
    head = Head(*_LENGTHS.unpack_from(data, at))
    if head.note > note_limit or head.body > BODY_LIMIT:
        raise GarbageError(f"it announces a message of {head.note} + {head.body} bytes")
    return head


def bytes_of(part: Any) -> int:
    """The bytes of one part of a message: ``bytes`` or an Arrow buffer."""
    return len(part) if isinstance(part, bytes) else int(part.size)

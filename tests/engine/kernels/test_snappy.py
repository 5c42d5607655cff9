"""Snappy, as the page decoder undoes it: elements of every kind, and damaged ones, beside pyarrow's codec."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.kernels.page_library import address, page_library
from support.sweeps import seeds

pytestmark = pytest.mark.skipif(page_library() is None, reason="without compiled kernels pyarrow reads all")

GUARD = 0xA5
SIZE_BYTES = 3


def literal(rng: random.Random, content: bytes) -> bytes:
    """An element of these bytes, whose length may be written behind the tag."""
    most = len(content) - 1
    size = rng.choice([each for each in range(5) if (most < 60 if each == 0 else most < 256**each)])
    tag = (most if size == 0 else 59 + size) << 2
    return bytes([tag]) + (most.to_bytes(size, "little") if size else b"") + content


def copy(rng: random.Random, offset: int, length: int) -> bytes:
    """An element that repeats, in one of the forms that it has."""
    forms = [3, *([2] if offset < 1 << 16 else []), *([1] if offset < 1 << 11 and 4 <= length <= 11 else [])]
    form = rng.choice(forms + forms[-1:] * 4)
    if form == 1:
        return bytes([(offset >> 8) << 5 | (length - 4) << 2 | 1, offset & 255])
    return bytes([(length - 1) << 2 | form]) + offset.to_bytes(2 if form == 2 else 4, "little")


def stream(rng: random.Random) -> tuple[bytes, bytes]:
    """Elements with what they say before them, and what comes of them."""
    made, elements = bytearray(), []
    shortest, nearest = rng.choice([1, 20, 64]), rng.choice([1, 8, 40, 70_000])
    for _ in range(rng.choice([3, 60, 900])):
        if not made or rng.random() < 0.5:
            content = rng.randbytes(rng.randint(1, rng.choice([3, 16, 70, 300])))
            elements.append(literal(rng, content))
            made += content
        else:
            offset, length = rng.randint(1, min(len(made), nearest)), rng.randint(1, shortest)
            elements.append(copy(rng, offset, length))
            for _ in range(length):
                made.append(made[-offset])
    size = [len(made) >> 7 * place & 127 | 128 * (place < SIZE_BYTES - 1) for place in range(SIZE_BYTES)]
    return bytes(size) + b"".join(elements), bytes(made)


def undone(given: bytes, size: int) -> bytes | None:
    """What the decoder makes of it, and of nothing around it; None: it does not fit."""
    library = page_library()
    assert library is not None
    content, room = np.frombuffer(given, dtype=np.uint8), np.full(size + 32, GUARD, dtype=np.uint8)
    failed = library.call("snappy", address(content), len(content), address(room), size)
    assert (room[size:] == GUARD).all()
    return None if failed else room[:size].tobytes()


@pytest.mark.parametrize("seed", seeds(40, of=1000))
def test_stream_of_any_elements_gives_what_they_say(seed: int) -> None:
    given, made = stream(random.Random(seed))
    assert undone(given, len(made)) == made
    assert undone(given, len(made) + 1) is None


@pytest.mark.parametrize("seed", seeds(40, of=1000))
def test_damaged_stream_is_undone_or_refused_as_pyarrow_does(seed: int) -> None:
    rng = random.Random(seed)
    given, made = stream(rng)
    for _ in range(30):
        hurt = bytearray(given)
        for _ in range(rng.randint(1, 3)):
            hurt[rng.randrange(SIZE_BYTES, len(hurt))] = rng.randrange(256)
        del hurt[rng.choice([len(hurt), len(hurt), rng.randrange(SIZE_BYTES, len(hurt))]) :]
        try:
            wanted = pa.Codec("snappy").decompress(bytes(hurt), decompressed_size=len(made)).to_pybytes()
        except OSError:
            wanted = None
        assert undone(bytes(hurt), len(made)) == wanted

"""Short strings to numbers: a string is a few words of 64 bits, which are equal exactly if the strings are.

Rules:

1. Arrow's view of a string of at most twelve bytes is sixteen bytes: its length, its bytes, and zeros. A longer one is
   cut into such pieces. The length is part of it, so a string differs from one that has zeros at its end.
2. A string is as many words as the longest one that has come needs; those behind its end are zeros.
3. Strings are numbered 0, 1, 2, … in the order in which they come; ``slots`` finds those that are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from .growable_array import GrowableArray
from .pieces import Positions
from .scratch import BLOCK_ROWS, COMPARING, scratch_buffer
from .slots import Hashes, NumberKeys, Slots

_PIECE = 12
"""Bytes of a piece."""

_CAPACITY = [4, _PIECE, _PIECE + 4, 2 * _PIECE]
"""The longest string that one word, two, three, … can hold: the first half of a piece's first word is its length."""

LONGEST = _CAPACITY[-1]
"""Longer strings are no cheaper as words than when Arrow numbers them."""

FEW = 4
"""Strings that are known are few if there are so many times as many rows: then Arrow may hash them again."""

_FIRST_ROWS = 512
"""So many of the first rows are looked up on their own: most others then find their strings at once."""

_HALF = np.uint64(32)
_FIRST, _NEXT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


class ShortStrings:
    """See the module's rules."""

    def __init__(self) -> None:
        self._words = [GrowableArray(np.uint64)]
        self._slots = Slots()
        #: the strings as they were when Arrow numbered some last
        self._listed = self.all()

    @property
    def bytes(self) -> int:
        """What it takes."""
        return self._slots.bytes + sum(word.bytes for word in self._words) + int(self._listed.nbytes)

    def numbers(self, strings: pa.Array) -> Positions | None:
        """The number of each string, arbitrary where it is null; None, and no string is added, if one is too long."""
        bounds, content = layout(strings)
        longest = int((bounds[1:] - bounds[:-1]).max())
        if longest > LONGEST:
            return None
        while longest > _CAPACITY[len(self._words) - 1]:
            self._widen()
        if longest > _PIECE and self._slots.count * FEW < len(strings):
            return self._encoded(strings)
        return self._blocks(bounds, content)

    def _blocks(self, bounds: Any, content: pa.Buffer) -> Positions:
        rows = len(bounds) - 1
        if rows <= BLOCK_ROWS and self._slots.count:
            return self._block(bounds, content)
        parts, start = [], 0
        while start < rows:
            end = start + (BLOCK_ROWS if self._slots.count else _FIRST_ROWS)
            parts.append(self._block(bounds[start : end + 1], content))
            start = end
        return np.concatenate(parts)

    def all(self) -> pa.Array:
        """All strings in the order of their numbers, as a large binary array."""
        words = np.zeros((self._slots.count, len(_CAPACITY)), dtype="<u8")
        for number, word in enumerate(self._words):
            words[:, number] = word.values
        pieces = words.view(np.uint8).reshape(len(words), len(_CAPACITY) // 2, 16)
        lengths = pieces[:, :, :4].copy().view("<u4")
        content = pieces[:, :, 4:][np.arange(_PIECE) < lengths]
        ends = np.append(0, np.cumsum(lengths.sum(axis=(1, 2), dtype=np.int64)))
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(content)]
        return pa.Array.from_buffers(pa.large_binary(), self._slots.count, buffers)

    def _encoded(self, strings: pa.Array) -> Positions:
        """The numbers of strings that are long for words, and of which there may be few."""
        known = self._slots.count
        if len(self._listed) != known:
            self._listed = self.all()
        # Arrow numbers what comes first first: those that are known keep their numbers
        both = pa.chunked_array([self._listed, strings.cast(pa.large_binary())])
        found = both.dictionary_encode().chunks[-1]
        if len(found.dictionary) > known:
            self._blocks(*layout(found.dictionary.slice(known)))
        return places_of(found)

    def _block(self, bounds: Any, content: pa.Buffer) -> Positions:
        words = _words(bounds, content, len(self._words))
        numbers, new = self._slots.number(_hashes(words), NumberKeys(words, self._words))
        if len(new):
            for known, word in zip(self._words, words, strict=True):
                known.put(word[new])
        return numbers

    def _widen(self) -> None:
        """Give all strings one more word."""
        self._words.append(GrowableArray(np.uint64))
        words = [word.to(self._slots.count) for word in self._words]
        self._slots = Slots()
        self._slots.add(_hashes(words))


def places_of(found: pa.Array) -> Positions:
    """The places in its dictionary; arbitrary where it is null."""
    indices = found.indices.fill_null(0) if found.indices.null_count else found.indices
    places: Positions = indices.to_numpy().astype(np.int64)
    return places


def is_bytes(type: pa.DataType) -> bool:
    """Whether values are strings of bytes, of any length."""
    types = pa.types
    checks = (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
    return any(check(type) for check in checks)


def layout(strings: pa.Array) -> tuple[Any, pa.Buffer]:
    """Where each string begins, and the last one ends, and the bytes."""
    type = strings.type
    narrow = pa.types.is_string(type) or pa.types.is_binary(type)
    if not narrow and not pa.types.is_large_string(type):
        strings = strings.cast(pa.large_binary())
    _, offsets, content = strings.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32 if narrow else np.int64)
    content = pa.py_buffer(b"") if content is None else content
    return bounds[strings.offset : strings.offset + len(strings) + 1], content


def _words(bounds: Any, content: pa.Buffer, count: int) -> list[Hashes]:
    """The words of each string."""
    rows, pieces = len(bounds) - 1, (count + 1) // 2
    cuts = bounds
    if pieces > 1:
        cuts = np.empty(rows * pieces + 1, dtype=bounds.dtype)
        cuts[::pieces] = bounds
        for piece in range(1, pieces):
            np.minimum(bounds[:-1] + piece * _PIECE, bounds[1:], out=cuts[piece::pieces])
    type = pa.binary() if bounds.dtype == np.int32 else pa.large_binary()
    plain = pa.Array.from_buffers(type, rows * pieces, [None, pa.py_buffer(cuts), content])
    views = np.frombuffer(plain.cast(pa.binary_view()).buffers()[1], dtype="<u8")
    return list(views[: rows * pieces * 2].reshape(rows, pieces * 2).T[:count])


def _hashes(words: Sequence[Hashes]) -> Hashes:
    """Numbers whose upper bits depend on all words, until the next call on this thread."""
    made, upper = scratch_buffer(COMPARING + 1, len(words[0])), scratch_buffer(COMPARING + 2, len(words[0]))
    np.multiply(words[0], _FIRST, out=made)
    for word in words[1:]:
        np.right_shift(made, _HALF, out=upper)
        np.bitwise_xor(made, upper, out=made)
        np.add(made, word, out=made)
        np.multiply(made, _NEXT, out=made)
    hashes: Hashes = made
    return hashes

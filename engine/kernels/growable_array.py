"""Arrays that grow: what a hash aggregation keeps for each group.

Room is made in advance, by doubling, so that adding one group at a time costs no more than adding all at once. Room
that nothing was written to takes no memory, so ``bytes`` counts what is in use, and large arrays get four times as
much: each copy of one is written to pages that the system has to clear first.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import pyarrow as pa

from .pieces import Positions

_LARGE = 1024 * 1024
"""Bytes of an array that lies in memory of its own, which is taken from the system and given back."""


class GrowableArray:
    """Numbers, one for each group. ``values`` are those in use; only what ``to`` gives may be changed in place."""

    def __init__(self, dtype: Any, fill: Any = 0) -> None:
        self._fill = fill
        self._room = np.full(0, fill, dtype=dtype)
        self._given = False
        self.values: Any = self._room

    def to(self, count: int) -> Any:
        """Grow to ``count`` numbers, the new ones ``fill``."""
        used = len(self.values)
        room = self.reserve(count)
        if count > used:
            room[used:count] = self._fill
            self.values = room[:count]
        return self.values

    def reserve(self, count: int) -> Any:
        """Room for ``count`` numbers, those in use first: what is written behind them counts once it is ``taken``."""
        used = len(self.values)
        if count > len(self._room) or self._given:
            ahead = (4 if self.values.nbytes >= _LARGE else 2) * used
            room = np.empty(max(ahead, count, 64) if count > used else used, dtype=self._room.dtype)
            room[:used] = self.values
            self._room, self.values, self._given = room, room[:used], False
        return self._room

    def taken(self, count: int) -> None:
        """So many numbers are in use now; those that are new were written to the room."""
        self.values = self._room[:count]

    def put(self, numbers: Any) -> None:
        """Append numbers. Those that were given stay as they are: what is behind them was not."""
        used = len(self.values)
        count = used + len(numbers)
        room = self.reserve(count) if count > len(self._room) else self._room
        room[used:count] = numbers
        self.values = room[:count]

    def given(self) -> Any:
        """The numbers, which stay as they are: whoever changes them further on changes a copy."""
        self._given = True
        return self.values

    def frozen(self) -> GrowableArray:
        """An array of the numbers as they are now."""
        self._given = True
        return copy(self)

    @property
    def bytes(self) -> int:
        """The size of those in use."""
        return int(self.values.nbytes)


class GrowableBytes:
    """Strings of bytes, numbered 0, 1, 2, …"""

    def __init__(self) -> None:
        self._ends = GrowableArray(np.int64)
        self._ends.put([0])
        self._bytes = GrowableArray(np.uint8)

    def put(self, strings: pa.Array) -> None:
        """Append the strings of a large binary array without nulls."""
        if not len(strings):
            return
        first, end = strings.offset, strings.offset + len(strings)
        offsets = np.frombuffer(strings.buffers()[1], dtype=np.int64)[first : end + 1]
        content = np.frombuffer(strings.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
        self._ends.put(offsets[1:] - offsets[0] + self._ends.values[-1])
        self._bytes.put(content)

    def reserve(self, strings: int, bytes: int) -> tuple[Any, Any]:
        """Room for so many more: where each ends, behind a 0, and their bytes."""
        return self._ends.reserve(len(self) + 1 + strings), self._bytes.reserve(len(self._bytes.values) + bytes)

    def taken(self, strings: int) -> None:
        """So many strings are in use now; those that are new were written to the room."""
        self._ends.taken(strings + 1)
        self._bytes.taken(int(self._ends.values[-1]))

    def take(self, numbers: Positions) -> pa.Array:
        """Some of them, as a large binary array."""
        return self.all().take(pa.array(numbers))

    def all(self) -> pa.Array:
        """All of them, as a large binary array."""
        buffers = [None, pa.py_buffer(self._ends.values), pa.py_buffer(self._bytes.values)]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers)

    def __len__(self) -> int:
        return len(self._ends.values) - 1

    @property
    def bytes(self) -> int:
        """The size of those in use."""
        return self._ends.bytes + self._bytes.bytes

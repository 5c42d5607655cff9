"""Arrays that grow: what a hash aggregation keeps for each group.

Room is made in advance, by doubling, so that adding one group at a time costs no more than adding all at once. Room
that nothing was written to takes no memory, so ``bytes`` counts what is in use, and large arrays get four times as
much: each copy of one is written to pages that the system has to clear first.

Numbers that were given are copied before one of them changes. Of many that takes a while, so another thread may do it
ahead (``copy_ahead``); whoever is to change one waits for it then, or does it if nobody has begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from .pieces import Positions

_LARGE = 1024 * 1024
"""Bytes of an array that lies in memory of its own, which is taken from the system and given back."""


def _room(values: Any, count: int) -> Any:
    """Room for at least ``count`` numbers, more than these, which stand in it first."""
    used = len(values)
    ahead = (4 if values.nbytes >= _LARGE else 2) * used
    room = np.empty(max(ahead, count, 64) if count > used else used, dtype=values.dtype)
    room[:used] = values
    return room


class AheadCopy:
    """Room for changes of numbers that were given."""

    def __init__(self, values: Any) -> None:
        self.count = len(values)
        self._values = values
        self._lock = Lock()
        self._made: Any = None

    @property
    def is_made(self) -> bool:
        """Whether nobody has to wait for it."""
        return self._made is not None

    def make(self) -> Any:
        """The room, which is made now unless it was, on any thread."""
        with self._lock:
            if self._made is None:
                self._made, self._values = _room(self._values, self.count + 1), None
            return self._made


class GrowableArray:
    """Numbers, one for each group. ``values`` are those in use; only what ``to`` gives may be changed in place."""

    def __init__(self, dtype: Any, fill: Any = 0) -> None:
        self._fill = fill
        self._room = np.full(0, fill, dtype=dtype)
        self._given = False
        self._ahead: AheadCopy | None = None
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
            room = self._copied_ahead(max(count, used))
            room = _room(self.values, count) if room is None else room
            self._room, self.values, self._given, self._ahead = room, room[:used], False, None
        return self._room

    def _copied_ahead(self, count: int) -> Any:
        ahead = self._ahead
        room = None if ahead is None else ahead.make()
        if ahead is None or room is None or count > len(room):
            return None
        room[ahead.count : len(self.values)] = self.values[ahead.count :]
        return room

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

    def copy_ahead(self) -> AheadCopy | None:
        """What has been given and will be copied when one of the numbers changes; None: nothing."""
        if self._given and self._ahead is None and len(self.values):
            self._ahead = AheadCopy(self.values)
        return self._ahead

    def frozen(self) -> GrowableArray:
        """An array of the numbers as they are now."""
        self._given = True
        return copy(self)

    @property
    def bytes(self) -> int:
        """The size of those in use."""
        return int(self.values.nbytes)


def arrays_in(holder: Any) -> Iterator[GrowableArray]:
    """The arrays of numbers that belong to what takes memory, or to its parts."""
    for part in vars(holder).values():
        for each in part if isinstance(part, list) else [part]:
            if isinstance(each, GrowableArray):
                yield each
            elif hasattr(each, "bytes") and hasattr(each, "__dict__"):
                yield from arrays_in(each)


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

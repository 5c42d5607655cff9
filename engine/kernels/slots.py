"""A hash table that looks up all rows of a batch at once: keys are numbered 0, 1, 2, … in the order of their first row.

Rules:

1. A slot holds the number of a key, or nothing. The slots that a key may stand in follow from its hash: the first one
   from the bits below the uppermost 16, the next ones each further on by one more. At most half of the slots are taken.
   The uppermost bits tell the part of an exchange that a key belongs to: behind one, keys come part by part, and would
   crowd in that share of the slots.
2. All rows look for their keys at once, a slot at a time: who finds its key is done, of those who find nothing the
   first row takes the slot, all others go on. Rows of one key do the same steps, so the one that takes a slot is the
   key's first row.
3. A step costs as much as the rows that have not found their key; nothing depends on how many keys there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .growable_array import GrowableArray, GrowableBytes
from .native import Kernels, kernels_for
from .pieces import Flags, Positions
from .scratch import COMPARING, scratch_buffer

Hashes = npt.NDArray[np.uint64]

Numbered: TypeAlias = tuple[Positions, Positions]
"""The number of the key of each row, and the first rows of the keys that are new, in order."""

_PARTS_BITS = np.uint64(16)
_EMPTY = -1
_FIRST_ROW = -2
"""A slot with -2, -3, -4, … belongs to row 0, 1, 2, … of the rows that are being looked up."""


class Candidates(Protocol):
    """The keys of the rows that are being looked up."""

    def known(self, rows: Positions | slice, numbers: Positions) -> Flags:
        """Whether the keys of these rows are the known ones of these numbers."""

    def same(self, rows: Positions, others: Positions) -> Flags:
        """Whether the keys of these rows are those of the other rows."""


class NumberKeys:
    """Keys that are a number in each of some columns, looked up among known ones."""

    def __init__(self, columns: Sequence[Any], known: Sequence[GrowableArray]) -> None:
        self._columns = columns
        self._known = [column.values for column in known]

    def known(self, rows: Positions | slice, numbers: Positions) -> Flags:
        """See ``Candidates``."""
        there = scratch_buffer(COMPARING, len(numbers))
        pairs = zip(self._columns, self._known, strict=True)
        return _all(
            known.take(numbers, out=there.view(known.dtype), mode="clip") == column[rows] for column, known in pairs
        )

    def same(self, rows: Positions, others: Positions) -> Flags:
        """See ``Candidates``."""
        return _all(column[rows] == column[others] for column in self._columns)


class Slots:
    """See the module's rules. Whoever owns it keeps the keys themselves."""

    def __init__(self) -> None:
        self._slots: npt.NDArray[np.int32] = np.full(0, _EMPTY, dtype=np.int32)
        #: the hash of each key
        self._hashes = GrowableArray(np.uint64)

    @property
    def count(self) -> int:
        """The number of keys."""
        return len(self._hashes.values)

    @property
    def bytes(self) -> int:
        """The size of the slots and of the hashes."""
        return self._slots.nbytes + self._hashes.bytes

    def number(self, hashes: Hashes, keys: Candidates) -> Numbered:
        """The number of the key of each row, and the first rows of the keys that are new, in order."""
        self._widen(self.count + len(hashes))
        slots = self._home(hashes)
        numbers = self._slots.take(slots).astype(np.int64)
        found = numbers >= 0
        if found.all():
            found = keys.known(slice(None), numbers)
        elif self.count:
            some = np.flatnonzero(found)
            found[some] = keys.known(some, numbers[some])
        rows = np.flatnonzero(~found)
        firsts: list[Positions] = []
        step = 0
        while len(rows):
            step += 1
            if step > 1:
                slots[rows] = (slots[rows] + step - 1) & (len(self._slots) - 1)
            here = self._taken(rows, slots[rows], firsts)
            old, new = np.flatnonzero(here >= 0), np.flatnonzero(here < 0)
            matches = np.zeros(len(rows), dtype=bool)
            if len(old) and step > 1:
                matches[old] = keys.known(rows[old], here[old])
            if len(new):
                matches[new] = keys.same(rows[new], _FIRST_ROW - here[new])
            numbers[rows[matches]] = here[matches]
            rows = rows[~matches]
        return numbers, self._numbered(numbers, slots, hashes, firsts)

    def number_codes(self, kernels: Kernels, columns: Sequence[Positions], known: Sequence[GrowableArray]) -> Numbered:
        """The same for keys of numbers, compiled. Those of new keys are added to ``known``."""
        keys = self.count + len(columns[0])
        self._widen(keys)
        rooms = [column.reserve(keys) for column in known]
        numbers, first = kernels.number_keys(columns, rooms, self._slots, self._hashes.reserve(keys), self.count)
        self._hashes.taken(self.count + len(first))
        for column in known:
            column.taken(self.count)
        return numbers, first

    def number_strings(self, kernels: Kernels, bounds: Any, content: pa.Buffer, held: GrowableBytes) -> Numbered:
        """The same for strings, compiled: those of new keys are added to ``held``."""
        keys = self.count + len(bounds) - 1
        self._widen(keys)
        ends, kept = held.reserve(len(bounds) - 1, int(bounds[-1]) - int(bounds[0]))
        hashes = self._hashes.reserve(keys)
        found = kernels.number_strings(bounds, content.address, ends, kept, self._slots, hashes, self.count)
        self._hashes.taken(self.count + len(found[1]))
        held.taken(self.count)
        return found

    def find_strings(self, kernels: Kernels, bounds: Any, content: pa.Buffer, held: GrowableBytes) -> Positions:
        """The number of each string, or -1. Nothing changes: several threads may ask at once."""
        if not self.count:
            return np.full(len(bounds) - 1, _EMPTY, dtype=np.int64)
        known = (*held.reserve(0, 0), self._slots, self._hashes.values, self.count)
        return kernels.number_strings(bounds, content.address, *known, add=False)[0]

    def add(self, hashes: Hashes) -> None:
        """Add keys that differ from each other and from those known."""
        self._widen(self.count + len(hashes))
        self._place(hashes, self.count)
        self._hashes.put(hashes)

    # ------------------------------------------------------------------ parts

    def _home(self, hashes: Hashes) -> Positions:
        return ((hashes << _PARTS_BITS) >> np.uint64(65 - len(self._slots).bit_length())).view(np.int64)

    def _taken(self, rows: Positions, slots: Positions, firsts: list[Positions]) -> Positions:
        """What stands in the slots after the first row of those that find one empty has taken it."""
        here = self._slots.take(slots).astype(np.int64)
        empty = np.flatnonzero(here == _EMPTY)
        if not len(empty):
            return here
        marks, wanted = _FIRST_ROW - rows[empty], slots[empty]
        self._slots[wanted[::-1]] = marks[::-1]  # of all rows that want a slot the first one is written last
        here[empty] = self._slots.take(wanted)
        firsts.append(rows[empty][here[empty] == marks])
        return here

    def _numbered(self, numbers: Positions, slots: Positions, hashes: Hashes, firsts: list[Positions]) -> Positions:
        """Number the new keys in the order of their first rows."""
        if not firsts:
            return np.zeros(0, dtype=np.int64)
        is_first = np.zeros(len(numbers), dtype=bool)
        is_first[np.concatenate(firsts)] = True
        first = np.flatnonzero(is_first)
        number = np.cumsum(is_first) + (self.count - 1)
        new = np.flatnonzero(numbers <= _FIRST_ROW)
        numbers[new] = number[_FIRST_ROW - numbers[new]]
        self._slots[slots[first]] = number[first]
        self._hashes.put(hashes[first])
        return first

    def _widen(self, keys: int) -> None:
        if 2 * keys >= len(self._slots):
            self._slots = np.full(1 << (2 * keys).bit_length(), _EMPTY, dtype=np.int32)
            self._place(self._hashes.values, 0)

    def _place(self, hashes: Hashes, first: int) -> None:
        """Put keys, all different, into slots."""
        kernels = kernels_for(len(hashes))
        if kernels is not None:
            kernels.place_keys(hashes, first, self._slots)
            return
        slots, rows, step = self._home(hashes), np.arange(len(hashes)), 0
        while len(rows):
            wanted = slots[rows]
            free = self._slots.take(wanted) == _EMPTY
            self._slots[wanted[free]] = first + rows[free]
            rows = rows[self._slots.take(wanted) != first + rows]
            step += 1
            slots[rows] = (slots[rows] + step) & (len(self._slots) - 1)


def _all(flags: Iterable[Flags]) -> Flags:
    return reduce(np.logical_and, flags)

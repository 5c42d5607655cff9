"""Exact sums of integers and decimals by group.

Rules:

1. A number is added as one int64 where all sums of the batches so far are sure to fit; else in parts of 32 bits, whose
   sums fit for any number of rows below 2³¹. What was added as one is put to the parts before it could overflow.
2. The parts are those of two's complement, the lowest first; only the highest one has a sign.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from .accumulators import GroupRows, Validity, add_at
from .aggregate_protocol import State
from .growable_array import GrowableArray
from .keys import numbers
from .pieces import Positions

_BITS = 32
_LOW = 2**_BITS - 1
_LIMIT = 2**63
_ROWS = 2**30


class _Parts:
    """Totals in parts of 32 bits."""

    def __init__(self, parts: int) -> None:
        self._plain = GrowableArray(np.int64)
        #: no total of ``plain`` is further from zero
        self._reach = 0
        self._parts = [GrowableArray(np.int64) for _ in range(parts)]
        #: rows added to the parts since all but the highest were below 2³²
        self._rows = 0

    @property
    def bytes(self) -> int:
        return self._plain.bytes * (1 + len(self._parts))

    def add_whole(self, whole: Any, rows: GroupRows) -> bool:
        """Add integers, if they are small enough to be added as one."""
        if not len(whole):
            return True
        reach = _furthest(whole) * len(whole)
        if reach >= _LIMIT:
            return False
        if self._reach + reach >= _LIMIT:
            self._carry(rows.groups)
        self._reach += reach
        add_at(self._plain.to(rows.groups), rows, whole.astype(np.int64, copy=False))
        return True

    def add_parts(self, parts: list[Positions], rows: GroupRows) -> None:
        """Add integers in parts, of which only the last one has a sign; the highest ones may be left out."""
        if self._rows + len(rows.ids) > _ROWS:
            self._carry(rows.groups)
        self._rows += len(rows.ids) + 1
        for total, part in zip(self._parts, parts, strict=False):
            add_at(total.to(rows.groups), rows, part)

    def carried(self, groups: int) -> list[Positions]:
        """The totals: every part but the highest one is below 2³². They stay as they are."""
        self._carry(groups)
        return [total.given() for total in self._parts]

    def _carry(self, groups: int) -> None:
        """Put what was added as one to the parts, and from each part to the next what is too much for it."""
        plain, totals = self._plain.to(groups), [total.to(groups) for total in self._parts]
        for place in range(len(totals) - 1):
            if self._reach:
                totals[place] += plain & _LOW
                plain >>= _BITS
            totals[place + 1] += totals[place] >> _BITS
            totals[place] &= _LOW
        totals[-1] += plain
        plain[:] = 0
        self._reach = self._rows = 0


class _Sums:
    """What both share: the totals, which groups have had a value, and how many groups there are."""

    in_place = True

    def __init__(self, parts: int) -> None:
        self._totals = _Parts(parts)
        self._validity = Validity()
        self._groups = 0

    @property
    def bytes(self) -> int:
        return self._totals.bytes + self._validity.bytes

    def _mark(self, values: pa.Array, rows: GroupRows) -> None:
        self._validity.mark(rows, values)
        self._groups = rows.groups


class WholeSums(_Sums):
    """Sums of integers and booleans. State: the upper and the lower half, see ``Sum``."""

    def __init__(self) -> None:
        super().__init__(2)

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        assert values is not None
        self._mark(values, rows)
        whole = numbers(values)
        if not self._totals.add_whole(whole, rows):
            halves = (whole & whole.dtype.type(_LOW), whole >> whole.dtype.type(_BITS))
            self._totals.add_parts([half.astype(np.int64) for half in halves], rows)

    def merge(self, state: State, rows: GroupRows) -> None:
        self._mark(state[0], rows)
        high, low = (numbers(part) for part in state)
        self._totals.add_parts([low, high], rows)

    def state(self) -> State:
        low, high = self._totals.carried(self._groups)
        missing = self._validity.missing()
        return tuple(pa.array(part, mask=missing) for part in (high, low))


class DecimalSums(_Sums):
    """Sums of decimals, as decimals of 256 bits."""

    def __init__(self, type: pa.DataType) -> None:
        super().__init__(8)
        self._type = type

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        assert values is not None
        self._mark(values, rows)
        words = _words(values)
        if all(bool((word == words[0] >> 63).all()) for word in words[1:]) and self._totals.add_whole(words[0], rows):
            return
        parts = [part for word in words for part in (word & _LOW, (word >> _BITS) & _LOW)]
        self._totals.add_parts([*parts[:-1], words[-1] >> _BITS], rows)

    def merge(self, state: State, rows: GroupRows) -> None:
        self.add(state[0], rows)

    def state(self) -> State:
        parts = self._totals.carried(self._groups)
        words = np.empty((self._groups, 4), dtype=np.uint64)
        for place in range(4):
            low, high = (part.view(np.uint64) for part in parts[2 * place : 2 * place + 2])
            words[:, place] = low | (high << np.uint64(_BITS))
        missing = self._validity.missing()
        valid = None if missing is None else pa.array(~missing).buffers()[1]
        return (pa.Array.from_buffers(self._type, self._groups, [valid, pa.py_buffer(words)]),)


def _furthest(whole: Any) -> int:
    """The largest distance from zero. Numbers without a negative one are looked at once."""
    if whole.dtype == np.int64:
        largest = int(whole.view(np.uint64).max())
        if largest < _LIMIT:
            return largest
    return max(-int(whole.min()), int(whole.max()))


def _words(values: pa.Array) -> list[Positions]:
    """Decimals as words of 64 bits, the lowest first; 0 in place of null."""
    if values.type.bit_width < 128:
        values = values.cast(pa.decimal128(values.type.precision, values.type.scale))
    if values.null_count:
        values = values.fill_null(pa.scalar(0, pa.int64()).cast(pa.decimal128(19)).cast(values.type))
    words = values.type.bit_width // 64
    start = values.offset * words
    content = np.frombuffer(values.buffers()[1] or b"", dtype=np.int64)
    table = content[start : start + len(values) * words].reshape(len(values), words)
    return [np.ascontiguousarray(table[:, word]) for word in range(words)]

"""Exact sums of integers and decimals by group.

Rules:

1. In numpy, a number is added as one int64 where all sums of the batches so far are sure to fit; else in parts of 32
   bits, whose sums fit for any number of rows below 2³¹. What was added as one is put to the parts before it could
   overflow. Compiled kernels add numbers as they are, integers to totals of 128 bits, decimals of 192.
2. The parts are those of two's complement, the lowest first; only the highest one has a sign.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import pyarrow as pa

from .accumulators import Accumulator, GroupRows, OnePass, Validity, add_at
from .aggregate_protocol import State
from .growable_array import GrowableArray
from .keys import numbers, validity
from .native import Kernels, kernels
from .pieces import Flags, Positions

_BITS = 32
_LOW = 2**_BITS - 1
_LIMIT = 2**63
_ROWS = 2**30

_WORDS, _DIGITS = 4, 76
"""Of a decimal of 256 bits."""

_SURE_TO_FIT = 10**38 >> 64
"""The upper word of a decimal of 38 digits is nearer to zero, or this."""


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
    takes_compact = False

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


def whole_sums(column: pa.DataType | None) -> Accumulator:
    """Sums of integers and booleans, as the halves of ``Sum``."""
    compiled = kernels()
    return WholeSums() if compiled is None or pa.types.is_uint64(column) else WholeWords(compiled)


def decimal_sums(column: pa.DataType) -> Accumulator:
    """Sums of decimals, as decimals of 256 bits."""
    compiled = kernels()
    if compiled is None or column.bit_width > 128:
        return DecimalParts(column.scale)
    return DecimalWords(column.scale, compiled)


class _WordTotals:
    """Totals of two words each, by compiled kernels."""

    in_place = True

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._words = GrowableArray(np.int64)
        self._validity = Validity()

    @property
    def bytes(self) -> int:
        return self._words.bytes + self._validity.bytes

    def state(self) -> State:
        return self.state_of(slice(0, len(self._words.values) // 2))

    def state_of(self, part: slice | Positions) -> State:
        """The states of some groups."""
        raise NotImplementedError

    def state_later(self) -> Callable[[], State]:
        """What gives the states as they are now, on any thread."""
        twin = copy(self)
        twin._words, twin._validity = self._words.frozen(), self._validity.frozen()
        return twin.state

    def _join(self, values: pa.Array, whole: Positions, rows: GroupRows, into: OnePass) -> None:
        self._validity.mark(rows, values)
        into.whole.append((self._words.to(2 * rows.groups), whole))

    def _add(self, words: Any, high: Any, rows: GroupRows, bits: Any, offset: int) -> None:
        total = self._words.to(2 * rows.groups)
        if len(words):
            ids = None if rows.groups == 1 else np.ascontiguousarray(rows.ids)
            self._kernels.add_words(total, high, ids, words, bits, offset)


class WholeWords(_WordTotals):
    """Sums of integers and booleans: fewer than 2³¹ numbers of 64 bits fit into two words."""

    takes_compact = False

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        assert values is not None
        self._validity.mark(rows, values)
        self._add(numbers(values).astype(np.int64, copy=False).reshape(-1, 1), None, rows, None, 0)

    def feed(self, values: pa.Array, rows: GroupRows, into: OnePass) -> bool:
        """Join a pass over these rows, if that can be done."""
        if values.null_count:
            return False
        self._join(values, numbers(values).astype(np.int64, copy=False), rows, into)
        return True

    def merge(self, state: State, rows: GroupRows) -> None:
        self._validity.mark(rows, state[0])
        high, low = (numbers(part) for part in state)
        words = np.empty((len(high), 2), dtype=np.int64)
        np.left_shift(high, _BITS, out=words[:, 0])
        words[:, 0] += low
        np.right_shift(high, _BITS, out=words[:, 1])
        self._add(words, None, rows, None, 0)

    def state_of(self, part: slice | Positions) -> State:
        """The states of some groups."""
        low, high = self._words.values.reshape(-1, 2)[part].T
        missing = self._validity.missing(part)
        upper = (high << _BITS) | ((low >> _BITS) & _LOW)
        return tuple(pa.array(part, mask=missing) for part in (upper, low & _LOW))


class DecimalWords(_WordTotals):
    """Sums of decimals of at most 128 bits. A third word counts what is too much for two, once there are numbers of
    more than one word."""

    takes_compact = True

    def __init__(self, scale: int, kernels: Kernels) -> None:
        super().__init__(kernels)
        self._type = pa.decimal256(_DIGITS, scale)
        self._high: GrowableArray | None = None

    def state_later(self) -> Callable[[], State]:
        """What gives the states as they are now, on any thread."""
        twin = copy(self)
        twin._words, twin._validity = self._words.frozen(), self._validity.frozen()
        twin._high = None if self._high is None else self._high.frozen()
        return twin.state

    @property
    def bytes(self) -> int:
        return super().bytes + (0 if self._high is None else self._high.bytes)

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        assert values is not None
        self._validity.mark(rows, values)
        words = decimal_words(values)
        if words.shape[1] > 1 and self._high is None:
            self._high = GrowableArray(np.int64)
        high = None if self._high is None else self._high.to(rows.groups)
        bits = np.frombuffer(values.buffers()[0], dtype=np.uint8) if values.null_count else None
        self._add(words, high, rows, bits, values.offset)

    def feed(self, values: pa.Array, rows: GroupRows, into: OnePass) -> bool:
        """Join a pass over these rows, if that can be done."""
        if values.null_count or values.type.bit_width != 64 or self._high is not None:
            return False
        self._join(values, decimal_words(values)[:, 0], rows, into)
        return True

    def merge(self, state: State, rows: GroupRows) -> None:
        self.add(state[0], rows)

    def state_of(self, part: slice | Positions) -> State:
        """The states of some groups."""
        low = self._words.values.reshape(-1, 2)[part]
        words = np.empty((len(low), _WORDS), dtype=np.int64)
        words[:, :2] = low
        np.right_shift(low[:, 1], 63, out=words[:, 3])
        if self._high is None:
            words[:, 2] = words[:, 3]
        else:
            np.add(self._high.values[part], words[:, 3], out=words[:, 2])
            np.right_shift(words[:, 2], 63, out=words[:, 3])
        return (_as_decimals(words, self._type, self._validity.missing(part)),)


class DecimalParts(_Sums):
    """The same in parts, by numpy."""

    takes_compact = True

    def __init__(self, scale: int) -> None:
        super().__init__(2 * _WORDS)
        self._type = pa.decimal256(_DIGITS, scale)

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        assert values is not None
        self._mark(values, rows)
        table = decimal_words(values)
        words = [np.ascontiguousarray(table[:, word]) for word in range(table.shape[1])]
        if values.null_count:
            valid = validity(values)
            words = [np.where(valid, word, 0) for word in words]
        if all(bool((word == words[0] >> 63).all()) for word in words[1:]) and self._totals.add_whole(words[0], rows):
            return
        parts = [part for word in words for part in (word & _LOW, (word >> _BITS) & _LOW)]
        self._totals.add_parts([*parts[:-1], words[-1] >> _BITS], rows)

    def merge(self, state: State, rows: GroupRows) -> None:
        self.add(state[0], rows)

    def state(self) -> State:
        parts = self._totals.carried(self._groups)
        words = np.empty((self._groups, _WORDS), dtype=np.uint64)
        for place in range(_WORDS):
            low, high = (part.view(np.uint64) for part in parts[2 * place : 2 * place + 2])
            words[:, place] = low | (high << np.uint64(_BITS))
        return (_as_decimals(words, self._type, self._validity.missing()),)


def narrowed(sums: pa.Array, type: pa.DataType) -> pa.Array:
    """Decimals of 256 bits with 38 digits. Raises ArrowInvalid if one has more."""
    words = decimal_words(sums)
    upper = words[:, 1]
    fits = (np.abs(upper) < _SURE_TO_FIT) & (words[:, 2] == upper >> 63) & (words[:, 3] == words[:, 2])
    valid = validity(sums) if sums.null_count else None
    if not (fits if valid is None else fits | ~valid).all():
        return sums.cast(type)
    return _as_decimals(np.ascontiguousarray(words[:, :2]), type, None if valid is None else ~valid)


def _as_decimals(words: Any, type: pa.DataType, missing: Flags | None) -> pa.Array:
    valid = None if missing is None else pa.array(~missing).buffers()[1]
    rows = words.nbytes * 8 // type.bit_width
    return pa.Array.from_buffers(type, rows, [valid, pa.py_buffer(words)])


def _furthest(whole: Any) -> int:
    """The largest distance from zero. Numbers without a negative one are looked at once."""
    if whole.dtype == np.int64:
        largest = int(whole.view(np.uint64).max())
        if largest < _LIMIT:
            return largest
    return max(-int(whole.min()), int(whole.max()))


def decimal_words(values: pa.Array) -> Any:
    """Decimals as words of 64 bits, a row each, the lowest first; arbitrary where they are null."""
    if values.type.bit_width < 64:
        return numbers(values).astype(np.int64).reshape(-1, 1)
    words = values.type.bit_width // 64
    content = np.frombuffer(values.buffers()[1] or b"", dtype=np.int64)
    return content[values.offset * words : (values.offset + len(values)) * words].reshape(len(values), words)

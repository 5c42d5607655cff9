"""States of groups that are changed in place: what makes merging a row cost the same however many groups there are.

Rules:

1. A group is merged strictly from its first row to its last, floating-point sums included: ``add.at`` adds in the order
   of the rows, to what stands there. So results do not depend on where the rows were cut.
2. What ``state`` gives stays as it is when further rows come (``GrowableArray.given``).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .aggregate_protocol import AggregateFunction, Segments, State
from .groups import stable_order
from .growable_array import GrowableArray
from .key_table import KeyTable
from .keys import numbers, validity
from .native import FEW_GROUPS, Pair, kernels, kernels_for
from .pieces import Flags, Positions

_FLOAT64 = pa.float64().id


class GroupRows:
    """Rows and their groups: ``ids`` are these, ``groups`` is the number of all groups that there are now."""

    def __init__(self, ids: Positions, groups: int, masked: bool = False) -> None:
        self.ids = ids
        self.groups = groups
        #: rows have been left out, so a new group may have none here
        self.masked = masked

    @cached_property
    def counts(self) -> Positions:
        """The number of rows of each group."""
        if self.groups == 1:
            return np.array([len(self.ids)])
        compiled = kernels_for(len(self.ids))
        if compiled is None:
            return np.bincount(self.ids, minlength=self.groups)
        counts = np.zeros(self.groups, dtype=np.int64)
        compiled.count(counts, self.ids)
        return counts

    def only(self, flags: Flags) -> GroupRows:
        """Some of the rows."""
        return GroupRows(self.ids.take(np.flatnonzero(flags)), self.groups, True)


class OnePass:
    """Sums of few groups that one pass over the rows brings on, all at once; accumulators with ``feed`` join it."""

    def __init__(self) -> None:
        #: totals, in two words or as doubles, and what is added to them
        self.whole: list[Pair] = []
        self.floats: list[Pair] = []

    @staticmethod
    def over(rows: GroupRows) -> OnePass | None:
        """A pass over these rows, if it is worth one."""
        return OnePass() if 1 < rows.groups <= FEW_GROUPS and kernels_for(len(rows.ids)) is not None else None

    def run(self, rows: GroupRows) -> None:
        """Add the numbers of all rows; the rows of each group are counted, too."""
        compiled = kernels()
        if compiled is not None and (self.whole or self.floats):
            rows.counts = compiled.totals(rows.ids, rows.groups, self.whole, self.floats)


class Sized(Protocol):
    """What takes memory."""

    @property
    def bytes(self) -> int:
        """How much."""


class Accumulator(Sized, Protocol):
    """The states of all groups under one aggregate."""

    @property
    def in_place(self) -> bool:
        """Whether adding rows costs no more the more there is."""

    @property
    def takes_compact(self) -> bool:
        """Whether decimals may come as 64 bits (``arrow.compact``)."""

    @property
    def bytes(self) -> int:
        """The size of the states."""

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        """Merge rows; ``values`` as for ``AggregateFunction.lift``."""

    def merge(self, state: State, rows: GroupRows) -> None:
        """Merge rows that are states already."""

    def state(self) -> State:
        """The states."""


def add_at(total: Any, rows: GroupRows, added: Any) -> None:
    """Add the number of each row to the total of its group, in the order of the rows."""
    if len(total) != 1:
        kernels = kernels_for(len(rows.ids))
        if kernels is None or not kernels.add(total, rows.ids, added):
            with np.errstate(invalid="ignore", over="ignore"):
                np.add.at(total, rows.ids, added)
    elif added.dtype.kind == "f":
        with np.errstate(invalid="ignore", over="ignore"):
            total[0] = np.add.accumulate(np.concatenate([total, added]))[-1]
    else:
        total[0] += added.sum()


class Validity:
    """Which groups have had a value. Costs nothing as long as all have."""

    def __init__(self) -> None:
        self._flags = GrowableArray(np.bool_, False)
        self._all = True

    @property
    def bytes(self) -> int:
        return self._flags.bytes

    def mark(self, rows: GroupRows, column: pa.Array | None) -> None:
        """Mark the groups of these rows, leaving out those in which the column is null."""
        before = len(self._flags.values)
        flags = self._flags.to(rows.groups)
        plain = column is None or not column.null_count
        if plain and not rows.masked:
            flags[before:] = True
        if self._all and (len(flags) == before or (plain and not rows.masked)):
            return
        flags[rows.ids if plain else rows.ids[validity(column)]] = True
        self._all = bool(flags.all())

    def unmarked(self, rows: GroupRows) -> Positions | None:
        """The rows of groups that have had no value before; None if there is no such row."""
        flags = self._flags.values
        if self._all and len(flags) == rows.groups:
            return None
        had = np.zeros(rows.groups, dtype=bool)
        had[: len(flags)] = flags
        return np.flatnonzero(~had.take(rows.ids))

    def missing(self, part: slice | Positions = slice(None)) -> Flags | None:
        """Which of these groups have had none; None if there is no such group."""
        return None if self._all else ~self._flags.values[part]

    def frozen(self) -> Validity:
        """The same as it is now."""
        twin = copy(self)
        twin._flags = self._flags.frozen()
        return twin


class Counting:
    """Counts of rows, or of values that are not null."""

    in_place = True
    takes_compact = True

    def __init__(self) -> None:
        self._counts = GrowableArray(np.int64)

    @property
    def bytes(self) -> int:
        return self._counts.bytes

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        counts = self._counts.to(rows.groups)
        if values is not None and values.null_count:
            rows = rows.only(validity(values))
        if rows.groups <= len(rows.ids):
            counts += rows.counts
            return
        kernels = kernels_for(len(rows.ids))
        if kernels is not None:
            kernels.count(counts, rows.ids)
        else:
            np.add.at(counts, rows.ids, 1)

    def merge(self, state: State, rows: GroupRows) -> None:
        add_at(self._counts.to(rows.groups), rows, state[0].to_numpy())

    def state(self) -> State:
        return (pa.array(self._counts.given()),)

    def state_of(self, part: slice | Positions) -> State:
        """The states of some groups."""
        return (pa.array(self._counts.values[part]),)

    @property
    def counts(self) -> Positions:
        """The counts themselves."""
        counts: Positions = self._counts.values
        return counts


class FloatSums:
    """Sums of floating-point numbers."""

    in_place = True
    takes_compact = False

    def __init__(self) -> None:
        self._totals = GrowableArray(np.float64)
        self._validity = Validity()

    @property
    def bytes(self) -> int:
        return self._totals.bytes + self._validity.bytes

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        assert values is not None
        self._validity.mark(rows, values)
        plain = numbers(values)
        if plain.dtype != np.float64:
            with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN, not a warning
                plain = plain.astype(np.float64)
        add_at(self._totals.to(rows.groups), rows, plain)

    def feed(self, values: pa.Array, rows: GroupRows, into: OnePass) -> bool:
        """Join a pass over these rows, if that can be done."""
        if values.null_count or values.type.id != _FLOAT64:
            return False
        self._validity.mark(rows, values)
        into.floats.append((self._totals.to(rows.groups), numbers(values)))
        return True

    def merge(self, state: State, rows: GroupRows) -> None:
        self.add(state[0], rows)

    def state(self) -> State:
        return (pa.array(_with_one_nan(self._totals.given()), mask=self._validity.missing()),)

    def state_of(self, part: slice | Positions) -> State:
        """The states of some groups."""
        return (pa.array(_with_one_nan(self._totals.values[part]), mask=self._validity.missing(part)),)


def _with_one_nan(totals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """All NaN with the same bits: those that an addition gives depend on who compiled it."""
    is_nan = np.isnan(totals)
    return np.where(is_nan, np.nan, totals) if is_nan.any() else totals


class Merging:
    """States of a function that can only merge rows which follow each other: rows are sorted by group first."""

    in_place = False
    takes_compact = False

    def __init__(self, function: AggregateFunction, column: pa.DataType | None) -> None:
        self._function = function
        self._column = column
        self._state = function.blank(column, 0)
        self._groups = 0

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in self._state)

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        self.merge(self._function.lift(values, len(rows.ids)), rows)

    def merge(self, state: State, rows: GroupRows) -> None:
        blank = self._function.blank(self._column, rows.groups - self._groups)
        parts = zip(self._state, blank, state, strict=True)
        ids = np.concatenate([np.arange(rows.groups), rows.ids])
        self._state = self._merged(tuple(pa.concat_arrays(part) for part in parts), ids, rows.groups)
        self._groups = rows.groups

    def _merged(self, state: State, ids: Positions, groups: int) -> State:
        order = stable_order(ids, groups)
        segments = Segments(np.append(0, np.flatnonzero(np.diff(ids[order])) + 1), len(order))
        picked = pa.array(order)
        return self._function.merge(tuple(part.take(picked) for part in state), segments)

    def state(self) -> State:
        return self._state


def accumulator_of(function: AggregateFunction, column: pa.DataType | None) -> Accumulator:
    """The states of no group, under any function."""
    make: Callable[[pa.DataType | None], Accumulator] | None = getattr(function, "accumulator", None)
    return Merging(function, column) if make is None else make(column)


def state_maker(accumulator: Accumulator) -> Callable[[slice], State]:
    """What gives the states of some groups, those of a slice, of an accumulator that gets no more rows."""
    of_part: Callable[[slice], State] | None = getattr(accumulator, "state_of", None)
    if of_part is not None:
        return of_part
    state = accumulator.state()
    return lambda part: tuple(column.slice(part.start, part.stop - part.start) for column in state)


def makes_parts(accumulator: Accumulator) -> bool:
    """Whether the states of some groups can be made without those of all."""
    return hasattr(accumulator, "state_of")


def states_at(accumulator: Accumulator, groups: Positions) -> State:
    """The states of some groups, which stay as they are."""
    of_groups: Callable[[Positions], State] | None = getattr(accumulator, "state_of", None)
    if of_groups is not None:
        return of_groups(groups)
    picked = pa.array(groups)
    return tuple(column.take(picked) for column in accumulator.state())


def states_later(accumulator: Accumulator) -> Callable[[], State]:
    """What gives the states of all groups as they are now, on any thread."""
    later: Callable[[], Callable[[], State]] | None = getattr(accumulator, "state_later", None)
    if later is not None:
        return later()
    state = accumulator.state()
    return lambda: state


class ListAccumulator:
    """The values of each group in the order of their rows: they are kept as they come, and put to their groups when
    they are asked for. ``distinct`` keeps a value only where it is the first of its kind in its group; ``skips_nulls``
    keeps no null."""

    in_place = True
    takes_compact = False

    def __init__(self, column: pa.DataType | None, *, distinct: bool = False, skips_nulls: bool = False) -> None:
        self._column = column
        self._skips_nulls = skips_nulls
        self._values: list[pa.Array] = []
        self._ids: list[Positions] = []
        self._bytes = 0
        self._groups = 0
        self._seen = KeyTable() if distinct else None

    @property
    def bytes(self) -> int:
        return self._bytes + 8 * self._groups + (0 if self._seen is None else self._seen.bytes)

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        assert values is not None
        ids = rows.ids
        self._groups = rows.groups
        if self._skips_nulls and values.null_count:
            values, ids = values.drop_null(), ids[validity(values)]
        if self._seen is not None:
            _, first = self._seen.number([pa.array(ids), values], len(ids))
            values, ids = values.take(pa.array(first)), ids[first]
        if len(ids):
            self._values.append(values)
            self._ids.append(ids.astype(np.int32))
            self._bytes += int(values.nbytes) + 4 * len(ids)

    def merge(self, state: State, rows: GroupRows) -> None:
        lengths = pc.list_value_length(state[0]).to_numpy()
        self.add(state[0].flatten(), GroupRows(np.repeat(rows.ids, lengths), rows.groups, True))

    def state(self) -> State:
        values, ids = self._whole()
        offsets = np.append(0, np.cumsum(np.bincount(ids, minlength=self._groups))).astype(np.int64)
        picked = values.take(pa.array(stable_order(ids, self._groups)))
        return (pa.LargeListArray.from_arrays(pa.array(offsets), picked, type=pa.large_list(values.type)),)

    def _whole(self) -> tuple[pa.Array, Positions]:
        """All values and their groups in one piece."""
        if not self._values:
            return pa.nulls(0, self._column), np.zeros(0, dtype=np.int32)
        if len(self._values) > 1:
            self._values, self._ids = [pa.concat_arrays(self._values)], [np.concatenate(self._ids)]
        return self._values[0], self._ids[0]

"""Aggregate functions over runs of rows: what one promises, and those there are.

A function keeps its *state* in Arrow columns, one row per group. A row of input is lifted to a state of its own; states
that follow each other are merged; a state at the end becomes a value. Continuing a group is therefore the same as
merging the state kept so far with the rows that follow.

Rules:

1. ``merge`` works strictly from the first row of a segment to its last. So a result does not depend on where a group
   was cut into batches, floating-point sums included (they are not summed pairwise).
2. Dictionary columns arrive decoded. Nulls are skipped, except by ``count`` of rows, ``first`` and ``last``.
3. Integer sums are exact, whatever the order; a sum that does not fit raises OverflowError when it is asked for.
   The smallest and the largest value follow Spark and DuckDB: NaN is larger than any number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import FlowError
from .keys import is_point_in_time, numbers, validity
from .pieces import Flags, Positions

State: TypeAlias = tuple[pa.Array, ...]

_LOW_BITS = np.int64(2**32 - 1)


@dataclass(frozen=True)
class Segments:
    """Consecutive rows cut into non-empty segments: ``starts`` are their first rows, ``rows`` the number of all."""

    starts: Positions
    rows: int

    @cached_property
    def ends(self) -> Positions:
        """The row after the last one of each segment."""
        return np.append(self.starts[1:], self.rows)

    @cached_property
    def ids(self) -> Positions:
        """For each row the number of its segment."""
        return np.repeat(np.arange(len(self.starts)), self.ends - self.starts)


@runtime_checkable
class AggregateFunction(Protocol):
    """An aggregate function; immutable and picklable. ``column``: the type of its argument, None for rows as such."""

    @property
    def name(self) -> str:
        """The function's name in flows and errors."""

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        """The types of the state's columns. Raises FlowError if the function does not take this type."""

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """The type of the value."""

    def lift(self, values: pa.Array | None, rows: int) -> State:
        """Each of ``rows`` rows as a state."""

    def merge(self, state: State, segments: Segments) -> State:
        """One state per segment."""

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        """The values. Raises OverflowError if one does not fit its type."""


class Count:
    """The number of rows, or of rows in which the column is not null."""

    name = "count"

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        return (pa.int64(),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        return pa.int64()

    def lift(self, values: pa.Array | None, rows: int) -> State:
        if values is None or not values.null_count:
            return (pa.array(np.ones(rows, dtype=np.int64)),)
        return (values.is_valid().cast(pa.int64()),)

    def merge(self, state: State, segments: Segments) -> State:
        return (pa.array(np.add.reduceat(state[0].to_numpy(), segments.starts)),)

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        return state[0]


class Sum:
    """The sum: int64 or uint64 of integers and booleans, float64 of floats, decimals with 38 digits of decimals."""

    name = "sum"

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        result = self.result_type(column)
        if pa.types.is_integer(result):
            return (pa.int64(), pa.int64())  # upper and lower 32 bits: no sum of fewer than 2³¹ rows overflows
        if pa.types.is_decimal(result):
            return (pa.decimal256(76, result.scale),)
        return (pa.float64(),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        if _is_whole(column):
            return pa.uint64() if pa.types.is_uint64(column) else pa.int64()
        if column is not None and pa.types.is_decimal(column):
            return pa.decimal256(76, column.scale) if column.bit_width > 128 else pa.decimal128(38, column.scale)
        if column is not None and pa.types.is_floating(column):
            return pa.float64()
        raise _unfit(self.name, column, "numbers, decimals and booleans")

    def lift(self, values: pa.Array | None, rows: int) -> State:
        assert values is not None
        if pa.types.is_decimal(values.type):
            return (values.cast(pa.decimal256(76, values.type.scale)),)
        missing = ~validity(values) if values.null_count else None
        plain = numbers(values)
        if pa.types.is_floating(values.type):
            with np.errstate(invalid="ignore"):
                return (pa.array(plain.astype(np.float64), mask=missing),)
        whole = plain if pa.types.is_uint64(values.type) else plain.astype(np.int64)
        low = whole & whole.dtype.type(_LOW_BITS)
        return tuple(pa.array(part.astype(np.int64), mask=missing) for part in (whole >> whole.dtype.type(32), low))

    def merge(self, state: State, segments: Segments) -> State:
        if pa.types.is_decimal(state[0].type):
            return (_grouped(state[0], segments, "sum"),)
        missing = _all_null(state[0], segments)
        if pa.types.is_floating(state[0].type):
            # bincount adds in the order of the rows (rule 1); add.reduceat would add pairwise
            total = np.bincount(segments.ids, weights=numbers(state[0]), minlength=len(segments.starts))
            return (pa.array(total, mask=missing),)
        high, low = (np.add.reduceat(numbers(part), segments.starts) for part in state)
        return pa.array(high + (low >> 32), mask=missing), pa.array(low & _LOW_BITS, mask=missing)

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        result = self.result_type(column)
        if pa.types.is_decimal(result):
            try:
                return state[0].cast(result)
            except pa.ArrowInvalid as error:
                raise OverflowError(str(result)) from error
        if pa.types.is_floating(result):
            return state[0]
        high, low = (numbers(part) for part in state)
        least, bound = (0, 2**32) if pa.types.is_uint64(result) else (-(2**31), 2**31)
        if ((high < least) | (high >= bound)).any():
            raise OverflowError(str(result))
        whole = (high << 32) | low
        missing = ~validity(state[0]) if state[0].null_count else None
        return pa.array(whole.view(np.uint64) if pa.types.is_uint64(result) else whole, mask=missing)


class Mean:
    """The mean as float64: the sum, exact where :class:`Sum` is, by the number of values."""

    name = "mean"
    _sum = Sum()
    _count = Count()

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        self.result_type(column)
        return (*self._sum.state_types(column), pa.int64())

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        try:
            self._sum.result_type(column)
        except FlowError:
            raise _unfit(self.name, column, "numbers, decimals and booleans") from None
        return pa.float64()

    def lift(self, values: pa.Array | None, rows: int) -> State:
        return (*self._sum.lift(values, rows), *self._count.lift(values, rows))

    def merge(self, state: State, segments: Segments) -> State:
        return (*self._sum.merge(state[:-1], segments), *self._count.merge(state[-1:], segments))

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        if _is_whole(column):
            total = numbers(state[0]) * 2.0**32 + numbers(state[1])
        else:
            total = numbers(state[0].cast(pa.float64()))
        count = state[-1].to_numpy()
        with np.errstate(invalid="ignore"):
            return pa.array(total / np.maximum(count, 1), mask=count == 0)


@dataclass(frozen=True)
class Extreme:
    """The smallest or the largest value, of the column's type."""

    name: str

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        return (self.result_type(column),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        if column is None or not (_is_plain(column) or _is_grouped(column)):
            raise _unfit(self.name, column, "numbers, booleans, strings, binary, decimals, dates and times")
        return column

    def lift(self, values: pa.Array | None, rows: int) -> State:
        assert values is not None
        return (values,)

    def merge(self, state: State, segments: Segments) -> State:
        (values,) = state
        if not _is_plain(values.type):
            return (_grouped(values, segments, self.name),)
        plain = numbers(values)
        floating = pa.types.is_floating(values.type)
        if values.null_count:
            plain = np.where(validity(values), plain, self._neutral(plain.dtype, floating))
        if floating:
            plain = np.where(np.isnan(plain), plain.dtype.type("nan"), plain)  # fmin does not pass over signalling NaNs
        with np.errstate(invalid="ignore"):
            found = self._reduction(floating).reduceat(plain, segments.starts)
            if floating:
                found = found + found.dtype.type(0)  # so that the sign of a zero does not depend on cuts
        return (_typed(found, values.type, _all_null(values, segments)),)

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        return state[0]

    def _reduction(self, floating: bool) -> np.ufunc:
        if self.name == "max":
            return np.maximum
        return np.fmin if floating else np.minimum  # fmin passes over NaN, which is the largest value

    def _neutral(self, dtype: np.dtype[Any], floating: bool) -> Any:
        if floating:
            return dtype.type("nan" if self.name == "min" else "-inf")
        if dtype == np.bool_:
            return np.bool_(self.name == "min")
        bounds = np.iinfo(dtype)
        return bounds.max if self.name == "min" else bounds.min


@dataclass(frozen=True)
class Edge:
    """The column's value in the first or the last row, null included."""

    name: str

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        return (self.result_type(column),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        if column is None:
            raise _unfit(self.name, column, "any column")
        return column

    def lift(self, values: pa.Array | None, rows: int) -> State:
        assert values is not None
        return (values,)

    def merge(self, state: State, segments: Segments) -> State:
        rows = segments.starts if self.name == "first" else segments.ends - 1
        return (state[0].take(pa.array(rows)),)

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        return state[0]


FUNCTIONS: dict[str, AggregateFunction] = {
    function.name: function
    for function in (Count(), Sum(), Extreme("min"), Extreme("max"), Mean(), Edge("first"), Edge("last"))
}


def _all_null(values: pa.Array, segments: Segments) -> Flags | None:
    """Which segments hold nothing but nulls; None if the column has no null."""
    if not values.null_count:
        return None
    flags: Flags = ~np.logical_or.reduceat(validity(values), segments.starts)
    return flags


def _grouped(values: pa.Array, segments: Segments, function: str) -> pa.Array:
    """Arrow's own reduction, for types that numpy does not know. Groups come in the order of their numbers."""
    table = pa.table({"segment": segments.ids, "value": values})
    made = table.group_by("segment", use_threads=False).aggregate([("value", function)])
    return made.column(f"value_{function}").combine_chunks().cast(values.type)


def _typed(found: Any, type: pa.DataType, missing: Flags | None) -> pa.Array:
    plain = pa.array(found, mask=missing)
    return plain.view(type) if pa.types.is_temporal(type) else pc.cast(plain, type)


def _is_whole(type: pa.DataType | None) -> bool:
    return type is not None and bool(pa.types.is_integer(type) or pa.types.is_boolean(type))


def _is_plain(type: pa.DataType) -> bool:
    """The types that numpy reduces."""
    return _is_whole(type) or bool(pa.types.is_floating(type)) or is_point_in_time(type)


def _is_grouped(type: pa.DataType) -> bool:
    """The types that Arrow's group-by reduces."""
    checks: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        pa.types.is_decimal,
    )
    return any(check(type) for check in checks)


def _unfit(name: str, column: pa.DataType | None, takes: str) -> FlowError:
    given = "no column" if column is None else f"a column of type {column}"
    return FlowError(f"{name} cannot be computed of {given}", f"{name} takes {takes}")

"""The aggregate functions that reduce a group to one value; ``aggregate_protocol`` says what a function promises.

Rules:

1. Nulls are skipped, except by ``count`` of rows, ``first``, ``last`` and ``collect_list``.
2. Integer sums are exact, whatever the order; a sum that does not fit raises OverflowError when it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...core.errors import FlowError
from ...kernels.accumulators import Accumulator, Counting, FloatSums
from ...kernels.aggregate_protocol import AggregateFunction, Segments, State, unfit
from ...kernels.edge_values import EdgeValues
from ...kernels.extreme import Extreme
from ...kernels.keys import numbers, validity
from ...kernels.pieces import Flags, Positions
from ...kernels.reductions import all_null, grouped, is_whole
from ...kernels.variance import Variance
from ...kernels.whole_sums import decimal_sums, narrowed, whole_sums
from .list_aggregates import CollectList, DistinctValues
from .quantiles import Quantile
from .sketches import ApproxCountDistinct, ApproxQuantile

_LOW_BITS = np.int64(2**32 - 1)


class Count:
    """The number of rows, or of rows in which the column is not null."""

    name = "count"
    ordered = False

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        return (pa.int64(),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        return pa.int64()

    def lift(self, values: pa.Array | None, rows: int) -> State:
        if values is None or not values.null_count:
            return (pa.array(np.ones(rows, dtype=np.int64)),)
        return (values.is_valid().cast(pa.int64()),)

    def blank(self, column: pa.DataType | None, rows: int) -> State:
        return (pa.array(np.zeros(rows, dtype=np.int64)),)

    def merge(self, state: State, segments: Segments) -> State:
        return (pa.array(np.add.reduceat(state[0].to_numpy(), segments.starts)),)

    def accumulator(self, column: pa.DataType | None) -> Accumulator:
        return Counting()

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        return state[0]


class Sum:
    """The sum: int64 or uint64 of integers and booleans, float64 of floats, decimals with 38 digits of decimals."""

    name = "sum"
    ordered = False

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        result = self.result_type(column)
        if pa.types.is_integer(result):
            return (pa.int64(), pa.int64())  # upper and lower 32 bits: no sum of fewer than 2³¹ rows overflows
        if pa.types.is_decimal(result):
            return (pa.decimal256(76, result.scale),)
        return (pa.float64(),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        if is_whole(column):
            return pa.uint64() if pa.types.is_uint64(column) else pa.int64()
        if column is not None and pa.types.is_decimal(column):
            return pa.decimal256(76, column.scale) if column.bit_width > 128 else pa.decimal128(38, column.scale)
        if column is not None and pa.types.is_floating(column):
            return pa.float64()
        raise unfit(self.name, column, "numbers, decimals and booleans")

    def lift(self, values: pa.Array | None, rows: int) -> State:
        assert values is not None
        if pa.types.is_decimal(values.type):
            return (values.cast(pa.decimal256(76, values.type.scale)),)
        missing = ~validity(values) if values.null_count else None
        plain = numbers(values)
        if pa.types.is_floating(values.type):
            with np.errstate(invalid="ignore"):
                return (pa.array(plain.astype(np.float64, copy=False), mask=missing),)
        whole = plain if pa.types.is_uint64(values.type) else plain.astype(np.int64, copy=False)
        halves = (whole >> whole.dtype.type(32), whole & whole.dtype.type(_LOW_BITS))
        return tuple(pa.array(part.astype(np.int64, copy=False), mask=missing) for part in halves)

    def blank(self, column: pa.DataType | None, rows: int) -> State:
        return tuple(pa.nulls(rows, type) for type in self.state_types(column))

    def merge(self, state: State, segments: Segments) -> State:
        if pa.types.is_decimal(state[0].type):
            return (grouped(state[0], segments.ids, "sum"),)
        missing = all_null(state[0], segments)
        if pa.types.is_floating(state[0].type):
            # bincount adds in the order of the rows (rule 1); add.reduceat would add pairwise
            total = np.bincount(segments.ids, weights=numbers(state[0]), minlength=len(segments.starts))
            return (pa.array(total, mask=missing),)
        return _carried([np.add.reduceat(numbers(part), segments.starts) for part in state], missing)

    def accumulator(self, column: pa.DataType | None) -> Accumulator:
        result = self.result_type(column)
        if pa.types.is_decimal(result):
            assert column is not None
            return decimal_sums(column)
        return FloatSums() if pa.types.is_floating(result) else whole_sums(column)

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        result = self.result_type(column)
        if pa.types.is_decimal(result):
            try:
                return state[0] if pa.types.is_decimal256(result) else narrowed(state[0], result)
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


_SUM, _COUNT = Sum(), Count()


class Mean:
    """The mean as float64: the sum, exact where :class:`Sum` is, by the number of values."""

    name = "mean"
    ordered = False
    parts = _SUM, _COUNT
    """Its state is that of these, side by side."""

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        self.result_type(column)
        return (*_SUM.state_types(column), pa.int64())

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        try:
            _SUM.result_type(column)
        except FlowError:
            raise unfit(self.name, column, "numbers, decimals and booleans") from None
        return pa.float64()

    def lift(self, values: pa.Array | None, rows: int) -> State:
        return (*_SUM.lift(values, rows), *_COUNT.lift(values, rows))

    def blank(self, column: pa.DataType | None, rows: int) -> State:
        return (*_SUM.blank(column, rows), *_COUNT.blank(column, rows))

    def merge(self, state: State, segments: Segments) -> State:
        return (*_SUM.merge(state[:-1], segments), *_COUNT.merge(state[-1:], segments))

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        if is_whole(column):
            total = numbers(state[0]) * 2.0**32 + numbers(state[1])
        else:
            total = numbers(state[0].cast(pa.float64()))
        count = state[-1].to_numpy()
        with np.errstate(invalid="ignore"):
            return pa.array(total / np.maximum(count, 1), mask=count == 0)


@dataclass(frozen=True)
class FirstOrLast:
    """The column's value in the first or the last row, null included. State: the value, and whether there was a row."""

    name: str
    ordered: bool = True

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        return (self.result_type(column), pa.bool_())

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        if column is None:
            raise unfit(self.name, column, "any column")
        return column

    def lift(self, values: pa.Array | None, rows: int) -> State:
        assert values is not None
        return values, pa.array(np.ones(rows, dtype=bool))

    def blank(self, column: pa.DataType | None, rows: int) -> State:
        return pa.nulls(rows, column), pa.array(np.zeros(rows, dtype=bool))

    def merge(self, state: State, segments: Segments) -> State:
        present = state[1].to_numpy(zero_copy_only=False)
        first = self.name == "first"
        rows = segments.starts if first else segments.ends - 1
        if not present.all():
            place = np.where(present, np.arange(segments.rows), segments.rows if first else -1)
            found = (np.minimum if first else np.maximum).reduceat(place, segments.starts)
            rows = np.where((found >= 0) & (found < segments.rows), found, rows)
        return tuple(part.take(pa.array(rows)) for part in state)

    def accumulator(self, column: pa.DataType | None) -> Accumulator:
        return EdgeValues(self, column)

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        return state[0]


_MEAN, _FIRST, _LIST = Mean(), FirstOrLast("first"), CollectList()

FUNCTIONS: dict[str, AggregateFunction] = {
    "count": _COUNT,
    "sum": _SUM,
    "min": Extreme("min"),
    "max": Extreme("max"),
    "mean": _MEAN,
    "avg": _MEAN,
    "variance": Variance("variance"),
    "stddev": Variance("stddev"),
    "median": Quantile(0.5, called="median"),
    "count_distinct": DistinctValues(_COUNT),
    "approx_count_distinct": ApproxCountDistinct(),
    "first": _FIRST,
    "arbitrary": _FIRST,
    "last": FirstOrLast("last"),
    "collect_list": _LIST,
    "array_agg": _LIST,
}
"""All functions by the names that a flow may use."""

OF_SHARES: dict[str, Callable[[float], AggregateFunction]] = {
    "quantile": Quantile,
    "quantile_cont": Quantile,
    "quantile_disc": lambda share: Quantile(share, is_one=True),
    "approx_quantile": ApproxQuantile,
}
"""Those that are of a share, as in ``quantile(0.9)``."""

MADE_OF_PARTS = Mean, Quantile, ApproxQuantile
"""Functions whose state is that of others, their ``parts``."""

_OF_A_SHARE = re.compile(r"(\w+)\((.+)\)")


def function_called(name: str) -> AggregateFunction | None:
    """The function that a flow calls so; None: there is none."""
    called = _OF_A_SHARE.fullmatch(name)
    if called is None or called[1] not in OF_SHARES:
        return FUNCTIONS.get(name)
    try:
        share = float(called[2])
    except ValueError:
        return None
    return OF_SHARES[called[1]](share) if 0 <= share <= 1 else None


def _carried(halves: list[Positions], missing: Flags | None) -> State:
    """Upper and lower halves of sums, the lower ones below 2³² again."""
    high, low = halves
    return pa.array(high + (low >> 32), mask=missing), pa.array(low & _LOW_BITS, mask=missing)

"""Exact quantiles: the values of a group are kept, and looked at in order when the group ends.

Rules:

1. Nulls are skipped; NaN is the largest number. A group without a value has no quantile: null.
2. ``quantile(q)`` lies between the two values around its place, q · (n − 1) from the least one, as in numpy, pandas and
   DuckDB's ``quantile_cont``; ``median`` is ``quantile(0.5)``. ``quantile_disc(q)`` is one of the values, the first one
   that at least a share of q are not above: it takes everything that can be sorted.
3. Values need no order, so each lane collects its own before they meet. All quantiles of one column share them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...core.errors import FlowError
from ...kernels.accumulators import Accumulator, ListAccumulator
from ...kernels.aggregate_protocol import AggregateFunction, Segments, State, unfit
from ...kernels.keys import validity
from ...kernels.pieces import Positions
from ...kernels.sorting import SortKey, check_sort_keys, sorted_order
from ...kernels.variance import as_floats
from .list_aggregates import ValueLists, lists, opened

_ANY = SortKey("its argument")


@dataclass(frozen=True)
class Values(ValueLists):
    """The values that are not null, in any order."""

    name: str = "values"
    ordered: bool = False

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        if column is None:
            raise unfit(self.name, column, "a column")
        return (pa.large_list(column),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        return self.state_types(column)[0]

    def lift(self, values: pa.Array | None, rows: int) -> State:
        assert values is not None
        counts = validity(values).astype(np.int64)
        return (lists(values.drop_null(), np.append(0, np.cumsum(counts))),)

    def accumulator(self, column: pa.DataType | None) -> Accumulator:
        return ListAccumulator(column, skips_nulls=True)

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        return state[0]


_VALUES = Values()


@dataclass(frozen=True)
class Quantile:
    """The value below which a ``share`` of the others lie. ``is_one``: it is one of them; else it may lie between."""

    share: float
    is_one: bool = False
    called: str = ""
    ordered: bool = False

    @property
    def parts(self) -> tuple[AggregateFunction, ...]:
        """Its state is that of these."""
        return (_VALUES,)

    @property
    def name(self) -> str:
        return self.called or f"{'quantile_disc' if self.is_one else 'quantile'}({self.share!r})"

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        self.result_type(column)
        return _VALUES.state_types(column)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        types = pa.types
        if not self.is_one:
            if column is None or not (
                types.is_integer(column) or types.is_floating(column) or types.is_decimal(column)
            ):
                raise unfit(self.name, column, "numbers and decimals; quantile_disc takes all that can be sorted")
            return pa.float64()
        if column is not None:
            with suppress(FlowError):
                check_sort_keys(self.name, [_ANY], pa.schema([pa.field(_ANY.column, column)]))
                return column
        raise unfit(self.name, column, "columns that can be sorted by")

    def lift(self, values: pa.Array | None, rows: int) -> State:
        return _VALUES.lift(values, rows)

    def blank(self, column: pa.DataType | None, rows: int) -> State:
        return _VALUES.blank(column, rows)

    def merge(self, state: State, segments: Segments) -> State:
        return _VALUES.merge(state, segments)

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        values, offsets = opened(state[0])
        counts = np.diff(offsets)
        order = sorted_order([values], [_ANY], [np.repeat(np.arange(len(counts)), counts)])
        filled = counts > 0
        starts, counts = offsets[:-1][filled], counts[filled]
        if self.is_one:
            found = values.take(pa.array(order[starts + place_of(self.share, counts)]))
        else:
            found = pa.array(self._between(as_floats(values)[order], starts, counts))
        places = np.cumsum(filled) - 1
        return found.take(pa.array(places, mask=~filled))

    def _between(self, values: np.ndarray, starts: Positions, counts: Positions) -> np.ndarray:
        place = self.share * (counts - 1)
        below = np.floor(place).astype(np.int64)
        low, high = values[starts + below], values[starts + np.ceil(place).astype(np.int64)]
        part = place - below
        with np.errstate(invalid="ignore"):
            found: np.ndarray = np.where(low == high, low, low * (1.0 - part) + high * part)
        return found


def place_of(share: float, counts: Positions) -> Positions:
    """The place of a value of so many in their order: of the first one that at least that share are not above."""
    return np.maximum(counts - np.floor(counts - share * counts).astype(np.int64), 1) - 1

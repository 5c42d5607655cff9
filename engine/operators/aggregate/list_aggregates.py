"""Aggregate functions that keep the values of a group: lists, distinct values, and values in a given order.

The state is one list column. Merging lists of consecutive rows costs nothing: their elements already stand one after
the other, only the offsets change. What a function makes of the values is computed at the end, by the function it
wraps. Nulls are values here: ``collect_list`` keeps them, and ``count`` of distinct values skips the one that is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...buffers.state_rows import children
from ...core.errors import FlowError
from ...kernels.accumulators import Accumulator, ListAccumulator
from ...kernels.aggregate_protocol import AggregateFunction, Segments, State, unfit
from ...kernels.groups import check_group_types, first_rows, group_ids
from ...kernels.pieces import Positions
from ...kernels.sorting import SortKey, sorted_order


class ValueLists:
    """What all of them share: one list column, to which further values are appended."""

    def lift(self, values: pa.Array | None, rows: int) -> State:
        assert values is not None
        return (lists(values, np.arange(len(values) + 1)),)

    def blank(self, column: pa.DataType | None, rows: int) -> State:
        return (lists(pa.nulls(0, column), np.zeros(rows + 1, dtype=np.int64)),)

    def merge(self, state: State, segments: Segments) -> State:
        values, offsets = opened(state[0])
        return (lists(values, offsets[np.append(segments.starts, segments.rows)]),)

    def accumulator(self, column: pa.DataType | None) -> Accumulator:
        return ListAccumulator(column)


@dataclass(frozen=True)
class CollectList(ValueLists):
    """The values in the order of their rows, nulls included; null for a group without any row."""

    name: str = "collect_list"
    ordered: bool = True

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        return (pa.large_list(_value_type(self.name, column)),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        return pa.list_(_value_type(self.name, column))

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        values, offsets = opened(state[0])
        if len(values) >= 2**31:
            raise OverflowError("a list column of fewer than 2³¹ values")
        missing = offsets[1:] == offsets[:-1]
        return pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32)), values, mask=pa.array(missing), type=self.result_type(column)
        )


@dataclass(frozen=True)
class DistinctValues(ValueLists):
    """Another function of the distinct values, each where it appears first."""

    inner: AggregateFunction

    @property
    def name(self) -> str:
        return f"{self.inner.name}_distinct"

    @property
    def ordered(self) -> bool:
        return self.inner.ordered

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        type = _value_type(self.name, column)
        try:
            check_group_types(self.name, [pa.field("its argument", type)])
        except FlowError:
            raise unfit(self.name, column, "columns that can be grouped by") from None
        self.inner.state_types(type)
        return (pa.large_list(type),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        self.state_types(column)
        return self.inner.result_type(column)

    def merge(self, state: State, segments: Segments) -> State:
        values, offsets = opened(state[0])
        bounds = offsets[np.append(segments.starts, segments.rows)]
        groups = np.repeat(np.arange(len(segments.starts)), np.diff(bounds))
        ids, _ = group_ids([pa.array(groups), values], len(values))
        keep = first_rows(ids)
        counts = np.bincount(groups[keep], minlength=len(segments.starts))
        return (lists(values.filter(pa.array(keep)), np.append(0, np.cumsum(counts))),)

    def accumulator(self, column: pa.DataType | None) -> Accumulator:
        return ListAccumulator(column, distinct=True)

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        return _reduced(self.inner, *opened(state[0]), column)


@dataclass(frozen=True)
class OrderedValues(ValueLists):
    """Another function of the values in the order of further columns.

    Its argument is a struct: the value, then the columns to sort by, as ``keys`` says in their order.
    """

    inner: AggregateFunction
    keys: tuple[SortKey, ...]

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def ordered(self) -> bool:
        return True  # of rows with equal keys the first one comes first

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        assert column is not None
        self.inner.state_types(column.field(0).type)
        return (pa.large_list(column),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        assert column is not None
        return self.inner.result_type(column.field(0).type)

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        assert column is not None
        rows, offsets = opened(state[0])
        values, *by = children(rows)
        groups = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        order = sorted_order(by, self.keys, [groups])
        return _reduced(self.inner, values.take(pa.array(order)), offsets, column.field(0).type)


def _value_type(name: str, column: pa.DataType | None) -> pa.DataType:
    if column is None:
        raise unfit(name, column, "any column")
    return column


def _reduced(function: AggregateFunction, values: pa.Array, offsets: Positions, column: pa.DataType | None) -> pa.Array:
    """What ``function`` makes of each list of values, the empty ones included."""
    filled = offsets[1:] > offsets[:-1]
    places = np.where(filled, np.cumsum(filled) - 1, int(filled.sum()))
    state = function.blank(column, 1)
    if filled.any():
        segments = Segments(offsets[:-1][filled], len(values))
        merged = function.merge(function.lift(values, len(values)), segments)
        state = tuple(pa.concat_arrays(pair) for pair in zip(merged, state, strict=True))
    return function.final(tuple(part.take(pa.array(places)) for part in state), column)


def lists(values: pa.Array, offsets: Positions) -> pa.Array:
    """A list of each of these pieces of the values."""
    return pa.LargeListArray.from_arrays(pa.array(offsets.astype(np.int64)), values, type=pa.large_list(values.type))


def opened(lists: pa.Array) -> tuple[pa.Array, Positions]:
    """The elements of all lists, and where each list begins in them."""
    lengths = pc.list_value_length(lists).to_numpy()
    return lists.flatten(), np.append(0, np.cumsum(lengths))

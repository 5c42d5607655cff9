"""The functions of a window: what each row learns of the rows around it, over partitions that stand one after another.

Rules:

1. ``row_number``, ``rank`` and ``dense_rank`` count from 1; rows with equal order keys are peers.
2. ``lag`` and ``lead`` give the column's value ``offset`` rows before or behind in the partition, null beyond its ends.
3. ``count``, ``sum``, ``min`` and ``max`` run from the partition's first row to the current one (``frame="rows"``), or
   to its last peer (``frame="range"``, SQL's default). Nulls are skipped; a sum of nothing is null.
4. Sums are exact for integers, and added from the first row to the last for floats: a partition's values do not depend
   on what stands before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ...core.arguments import checked
from ...core.errors import DataError, FlowError
from ...kernels.aggregate_protocol import AggregateFunction
from ...kernels.keys import check_key_types, decoded, numbers, validity
from ...kernels.pieces import Flags, Positions
from ...kernels.sorting import sort_codes
from .aggregate_functions import FUNCTIONS, Sum

RANKS = ("row_number", "rank", "dense_rank")
SHIFTS = ("lag", "lead")
RUNNING = ("count", "sum", "min", "max")
_LONG = 256
"""Partitions of more rows are summed one by one, shorter ones all at once, row by row of the partitions."""


@checked()
@dataclass(frozen=True)
class WindowFunction:
    """One function: the name of its output column, the function, the column it reads, and how far ``lag`` looks."""

    name: str
    function: str
    column: str | None = None
    offset: int = 1
    frame: Literal["rows", "range"] = "rows"

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """The type of the output, for a column of this type. Raises FlowError."""
        if self.function not in (*RANKS, *SHIFTS, *RUNNING):
            known = ", ".join((*RANKS, *SHIFTS, *RUNNING))
            raise FlowError(f"window: {self.name!r} asks for an unknown function {self.function!r}", f"use {known}")
        if self.offset < 0:
            raise FlowError(f"window: {self.name!r} has the negative offset {self.offset}", "use lead instead of lag")
        if self.frame not in {"rows", "range"}:
            raise FlowError(f"window: {self.name!r} has an unknown frame {self.frame!r}", "use 'rows' or 'range'")
        if self.function in (*RANKS, "count"):
            return pa.int64()
        if column is None:
            raise FlowError(f"window: {self.name!r} needs a column", f"name the column that {self.function} reads")
        if self.function in SHIFTS:
            return column
        if self.function == "sum":
            if pa.types.is_decimal(column):
                raise FlowError(f"window: {self.name!r} cannot sum {column}", "cast it to float64 before")
            return self._aggregated(Sum(), column)
        check_key_types(f"window: {self.name!r}", [pa.field(str(self.column), column)])
        return self._aggregated(FUNCTIONS[self.function], column)

    def _aggregated(self, function: AggregateFunction, column: pa.DataType) -> pa.DataType:
        try:
            return function.result_type(column)
        except FlowError as error:
            message = f"window: {self.name!r} of column {self.column!r}: {error.message}"
            raise FlowError(message, error.remedy) from None

    def describe(self) -> str:
        """The function as a formula."""
        offset = f", {self.offset}" if self.function in SHIFTS else ""
        frame = " range" if self.function in RUNNING and self.frame == "range" else ""
        return f"{self.name} = {self.function}({self.column or ''}{offset}){frame}"


@dataclass(frozen=True)
class Partitions:
    """Rows in partitions, and in them in peers. ``starts``: the first row of each partition; ``peers``: of each peers'
    group."""

    starts: Positions
    peers: Positions
    rows: int

    @cached_property
    def lengths(self) -> Positions:
        """The number of rows of each partition."""
        return np.diff(np.append(self.starts, self.rows))

    @cached_property
    def ids(self) -> Positions:
        """For each row the number of its partition."""
        return np.repeat(np.arange(len(self.starts)), self.lengths)

    @cached_property
    def first(self) -> Positions:
        """For each row the first row of its partition."""
        return np.repeat(self.starts, self.lengths)

    @cached_property
    def peer_ids(self) -> Positions:
        """For each row the number of its peers' group."""
        return np.repeat(np.arange(len(self.peers)), np.diff(np.append(self.peers, self.rows)))

    @cached_property
    def last_peer(self) -> Positions:
        """For each row the last of its peers."""
        return (np.append(self.peers[1:], self.rows) - 1)[self.peer_ids]


def computed(each: WindowFunction, column: pa.Array | None, parts: Partitions) -> pa.Array:
    """The output column."""
    if each.function in RANKS:
        return pa.array(_ranked(each.function, parts))
    if each.function in SHIFTS:
        assert column is not None
        return _shifted(each, column, parts)
    values = None if column is None else decoded(column)
    if each.function == "count":
        found = pa.array(_running_count(values, parts))
    elif each.function == "sum":
        assert values is not None
        found = _running_sum(each, values, parts)
    else:
        assert values is not None
        found = _running_extreme(each.function, values, parts)
    return found.take(pa.array(parts.last_peer)) if each.frame == "range" else found


def _ranked(function: str, parts: Partitions) -> Positions:
    if function == "row_number":
        return np.arange(1, parts.rows + 1) - parts.first
    if function == "rank":
        return parts.peers[parts.peer_ids] - parts.first + 1
    return parts.peer_ids - parts.peer_ids[parts.first] + 1


def _shifted(each: WindowFunction, column: pa.Array, parts: Partitions) -> pa.Array:
    offset = min(each.offset, parts.rows)
    rows = np.arange(parts.rows) + (offset if each.function == "lead" else -offset)
    inside = np.clip(rows, 0, max(parts.rows - 1, 0))
    beyond = (inside != rows) | (parts.first[inside] != parts.first)
    return decoded(column).take(pa.array(rows, mask=beyond))


def _running_count(values: pa.Array | None, parts: Partitions) -> Positions:
    ones = np.ones(parts.rows, dtype=np.int64) if values is None else validity(values).astype(np.int64)
    return _running_total(ones, parts)


def _running_total(numbers: Positions, parts: Partitions) -> Positions:
    """Running sums of integers; wrapping around on the way does no harm to those that fit."""
    total = np.cumsum(numbers)
    before = total[parts.starts] - numbers[parts.starts] if parts.rows else total
    total -= np.repeat(before, parts.lengths)
    return total


def _running_sum(each: WindowFunction, values: pa.Array, parts: Partitions) -> pa.Array:
    empty = _running_count(values, parts) == 0 if values.null_count else None
    result = Sum().result_type(values.type)
    if pa.types.is_floating(result):
        with np.errstate(invalid="ignore"):
            return pa.array(_summed_floats(numbers(values).astype(np.float64), parts), mask=empty)
    plain = numbers(values)
    if pa.types.is_int64(result) and _is_small(plain, int(parts.lengths.max(initial=0))):
        return pa.array(_running_total(plain.astype(np.int64, copy=False), parts), mask=empty)
    return _exact_running_sum(each, values, parts, empty)


def _is_small(numbers: Any, rows: int) -> bool:
    """Whether no sum of so many of the numbers leaves int64."""
    if numbers.dtype == np.bool_ or not len(numbers):
        return True
    return max(abs(int(numbers.min())), abs(int(numbers.max()))) * rows < 2**63


def _exact_running_sum(each: WindowFunction, values: pa.Array, parts: Partitions, empty: Flags | None) -> pa.Array:
    function = Sum()
    state = function.lift(values, parts.rows)
    high, low = (_running_total(numbers(part), parts) for part in state)
    exact = (pa.array(high + (low >> 32), mask=empty), pa.array(low & np.int64(2**32 - 1), mask=empty))
    try:
        return function.final(exact, values.type)
    except OverflowError as error:
        raise DataError(
            f"window: {each.describe()} does not fit into {error}", f"cast {each.column!r} to float64 before"
        ) from error


def _summed_floats(values: np.ndarray, parts: Partitions) -> np.ndarray:
    lengths = parts.lengths
    found = values.copy()
    for start, length in zip(parts.starts[lengths > _LONG], lengths[lengths > _LONG], strict=True):
        np.cumsum(values[start : start + length], out=found[start : start + length])
    short = lengths <= _LONG
    for place in range(1, int(lengths[short].max(initial=0))):
        rows = parts.starts[short & (lengths > place)] + place
        found[rows] = found[rows - 1] + values[rows]
    return found


def _running_extreme(function: str, values: pa.Array, parts: Partitions) -> pa.Array:
    """Ranks grow from partition to partition, so that one running maximum serves all of them."""
    codes, rows_of, ranks = np.unique(sort_codes(values), return_index=True, return_inverse=True)
    valid: Flags = validity(values)
    width = len(codes) + 1
    if valid.all():
        firsts = rows_of
    else:  # a code may stand first in place of a null
        firsts = np.zeros(len(codes), dtype=np.int64)
        places = np.flatnonzero(valid)[::-1]
        firsts[ranks[places]] = places
    upward = ranks if function == "max" else len(codes) - 1 - ranks
    base = parts.ids * width
    best = np.maximum.accumulate(base + np.where(valid, upward + 1, 0)) - base - 1
    rank = best if function == "max" else len(codes) - 1 - best
    missing = best < 0
    return values.take(pa.array(firsts[np.where(missing, 0, rank)], mask=missing))

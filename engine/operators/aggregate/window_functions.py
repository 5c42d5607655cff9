"""The functions of a window: what each row learns of the rows around it, over partitions that stand one after another.

Rules:

1. ``row_number``, ``rank``, ``dense_rank`` and ``ntile(n)`` count from 1; rows with equal order keys are peers.
   ``percent_rank`` and ``cume_dist`` are shares of the partition's rows, from 0 to 1.
2. ``lag`` and ``lead`` give the column's value ``offset`` rows before or behind in the partition, null beyond its ends.
3. ``count``, ``sum``, ``mean``, ``min``, ``max``, ``first`` and ``last`` look at a frame of rows: from the partition's
   first row to the current one (``frame="rows"``), or to its last peer (``frame="range"``, SQL's default), or from so
   many rows before or behind it to so many: (−6, 0) is "rows between 6 preceding and current row", None the partition's
   end. Nulls are skipped, but by ``first`` and ``last``; a sum, mean or extreme of nothing is null.
4. Sums are exact for integers. Floats are added from the first row to the last; in frames of numbers within blocks as
   long as a frame, of which each frame has parts of two: no value outside of it plays a part, as it would in a
   difference of running sums. So a partition's values do not depend on what stands before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from ...core.arguments import checked
from ...core.errors import DataError, FlowError
from ...kernels.aggregate_protocol import AggregateFunction
from ...kernels.keys import check_key_types, decoded, numbers, validity
from ...kernels.pieces import Flags, Positions
from ...kernels.sorting import sort_codes
from .aggregate_functions import FUNCTIONS, Mean, Sum

RANKS = ("row_number", "rank", "dense_rank")
SHARES = ("percent_rank", "cume_dist")
SHIFTS = ("lag", "lead")
RUNNING = ("count", "sum", "mean", "min", "max", "first", "last")
Frame: TypeAlias = Literal["rows", "range"] | tuple[int | None, int | None]
_NTILE = re.compile(r"ntile\((\d+)\)")
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
    frame: Frame = "rows"

    @property
    def tiles(self) -> int | None:
        """Of ``ntile``: how many."""
        found = _NTILE.fullmatch(self.function)
        return int(found[1]) if found else None

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """The type of the output, for a column of this type. Raises FlowError."""
        known = ", ".join((*RANKS, "ntile(4)", *SHARES, *SHIFTS, *RUNNING))
        if not self.tiles and self.function not in (*RANKS, *SHARES, *SHIFTS, *RUNNING):
            raise FlowError(f"window: {self.name!r} asks for an unknown function {self.function!r}", f"use {known}")
        if self.offset < 0:
            raise FlowError(f"window: {self.name!r} has the negative offset {self.offset}", "use lead instead of lag")
        self._check_frame()
        if self.tiles or self.function in (*RANKS, "count"):
            return pa.int64()
        if self.function in SHARES:
            return pa.float64()
        if column is None:
            raise FlowError(f"window: {self.name!r} needs a column", f"name the column that {self.function} reads")
        if self.function in (*SHIFTS, "first", "last"):
            return column
        if self.function in ("sum", "mean"):
            if pa.types.is_decimal(column):
                raise FlowError(f"window: {self.name!r} cannot sum {column}", "cast it to float64 before")
            return self._aggregated(FUNCTIONS[self.function], column)
        check_key_types(f"window: {self.name!r}", [pa.field(str(self.column), column)])
        return self._aggregated(FUNCTIONS[self.function], column)

    def _check_frame(self) -> None:
        if isinstance(self.frame, str):
            if self.frame not in {"rows", "range"}:
                raise FlowError(f"window: {self.name!r} has an unknown frame {self.frame!r}", "use 'rows' or 'range'")
            return
        start, end = self.frame
        if start is not None and end is not None and start > end:
            raise FlowError(f"window: {self.name!r} has a frame that ends before it begins: {self.frame}", "swap them")

    def _aggregated(self, function: AggregateFunction, column: pa.DataType) -> pa.DataType:
        try:
            return function.result_type(column)
        except FlowError as error:
            message = f"window: {self.name!r} of column {self.column!r}: {error.message}"
            raise FlowError(message, error.remedy) from None

    def describe(self) -> str:
        """The function as a formula."""
        offset = f", {self.offset}" if self.function in SHIFTS else ""
        frame = "" if self.function not in RUNNING or self.frame == "rows" else f" {self.frame}"
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
    def last(self) -> Positions:
        """For each row the last row of its partition."""
        return self.first + np.repeat(self.lengths, self.lengths) - 1

    @cached_property
    def last_peer(self) -> Positions:
        """For each row the last of its peers."""
        return (np.append(self.peers[1:], self.rows) - 1)[self.peer_ids]

    def in_blocks(self, length: int) -> Partitions:
        """The rows of each partition in blocks of so many, the last one with what is left."""
        starts = np.flatnonzero((np.arange(self.rows) - self.first) % length == 0)
        return Partitions(starts, starts, self.rows)

    def backwards(self) -> Partitions:
        """The same of the rows in the opposite order."""
        starts = self.rows - np.append(self.starts[1:], self.rows)[::-1]
        return Partitions(starts, starts, self.rows)


@dataclass(frozen=True, slots=True)
class Frames:
    """For each row the first and the last row that a function looks at; of an empty frame the first one is behind the
    last one. ``length``: rows that a frame may have; None: each begins with its partition. ``ends_here``: each ends
    with its row."""

    low: Positions
    high: Positions
    length: int | None
    ends_here: bool = False

    @classmethod
    def of(cls, frame: Frame, parts: Partitions) -> Frames:
        """Those of all rows."""
        rows = np.arange(parts.rows)
        if isinstance(frame, str):
            return cls(parts.first, rows if frame == "rows" else parts.last_peer, None, frame == "rows")
        longest = int(parts.lengths.max(initial=1))
        start, end = (None if each is None else min(max(each, -longest), longest) for each in frame)
        low = parts.first if start is None else np.maximum(rows + start, parts.first)
        high = parts.last if end is None else np.minimum(rows + end, parts.last)
        length = None if start is None else longest if end is None else min(end - start + 1, longest)
        return cls(low, high, length)

    @property
    def counts(self) -> Positions:
        """The rows of each frame."""
        counts: Positions = np.maximum(self.high - self.low + 1, 0)
        return counts

    def total(self, numbers: Positions, parts: Partitions) -> Positions:
        """The sum of integers in each frame; wrapping around on the way does no harm to those that fit."""
        total = _running_total(numbers, parts)
        if self.ends_here:
            return total
        low, high = self._inside(self.low), self._inside(self.high)
        return np.where(self.counts > 0, total[high] - total[low] + numbers[low], 0)

    def combined(
        self, running: Callable[[Any, Partitions], Any], join: Callable[[Any, Any], Any], values: Any, parts: Partitions
    ) -> Any:
        """What ``running`` gives in each frame: a block's first rows joined with the last ones of the block before.
        Of an empty frame it is anything."""
        if self.length is None:
            found = running(values, parts)
            return found if self.ends_here else found[self._inside(self.high)]
        blocks = parts.in_blocks(self.length)
        low, high = self._inside(self.low), self._inside(self.high)
        begun = running(values, blocks)[high]
        ended = running(values[::-1], blocks.backwards())[::-1][low]
        one = blocks.ids[low] == blocks.ids[high]
        whole = low == blocks.first[high]
        return np.where(one, np.where(whole, begun, ended), join(ended, begun))

    def _inside(self, rows: Positions) -> Positions:
        return np.clip(rows, 0, max(len(rows) - 1, 0))


def computed(each: WindowFunction, column: pa.Array | None, parts: Partitions) -> pa.Array:
    """The output column."""
    if each.function in RANKS:
        return pa.array(_ranked(each.function, parts))
    if each.tiles:
        return pa.array(_tiled(each.tiles, parts))
    if each.function in SHARES:
        return pa.array(_shared(each.function, parts))
    if each.function in SHIFTS:
        assert column is not None
        return _shifted(each, column, parts)
    values, frames = None if column is None else decoded(column), Frames.of(each.frame, parts)
    if each.function == "count":
        return pa.array(_counted(values, parts, frames))
    assert values is not None
    if each.function in ("first", "last"):
        rows = frames.low if each.function == "first" else frames.high
        return values.take(pa.array(rows, mask=frames.counts == 0))
    if each.function in ("sum", "mean"):
        return _summed(each, values, parts, frames)
    return _extreme(each.function, values, parts, frames)


def _ranked(function: str, parts: Partitions) -> Positions:
    if function == "row_number":
        return np.arange(1, parts.rows + 1) - parts.first
    if function == "rank":
        return parts.peers[parts.peer_ids] - parts.first + 1
    return parts.peer_ids - parts.peer_ids[parts.first] + 1


def _tiled(tiles: int, parts: Partitions) -> Positions:
    """Tiles differ by at most one row, and the larger ones come first."""
    place = np.arange(parts.rows) - parts.first
    size, larger = np.divmod(np.repeat(parts.lengths, parts.lengths), tiles)
    in_larger = larger * (size + 1)
    behind = larger + (place - in_larger) // np.maximum(size, 1)
    tile: Positions = np.where(place < in_larger, place // (size + 1), behind)
    return tile + 1


def _shared(function: str, parts: Partitions) -> np.ndarray:
    lengths = np.repeat(parts.lengths, parts.lengths)
    if function == "cume_dist":
        return (parts.last_peer - parts.first + 1) / lengths
    return (parts.peers[parts.peer_ids] - parts.first) / np.maximum(lengths - 1, 1)


def _shifted(each: WindowFunction, column: pa.Array, parts: Partitions) -> pa.Array:
    offset = min(each.offset, parts.rows)
    rows = np.arange(parts.rows) + (offset if each.function == "lead" else -offset)
    inside = np.clip(rows, 0, max(parts.rows - 1, 0))
    beyond = (inside != rows) | (parts.first[inside] != parts.first)
    return decoded(column).take(pa.array(rows, mask=beyond))


def _counted(values: pa.Array | None, parts: Partitions, frames: Frames) -> Positions:
    if values is None or not values.null_count:
        return frames.counts
    return frames.total(validity(values).astype(np.int64), parts)


def _running_total(numbers: Positions, parts: Partitions) -> Positions:
    """Running sums of integers; wrapping around on the way does no harm to those that fit."""
    total = np.cumsum(numbers)
    before = total[parts.starts] - numbers[parts.starts] if parts.rows else total
    total -= np.repeat(before, parts.lengths)
    return total


def _summed(each: WindowFunction, values: pa.Array, parts: Partitions, frames: Frames) -> pa.Array:
    counts = _counted(values, parts, frames)
    empty = counts == 0
    plain = numbers(values)
    if pa.types.is_floating(values.type):
        with np.errstate(invalid="ignore"):
            found = frames.combined(_summed_floats, np.add, plain.astype(np.float64), parts)
            return pa.array(found / np.maximum(counts, 1) if each.function == "mean" else found, mask=empty)
    small = pa.types.is_int64(Sum().result_type(values.type)) and _is_small(plain, int(parts.lengths.max(initial=0)))
    if small and each.function == "sum":
        return pa.array(frames.total(plain.astype(np.int64, copy=False), parts), mask=empty)
    state = Sum().lift(values, parts.rows)
    high, low = (frames.total(numbers(part), parts) for part in state)
    exact = (pa.array(high + (low >> 32), mask=empty), pa.array(low & np.int64(2**32 - 1), mask=empty))
    if each.function == "mean":
        return Mean().final((*exact, pa.array(counts)), values.type)
    try:
        return Sum().final(exact, values.type)
    except OverflowError as error:
        raise DataError(
            f"window: {each.describe()} does not fit into {error}", f"cast {each.column!r} to float64 before"
        ) from error


def _is_small(numbers: Any, rows: int) -> bool:
    """Whether no sum of so many of the numbers leaves int64."""
    if numbers.dtype == np.bool_ or not len(numbers):
        return True
    return max(abs(int(numbers.min())), abs(int(numbers.max()))) * rows < 2**63


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


def _extreme(function: str, values: pa.Array, parts: Partitions, frames: Frames) -> pa.Array:
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

    def best_so_far(marks: Positions, parts: Partitions) -> Positions:
        """Marks grow from partition to partition, so that one running maximum serves all of them."""
        base = parts.ids * width
        return np.maximum.accumulate(base + marks) - base

    best = frames.combined(best_so_far, np.maximum, np.where(valid, upward + 1, 0), parts) - 1
    rank = best if function == "max" else len(codes) - 1 - best
    missing = (best < 0) | (frames.counts == 0)
    return values.take(pa.array(firsts[np.where(missing, 0, rank)], mask=missing))

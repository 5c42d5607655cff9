"""Variance and standard deviation of a sample.

The state holds the number of values, the first value of the group, and the sums of the differences from it and of their
squares. Differences instead of values keep large means from cancelling; the first value instead of a running mean
keeps the sums independent of where a group was cut (see ``aggregate_protocol``, rule 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from .accumulators import Accumulator, Counting, GroupRows, Validity, add_at
from .aggregate_protocol import Segments, State, unfit
from .growable_array import GrowableArray
from .keys import numbers, validity


@dataclass(frozen=True)
class Variance:
    """``variance`` or ``stddev``: of a sample (divided by n - 1), null for fewer than two values."""

    name: str
    ordered: bool = False

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        self.result_type(column)
        return (pa.int64(), pa.float64(), pa.float64(), pa.float64())

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        types = pa.types
        if column is None or not (types.is_integer(column) or types.is_floating(column) or types.is_decimal(column)):
            raise unfit(self.name, column, "numbers and decimals")
        return pa.float64()

    def lift(self, values: pa.Array | None, rows: int) -> State:
        assert values is not None
        first = as_floats(values)
        zero = pa.array(np.zeros(rows))
        return pa.array(validity(values).astype(np.int64)), pa.array(first), zero, zero

    def blank(self, column: pa.DataType | None, rows: int) -> State:
        zero = pa.array(np.zeros(rows))
        return pa.array(np.zeros(rows, dtype=np.int64)), zero, zero, zero

    def merge(self, state: State, segments: Segments) -> State:
        merged = Spreads()
        merged.merge(state, GroupRows(segments.ids, len(segments.starts)))
        return merged.state()

    def accumulator(self, column: pa.DataType | None) -> Accumulator:
        return Spreads()

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        count, _, total, squares = (part.to_numpy() for part in state)
        with np.errstate(invalid="ignore", over="ignore"):
            spread = np.maximum(squares - total * total / np.maximum(count, 1), 0.0) / np.maximum(count - 1, 1)
            found = np.sqrt(spread) if self.name == "stddev" else spread
        return pa.array(found, mask=count < 2)


def as_floats(values: pa.Array) -> Any:
    """Numbers and decimals as float64; 0 in place of null."""
    plain = values.cast(pa.float64()) if pa.types.is_decimal(values.type) else values
    with np.errstate(invalid="ignore"):
        return numbers(plain).astype(np.float64, copy=False)


class Spreads:
    """The states of all groups."""

    in_place = True
    takes_compact = False

    def __init__(self) -> None:
        self._counts = Counting()
        self._origins, self._totals, self._squares = (GrowableArray(np.float64) for _ in range(3))
        self._validity = Validity()

    @property
    def bytes(self) -> int:
        parts = (self._counts, self._origins, self._totals, self._squares, self._validity)
        return sum(part.bytes for part in parts)

    def add(self, values: pa.Array | None, rows: GroupRows) -> None:
        assert values is not None
        if values.null_count:
            valid = validity(values)
            values, rows = values.filter(pa.array(valid)), rows.only(valid)
        with np.errstate(invalid="ignore", over="ignore"):
            plain = as_floats(values)
            shift = plain - self._from(plain, rows).take(rows.ids)
            self._counts.add(None, rows)
            add_at(self._totals.to(rows.groups), rows, shift)
            add_at(self._squares.to(rows.groups), rows, shift * shift)

    def merge(self, state: State, rows: GroupRows) -> None:
        count, first, total, squares = (part.to_numpy() for part in state)
        if not count.all():
            used = count > 0
            rows = rows.only(used)
            count, first, total, squares = (part[used] for part in (count, first, total, squares))
        with np.errstate(invalid="ignore", over="ignore"):
            shift = first - self._from(first, rows).take(rows.ids)
            self._counts.merge((pa.array(count),), rows)
            add_at(self._totals.to(rows.groups), rows, total + count * shift)
            add_at(self._squares.to(rows.groups), rows, squares + 2 * shift * total + count * shift * shift)

    def state(self) -> State:
        parts = (self._origins, self._totals, self._squares)
        return (*self._counts.state(), *(pa.array(part.given()) for part in parts))

    def _from(self, values: Any, rows: GroupRows) -> Any:
        """The first value of each group."""
        origins = self._origins.to(rows.groups)
        new = self._validity.unmarked(rows)
        if new is not None:
            ids = rows.ids[new]
            origins[ids[::-1]] = values[new][::-1]  # of all values of a group the first one is written last
        self._validity.mark(rows, None)
        return origins

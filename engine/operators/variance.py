"""Variance and standard deviation of a sample.

The state holds the number of values, the first value of the group, and the sums of the differences from it and of their
squares. Differences instead of values keep large means from cancelling; the first value instead of a running mean
keeps the sums independent of where a group was cut (see ``aggregate_protocol``, rule 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .aggregate_protocol import Segments, State, unfit
from .keys import numbers, validity
from .pieces import Positions
from .reductions import scattered_sum


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
        plain = values.cast(pa.float64()) if pa.types.is_decimal(values.type) else values
        with np.errstate(invalid="ignore"):
            first = numbers(plain).astype(np.float64)
        zero = pa.array(np.zeros(rows))
        return pa.array(validity(values).astype(np.int64)), pa.array(first), zero, zero

    def blank(self, column: pa.DataType | None, rows: int) -> State:
        zero = pa.array(np.zeros(rows))
        return pa.array(np.zeros(rows, dtype=np.int64)), zero, zero, zero

    def merge(self, state: State, segments: Segments) -> State:
        return self.scatter(state, segments.ids, len(segments.starts))

    def scatter(self, state: State, ids: Positions, groups: int) -> State:
        count, first, total, squares = (part.to_numpy() for part in state)
        used = count > 0
        origin = np.zeros(groups)
        origin[ids[used][::-1]] = first[used][::-1]  # of all values of a group the first one is written last
        with np.errstate(invalid="ignore", over="ignore"):
            shift = np.where(used, first - origin[ids], 0.0)
            squares = squares + 2 * shift * total + count * shift * shift
            total = total + count * shift
        sums = (np.bincount(ids, weights=part, minlength=groups) for part in (total, squares))
        return pa.array(scattered_sum(count, ids, groups)), pa.array(origin), *map(pa.array, sums)

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        count, _, total, squares = (part.to_numpy() for part in state)
        with np.errstate(invalid="ignore", over="ignore"):
            spread = np.maximum(squares - total * total / np.maximum(count, 1), 0.0) / np.maximum(count - 1, 1)
            found = np.sqrt(spread) if self.name == "stddev" else spread
        return pa.array(found, mask=count < 2)

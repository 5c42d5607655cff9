"""Aggregates that are about right, of groups of any size, and take little memory.

Rules:

1. ``approx_count_distinct`` keeps the ``KEPT`` smallest hashes of a group (a theta sketch): how close they lie tells
   how many there are. It is exact below ``KEPT`` distinct values, and from there on off by 1.6 % (one sigma).
2. ``approx_quantile(q)`` counts values by their leading bits (as HdrHistogram does): it gives the value at the place of
   ``quantile_disc(q)``, rounded towards zero by less than 1/128 of it. Whole numbers up to 255 are exact.
3. Both depend on the values alone (``kernels.sketches``, rule 1), so each lane counts its own before they meet, and a
   job that goes on gives every digit again. Errors are those of rule 1 and 2 whatever the number of rows is.

Libraries of sketches keep an object for each group, take values one by one, and draw random numbers where it is about
quantiles; a list of codes is spilled, stored and merged as every other state.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...core.errors import FlowError
from ...kernels.accumulators import Accumulator, GroupRows
from ...kernels.aggregate_protocol import AggregateFunction, Segments, State, unfit
from ...kernels.groups import check_group_types
from ...kernels.hashing import hashes
from ...kernels.keys import decoded
from ...kernels.sketches import CodeCounts, Codes
from ...kernels.variance import as_floats
from .quantiles import place_of

KEPT = 4096
"""Hashes that a group keeps."""

_BITS = 7
"""Of a value's mantissa: 2**7 codes from one power of two to the next."""
_DROPPED = 52 - _BITS
_NAN = np.int64(0x7FF8 << 48 >> _DROPPED)


class _Sketch:
    """What both share: states of codes."""

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        raise NotImplementedError

    def accumulator(self, column: pa.DataType | None) -> Accumulator:
        raise NotImplementedError

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        self.result_type(column)
        return tuple(part.type for part in self.blank(column, 0))

    def blank(self, column: pa.DataType | None, rows: int) -> State:
        accumulator = self.accumulator(column)
        accumulator.add(pa.nulls(0, column), GroupRows(np.zeros(0, dtype=np.int64), rows))
        return accumulator.state()

    def lift(self, values: pa.Array | None, rows: int) -> State:
        assert values is not None
        accumulator = self.accumulator(values.type)
        accumulator.add(values, GroupRows(np.arange(rows), rows))
        return accumulator.state()

    def merge(self, state: State, segments: Segments) -> State:
        merged = self.accumulator(None)
        merged.merge(state, GroupRows(segments.ids, len(segments.starts)))
        return merged.state()


@dataclass(frozen=True)
class ApproxCountDistinct(_Sketch):
    """About how many distinct values there are that are not null."""

    name: str = "approx_count_distinct"
    ordered: bool = False

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        if column is not None:
            with suppress(FlowError):
                check_group_types(self.name, [pa.field("its argument", column)])
                return pa.int64()
        raise unfit(self.name, column, "columns that can be grouped by")

    def accumulator(self, column: pa.DataType | None) -> Accumulator:
        return CodeCounts(_hashed, KEPT)

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        counts = pc.list_value_length(state[0]).to_numpy()
        many = counts == KEPT
        last = state[0].flatten().to_numpy()[(np.cumsum(counts) - 1)[many]]
        found = counts.copy()
        found[many] = np.round((KEPT - 1) * 2.0**63 / np.maximum(last, 1))
        return pa.array(found)


@dataclass(frozen=True)
class ApproxQuantile(_Sketch):
    """About the value that a ``share`` of the others are not above."""

    share: float
    ordered: bool = False

    @property
    def parts(self) -> tuple[AggregateFunction, ...]:
        """Its state is that of these."""
        return (_HISTOGRAM,)

    @property
    def name(self) -> str:
        return f"approx_quantile({self.share!r})"

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        types = pa.types
        if column is None or not (types.is_integer(column) or types.is_floating(column) or types.is_decimal(column)):
            raise unfit(self.name, column, "numbers and decimals")
        return pa.float64()

    def accumulator(self, column: pa.DataType | None) -> Accumulator:
        return CodeCounts(_by_leading_bits)

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        lengths = pc.list_value_length(state[0]).to_numpy()
        codes, counts = (part.flatten().to_numpy() for part in state)
        ends = np.append(0, np.cumsum(counts))
        borders = np.append(0, np.cumsum(lengths))
        before, rows = ends[borders[:-1]], np.diff(ends[borders])
        filled = rows > 0
        places = before[filled] + place_of(self.share, rows[filled])
        found = np.zeros(len(rows))
        found[filled] = _smallest_of(codes[np.searchsorted(ends, places, side="right") - 1])
        return pa.array(found, mask=~filled)


_HISTOGRAM = ApproxQuantile(0.5)


def _hashed(values: pa.Array) -> Codes:
    return (hashes([decoded(values)]) >> np.uint64(1)).view(np.int64)


def _by_leading_bits(values: pa.Array) -> Codes:
    """Sign, exponent and the first bits behind; all NaN alike, above everything."""
    plain = np.ascontiguousarray(as_floats(values), dtype=np.float64)
    codes: Codes = np.abs(plain).view(np.int64) >> _DROPPED
    codes = np.where(plain < 0, -codes, codes)
    codes[np.isnan(plain)] = _NAN
    return codes


def _smallest_of(codes: Codes) -> np.ndarray:
    """Of the values with such a code the one that is nearest to zero."""
    found = (np.abs(codes) << _DROPPED).view(np.float64)
    return np.where(codes < 0, -found, found)

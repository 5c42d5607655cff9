"""Which row groups can hold which keys, by the least and greatest value that the files' footers tell.

Rules:

1. A row group is passed over only if its footer proves that it holds none of the keys: nulls alone, or a range that no
   key falls into. Without usable statistics it is read.
2. Footers do not count NaN; where a NaN is asked for, no group with floats is passed over for its greatest value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from ..core.schemas import value_type
from ..kernels.keys import comparable, shared_codes
from ..kernels.pieces import Flags, Positions


@dataclass(frozen=True, slots=True)
class Bounds:
    """One key column's ranges: ``lows`` and ``highs`` per group; where not ``known`` they mean nothing.

    ``empty``: the groups that hold nothing but null.
    """

    lows: pa.Array
    highs: pa.Array
    known: Flags
    empty: Flags

    @classmethod
    def of(cls, groups: Sequence[parquet.RowGroupMetaData], name: str, type: pa.DataType) -> Bounds:
        """The ranges of column ``name`` in ``groups``."""
        told = [_statistics(group, name) for group in groups]
        empty = np.array([
            each is not None and each.has_null_count and each.null_count == group.num_rows
            for each, group in zip(told, groups, strict=True)
        ], dtype=bool)  # fmt: skip
        known = np.array([each is not None and each.has_min_max for each in told], dtype=bool) & ~empty
        usable = [each for each, is_known in zip(told, known, strict=True) if is_known]
        lows, highs = _as_arrays(usable, value_type(type))
        if lows is None:
            return cls(pa.nulls(0, pa.int64()), pa.nulls(0, pa.int64()), np.zeros(len(groups), dtype=bool), empty)
        return cls(lows, highs, known, empty)

    def ranges(self, keys: pa.Array) -> tuple[Positions, Positions, Positions]:
        """An order of the keys, and the range of places in it that each group can hold."""
        count = len(keys)
        first, last = np.zeros(len(self.known), dtype=np.int64), np.full(len(self.known), count, dtype=np.int64)
        first[self.empty] = count
        if not self.known.any():
            return np.arange(count), first, last
        ends = comparable(pa.concat_arrays([self.lows, self.highs]))
        codes, end_codes = shared_codes([comparable(keys)], [ends])
        order = np.argsort(codes, kind="stable")
        ordered, known = codes[order], int(self.known.sum())
        first[self.known] = np.searchsorted(ordered, end_codes[:known], side="left")
        last[self.known] = np.searchsorted(ordered, end_codes[known:], side="right")
        if pa.types.is_floating(keys.type) and bool(np.isnan(keys.to_numpy(zero_copy_only=False)).any()):
            last[~self.empty] = count
        return order, first, last


def candidates(bounds: Sequence[Bounds], keys: pa.RecordBatch) -> Iterator[tuple[int, Positions | None]]:
    """The groups that can hold some of the keys, in their order, each with the numbers of these keys (None: all).

    Of several key columns the first decides which keys those are, the others only whether there are any.
    """
    order, first, last = bounds[0].ranges(keys.column(0))
    possible = first < last
    for each, column in zip(bounds[1:], keys.columns[1:], strict=True):
        _, low, high = each.ranges(column)
        possible &= low < high
    for group in np.flatnonzero(possible).tolist():
        is_all = last[group] - first[group] == keys.num_rows
        yield group, None if is_all else np.sort(order[first[group] : last[group]])


def _statistics(group: parquet.RowGroupMetaData, name: str) -> Any:
    """What the footer tells of a column; None if nothing, or if the name is not one leaf's alone."""
    columns = [group.column(number) for number in range(group.num_columns)]
    named = [column for column in columns if column.path_in_schema == name]
    return named[0].statistics if len(named) == 1 and named[0].is_stats_set else None


def _as_arrays(told: Sequence[Any], type: pa.DataType) -> tuple[Any, Any]:
    """Least and greatest values as the column's type; None if they cannot be read so."""
    try:
        if getattr(type, "unit", None) == "ns":  # Python's times end at microseconds
            return tuple(pa.array([getattr(each, end) for each in told], pa.int64()).view(type) for end in _RAW)
        return tuple(pa.array([getattr(each, end) for each in told], type) for end in ("min", "max"))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None, None


_RAW = ("min_raw", "max_raw")

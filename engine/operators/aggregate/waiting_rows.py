"""Rows of a hash aggregation that wait until they are worth a merge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...arrow.compact import is_compact, plain
from .grouped_states import GroupedRows

_WORTH_A_MERGE = 16 * 1024
"""Batches of fewer rows are put together before they are merged."""


class WaitingRows:
    """Rows that wait to be merged. ``per_lane``: lane by lane, and only rows of one are put together."""

    def __init__(self, schema: pa.Schema, names: Sequence[str], *, per_lane: bool = False) -> None:
        self._per_lane = per_lane
        #: the bytes of a row, if they are the same for all
        self._width = _width(schema, names)
        self._parts: list[tuple[pa.RecordBatch, int]] = []
        self.rows = 0
        self.bytes = 0

    def put(self, records: pa.RecordBatch, lane: int) -> None:
        """Hold these rows as well."""
        if records.num_rows:
            self._parts.append((records, lane))
            self.rows += records.num_rows
            self.bytes += self._bytes_of(records)

    def take(self, keys: int, bytes: int) -> list[GroupedRows]:
        """The first rows, so many bytes of them: at least a batch, if there is one."""
        left, count = self._parts, 0
        while count < len(left) and bytes > 0:
            bytes -= self._bytes_of(left[count][0])
            count += 1
        self._parts, self.rows, self.bytes = [], 0, 0
        for records, lane in left[count:]:
            self.put(records, lane)
        return self._grouped(left[:count], keys)

    def take_all(self, keys: int) -> list[GroupedRows]:
        """All rows, which are held no longer; small batches are put together. The first columns are the keys."""
        parts, self._parts, self.rows, self.bytes = self._parts, [], 0, 0
        return self._grouped(parts, keys)

    def _bytes_of(self, records: pa.RecordBatch) -> int:
        return int(records.nbytes) if self._width is None else records.num_rows * self._width

    def _grouped(self, parts: list[tuple[pa.RecordBatch, int]], keys: int) -> list[GroupedRows]:
        if self._per_lane:
            parts.sort(key=lambda part: part[1])
        taken: list[GroupedRows] = []
        small: list[tuple[pa.RecordBatch, int]] = []
        for part in parts:
            if small and self._per_lane and part[1] != small[0][1]:
                taken.append(_together(small, keys))
                small = []
            if part[0].num_rows < _WORTH_A_MERGE:
                small.append(part)
                continue
            taken += [_together(each, keys) for each in (small, [part]) if each]
            small = []
        return [*taken, _together(small, keys)] if small else taken


def _width(schema: pa.Schema, names: Sequence[str]) -> int | None:
    """The bytes of these columns of a row, if they are the same for all rows: to ask a batch takes longer."""
    types = [schema.field(name).type for name in names]
    return sum(-(-type.bit_width // 8) for type in types) if all(map(pa.types.is_primitive, types)) else None


def _together(parts: Sequence[tuple[pa.RecordBatch, int]], keys: int) -> GroupedRows:
    if len(parts) == 1:
        records, lane = parts[0]
        return GroupedRows(records.columns[:keys], records, lane)
    columns = [_one(each) for each in zip(*(part.columns for part, _ in parts), strict=True)]
    records = pa.RecordBatch.from_arrays(columns, names=parts[0][0].schema.names)
    lanes = np.array([lane for _, lane in parts], dtype=np.int32)
    if (lanes == lanes[0]).all():
        return GroupedRows(columns[:keys], records, int(lanes[0]))
    return GroupedRows(columns[:keys], records, np.repeat(lanes, [part.num_rows for part, _ in parts]))


def _one(parts: Sequence[pa.Array]) -> pa.Array:
    """Parts of a column in one piece; they may be in two forms (``arrow.compact``)."""
    types = {part.type for part in parts}
    if len(types) > 1:
        declared = next(type for type in types if any(is_compact(other, type) for other in types))
        parts = [plain(part, declared) for part in parts]
    return pa.concat_arrays(parts)

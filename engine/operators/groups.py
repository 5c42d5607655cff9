"""Rows to group numbers, by hashing: what grouping, distinct and their like share.

Rules:

1. Groups are numbered 0, 1, 2, … in the order of their first row.
2. Null is a key like any other and equal to null; NaN equals NaN, −0.0 equals 0.0; a dictionary counts as its values.
   Structs, lists and maps are equal if all that they hold is, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import FlowError
from ..schemas import value_type
from .keys import check_key_types, comparable, decoded, validity
from .pieces import Flags, Positions

_LIMIT = 2**62

_TABLE_PER_ROW = 4
"""Integers are addressed directly if their range is at most so many times the number of rows."""


def check_group_types(kind: str, fields: Iterable[pa.Field]) -> None:
    """The columns can be grouped by."""
    for field in fields:
        type = value_type(field.type)
        if pa.types.is_nested(type):
            if pa.types.is_union(type):
                raise FlowError(f"{kind}: column {field.name!r} of type {field.type} cannot be a key", "leave it out")
            children = [type.field(number) for number in range(type.num_fields)]
            check_group_types(kind, [pa.field(field.name, child.type) for child in children])
        else:
            check_key_types(kind, [field])


def group_ids(columns: Sequence[pa.Array], rows: int) -> tuple[Positions, int]:
    """The group of each of ``rows`` rows, and the number of groups. No columns: one group."""
    if not columns:
        return np.zeros(rows, dtype=np.int64), min(rows, 1)
    codes, width = _codes(columns[0])
    for column in columns[1:]:
        codes, width = _paired(codes, width, *_codes(column))
    return (codes, width) if len(columns) == 1 else _dense(codes)


def first_rows(ids: Positions) -> Flags:
    """Which rows are the first of their group, given groups numbered by first row."""
    highest = np.maximum.accumulate(ids)
    return np.append(True, highest[1:] > highest[:-1])[: len(ids)]


def stable_order(ids: Positions, groups: int) -> Positions:
    """The rows by group, and in their own order within each."""
    narrow = ids.astype(np.uint16) if groups <= 2**16 else ids  # two bytes are sorted by radix
    order: Positions = np.argsort(narrow, kind="stable")
    return order


class SeenKeys:
    """The keys that have been seen, each with the lane of its first row."""

    def __init__(self, schema: pa.Schema, *, per_lane: bool = False) -> None:
        self.schema = pa.schema([pa.field(field.name, value_type(field.type)) for field in schema])
        self._per_lane = per_lane
        #: distinct rows, in the order in which they were seen, and the lane of each
        self.keys = self.schema.empty_table().combine_chunks()
        self.lanes = np.zeros(0, dtype=np.int32)

    def first(self, columns: Sequence[pa.Array], lanes: npt.NDArray[np.int32]) -> Flags:
        """Which of these rows have a key that no row before had; their keys are remembered."""
        rows = pa.table([decoded(column) for column in columns], schema=self.schema)
        known = len(self.lanes)
        whole, all_lanes = pa.concat_tables([self.keys, rows]), np.concatenate([self.lanes, lanes]).astype(np.int32)
        keys = [column.combine_chunks() for column in whole.columns]
        if self._per_lane:
            keys.append(pa.array(all_lanes))
        ids, _ = group_ids(keys, whole.num_rows)
        new = first_rows(ids)
        new[:known] = True
        self.keys, self.lanes = whole.take(pa.array(np.flatnonzero(new))), all_lanes[new]
        return new[known:]

    def forget(self) -> None:
        """Start anew."""
        self.keys, self.lanes = self.schema.empty_table(), np.zeros(0, dtype=np.int32)


def _codes(given: pa.Array) -> tuple[Positions, int]:
    """Numbers for the values of one column, in the order of first appearance; null has one, too."""
    column = decoded(given)
    type = column.type
    if pa.types.is_struct(type):
        codes, width = _encoded(column.is_valid())
        for child in column.flatten():
            codes, width = _paired(codes, width, *_codes(child))
        return _dense(codes)
    if pa.types.is_nested(type):
        return _list_codes(column)
    keys = comparable(column)
    if not isinstance(keys, np.ndarray):
        return _encoded(column)
    valid = validity(column) if column.null_count else None
    return _addressed(keys, valid) or _encoded(pa.array(keys, mask=None if valid is None else ~valid))


def _list_codes(column: pa.Array) -> tuple[Positions, int]:
    """A list is the bytes of its elements' codes."""
    if pa.types.is_map(column.type):
        keys, items = column.type.key_field, column.type.item_field
        column = column.cast(pa.list_(pa.struct([keys, items])))
    lengths = column.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    elements, _ = _codes(column.flatten())
    offsets = np.append(0, np.cumsum(lengths)) * 8
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(elements, dtype=np.int64))]
    texts = pa.Array.from_buffers(pa.large_binary(), len(column), buffers)
    codes, width = _encoded(texts)
    if not column.null_count:
        return codes, width
    return _dense(np.where(validity(column), codes, width))


def _addressed(keys: Positions, valid: Flags | None) -> tuple[Positions, int] | None:
    """Codes of integers that lie close together, by a table with a place for each: much faster than hashing."""
    low, high = (int(keys.min()), int(keys.max())) if len(keys) else (0, 0)
    width = high - low + 1
    if width > _TABLE_PER_ROW * len(keys):
        return None
    places = keys - low
    if valid is not None:
        places = np.where(valid, places, width)
    first = np.empty(width + 1, dtype=np.int64)  # only the places of keys are read
    rows = np.arange(len(keys))
    first[places[::-1]] = rows[::-1]  # of all rows of a key the first one is written last
    firsts = np.flatnonzero(first[places] == rows)
    first[places[firsts]] = rows[: len(firsts)]
    return first[places], len(firsts)


def _encoded(column: pa.Array) -> tuple[Positions, int]:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), dtype=np.int64), min(len(column), 1)
    found = column.dictionary_encode(null_encoding="encode")
    return found.indices.to_numpy().astype(np.int64), len(found.dictionary)


def _paired(one: Positions, width: int, other: Positions, other_width: int) -> tuple[Positions, int]:
    if width * other_width > _LIMIT:
        one, width = _dense(one)
    return one * max(other_width, 1) + other, width * max(other_width, 1)


def _dense(codes: Positions) -> tuple[Positions, int]:
    return _addressed(codes, None) or _encoded(pa.array(codes))

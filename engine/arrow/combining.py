"""Rows that came in pieces as one record batch, or as few.

Arrow's ``combine_chunks()`` gives several pieces again where one array cannot hold them (a text or binary column of
more than 2 GiB, or its lists of more than 2³¹ values), so whoever takes the first one loses the rest without a word.

Rules:

1. :func:`combine` gives all rows in one batch, or an error that names the column.
2. :func:`fewest` gives all rows in one batch or more. They are halved at row positions, so the cuts depend on the rows
   alone, not on the batches that they came in.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..core.errors import DataError
from .nested_types import with_children


def combine(batches: Sequence[pa.RecordBatch], schema: pa.Schema, wide: bool = False) -> pa.RecordBatch:
    """The rows of all batches, which have this schema. ``wide``: a column that is too long for its type gets the type
    with 64-bit offsets, or without a dictionary, instead of being refused. Raises DataError, which names the column."""
    if len(batches) == 1:
        return batches[0]
    columns = [
        _column([records.column(place) for records in batches], field, wide) for place, field in enumerate(schema)
    ]
    fields = [field.with_type(column.type) for field, column in zip(schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, schema.metadata))


def _column(chunks: Sequence[pa.Array], field: pa.Field, wide: bool) -> pa.Array:
    if not chunks:
        return pa.nulls(0, field.type)
    try:
        return pa.concat_arrays(chunks)
    except pa.ArrowException as error:
        wider = widened(field.type)
        if wide and wider != field.type:
            return pa.concat_arrays([chunk.cast(wider) for chunk in chunks])
        rows = sum(map(len, chunks))
        raise DataError(
            f"column {field.name!r} has more in {rows:,} rows than one array of type {field.type} can hold: {error}",
            f"give the column the type {wider} where it is read or made, or have fewer rows at once"
            if wider != field.type
            else "have fewer rows at once",
        ) from error


def widened(kind: pa.DataType) -> pa.DataType:
    """The type of the same values that holds more than 2 GiB of them: itself, if there is none or it does already."""
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.large_list(_widened_field(kind.value_field))
    if pa.types.is_dictionary(kind):
        return widened(kind.value_type)
    return kind if pa.types.is_map(kind) else with_children(kind, _widened_field)


def _widened_field(field: pa.Field) -> pa.Field:
    return field.with_type(widened(field.type))


def fewest(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows of one batch or more of one schema, in order, in as few batches as halving gives."""
    if len(batches) < 2:
        return list(batches)
    try:
        return [_together(batches)]
    except pa.ArrowInvalid as error:
        rows = sum(each.num_rows for each in batches)
        if rows < 2 or not is_too_large(error):
            raise
        return [*fewest(_rows(batches, 0, rows // 2)), *fewest(_rows(batches, rows // 2, rows))]


def is_too_large(error: BaseException) -> bool:
    """Whether Arrow says that the values do not fit into one array."""
    return isinstance(error, pa.ArrowInvalid) and ("overflow" in str(error) or "too large" in str(error))


def _together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(batches)


def _rows(batches: Sequence[pa.RecordBatch], begin: int, end: int) -> list[pa.RecordBatch]:
    found, start = [], 0
    for each in batches:
        low, high = max(begin - start, 0), min(end - start, each.num_rows)
        if low < high:
            found.append(each.slice(low, high - low))
        start += each.num_rows
    return found

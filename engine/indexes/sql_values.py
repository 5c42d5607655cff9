"""Values of a database's rows as Arrow columns, and keys as parameters of a statement.

Rules:

1. The index's schema says what the values mean. What a database gives as another type is cast if that loses nothing.
2. SQLite knows numbers, text and bytes only. Dates, times and timestamps are text there as Python's ``sqlite3`` writes
   them (``2013-01-31``, ``2013-01-31 10:15:00`` with six digits behind the second or none; timestamps with a zone in
   UTC), decimals text with the digits of their type, booleans 0 and 1. Other databases get Python's objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import DataError, FlowError

_WHOLE_SECONDS = ("\\.0+$", "")


def check_types(kind: str, schema: pa.Schema) -> None:
    """The schema has only types that rows of a database can have."""
    for field in schema:
        if pa.types.is_nested(field.type) or pa.types.is_dictionary(field.type) or pa.types.is_interval(field.type):
            raise FlowError(
                f"{kind}: column {field.name!r} of type {field.type} cannot come from a database",
                "use a number, boolean, string, binary, decimal, date, time or timestamp column",
            )


def parameters(columns: Sequence[pa.Array], *, as_text: bool) -> list[Any]:
    """The keys for a statement, one after the other; ``as_text``: for SQLite."""
    values = [_objects(as_sqlite_has(column) if as_text else column) for column in columns]
    return values[0] if len(values) == 1 else list(chain.from_iterable(zip(*values, strict=True)))


def _objects(column: pa.Array) -> list[Any]:
    type = column.type
    if pa.types.is_temporal(type) or pa.types.is_decimal(type):
        return list(column.to_pylist())
    return list(column.to_numpy(zero_copy_only=False).tolist())  # ten times as fast


def as_sqlite_has(column: pa.Array) -> pa.Array:
    """The values as SQLite stores them (rule 2)."""
    types = pa.types
    if types.is_boolean(column.type):
        return column.cast(pa.int64())
    if types.is_timestamp(column.type):
        naive = column.cast(pa.timestamp("us", column.type.tz)).view(pa.timestamp("us"))
        return pc.replace_substring_regex(naive.cast(pa.string()), *_WHOLE_SECONDS)
    if types.is_time(column.type):
        return pc.replace_substring_regex(column.cast(pa.time64("us")).cast(pa.string()), *_WHOLE_SECONDS)
    if types.is_date(column.type):
        return column.cast(pa.date32()).cast(pa.string())
    return column.cast(pa.string()) if types.is_decimal(column.type) else column


def records(columns: Sequence[Any], schema: pa.Schema, name: str) -> pa.RecordBatch:
    """Columns of a database's answer (Arrow arrays, or sequences of Python objects) as the index's rows."""
    arrays = [_as_column(values, field, name) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as_column(values: Any, field: pa.Field, name: str) -> pa.Array:
    try:
        array = values if isinstance(values, pa.Array) else _typed(values, field.type)
        array = array if array.type == field.type else _cast(array, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{name}: column {field.name!r} holds what is no {field.type}: {error}",
            "correct the index's schema, or cast the column in a query",
        ) from error
    if array.null_count and not field.nullable:
        raise DataError(f"{name}: column {field.name!r} holds nulls", "declare it nullable in the index's schema")
    return array


def _typed(values: Sequence[Any], type: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type)
    except (pa.ArrowException, TypeError, ValueError):
        return pa.array(values)


def _cast(array: pa.Array, type: pa.DataType) -> pa.Array:
    is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    if pa.types.is_timestamp(type) and type.tz is not None and is_text:
        return pc.assume_timezone(array.cast(pa.timestamp(type.unit)), "UTC").cast(type)
    if pa.types.is_time(type) and is_text:  # Arrow reads no times, but timestamps
        dated = pc.binary_join_element_wise("1970-01-01", array.cast(pa.string()), " ")
        return dated.cast(pa.timestamp("us")).cast(pa.time64("us")).cast(type)
    if pa.types.is_boolean(type) and is_text:
        raise pa.ArrowInvalid("text is no boolean")
    return array.cast(type)

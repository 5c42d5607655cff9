"""Promises inside nested types that a value is never null: dropped where rows are handed on.

``struct<x: int64 not null>`` promises that ``x`` is there *where the struct is*. Where the struct itself is null, there
is nothing that ``x`` could be: Spark and most kernels leave a null there, which writers then take for a broken promise.
Outer joins make such rows of any struct, and so do vectors of Spark ML. Rules:

1. Inside a type everything may be null, at every depth; but the keys of maps, which Arrow never lets be null.
2. Columns keep what their schema says: an operator that may add nulls to a column declares so itself.
"""

from __future__ import annotations

import pyarrow as pa

from .nested_types import with_children


def loosened(schema: pa.Schema) -> pa.Schema:
    """The schema without promises inside its types; the same object if there are none."""
    fields = [field.with_type(loosened_type(field.type)) for field in schema]
    found = pa.schema(fields, schema.metadata)
    return schema if found.equals(schema) else found


def nullable(schema: pa.Schema) -> pa.Schema:
    """The schema without promises at any depth, of columns neither: what rows of Spark and Ray Data come with, for no
    outer join would keep them."""
    return pa.schema([pa.field(column.name, loosened_type(column.type)) for column in schema])


def loosened_type(type: pa.DataType) -> pa.DataType:
    """The type without promises inside it."""
    return with_children(type, _loosened_field)


def _loosened_field(field: pa.Field) -> pa.Field:
    return field.with_type(loosened_type(field.type)).with_nullable(True)


def loosely(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with the types of ``schema``, which is their own, loosened."""
    return records if records.schema.equals(schema) else pa.record_batch(_Retyped(records, schema))


class _Retyped:
    """The same rows under another schema of the same layout, as Arrow hands them from library to library: no value is
    copied or looked at. (``cast`` looks at all, and is wrong about ``null`` inside lists: it leaves as many values as
    there are rows.)"""

    def __init__(self, records: pa.RecordBatch, schema: pa.Schema) -> None:
        self._records, self._schema = records, schema

    def __arrow_c_array__(self, requested: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._records.__arrow_c_array__()[1]

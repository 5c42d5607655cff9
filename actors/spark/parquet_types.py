"""Which frames Spark itself can write as Parquet so that the same rows come back: the table of types.

Rules:

1. What is written is what ``types.arrow_schema`` says arrives; where a file cannot hold it, or would hold it as another
   type, the frame goes through Python workers (``writing``), which write Arrow.
2. A type goes as it is, at every depth, or not at all. Dates and instants go at any distance: as days and microseconds
   they need no other calendar and no INT96 (``parquet_writer`` pins both).
3. Columns are called by their position; fields of structs have the user's names, so those must be names for Parquet
   and for Spark, which may be told not to tell ``id`` from ``ID``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

_FLAT = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")),
)
"""Types of Spark's that are the same in a file. Null and day-time intervals are not: Spark has no type of Parquet for
the one, and writes numbers for the other."""


def no_parquet_for(schema: pa.Schema) -> str:
    """Why rows of this schema cannot be written as Parquet; empty if they can."""
    if not schema.names:
        return "it has no columns"
    found = (f"column {column.name!r}: {why}" for column in schema for why in _reasons(column.type))
    return next(found, "")


def _reasons(kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if not names:
            yield "a struct without fields"
        elif not all(names) or len({name.lower() for name in names}) < len(names):
            yield "names of fields that Spark may not tell apart"
        for field in kind:
            yield from _reasons(field.type)
    elif pa.types.is_map(kind):
        yield from _reasons(kind.key_type)
        yield from _reasons(kind.item_type)
    elif pa.types.is_list(kind):
        yield from _reasons(kind.value_type)
    elif not (_is_decimal(kind) or kind in _FLAT):
        yield f"{kind} has no type of Parquet"


def _is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision)

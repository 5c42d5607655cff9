"""The types of Arrow that SQL's names mean in a cast, as DuckDB understands them."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "TIMESTAMP_S": pa.timestamp("s"),
    "TIMESTAMP_MS": pa.timestamp("ms"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
}
DECIMAL = (18, 3)
"""Precision and scale of a decimal that names none."""


def arrow_type(given: exp.DataType) -> pa.DataType | None:
    """The Arrow type, or None if there is none for it."""
    name = given.this.name if hasattr(given.this, "name") else str(given.this)
    if name == "DECIMAL":
        numbers = [int(part.name) for part in given.expressions]
        precision, scale = (*numbers, *DECIMAL[len(numbers) :]) if len(numbers) != 1 else (numbers[0], 0)
        return pa.decimal128(precision, scale)
    return TYPES.get(name)

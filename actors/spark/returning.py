"""Arrow's types as Spark's, for rows that go back: each type as it went, or a refusal that names the column.

Rules:

1. What came from Spark goes back as the same type: day-time intervals, timestamps with and without a zone, void. Spark
   alone, asked to look into a Parquet file, takes intervals for numbers and void for an int, and what it takes a
   timestamp for depends on the session.
2. Types that Spark has under another name become the narrowest of Spark's that holds all their values: unsigned
   numbers, other layouts of text and lists, other units of time.
3. What Spark's reader of Parquet would misread in a file is refused, though a table in memory can be cast (``stored``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from ...engine.core.errors import ConfigurationError

_MOST_DIGITS = 38
_NO_SPARK_TYPE = "it has no type of Spark's"
_CAST = "cast it before the sink"


class _NoType(Exception):
    """Why a type cannot go back, and the remedy."""


def spark_schema(schema: pa.Schema, *, stored: bool) -> Any:
    """The ``StructType`` that rows of the schema get. ``stored``: they lie in Parquet files. Raises
    ConfigurationError with the name of a column that cannot go back."""
    from pyspark.sql import types

    fields = []
    for field in schema:
        try:
            fields.append(types.StructField(field.name, _spark_type(field.type, stored)))
        except _NoType as error:
            why, remedy = error.args
            message = f"column {field.name!r} of type {field.type} cannot go back to Spark: {why}"
            raise ConfigurationError(message, remedy) from None
    return types.StructType(fields)


def _spark_type(kind: pa.DataType, stored: bool) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        return _spark_type(kind.storage_type, stored)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _spark_type(kind.value_type, stored)
    return _nested(kind, stored) if pa.types.is_nested(kind) else _flat(kind, stored)


def _nested(kind: pa.DataType, stored: bool) -> Any:
    from pyspark.sql import types

    def inside(field: pa.Field) -> Any:
        if stored and pa.types.is_null(field.type):
            raise _NoType("Spark reads no void inside other types from files", f"{_CAST}, to a type that has values")
        return _spark_type(field.type, stored)

    if pa.types.is_struct(kind):
        return types.StructType([types.StructField(field.name, inside(field)) for field in kind])
    if pa.types.is_map(kind):
        return types.MapType(inside(kind.key_field), inside(kind.item_field))
    if pa.types.is_union(kind):
        raise _NoType(_NO_SPARK_TYPE, _CAST)
    return types.ArrayType(inside(kind.value_field))


def _flat(kind: pa.DataType, stored: bool) -> Any:
    from pyspark.sql import types

    if pa.types.is_decimal(kind):
        if kind.precision > _MOST_DIGITS:
            raise _NoType(f"Spark's decimals have {_MOST_DIGITS} digits", f"{_CAST}, to a decimal with fewer digits")
        return types.DecimalType(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return _time(kind, stored)
    if pa.types.is_float16(kind) and stored:
        raise _NoType("Spark reads no half-precision numbers from files", f"{_CAST}, to float32")
    for is_kind, make in _FLAT:
        if is_kind(kind):
            return make(types)
    raise _NoType(_NO_SPARK_TYPE, f"{_CAST}, to a string or a number")


def _time(kind: pa.DataType, stored: bool) -> Any:
    from pyspark.sql import types

    if pa.types.is_duration(kind):
        if stored and kind.unit != "us":
            raise _NoType("Spark takes intervals in files for microseconds", f"{_CAST}, to duration('us')")
        return types.DayTimeIntervalType()
    if stored and kind.unit == "ns":
        raise _NoType("Spark reads no nanoseconds from files", f"{_CAST}, to timestamp('us')")
    return types.TimestampNTZType() if kind.tz is None else types.TimestampType()


_FLAT: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_null, lambda types: types.NullType()),
    (pa.types.is_boolean, lambda types: types.BooleanType()),
    (pa.types.is_int8, lambda types: types.ByteType()),
    (lambda kind: pa.types.is_int16(kind) or pa.types.is_uint8(kind), lambda types: types.ShortType()),
    (lambda kind: pa.types.is_int32(kind) or pa.types.is_uint16(kind), lambda types: types.IntegerType()),
    (lambda kind: pa.types.is_int64(kind) or pa.types.is_uint32(kind), lambda types: types.LongType()),
    (pa.types.is_uint64, lambda types: types.DecimalType(20, 0)),
    (lambda kind: pa.types.is_float16(kind) or pa.types.is_float32(kind), lambda types: types.FloatType()),
    (pa.types.is_float64, lambda types: types.DoubleType()),
    (pa.types.is_date, lambda types: types.DateType()),
    (lambda kind: kind in (pa.string(), pa.large_string(), pa.string_view()), lambda types: types.StringType()),
    (lambda kind: kind in (pa.binary(), pa.large_binary(), pa.binary_view()), lambda types: types.BinaryType()),
    (pa.types.is_fixed_size_binary, lambda types: types.BinaryType()),
)
"""By kind of Arrow's types: Spark's, made by the module that has them."""

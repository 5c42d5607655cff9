"""Spark's column types as Arrow's, and Arrow's as Spark's: each type there and back, or a refusal with its column.

Rules for rows that come from Spark:

1. Everything is nullable, at every depth, whatever Spark says: that promise would not survive an outer join, and does
   not hold inside a struct that is null. Timestamps with a zone are labelled UTC, whatever the session's zone is: the
   label of an instant.
2. What has no Arrow type is refused with the column's name, its type and a remedy, before Spark computes anything, also
   when it is inside another type.
3. Only the DataFrame's public schema is used, so frames of Spark Connect and of Spark 4 will do. Where PySpark has no
   name for a type of Spark's, the JVM is asked, for the error's sake.
4. Spark may take a name for an expression (``a.b``, ``*``) or for another one (``id``, ``ID``). So columns are
   addressed by position (:func:`by_position`).

Rules for rows that go back:

5. What came from Spark goes back as the same type: day-time intervals, timestamps with and without a zone, void. Spark
   alone, asked to look into a Parquet file, takes intervals for numbers and void for an int, and what it takes a
   timestamp for depends on the session.
6. Types that Spark has under another name become the narrowest of Spark's that holds all their values: unsigned
   numbers, other layouts of text and lists, other units of time.
7. What Spark's reader of Parquet would misread in a file is refused, though a table in memory can be cast (``stored``).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from ...engine.arrow.nullability import nullable
from ...engine.core.errors import ConfigurationError
from ...engine.core.schemas import duplicate_of
from .sessions import check_session, is_classic

_REMEDIES = {
    "intervalyear": "cast it to a number of months: CAST(column AS INT)",
    "intervalmonth": "cast it to a number of months: CAST(column AS INT)",
    "interval": "build a day-time interval or plain numbers instead of it (make_dt_interval, extract)",
    "variant": "cast it to the type that you expect, or to a string with to_json",
}
_REMEDY = "cast it to a type that Arrow has (a string, a number, a struct of such), or drop it: frame.drop(name)"


def check_frame(frame: Any) -> None:
    """Raise ConfigurationError unless this is a DataFrame whose rows are there to be read once and for all."""
    if not all(hasattr(type(frame), name) for name in ("schema", "mapInArrow", "isStreaming")):
        found = f"{type(frame).__module__}.{type(frame).__qualname__}"
        remedy = "pass a pyspark.sql.DataFrame; flow.from_ray_dataset(…) and flow.from_tables(…) read other things"
        raise ConfigurationError(f"{found} is no Spark DataFrame", remedy)
    try:
        streams = frame.isStreaming
    except Exception as error:
        raise _silent(frame, error) from error
    if streams:
        remedy = "write the stream to files and read those, or hand over a batch of it (foreachBatch)"
        raise ConfigurationError("a streaming DataFrame has no fixed partitions to hand over", remedy)


def arrow_schema(frame: Any) -> pa.Schema:
    """The Arrow schema that the frame's rows arrive with."""
    declared = _declared(frame)
    names = list(declared.names)
    if (twice := duplicate_of(names)) is not None:
        raise ConfigurationError(
            f"the DataFrame has several columns named {twice!r}", "rename them: frame.toDF(…), or select(… alias …)"
        )
    return nullable(pa.schema([(column.name, _arrow_type(column)) for column in declared]))


def by_position(frame: Any) -> Any:
    """The frame with columns named ``c0``, ``c1``, …: see rule 4."""
    return frame.toDF(*[f"c{position}" for position in range(len(frame.schema.names))])


def _declared(frame: Any) -> Any:
    """What PySpark says of the frame's columns. Raises ConfigurationError if it cannot."""
    try:
        return frame.schema
    except Exception as error:
        for name, kind, told in _unnamed(frame):
            raise _refused(name, kind, "PySpark has no name for it", told) from error
        raise _silent(frame, error) from error


def _silent(frame: Any, error: Exception) -> ConfigurationError:
    """The error for a frame of which Spark tells nothing. Raises that of ``check_session`` if the session has ended."""
    check_session(frame)
    needed = "the session's JVM" if is_classic(frame) else "the server of Spark Connect"
    return ConfigurationError(
        f"Spark does not answer for this DataFrame: {_brief(error)}",
        f"see the message; frame.printSchema() must work, and {needed} must be running",
    )


def _unnamed(frame: Any) -> Iterator[tuple[str, str, object]]:
    """Name, type and JSON of each column whose type PySpark does not know, as the JVM tells; nothing without one."""
    if not is_classic(frame) or frame.sparkSession.sparkContext._jsc is None:
        return
    from pyspark.sql.types import StructType

    for column in json.loads(frame._jdf.schema().json())["fields"]:
        try:
            StructType.fromJson({"fields": [column]})
        except Exception:
            kind = column["type"]
            yield column["name"], kind if isinstance(kind, str) else json.dumps(kind), kind


def quietly(convert: Callable[[Any], pa.DataType], kind: Any) -> pa.DataType:
    """A type that a function of PySpark makes of another. PySpark 3.5 uses distutils to compare versions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return convert(kind)


def _arrow_type(column: Any) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        found = in_utc(quietly(to_arrow_type, column.dataType))
    except Exception as error:
        told = column.dataType.jsonValue()
        raise _refused(column.name, column.dataType.simpleString(), _brief(error), told) from error
    if name := _named_twice(found):
        raise _refused(column.name, column.dataType.simpleString(), f"it has several fields {name!r}", None)
    return found


def _named_twice(kind: pa.DataType) -> str:
    """The name of two fields of one struct, at any depth; "" if there is none."""
    fields = [kind.field(position) for position in range(kind.num_fields)]
    twice = [duplicate_of(field.name for field in fields), *(_named_twice(field.type) for field in fields)]
    return next(filter(None, twice), "")


def _refused(name: str, kind: str, why: str, told: object) -> ConfigurationError:
    message = f"column {name!r} of the DataFrame has type {kind}, which has no Arrow type: {why}"
    return ConfigurationError(message, _remedy(told))


def _remedy(kind: object) -> str:
    text = str(kind).replace(" ", "").lower()
    return next((remedy for name, remedy in _REMEDIES.items() if name in text), _REMEDY)


def _brief(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def in_utc(kind: pa.DataType) -> pa.DataType:
    """Spark 4 may label timestamps with the session's zone."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind


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

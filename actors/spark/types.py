"""Spark's column types as Arrow's, and what is refused before Spark is asked to compute anything.

Rules:

1. A column is nullable at the top level whatever Spark says: that promise would not survive an outer join. Timestamps
   with a zone are labelled UTC, whatever the session's zone is: the label of an instant.
2. What has no Arrow type is refused with the column's name, its type and a remedy, also when it is inside another type.
3. Only the DataFrame's public schema is used, so frames of Spark Connect and of Spark 4 will do.
"""

from __future__ import annotations

import warnings
from typing import Any

import pyarrow as pa

from ...engine.errors import ConfigurationError
from ..blocks import nullable

_REMEDIES = {
    "intervalyear": "cast it to a number of months: CAST(column AS INT)",
    "intervalmonth": "cast it to a number of months: CAST(column AS INT)",
    "interval": "build a day-time interval or plain numbers instead of it (make_dt_interval, extract)",
    "variant": "cast it to the type that you expect, or to a string with to_json",
}
_REMEDY = "cast it to a type that Arrow has (a string, a number, a struct of such), or drop it: frame.drop(name)"


def check_frame(frame: Any) -> None:
    """Raise ConfigurationError unless this is a DataFrame whose rows are there to be read once and for all."""
    if not (hasattr(frame, "schema") and hasattr(frame, "mapInArrow") and hasattr(frame, "isStreaming")):
        found = f"{type(frame).__module__}.{type(frame).__qualname__}"
        remedy = "pass a pyspark.sql.DataFrame; flow.from_ray_dataset(…) and flow.from_tables(…) read other things"
        raise ConfigurationError(f"{found} is no Spark DataFrame", remedy)
    if frame.isStreaming:
        remedy = "write the stream to files and read those, or hand over a batch of it (foreachBatch)"
        raise ConfigurationError("a streaming DataFrame has no fixed partitions to hand over", remedy)


def arrow_schema(frame: Any) -> pa.Schema:
    """The Arrow schema that the frame's rows arrive with."""
    names = list(frame.schema.names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"the DataFrame has several columns named {twice[0]!r}", "rename them: frame.toDF(…), or select(… alias …)"
        )
    return nullable(pa.schema([(column.name, _arrow_type(column)) for column in frame.schema]))


def _arrow_type(column: Any) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PySpark 3.5 uses distutils to compare versions
        try:
            return _in_utc(to_arrow_type(column.dataType))
        except Exception as error:
            kind = column.dataType.simpleString()
            raise ConfigurationError(
                f"column {column.name!r} of the DataFrame has type {kind}, which has no Arrow type: {_brief(error)}",
                _remedy(column.dataType.jsonValue()),
            ) from error


def _remedy(kind: object) -> str:
    text = str(kind).replace(" ", "").lower()
    return next((remedy for name, remedy in _REMEDIES.items() if name in text), _REMEDY)


def _brief(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Spark 4 may label timestamps with the session's zone."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind

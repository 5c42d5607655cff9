"""Values of Python, and types of Arrow, as SQL text."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import FlowError

_TYPES: dict[Any, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint8(): "utinyint",
    pa.uint16(): "usmallint",
    pa.uint32(): "uinteger",
    pa.uint64(): "ubigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "varchar",
    pa.binary(): "blob",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("s"): "timestamp_s",
    pa.timestamp("ms"): "timestamp_ms",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("ns"): "timestamp_ns",
    bool: "boolean",
    int: "bigint",
    float: "double",
    str: "varchar",
}
"""What a cast calls them."""


def quoted(name: str) -> str:
    """A name, whatever its characters are."""
    return '"' + name.replace('"', '""') + '"'


def type_text(type: pa.DataType | type | str) -> str:
    """A type in a cast: one of Arrow, a class of Python, or SQL's own name. Raises FlowError."""
    if isinstance(type, str):
        return type
    if isinstance(type, pa.DataType) and pa.types.is_decimal128(type):
        return f"decimal({type.precision}, {type.scale})"
    if (found := _TYPES.get(type)) is None:
        known = ", ".join(str(each) for each in _TYPES if isinstance(each, pa.DataType))
        raise FlowError(f"cast: a cast to {type} has no name in SQL", f"use one of {known}, decimal128")
    return found


def literal_text(value: object) -> str:
    """A value. Raises FlowError for one that SQL text cannot say."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, np.generic):
        value = value.item()
    for kinds, text in _WRITERS:
        if isinstance(value, kinds):
            return text(value)
    message = f"{value!r} ({type(value).__name__}) is no value that an expression can hold"
    raise FlowError(message, "use ps.col, or a plain value")


def _float(value: float) -> str:
    if not math.isfinite(value):
        return f"cast('{value}' as double)"
    text = repr(value)
    return text if "e" in text else f"{text}e0"


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise FlowError(f"{value} is no decimal of SQL", "use a float")
    text = f"{value:f}"
    return text if "." in text else f"cast({text} as decimal({max(len(value.as_tuple().digits), 1)}, 0))"


def _time(value: datetime.datetime) -> str:
    if value.tzinfo is not None:
        raise FlowError(f"{value} has a time zone", "leave it out: value.astimezone(timezone.utc).replace(tzinfo=None)")
    return f"cast('{value}' as timestamp)"


def _struct(value: Mapping[str, object]) -> str:
    return "{" + ", ".join(f"{_text(name)}: {literal_text(each)}" for name, each in value.items()) + "}"


def _text(value: str) -> str:
    if not value.isascii() and any("\ud800" <= each <= "\udfff" for each in value):
        raise FlowError("half a character (a surrogate) is no text", "decode the text whole")
    return "'" + value.replace("'", "''") + "'"


_WRITERS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    (type(None), lambda _: "null"),
    (bool, lambda value: str(value).lower()),
    (int, str),
    (float, _float),
    (Decimal, _decimal),
    (str, _text),
    (datetime.datetime, _time),
    (datetime.date, lambda value: f"cast('{value}' as date)"),
    (datetime.time, lambda value: f"cast('{value}' as time)"),
    (datetime.timedelta, lambda value: f"to_microseconds({value // datetime.timedelta(microseconds=1)})"),
    ((list, tuple), lambda value: "[" + ", ".join(map(literal_text, value)) + "]"),
    (Mapping, _struct),
)

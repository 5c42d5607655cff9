"""Small integers turned into values of every type that can be a key, keeping their order."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

_NAN_FROM = 4
"""Floats: integers from here on all become NaN, the largest value."""


def _as_float(number: int) -> float:
    return float("nan") if number >= _NAN_FROM else number / 2


KEY_TYPES: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int64": (pa.int64(), lambda n: n * 2**40 - 7),
    "wide int64": (pa.int64(), lambda n: (n - 2) * 2**61),
    "uint64": (pa.uint64(), lambda n: 2**62 + n * 2**61),
    "int8": (pa.int8(), lambda n: n - 3),
    "bool": (pa.bool_(), lambda n: n > 2),
    "double": (pa.float64(), _as_float),
    "float": (pa.float32(), _as_float),
    "string": (pa.string(), lambda n: "k" * n),
    "large string": (pa.large_string(), lambda n: f"ä{n}"),
    "binary": (pa.binary(), lambda n: bytes([n * 40])),
    "decimal": (pa.decimal128(20, 2), lambda n: Decimal(n * 3 - 5) / 4),
    "date": (pa.date32(), lambda n: date(1969, 12, 29) + timedelta(days=n)),
    "time": (pa.time32("s"), lambda n: (datetime(2020, 1, 1, tzinfo=UTC) + timedelta(hours=n)).time()),
    "timestamp": (pa.timestamp("us", "UTC"), lambda n: datetime(1969, 12, 31, 22, tzinfo=UTC) + timedelta(hours=n)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), lambda n: f"{n}"),
    "dictionary of decimals": (pa.dictionary(pa.int32(), pa.decimal128(9, 2)), lambda n: Decimal(n - 2)),
    "null": (pa.null(), lambda _: None),
}
"""name -> (type, how an integer from 0 to 5 becomes a value; equal or larger integers give no smaller value)."""


def comparable_values(column: pa.ChunkedArray) -> list[Any]:
    """The values as Python compares them, with NaN equal to NaN."""
    return ["NaN" if isinstance(value, float) and math.isnan(value) else value for value in column.to_pylist()]


def key_column(name: str, numbers: list[int | None]) -> pa.Array:
    """The column of ``numbers`` as the type called ``name``."""
    type, convert = KEY_TYPES[name]
    values = [None if number is None else convert(number) for number in numbers]
    if pa.types.is_dictionary(type):
        return pa.array(values, type.value_type).dictionary_encode().cast(type)
    return pa.array(values, type)

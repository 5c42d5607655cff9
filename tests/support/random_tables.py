"""Tables of many types, with nulls and the values that formats stumble over."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

NAN = float("nan")
WORDS = ("", "a", "eight by", "nine byte", "é" * 30, "x" * 300)

Make = Callable[[Random], Any]


def number(bits: int) -> Make:
    return lambda random: random.randrange(1 << bits)


def bytes_of(size: int) -> Make:
    return lambda random: random.randbytes(size)


def some(inner: Make) -> Make:
    return lambda random: [inner(random) for _ in range(random.randrange(4))]


TYPES: dict[str, tuple[pa.DataType, Make]] = {
    "null": (pa.null(), lambda random: None),
    "bool": (pa.bool_(), lambda random: random.random() < 0.5),
    "int8": (pa.int8(), number(7)),
    "uint32": (pa.uint32(), number(32)),
    "int64": (pa.int64(), lambda random: random.randrange(-(1 << 63), 1 << 63)),
    "uint64": (pa.uint64(), number(64)),
    "half": (pa.float16(), lambda random: random.choice([1.5, -0.0, NAN])),
    "float": (pa.float32(), lambda random: random.choice([0.0, -0.0, NAN, -NAN, 1.5, float("inf")])),
    "double": (pa.float64(), lambda random: random.choice([0.0, -0.0, NAN, random.gauss(0, 1e300)])),
    "time_s": (pa.time32("s"), lambda random: datetime.time(random.randrange(24), 1, 2)),
    "time_ns": (pa.time64("ns"), lambda random: datetime.time(1, 2, 3, random.randrange(10**6))),
    "seconds": (pa.timestamp("s"), number(31)),
    "seconds_zone": (pa.timestamp("s", "Europe/Berlin"), number(31)),
    "nanoseconds": (pa.timestamp("ns"), number(62)),
    "duration": (pa.duration("s"), number(30)),
    "date": (pa.date32(), number(15)),
    "date_ms": (pa.date64(), lambda random: datetime.date(1900 + random.randrange(200), 2, 3)),
    "decimal": (pa.decimal128(20, 2), lambda random: Decimal(random.randrange(-(10**9), 10**9)) / 100),
    "small_decimal": (pa.decimal32(7, 2), lambda random: Decimal(random.randrange(10**6)) / 100),
    "wide_decimal": (pa.decimal256(60, 2), lambda random: Decimal(random.randrange(10**20)) / 100),
    "string": (pa.string(), lambda random: random.choice(WORDS)),
    "large_string": (pa.large_string(), lambda random: random.choice(WORDS)),
    "string_view": (pa.string_view(), lambda random: random.choice(WORDS)),
    "binary": (pa.binary(), lambda random: random.randbytes(random.randrange(20))),
    "fixed": (pa.binary(11), bytes_of(11)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), lambda random: random.choice(WORDS)),
    "dictionary_numbers": (pa.dictionary(pa.int32(), pa.int64()), number(3)),
    "list": (pa.list_(pa.int64()), some(number(2))),
    "large_list": (pa.large_list(pa.timestamp("s")), some(number(31))),
    "fixed_list": (pa.list_(pa.float32(), 2), lambda random: [random.random(), NAN]),
    "struct": (
        pa.struct([("a", pa.timestamp("s")), ("b", pa.large_string())]),
        lambda random: {"a": random.randrange(1 << 31), "b": random.choice([*WORDS, None])},
    ),
    "map": (pa.map_(pa.string(), pa.list_(pa.int64())), lambda random: [("k", some(number(4))(random))]),
}


def random_table(random: Random, rows: int) -> pa.Table:
    """Some rows of all types. A fifth of the values is null."""
    columns = {}
    for name, (type, make) in TYPES.items():
        values = [make(random) if random.random() < 0.8 else None for _ in range(rows)]
        if pa.types.is_dictionary(type):
            columns[name] = pa.array(values, type.value_type).dictionary_encode().cast(type)
        else:
            columns[name] = pa.array(values, type)
    return pa.table(columns)

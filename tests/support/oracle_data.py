"""Generated tables of every type for comparisons with DuckDB, and the comparison itself.

A table is drawn as a *shape* (a seed and a few numbers), so that large tables cost nothing to draw and a failure names
the few numbers that make it. Values come from a pool for each type, in ascending SQL order and with its troublesome
values: NaN, both zeros, bounds of the type, times before 1970, texts with several bytes a character.
"""

from __future__ import annotations

import atexit
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import strategies as st

from support.operator_harness import Units

SIZES = (1, 3, 16, 1024, 100_000)
"""Rows per batch that every operator runs with."""

Row = tuple[Any, ...]

_BEGIN = datetime(1969, 12, 31, 23, 59, 58, 999_999)  # noqa: DTZ001 one of the types has no zone
_INFINITY, _NAN = math.inf, math.nan
_MOMENTS = [
    _BEGIN + timedelta(seconds=step, microseconds=7 * step) for step in (-(10**9), -1, 0, 1, 2, 3, 10**6, 10**9)
]

POOLS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [-(2**63), -(2**40), -1, 0, 1, 7, 2**53, 2**53 + 1, 2**63 - 1]),
    "int32": (pa.int32(), [-(2**31), -5, -1, 0, 1, 2, 3, 1000, 2**31 - 1]),
    "float64": (pa.float64(), [-_INFINITY, -1.5, -0.0, 0.0, 5e-324, 0.1, 1e300, _INFINITY, _NAN]),
    "float32": (pa.float32(), [-_INFINITY, -1.5, -0.0, 0.0, 0.25, 3.0, 1e30, _INFINITY, _NAN]),
    "string": (pa.string(), ["", "A", "a", "aa", "b", "ä", "äa", "日本", "😀"]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", b"a", b"a\0", b"ab", b"\x80", b"\xff", b"\xff\xff"]),
    "decimal": (pa.decimal128(12, 2), [Decimal(n) / 100 for n in (-(10**10), -1, 0, 1, 2, 50, 101, 10**6, 10**10)]),
    "timestamp": (pa.timestamp("us"), _MOMENTS),
    "timestamp with zone": (pa.timestamp("us", "UTC"), [moment.replace(tzinfo=UTC) for moment in _MOMENTS]),
    "date": (pa.date32(), [date(1969, 12, 29) + timedelta(days=n) for n in (-9999, -1, 0, 1, 2, 3, 4, 9999)]),
    "bool": (pa.bool_(), [False, True]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["", "a", "b", "c", "d", "e", "ä"]),
    "struct": (
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        [{"x": x, "y": y} for x in (1, 2, None) for y in ("a", "b", None)],
    ),
    "list": (pa.list_(pa.int32()), [[], [1], [1, 1], [1, 2], [2], [None], [None, 1], [3, None]]),
}
"""name -> type, and values in ascending order (of structs and lists: in some order)."""

ORDERED_TYPES = tuple(name for name in POOLS if name not in {"struct", "list"})
"""The types that have an order: keys of joins and sorts. All can be grouped by."""


@dataclass(frozen=True)
class Shape:
    """What a table is made from. ``distinct``: how many values of its pool a column draws from at most."""

    seed: int
    rows: int
    distinct: int
    nulls: float
    units: int

    def table(
        self, columns: Mapping[str, str], *, clustered: Sequence[str] = (), nulls_anywhere: bool = False
    ) -> pa.Table:
        """Rows with ``columns``: name to type. They are in the order of the columns ``clustered``: with their nulls
        last, or with ``nulls_anywhere`` among the others. Column ``p``: the position of the row."""
        chance = random.Random(self.seed)
        pools = {name: self._pool(chance, type) for name, type in columns.items()}
        if self.nulls and not nulls_anywhere:
            pools.update({name: [*pools[name], None] for name in clustered})
        rows = [[chance.randrange(len(pools[name])) for name in columns] for _ in range(self.rows)]
        if clustered:
            places = [(list(columns).index(name), pools[name]) for name in clustered]
            rows.sort(key=lambda row: [pool.index(pool[row[place]]) for place, pool in places])  # both zeros are one
        made: dict[str, pa.Array] = {}
        for place, (name, type) in enumerate(columns.items()):
            values = [pools[name][row[place]] for row in rows]
            loose = name not in clustered or nulls_anywhere
            if loose:
                values = [None if chance.random() < self.nulls else value for value in values]
            made[name] = array_of(type, values)
        return pa.table({**made, "p": pa.array(range(self.rows), pa.int64())})

    def _pool(self, chance: random.Random, type: str) -> list[Any]:
        values = POOLS[type][1]
        chosen = sorted(chance.sample(range(len(values)), min(self.distinct, len(values))))
        return [values[number] for number in chosen]

    def cut(self, table: pa.Table) -> Units:
        """The rows in up to four units (round, lane), in the order of their tags; some of them may be empty."""
        chance = random.Random(self.seed + 1)
        places = sorted(chance.randint(0, table.num_rows) for _ in range(self.units - 1))
        bounds = [0, *places, table.num_rows]
        where = [(0, 0), (0, 2), (1, 0), (1, 3)][: self.units]
        return {unit: table.slice(bounds[n], bounds[n + 1] - bounds[n]) for n, unit in enumerate(where)}


def array_of(type: str, values: Sequence[Any]) -> pa.Array:
    """The values as a column of the type called so."""
    found = POOLS[type][0]
    if pa.types.is_dictionary(found):
        return pa.array(values, found.value_type).dictionary_encode()
    return pa.array(values, found)


shapes = st.builds(
    Shape,
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([0, 1, 2, 9, 40, 150]),
    distinct=st.sampled_from([1, 2, 4, 9]),
    nulls=st.sampled_from([0.0, 0.2, 1.0]),
    units=st.integers(1, 4),
)


def sizes(shape: Shape) -> Sequence[int]:
    """The rows per batch to try with a table; one of very many rows is not cut into single ones."""
    return SIZES if shape.rows < 1000 else SIZES[3:]


def one_huge_group(rows: int = 20_000) -> Shape:
    """Many rows, in all of which every column has one value."""
    return Shape(seed=5, rows=rows, distinct=1, nulls=0.0, units=2)


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    atexit.register(_connection.cache_clear)  # else it outlives the library that it belongs to, which then complains
    connection.execute("set timezone = 'UTC'")
    return connection


def asked(sql: str, **tables: pa.Table) -> list[Row]:
    """What DuckDB gives for ``sql`` over ``tables``, as :func:`plain` rows."""
    connection = _connection()
    for name, table in tables.items():
        connection.register(name, table)
    try:
        return plain(connection.sql(sql).to_arrow_table())
    finally:
        for name in tables:
            connection.unregister(name)


def plain(table: pa.Table) -> list[Row]:
    """Rows that compare as SQL compares values: NaN equals NaN and both zeros are one; numbers of any type by value."""
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True))


def plain_rows(rows: Sequence[Sequence[Any]]) -> list[Row]:
    """The same of rows of Python values."""
    return [tuple(_plain(value) for value in row) for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple(_plain(each) for each in value.values())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def nearly(rows: Sequence[Row]) -> list[Row]:
    """The rows with floats to nine digits, for sums that may be added in another order."""
    return [tuple(f"{value:.9g}" if isinstance(value, float) else value for value in row) for row in rows]


def unordered(rows: Sequence[Row]) -> list[Row]:
    """The rows in an order of their own, for results whose order SQL does not tell."""
    return sorted(rows, key=repr)

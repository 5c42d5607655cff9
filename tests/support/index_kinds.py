"""The same table as an index of every kind, and a twin of the one in memory that must be waited for."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from adbc_driver_sqlite import dbapi
from pyarrow import parquet

from penstock.engine.flow import index
from penstock.engine.indexes.sql_values import as_sqlite_has

ROW_GROUP = 3

Make = Callable[[Path, pa.Table, Sequence[str]], index.Index]


@dataclass(frozen=True)
class Delayed:
    """An index that says of itself that it must be waited for."""

    inner: index.Index
    blocks: bool = True

    @property
    def schema(self) -> pa.Schema:
        return self.inner.schema

    @property
    def key(self) -> tuple[str, ...]:
        return self.inner.key

    def open(self) -> index.OpenIndex:
        return self.inner.open()

    def fingerprint(self) -> str:
        return self.inner.fingerprint()

    def describe(self) -> str:
        return f"delayed {self.inner.describe()}"


def in_memory(folder: Path, table: pa.Table, key: Sequence[str]) -> index.Index:
    return index.memory(table, key)


def delayed(folder: Path, table: pa.Table, key: Sequence[str]) -> index.Index:
    return Delayed(index.memory(table, key))


def in_parquet(folder: Path, table: pa.Table, key: Sequence[str], cache_bytes: int = 2000) -> index.Index:
    """In two files of small row groups."""
    place = folder / "index"
    place.mkdir(exist_ok=True)
    half = table.num_rows // 2
    for name, part in (("a", table.slice(0, half)), ("b", table.slice(half))):
        parquet.write_table(part, place / f"{name}.parquet", row_group_size=ROW_GROUP)
    return index.parquet(place, key, cache_bytes=cache_bytes)


def write_sqlite(path: Path, table: pa.Table, name: str = "stored") -> None:
    """The table with a column ``"of row"`` that tells the order, its columns without declared types."""
    path.unlink(missing_ok=True)
    columns = [as_sqlite_has(_plain(column)).to_pylist() for column in table.combine_chunks().columns]
    marks = ", ".join("?" * (1 + len(columns)))
    with sqlite3.connect(path) as connection:
        names = ", ".join(f'"{each}"' for each in table.schema.names)
        connection.execute(f'create table {name} ({names}, "of row")')
        rows = zip(*columns, range(table.num_rows), strict=True)
        connection.executemany(f"insert into {name} values ({marks})", rows)
    connection.close()


def _plain(column: pa.ChunkedArray) -> pa.Array:
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def in_sqlite(folder: Path, table: pa.Table, key: Sequence[str]) -> index.Index:
    write_sqlite(folder / "index.db", table)
    return index.sql(folder / "index.db", "stored", key, schema=table.schema, order_by=table.schema.names[-1:])


def through_adbc(folder: Path, table: pa.Table, key: Sequence[str]) -> index.Index:
    write_sqlite(folder / "index.db", table)
    connect = partial(dbapi.connect, str(folder / "index.db"))
    return index.sql(connect, "stored", key, schema=table.schema, order_by=table.schema.names[-1:])


KINDS: dict[str, Make] = {
    "memory": in_memory,
    "delayed": delayed,
    "parquet": in_parquet,
    "sqlite": in_sqlite,
    "adbc": through_adbc,
}

STORED = pa.table({"k": range(100), "v": [number * 10 for number in range(100)]})
INDEX = Delayed(index.memory(STORED, "k"))
SCHEMA = pa.schema([("k", pa.int64())])
"""A table, an index over it that must be waited for, and the schema of what is joined with it."""


def keys(*numbers: int | None) -> pa.RecordBatch:
    """A batch to join with ``INDEX``."""
    return pa.record_batch({"k": pa.array(numbers, pa.int64())}, schema=SCHEMA)

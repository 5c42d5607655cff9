"""DuckDB as the oracle: one database for all tests, one thread, tables given by name."""

from __future__ import annotations

from functools import cache
from typing import Any

import duckdb
import pyarrow as pa


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


def connect() -> duckdb.DuckDBPyConnection:
    """A connection of the caller's own, to be closed. It belongs to a database that is there already: to make one takes
    twenty times as long as a query over a few rows."""
    return _connection().cursor()


def query(sql: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of ``sql`` over ``tables``; floats by their text, as ``operator_harness.rows_of`` gives them."""
    connection = _connection()
    for name, table in tables.items():
        connection.register(name, table)
    try:
        rows = connection.execute(sql).fetchall()
    finally:
        for name in tables:
            connection.unregister(name)
    return [tuple(repr(value) if isinstance(value, float) else value for value in row) for row in rows]


def numbered(table: pa.Table) -> pa.Table:
    """The table with the position of each row in a column ``p``: SQL knows no order otherwise."""
    return table.append_column("p", pa.array(range(table.num_rows), pa.int64()))

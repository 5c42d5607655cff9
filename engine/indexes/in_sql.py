"""An index over a table or query of a database, asked with parameters, a batch of keys at a time.

Rules:

1. Keys go into ``in`` lists of bounded length (through ADBC: bound as an Arrow batch), so the table should have an
   index on its key. A row counts as a match only if its key equals as ``keys.comparable`` has it, whatever the
   database's collation finds equal besides.
2. Matches of a key come in the order of ``order_by``, then of all other columns: a database's own order is none.
3. Lookups on several threads use a connection each. Each sees what is there when it is made: so there is no
   fingerprint, and a table that changes meanwhile makes output depend on time.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.plain_types import plain_schema
from ..core.arguments import checked
from ..core.errors import FlowError
from ..core.schemas import check_columns
from ..expressions.evaluator import single_array
from ..kernels.keys import comparable, compared
from ..operators.join.index_protocol import Found
from .checks import check_key
from .databases import Connect, Connections, as_connect, is_sqlite
from .merging import PartialAnswer, merged
from .sql_values import as_sqlite_has, check_types, parameters, records

MOST_PARAMETERS = 32_000
"""Parameters of one statement: SQLite takes 32,766, PostgreSQL 65,535. (64 Ki keys of 1 M rows in SQLite: 93 ms with
so many, 135 ms with 1,024 at a time.)"""

INFERRED_FROM, MOST_ROWS = "adbc.sqlite.query.batch_rows", 2**30
"""ADBC's driver for SQLite takes the types of an answer from its first batch, so there must be one batch only."""

_DECLARED = (("INT", pa.int64()), ("CHAR", pa.string()), ("CLOB", pa.string()), ("TEXT", pa.string()),
             ("BLOB", pa.binary()), ("REAL", pa.float64()), ("FLOA", pa.float64()), ("DOUB", pa.float64()))  # fmt: skip
"""SQLite's own rule for what a declared type means, where it means one of its storage classes."""


@checked()
def sql_index(
    database: str | os.PathLike[str] | sqlite3.Connection | Connect,
    relation: str,
    key: str | Sequence[str],
    *,
    schema: pa.Schema | None = None,
    order_by: Sequence[str] = (),
    placeholder: Literal["?", "$1"] = "?",
) -> SqlIndex:
    """An index over a table, or over a query (a text that begins with ``select`` or ``with``).

    ``database``: an SQLite file (path or ``sqlite:///path``), or a function without arguments that opens a DB-API
    connection: ``functools.partial(adbc_driver_sqlite.dbapi.connect, "planes.db")``. ``schema``: the columns that are
    wanted, with their types; may be left out for an SQLite table whose columns are declared as integer, real, text or
    blob, and for a table of another database behind ADBC. ``placeholder``: how the database marks parameters ("$1":
    by number).
    """
    connect = as_connect(database)
    known = plain_schema(schema if schema is not None else _told_schema(connect, relation))
    names = check_key("SQL index", known, key, "schema")
    check_columns("SQL index", known, order_by, "schema")
    check_types("SQL index", known)
    if placeholder not in ("?", "$1"):
        raise FlowError(f"SQL index: placeholder is {placeholder!r}", 'give "?" or "$1"')
    return SqlIndex(connect, relation, known, names, tuple(order_by), placeholder)


@dataclass(frozen=True)
class SqlIndex:
    """See :func:`sql_index`."""

    connect: Connect = field(repr=False)
    relation: str
    schema: pa.Schema = field(repr=False)
    key: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    placeholder: Literal["?", "$1"] = "?"

    @property
    def blocks(self) -> bool:
        """Always."""
        return True

    def open(self) -> OpenSqlIndex:
        """The index of one operator, with connections of its own."""
        return OpenSqlIndex(self)

    def fingerprint(self) -> str:
        """None: the table may change at any time."""
        return ""

    def describe(self) -> str:
        """The relation, the key and the columns."""
        order = f" in the order of {', '.join(self.order_by)}" if self.order_by else ""
        return f"index in {self.relation} by {', '.join(self.key)} with {', '.join(self.schema.names)}{order}"


class OpenSqlIndex:
    """See the module's rules. Its methods may be called by several threads at once."""

    def __init__(self, config: SqlIndex) -> None:
        self._config = config
        self._name = f"SQL index on {config.relation}"
        self._schema = config.schema
        self._connections = Connections(config.connect, self._name)
        rest = [name for name in config.schema.names if name not in config.order_by]
        self._order = [(name, "ascending") for name in (*config.order_by, *rest)]
        self._key_names = [_qualified(name) for name in config.key]
        source = f"({config.relation})" if _is_query(config.relation) else _quoted(config.relation)
        self._relation = f"{source} as relation"

    def lookup(self, keys: pa.RecordBatch) -> Found:
        """The rows of the relation that match each key."""
        with self._connections.use() as connection:
            if hasattr(connection, "adbc_get_info"):
                return self._ordered(keys, self._bound(connection, keys))
            parts = list(self._listed(connection, keys))
        return parts[0].found if len(parts) == 1 else merged(parts, keys.num_rows, self._schema)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def _listed(self, connection: Any, keys: pa.RecordBatch) -> Iterator[PartialAnswer]:
        """The answers to some keys after the other, each to one ``in`` list."""
        most = MOST_PARAMETERS // keys.num_columns
        for low in range(0, keys.num_rows, most):
            some = keys.slice(low, most)
            cursor = connection.cursor()
            try:
                cursor.execute(self._statement(some), parameters(some.columns, as_text=is_sqlite(connection)))
                rows = cursor.fetchall()
            finally:
                cursor.close()
            columns = list(zip(*rows, strict=True)) or [()] * len(self._schema)
            found = self._ordered(some, records(columns, self._schema, self._name))
            yield PartialAnswer(np.arange(low, low + some.num_rows), found)

    def _bound(self, connection: Any, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that match, one statement for all keys. Each row brings the key that it was found by, so that one
        that was found by several keys counts once: for the key that it has."""
        wanted = ", ".join(["?"] * keys.num_columns)
        where = " and ".join(f"{name} = ?" for name in self._key_names)
        columns = [as_sqlite_has(column) for column in keys.columns] if is_sqlite(connection) else keys.columns
        twice = pa.RecordBatch.from_arrays([*columns, *columns], [str(n) for n in range(2 * len(columns))])
        cursor = connection.cursor()
        try:
            if is_sqlite(connection):
                cursor.adbc_statement.set_options(**{INFERRED_FROM: str(MOST_ROWS)})
            cursor.execute(f"select {self._columns()}, {wanted} from {self._relation} where {where}", twice)
            found = [single_array(column) for column in cursor.fetch_arrow_table().columns]
        finally:
            cursor.close()
        made = records(found[: len(self._schema)], self._schema, self._name)
        asked = records(found[len(self._schema) :], keys.schema, self._name)
        same = np.ones(made.num_rows, dtype=bool)
        for name, column in zip(self._config.key, asked.columns, strict=True):
            same &= compared("equal", comparable(made.column(name)), comparable(column))
        return made if same.all() else made.filter(pa.array(same))

    def _ordered(self, keys: pa.RecordBatch, found: pa.RecordBatch) -> Found:
        """The answer, with the rows sorted where a key has several."""
        answer = Found.by_key(keys, found, self._config.key)
        if answer.matches.counts.max(initial=0) <= 1:
            return answer
        return Found.by_key(keys, found.take(pc.sort_indices(found, sort_keys=self._order)), self._config.key)

    def _statement(self, keys: pa.RecordBatch) -> str:
        is_numbered = self._config.placeholder == "$1"
        row = ", ".join(["${}" if is_numbered else "?"] * keys.num_columns)
        if keys.num_columns == 1:
            wanted = ", ".join([row] * keys.num_rows)
        else:
            wanted = "values " + ", ".join([f"({row})"] * keys.num_rows)
        if is_numbered:
            wanted = wanted.format(*range(1, 1 + keys.num_rows * keys.num_columns))
        return f"select {self._columns()} from {self._relation} where ({', '.join(self._key_names)}) in ({wanted})"

    def _columns(self) -> str:
        return ", ".join(map(_qualified, self._schema.names))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _qualified(column: str) -> str:
    """A column by its full name: SQLite takes a quoted name that it does not find alone for a text."""
    return f"relation.{_quoted(column)}"


def _is_query(relation: str) -> bool:
    return relation.lower().split(None, 1)[:1] in (["select"], ["with"]) and len(relation.split()) > 1


def _told_schema(connect: Connect, relation: str) -> pa.Schema:
    """The schema of a table, as far as the database declares one."""
    remedy = "say which columns are wanted: schema=pa.schema([…])"
    if _is_query(relation):
        raise FlowError(f"SQL index: the types of the query {relation!r} are not known", remedy)
    connections = Connections(connect, f"SQL index on {relation}")
    try:
        with connections.use() as connection:
            if is_sqlite(connection):
                cursor = connection.cursor()
                cursor.execute("select name, type from pragma_table_info(?)", [relation])
                declared = cursor.fetchall()
                cursor.close()
            elif hasattr(connection, "adbc_get_table_schema"):
                return connection.adbc_get_table_schema(relation)
            else:
                raise FlowError(f"SQL index: the types of {relation} are not known", remedy)
    finally:
        connections.close()
    if not declared:
        raise FlowError(f"SQL index: the database has no table {relation!r}", "check its name; a query needs a schema")
    return pa.schema([(name, _declared_type(name, type, remedy)) for name, type in declared])


def _declared_type(name: str, declared: str, remedy: str) -> pa.DataType:
    for word, type in _DECLARED:
        if word in declared.upper():
            return type
    raise FlowError(f"SQL index: column {name!r} is declared as {declared!r}, which leaves its type open", remedy)

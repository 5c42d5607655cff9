"""The index over a database: how it is named, types, collations, several statements, connections, errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from adbc_driver_sqlite import dbapi

from penstock.engine.core.errors import ConfigurationError, DataError, FlowError, StorageError
from penstock.engine.flow import index
from penstock.engine.indexes import in_sql
from penstock.engine.indexes.databases import Connections

SCHEMA = pa.schema([("code", pa.int64()), ("name", pa.string()), ("weight", pa.float64()), ("picture", pa.binary())])


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "things of mine.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table things (code integer primary key, name text, weight real, picture blob)")
        connection.execute("create index by_name on things (name)")
        connection.executemany("insert into things values (?, ?, ?, ?)", rows(100))
    connection.close()
    return path


def rows(count: int) -> Iterator[tuple[Any, ...]]:
    for code in range(count):
        yield code, f"thing {code % 10}", code / 4, bytes([code])


def told(config: index.SqlIndex, *values: Any) -> list[dict[str, Any]]:
    """The rows that match the keys, key by key."""
    opened = config.open()
    schema = pa.schema([(name, config.schema.field(name).type) for name in config.key])
    arrays = [pa.array(each, type) for each, type in zip(values, schema.types, strict=True)]
    keys = pa.RecordBatch.from_arrays(arrays, schema=schema)
    found = opened.lookup(keys)
    opened.close()
    matches = found.matches
    places = [first + n for first, count in zip(matches.first, matches.counts, strict=True) for n in range(count)]
    rows = places if matches.rows is None else matches.rows[places]
    return [found.records.slice(row, 1).to_pylist()[0] for row in rows]


def test_database_can_be_a_path_a_uri_a_connection_or_a_function(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        names = [database, str(database), f"sqlite:///{database}", connection, partial(sqlite3.connect, database)]
        adbc = partial(dbapi.connect, str(database))
        for name in [*names, adbc]:
            config = index.sql(name, "things", "code")
            assert config.schema.names == SCHEMA.names
            assert told(config, [7, 100])[0]["weight"] == 1.75
    connection.close()
    assert index.sql(database, "things", "code").schema == SCHEMA


def test_query_is_an_index_with_a_schema(database: Path) -> None:
    query = "select code, upper(name) as name from things\nwhere code > 3"
    config = index.sql(database, query, ["name", "code"], schema=SCHEMA.remove(3).remove(2))
    assert told(config, ["THING 5", "THING 1", "thing 5"], [5, 1, 15]) == [{"code": 5, "name": "THING 5"}]


def test_matches_of_a_key_come_in_the_order_asked_for_or_that_of_the_columns(database: Path) -> None:
    falling = "select *, -code as negative from things"
    schema = SCHEMA.append(pa.field("negative", pa.int64()))
    for order, expected in (((), range(3, 100, 10)), (("negative",), range(93, 0, -10))):
        config = index.sql(database, falling, "name", schema=schema, order_by=order)
        assert [row["code"] for row in told(config, ["thing 3"])] == list(expected)


@pytest.mark.parametrize("most", [1, 2, 7])
@pytest.mark.parametrize("key", [("code",), ("name", "code")])
def test_many_keys_are_asked_in_several_statements(
    database: Path, most: int, key: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_sql, "MOST_PARAMETERS", most * len(key))
    codes = [99, 3, 500, 0, 42, 43, 44, 45, 46, 47]
    columns = [codes] if key == ("code",) else [[f"thing {code % 10}" for code in codes], codes]
    found = told(index.sql(database, "things", key), *columns)
    assert [row["code"] for row in found] == [99, 3, 0, 42, 43, 44, 45, 46, 47]


@pytest.mark.parametrize("through", ["sqlite", "adbc"])
def test_what_only_the_database_finds_equal_does_not_match(through: str, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (k text collate nocase, v integer)")
        connection.executemany("insert into t values (?, ?)", [("a", 1), ("A", 2), ("b", 3)])
    connection.close()
    place: Any = path if through == "sqlite" else partial(dbapi.connect, str(path))
    config = index.sql(place, "t", "k", schema=pa.schema([("k", pa.string()), ("v", pa.int64())]))
    assert [row["v"] for row in told(config, ["A", "a", "B"])] == [2, 1]
    assert [row["v"] for row in told(config, ["a"])] == [1]


TYPED = pa.schema([
    ("flag", pa.bool_()), ("day", pa.date32()), ("moment", pa.timestamp("us")),
    ("zoned", pa.timestamp("ms", "Europe/Oslo")),
    ("clock", pa.time64("us")), ("price", pa.decimal128(10, 2)), ("small", pa.int16()), ("large", pa.large_string()),
])  # fmt: skip
VALUES = (
    True, date(2013, 1, 31), datetime(2013, 1, 31, 10, 15, 0, 250000),  # noqa: DTZ001 a column without zone
    datetime(2013, 1, 31, 10, 15, tzinfo=UTC),
    time(10, 15, 1), Decimal("12.50"), -7, "ü",
)  # fmt: skip


@pytest.mark.parametrize("through", ["sqlite", "adbc", "duckdb"])
def test_schema_says_what_the_values_of_a_database_mean(through: str, tmp_path: Path) -> None:
    declared = (
        "flag boolean, day date, moment timestamp, zoned timestamp, clock time, price decimal(10, 2), small smallint"
    )
    text = f"create table t ({declared}, large text)"
    path = tmp_path / "t.db"
    if through == "duckdb":
        with duckdb.connect(path) as writer:
            writer.execute(text)
            stored = [value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in VALUES]
            writer.execute("insert into t values (?, ?, ?, ?, ?, ?, ?, ?)", stored)
        place: Any = partial(duckdb.connect, path, read_only=True)
    else:
        in_text = (1, "2013-01-31", "2013-01-31 10:15:00.250000", "2013-01-31 10:15:00", "10:15:01", "12.50", -7, "ü")
        with sqlite3.connect(path) as connection:
            connection.execute(text)
            connection.execute("insert into t values (?, ?, ?, ?, ?, ?, ?, ?)", in_text)
        connection.close()
        place = path if through == "sqlite" else partial(dbapi.connect, str(path))
    for name, value in zip(TYPED.names, VALUES, strict=True):
        if through == "duckdb" and name == "zoned":
            continue  # its timestamp without zone compares with the session's
        (row,) = told(index.sql(place, "t", name, schema=TYPED), [value])
        assert tuple(row.values()) == VALUES


@pytest.mark.parametrize("placeholder", ["?", "$1"])
def test_database_can_mark_parameters_by_number(placeholder: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    with duckdb.connect(path) as writer:
        writer.execute("create table t as select range as k, range % 3 as m, 'v' || range as v from range(50)")
    schema = pa.schema([("k", pa.int64()), ("m", pa.int64()), ("v", pa.string())])
    place = partial(duckdb.connect, path, read_only=True)
    one = index.sql(place, "t", "k", schema=schema, placeholder=placeholder)
    assert [row["v"] for row in told(one, [30, 70, 4])] == ["v30", "v4"]
    two = index.sql(place, "t", ["m", "k"], schema=schema, placeholder=placeholder)
    assert [row["v"] for row in told(two, [0, 0, 1], [30, 4, 4])] == ["v30", "v4"]


def test_columns_that_begin_with_many_nulls_keep_their_type_through_adbc(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (k integer, v text)")
        connection.executemany("insert into t values (?, ?)", [(n, None if n < 3000 else "late") for n in range(3001)])
    connection.close()
    config = index.sql(partial(dbapi.connect, str(path)), "t", "k")
    assert told(config, range(3001))[-1] == {"k": 3000, "v": "late"}


def test_every_thread_has_a_connection_and_all_are_closed(database: Path) -> None:
    made: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        made.append(sqlite3.connect(database, check_same_thread=False))
        return made[-1]

    connections, meeting = Connections(connect, "it"), Barrier(3, timeout=10)

    def use(_: int) -> int:
        with connections.use() as connection:
            meeting.wait()
            return id(connection)

    with ThreadPoolExecutor(3) as pool:
        for _ in range(4):
            assert len(set(pool.map(use, range(3)))) == 3
    assert len(made) == 3
    with connections.use():
        connections.close()
    for connection in made:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("select 1")


def test_connection_whose_statement_failed_is_not_used_again() -> None:
    made: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        made.append(sqlite3.connect(":memory:"))
        return made[-1]

    connections = Connections(connect, "SQL index on t")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="SQL index on t could not be asked: OperationalError: no such"):
            ask_nonsense(connections)
    assert len(made) == 2


def ask_nonsense(connections: Connections) -> None:
    with connections.use() as connection:
        connection.execute("select * from nowhere")


def test_index_opens_its_file_for_reading_only(database: Path) -> None:
    connection = index.sql(database, "things", "code").connect()
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("delete from things")
    connection.close()


def test_database_that_is_gone_is_an_error_of_the_outside_world(database: Path) -> None:
    config = index.sql(database, "things", "code")
    database.unlink()
    with pytest.raises(StorageError, match=r"SQL index on things could not be asked: (.|\n)*remedy"):
        told(config, [1])
    assert not database.exists()


def test_database_that_is_locked_is_an_error_of_the_outside_world(database: Path) -> None:
    writer = sqlite3.connect(database, isolation_level=None)
    writer.execute("begin exclusive")
    place = partial(sqlite3.connect, database, timeout=0)
    with pytest.raises(StorageError, match="locked"):
        told(index.sql(place, "things", "code", schema=SCHEMA), [1])
    writer.close()


@pytest.mark.parametrize(
    ("schema", "key", "error", "message"),
    [
        (SCHEMA.set(1, pa.field("name", pa.int64())), 1, DataError, "column 'name' holds what is no int64"),
        (SCHEMA.set(1, pa.field("name", pa.bool_())), 1, DataError, "text is no boolean"),
        (SCHEMA.set(1, pa.field("title", pa.string())), 1, ConfigurationError, "no such column: relation.title"),
        (SCHEMA.set(0, pa.field("code", pa.uint64())), 2**63, ConfigurationError, "OverflowError"),
    ],
)
def test_schema_that_the_table_does_not_have_is_an_error_of_the_flow(
    database: Path, schema: pa.Schema, key: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        told(index.sql(database, "things", "code", schema=schema), [key])


def test_nulls_where_the_schema_allows_none_are_an_error_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table t as select 1 as k, null as v")
    connection.close()
    schema = pa.schema([("k", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    with pytest.raises(DataError, match="column 'v' holds nulls"):
        told(index.sql(path, "t", "k", schema=schema), [1])


@pytest.mark.parametrize(
    ("relation", "options", "message"),
    [
        ("nothing", {}, "no table 'nothing'"),
        ("select 1 as code", {}, "types of the query(.|\n)*schema="),
        ("dates", {}, "column 'day' is declared as 'date'(.|\n)*schema="),
        ("things", {"key": "nope"}, "no column 'nope'(.|\n)*code, name"),
        ("things", {"order_by": ["nope"]}, "no column 'nope'"),
        ("things", {"placeholder": "%s"}, "placeholder='%s' does not fit"),
        ("things", {"schema": pa.schema([("code", pa.list_(pa.int8()))])}, "list"),
        ("things", {"schema": SCHEMA.append(pa.field("d", pa.dictionary(pa.int8(), pa.string())))}, "database"),
    ],
)
def test_sql_index_refuses_what_it_cannot_index(
    database: Path, relation: str, options: dict[str, Any], message: str
) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("create table dates (code integer, day date)")
    connection.close()
    with pytest.raises(FlowError, match=message):
        index.sql(database, relation, **{"key": "code", **options})


def test_database_in_memory_or_of_another_kind_is_refused() -> None:
    with pytest.raises(FlowError, match=r"database in memory(.|\n)*ps\.index\.memory"):
        index.sql(sqlite3.connect(":memory:"), "t", "k")
    with pytest.raises(FlowError, match=r"'postgresql' is no database(.|\n)*a function"):
        index.sql("postgresql://somewhere/db", "t", "k")

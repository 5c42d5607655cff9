"""A text where several names are wanted is one name, never its letters: wherever the public API takes names."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, ipc, parquet

import penstock as ps
from penstock.engine.sources.csv import CsvSource
from penstock.engine.sources.ipc import IpcSource
from penstock.engine.sources.parquet import ParquetSource

ROWS = pa.table({"ab": [1, 2], "a": [7, 7], "b": [9, 9]})
"""The letters of a name are columns as well."""


def streams() -> tuple[ps.Stream, ps.Stream]:
    flow = ps.Flow("letters")
    return flow.from_tables([ROWS]), flow.from_tables([ROWS])


def one() -> ps.Stream:
    return streams()[0]


def joined(join: Callable[[ps.Stream, ps.Stream], ps.Stream]) -> str:
    return join(*streams()).flow.describe()


CALLS: dict[str, Callable[[Any, Path], Any]] = {
    "hash_join": lambda names, _: joined(lambda left, right: left.hash_join(right, names)),
    "hash_join right_on": lambda names, _: joined(lambda left, right: left.hash_join(right, ["a"], right_on=names)),
    "merge_join": lambda names, _: joined(lambda left, right: left.merge_join(right, names)),
    "lookup_join": lambda names, _: one().lookup_join(ps.index.memory(ROWS, ["ab"]), names).flow.describe(),
    "aggregate": lambda names, _: one().aggregate(names, n="count").schema,
    "stream_aggregate": lambda names, _: one().stream_aggregate(names, n="count").schema,
    "window by": lambda names, _: one().window(names, n="row_number").flow.describe(),
    "window order_by": lambda names, _: one().window(["a"], order_by=names, n="row_number").flow.describe(),
    "partition_by": lambda names, _: one().partition_by(names).partitioned_by,
    "read_parquet": lambda names, folder: ps.Flow("f").read_parquet(folder / "in.parquet", columns=names).schema,
    "read_csv": lambda names, folder: ps.Flow("f").read_csv(folder / "in.csv", null_values=names).flow.describe(),
    "CsvSource": lambda names, folder: CsvSource(folder / "in.csv", columns=names).schema,
    "CsvSource null_values": lambda names, folder: CsvSource(folder / "in.csv", null_values=names),
    "IpcSource": lambda names, folder: IpcSource(folder / "in.arrow", columns=names).schema,
    "ParquetSource": lambda names, folder: ParquetSource(folder / "in.parquet", columns=names).schema,
    "index.memory": lambda names, _: ps.index.memory(ROWS, names).key,
    "index.parquet": lambda names, folder: ps.index.parquet(folder / "in.parquet", names).key,
    "index.parquet columns": lambda names, folder: ps.index.parquet(folder / "in.parquet", "ab", columns=names).schema,
    "index.sql": lambda names, folder: ps.index.sql(folder / "in.db", "t", names, order_by=names),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("letters")
    csv.write_csv(ROWS, place / "in.csv")
    parquet.write_table(ROWS, place / "in.parquet")
    with ipc.new_file(place / "in.arrow", ROWS.schema) as writer:
        writer.write_table(ROWS)
    database = sqlite3.connect(place / "in.db")
    database.execute("create table t (ab integer, a integer, b integer)")
    database.close()
    return place


@pytest.mark.parametrize("what", CALLS)
def test_a_text_is_one_name(what: str, folder: Path) -> None:
    assert CALLS[what]("ab", folder) == CALLS[what](["ab"], folder)


def test_a_join_by_a_name_of_two_letters_is_a_join_by_that_column() -> None:
    left, right = streams()
    left.hash_join(right, "ab").collect("out")
    assert ps.run_local(left.flow).wait().result("out").num_rows == 2

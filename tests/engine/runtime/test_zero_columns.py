"""Rows without columns are refused where they would come to be: no file and no message keeps their number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.core.errors import FlowError

TABLE = pa.table({"a": [1, 2, 3]})
EMPTY = TABLE.select([])


def stream() -> ps.Stream:
    return ps.Flow("columns").from_tables([TABLE])


def ipc_file() -> str:
    with pa.ipc.new_file("rows.arrow", EMPTY.schema) as writer:
        writer.write_table(EMPTY)
    return "rows.arrow"


def parquet_file(table: pa.Table) -> str:
    pq.write_table(table, "rows.parquet")
    return "rows.parquet"


MADE: dict[str, Callable[[], object]] = {
    "tables": lambda: ps.Flow("columns").from_tables([EMPTY]),
    "split sets": lambda: ps.Flow("columns").from_split_sets(EMPTY.schema, name="in"),
    "an IPC file": lambda: ps.Flow("columns").read_ipc(ipc_file()),
    "a Parquet file": lambda: ps.Flow("columns").read_parquet(parquet_file(EMPTY)),
    "no column of a Parquet file": lambda: ps.Flow("columns").read_parquet(parquet_file(TABLE), columns=[]),
    "a function": lambda: stream().map_batches(lambda records: records.select([]), EMPTY.schema),
    "a projection": lambda: stream().project(),
    "an aggregation": lambda: stream().aggregate([]),
}


@pytest.mark.parametrize("made", MADE)
def test_rows_without_columns_are_refused(made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FlowError, match="no column"):
        MADE[made]()


def test_rows_are_counted_though_no_column_is_needed() -> None:
    flow = ps.Flow("columns")
    flow.from_tables([TABLE, TABLE]).aggregate([], n="count").collect("out")
    assert ps.run_local(flow).wait(30).result("out").to_pylist() == [{"n": 6}]

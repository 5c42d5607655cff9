"""Columns of more than 2 GiB through operators that put rows together: all rows come out, or a clear error, at once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.engine.core.errors import DataError

MB = 1 << 20
SPLITS, PER_SPLIT = 36, 64
ROWS = SPLITS * PER_SPLIT
PATIENCE = 240

Made = Callable[[ps.Flow, ps.Stream], ps.Stream]


def tables() -> list[pa.Table]:
    """2.25 GiB in one column; all splits share their bytes."""
    blobs = pa.array([b"x" * MB] * PER_SPLIT)
    first = range(0, ROWS, PER_SPLIT)
    return [pa.table({"n": pa.array(range(at, at + PER_SPLIT), pa.int64()), "b": blobs}) for at in first]


def others(flow: ps.Flow) -> ps.Stream:
    return flow.from_tables(pa.table({"m": pa.array(range(ROWS), pa.int64())}), name="others")


def built(flow: ps.Flow, rows: ps.Stream) -> ps.Stream:
    return others(flow).hash_join(rows, ["m"], right_on=["n"])


def indexed(flow: ps.Flow, rows: ps.Stream) -> ps.Stream:
    return rows.lookup_join(
        ps.index.memory(pa.table({"m": pa.array(range(ROWS), pa.int64()), "x": [1] * ROWS}), "m"), ["n"]
    )


OPERATORS: dict[str, Made] = {
    "sort": lambda flow, rows: rows.sort(ps.SortKey("n", descending=True)),
    "shuffle": lambda flow, rows: rows.shuffle(ROWS),
    "window": lambda flow, rows: rows.window([], ["n"], before=("b", "lag")).project("n", "before"),
    "hash join, large side built": built,
    "lookup": indexed,
    "first": lambda flow, rows: rows.aggregate(["n"], b=("b", "first")),
    "collect list": lambda flow, rows: rows.aggregate([], all=("b", "collect_list"), n=("n", "count")),
    "top n": lambda flow, rows: rows.top_n(ROWS, "n"),
    "distinct": lambda flow, rows: rows.distinct("n"),
    "partition by": lambda flow, rows: rows.partition_by("n"),
}


@pytest.mark.large
@pytest.mark.timeout(600)
@pytest.mark.parametrize("operator", OPERATORS)
def test_rows_with_more_than_an_array_holds_are_all_there_or_the_operator_says_so(
    operator: str, tmp_path: Path
) -> None:
    flow = ps.Flow("large", lanes=2)
    made = OPERATORS[operator](flow, flow.from_tables(tables(), name="rows"))
    made.write_parquet(tmp_path / "out", compression="zstd")
    job = ps.run_local(flow, checkpoints=tmp_path / "state")
    refused: DataError | None = None
    try:
        job.wait(PATIENCE)
    except DataError as error:
        refused = error
    gc.collect()
    if refused is not None:
        assert "large_" in refused.remedy, refused
        assert not list((tmp_path / "out").glob("*.parquet"))
        return
    assert job.status().restarts == 0
    found = ds.dataset(tmp_path / "out")
    if operator == "collect list":
        assert found.to_table(columns=["n"]).column("n").to_pylist() == [ROWS]
        return
    key = found.to_table(columns=[found.schema.names[0]]).column(0).to_pylist()
    assert sorted(key) == list(range(ROWS))

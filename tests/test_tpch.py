"""The 22 queries of TPC-H give DuckDB's rows in DuckDB's order: on texts and on string_view, with one subtask and two,
with compiled kernels and without them. ``benchmarks/tpch.py`` does the same at scale 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest
from tpch_data import write_look_alike
from tpch_queries import NAMES, QUERIES, flow_of
from tpch_rows import Rows, difference, texts, told

import penstock as ps
from penstock.engine.kernels import native
from support.sweeps import swept

PATIENCE = 60.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """The tables with strings, and with views of strings."""
    made = []
    for views in (False, True):
        made.append(tmp_path_factory.mktemp("tpch"))
        write_look_alike(made[-1], views=views)
    return made


@pytest.fixture(scope="module")
def known(folders: Sequence[Path]) -> Sequence[Rows]:
    with duckdb.connect() as connection:
        for name in NAMES:
            connection.execute(f"create view {name} as from read_parquet('{folders[0]}/{name}.parquet')")
        return [told(connection.execute(text).fetchall()) for text in texts()]


def test_there_is_a_text_for_each_query_and_rows_to_compare(known: Sequence[Rows]) -> None:
    assert len(known) == len(QUERIES) == 22
    assert all(known)


@pytest.mark.parametrize(
    ("parallelism", "views", "compiled"), [(1, False, True), (1, True, False), (2, True, True), swept(2, False, False)]
)
def test_every_query_gives_the_rows_of_duckdb(
    folders: Sequence[Path],
    known: Sequence[Rows],
    parallelism: int,
    views: bool,
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not compiled:
        monkeypatch.setattr(native, "_kernels", None)
    for number in range(1, len(QUERIES) + 1):
        flow = flow_of(number, folders[views], "key" if parallelism > 1 else "gather")
        table = ps.run_local(flow, parallelism=parallelism).wait(PATIENCE).result("rows")
        found = told(row.values() for row in table.to_pylist())
        assert difference(found, known[number - 1]) is None, f"query {number}"


def test_a_difference_is_told_by_its_row() -> None:
    rows = told([[1, 2.5, "a"], [2, None, "b"]])
    assert difference(rows, told([[1, 2.5 + 1e-12, "a"], [2, None, "b"]])) is None
    assert difference(rows, rows[:1]) == "2 rows instead of 1"
    assert difference(rows, [rows[0], [2, 0.0, "b"]]) == "row 1 is [2, None, 'b'] instead of [2, 0.0, 'b']"
    assert difference([["1"]], [["1.0"]]) is not None, "texts are not numbers"

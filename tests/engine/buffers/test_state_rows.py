"""Rows of a state that was written with other columns: of a changed flow, or before columns were pruned."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.buffers.state_rows import fitted, rows_of_state
from penstock.engine.core.errors import ConfigurationError

ROWS = pa.array([{"k": 1, "v": 10, "w": 100}, {"k": 2, "v": 20, "w": 200}])


def schema(*names: str, **types: pa.DataType) -> pa.Schema:
    return pa.schema([(name, types.get(name, pa.int64())) for name in names])


def test_columns_are_found_by_name() -> None:
    assert rows_of_state(ROWS, schema("w", "k")).to_pydict() == {"w": [100, 200], "k": [1, 2]}
    assert rows_of_state(ROWS, schema("k", "v", "w")).to_pydict() == {"k": [1, 2], "v": [10, 20], "w": [100, 200]}
    assert rows_of_state(ROWS, schema()).num_rows == 2


def test_columns_of_one_name_go_by_position_as_they_were() -> None:
    twice = schema("k", "k")
    columns = [pa.array([1]), pa.array([2])]
    assert fitted(list(twice), columns, twice).columns == columns
    with pytest.raises(ConfigurationError, match="needs 'k'"):
        fitted(list(twice), columns, schema("k"))


def test_a_column_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"columns k, v, w, and the flow now needs 'x'"):
        rows_of_state(ROWS, schema("k", "x"))


def test_as_many_columns_of_the_same_types_are_not_taken_for_each_other() -> None:
    assert rows_of_state(ROWS, schema("w", "k", "v")).to_pydict() == {"w": [100, 200], "k": [1, 2], "v": [10, 20]}
    with pytest.raises(ConfigurationError, match=r"the flow now needs 'x'"):
        rows_of_state(ROWS, schema("k", "v", "x"))


def test_a_column_of_another_type_is_named_with_both() -> None:
    with pytest.raises(ConfigurationError, match=r"'v' as int64, the flow now has it as string"):
        rows_of_state(ROWS, schema("k", "v", v=pa.string()))


TABLES = [pa.table({"k": [n % 7], "v": [n], "w": [1000 + n], "x": [n]}) for n in range(200)]


def flow(folder: Path, *columns: str, rate: float = 0.0) -> ps.Flow:
    """A flow that sorts, and needs these columns behind it."""
    made = ps.Flow("changing", round_rows=1)
    made.from_tables(TABLES, name="rows", rate=rate).sort("k", "v", name="sorted").project(*columns).write_parquet(
        folder / "out", name="out"
    )
    return made


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A savepoint of such a flow amid its rows, with none in flight: it needs three of four columns."""
    folder = tmp_path_factory.mktemp("saved")
    job = ps.run_local(flow(folder, "k", "v", "w", rate=20.0), parallelism=1, checkpoints=folder / "first")
    job.wait_until(lambda status: status.state == "running")
    while not any(source.rows for source in job.audit().sources):
        job.savepoint(timeout=60)
    return str(job.stop(timeout=60, aligned=True).path)


@pytest.mark.parametrize("columns", [("k", "v"), ("k", "w", "v"), ("v", "k")])
def test_a_changed_flow_takes_the_columns_that_it_still_needs(
    saved: str, tmp_path: Path, columns: tuple[str, ...]
) -> None:
    changed = flow(tmp_path, *columns)
    ps.run_local(changed, checkpoints=tmp_path / "second", from_snapshot=saved, allow_changes=True).wait(60)
    rows = pa.concat_tables(TABLES).sort_by([("k", "ascending"), ("v", "ascending")]).select(columns)
    assert pq.read_table(tmp_path / "out").equals(rows)


def test_a_changed_flow_that_needs_another_column_is_refused(saved: str, tmp_path: Path) -> None:
    changed = flow(tmp_path, "k", "v", "x")
    with pytest.raises(ConfigurationError, match=r"sorted: .* the flow now needs 'x'"):
        ps.run_local(changed, checkpoints=tmp_path / "second", from_snapshot=saved, allow_changes=True).wait(60)

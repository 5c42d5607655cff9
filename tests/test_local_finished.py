"""What an operator of the user's emits at its end comes once, whatever a job goes on from after that."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest

import penstock as ps
from support.engine_simulation_flows import numbers
from support.trailer_flows import Trailer

PATIENCE = 60
SHORT, LONG, REST = (3, 2, 4, 1), (9, 9, 1, 0) * 24, (4,) * 64
"""Rows of the splits. Of the long ones lanes 2 and 3 end long before the others."""


def flow_of(output: Path, rate: float = 0.0) -> ps.Flow:
    """A short branch that feeds a join and ends within a task that goes on, and a long one whose subtasks end one after
    the other; operators emit a row for each lane at their end."""
    flow = ps.Flow("ends", lanes=4)
    few = flow.apply(Trailer(), [flow.from_tables(numbers(SHORT), name="few")], name="few-end").gather()
    few = flow.apply(Trailer(), [few], name="all-few-end")
    few.write_parquet(output / "few", name="few-rows")
    many = flow.from_tables(numbers(LONG), name="many", rate=rate)
    flow.apply(Trailer(), [many], name="many-end").write_parquet(output / "many", name="many-rows")
    rest = flow.from_tables(numbers(REST), name="rest", rate=rate).gather()
    joined = rest.hash_join(few.project(split="split", other="x"), on=["split"], how="left")
    flow.apply(Trailer(counts=False), [joined.project("split", "x", "key")], name="joined-end").write_parquet(
        output / "joined", name="joined-rows"
    )
    return flow


PARTS = ("few", "many", "joined")


def read(output: Path) -> list[list[tuple[int, ...]]]:
    tables = [ds.dataset(output / part).to_table() for part in PARTS]
    return [sorted(zip(*(column.to_pylist() for column in table.columns), strict=True)) for table in tables]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[int, ...]]]:
    output = tmp_path_factory.mktemp("undisturbed")
    ps.run_local(flow_of(output)).wait(PATIENCE)
    return read(output)


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4])
def test_job_that_goes_on_from_a_savepoint_or_a_checkpoint_behind_some_ends(
    tmp_path: Path, undisturbed: list[list[tuple[int, ...]]], parallelism: int
) -> None:
    checkpoints = ps.Checkpoints(tmp_path / "a", every="50ms")
    job = ps.run_local(flow_of(tmp_path / "out", 400.0), parallelism=2, checkpoints=checkpoints)
    job.wait_until(
        lambda status: any(task.vertex == "few" and state == "finished" for task, state in status.tasks.items()),
        PATIENCE,
    )
    saved = job.stop(timeout=PATIENCE)
    few, many, _ = read(tmp_path / "out")
    assert few == undisturbed[0]
    assert len(many) < len(undisturbed[1])
    options = {"parallelism": parallelism, "checkpoints": ps.Checkpoints(tmp_path / "b", every="50ms")}
    job = ps.run_local(flow_of(tmp_path / "out", 1000.0), from_snapshot=saved.path, **options)
    job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
    job.cancel()
    job.wait(PATIENCE)
    options["parallelism"] = 5 - parallelism
    assert ps.run_local(flow_of(tmp_path / "out"), **options).wait(PATIENCE).audit().clean
    assert read(tmp_path / "out") == undisturbed

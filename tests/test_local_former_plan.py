"""A job whose newest checkpoint is of another plan of the same flow, as another version of Penstock has made it."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

import penstock as ps
from penstock.actors.protocol import translate
from penstock.actors.storage.log import read_log_in
from penstock.coordinator.model.manifest import Manifest
from penstock.coordinator.restore.stored_channels import fits, flights, former_of
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.core.identity import CheckpointId
from penstock.engine.planner import stages
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.runtime import driver_shape

PATIENCE = 60.0
ROWS = 1_500


CALLED, OPENED = threading.Event(), threading.Event()


def held(batch: pa.RecordBatch) -> pa.RecordBatch:
    CALLED.set()
    assert OPENED.wait(PATIENCE)
    return batch


def flow_into(out: Path) -> ps.Flow:
    flow = ps.Flow("plans", lanes=4)
    parts = [pa.table({"x": range(first, first + 10)}) for first in range(0, ROWS, 10)]
    rows = flow.from_tables(parts, name="rows").partition_by("x", name="by-x")
    rows.map_batches(held, schema=pa.schema({"x": pa.int64()}), batch_size=10, name="held").gather().write_parquet(out)
    return flow


def killed(folder: Path) -> None:
    """A job that was broken off while a function had rows, far from its end."""
    CALLED.clear()
    OPENED.clear()
    checkpoints = ps.Checkpoints(folder / "state", every=None)
    with ps.run_local(flow_into(folder / "out"), parallelism=2, checkpoints=checkpoints, rate=100) as job:
        assert CALLED.wait(PATIENCE)
        job.checkpoint(PATIENCE)
        OPENED.set()
    entries = read_log_in(str(folder / "state"), "plans")
    newest = [entry for entry in entries if isinstance(entry, Manifest)][-1]
    assert flights(newest)


def go_on(folder: Path) -> Any:
    return ps.run_local(flow_into(folder / "out"), parallelism=2, checkpoints=ps.Checkpoints(folder / "state"))


def test_job_goes_on_in_its_own_folder_where_each_driver_has_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(translate, "_shape", lambda *_: "of another version")
        killed(tmp_path)
    with go_on(tmp_path) as job:
        job.wait(PATIENCE)
        assert job.status().restarts == 0
    assert sorted(pq.read_table(tmp_path / "out").column("x").to_pylist()) == list(range(ROWS))


def test_job_is_refused_where_rows_are_in_flight_that_have_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = driver_shape._port
    with monkeypatch.context() as patched:
        patched.setattr(driver_shape, "_port", lambda *given: driver_shape.PartShape(port(*given).name, "another"))
        killed(tmp_path)
    with pytest.raises(ConfigurationError, match="in flight where this version of Penstock plans") as raised:
        go_on(tmp_path)
    assert " rows at " in raised.value.message
    assert "with the version that it ran with" in raised.value.remedy
    assert "aligned=True" in raised.value.remedy


def test_a_state_is_found_though_its_stage_had_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flow() -> ps.Flow:
        flow = ps.Flow("plans", lanes=1)
        parts = [pa.table({"x": range(first, first + 10)}) for first in range(0, ROWS, 10)]
        flow.from_tables(parts, name="rows").filter(ps.col("x") >= 0).write_parquet(tmp_path / "out")
        return flow

    def run(**options: Any) -> Any:
        return ps.run_local(
            flow(), parallelism=1, checkpoints=ps.Checkpoints(tmp_path / "state", every=None), **options
        )

    named = stages.LiveGraph._stages

    def renamed(graph: Any) -> list[stages.Stage]:
        found = list(named(graph))
        for stage in found:
            stage.name = f"former {stage.name}"
        return found

    with monkeypatch.context() as patched:
        patched.setattr(stages.LiveGraph, "_stages", renamed)
        with run(rate=100) as job:
            while not list((tmp_path / "out").glob("*.parquet")):
                job.checkpoint(PATIENCE)
    with run() as job:
        job.wait(PATIENCE)
    assert sorted(pq.read_table(tmp_path / "out").column("x").to_pylist()) == list(range(ROWS))


def test_job_is_refused_where_a_state_was_of_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state_of = translate._state_of
    with monkeypatch.context() as patched:
        patched.setattr(translate, "_shape", lambda *_: "of another version")
        patched.setattr(translate, "_state_of", lambda *given: tuple("another" for _ in state_of(*given)))
        killed(tmp_path)
    with pytest.raises(ConfigurationError, match=r"cannot go on .* holds for '.*' another"):
        go_on(tmp_path)


def test_only_the_checkpoint_that_was_looked_at_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former run may make another one before the next run has claimed the job."""
    with monkeypatch.context() as patched:
        patched.setattr(translate, "_shape", lambda *_: "of another version")
        killed(tmp_path)
    newest = [entry for entry in read_log_in(str(tmp_path / "state"), "plans") if isinstance(entry, Manifest)][-1]
    graph = dataclasses.replace(
        translate.execution_graph(plan_job(flow_into(tmp_path / "out"), 2)), former_shape=former_of(newest)
    )
    assert fits(graph, newest)
    behind = CheckpointId(newest.checkpoint.generation, newest.checkpoint.number + 1)
    assert not fits(graph, structs.replace(newest, checkpoint=behind))

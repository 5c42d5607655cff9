"""A job whose newest checkpoint holds what was in flight goes on at its former parallelism for one checkpoint more."""

from __future__ import annotations

import logging
import shutil
import threading
import time

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.actors.client import moving
from penstock.actors.storage.log import read_log_in
from penstock.coordinator.checkpoint import finalizer
from penstock.coordinator.model.manifest import Claim, Manifest
from penstock.coordinator.restore.stored_channels import flights
from penstock.engine.core.errors import ConfigurationError
from penstock.jobs import local_run

PATIENCE = 60.0
ROWS = 20_000


def flow_into(folder):
    flow = ps.Flow("moves", lanes=4)
    parts = [pa.table({"x": range(first, first + 10)}) for first in range(0, ROWS, 10)]
    flow.from_tables(parts, name="rows").filter("x >= 0").gather().write_parquet(folder)
    return flow


def parallelism_of(folder):
    """Of the coordinators' checkpoints, by generation."""
    entries = read_log_in(str(folder), "moves")
    assert [entry.generation for entry in entries if isinstance(entry, Claim)] == [1, 2, 3]
    manifests = [entry for entry in entries if isinstance(entry, Manifest)]
    return {manifest.checkpoint.generation: max(manifest.parallelism.values()) for manifest in manifests}


def test_job_moves_to_another_parallelism_by_way_of_its_former_one(tmp_path, monkeypatch, caplog):
    """As if every checkpoint held something in flight that only its own parallelism can go on with."""
    state, out = tmp_path / "state", tmp_path / "out"
    kept = ps.Checkpoints(state, every=None, retained=9)
    job = ps.run_local(flow_into(out), parallelism=3, checkpoints=kept, rate=4000)
    job.checkpoint(PATIENCE)
    job.cancel()
    job.wait(PATIENCE)
    flying = {1: ["something"]}
    monkeypatch.setattr(finalizer, "flights", lambda manifest: flying.get(manifest.checkpoint.generation, []))
    monkeypatch.setattr(moving, "fits", lambda graph, manifest: manifest.parallelism == dict(graph.parallelism))
    with caplog.at_level(logging.WARNING), ps.run_local(flow_into(out), parallelism=2, checkpoints=kept) as job:
        job.wait(PATIENCE)
    assert "parallelism 3; it goes on there" in caplog.text
    assert parallelism_of(state) == {1: 3, 2: 3, 3: 2}
    assert sorted(pq.read_table(out).column("x").to_pylist()) == list(range(ROWS))


@pytest.mark.parametrize("parallelism", [2, 3])
def test_job_with_nothing_in_flight_starts_at_once(tmp_path, parallelism):
    state, out = tmp_path / "state", tmp_path / "out"
    aligned = ps.Checkpoints(state, alignment="aligned")
    job = ps.run_local(flow_into(out), parallelism=3, checkpoints=aligned, rate=4000)
    job.checkpoint(PATIENCE)
    job.cancel()
    job.wait(PATIENCE)
    with ps.run_local(flow_into(out), parallelism=parallelism, checkpoints=state) as job:
        job.wait(PATIENCE)
    claims = [entry for entry in read_log_in(str(state), "moves") if isinstance(entry, Claim)]
    assert len(claims) == 2
    assert pq.read_table(out).num_rows == ROWS


def test_error_on_the_way_says_why_the_job_was_in_its_former_shape(tmp_path, monkeypatch):
    def no_room(plan, place, threads, start, *, take_over):
        assert (plan.parallelism["rows"], place.settings.moves) == (3, True)
        raise ConfigurationError("the cluster has no room")

    monkeypatch.setattr(moving, "_former_parallelism", lambda plan, place, path: 3)
    monkeypatch.setattr(local_run, "start_job", no_room)
    with pytest.raises(ConfigurationError, match="no room") as found:
        ps.run_local(flow_into(tmp_path / "out"), parallelism=2, checkpoints=tmp_path / "state")
    assert "on its way from parallelism 3" in found.value.__notes__[0]


def ordered(folder):
    parts = sorted(folder.rglob("*.parquet"))
    return [value for part in parts for value in pq.read_table(part).column("x").to_pylist()]


def test_rows_in_flight_go_on_in_their_order_after_savepoint_stop_and_another_parallelism(tmp_path):
    def at(name):
        return ps.Checkpoints(tmp_path / name, every="100ms")

    out, uncut = tmp_path / "out", tmp_path / "uncut"
    job = ps.run_local(flow_into(out), parallelism=2, checkpoints=at("first"), rate=8000)
    job.checkpoint(PATIENCE)
    job.savepoint(timeout=PATIENCE)
    stopped = job.stop(timeout=PATIENCE)
    job = ps.run_local(flow_into(out), parallelism=2, checkpoints=at("second"), from_snapshot=stopped.path, rate=8000)
    job.checkpoint(PATIENCE)
    job.cancel()
    job.wait(PATIENCE)
    with ps.run_local(flow_into(out), parallelism=3, checkpoints=at("second")) as job:
        job.wait(PATIENCE)
    with ps.run_local(flow_into(uncut), parallelism=2, rate=1e9) as job:
        job.wait(PATIENCE)
    assert ordered(out) == ordered(uncut)


def apart_into(folder, told):
    def passed_on(batch):
        told.set()
        time.sleep(0.0005 * batch.num_rows)
        return batch

    flow = ps.Flow("moves", lanes=4)
    parts = [pa.table({"x": range(first, first + 10)}) for first in range(0, 4_000, 10)]
    rows = flow.from_tables(parts, name="rows").filter("x >= 0").map_batches(passed_on, schema=parts[0].schema)
    rows.filter("x % 7 <> 0").write_parquet(folder)
    return flow


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (4, 1)])
def test_rows_in_flight_of_a_flow_without_exchange_go_with_their_lanes(tmp_path, caplog, before, after):
    state, out = tmp_path / "state", tmp_path / "out"
    kept = ps.Checkpoints(state, every=None, retained=9)
    told = threading.Event()
    with ps.run_local(apart_into(out, told), parallelism=before, checkpoints=kept) as job:
        assert told.wait(PATIENCE), "rows are read ahead of the function"
        job.checkpoint(PATIENCE)
        job.cancel()
        job.wait_until(lambda status: status.is_over, PATIENCE)
    (cut,) = [entry for entry in read_log_in(str(state), "moves") if isinstance(entry, Manifest)]
    assert sum(handle.rows for handle in flights(cut)) > len(cut.tasks), "rows are in flight, not only places"
    with caplog.at_level(logging.INFO), ps.run_local(apart_into(out, told), parallelism=after, checkpoints=kept) as job:
        job.wait(PATIENCE)
    assert f"goes, lane by lane, to tasks of parallelism {after}" in caplog.text
    assert len([entry for entry in read_log_in(str(state), "moves") if isinstance(entry, Claim)]) == 2
    found = [value for part in sorted(out.rglob("*.parquet")) for value in pq.read_table(part).column("x").to_pylist()]
    assert sorted(found) == [value for value in range(4_000) if value % 7]


def test_what_a_changed_flow_took_over_does_not_move_before_its_first_checkpoint(tmp_path, caplog):
    """Its lanes could take it with them, but the places are those of another flow."""
    out, told, opened = tmp_path / "out", threading.Event(), threading.Event()
    parts = [pa.table({"x": range(first, first + 10)}) for first in range(0, 400, 10)]

    def passed_on(batch):
        told.set()
        assert opened.wait(PATIENCE)
        return batch

    def flow(*, changed):
        flow = ps.Flow("moves", lanes=4)
        rows = flow.from_tables(parts, name="rows").filter("x >= 0", name="all")
        rows = rows.map_batches(passed_on, schema=parts[0].schema, name="passed")
        rows.write_parquet(out / "rows", name="written")
        rows.filter("x < 10", name="begin").write_parquet(out / "first", name="few")
        if changed:
            rows.filter("x >= 390", name="last").write_parquet(out / "last", name="more")
        return flow

    def at(name):
        return ps.Checkpoints(tmp_path / name, every=None, retention="always")

    with ps.run_local(flow(changed=False), parallelism=2, checkpoints=at("first")) as job:
        assert told.wait(PATIENCE)
        saved = job.savepoint(tmp_path / "mine", timeout=PATIENCE).path
        job.cancel()
        opened.set()
        job.wait(PATIENCE)
    shutil.rmtree(tmp_path / "first")
    opened.clear()
    told.clear()
    options = {"checkpoints": at("second"), "from_snapshot": saved, "allow_changes": True}
    with ps.run_local(flow(changed=True), parallelism=2, **options) as job:
        assert told.wait(PATIENCE)
        job.cancel()
        opened.set()
        job.wait_until(lambda status: status.is_over, PATIENCE)
    with (
        caplog.at_level(logging.INFO),
        ps.run_local(flow(changed=True), parallelism=3, checkpoints=at("second")) as job,
    ):
        job.wait(PATIENCE)
    assert "holds what was in flight at parallelism 2; it goes on there" in caplog.text
    assert ds.dataset(out / "rows").to_table().sort_by("x") == pa.concat_tables(parts)
    assert sorted(ds.dataset(out / "last").to_table()["x"].to_pylist()) == list(range(390, 400))

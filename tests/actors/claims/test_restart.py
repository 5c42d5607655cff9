"""A job that is over is run again on purpose: its log begins anew, and its output is replaced."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.actors.claims import restart
from penstock.actors.storage.log import read_log_in
from penstock.actors.storage.stores import open_store
from penstock.coordinator.log.recovery import generation_of
from penstock.coordinator.model.manifest import Claim, Restarted
from penstock.engine.core.errors import ConfigurationError, FlowError, StorageError, UserCodeError
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.sinks.file_committer import FileCommitter
from support.bucket_twin import BucketTwin


def flow(folder: object, rows: int, mode: str = "overwrite", **options: object) -> ps.Flow:
    made = ps.Flow("nightly")
    table = pa.table({"id": range(rows), "third": [number % 3 for number in range(rows)]})
    made.from_tables(table, name="numbers").write_parquet(str(folder), mode=mode, name="write", **options)
    return made


def run(made: ps.Flow, **options: object) -> ps.Job:
    with ps.run_local(made, audit="content", **options) as job:
        job.wait(60)
    return job


def ids(folder: Path) -> list[int]:
    found: list[int] = ds.dataset(str(folder), format="parquet", partitioning="hive").to_table()["id"].to_pylist()
    return sorted(found)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# ---------------------------------------------------------------- outputs


def test_a_run_that_overwrites_replaces_what_the_one_before_it_wrote_whatever_folders_that_had(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(flow(out, 9, partition_by="third"))
    assert {path.name for path in out.glob("third=*")} == {"third=0", "third=1", "third=2"}
    run(flow(out, 4))
    assert ids(out) == [0, 1, 2, 3]
    assert not list(out.glob("third=*")), "folders without files are gone"
    run(flow(out, 0))
    assert ids(out) == []


def test_what_was_there_stays_until_new_files_are_committed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(flow(out, 5))
    before = files(out)

    def fail(rows: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no")

    made = ps.Flow("nightly")
    rows = made.from_tables(pa.table({"id": range(3)})).map_batches(fail, pa.schema({"id": pa.int64()}))
    rows.write_parquet(out, mode="overwrite")
    with ps.run_local(made) as job, pytest.raises(UserCodeError):
        job.wait(60)
    assert [name for name in files(out) if not name.startswith("_")] == [n for n in before if not n.startswith("_")]


def test_a_job_that_dies_between_its_first_commit_and_the_end_of_the_old_files_removes_them_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, remove, tries = tmp_path / "out", FileCommitter._remove_replaced, list[int]()
    run(flow(out, 5))

    def dies(self: FileCommitter, names: list[str]) -> None:
        tries.append(len(names))
        if len(tries) == 1:
            assert ids(out) == [0, 0, 1, 1, 2, 2, 3, 4], "the new files are there, and the old ones still"
            raise StorageError("the power is gone", "")
        remove(self, names)

    monkeypatch.setattr(FileCommitter, "_remove_replaced", dies)
    run(flow(out, 3))
    assert ids(out) == [0, 1, 2]
    assert tries[:2] == [1, 1]


def test_files_that_no_job_has_written_are_never_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(flow(out, 5))
    (out / "mine.parquet").write_bytes(b"dear to me")
    with pytest.raises(ConfigurationError, match=r"that no job has written .*mine.parquet is one"):
        run(flow(out, 3))
    (out / "mine.parquet").unlink()
    stranger = out / "part-write-00000-0001.000001-00000-0123456789abcdef0123456789abcdef.parquet"
    stranger.write_bytes(b"of a job that never owned the folder")
    with pytest.raises(ConfigurationError, match=r"that no job has written"):
        run(flow(out, 3))
    assert stranger.exists()


def test_what_a_job_wrote_that_may_go_on_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = ps.Flow("other")
    made.from_tables(pa.table({"id": range(500)}), rate=100.0).write_parquet(out)
    with ps.run_local(made, checkpoints=ps.Checkpoints(tmp_path / "state", every="20ms")) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, 60)
    with pytest.raises(ConfigurationError, match="may go on: its log is open"):
        run(flow(out, 3))
    run(flow(out, 3), take_over=True)
    assert ids(out) == [0, 1, 2]


def test_a_folder_that_jobs_append_to_is_not_overwritten(tmp_path: Path) -> None:
    run(flow(tmp_path / "out", 3, "append"))
    with pytest.raises(ConfigurationError, match="that no job has written into a folder of its own"):
        run(flow(tmp_path / "out", 3))


def test_objects_of_a_bucket_are_overwritten(buckets: BucketTwin, bucket: str) -> None:
    for rows in (5, 3):
        run(flow(f"s3://{bucket}/out", rows, partition_by="third"))
    found = [key for key in buckets.below(f"{bucket}/out") if "/part-" in key]
    assert sorted(key.split("/")[-2] for key in found) == ["third=0", "third=1", "third=2"]


# ---------------------------------------------------------------- the job


def test_a_job_that_is_over_says_how_it_is_run_again_and_can_be(tmp_path: Path) -> None:
    out, state = tmp_path / "out", tmp_path / "state"
    first = run(flow(out, 5), checkpoints=state)
    with pytest.raises(ConfigurationError, match="is over") as caught:
        run(flow(out, 3), checkpoints=state)
    assert 'resume="restart"' in caught.value.remedy
    assert 'mode="overwrite"' in caught.value.remedy
    again = run(flow(out, 3), checkpoints=state, resume="restart")
    assert ids(out) == [0, 1, 2]
    assert again.status().uuid != first.status().uuid
    entries = read_log_in(str(state), "nightly")
    assert isinstance(entries[0], Restarted)
    assert {generation_of(each) for each in entries[1:]} == {2}, "generations go on counting"
    assert len(files(state / "nightly" / "log")) == len(entries), "what stood before is deleted"
    assert all(name.split("/")[-1].startswith("0002.") for name in files(state / "nightly" / "state"))


def test_outputs_that_could_not_be_written_refuse_the_restart_before_anything_is_deleted(tmp_path: Path) -> None:
    out, state = tmp_path / "out", tmp_path / "state"
    run(flow(out, 5), checkpoints=state)
    before = files(state)
    with pytest.raises(ConfigurationError, match="already holds 1 data files") as caught:
        run(flow(out, 3, "new"), checkpoints=state, resume="restart")
    assert 'mode="overwrite"' in caught.value.remedy
    assert files(state) == before


REFUSING = {
    "changes without a snapshot": {"allow_changes": True},
    "claim of no snapshot": {"claim": "claim"},
    "a model": {"resume_model": "models/7"},
}
"""Arguments that are refused."""


@pytest.mark.parametrize(
    "case",
    [
        "input is gone",
        "output is in use",
        "output in the checkpoints",
        "its own snapshot",
        "snapshot of another flow",
        *REFUSING,
    ],
)
def test_whatever_refuses_the_new_run_refuses_it_before_anything_is_deleted(case: str, tmp_path: Path) -> None:
    state, given = tmp_path / "state", tmp_path / "in.parquet"
    pq.write_table(pa.table({"id": range(5)}), given)

    def made(out: Path) -> ps.Flow:
        flow = ps.Flow("nightly")
        flow.read_parquet(given).write_parquet(out, mode="overwrite")
        return flow

    run(made(tmp_path / "out"), checkpoints=state)
    before = files(state)
    out, options = tmp_path / "out", {}
    if case == "output is in use":
        other = ps.Flow("other")
        other.from_tables(pa.table({"id": range(500)}), rate=100.0).write_parquet(out := tmp_path / "other")
        with ps.run_local(other, checkpoints=ps.Checkpoints(tmp_path / "others", every="20ms")) as job:
            job.wait_until(lambda status: status.checkpoints_completed >= 1, 60)
    elif case == "output in the checkpoints":
        out = state / "out"
    elif case == "its own snapshot":
        options = {"from_snapshot": state / "nightly"}
    elif case == "snapshot of another flow":
        other = ps.Flow("other")
        other.from_tables(pa.table({"id": range(5)}), name="others").write_parquet(tmp_path / "other")
        run(other, checkpoints=tmp_path / "others")
        options = {"from_snapshot": tmp_path / "others" / "other"}
    options |= REFUSING.get(case, {})
    flow = made(out)
    if case == "input is gone":
        given.unlink()
    with pytest.raises(ConfigurationError):
        run(flow, checkpoints=state, resume="restart", **options)
    assert files(state) == before


def test_a_job_that_may_go_on_is_not_restarted(tmp_path: Path) -> None:
    made = ps.Flow("nightly")
    made.from_tables(pa.table({"id": range(500)}), rate=100.0).write_parquet(tmp_path / "out")
    often = ps.Checkpoints(tmp_path / "state", every="20ms")
    with ps.run_local(made, checkpoints=often) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, 60)
    with pytest.raises(ConfigurationError, match="is not over"):
        ps.run_local(made, checkpoints=often, resume="restart")


def test_a_job_that_stopped_with_a_savepoint_begins_anew_and_the_savepoint_stays(tmp_path: Path) -> None:
    made = ps.Flow("nightly")
    made.from_tables(pa.table({"id": range(500)}), rate=200.0).write_parquet(tmp_path / "out", mode="overwrite")
    often = ps.Checkpoints(tmp_path / "state", every="20ms")
    with ps.run_local(made, checkpoints=often) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, 60)
        saved = job.stop(savepoint=tmp_path / "saved")
    again = ps.run_local(made, checkpoints=often, resume="restart", rate=1e6).wait(60)
    assert ids(tmp_path / "out") == list(range(500))
    assert again.status().restored_from is None
    assert files(Path(saved.path))


def test_what_readers_of_a_feed_depend_on_is_not_deleted(tmp_path: Path) -> None:
    made = ps.Flow("nightly")
    made.from_tables(pa.table({"id": range(8)})).feed(4)
    with ps.run_local(made, checkpoints=tmp_path / "state") as job:
        with job.feed().reader(0, 1) as reader:
            assert len(list(reader.iter_batches())) == 2
        job.wait(60)
    with pytest.raises(ConfigurationError, match="was read by ranks"):
        ps.run_local(made, checkpoints=tmp_path / "state", resume="restart")


def test_a_folder_without_a_log_and_a_restart_that_died_before_its_claim_begin_as_they_are(tmp_path: Path) -> None:
    out, state = tmp_path / "out", tmp_path / "state"
    run(flow(out, 2), checkpoints=state, resume="restart")
    place = restart.Place(str(state), None, lambda: None)  # type: ignore[arg-type]
    restart.start_over(flow(out, 2), place, "nightly", "restart", plan_job)
    assert [type(each) for each in read_log_in(str(state), "nightly")] == [Restarted]
    restart.start_over(flow(out, 2), place, "nightly", "restart", plan_job)
    assert [type(each) for each in read_log_in(str(state), "nightly")] == [Restarted]
    run(flow(out, 3), checkpoints=state)
    assert ids(out) == [0, 1, 2]
    assert sum(isinstance(each, Claim) for each in read_log_in(str(state), "nightly")) == 1


def test_what_a_restart_that_died_has_left_goes_when_the_job_is_restarted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DiesError(Exception):
        """The process is killed."""

    def dies(store: object, key: str) -> None:
        raise DiesError

    out, state = tmp_path / "out", tmp_path / "state"
    run(flow(out, 2), checkpoints=state)
    store, place = open_store(str(state)), restart.Place(str(state), None, lambda: None)  # type: ignore[arg-type]
    former = {*store.list("nightly/state/"), *store.list("nightly/log/")}
    assert len(former) > 3
    with monkeypatch.context() as patched:
        patched.setattr(type(store), "delete", dies)
        with pytest.raises(DiesError):
            restart.start_over(flow(out, 2), place, "nightly", "restart", plan_job)
    assert former < {*store.list("nightly/state/"), *store.list("nightly/log/")}
    restart.start_over(flow(out, 2), place, "nightly", "restart", plan_job)
    assert not store.list("nightly/state/")
    assert len(store.list("nightly/log/")) == 1
    run(flow(out, 3), checkpoints=state)
    assert ids(out) == [0, 1, 2]


def test_of_two_that_restart_a_job_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, state = tmp_path / "out", tmp_path / "state"
    run(flow(out, 2), checkpoints=state)
    check = restart._check_beginning

    def meanwhile(*given: object) -> None:
        monkeypatch.setattr(restart, "_check_beginning", check)
        run(flow(out, 4), checkpoints=state, resume="restart")

    monkeypatch.setattr(restart, "_check_beginning", meanwhile)
    with pytest.raises(ConfigurationError, match="by somebody else"):
        run(flow(out, 3), checkpoints=state, resume="restart")
    assert ids(out) == [0, 1, 2, 3]
    assert open_store(str(state)).list("nightly/state/")


# ---------------------------------------------------------------- cells


def test_a_cell_that_is_run_again_replaces_its_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    made = ps.Flow("nightly")
    rows = made.from_tables(pa.table({"id": range(5)}))
    for least in (1, 3):  # the cell, before and after a change
        rows.filter(f"id >= {least}").write_parquet(tmp_path / "out", mode="overwrite")
        rows.filter(f"id >= {least}").collect("rows")
        rows.feed(2)
        rows.write_csv(tmp_path / "more", mode="append")
        rows.write_csv(tmp_path / "named", mode="append", name="named")
    sinks = [node.id for node in made.nodes if node.schema is None]
    assert sinks == ["parquet-sink-1", "rows", "feed", "csv-sink-1", "named"]
    rows.write_csv(tmp_path / "other", mode="append", name="named")
    rows.write_csv(tmp_path / "else")
    assert [node.id for node in made.nodes if node.schema is None] == [*sinks, "csv-sink-2"]
    (parquet,) = (node for node in made.nodes if node.id == "parquet-sink-1")
    assert "id >= 3" in made.node(parquet.inputs[0]).config.describe().replace('"', "")


def test_a_sink_of_a_cell_that_is_refused_leaves_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    made = ps.Flow("nightly")
    rows = made.from_tables(pa.table({"id": range(5)}))
    rows.write_parquet(tmp_path / "out")
    with pytest.raises(FlowError):
        rows.write_parquet(tmp_path / "out", partition_by="absent")
    assert [node.id for node in made.nodes if node.schema is None] == ["parquet-sink-1"]


def test_a_script_that_names_two_sinks_alike_is_told(tmp_path: Path) -> None:
    made = ps.Flow("nightly")
    rows = made.from_tables(pa.table({"id": range(5)}))
    rows.write_parquet(tmp_path / "out", name="one")
    with pytest.raises(FlowError, match="two operators are named 'one'"):
        rows.write_parquet(tmp_path / "out", name="one")

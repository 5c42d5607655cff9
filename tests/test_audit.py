"""The audit says what it knows, and what does not balance is an error."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import penstock as ps
from penstock.actors.audit.audit import Audit
from penstock.actors.client.job import Job
from penstock.engine.core.errors import AuditError, ConfigurationError, StorageError
from support.damage import flipped
from support.random_tables import random_table

ROWS = 1000

Change = Callable[[pa.Table], pa.Table]


def started(tmp_path: Path, name: str = "audited", limit: int | None = None, **settings: Any) -> Job:
    (tmp_path / "in").mkdir(exist_ok=True)
    parquet.write_table(pa.table({"x": range(ROWS)}), tmp_path / "in" / "a.parquet")
    flow = ps.Flow(name)
    stream = flow.read_parquet(str(tmp_path / "in"))
    if limit is not None:
        stream = stream.limit(limit)
    stream.write_parquet(str(tmp_path / "out"))
    return ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path / "state", **settings))


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "out").glob("*.parquet"))


@pytest.fixture(params=["always", "on_failure", "never"])
def over(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    """A job that is over, of which nobody has asked what it has left, whatever it keeps of its checkpoints."""
    job = started(tmp_path, retention=request.param)
    job.wait_until(lambda status: status.is_over, 60)
    yield job
    job.shutdown()


def test_audit_says_what_it_has_compared(tmp_path: Path, over: Job) -> None:
    audit = over.wait().audit()
    assert set(audit.grades.values()) == {"counted"}
    assert json.loads(audit.to_json())["grades"] == audit.grades
    assert f"{ROWS:,} rows, {ROWS:,} visible (exactly once), counted" in str(audit)


def test_rows_that_are_missing_in_an_output_fail_the_job(tmp_path: Path, over: Job) -> None:
    for file in files(tmp_path):
        rows = parquet.read_table(file)
        parquet.write_table(rows.slice(1), file)
    with pytest.raises(AuditError, match="1 rows are missing and 0 are there too often") as caught:
        over.wait()
    error: AuditError = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error.audit, Audit)
    assert "wrong" in error.audit.grades.values()
    assert "wrong" in str(error)


def test_files_of_strangers_in_an_output_of_its_own_fail_the_job(tmp_path: Path, over: Job) -> None:
    parquet.write_table(pa.table({"x": [1, 2]}), tmp_path / "out" / "part-stranger.parquet")
    with pytest.raises(AuditError, match="0 rows are missing and 2 are there too often"):
        over.wait()


def test_rows_that_nobody_needed_are_no_gap_and_are_told(tmp_path: Path) -> None:
    audit = started(tmp_path, limit=10).wait(60).audit()
    assert audit.clean
    assert set(audit.grades.values()) == {"counted"}


def test_sources_that_do_not_tell_their_length_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("x\n1\n2\n")
    flow = ps.Flow("lengths")
    flow.read_csv(str(tmp_path / "in.csv")).write_parquet(str(tmp_path / "out"))
    audit = ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path / "state")).wait(60).audit()
    (source,) = audit.sources
    assert source.grade == "unknown"
    assert "had no known length beforehand" in str(audit)
    assert audit.sinks[0].grade == "counted"


def test_job_that_is_not_over_is_unknown(tmp_path: Path) -> None:
    flow = ps.Flow("slow")
    flow.from_tables([pa.table({"x": range(ROWS)})], rate=500.0).write_parquet(str(tmp_path / "out"))
    with ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path / "state", every=0.05)) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, 60)
        audit = job.audit()
    assert audit.status == "running"
    assert set(audit.grades.values()) == {"unknown"}


# ---------------------------------------------------------------- content


def content_flow(tmp_path: Path, data: list[pa.Table], rate: float = 0.0, mode: str = "new") -> ps.Flow:
    """Rows as they came, and rows that an exchange has moved to other lanes."""
    flow = ps.Flow("content", lanes=4)
    rows = flow.from_tables(data, name="rows", rate=rate)
    rows.write_parquet(tmp_path / "plain", name="plain", mode=mode)
    rows.project("int64", "map", "seconds").partition_by("int64").write_parquet(
        tmp_path / "moved", name="moved", mode=mode
    )
    return flow


def grades_of(job: Job) -> dict[str, str]:
    return {sink.id: sink.grade for sink in job.wait(60).audit().sinks}


def often(folder: Path, every: str = "20ms") -> ps.Checkpoints:
    return ps.Checkpoints(folder, every=every, retention="always")


def interrupted(flow: ps.Flow, checkpoints: ps.Checkpoints, parallelism: int, audit: str = "content") -> None:
    """Run a part of it: each sink has rows of this run in the last checkpoint, and the job is not over."""
    with ps.run_local(flow, parallelism=parallelism, checkpoints=checkpoints, audit=audit) as job:
        job.wait_until(lambda _: {"plain", "moved"} <= have_taken(job), 60)
        completed = job.status().checkpoints_completed
        job.wait_until(lambda status: status.checkpoints_completed >= completed + 2, 60)


def have_taken(job: Job) -> set[str]:
    """The operators that have got rows in this run."""
    return {each.operator for task in job.statistics().values() for each in task.operators if each.rows_in}


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_all_types_are_proven_whatever_interrupts_the_job(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    data = [random_table(random, 12) for _ in range(64)]
    for _ in range(2):
        slow = content_flow(tmp_path, data, rate=150.0)
        interrupted(slow, often(tmp_path / "state"), random.choice([1, 2, 3]))
    job = ps.run_local(content_flow(tmp_path, data), parallelism=2, checkpoints=tmp_path / "state", audit="content")
    assert grades_of(job) == {"plain": "proven", "moved": "proven"}
    assert job.status().restored_from is not None
    assert f"{64 * 12:,} visible (exactly once), proven ({64 * 12:,} rows read back)" in str(job.audit())


def test_rows_of_a_savepoint_and_of_jobs_that_append_are_proven(tmp_path: Path) -> None:
    data = [random_table(Random(7), 12) for _ in range(64)]
    slow = content_flow(tmp_path, data, 150.0, "append")  # five seconds: it must not end before it is stopped
    job = ps.run_local(slow, parallelism=3, checkpoints=often(tmp_path / "a"), audit="content")
    job.wait_until(lambda status: status.checkpoints_completed >= 2, 60)
    saved = job.stop(timeout=60)
    assert set(grades_of(job).values()) == {"proven"}
    other = ps.run_local(content_flow(tmp_path, data, 0.0, "append"), checkpoints=tmp_path / "b", audit="content")
    assert set(grades_of(other).values()) == {"proven"}
    flow = content_flow(tmp_path, data, 0.0, "append")
    job = ps.run_local(flow, checkpoints=tmp_path / "c", from_snapshot=saved.path, audit="content")
    assert set(grades_of(job).values()) == {"proven"}
    assert job.audit().sinks[0].visible == 64 * 12


def test_rows_that_were_taken_without_a_look_are_counted(tmp_path: Path) -> None:
    data = [random_table(Random(1), 12) for _ in range(64)]
    for audit in ("content", "counts"):
        interrupted(content_flow(tmp_path, data, 150.0), often(tmp_path / "state"), 2, audit)
    job = ps.run_local(content_flow(tmp_path, data), checkpoints=tmp_path / "state", audit="content")
    assert set(grades_of(job).values()) == {"counted"}
    assert "were taken without a look at their content" in str(job.audit())


def test_retired_files_are_unknown(tmp_path: Path) -> None:
    data = [random_table(Random(1), 12) for _ in range(64)]
    interrupted(content_flow(tmp_path, data, 150.0), often(tmp_path / "state"), 2)
    assert ps.retire_output(tmp_path / "state" / "content", tmp_path / "plain")
    job = ps.run_local(content_flow(tmp_path, data), checkpoints=tmp_path / "state", audit="content")
    assert grades_of(job) == {"plain": "unknown", "moved": "proven"}


def test_collected_rows_are_proven_unions_too() -> None:
    union = pa.UnionArray.from_dense(pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32()), [pa.array([1, 2])])
    flow = ps.Flow("collected")
    flow.from_tables([pa.table({"x": [1, 2]})], name="n").collect("numbers")
    flow.from_tables([pa.table({"x": [1, 2], "u": union})], name="u").collect("unions")
    audit = ps.run_local(flow, audit="content").wait(60).audit()
    assert [sink.grade for sink in audit.sinks] == ["proven", "proven"]


def test_tasks_without_rows_do_not_stand_in_the_way(tmp_path: Path) -> None:
    for key in range(4):  # in one or the other half of the keys
        flow = ps.Flow(f"key-{key}")
        rows = flow.from_tables([pa.table({"x": [key] * 3})]).partition_by("x")
        rows.write_parquet(tmp_path / f"out-{key}")
        job = ps.run_local(flow, parallelism=2, checkpoints=tmp_path / "state", audit="content")
        assert set(grades_of(job).values()) == {"proven"}


def test_job_without_rows_is_proven(tmp_path: Path) -> None:
    flow = ps.Flow("nothing")
    flow.from_tables([pa.table({"x": [1]})]).filter(ps.field("x") > 1).write_parquet(tmp_path / "out")
    job = ps.run_local(flow, checkpoints=tmp_path / "state", audit="content")
    assert set(grades_of(job).values()) == {"proven"}


def another_value(rows: pa.Table) -> pa.Table:
    return rows.set_column(0, "x", pa.array([ROWS, *rows["x"].to_pylist()[1:]]))


def the_last_row_twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(1), rows.slice(rows.num_rows - 1)])


@pytest.mark.parametrize("change", [another_value, the_last_row_twice])
@pytest.mark.parametrize(("audit", "seen"), [("content", True), ("counts", False)])
def test_other_rows_of_the_same_number_fail_the_job(tmp_path: Path, change: Change, audit: str, seen: bool) -> None:
    flow = ps.Flow("altered")
    flow.from_tables([pa.table({"x": range(ROWS)})]).write_parquet(tmp_path / "out", compression="none")
    job = ps.run_local(flow, checkpoints=tmp_path / "state", audit=audit)
    job.wait_until(lambda status: status.is_over, 60)
    (file,) = files(tmp_path)
    size, rows = file.stat().st_size, parquet.read_table(file)
    parquet.write_table(change(rows), file, compression="none", write_page_checksum=True)
    if change is another_value:
        assert file.stat().st_size == size, "it is to look the same"
    if not seen:
        assert set(grades_of(job).values()) == {"counted"}
        return
    with pytest.raises(AuditError, match="; as many rows, but not those that were written, at") as caught:
        job.wait()
    assert "wrong (other rows)" in str(caught.value)
    assert caught.value.audit is not None
    assert not caught.value.audit.clean


def test_committed_file_with_a_damaged_page_is_named(tmp_path: Path) -> None:
    flow = ps.Flow("damaged")
    flow.from_tables([pa.table({"x": range(ROWS)})]).write_parquet(tmp_path / "out", compression="none")
    job = ps.run_local(flow, checkpoints=tmp_path / "state", audit="content")
    job.wait_until(lambda status: status.is_over, 60)
    (file,) = files(tmp_path)
    data = file.read_bytes()
    file.write_bytes(flipped(data, 8 * (len(data) // 3)))
    with pytest.raises(StorageError, match=r"the committed file .* cannot be read: .*CRC"):
        job.wait()


@pytest.mark.parametrize("audit", ["counts", "content"])
def test_output_that_cannot_be_read_fails_a_job_that_keeps_no_checkpoints(tmp_path: Path, audit: Any) -> None:
    """Its audit is made while they are there, and what stood in its way is not lost with them."""
    flow = ps.Flow("cut")
    flow.from_tables(pa.table({"x": range(ROWS)})).write_parquet(tmp_path / "out")
    job = ps.run_local(flow, audit=audit)
    job.wait_until(lambda status: status.is_over, 60)
    (file,) = files(tmp_path)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(StorageError, match=f"the committed file .*{file.name} cannot be read"):
        job.wait(60)
    with pytest.raises(StorageError, match=f"the committed file .*{file.name} cannot be read"):
        job.audit()


def test_audit_is_counts_or_content(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="audit='contents'"):
        ps.run_local(ps.Flow("any"), audit="contents")

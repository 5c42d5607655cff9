"""The audit says what it knows, and what does not balance is an error."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import penstock as ps
from penstock.actors.audit import Audit
from penstock.engine.errors import AuditError
from penstock.jobs.local_run import LocalJob

ROWS = 1000


def started(tmp_path: Path, name: str = "audited", limit: int | None = None) -> LocalJob:
    (tmp_path / "in").mkdir(exist_ok=True)
    parquet.write_table(pa.table({"x": range(ROWS)}), tmp_path / "in" / "a.parquet")
    flow = ps.Flow(name)
    stream = flow.read_parquet(str(tmp_path / "in"))
    if limit is not None:
        stream = stream.limit(limit)
    stream.write_parquet(str(tmp_path / "out"))
    return ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path / "state"))


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "out").glob("*.parquet"))


@pytest.fixture
def over(tmp_path: Path) -> Iterator[LocalJob]:
    """A job that is over, of which nobody has asked what it has left."""
    job = started(tmp_path)
    job.wait_until(lambda status: status.is_over, 60)
    yield job
    job.shutdown()


def test_audit_says_what_it_has_compared(tmp_path: Path, over: LocalJob) -> None:
    audit = over.wait().audit()
    assert set(audit.grades.values()) == {"counted"}
    assert json.loads(audit.to_json())["grades"] == audit.grades
    assert f"{ROWS:,} rows, {ROWS:,} visible (exactly once), counted" in str(audit)


def test_rows_that_are_missing_in_an_output_fail_the_job(tmp_path: Path, over: LocalJob) -> None:
    for file in files(tmp_path):
        rows = parquet.read_table(file)
        parquet.write_table(rows.slice(1), file)
    with pytest.raises(AuditError, match="1 rows are missing and 0 are there too often") as caught:
        over.wait()
    error: AuditError = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error.audit, Audit)
    assert "wrong" in error.audit.grades.values()
    assert "wrong" in str(error)


def test_files_of_strangers_in_an_output_of_its_own_fail_the_job(tmp_path: Path, over: LocalJob) -> None:
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
    assert "did not tell their length beforehand" in str(audit)
    assert audit.sinks[0].grade == "counted"


def test_job_that_is_not_over_is_unknown(tmp_path: Path) -> None:
    flow = ps.Flow("slow")
    flow.from_tables([pa.table({"x": range(ROWS)})], rate=500.0).write_parquet(str(tmp_path / "out"))
    with ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path / "state", every=0.05)) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, 60)
        audit = job.audit()
    assert audit.status == "running"
    assert set(audit.grades.values()) == {"unknown"}

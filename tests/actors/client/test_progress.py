"""The line that tells how far a job is: what it says, and who sees it."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

import penstock as ps
from penstock.actors.client.progress import Pace, watch
from penstock.actors.process.waiting import Deadline


def test_pace_is_that_of_the_last_seconds_and_says_how_long_it_will_take() -> None:
    pace = Pace(10_000)
    assert pace.look(0.0, 0) == ""
    assert pace.look(1.0, 1000) == "1,000 rows/s, 9 s left"
    assert pace.look(20.0, 1000) == ""
    assert pace.look(21.0, 1010) == "10 rows/s, 14 min 59 s left"
    assert pace.look(22.0, 500) == "", "a task has begun anew"
    assert pace.look(23.0, 501) == "1 rows/s, 2 h 38 min left"
    assert Pace(None).look(0.0, 0) + (unknown := Pace(None)).look(0.0, 0) + unknown.look(1.0, 5) == "5 rows/s"


def paced(folder: Path) -> ps.Job:
    flow = ps.Flow("paced")
    flow.from_tables([pa.table({"n": range(500)})] * 4, rate=4000).write_parquet(folder / "out")
    return ps.run_local(flow, checkpoints=ps.Checkpoints(folder / "state", every="100ms"))


def test_job_is_watched_until_it_is_over(tmp_path: Path) -> None:
    printed = io.StringIO()
    with paced(tmp_path) as job:
        status = watch(job, Console(file=printed, width=200))
        assert status.state == "finished"
    assert "paced finished       2,000 rows" in printed.getvalue()


def test_watching_ends_at_the_deadline(tmp_path: Path) -> None:
    with paced(tmp_path) as job:
        assert not watch(job, Console(file=io.StringIO()), deadline=Deadline(0.05)).is_over


def test_waiting_shows_it_on_a_terminal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with paced(tmp_path / "quiet") as job:
        job.wait()
    assert capsys.readouterr() == ("", "")
    with paced(tmp_path / "asked") as job:
        job.wait(progress=True)
    assert "2,000 rows" in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with paced(tmp_path / "terminal") as job:
        job.wait()
    assert "2,000 rows" in capsys.readouterr().err
    with paced(tmp_path / "off") as job:
        job.wait(progress=False)
    assert capsys.readouterr().err == ""


def test_waiting_with_progress_keeps_its_timeout(tmp_path: Path) -> None:
    with paced(tmp_path) as job, pytest.raises(TimeoutError):
        job.wait(0.05, progress=True)


LEFT = """
import pyarrow as pa
import penstock as ps
flow = ps.Flow("left")
flow.from_tables([pa.table({"n": range(1000)})] * 9, rate=1000).write_parquet("out")
job = ps.run_local(flow, checkpoints="state")
"""


@pytest.mark.parametrize(
    ("end", "told"),
    [("", True), ("job.shutdown()", False), ("raise SystemExit(3)", True), ("raise ValueError", False)],
)
def test_script_that_ends_before_its_job_is_told_so(tmp_path: Path, end: str, told: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT + end], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ("job 'left' was not over when its script ended" in done.stderr) == told, done.stderr
    assert ("goes on from there when it is run again" in done.stderr) == told

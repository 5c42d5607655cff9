"""The line that tells how far a job is: what it says, and who sees it."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from rich.console import Console

import penstock as ps
from penstock.actors.client.progress import Pace, _Looks, describe, watch
from penstock.actors.process.waiting import Deadline


def test_pace_is_that_of_the_last_seconds_and_says_how_long_it_will_take() -> None:
    pace = Pace(10_000)
    assert pace.look(-1.0, 0) == ""
    assert pace.look(0.0, 100) == "", "a job that goes on has read some at once"
    assert pace.look(1.0, 1000) == "900 rows/s, 10 s left"
    assert pace.look(20.0, 1000) == ""
    assert pace.look(21.0, 1010) == "10 rows/s, 14 min 59 s left"
    assert pace.look(22.0, 500) == "", "a task has begun anew"
    assert pace.look(23.0, 501) == "1 rows/s, 2 h 38 min left"
    assert (unknown := Pace(None)).look(0.0, 1) + unknown.look(1.0, 6) == "5 rows/s"


def paced(folder: Path) -> ps.Job:
    flow = ps.Flow("paced")
    flow.from_tables([pa.table({"n": range(500)})] * 4, rate=4000).write_parquet(folder / "out")
    return ps.run_local(flow, checkpoints=ps.Checkpoints(folder / "state", every="100ms"))


def test_job_is_watched_until_it_is_over(tmp_path: Path) -> None:
    printed = io.StringIO()
    with paced(tmp_path) as job:
        status = watch(job, Console(file=printed, width=200))
        assert status.state == "finished"
        line = describe(status, job.statistics(), 5.0, "250,000 rows/s, 12 s left")
    assert "paced finished      2,000 rows" in printed.getvalue()
    assert "250,000 rows/s, 12 s left" in line[:80]


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


class Gone(io.StringIO):
    """A terminal that has gone away, or a pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    def isatty(self) -> bool:
        return True


def test_job_goes_on_when_nobody_can_see_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    with paced(tmp_path) as job:
        assert job.wait(60).status().state == "finished"


def test_command_whose_output_nobody_reads_ends_as_its_job_does(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LEFT.split("job =", maxsplit=1)[0])
    command = [sys.executable, "-c", "from penstock.jobs.cli import main; main()", "run", "--local", "script.py:flow"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        assert ran.stdout.readline()
        ran.stdout.close()
        assert (ran.wait(120), ran.stderr.read()) == (0, "")
    assert ds.dataset(tmp_path / "out", format="parquet").count_rows() == 9000


def test_rows_left_are_those_of_all_epochs(tmp_path: Path) -> None:
    flow = ps.Flow("epochs")
    flow.from_tables([pa.table({"n": range(500)})]).feed(50, epochs=4)
    with ps.run_local(flow) as job:
        assert "left" not in (looks := _Looks(job, None))._pace.look(0.0, 100)
        assert looks._pace.look(1.0, 600) == "500 rows/s, 3 s left"


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

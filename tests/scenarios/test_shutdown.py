"""Ctrl-C while a job runs: a short goodbye, nothing left running, and the same command goes on from the checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.jobs import flights_local
from penstock.jobs.flights import DAILY_KEY, FEATURES_KEY, build
from penstock.jobs.flights_reference import compare
from support.processes import Done, Household
from support.ray_jobs import expected, written

TESTS = str(Path(__file__).parent.parent)
PATH = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
INTERRUPTED = 130
"""The exit code that a shell shows for a program that ended by Ctrl-C."""
PATIENCE = 60.0

SCRIPT = """
import sys
import penstock as ps
from support.ray_jobs import gather_flow

if __name__ == "__main__":
    out, rate = sys.argv[1], float(sys.argv[2])
    flow = gather_flow(out, rate)
    job = ps.RUN(flow, parallelism=2, checkpoints=ps.Checkpoints(out + "-state", every="200ms"))
    job.wait_until(lambda status: status.checkpoints_completed >= 2, 120)
    print("two checkpoints", flush=True)
    print(job.wait(120).audit())
    print("restored from", job.status().restored_from)
"""


@pytest.fixture
def household(tmp_path: Path) -> Iterator[Household]:
    with Household(tmp_path) as household:
        yield household


def committed(folder: Path) -> bool:
    """Whether rows are visible: what a checkpoint has completed is committed a moment later."""
    return any(folder.glob("*.parquet"))


def check_goodbye(done: Done, line: str, household: Household) -> None:
    """One line, no traceback, the exit code of an interrupt, and no process left."""
    assert done.returncode == INTERRUPTED, str(done)
    assert done.stderr.splitlines() == [line], str(done)
    assert "Traceback" not in done.stdout, str(done)
    assert household.wait_gone(PATIENCE) == []


def test_embedded_flights_job_is_interrupted_and_the_same_command_goes_on(tmp_path, household):
    output = tmp_path / "out"
    command = ("-m", "penstock.jobs", "run", "flights", "--local", "--output", str(output), "--every", "200ms")
    first = household.python(*command, "--rate", "20000", cwd=tmp_path)
    first.wait_line(r"checkpoint 1\.\d+ .*restarts 0")
    first.wait_for(lambda: committed(output / "features"))
    first.interrupt()
    goodbye = f"penstock: interrupted; what is committed stays, and --output {output} goes on from there"
    check_goodbye(first.wait(), goodbye, household)
    before = ds.dataset(output / "features").count_rows()
    assert 0 < before < 655_867

    second = household.python(*command, "--rate", "0", cwd=tmp_path).wait()
    assert second.returncode == 0, str(second)
    assert "gaps 0, repeats 0" in second.stdout
    assert "336,776 rows in 128 splits" in second.stdout
    check_equals_undisturbed(output, tmp_path / "undisturbed")


def check_equals_undisturbed(output: Path, elsewhere: Path) -> None:
    flights, weather, planes = flights_local.tables()
    ps.run_local(build(flights, weather, planes, elsewhere)).wait()
    for name, key in (("features", FEATURES_KEY), ("daily", DAILY_KEY)):
        actual, undisturbed = (ds.dataset(folder / name).to_table() for folder in (output, elsewhere))
        comparison = compare(actual, undisturbed, key)
        assert comparison.is_equal, comparison.describe()


def test_same_command_in_a_second_terminal_takes_the_job_over_and_the_first_says_so(tmp_path, household):
    output = tmp_path / "out"
    command = ("-m", "penstock.jobs", "run", "flights", "--local", "--output", str(output), "--every", "50ms")
    first = household.python(*command, "--rate", "5000", cwd=tmp_path)  # so that it is not over when the second begins
    first.wait_line(r"checkpoint 1\.\d+ .*restarts 0")
    second = household.python(*command, "--rate", "60000", cwd=tmp_path)
    told, done = first.wait(), second.wait()
    assert told.returncode == 2, str(told)
    # who says it first: the log, or the claim of the output folder
    assert "another coordinator has taken over job 'flights'" in told.stderr or (
        "belongs to generation 2 of job 'flights'" in told.stderr and "it was taken over" in told.stderr
    )
    assert done.returncode == 0, str(done)
    assert "restarts 0, gaps 0, repeats 0" in done.stdout, "the first run's end has disturbed the second"
    assert ds.dataset(output / "features").count_rows() == 655_867


@pytest.mark.parametrize("how", [pytest.param("run", marks=pytest.mark.ray), "run_local"])
def test_script_is_interrupted_and_the_same_script_goes_on(tmp_path, household, how):
    (tmp_path / "script.py").write_text(SCRIPT.replace("RUN", how))
    out = tmp_path / "out"

    def start(rate: str):
        # as on a machine where nothing of this is set: a cluster of its own, with a token
        return household.python(
            "script.py", str(out), rate, cwd=tmp_path, PYTHONPATH=PATH, RAY_AUTH_MODE=None, RAY_ADDRESS=None
        )

    first = start("200")
    first.wait_line("two checkpoints")
    first.wait_for(lambda: committed(out))
    first.interrupt()
    check_goodbye(first.wait(), "penstock: interrupted", household)
    before = written(out)
    assert 0 < before.num_rows < expected().num_rows

    second = start("0").wait()
    assert second.returncode == 0, str(second)
    assert second.stderr == ""
    assert "gaps 0, repeats 0" in second.stdout
    assert "restored from None" not in second.stdout
    assert written(out).select(expected().column_names).equals(expected())
    assert household.wait_gone(PATIENCE) == []

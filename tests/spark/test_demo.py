"""What ``make demo`` runs, as a user sees it: one run, looked at from all sides."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.processes import Done, Household, Process

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

RATE = "40000"
"""Rows per second. Faster than the demo, and slow enough for two checkpoints before the end."""


@dataclass(frozen=True)
class Demo:
    """The run: how it ended, where its outputs are, and what was running some seconds after its end.

    ``again``: how the same command ended when it was given once more.
    """

    done: Done
    output: Path
    left: list[Process]
    again: Done


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("demo")
    command = ("-m", "penstock.jobs", "run", "flights", "--demo", "--rate", RATE, "--output", str(folder / "out"))
    with Household(folder) as household:
        # as on a machine where nothing of this is set: a cluster of its own, with a token
        environment: dict[str, str | None] = {"RAY_AUTH_MODE": None, "RAY_ADDRESS": None}
        done = household.python(*command, cwd=folder, **environment).wait()
        left = household.wait_gone(10.0)
        again = household.python(*command, cwd=folder, **environment).wait()
        yield Demo(done, folder / "out", left, again)


def test_demo_succeeds_and_both_outputs_equal_what_spark_sql_computes(demo: Demo) -> None:
    print(demo.done)
    assert demo.done.returncode == 0, str(demo.done)
    assert re.search(r"features: 655,867 rows, equal to the reference", demo.done.stdout)
    assert re.search(r"daily: 1,095 rows, equal to the reference", demo.done.stdout)


def test_demo_loses_a_process_and_its_audit_is_clean(demo: Demo) -> None:
    audit = json.loads((demo.output / "audit.json").read_text())
    assert audit["restarts"] >= 1
    assert (audit["gaps"], audit["repeats"]) == (0, 0)
    assert "SIGKILL to the process of driver actor" in demo.done.stdout


def test_demo_writes_nothing_to_stderr_and_no_log_of_ray_or_spark_to_stdout(demo: Demo) -> None:
    assert demo.done.stderr == ""
    for noise in ("Traceback", "WARN", "ERROR", "raylet", "Exception", "at org.apache", "(pid="):
        assert noise not in demo.done.stdout, str(demo.done)


def test_demo_leaves_no_process_behind(demo: Demo) -> None:
    assert demo.left == []


def test_demo_leaves_nothing_hidden_in_its_outputs_but_the_markers(demo: Demo) -> None:
    hidden = sorted(path.relative_to(demo.output) for path in demo.output.glob("*/[_.]*"))
    assert [str(path) for path in hidden] == ["daily/_penstock", "features/_penstock"]


def test_same_command_again_is_refused_before_anything_is_started(demo: Demo) -> None:
    assert demo.again.returncode == 2, str(demo.again)
    assert "job 'flights' is over" in demo.again.stderr
    assert "remedy:" in demo.again.stderr
    assert demo.again.stdout == "", "Ray was started for nothing"

"""The examples train in processes of their own, are killed in the middle of an epoch, and go on with other ranks."""

from __future__ import annotations

import itertools
import json
import os
import runpy
import signal
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from support.feeds import read_group
from support.processes import Household

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def undisturbed(example: str) -> list[list[int]]:
    """The global batches of an example's flow, read by one rank, without Ray."""
    flow = runpy.run_path(str(EXAMPLES / example))["training_flow"]()
    with ps.run_local(flow) as job:
        found = [[row["row"] for row in batch] for batch in read_group(job.feed(), 1)]
    assert len(found) == 57
    return found


def lines(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What the runs so far have written down; the last line may be cut off by a kill."""
    path = folder / f"rank-{rank}.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def steps(folder: Path, ranks: int) -> set[int]:
    """Those that all of so many ranks have taken."""
    return set.intersection(
        *({line["step"] for line in lines(folder, rank) if line["ranks"] == ranks} for rank in range(ranks))
    )


def check(folder: Path, expected: list[list[int]], ranks: tuple[int, int]) -> None:
    """Every slice that any rank has read is that of the undisturbed run; the second world has gone on from a model."""
    for rank in range(max(ranks)):
        for line in lines(folder, rank):
            batch, count = expected[line["step"]], line["ranks"]
            assert line["rows"] == batch[rank * len(batch) // count : (rank + 1) * len(batch) // count]
    first, second = (steps(folder, count) for count in ranks)
    assert sorted(second) == list(range(min(second), len(expected)))
    assert 0 < min(second) <= max(first) + 1
    assert first | second == set(range(len(expected)))


@pytest.mark.parametrize("example", ["ddp.py", "lightning_ddp.py"])
def test_training_that_was_killed_goes_on_with_other_ranks(example: str, tmp_path: Path, cluster: str) -> None:
    expected, folder = undisturbed(example), tmp_path / "out"
    command = [str(EXAMPLES / example), "--folder", str(folder)]
    with Household(tmp_path) as household:
        first = household.python(*command, "--ranks", "2", "--pause", "0.1", RAY_ADDRESS=cluster)
        first.wait_for(lambda: 14 in steps(folder, 2), 240)
        os.killpg(first.popen.pid, signal.SIGKILL)
        first.popen.wait(60)
        done = household.python(*command, "--ranks", "3", RAY_ADDRESS=cluster).wait()
        assert done.returncode == 0, done
    check(folder, expected, (2, 3))


def test_ray_train_goes_on_after_a_worker_and_after_the_script_with_other_ranks(tmp_path: Path, cluster: str) -> None:
    expected, folder = undisturbed("ray_train.py"), tmp_path / "out"
    command = [str(EXAMPLES / "ray_train.py"), "--folder", str(folder)]
    # how often Ray Train looks after its workers, and takes their reports
    environment = {"RAY_ADDRESS": cluster, "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"}
    with Household(tmp_path) as household:
        first = household.python(*command, "--ranks", "2", "--pause", "0.1", **environment)
        noted = folder / "train" / "checkpoint_manager_snapshot.json"
        first.wait_for(lambda: 10 in steps(folder, 2) and noted.exists(), 240)
        killed = lines(folder, 1)[-1]["process"]
        os.kill(killed, signal.SIGKILL)
        first.wait_for(lambda: 22 in steps(folder, 2), 240)
        assert lines(folder, 1)[-1]["process"] != killed
        os.killpg(first.popen.pid, signal.SIGKILL)
        first.popen.wait(60)
        done = household.python(*command, "--ranks", "3", **environment).wait()
        assert done.returncode == 0, done
    check(folder, expected, (2, 3))
    starts = [line["step"] for line in lines(folder, 0) if line["ranks"] == 2]
    assert any(step <= before for before, step in itertools.pairwise(starts)), "Ray Train did not begin at a model"
    assert starts.count(0) == 1, "Ray Train has begun anew"

"""The examples train in processes of their own, are killed in the middle of an epoch, and go on with other ranks."""

from __future__ import annotations

import itertools
import json
import os
import runpy
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from support.feeds import read_group
from support.processes import Household, Program

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


@pytest.mark.parametrize(
    ("example", "others"),
    [
        ("ddp.py", 3),
        ("fsdp.py", 3),
        ("lightning_ddp.py", 3),
        ("accelerate_ddp.py", 1),
        ("hf_trainer.py", 1),
        ("jax_ddp.py", 1),
    ],
)
def test_training_that_was_killed_goes_on_with_other_ranks(
    example: str, others: int, tmp_path: Path, cluster: str
) -> None:
    """With more of them, or with one: ranks of the large frameworks take long to import them."""
    expected, folder = undisturbed(example), tmp_path / "out"
    command = [str(EXAMPLES / example), "--folder", str(folder)]
    with Household(tmp_path) as household:
        first = household.python(*command, "--ranks", "2", "--pause", "0.1", RAY_ADDRESS=cluster)
        first.wait_for(lambda: 14 in steps(folder, 2), 240)
        os.killpg(first.popen.pid, signal.SIGKILL)
        first.popen.wait(60)
        done = household.python(*command, "--ranks", str(others), RAY_ADDRESS=cluster).wait()
        assert done.returncode == 0, done
    check(folder, expected, (2, others))


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


def test_workers_of_torchrun_come_and_go_while_the_job_goes_on(tmp_path: Path, cluster: str) -> None:
    """Nodes are agents of torchrun on this machine, of a worker each: one, two, one, two."""
    expected, folder = undisturbed("torchrun.py"), tmp_path / "out"
    script, held = str(EXAMPLES / "torchrun.py"), str(Path(__file__).parent / "support" / "held_training.py")
    hold = tmp_path / "out" / "hold"
    environment = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with Household(tmp_path) as household:
        job = household.python(script, "job", "--folder", str(folder), RAY_ADDRESS=cluster)
        job.wait_for((folder / "feed").exists, 240)
        hold.write_text("")
        port = free_port()

        def node() -> Program:
            meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=last_call_timeout=1"]
            options = ["--nnodes=1:4", "--nproc-per-node=1", "--local-addr=127.0.0.1", "--max-restarts=20", *meeting]
            train = [held, script, "train", "--folder", str(folder), "--pause", "0.05"]
            return household.python("-m", "torch.distributed.run", *options, *train, **environment)

        first = node()
        first.wait_for(lambda: len(taken(folder, 1)) >= 5, 240)
        hold.write_text("1 2")
        second = node()
        first.wait_for(lambda: bool(taken(folder, 2)), 240)
        hold.write_text("1")
        first.wait_for(lambda: len(taken(folder, 2)) >= 9, 240)
        hold.write_text("1 2")
        second.popen.terminate()
        second.wait()
        alone, both = len(slices(folder, 1)), len(slices(folder, 2))
        hold.write_text("1")  # its next step fails, as a rank is gone
        first.wait_for(lambda: len(slices(folder, 1)) > alone, 240)
        hold.write_text("1 2")
        third = node()
        first.wait_for(lambda: len(slices(folder, 2)) >= both + 2, 240)
        hold.write_text("")
        done = job.wait()
        assert done.returncode == 0, done
        for each in (first, third):
            each.wait()
    check_all(folder, expected)


def slices(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """What workers have read when there were so many."""
    found = []
    for path in folder.glob("steps-*.jsonl"):
        text = path.read_text()
        found += [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [line for line in found if line["ranks"] == ranks]


def taken(folder: Path, ranks: int) -> set[int]:
    """The steps that all of so many workers have taken."""
    found: dict[int, set[int]] = {}
    for line in slices(folder, ranks):
        found.setdefault(line["step"], set()).add(line["rank"])
    return {step for step, who in found.items() if len(who) == ranks}


def check_all(folder: Path, expected: list[list[int]]) -> None:
    """Every slice is that of the undisturbed run, and each batch was read whole."""
    for ranks in (1, 2):
        for line in slices(folder, ranks):
            batch, rank = expected[line["step"]], line["rank"]
            assert line["rows"] == batch[rank * len(batch) // ranks : (rank + 1) * len(batch) // ranks]
    assert taken(folder, 1) | taken(folder, 2) == set(range(len(expected)))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

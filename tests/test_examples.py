"""The examples train in processes of their own, are killed in the middle of an epoch, and go on with other ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from support.feeds import chunked, wait_for

EXAMPLES = Path(__file__).parent.parent / "examples"


def lines(folder: Path, name: str = "batches") -> list[dict[str, object]]:
    """What the runs so far have written down; the last line may be cut off by a kill."""
    path = folder / f"{name}.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def start(folder: Path, ranks: int, pause: float) -> subprocess.Popen[bytes]:
    script = EXAMPLES / "state_dict_loop.py"
    return subprocess.Popen([sys.executable, script, "--folder", folder, "--ranks", str(ranks), "--pause", str(pause)])


def test_loop_that_saves_its_loader_with_the_model_goes_on_with_other_ranks(tmp_path: Path) -> None:
    assert start(tmp_path / "undisturbed", 1, 0.0).wait(120) == 0
    expected = [line["rows"] for line in lines(tmp_path / "undisturbed")]
    assert len(expected) == 57
    folder = tmp_path / "killed"
    for ranks, until in ((2, 14), (3, 30)):
        process = start(folder, ranks, 0.05)

        def reached(process: subprocess.Popen[bytes] = process, until: int = until) -> bool:
            assert process.poll() is None, "it has ended by itself"
            return any(line["step"] == until for line in lines(folder))

        wait_for(reached, 120)
        process.kill()
        process.wait(60)
    assert start(folder, 4, 0.0).wait(120) == 0
    found = lines(folder)
    assert {line["ranks"] for line in found} == {2, 3, 4}
    assert all(line["rows"] == expected[int(str(line["step"]))] for line in found)
    assert {line["step"] for line in found} == set(range(57))
    last = [line["step"] for line in found if line["ranks"] == 4]
    assert last[0] != 0, "the last run has begun at a model"
    assert last == list(range(int(str(last[0])), 57))


def batches(folder: Path) -> dict[tuple[int, int], dict[int, list[int]]]:
    """By step and number of ranks: the slices, by rank."""
    found: dict[tuple[int, int], dict[int, list[int]]] = {}
    for path in folder.glob("rank-*.jsonl"):
        for line in lines(folder, path.stem):
            key = int(str(line["step"])), int(str(line["ranks"]))
            found.setdefault(key, {})[int(path.stem[5:])] = line["rows"]  # type: ignore[assignment]
    return found


@pytest.mark.ray
@pytest.mark.slow
def test_ddp_over_gloo_goes_on_from_its_committed_model_with_other_ranks(tmp_path: Path, cluster: str) -> None:
    flow = ps.Flow("ddp", lanes=4)
    rows = [pa.table({"row": list(range(start, start + 200))}) for start in range(0, 2000, 200)]
    flow.from_tables(rows).filter("row % 10 <> 0").shuffle(300, seed=7).collect("rows")
    expected = chunked(ps.run_local(flow).result("rows").column("row").to_pylist(), 32)
    command = [sys.executable, EXAMPLES / "ddp.py", "--folder", tmp_path]
    environment = {**os.environ, "RAY_ADDRESS": cluster}
    first = subprocess.Popen([*command, "--ranks", "2", "--pause", "0.1"], env=environment, start_new_session=True)

    def reached() -> bool:
        assert first.poll() is None, "it has ended by itself"
        return (tmp_path / "last").exists() and (14, 2) in batches(tmp_path)

    wait_for(reached, 200)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait(60)
    done = subprocess.run([*command, "--ranks", "3"], env=environment, timeout=200, check=False, start_new_session=True)
    assert done.returncode == 0
    found = {key: slices for key, slices in batches(tmp_path).items() if len(slices) == key[1]}
    assert all([row for rank in sorted(slices) for row in slices[rank]] == expected[key[0]]
               for key, slices in found.items())  # fmt: skip
    second = sorted(step for step, ranks in found if ranks == 3)
    assert second == list(range(second[0], len(expected)))
    assert second[0] > 0
    assert {step for step, _ in found} == set(range(len(expected)))

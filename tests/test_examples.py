"""The examples train in processes of their own, are killed in the middle of an epoch, and go on with other ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.feeds import wait_for

EXAMPLES = Path(__file__).parent.parent / "examples"


def lines(folder: Path) -> list[dict[str, object]]:
    """What the runs so far have written down; the last line may be cut off by a kill."""
    path = folder / "batches.jsonl"
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

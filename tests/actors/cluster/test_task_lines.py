"""What functions print in the processes of tasks, on the script's terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.actors.cluster.task_lines import show

SCRIPT = """
import logging
import sys
import time

import pyarrow as pa

import penstock as ps


class Seen:
    def __init__(self, stream):
        self.stream, self.text = stream, ""

    def write(self, text):
        self.text += text
        return self.stream.write(text)

    def __getattr__(self, name):
        return getattr(self.stream, name)


def talking(batch):
    print("hello", batch.num_rows)
    logging.getLogger("mine").warning("a warning of mine")
    return batch


if __name__ == "__main__":
    sys.stdout, sys.stderr = out, err = Seen(sys.stdout), Seen(sys.stderr)
    flow, rows = ps.Flow("talk"), pa.table({"x": range(10)})
    flow.from_tables(rows, name="rows").map_batches(talking, schema=rows.schema).write_parquet("out")
    with ps.run(flow) as job:
        assert job.wait(120).status().state == "finished"
        until = time.monotonic() + 120
        while not ("hello" in out.text and "mine" in err.text) and time.monotonic() < until:
            time.sleep(0.05)
"""


@pytest.mark.ray
def test_what_a_function_prints_comes_with_its_tasks_name_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONWARNINGS": ""}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, "talk.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "(talk rows[0]) hello 10\n"
    assert done.stderr == "(talk rows[0]) a warning of mine\n"


def test_lines_of_others_and_of_the_log_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show({"actor_name": "talk rows[0]", "is_err": True, "lines": ['{"time": "2026", "level": "INFO"}', "mine"]})
    show({"actor_name": "talk rows[1]", "is_err": False, "lines": ["one", "two"]})
    show({"actor_name": "CoordinatorActor", "is_err": False, "lines": ["no"]})
    show({"actor_name": None, "is_err": True, "lines": ["no"], "pid": "raylet"})
    show({"actor_name": "talk rows[0]", "is_err": True})
    printed = capsys.readouterr()
    assert printed.out == "(talk rows[1]) one\n(talk rows[1]) two\n"
    assert printed.err == "(talk rows[0]) mine\n"

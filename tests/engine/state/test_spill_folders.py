"""Folders of spilled rows: whose process lives stays, whose was killed goes with the next one that is made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from penstock.engine.state.spill import SpillFolder

WAITING = """
import sys
from penstock.engine.state.spill import SpillFolder
print((folder := SpillFolder()).path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folder_is_removed_with_what_is_in_it() -> None:
    folder = SpillFolder()
    Path(folder.path, "rows").write_bytes(b"x")
    folder.remove()
    folder.remove()
    assert not os.path.exists(folder.path)


def test_folders_of_processes_that_live_stay_and_those_of_killed_ones_go(place: Path) -> None:
    own = SpillFolder()
    with subprocess.Popen([sys.executable, "-c", WAITING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        theirs = other.stdout.readline().decode().strip()
        SpillFolder().remove()
        assert {str(found) for found in place.iterdir()} == {own.path, theirs}
        other.send_signal(signal.SIGKILL)
    SpillFolder().remove()
    assert {str(found) for found in place.iterdir()} == {own.path}
    own.remove()


def test_folder_that_is_removed_before_it_is_locked_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [], tempfile.mkdtemp

    def make_and_lose_the_first(prefix: str) -> str:
        made.append(make(prefix=prefix))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose_the_first)
    folder = SpillFolder()
    assert [folder.path] == made[1:]
    folder.remove()

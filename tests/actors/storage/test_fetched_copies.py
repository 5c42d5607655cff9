"""A part that had to be fetched from the store lies on this machine afterwards."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.actors.storage import local_copies
from penstock.actors.storage.local_copies import LocalCopies
from penstock.actors.storage.snapshots import SnapshotFiles
from penstock.engine.core.identity import Attempt, CheckpointId, StateHandle, TaskId

TASK, ATTEMPT = TaskId("sum", 0), Attempt(1, 1)
TABLE = pa.table({"n": list(range(10_000))})


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    """However full the disk is that the tests run on."""
    monkeypatch.setattr(local_copies, "_FREE_SHARE", 0.0)


def machine(folder: Path, name: str) -> tuple[SnapshotFiles, LocalCopies]:
    place = folder / name
    place.mkdir(exist_ok=True)
    copies = LocalCopies("job", str(place))
    return SnapshotFiles(str(folder / "store"), "job", copies=copies), copies


def written(folder: Path) -> tuple[StateHandle, ...]:
    files, _ = machine(folder, "first")
    handles = files.write(TASK, CheckpointId(1, 1), ATTEMPT, {"sum": TABLE})
    files.close()
    return handles


def test_second_restore_on_another_machine_does_not_ask_the_store(tmp_path: Path) -> None:
    handles = written(tmp_path)
    files, copies = machine(tmp_path, "second")
    assert files.read(handles)["sum"].equals(TABLE)
    assert (copies.statistics.missing, copies.statistics.found) == (1, 0)
    (tmp_path / "store" / handles[0].location).unlink()
    assert files.read(handles)["sum"].equals(TABLE)
    assert (copies.statistics.missing, copies.statistics.found) == (1, 1)
    files.close()

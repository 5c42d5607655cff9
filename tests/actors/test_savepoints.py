"""Savepoints on a real file system: whole, movable, and gone without a trace when they fail."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from penstock.actors.savepoints import FILE, SavepointFiles, prepared_for_savepoints, read_savepoint
from penstock.actors.snapshots import SnapshotFiles
from penstock.coordinator.commands import StoreSavepoint
from penstock.coordinator.manifest import Manifest, TaskState
from penstock.coordinator.manifest_making import make_savepoint
from penstock.engine.errors import StorageError
from penstock.engine.identity import Attempt, CheckpointId, TaskId

CHECKPOINT = CheckpointId(1, 3)
TASK = TaskId("a", 0)


def order(folder: Path, target: str = "") -> StoreSavepoint:
    """A savepoint of one task with two operators, as the coordinator orders it."""
    tables = {name: pa.table({"__lane": [0], name: [1]}) for name in ("read", "write")}
    handles = SnapshotFiles(str(folder), "job").write(TASK, CHECKPOINT, Attempt(1, 1), tables)
    manifest = Manifest(
        number=7,
        checkpoint=CHECKPOINT,
        fingerprint="f",
        parallelism={"a": 1},
        tasks=(TaskState(task=TASK, state=handles),),
        kind="savepoint",
    )
    return StoreSavepoint(CHECKPOINT, target, *make_savepoint(manifest))


def test_savepoint_can_be_moved_and_outlives_the_jobs_folder(tmp_path: Path) -> None:
    command = order(tmp_path / "state")
    place = SavepointFiles(str(tmp_path / "state"), "job").store(command)
    assert Path(place) == tmp_path / "state" / "job" / "savepoints" / "1.3"
    shutil.move(place, tmp_path / "moved")
    shutil.rmtree(tmp_path / "state")
    found = read_savepoint(str(tmp_path / "moved"))
    assert found == command.manifest
    (task,) = found.tasks
    read = SnapshotFiles(str(tmp_path / "moved"), "job").read(task.state)
    assert read["write"].column("write").to_pylist() == [1]


def test_savepoint_goes_where_the_user_says_and_never_over_another_one(tmp_path: Path) -> None:
    files = SavepointFiles(str(tmp_path / "state"), "job")
    command = order(tmp_path / "state", str(tmp_path / "mine"))
    assert files.store(command) == str(tmp_path / "mine")
    with pytest.raises(StorageError, match="holds a savepoint already"):
        files.store(command)
    assert read_savepoint(str(tmp_path / "mine")) == command.manifest


def test_savepoint_that_is_asked_for_again_is_the_one_that_stands(tmp_path: Path) -> None:
    """A coordinator may die between writing a savepoint and saying so; the next one gets the same request."""
    files = SavepointFiles(str(tmp_path / "state"), "job")
    command = order(tmp_path / "state", str(tmp_path / "mine"))
    asked = replace(command, manifest=msgspec.structs.replace(command.manifest, request="r1"))
    files.store(asked)
    later = replace(asked, checkpoint=CheckpointId(2, 5))
    assert files.store(later) == str(tmp_path / "mine")
    assert read_savepoint(str(tmp_path / "mine")).checkpoint == CHECKPOINT


def test_what_sinks_prepared_for_a_savepoint_stays_known_when_it_moves(tmp_path: Path) -> None:
    assert prepared_for_savepoints(str(tmp_path / "state"), "job") == []
    command = order(tmp_path / "state")
    place = SavepointFiles(str(tmp_path / "state"), "job").store(command)
    shutil.move(place, tmp_path / "moved")
    assert prepared_for_savepoints(str(tmp_path / "state"), "job") == [command.manifest]


def test_savepoint_that_fails_leaves_no_file(tmp_path: Path) -> None:
    command = order(tmp_path / "state")
    (tmp_path / "state" / command.copies[-1][0]).unlink()
    with pytest.raises(StorageError, match=f"{command.copies[-1][0]} is gone"):
        SavepointFiles(str(tmp_path / "state"), "job").store(command)
    left = tmp_path / "state" / "job" / "savepoints"
    assert [path for path in left.rglob("*") if path.is_file()] == []


def test_deleted_savepoint_is_none_any_more(tmp_path: Path) -> None:
    files = SavepointFiles(str(tmp_path / "state"), "job")
    place = files.store(order(tmp_path / "state"))
    files.delete(place, ())
    assert [path for path in Path(place).rglob("*") if path.is_file()] == []
    with pytest.raises(StorageError, match=FILE):
        read_savepoint(place)


def test_file_that_is_no_savepoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(StorageError, match="cannot be read"):
        read_savepoint(str(tmp_path))

"""Savepoints on a real file system: whole, movable, and gone without a trace when they fail."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from penstock.actors.claims.savepoints import FILE, SavepointFiles, prepared_for_savepoints, read_savepoint
from penstock.actors.storage.snapshots import SnapshotFiles
from penstock.coordinator.checkpoint.finalizer import make_savepoint
from penstock.coordinator.model.commands import CopySavepoint, StoreSavepoint
from penstock.coordinator.model.manifest import Manifest, TaskState
from penstock.engine.core.errors import StorageError
from penstock.engine.core.identity import Attempt, CheckpointId, TaskId

CHECKPOINT = CheckpointId(1, 3)
TASK = TaskId("a", 0)


def order(folder: Path, checkpoint: CheckpointId = CHECKPOINT, request: str = "") -> tuple[CopySavepoint, Manifest]:
    """A savepoint of one task with two operators, as the coordinator orders it, and its manifest."""
    tables = {name: pa.table({"__lane": [0], name: [1]}) for name in ("read", "write")}
    handles = SnapshotFiles(str(folder), "job", inline=0).write(TASK, checkpoint, Attempt(1, 1), tables)
    manifest = Manifest(
        number=7,
        checkpoint=checkpoint,
        fingerprint="f",
        parallelism={"a": 1},
        tasks=(TaskState(task=TASK, state=handles),),
        kind="savepoint",
        request=request,
    )
    savepoint, copies = make_savepoint(manifest)
    return CopySavepoint(checkpoint, "", savepoint, copies, request), savepoint


def store(files: SavepointFiles, copy: CopySavepoint, manifest: Manifest) -> str:
    """Copied and created; its place."""
    place, holds = files.copy(copy)
    assert holds is None
    assert files.store(StoreSavepoint(copy.checkpoint, place, manifest, copy.copies)) is None
    return place


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def files(tmp_path: Path) -> SavepointFiles:
    return SavepointFiles(str(tmp_path / "state"), "job")


def test_savepoint_can_be_moved_and_outlives_the_jobs_folder(tmp_path: Path, files: SavepointFiles) -> None:
    copy, manifest = order(tmp_path / "state")
    place = store(files, copy, manifest)
    assert Path(place) == tmp_path / "state" / "job" / "savepoints" / "1.3"
    shutil.move(place, tmp_path / "moved")
    shutil.rmtree(tmp_path / "state")
    found = read_savepoint(str(tmp_path / "moved"))
    assert found == manifest
    (task,) = found.tasks
    read = SnapshotFiles(str(tmp_path / "moved"), "job").read(task.state)
    assert read["write"].column("write").to_pylist() == [1]


def test_savepoint_goes_where_the_user_says_and_never_over_another_one(tmp_path: Path, files: SavepointFiles) -> None:
    copy, manifest = order(tmp_path / "state")
    copy = replace(copy, target=str(tmp_path / "mine"))
    assert store(files, copy, manifest) == str(tmp_path / "mine")
    with pytest.raises(StorageError, match="holds a savepoint already"):
        files.copy(copy)
    assert read_savepoint(str(tmp_path / "mine")) == manifest


@pytest.mark.parametrize("kind", ["savepoint", "stop with savepoint"])
def test_of_two_that_write_into_one_folder_at_the_same_time_one_gets_it_and_loses_nothing(
    tmp_path: Path, files: SavepointFiles, kind: str
) -> None:
    """A coordinator that was superseded writes on. Both have found the folder empty."""
    target, orders = str(tmp_path / "mine"), []
    for checkpoint in (CHECKPOINT, CheckpointId(2, 5)):
        copy, manifest = order(tmp_path / "state", checkpoint, request="r1")
        copy, manifest = replace(copy, target=target), msgspec.structs.replace(manifest, kind=kind)
        assert files.copy(copy) == (target, None)
        orders.append(StoreSavepoint(checkpoint, target, manifest, copy.copies))
    first, second = orders
    assert files.store(first) is None
    assert files.store(first) is None, "the same again is not another one"
    if kind == "savepoint":
        assert files.store(second) == CHECKPOINT
    else:
        with pytest.raises(StorageError, match="holds a savepoint already"):
            files.store(second)
    files.discard_copies(target, second.checkpoint)
    assert read_savepoint(target) == first.manifest
    assert files_below(tmp_path / "mine") == sorted([FILE, *(name for _, name in first.copies)])


def test_savepoint_that_is_asked_for_again_is_the_one_that_is_there(tmp_path: Path, files: SavepointFiles) -> None:
    """A coordinator may die between writing a savepoint and saying so; the next one gets the same request."""
    copy, manifest = order(tmp_path / "state", request="r1")
    copy = replace(copy, target=str(tmp_path / "mine"))
    store(files, copy, manifest)
    later = replace(copy, checkpoint=CheckpointId(2, 5))
    assert files.copy(later) == (str(tmp_path / "mine"), CHECKPOINT)
    assert read_savepoint(str(tmp_path / "mine")).checkpoint == CHECKPOINT


def test_what_sinks_prepared_for_a_savepoint_stays_known_when_it_moves(tmp_path: Path, files: SavepointFiles) -> None:
    assert prepared_for_savepoints(str(tmp_path / "state"), "job") == []
    copy, manifest = order(tmp_path / "state")
    shutil.move(store(files, copy, manifest), tmp_path / "moved")
    assert prepared_for_savepoints(str(tmp_path / "state"), "job") == [manifest]


def test_copying_that_fails_leaves_no_file(tmp_path: Path, files: SavepointFiles) -> None:
    copy, _ = order(tmp_path / "state")
    (tmp_path / "state" / copy.copies[-1][0]).unlink()
    with pytest.raises(StorageError, match=f"{copy.copies[-1][0]} is gone"):
        files.copy(copy)
    assert files_below(tmp_path / "state" / "job" / "savepoints") == []


def test_copies_that_are_gone_are_made_again(tmp_path: Path, files: SavepointFiles) -> None:
    """The log says that the job has stopped with it: whoever comes next makes it."""
    copy, manifest = order(tmp_path / "state")
    place, _ = files.copy(copy)
    shutil.rmtree(place)
    files.store(StoreSavepoint(copy.checkpoint, place, manifest, copy.copies))
    assert files_below(Path(place)) == sorted([FILE, *(name for _, name in copy.copies)])


def test_discarded_copies_leave_nothing(tmp_path: Path, files: SavepointFiles) -> None:
    copy, _ = order(tmp_path / "state")
    place, _ = files.copy(replace(copy, target=str(tmp_path / "mine")))
    files.discard_copies(place, copy.checkpoint)
    assert not (tmp_path / "mine").exists()


def test_deleted_savepoint_is_none_any_more(tmp_path: Path, files: SavepointFiles) -> None:
    place = store(files, *order(tmp_path / "state"))
    files.delete(place, ())
    assert files_below(Path(place)) == []
    with pytest.raises(StorageError, match=FILE):
        read_savepoint(place)


def test_file_that_is_no_savepoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(StorageError, match="cannot be read"):
        read_savepoint(str(tmp_path))

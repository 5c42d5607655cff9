"""State files: round trips, sharing of what did not change, and storage that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather

from penstock.actors.storage.snapshots import SnapshotFiles
from penstock.actors.storage.state_file import INLINE_BYTES
from penstock.engine.core.errors import DamagedFileError, StorageError
from penstock.engine.core.identity import Attempt, CheckpointId, StateHandle, TaskId
from penstock.engine.exchange.flight import Flight
from support.small_disk import KINDS, small_disk

TASK, OTHER = TaskId("join/1", 0), TaskId("join/1", 1)
FIRST, SECOND, THIRD, FOURTH = (CheckpointId(1, number) for number in (1, 2, 3, 4))
ATTEMPT = Attempt(1, 1)


def lanes(*values: int) -> pa.Table:
    return pa.table({"__lane": pa.array(range(len(values)), pa.int32()), "rows": pa.array(values, pa.int64())})


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def snapshots(tmp_path: Path) -> SnapshotFiles:
    """With a file for every state, however small it is."""
    return SnapshotFiles(str(tmp_path), "delays", inline=0)


def test_tables_come_back_by_operator_those_of_several_tasks_joined(snapshots: SnapshotFiles) -> None:
    handles = snapshots.write(TASK, FIRST, ATTEMPT, {"read": lanes(1, 2), "count": lanes(5)})
    handles += snapshots.write(OTHER, FIRST, ATTEMPT, {"read": lanes(3)})
    assert snapshots.read(handles) == {"read": pa.concat_tables([lanes(1, 2), lanes(3)]), "count": lanes(5)}
    assert [(handle.operator, handle.rows) for handle in handles] == [("read", 2), ("count", 1), ("read", 1)]
    assert snapshots.read([]) == {}


def test_states_of_one_operator_may_have_other_columns_in_each_task(snapshots: SnapshotFiles) -> None:
    held = pa.table({"__lane": pa.array([1], pa.int32()), "held": ["x"]})
    handles = snapshots.write(TASK, FIRST, ATTEMPT, {"seen": lanes(5)})
    handles += snapshots.write(OTHER, FIRST, ATTEMPT, {"seen": held})
    assert snapshots.read(handles)["seen"].to_pylist() == [
        {"__lane": 0, "rows": 5, "held": None},
        {"__lane": 1, "rows": None, "held": "x"},
    ]


def test_files_are_arrow_files_with_telling_names(snapshots: SnapshotFiles, tmp_path: Path) -> None:
    (handle,) = snapshots.write(TASK, SECOND, Attempt(1, 7), {"read": lanes(1, 2)})
    assert handle.location.startswith("delays/state/join_1_")
    assert handle.location.endswith("-00000/0001.000002-1.7.arrow")
    assert (tmp_path / handle.location).stat().st_size == handle.bytes
    assert feather.read_table(tmp_path / handle.location) == lanes(1, 2)


def test_names_never_meet_whatever_operators_and_tasks_are_called(snapshots: SnapshotFiles, tmp_path: Path) -> None:
    operators = ["a", "a/b", "a_b", "../a", "", "-a", "a-1.1-b"]
    tasks = [TaskId(name, subtask) for name in ("v", "../v", "v-00000", "", "v/0") for subtask in (0, 1)]
    written = [snapshots.write(task, FIRST, ATTEMPT, {each: lanes(1) for each in operators}) for task in tasks]
    locations = {handle.location for handles in written for handle in handles}
    assert len(locations) == len(tasks) == len(files_below(tmp_path / "delays"))
    assert list(snapshots.read(written[0])) == operators


def test_other_process_reads_what_was_written(snapshots: SnapshotFiles, tmp_path: Path) -> None:
    handles = snapshots.write(TASK, FIRST, ATTEMPT, {"read": lanes(1)})
    assert SnapshotFiles(tmp_path.as_uri(), "delays").read(handles) == {"read": lanes(1)}


# ---------------------------------------------------------------- one file, or none


def test_task_writes_one_file_whatever_is_new(snapshots: SnapshotFiles, tmp_path: Path) -> None:
    flight = Flight(b"place", (lanes(4, 5),))
    handles = snapshots.write(TASK, FIRST, ATTEMPT, {"read": lanes(1, 2), "count": lanes(5)}, flight)
    (path,) = files_below(tmp_path)
    assert {handle.location for handle in handles} == {path.relative_to(tmp_path).as_posix()}
    assert [handle.offset % 64 for handle in handles] == [0] * 4
    assert handles[-1].offset + handles[-1].bytes == path.stat().st_size
    assert snapshots.read(handles) == {"read": lanes(1, 2), "count": lanes(5)}
    assert snapshots.read_flights(handles) == (flight,)
    read_alone = pa.ipc.open_file(path.read_bytes()[handles[1].offset :][: handles[1].bytes]).read_all()
    assert read_alone == lanes(5)


@pytest.mark.parametrize("inline", [0, INLINE_BYTES])
@pytest.mark.parametrize("tables", [(), (lanes(1), pa.table({"other": ["x", None]})), (lanes(1).slice(1),)])
def test_flight_comes_back(tmp_path: Path, inline: int, tables: tuple[pa.Table, ...]) -> None:
    snapshots = SnapshotFiles(str(tmp_path), "delays", inline)
    handles = snapshots.write(TASK, FIRST, ATTEMPT, {"read": lanes(1)}, Flight(b"\x00place", tables))
    assert snapshots.read_flights(handles) == (Flight(b"\x00place", tables),)
    assert snapshots.read(handles) == {"read": lanes(1)}
    assert snapshots.read_flights(snapshots.write(TASK, SECOND, ATTEMPT, {"read": lanes(1)})) == ()
    assert len(files_below(tmp_path)) == (2 if inline == 0 else 0)


def test_little_state_needs_no_file(tmp_path: Path) -> None:
    snapshots = SnapshotFiles(str(tmp_path), "delays")
    flight = Flight(b"place", (lanes(4),))
    handles = snapshots.write(TASK, FIRST, ATTEMPT, {"read": lanes(1, 2), "count": lanes(5)}, flight)
    assert not files_below(tmp_path)
    assert snapshots.read(handles) == {"read": lanes(1, 2), "count": lanes(5)}
    assert snapshots.read_flights(handles) == (flight,)
    assert sum(len(handle.inline) for handle in handles) <= INLINE_BYTES
    snapshots.delete(handles)
    snapshots.completed(TASK, FIRST)
    assert snapshots.write(TASK, SECOND, ATTEMPT, {"read": lanes(1, 2)}) == handles[:1]


@pytest.mark.parametrize("rows", [10, 200, 500, 5_000])
def test_what_is_inlined_is_bounded_by_task(tmp_path: Path, rows: int) -> None:
    snapshots = SnapshotFiles(str(tmp_path), "delays")
    tables = {name: lanes(*(n * n for n in range(rows))) for name in "abc"}
    handles = snapshots.write(TASK, FIRST, ATTEMPT, tables)
    assert snapshots.read(handles) == tables
    assert sum(len(handle.inline) for handle in handles) <= INLINE_BYTES
    assert bool(files_below(tmp_path)) == (sum(handle.bytes for handle in handles) > INLINE_BYTES)


def test_task_without_news_writes_no_file(snapshots: SnapshotFiles, tmp_path: Path) -> None:
    first = snapshots.write(TASK, FIRST, ATTEMPT, {"index": lanes(9), "read": lanes(1)})
    snapshots.completed(TASK, FIRST)
    assert snapshots.write(TASK, SECOND, ATTEMPT, {"index": lanes(9), "read": lanes(1)}) == first
    assert len(files_below(tmp_path)) == 1


# ---------------------------------------------------------------- sharing


def test_unchanged_state_of_a_completed_checkpoint_is_not_written_again(
    snapshots: SnapshotFiles, tmp_path: Path
) -> None:
    first = snapshots.write(TASK, FIRST, ATTEMPT, {"index": lanes(9, 9), "read": lanes(1)})
    snapshots.completed(TASK, FIRST)
    second = snapshots.write(TASK, SECOND, ATTEMPT, {"index": lanes(9, 9), "read": lanes(2)})
    assert second[0] == first[0]
    assert second[1] != first[1]
    assert len(files_below(tmp_path)) == 2
    assert snapshots.bytes_shared == first[0].bytes
    assert snapshots.read(second) == {"index": lanes(9, 9), "read": lanes(2)}


def test_state_stays_shared_over_checkpoints_that_are_given_up(snapshots: SnapshotFiles) -> None:
    first = snapshots.write(TASK, FIRST, ATTEMPT, {"index": lanes(9)})
    snapshots.completed(TASK, FIRST)
    written = [snapshots.write(TASK, checkpoint, ATTEMPT, {"index": lanes(9)}) for checkpoint in (SECOND, THIRD)]
    assert written == [first, first]


def test_file_of_a_checkpoint_that_may_be_given_up_is_not_shared(snapshots: SnapshotFiles) -> None:
    first = snapshots.write(TASK, FIRST, ATTEMPT, {"index": lanes(9)})
    second = snapshots.write(TASK, SECOND, ATTEMPT, {"index": lanes(9)})
    snapshots.delete(first)  # the first one was given up
    snapshots.completed(OTHER, SECOND)  # another task's
    third = snapshots.write(TASK, THIRD, ATTEMPT, {"index": lanes(9)})
    assert len({handle.location for handle in (*first, *second, *third)}) == 3


def test_file_is_not_shared_once_a_completed_checkpoint_went_without_it(snapshots: SnapshotFiles) -> None:
    first = snapshots.write(TASK, FIRST, ATTEMPT, {"index": lanes(9)})
    snapshots.write(TASK, SECOND, ATTEMPT, {})
    snapshots.completed(TASK, SECOND)
    snapshots.delete(first)  # the first one was given up, the second one has no such file
    (again,) = snapshots.write(TASK, THIRD, ATTEMPT, {"index": lanes(9)})
    assert again != first[0]


def test_state_that_went_back_to_an_older_one_is_written_again(snapshots: SnapshotFiles) -> None:
    (first,) = snapshots.write(TASK, FIRST, ATTEMPT, {"index": lanes(9)})
    snapshots.write(TASK, SECOND, ATTEMPT, {"index": lanes(8)})
    snapshots.completed(TASK, SECOND)
    (third,) = snapshots.write(TASK, THIRD, ATTEMPT, {"index": lanes(9)})
    assert third.location != first.location


def test_late_write_of_an_older_checkpoint_does_not_come_back(snapshots: SnapshotFiles) -> None:
    snapshots.write(TASK, SECOND, ATTEMPT, {})
    (late,) = snapshots.write(TASK, FIRST, ATTEMPT, {"index": lanes(9)})  # a slow thread
    snapshots.completed(TASK, SECOND)
    (third,) = snapshots.write(TASK, THIRD, ATTEMPT, {"index": lanes(9)})
    assert third != late


def test_new_attempt_shares_nothing_with_the_one_before(snapshots: SnapshotFiles) -> None:
    (first,) = snapshots.write(TASK, FIRST, ATTEMPT, {"index": lanes(9)})
    snapshots.completed(TASK, FIRST)
    (second,) = snapshots.write(TASK, SECOND, Attempt(1, 2), {"index": lanes(9)})
    assert first.location != second.location


# ---------------------------------------------------------------- deleting and failing


def test_folder_that_is_away_is_no_damage(snapshots: SnapshotFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    (handle,) = snapshots.write(TASK, FIRST, ATTEMPT, {"read": lanes(1)})
    monkeypatch.setattr("penstock.actors.storage.snapshots.LOOK_AGAIN", 0.0)
    folder = Path(snapshots.url)
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(StorageError) as caught:
        snapshots.read([handle])
    assert not isinstance(caught.value, DamagedFileError)
    folder.with_name("elsewhere").rename(folder)
    assert snapshots.read([handle]).keys() == {"read"}


def test_deleted_files_are_gone_and_deleting_again_does_no_harm(snapshots: SnapshotFiles, tmp_path: Path) -> None:
    handles = snapshots.write(TASK, FIRST, ATTEMPT, {"read": lanes(1), "index": lanes(2)})
    for _ in range(2):
        snapshots.delete(handles[:1])
    assert len(files_below(tmp_path)) == 0
    with pytest.raises(DamagedFileError, match=f"{handles[0].location} is gone"):
        snapshots.read(handles)


def test_file_that_a_folder_shows_late_is_found(snapshots: SnapshotFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = snapshots.write(TASK, FIRST, ATTEMPT, {"read": lanes(1)})
    filesystem, misses = snapshots._filesystem, [FileNotFoundError()]

    class Late:
        def open_input_file(self, path: str) -> Any:
            if misses:
                raise misses.pop()
            return filesystem.open_input_file(path)

    monkeypatch.setattr(snapshots, "_filesystem", Late())
    assert snapshots.read(handles)["read"].equals(lanes(1))


def test_damaged_file_is_named(snapshots: SnapshotFiles, tmp_path: Path) -> None:
    (handle,) = snapshots.write(TASK, FIRST, ATTEMPT, {"read": lanes(1)})
    (tmp_path / handle.location).write_bytes(b"ARROW1 no more")
    with pytest.raises(StorageError, match=f"{handle.location} cannot be read"):
        snapshots.read([handle])


@pytest.mark.parametrize("location", ["/etc/passwd", "../x", "delays/../../x"])
def test_handle_cannot_reach_outside_the_folder(snapshots: SnapshotFiles, location: str) -> None:
    handle = StateHandle("read", location, 1, 1)
    for use in (snapshots.read, snapshots.delete):
        with pytest.raises(StorageError, match="lies outside"):
            use([handle])


def test_folder_that_became_unusable_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    snapshots = SnapshotFiles(str(tmp_path / "file"), "delays", inline=0)
    with pytest.raises(StorageError, match=f"cannot write a checkpoint into {tmp_path}/file: Not a directory"):
        snapshots.write(TASK, FIRST, ATTEMPT, {"read": lanes(1)})


@pytest.mark.parametrize("kind", KINDS)
def test_full_disk_names_folder_reason_and_remedy_and_leaves_no_new_file(tmp_path: Path, kind: str) -> None:
    large = pa.table({"__lane": pa.array([0] * 50_000, pa.int32()), "key": [str(n * n) for n in range(50_000)]})
    with small_disk(kind, tmp_path / "disk", 128 * 1024) as disk:
        snapshots = SnapshotFiles(str(disk), "delays", inline=0)
        kept = snapshots.write(TASK, FIRST, ATTEMPT, {"read": lanes(1)})
        before = files_below(disk)
        with pytest.raises(StorageError, match=r"(No space left on device|File too large)") as caught:
            snapshots.write(TASK, SECOND, ATTEMPT, {"read": lanes(2), "index": large})
        assert caught.value.message.startswith(f"cannot write a checkpoint into {disk}: ")
        assert "free space there" in caught.value.remedy
        assert files_below(disk) == before
        assert snapshots.read(kept) == {"read": lanes(1)}
        assert snapshots.write(TASK, THIRD, ATTEMPT, {"read": lanes(3)})

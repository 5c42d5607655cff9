"""Copies of states on the machine that wrote them: which stay, which are believed, and that they never matter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from threading import Thread

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.claims.place import place_in
from penstock.actors.protocol.settings import Checkpoints
from penstock.actors.storage import local_copies
from penstock.actors.storage.local_copies import CopyBook, Found, LocalCopies, to_let_go
from penstock.actors.storage.snapshots import SnapshotFiles
from penstock.engine.core.errors import DamagedFileError
from penstock.engine.core.identity import Attempt, CheckpointId, StateHandle, TaskId
from penstock.engine.integrity.checksums import digest
from penstock.engine.runtime.statistics import CopyStatistics

TASK, OTHER = TaskId("join/1", 0), TaskId("join/1", 1)
FIRST, SECOND, THIRD = (CheckpointId(1, number) for number in (1, 2, 3))
ATTEMPT = Attempt(1, 1)


def rows(start: int) -> pa.Table:
    return pa.table(
        {"__lane": pa.array([0] * 100, pa.int32()), "rows": pa.array(range(start, start + 100), pa.int64())}
    )


class Machine:
    """Where processes of a job keep their copies, beside a checkpoint folder that all machines see."""

    def __init__(self, folder: Path, name: str = "machine") -> None:
        self.place = folder / name
        self.place.mkdir()
        self._state = folder / "state"

    def process(self, most: int = local_copies.MOST_BYTES) -> tuple[SnapshotFiles, LocalCopies]:
        copies = LocalCopies("job", str(self.place), most)
        return SnapshotFiles(str(self._state), "delays", inline=0, copies=copies), copies

    @property
    def copies(self) -> list[Path]:
        return sorted(path for path in self.place.rglob("*") if path.is_file())


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    """However full the disk is that the tests run on."""
    monkeypatch.setattr(local_copies, "_FREE_SHARE", 0.0)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def lose(folder: Path) -> None:
    """The store is out of reach."""
    for path in (folder / "state").rglob("*.arrow"):
        path.unlink()


# ---------------------------------------------------------------------- what stays


def test_book_keeps_the_newest_complete_checkpoint_and_what_is_under_way() -> None:
    book = CopyBook()
    book.named(FIRST, ["a", "b"])
    assert book.completed(FIRST)
    book.named(SECOND, ["b", "c"])
    book.named(THIRD, ["b", "d"])
    assert book.wanted == {"a", "b", "c", "d"}
    assert book.completed(THIRD)  # the second was given up
    assert book.wanted == {"b", "d"}


def test_book_of_a_process_that_did_not_write_the_checkpoint_keeps_what_it_went_on_from() -> None:
    book = CopyBook()
    book.restored(["a"])
    assert not book.completed(FIRST)
    book.named(SECOND, ["b"])
    assert book.wanted == {"a", "b"}
    assert book.completed(SECOND)
    assert book.wanted == {"b"}


@given(
    st.dictionaries(st.text("abc", max_size=3), st.builds(Found, st.integers(0, 50), st.floats(0, 9)), max_size=6),
    st.frozensets(st.text("abc", max_size=3), max_size=3),
    st.integers(0, 60),
    st.integers(0, 120),
)
def test_room_is_made_by_as_few_as_are_needed_the_oldest_of_those_that_nobody_wants(
    found: dict[str, Found], wanted: frozenset[str], size: int, room: int
) -> None:
    going = to_let_go(found, wanted, size, room)
    total = sum(each.bytes for each in found.values()) + size
    free = sorted((found[name].written for name in found.keys() - wanted), reverse=True)
    if going is None:
        assert total - sum(found[name].bytes for name in found.keys() - wanted) > room
        return
    assert not set(going) & wanted
    assert total - sum(found[name].bytes for name in going) <= room
    assert not going or total - sum(found[name].bytes for name in going[:-1]) > room
    assert sorted((found[name].written for name in going), reverse=True) == free[len(free) - len(going) :]


# ---------------------------------------------------------------------- what they are good for


def test_next_process_on_the_machine_reads_the_copies_and_asks_no_store(machine: Machine, tmp_path: Path) -> None:
    files, _ = machine.process()
    handles = files.write(TASK, FIRST, ATTEMPT, {"read": rows(0), "count": rows(7)})
    lose(tmp_path)
    again, copies = machine.process()
    assert again.read(handles) == {"read": rows(0), "count": rows(7)}
    assert copies.statistics == CopyStatistics(2, sum(handle.bytes for handle in handles))


def test_another_machine_reads_the_store(machine: Machine, tmp_path: Path) -> None:
    handles = machine.process()[0].write(TASK, FIRST, ATTEMPT, {"read": rows(0)})
    elsewhere, copies = Machine(tmp_path, "other").process()
    assert elsewhere.read(handles) == {"read": rows(0)}
    assert copies.statistics == CopyStatistics(missing=1)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "shorter": lambda data: data[:-1],
    "a bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_damaged_copy_is_never_believed_and_is_replaced(
    machine: Machine, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    files, copies = machine.process()
    handles = files.write(TASK, FIRST, ATTEMPT, {"read": rows(0)})
    (copy,) = machine.copies
    copy.write_bytes(damage(copy.read_bytes()))
    assert files.read(handles) == {"read": rows(0)}
    assert copies.statistics == CopyStatistics(damaged=1)
    lose(tmp_path)
    assert files.read(handles) == {"read": rows(0)}
    assert (copies.statistics.damaged, copies.statistics.found) == (1, 1)


def test_copy_does_not_hide_that_the_manifest_names_another_state(machine: Machine) -> None:
    files, _ = machine.process()
    (handle,) = files.write(TASK, FIRST, ATTEMPT, {"read": rows(0)})
    (other,) = files.write(TASK, SECOND, ATTEMPT, {"read": rows(1)})
    wrong = StateHandle("read", handle.location, handle.bytes, handle.rows, digest=other.digest)
    assert handle.bytes == other.bytes
    machine.copies[0].unlink()
    machine.copies[0].unlink()
    with pytest.raises(DamagedFileError):
        files.read([wrong])


def test_shared_parts_are_kept_as_long_as_a_checkpoint_names_them(machine: Machine, tmp_path: Path) -> None:
    files, _ = machine.process()
    for checkpoint, start in ((FIRST, 0), (SECOND, 1), (THIRD, 2)):
        handles = files.write(TASK, checkpoint, ATTEMPT, {"same": rows(50), "other": rows(start)})
        files.completed(TASK, checkpoint)
    assert len(machine.copies) == 2
    lose(tmp_path)
    assert machine.process()[0].read(handles) == {"same": rows(50), "other": rows(2)}


def test_copies_of_an_aborted_checkpoint_and_of_a_lost_process_go_with_the_next_complete_one(machine: Machine) -> None:
    lost, _ = machine.process()
    lost.write(TASK, FIRST, ATTEMPT, {"read": rows(0)})
    lost.write(OTHER, FIRST, ATTEMPT, {"read": rows(1)})
    lost.write(TASK, SECOND, ATTEMPT, {"read": rows(2)})
    machine.copies[0].with_name("half.1").write_bytes(b"half")
    files, _ = machine.process()
    (handle,) = files.write(TASK, THIRD, Attempt(1, 2), {"read": rows(3)})
    files.completed(TASK, THIRD)
    mine = [path for path in machine.copies if "00000" in path.parent.name]
    assert [path.name for path in mine] == [handle.digest]
    assert len(machine.copies) == 2  # the other task's is that one's


# ---------------------------------------------------------------------- what they must not do


def test_no_more_than_so_many_bytes_and_what_is_needed_stays(machine: Machine) -> None:
    files, _ = machine.process()
    (old,) = files.write(OTHER, FIRST, ATTEMPT, {"read": rows(0)})
    small, _ = machine.process(most=2 * old.bytes + 10)
    (first,) = small.write(TASK, FIRST, ATTEMPT, {"read": rows(1)})
    small.completed(TASK, FIRST)
    (second,) = small.write(TASK, SECOND, ATTEMPT, {"read": rows(2)})
    small.write(TASK, THIRD, ATTEMPT, {"read": rows(3)})  # no room: the first is needed until the next is complete
    assert {path.name for path in machine.copies} == {first.digest, second.digest}


def test_disk_that_is_nearly_full_is_left_alone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_copies, "_FREE_SHARE", 1.0)
    files, _ = machine.process()
    assert files.read(files.write(TASK, FIRST, ATTEMPT, {"read": rows(0)})) == {"read": rows(0)}
    assert machine.copies == []


@pytest.mark.parametrize("way", ["a file", "open to others", "a link", "gone"])
def test_place_that_cannot_be_used_fails_nothing(machine: Machine, tmp_path: Path, way: str) -> None:
    folder = machine.place / f"penstock-copies-{os.getuid()}-job"
    if way == "a file":
        folder.write_text("")
    elif way == "open to others":
        folder.mkdir(mode=0o700)
        folder.chmod(0o755)
    elif way == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        machine.place.rmdir()
    files, copies = machine.process()
    handles = files.write(TASK, FIRST, ATTEMPT, {"read": rows(0)})
    files.completed(TASK, FIRST)
    assert files.read(handles) == {"read": rows(0)}
    assert copies.statistics.found == 0
    files.close()


def test_names_in_a_handle_are_no_paths(machine: Machine) -> None:
    _, copies = machine.process()
    (machine.place / "secret").write_bytes(b"x")
    handle = StateHandle("read", "delays/state/../x.arrow", 1, 1, digest="../../secret")
    assert copies.read(handle) is None
    assert copies.statistics == CopyStatistics(missing=1)


# ---------------------------------------------------------------------- the end


def test_last_process_leaves_nothing(machine: Machine) -> None:
    (one, _), (two, _) = machine.process(), machine.process()
    one.write(TASK, FIRST, ATTEMPT, {"read": rows(0)})
    two.write(OTHER, FIRST, ATTEMPT, {"read": rows(0)})
    one.close()
    assert len(machine.copies) == 2
    two.close()
    assert list(machine.place.iterdir()) == []
    one.write(TASK, SECOND, ATTEMPT, {"read": rows(1)})  # a thread that is late
    assert list(machine.place.iterdir()) == []


def test_killed_processes_leave_copies_to_the_next_of_the_job_and_any_other_job_removes_them(machine: Machine) -> None:
    script = """
        import os, signal, sys
        from penstock.actors.storage import local_copies
        from penstock.actors.storage.local_copies import LocalCopies
        from penstock.engine.core.identity import CheckpointId, StateHandle
        from penstock.engine.integrity.checksums import digest
        local_copies._FREE_SHARE = 0.0
        copies = LocalCopies("job", sys.argv[1])
        copies.keep(CheckpointId(1, 1), StateHandle("read", "j/state/t-00000/f", 4, 1, digest=digest(b"rows")), b"rows")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", dedent(script), str(machine.place)], check=False, timeout=60)
    (copy,) = machine.copies
    next_one = LocalCopies("job", str(machine.place))
    handle = StateHandle("read", "j/state/t-00000/f", 4, 1, digest=copy.name)
    assert next_one.read(handle) is not None
    other = LocalCopies("another", str(machine.place))
    other.keep(FIRST, handle, pa.py_buffer(b"rows"))
    assert copy.exists()  # its job goes on
    os.close(next_one._held or 0)
    late = LocalCopies("third", str(machine.place))
    late.keep(FIRST, handle, pa.py_buffer(b"rows"))
    assert not copy.exists()


@pytest.mark.parametrize(
    ("folder", "asked", "kept"),
    [
        ("s3://bucket/state", None, True),
        ("s3://bucket/state", False, False),
        ("state", None, False),
        ("state", True, True),
    ],
)
def test_copies_are_kept_for_stores_unless_the_user_says_otherwise(
    folder: str, asked: bool | None, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_in(Checkpoints(folder, local_copies=asked)).local_copies is kept


def test_two_tasks_of_a_process_that_fetch_the_same_part_do_not_meet(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a job goes on at another parallelism, and both have lanes of the task that wrote it."""
    _, copies = machine.process()
    data = pa.py_buffer(b"rows")
    handle = StateHandle("join", "state/join-00000/1.1-1.1.arrow", 4, 1, digest=digest(data))
    replaced = os.replace

    def replace_behind_the_other(partial: Path, path: Path) -> None:
        monkeypatch.setattr(os, "replace", replaced)
        other = Thread(target=copies.fetched, args=(handle, data))
        other.start()
        other.join()
        replaced(partial, path)

    monkeypatch.setattr(os, "replace", replace_behind_the_other)
    copies.fetched(handle, data)
    assert [path.name for path in machine.copies] == [handle.digest]
    assert copies.read(handle) == data
    assert not caplog.text
    copies.close()

"""The log of a job in a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.actors.storage.log import create_entry, delete_entries, key_of, read_entries, read_log
from penstock.actors.storage.stores import FileStore
from penstock.coordinator.model.manifest import Claim, Dropped, Ended, Manifest, TaskState, encode
from penstock.engine.core.errors import StorageError
from penstock.engine.core.identity import CheckpointId, Committable, StateHandle, TaskId

JOB = "daily delays"
CLAIM = Claim(number=1, generation=1, job=JOB, fingerprint="f")
MANIFEST = Manifest(
    number=2,
    checkpoint=CheckpointId(1, 1),
    fingerprint="f",
    parallelism={"a": 1},
    tasks=(
        TaskState(
            task=TaskId("a", 0),
            state=(StateHandle("read", "x/y.arrow", 10, 1),),
            committables=(Committable("write", 3, {"files": [{"rows": 3}]}),),
        ),
    ),
)
ENDED = Ended(number=3, generation=1, status="finished")


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def test_entries_come_back_in_order(store: FileStore) -> None:
    assert read_log(store, JOB) == []
    for entry in (CLAIM, MANIFEST, ENDED):
        assert create_entry(store, JOB, entry) == "stored"
    assert read_log(store, JOB) == [CLAIM, MANIFEST, ENDED]
    assert store.list("")[0].endswith("/log/000000000001.json")


def test_same_entry_again_counts_as_stored_and_another_one_is_refused(store: FileStore) -> None:
    assert create_entry(store, JOB, CLAIM) == "stored"
    assert create_entry(store, JOB, CLAIM) == "stored"
    assert create_entry(store, JOB, Claim(number=1, generation=2, job=JOB, fingerprint="f")) == "refused"
    assert read_log(store, JOB) == [CLAIM]


def test_jobs_have_logs_of_their_own(store: FileStore) -> None:
    create_entry(store, "daily", CLAIM)
    create_entry(store, "daily delays", MANIFEST)
    create_entry(store, "daily_delays", ENDED)
    assert [read_log(store, job) for job in ("daily", "daily delays", "daily_delays")] == [[CLAIM], [MANIFEST], [ENDED]]


def test_deleted_entries_are_left_out_and_the_others_keep_their_numbers(store: FileStore) -> None:
    for entry in (CLAIM, MANIFEST, ENDED):
        create_entry(store, JOB, entry)
    delete_entries(store, JOB, [2, 7])
    assert read_log(store, JOB) == [CLAIM, ENDED]


def test_entry_deleted_between_listing_and_reading_is_left_out(tmp_path: Path) -> None:
    class Deleting(FileStore):
        def list(self, prefix: str) -> list[str]:
            keys = super().list(prefix)
            self.delete(key_of(JOB, 1))
            return keys

    store = Deleting(tmp_path)
    for entry in (CLAIM, MANIFEST):
        create_entry(store, JOB, entry)
    assert read_log(store, JOB) == [MANIFEST]


def test_entry_under_the_number_of_another_is_an_error(store: FileStore) -> None:
    store.create(key_of(JOB, 2), encode(CLAIM))
    with pytest.raises(StorageError, match=r"log/000000000002.json holds entry 1"):
        read_log(store, JOB)


@pytest.mark.parametrize("data", [b"", b"{", b'{"type":"recipe","number":1}'])
def test_entry_that_cannot_be_read_is_named(store: FileStore, data: bytes) -> None:
    store.create(key_of(JOB, 1), data)
    with pytest.raises(StorageError, match=r"log/000000000001.json in the checkpoint folder cannot be read"):
        read_log(store, JOB)


class Moving(FileStore):
    """A store in which, after each listing, ``happens`` does."""

    def __init__(self, folder: Path, happens: Callable[[], None]) -> None:
        super().__init__(folder)
        self._happens = happens

    def list(self, prefix: str) -> list[str]:
        keys = super().list(prefix)
        self._happens()
        return keys


def test_log_is_listed_again_if_an_entry_has_gone_before_it_was_read(store: FileStore, tmp_path: Path) -> None:
    """A reader that passed over it would see neither the old checkpoint nor the one that took its place."""
    newer = replace(MANIFEST, number=3, checkpoint=CheckpointId(1, 2))
    for entry in (CLAIM, MANIFEST):
        create_entry(store, JOB, entry)

    def complete() -> None:
        create_entry(store, JOB, newer)
        delete_entries(store, JOB, [2])

    assert read_log(Moving(tmp_path, complete), JOB) == [CLAIM, newer]


def test_log_that_never_stands_still_is_an_error(store: FileStore, tmp_path: Path) -> None:
    create_entry(store, JOB, replace(CLAIM, number=0))

    def complete() -> None:
        newest = len(store.list("")) and int(store.list("")[-1][-17:-5])
        create_entry(store, JOB, replace(CLAIM, number=newest + 1))
        delete_entries(store, JOB, [newest])

    with pytest.raises(StorageError, match="changes faster than it can be read"):
        read_log(Moving(tmp_path, complete), JOB)


def test_checkpoints_that_an_ending_has_dropped_do_not_count_although_they_are_still_there(store: FileStore) -> None:
    dropped = Dropped(number=3, generation=1, numbers=(2,))
    for entry in (CLAIM, MANIFEST, dropped):
        create_entry(store, JOB, entry)
    assert read_log(store, JOB) == [CLAIM, dropped]
    assert read_entries(store, JOB) == [CLAIM, MANIFEST, dropped]

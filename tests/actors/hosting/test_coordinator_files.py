"""What a coordinator's threads do with its log and files, and say of it."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from penstock.actors.hosting.coordinator_host import CoordinatorFiles, FileCommand
from penstock.actors.storage.memory_store import MemoryStore
from penstock.coordinator.model.commands import ReadLog, StoreEntry
from penstock.coordinator.model.events import EntryFailed, Event, LogFailed
from penstock.coordinator.model.manifest import Claim

CLAIM = Claim(number=0, generation=1, job="job", fingerprint="f", owner="one", uuid="u")


@pytest.mark.parametrize("command", [ReadLog(), StoreEntry(CLAIM)], ids=["read", "write into"])
def test_log_that_a_store_refuses_is_named_with_its_folder(
    command: FileCommand, request: pytest.FixtureRequest
) -> None:
    """A disk that is full says so when bytes are written, and not of which file."""

    class Full(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def create(self, key: str, data: bytes) -> bool:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Plan:
        name = "job"

    class Snapshots:
        url = "/the/folder"

    told: list[Event] = []
    answered = threading.Event()

    def tell(event: Event) -> None:
        told.append(event)
        answered.set()

    files = CoordinatorFiles(Plan(), Full(), Snapshots(), tell)  # type: ignore[arg-type]
    files.perform(command)
    assert answered.wait(30.0)
    files.close()
    (event,) = told
    assert isinstance(event, EntryFailed | LogFailed)
    action = request.node.callspec.id
    assert event.failure.message == f"cannot {action} the log of job 'job' in /the/folder: No space left on device"
    assert "free space there" in event.failure.remedy

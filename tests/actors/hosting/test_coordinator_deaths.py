"""Errors of the coordinator's own: the process ends, another takes over, and one that comes again fails the job."""

from __future__ import annotations

import threading
from pathlib import Path

from penstock.actors.hosting.coordinator_host import CoordinatorFiles, CoordinatorHost
from penstock.actors.storage.log import MOST_DEATHS, Deaths
from penstock.actors.storage.memory_store import MemoryStore
from penstock.actors.storage.stores import FileStore
from penstock.coordinator.model.commands import DiscardEntries, DiscardState, ReadLog
from penstock.coordinator.model.events import Event, Failure, LogFailed
from penstock.coordinator.model.statistics import JobStatus
from support.coordinator_driver import CoordinatorDriver

STATUS = JobStatus("job", "running", 1, 0, 0, 0, None, None, {}, None, None, "everybody runs")
BUG = Failure("unexpected KeyError: 'x'", retry=False, detail="the traceback")


def test_job_fails_with_the_error_after_so_many_deaths_in_a_row(tmp_path: Path) -> None:
    for number in range(MOST_DEATHS):
        deaths = Deaths(FileStore(tmp_path), "job")
        assert deaths.refusal() is None, number
        deaths.note(BUG, "1.7")
    refusal = Deaths(FileStore(tmp_path), "job").refusal()
    assert refusal is not None
    assert BUG.message in refusal.message
    assert (refusal.retry, refusal.detail) == (False, BUG.detail)


def test_deaths_between_which_a_checkpoint_completed_are_not_in_a_row() -> None:
    deaths = Deaths(MemoryStore(), "job")
    for number in range(2 * MOST_DEATHS):
        deaths.note(BUG, f"1.{number // 2}")
        assert deaths.refusal() is None


def test_job_that_is_started_anew_begins_without_notes() -> None:
    deaths = Deaths(MemoryStore(), "job")
    for _ in range(MOST_DEATHS):
        deaths.note(BUG, "1.7")
    deaths.forget()
    assert deaths.refusal() is None


def test_coordinator_that_must_not_take_over_says_why_instead_of_reading_the_log() -> None:
    told: list[Event] = []
    answered = threading.Event()

    def tell(event: Event) -> None:
        told.append(event)
        answered.set()

    class Plan:
        name = "job"

    class Snapshots:
        url = "nowhere"

    files = CoordinatorFiles(Plan(), MemoryStore(), Snapshots(), tell, refused=BUG)  # type: ignore[arg-type]
    files.perform(ReadLog())
    assert answered.wait(30.0)
    files.close()
    (event,) = told
    assert isinstance(event, LogFailed)
    driver = CoordinatorDriver()
    driver.tell(event)
    assert driver.core.status().state == "failed"
    assert driver.core.status().failure == BUG


def test_what_a_closed_job_does_not_keep_goes_entries_first_however_busy_the_log_is() -> None:
    """An entry that stayed would name files that are gone."""
    gone: list[str] = []
    busy = threading.Event()

    class Log(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            busy.wait(30.0)
            return super().list(prefix)

        def delete(self, name: str) -> None:
            gone.append("entry")

    class Plan:
        name = "job"

    class Snapshots:
        url = "nowhere"

        def delete(self, handles: object) -> None:
            gone.append("state")

    files = CoordinatorFiles(Plan(), Log(), Snapshots(), lambda event: None)  # type: ignore[arg-type]
    files.perform(ReadLog())
    threading.Timer(0.1, busy.set).start()
    files.close([DiscardState(()), DiscardEntries((1,))])
    assert gone == ["entry", "state"]


def test_error_in_the_core_is_told_before_anybody_who_waits_gets_it() -> None:
    class Core:
        def status(self) -> JobStatus:
            return STATUS

        def start(self, now: float) -> list[object]:
            raise KeyError("x")

    class Files:
        def close(self, last: object) -> None:
            """Nothing is stored."""

    died: list[str] = []
    released = threading.Event()

    def dies(error: Exception, status: JobStatus) -> None:
        died.append(f"{status.job}: {str(error).splitlines()[0]}")
        released.wait(30.0)  # a process that ends does not come back from here

    host = CoordinatorHost(Core(), lambda _post: Files(), lambda _post: None, on_death=dies)  # type: ignore
    host.start()
    assert host.wait_status(None, 0.2).status == STATUS, "nobody is told of the error while another may take over"
    released.set()
    host.close()
    assert died == ["job: unexpected KeyError: 'x'"]

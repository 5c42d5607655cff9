"""What a job's client makes of the coordinator's answers: what is asked again, and what is the user's to know."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.actors.claims.place import Place
from penstock.actors.client.backend import FinalStatistics, Ownership
from penstock.actors.client.job import AGAIN, Job, Savepoint
from penstock.actors.process.waiting import Deadline
from penstock.actors.protocol.messages import Versioned
from penstock.actors.storage.log import create_entry
from penstock.actors.storage.stores import open_store
from penstock.coordinator.model.events import Event, Failure, SavepointRequested, StopRequested
from penstock.coordinator.model.kinds import StopMode
from penstock.coordinator.model.manifest import Manifest
from penstock.coordinator.model.settings import Settings
from penstock.coordinator.model.statistics import JobStatus, SavepointResult
from penstock.engine.core.errors import ConfigurationError, StorageError, TaskLostError
from penstock.engine.core.identity import CheckpointId

LOST = Failure("a task was lost", retry=True, kind="TaskLostError")
REFUSED = Failure("no room there", retry=False, kind="StorageError")
RUNNING = JobStatus("job", "running", 1, 0, 0, 0, None, None, {}, None, None, "")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.actors.client.job.PAUSES", (0.0, 0.0))


class Answers:
    """Its coordinator answers each request for a savepoint with the next of ``answers``: a failure, None for
    success, or a status that it turns to without an answer."""

    ownership = Ownership.GUEST
    exit_seconds = 0.0
    processes = None

    def __init__(self, *answers: Failure | JobStatus | None) -> None:
        self.known = RUNNING
        self.answers = list(answers)
        self.asked: list[SavepointRequested | StopRequested] = []

    def wait_status(self, version: tuple[str, int] | None, timeout: float) -> Versioned:
        assert timeout == 0.0 or self.known.is_over
        return Versioned(("", len(self.asked)), self.known)

    def request(self, event: Event) -> None:
        assert isinstance(event, SavepointRequested | StopRequested)
        self.asked.append(event)
        answer = self.answers.pop(0)
        if isinstance(answer, JobStatus):
            self.known = answer
            return
        id = CheckpointId(self.known.generation, len(self.asked))
        place = None if answer else event.target
        result = SavepointResult(event.request, "savepoint", id, place, answer)
        state = "stopped" if isinstance(event, StopRequested) else self.known.state
        self.known = replace(self.known, state=state, savepoints=(*self.known.savepoints, result))

    def wait_ended(self, deadline: Deadline) -> FinalStatistics:
        return FinalStatistics()

    def end(self) -> bool:
        return False


def scripted(folder: Path, *answers: Failure | JobStatus | None) -> tuple[Job, Answers]:
    plan: Any = SimpleNamespace(name="job", sources={}, stages={}, check_savepoint=lambda place, folder: None, fed=())
    plan.audit, plan.sinks, plan.ignored = "counts", {}, ()
    backend: Any = Answers(*answers)
    return Job(plan, Place(str(folder), Settings(), lambda: None), backend), backend


def test_savepoint_that_failed_for_something_that_passes_is_asked_for_again(tmp_path: Path) -> None:
    job, coordinator = scripted(tmp_path, LOST, LOST, None)
    assert job.savepoint(tmp_path / "mine") == Savepoint(str(tmp_path / "mine"), CheckpointId(1, 3))
    assert len({event.request for event in coordinator.asked}) == 3


def test_savepoint_is_not_asked_for_for_ever(tmp_path: Path) -> None:
    job, coordinator = scripted(tmp_path, *[LOST] * 4)
    with pytest.raises(TaskLostError, match="a task was lost") as caught:
        job.savepoint(tmp_path / "mine")
    assert len(coordinator.asked) == 3
    assert caught.value.remedy == AGAIN


def test_savepoint_that_would_fail_again_is_told_at_once(tmp_path: Path) -> None:
    job, coordinator = scripted(tmp_path, REFUSED)
    with pytest.raises(StorageError, match="no room there"):
        job.savepoint(tmp_path / "mine")
    assert len(coordinator.asked) == 1


def test_coordinator_that_takes_over_is_asked_by_the_same_name(tmp_path: Path) -> None:
    job, coordinator = scripted(tmp_path, replace(RUNNING, generation=2), None)
    assert job.stop(savepoint=tmp_path / "mine").id == CheckpointId(2, 2)
    first, second = coordinator.asked
    assert first == second
    assert isinstance(first, StopRequested)
    assert first.mode is StopMode.SUSPEND


def test_stop_that_nobody_remembers_is_found_in_the_log(tmp_path: Path) -> None:
    entry = Manifest(
        number=0,
        checkpoint=CheckpointId(1, 7),
        fingerprint="",
        parallelism={},
        tasks=(),
        kind="stop with savepoint",
        savepoint="/there",
    )
    create_entry(open_store(tmp_path), "job", entry)
    job, _coordinator = scripted(tmp_path, replace(RUNNING, generation=2, state="stopped"))
    assert job.stop() == Savepoint("/there", CheckpointId(1, 7))


def test_job_that_finished_instead_of_stopping_says_so(tmp_path: Path) -> None:
    job, _coordinator = scripted(tmp_path, replace(RUNNING, state="finished"))
    with pytest.raises(ConfigurationError, match="is over: finished before the savepoint was taken"):
        job.stop()

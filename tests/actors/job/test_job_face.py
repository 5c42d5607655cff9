"""What a job's face makes of the coordinator's answers: what is asked again, and what is the user's to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.actors.job.job_face import AGAIN, TRIES, JobFace, Savepoint
from penstock.actors.storage.log import create_entry
from penstock.actors.storage.stores import open_store
from penstock.coordinator.model.events import Event, Failure, SavepointRequested, StopRequested
from penstock.coordinator.model.kinds import StopMode
from penstock.coordinator.model.manifest import Manifest
from penstock.coordinator.model.statistics import JobStatus, Overview, SavepointResult
from penstock.engine.core.errors import ConfigurationError, StorageError, TaskLostError
from penstock.engine.core.identity import CheckpointId

LOST = Failure("a task was lost", retry=True, kind="TaskLostError")
REFUSED = Failure("no room there", retry=False, kind="StorageError")
RUNNING = JobStatus("job", "running", 1, 0, 0, 0, None, None, {}, None, None, "")


class ScriptedJob(JobFace):
    """A job whose coordinator answers each request for a savepoint with the next of ``answers``: a failure, None for
    success, or a status that it turns to without an answer."""

    def __init__(self, folder: Path, *answers: Failure | JobStatus | None) -> None:
        self.folder, self.folder_stays = str(folder), True
        self.plan: Any = SimpleNamespace(sources={}, check_savepoint=lambda place, folder: None)
        self.known = RUNNING
        self.answers = list(answers)
        self.asked: list[SavepointRequested | StopRequested] = []

    @property
    def name(self) -> str:
        return "job"

    def status(self) -> JobStatus:
        return self.known

    def wait(self, timeout: float | None = None) -> Any:
        return self

    def wait_until(self, condition: Callable[[JobStatus], bool], timeout: float | None = None) -> JobStatus:
        assert condition(self.known) or self.known.is_over
        return self.known

    def checkpoints(self) -> Overview:
        return Overview()

    def _tell(self, event: Event) -> None:
        assert isinstance(event, SavepointRequested | StopRequested)
        self.asked.append(event)
        answer = self.answers.pop(0)
        if isinstance(answer, JobStatus):
            self.known = answer
            return
        id = CheckpointId(self.known.generation, len(self.asked))
        place = None if answer else event.target
        result = SavepointResult(event.request, "savepoint", id, place, answer)
        self.known = replace(self.known, savepoints=(*self.known.savepoints, result))


def test_savepoint_that_failed_for_something_that_passes_is_asked_for_again(tmp_path: Path) -> None:
    job = ScriptedJob(tmp_path, LOST, LOST, None)
    assert job.savepoint(tmp_path / "mine") == Savepoint(str(tmp_path / "mine"), CheckpointId(1, 3))
    assert len({event.request for event in job.asked}) == 3


def test_savepoint_is_not_asked_for_for_ever(tmp_path: Path) -> None:
    job = ScriptedJob(tmp_path, *[LOST] * (TRIES + 1))
    with pytest.raises(TaskLostError, match="a task was lost") as caught:
        job.savepoint(tmp_path / "mine")
    assert len(job.asked) == TRIES
    assert caught.value.remedy == AGAIN


def test_savepoint_that_would_fail_again_is_told_at_once(tmp_path: Path) -> None:
    job = ScriptedJob(tmp_path, REFUSED)
    with pytest.raises(StorageError, match="no room there"):
        job.savepoint(tmp_path / "mine")
    assert len(job.asked) == 1


def test_coordinator_that_takes_over_is_asked_by_the_same_name(tmp_path: Path) -> None:
    job = ScriptedJob(tmp_path, replace(RUNNING, generation=2), None)
    assert job.stop(savepoint=tmp_path / "mine").id == CheckpointId(2, 2)
    first, second = job.asked
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
    job = ScriptedJob(tmp_path, replace(RUNNING, generation=2, state="stopped"))
    assert job.stop() == Savepoint("/there", CheckpointId(1, 7))


def test_job_that_finished_instead_of_stopping_says_so(tmp_path: Path) -> None:
    job = ScriptedJob(tmp_path, replace(RUNNING, state="finished"))
    with pytest.raises(ConfigurationError, match="is over: finished before the savepoint was taken"):
        job.stop()

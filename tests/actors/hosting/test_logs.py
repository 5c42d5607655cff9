"""Log lines of a job's processes: JSON with job, task and attempt; what happened, once each."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.actors.hosting import logs
from penstock.actors.hosting.logs import EVENTS, JobLog, TaskLog, write_json_lines
from penstock.actors.protocol.messages import UNKNOWN_TIME
from penstock.coordinator.model.events import (
    DataEnded,
    Failure,
    TaskAcked,
    TaskDeclined,
    TaskDeployed,
    TaskFailed,
    TaskFinished,
    TaskLost,
)
from penstock.coordinator.model.statistics import JobStatus
from penstock.engine.core.identity import Attempt, CheckpointId, TaskId

TASK, ATTEMPT, CHECKPOINT = TaskId("read", 1), Attempt(2, 7), CheckpointId(2, 9)
STATUS = JobStatus("flights", "running", 2, 0, 0, 0, None, None, {}, None, None, "")


class Lines:
    """What was written."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """A process of its own, as far as logging goes."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logger, found = logging.getLogger(logs.ROOT), Lines()
    before = (logger.handlers, logger.level, logger.propagate)
    logger.handlers = []
    write_json_lines("INFO", found.stream, job="flights", task="read/1")
    yield found
    logger.handlers, logger.level, logger.propagate = before


def test_life_of_a_task_is_logged_with_its_attempt(lines: Lines) -> None:
    log, failure = TaskLog("flights"), Failure("no such file", retry=False)
    log.on_event(TaskDeployed(TASK, ATTEMPT, UNKNOWN_TIME, "x"))
    log.on_event(TaskAcked(TASK, ATTEMPT, CHECKPOINT, (), (), False, UNKNOWN_TIME))
    log.on_event(TaskDeclined(TASK, ATTEMPT, CHECKPOINT, failure, UNKNOWN_TIME))
    log.on_event(TaskFailed(TASK, ATTEMPT, failure, UNKNOWN_TIME))
    log.on_event(DataEnded(TASK, ATTEMPT, UNKNOWN_TIME))
    log.on_event(TaskFinished(TASK, ATTEMPT, UNKNOWN_TIME))
    found = lines.read()
    assert [(line["event"], line["level"]) for line in found] == [
        ("task_deployed", "INFO"),
        ("checkpoint_declined", "WARNING"),
        ("task_failed", "ERROR"),
        ("task_data_ended", "INFO"),
        ("task_finished", "INFO"),
    ]
    assert {(line["job"], line["task"], line["attempt"]) for line in found} == {("flights", str(TASK), "2.7")}
    assert (found[1]["checkpoint"], found[2]["reason"]) == ("2.9", "no such file")


def test_course_of_a_job_is_logged_as_its_status_changes(lines: Lines) -> None:
    log = JobLog("flights")
    log.on_status(STATUS, replace(STATUS, why="another sentence"))
    log.on_status(STATUS, replace(STATUS, state="restarting", restarts=1))
    log.on_status(STATUS, replace(STATUS, latest_completed=CHECKPOINT, checkpoints_failed=2))
    log.on_status(STATUS, replace(STATUS, state="failed", failure=Failure("too often", retry=False)))
    log.on_event(TaskLost(TASK, ATTEMPT, "it died", UNKNOWN_TIME))
    log.on_event(TaskDeployed(TASK, ATTEMPT, UNKNOWN_TIME))
    found = lines.read()
    assert [line["event"] for line in found] == [
        *("job_state", "job_restart", "checkpoint_completed", "checkpoint_failed", "job_state", "task_lost")
    ]
    assert all(line["generation"] == "2" for line in found[:-1])
    assert (found[2]["checkpoint"], found[3]["message"]) == ("2.9", "2 checkpoints have failed")
    assert (found[4]["level"], found[4]["reason"]) == ("ERROR", "too often")
    assert (found[5]["task"], found[5]["reason"]) == (str(TASK), "it died")
    assert {line["event"] for line in found} <= set(EVENTS)


def test_other_lines_of_the_process_say_whose_they_are(lines: Lines) -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        logging.getLogger(f"{logs.ROOT}.actors.somewhere").exception("it went %s", "wrong")
    logging.getLogger(f"{logs.ROOT}.actors.somewhere").debug("never mind")
    (line,) = lines.read()
    assert (line["message"], line["job"], line["task"], "event" in line) == (
        "it went wrong",
        "flights",
        "read/1",
        False,
    )
    assert "ValueError: odd" in line["traceback"]


def test_logging_that_was_set_up_is_left_alone(lines: Lines) -> None:
    second = io.StringIO()
    write_json_lines("INFO", second, job="other")
    TaskLog("flights").on_event(TaskFinished(TASK, ATTEMPT, UNKNOWN_TIME))
    assert (second.getvalue(), len(lines.read())) == ("", 1)

"""Logs of a job's processes: one JSON object a line, on stderr, with job, task and attempt. No Ray.

What happened is logged where it is first known: a task's life by its process, the job's by its coordinator. All of it
goes through Python's ``logging`` (loggers below ``penstock``) with its fields as extras, so that other handlers find
them too: under ``ray.LoggingConfig(encoding="JSON")`` Ray writes them, and nothing is written twice.
``docs/operations.md`` lists events and fields, and a test compares.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

from ...coordinator.model.events import (
    DataEnded,
    Event,
    Failure,
    TaskDeclined,
    TaskDeployed,
    TaskFailed,
    TaskFinished,
    TaskLost,
)
from ...coordinator.model.statistics import JobStatus
from ...engine.core.shown import shown

FIELDS = ("event", "job", "task", "attempt", "generation", "checkpoint", "reason")
"""What a line may hold besides ``time``, ``level``, ``logger``, ``message`` and, of an exception, ``traceback``."""

EVENTS = {
    "task_deployed": "an attempt of a task has been built",
    "task_data_ended": "a task has come to the end of its data",
    "task_finished": "a task has finished",
    "task_failed": "an attempt has failed; the reason names operator, input and remedy",
    "task_lost": "the process of a task is gone, hung or out of reach",
    "checkpoint_declined": "a task could not take its part in a checkpoint",
    "checkpoint_completed": "a checkpoint is durable: its entry is in the log",
    "checkpoint_failed": "one or more checkpoints have failed since the last line",
    "job_state": "the job is in another state; with the generation of its coordinator",
    "job_restart": "a region of the job restarts",
}
"""Every event and what it means."""

ROOT = __name__.rpartition(".")[0].rpartition(".")[0]
"""The logger above those of all modules."""

_log = logging.getLogger(__name__)


class JsonLines(logging.Formatter):
    """One JSON object a line. ``fields``: what every line of this process holds, unless a record has its own."""

    def __init__(self, **fields: str) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; times are UTC."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{stamp}.{record.msecs:03.0f}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in FIELDS:
            value = getattr(record, name, self._fields.get(name))
            if value is not None:
                line[name] = str(value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps({name: shown(text) for name, text in line.items()}, ensure_ascii=False)


def write_json_lines(level: str, stream: TextIO | None = None, **fields: str) -> None:
    """Let this process write its log as JSON lines, unless somebody has set up logging for it."""
    logger = logging.getLogger(ROOT)
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(**fields))
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


class TaskLog:
    """The life of one job's tasks in this process."""

    def __init__(self, job: str) -> None:
        self._job = job

    def on_event(self, event: Event) -> None:
        """The process reports an event to the coordinator."""
        match event:
            case TaskDeployed(task, attempt):
                self._write(logging.INFO, "task_deployed", f"{task} is deployed", task, attempt)
            case DataEnded(task, attempt):
                self._write(logging.INFO, "task_data_ended", f"{task} is at the end of its data", task, attempt)
            case TaskFinished(task, attempt):
                self._write(logging.INFO, "task_finished", f"{task} has finished", task, attempt)
            case TaskFailed(task, attempt, failure):
                self._write(
                    logging.ERROR, "task_failed", f"{task} has failed: {failure.message}", task, attempt, failure
                )
            case TaskDeclined(task, attempt, checkpoint, failure):
                text = f"{task} takes no part in checkpoint {checkpoint}: {failure.message}"
                self._write(logging.WARNING, "checkpoint_declined", text, task, attempt, failure, checkpoint)
            case _:
                pass

    def _write(
        self,
        level: int,
        event: str,
        text: str,
        task: object,
        attempt: object,
        failure: Failure | None = None,
        checkpoint: object = None,
    ) -> None:
        reason = None if failure is None else failure.message
        extra = {"event": event, "job": self._job, "task": task, "attempt": attempt}
        _log.log(level, "%s", text, extra=extra | {"reason": reason, "checkpoint": checkpoint})


class JobLog:
    """What becomes of a job, as its coordinator sees it."""

    def __init__(self, job: str) -> None:
        self._job = job

    def on_event(self, event: Event) -> None:
        """The coordinator is about to handle an event."""
        if isinstance(event, TaskLost):
            extra = {"event": "task_lost", "task": event.task, "attempt": event.attempt, "reason": event.reason}
            _log.warning("%s is lost: %s", event.task, event.reason, extra=extra | {"job": self._job})

    def on_status(self, before: JobStatus, after: JobStatus) -> None:
        """The job's status is another one."""
        if after.state != before.state:
            level = logging.ERROR if after.state == "failed" else logging.INFO
            reason = None if after.failure is None else after.failure.message
            self._write(level, "job_state", f"the job is {after.state}", after, reason=reason)
        if after.restarts > before.restarts:
            text = f"a region restarts, for the {after.restarts}. time under this coordinator"
            self._write(logging.WARNING, "job_restart", text, after)
        if after.latest_completed is not None and after.latest_completed != before.latest_completed:
            text = f"checkpoint {after.latest_completed} is completed"
            self._write(logging.INFO, "checkpoint_completed", text, after, checkpoint=after.latest_completed)
        if after.checkpoints_failed > before.checkpoints_failed:
            text = f"{after.checkpoints_failed - before.checkpoints_failed} checkpoints have failed"
            self._write(logging.WARNING, "checkpoint_failed", text, after)

    def _write(self, level: int, event: str, text: str, status: JobStatus, **more: object) -> None:
        _log.log(level, "%s", text, extra={"event": event, "job": self._job, "generation": status.generation, **more})

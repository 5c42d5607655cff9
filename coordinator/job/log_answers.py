"""What the log's answers mean for the job.

Rules:

1. "Stored" completes a checkpoint or closes the job. "Refused" and "failed" are unclear: the log is read, and what it
   holds decides (:meth:`penstock.coordinator.log.log_writer.LogWriter.resolve`). An entry that had failed and is
   durable after all means the same as one that was stored at once.
2. Until the job is ours the answers are the takeover's (``takeover.py``).
3. An answer that nobody waits for is late or doubled, and changes nothing.
"""

from __future__ import annotations

from typing import TypeGuard, assert_never

from msgspec.structs import replace

from ..log.log_writer import Resolution
from ..model.events import (
    EntryFailed,
    EntryRefused,
    EntryStored,
    Failure,
    LogFailed,
    LogRead,
    OutputsRefused,
    OutputsTaken,
)
from ..model.job_states import JobState
from ..model.manifest import LogEntry, Manifest
from .job import Job
from .takeover import TRIES, AlreadyOver, Claimed, Order, Outcome, SteppedDown, Takeover

LogAnswer = LogRead | LogFailed | EntryStored | EntryRefused | EntryFailed


class LogAnswers:
    """Joins the log's writer with the job."""

    def __init__(self, job: Job, takeover: Takeover) -> None:
        self._job = job
        self._context = job.context
        self._takeover = takeover
        #: Why the entry in flight was unclear: a failure, or None if it was refused.
        self._unclear: Failure | None = None
        #: Readings that failed in a row.
        self._failed_readings = 0

    def note(self, event: LogAnswer) -> None:
        """Take one answer."""
        log = self._context.log
        if isinstance(event, LogRead | LogFailed):
            if not log.is_reading:
                return
        elif not log.expects(event.number):
            return
        if self._job.state is JobState.CLAIMING:
            self._follow(self._takeover.note(event))
            return
        match event:
            case LogFailed():
                self._reading_failed(event.failure)
            case LogRead():
                self._failed_readings = 0
                self._resolve(event)
            case EntryStored():
                self._stored()
            case EntryRefused() | EntryFailed():
                self._unclear = event.failure if isinstance(event, EntryFailed) else None
                self._context.order(log.read())
            case _:
                assert_never(event)

    def note_outputs(self, event: OutputsTaken | OutputsRefused) -> None:
        """The claim is durable, and the outputs are ours or are not."""
        outcome = self._takeover.note_outputs(event) if self._job.state is JobState.CLAIMING else None
        if outcome is not None:
            self._follow(outcome)

    def validate(self) -> None:
        """Every invariant of the log and of the takeover."""
        self._context.log.validate()
        self._takeover.validate()

    def _follow(self, outcome: Outcome) -> None:
        match outcome:
            case Order(command):
                self._context.order(command)
            case Claimed(decision):
                self._job.begin(decision)
            case AlreadyOver(over):
                self._job.already_over(over)
            case SteppedDown(entries):
                self._job.supersede(entries)
            case Failure():
                self._job.fail(outcome)
            case _:
                assert_never(outcome)

    def _resolve(self, event: LogRead) -> None:
        log = self._context.log
        number = log.next_number
        match log.resolve(event.entries, self._context.generation):
            case Resolution.STORED:
                self._stored()
            case Resolution.SUPERSEDED:
                self._job.supersede(event.entries)
            case Resolution.ABSENT:
                self._absent()
            case Resolution.ADOPTED:
                self._adopted(next(entry for entry in event.entries if entry.number == number))

    def _stored(self) -> None:
        entry = self._context.log.stored()
        if _is_checkpoint(entry):
            self._job.checkpoint_stored(entry)
        else:
            self._job.entry_stored(entry)

    def _adopted(self, durable: LogEntry) -> None:
        """An entry that had failed is in the log after all. A checkpoint follows it at the next number; other entries
        are ordered anew, if they are still wanted."""
        log = self._context.log
        entry = log.in_flight
        log.dropped()
        if _is_checkpoint(durable):
            self._job.checkpoint_adopted(durable)
        else:
            self._job.entry_stored(durable)
        if entry is not None and _is_checkpoint(entry):
            self._context.order(log.store(replace(entry, number=log.next_number)))

    def _absent(self) -> None:
        """The entry was not written. A refusal without an entry is taken for a failure of the store."""
        log = self._context.log
        failure = self._unclear or Failure("the log refused an entry, but holds none", retry=True, kind="StorageError")
        if log.in_flight is not None and _is_checkpoint(log.in_flight):
            self._job.checkpoint_not_stored(failure)
        else:
            log.failed()
            self._job.entry_failed(failure)

    def _reading_failed(self, failure: Failure) -> None:
        """Nobody knows what the log holds. If it stays so, only the next coordinator can find out."""
        log = self._context.log
        log.has_read()
        self._failed_readings += 1
        if failure.retry and self._failed_readings < TRIES:
            self._context.order(log.read())
            return
        self._unclear = failure
        self._absent()
        self._job.fail(failure)


def _is_checkpoint(entry: LogEntry) -> TypeGuard[Manifest]:
    """Whether it is the manifest of a checkpoint that was taken here, not of a snapshot that the job starts from."""
    return isinstance(entry, Manifest) and not entry.root

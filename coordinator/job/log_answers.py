"""What the log's answers mean for the job.

Rules:

1. "Stored" completes a checkpoint or closes the job. "Refused" and "failed" are unclear: the log is read, and what it
   holds decides (:meth:`penstock.coordinator.log.log_writer.LogWriter.resolve`).
   An entry that was given up and stands after all means the same as one that was stored at once.
2. Once the claim stands the outputs are taken; the job begins when they are ours.
3. An answer that nobody waits for is late or doubled, and changes nothing.
"""

from __future__ import annotations

from typing import TypeGuard

from msgspec.structs import replace as renumber

from ..log.log_writer import Resolution
from ..log.recovery import TakeOver
from ..model.commands import TakeOutputs
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
from ..model.manifest import Dropped, Ended, LogEntry, Manifest, Pinned, Unpinned
from .job import Job
from .takeover import TRIES, AlreadyOver, Claimed, Retry, SteppedDown, TakeOverAttempt

LogAnswer = LogRead | LogFailed | EntryStored | EntryRefused | EntryFailed


class LogAnswers:
    """Joins the log's writer with the job."""

    def __init__(self, job: Job, takeover: TakeOverAttempt) -> None:
        self._job = job
        self._takeover = takeover
        #: What the job begins with once its outputs are ours; None: they are not asked for.
        self._claimed: TakeOver | None = None
        self._refusals = 0
        #: Why the entry in flight was unclear: a failure, or None if it was refused.
        self._unclear: Failure | None = None
        #: Readings that failed in a row.
        self._failed_readings = 0

    def note(self, event: LogAnswer) -> None:
        """Take one answer."""
        job, log = self._job, self._job.context.log
        if isinstance(event, LogRead | LogFailed):
            if not log.reading:
                return
        elif not log.expects(event.number):
            return
        if job.state is JobState.CLAIMING:
            self._note_claim(event)
        elif isinstance(event, LogFailed):
            self._reading_failed(event.failure)
        elif isinstance(event, LogRead):
            self._failed_readings = 0
            self._resolve(event)
        elif isinstance(event, EntryStored):
            self._stored()
        else:
            self._unclear = event.failure if isinstance(event, EntryFailed) else None
            job.context.order(log.read())

    def _note_claim(self, event: LogAnswer) -> None:
        job, result = self._job, self._takeover.note(event)
        if isinstance(result, Claimed) and job.context.has_outputs:
            self._claimed = result.decision
            job.context.order(self._take_outputs(result.decision))
        elif isinstance(result, Claimed):
            job.begin(result.decision)
        elif isinstance(result, Retry):
            job.context.order(result.order)
        elif isinstance(result, AlreadyOver):
            job.already_over(result.decision)
        elif isinstance(result, SteppedDown):
            job.supersede(result.entries)
        else:
            job.fail(result)

    def _take_outputs(self, decision: TakeOver) -> TakeOutputs:
        context, snapshot = self._job.context, self._job.snapshot
        claims = (*decision.claims, context.identity.claim)
        if decision.latest is not None:
            return TakeOutputs(context.identity, claims, decision.latest, decision.latest.root)
        if snapshot is not None:
            return TakeOutputs(context.identity, claims, snapshot.manifest, snapshot.root)
        return TakeOutputs(context.identity, claims, None)

    def note_outputs(self, event: OutputsTaken | OutputsRefused) -> None:
        """The claim stands, and the outputs are ours or are not."""
        job, decision = self._job, self._claimed
        if decision is None or job.state is not JobState.CLAIMING:
            return
        if isinstance(event, OutputsTaken):
            self._claimed = None
            job.begin(decision)
            return
        self._refusals += 1
        if event.failure.retry and self._refusals < TRIES:
            job.context.order(self._take_outputs(decision))
        else:
            job.fail(event.failure)

    def _resolve(self, event: LogRead) -> None:
        job, log = self._job, self._job.context.log
        number = log.next_number
        resolution = log.resolve(event.entries, job.context.generation)
        if resolution is Resolution.STORED:
            self._stored()
        elif resolution is Resolution.SUPERSEDED:
            job.supersede(event.entries)
        elif resolution is Resolution.ABSENT:
            self._absent()
        else:
            self._adopted(next(entry for entry in event.entries if entry.number == number))

    def _stored(self) -> None:
        entry = self._job.context.log.stored()
        if _is_checkpoint(entry):
            self._job.completion.stored(entry)
        else:
            self._stands(entry)

    def _stands(self, entry: LogEntry) -> None:
        """An entry that is no checkpoint of ours is in the log."""
        job = self._job
        job.failed_entries = 0
        job.completion.settled()
        if isinstance(entry, Manifest):
            job.imported(entry)
        elif isinstance(entry, Pinned | Unpinned):
            job.pins.stored(entry)
        elif isinstance(entry, Ended):
            job.closed()
        elif isinstance(entry, Dropped):
            job.dropped(entry)

    def _adopted(self, standing: LogEntry) -> None:
        """An entry that we had given up stands in the log after all. A checkpoint follows it at the next number; other
        entries are ordered anew, if they are still wanted."""
        job, log = self._job, self._job.context.log
        entry = log.in_flight
        log.dropped()
        if _is_checkpoint(standing):
            job.completion.adopt(standing)
        else:
            self._stands(standing)
        if entry is not None and _is_checkpoint(entry):
            job.context.order(log.store(renumber(entry, number=log.next_number)))

    def _absent(self) -> None:
        """The entry was not written. A refusal without an entry is taken for a failure of the store."""
        log = self._job.context.log
        failure = self._unclear or Failure("the log refused an entry, but holds none", retry=True, kind="StorageError")
        if log.in_flight is not None and _is_checkpoint(log.in_flight):
            self._job.completion.store_failed(failure)
        else:
            log.failed()
            self._job.entry_failed(failure)

    def _reading_failed(self, failure: Failure) -> None:
        """Nobody knows what the log holds. If it stays so, only the next coordinator can find out."""
        log = self._job.context.log
        log.reading = False
        self._failed_readings += 1
        if failure.retry and self._failed_readings < TRIES:
            self._job.context.order(log.read())
            return
        self._unclear = failure
        self._absent()
        self._job.fail(failure)


def _is_checkpoint(entry: LogEntry) -> TypeGuard[Manifest]:
    """Whether it is the manifest of a checkpoint that was taken here, not of a snapshot that the job starts from."""
    return isinstance(entry, Manifest) and not entry.root

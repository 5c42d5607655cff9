"""What the log's answers mean for the job.

Rules:

1. "Stored" completes a checkpoint or closes the job. "Refused" and "failed" are unclear: the log is read, and what it
   holds decides (:meth:`penstock.coordinator.log_writer.LogWriter.resolve`).
2. Once the claim stands the outputs are taken; the job begins when they are ours.
3. An answer that nobody waits for is late or doubled, and changes nothing.
"""

from __future__ import annotations

from .commands import TakeOutputs
from .events import (
    EntryFailed,
    EntryRefused,
    EntryStored,
    Failure,
    LogFailed,
    LogRead,
    OutputsRefused,
    OutputsTaken,
)
from .job import Job
from .job_states import JobState
from .log_writer import Resolution
from .manifest import Ended, Manifest, Pinned, Unpinned
from .recovery import TakeOver
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
            job.supersede()
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
        doubtful, number = job.completion.completed.doubtful, log.next_number
        resolution = log.resolve(event.entries, job.context.generation, doubtful)
        if resolution is Resolution.STORED:
            self._stored()
        elif resolution is Resolution.SUPERSEDED:
            job.supersede()
        elif resolution is Resolution.ABSENT:
            self._absent()
        else:
            self._adopted(next(entry for entry in event.entries if entry.number == number))

    def _stored(self) -> None:
        job, entry = self._job, self._job.context.log.stored()
        if isinstance(entry, Manifest) and not entry.root:
            job.completion.stored(entry)
            return
        job.failed_entries = 0
        job.completion.settled()
        if isinstance(entry, Manifest):
            job.imported(entry)
        elif isinstance(entry, Pinned | Unpinned):
            job.pins.stored(entry)
        elif isinstance(entry, Ended):
            job.closed()

    def _adopted(self, standing: object) -> None:
        """A checkpoint that we had given up stands in the log after all; ours follows it."""
        job, log = self._job, self._job.context.log
        if isinstance(standing, Manifest):
            job.completion.adopt(standing)
        entry = log.in_flight
        log.dropped()
        if entry is not None:
            job.context.order(log.store(entry))

    def _absent(self) -> None:
        """The entry was not written. A refusal without an entry is taken for a failure of the store."""
        log = self._job.context.log
        failure = self._unclear or Failure("the log refused an entry, but holds none", retry=True, kind="StorageError")
        if isinstance(log.in_flight, Manifest) and not log.in_flight.root:
            self._job.completion.store_failed(failure)
        else:
            log.dropped()
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

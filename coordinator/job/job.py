"""The job's life: which state it is in, how it restarts, and how it ends.

Rules:

1. A job that fails or is cancelled stops its tasks, then commits what completed checkpoints hold, then ends. Its log
   stays open: it can be resumed from its newest checkpoint. Only a job that finished or was stopped closes the log; if
   the log cannot be closed, the job has failed, whatever is visible.
2. It finishes when every task has finished and everything is committed. It is stopped when the savepoint that it stops
   with is in the log and in its folder and everything is committed: no task is needed for that.
3. It ends exactly once, with ``EndJob`` as the last order.
4. Nothing that a successor might go on from is deleted before an entry of our own in the log says so: ``Ended``, or
   ``Dropped`` if the policy keeps nothing of a job that fails or is cancelled. Where that cannot be written it stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard, assert_never

from msgspec.structs import replace

from ...engine.core.identity import CheckpointId
from ...engine.core.state_machine import check_move
from ..checkpoint.checkpoints import Checkpoints
from ..checkpoint.finalizer import CheckpointFinalizer, SinkCommits, imported
from ..checkpoint.pins import Pins
from ..log.log_writer import Resolution
from ..log.recovery import Over, TakeOver, last_claim
from ..model.commands import EndJob
from ..model.events import (
    EntryFailed,
    EntryRefused,
    EntryStored,
    Failure,
    LogFailed,
    LogRead,
    OutputsRefused,
    OutputsTaken,
    SavepointFailed,
)
from ..model.job_states import LEGAL_JOB_MOVES, JobState, TaskStatus
from ..model.kinds import CheckpointKind, ClaimMode
from ..model.manifest import Claim, Dropped, Ended, LogEntry, Manifest, Pinned, Restarted, Reweighted, Unpinned
from ..model.restarts import RestartBudget
from ..model.retention import Ending
from ..restore.stored_state import Snapshot
from ..state.context import Context
from .deployment import Deployment
from .migration import TaskMigrations
from .reweighting import Reweighting
from .split_assignment import SplitAssignment
from .takeover import TRIES, AlreadyOver, Claimed, Order, Outcome, SteppedDown, Takeover

ENDING = frozenset({JobState.FAILING, JobState.CANCELLING})
WORKING = frozenset({JobState.DEPLOYING, JobState.RUNNING, JobState.RESTARTING})
CLOSING = {JobState.FINISHING: JobState.FINISHED, JobState.STOPPING: JobState.STOPPED}
"""States in which the log is closed, and what the job is then."""
_ENDINGS = {
    JobState.FINISHED: Ending.FINISHED,
    JobState.STOPPED: Ending.FINISHED,
    JobState.CANCELLED: Ending.CANCELLED,
    JobState.FAILED: Ending.FAILED,
}


class Job:
    """The parts of one job's coordination and the state that joins them."""

    def __init__(self, context: Context, snapshot: Snapshot | None = None) -> None:
        self.context = context
        self.state = JobState.CREATED
        self.commits = SinkCommits(context)
        self.checkpoints = Checkpoints(context)
        self.finalizer = CheckpointFinalizer(context, self.checkpoints, self.commits)
        self.deployment = Deployment(context, self.commits)
        self.splits = SplitAssignment(context, self.checkpoints, self.commits)
        self.pins = Pins(context, self.finalizer.let_go)
        self.reweighting = Reweighting(context)
        self.restarts = RestartBudget(context.settings.restart_policy)
        self.migrations = TaskMigrations(context, self.checkpoints, self.restart)
        #: What a job without a checkpoint of its own starts from.
        self._snapshot = snapshot
        #: The snapshot as the first checkpoint of our log, until it is durable there.
        self._importing: Manifest | None = None
        #: Why the job fails or failed.
        self.failure: Failure | None = None
        #: The checkpoint that this coordinator began with.
        self.restored_from: CheckpointId | None = None
        #: When a failing or cancelled job stops waiting for commits.
        self.ends_at = float("inf")
        #: Entries that are no checkpoint's and failed, in a row.
        self._failed_entries = 0

    def move(self, to: JobState) -> None:
        self.state = check_move(f"job {self.context.job!r}", LEGAL_JOB_MOVES, self.state, to)

    # --- the beginning -------------------------------------------------------------------------------------------

    def begin(self, decision: TakeOver) -> None:
        """The job is ours: commit what may be open, deploy everything."""
        self.context.generation = decision.generation
        self.checkpoints.next_number = decision.next_checkpoint
        self.finalizer.begin(decision)
        self.context.reweigh(decision.reweights)
        if decision.latest is not None:
            self._restore(decision.latest)
        elif self._snapshot is not None:
            self._import(self._snapshot)
        if decision.latest is not None and decision.latest.kind == CheckpointKind.STOP_WITH_SAVEPOINT.value:
            self.finalizer.stop_with(decision.latest)
            self.stop()
            return
        self.move(JobState.DEPLOYING)
        self.deployment.schedule_all()

    def _restore(self, manifest: Manifest) -> None:
        self.restored_from = manifest.checkpoint
        self.context.skip(manifest.skipped)
        self.commits.restore(manifest)

    def _import(self, snapshot: Snapshot) -> None:
        """Put the snapshot into our log: a coordinator that comes later must find it there."""
        context, found = self.context, snapshot.manifest
        context.reweigh(found.reweights)
        self._importing = imported(
            found,
            checkpoint=CheckpointId(context.generation, found.checkpoint.number),
            number=context.log.next_number,
            fingerprint=context.fingerprint,
            identity=context.identity,
            root=snapshot.root,
            claimed=snapshot.mode is ClaimMode.CLAIM,
            inputs=context.recorded_inputs,
        )
        self.checkpoints.next_number = found.checkpoint.number + 1

    def _imported(self, manifest: Manifest) -> None:
        """The snapshot is in our log."""
        self._importing = None
        self.finalizer.imported(manifest)
        self._restore(manifest)

    def already_over(self, decision: Over) -> None:
        """A coordinator before us has done everything but to say so."""
        self.context.generation = decision.generation
        self.context.retained.restore(decision.manifests, decision.pins)
        if decision.manifests:
            self.context.skip(decision.manifests[-1].skipped)
        self.end(JobState(decision.ended.status))

    # --- at work -------------------------------------------------------------------------------------------------

    def deploy_due(self) -> None:
        """Migrate tasks whose process ends; deploy the regions whose time has come, once it is certain which manifest
        is the newest in the log.

        A doubtful manifest might still appear. Claiming its number again settles that: it appears before, and is then
        what we restore from, or never.
        """
        self.migrations.advance()
        tasks, log = self.context.tasks, self.context.log
        if not tasks.restarting or self.checkpoints.may_change_newest or self.reweighting.is_storing or not log.is_idle:
            return
        at = self.deployment.next_restart()
        if at is None or at > self.context.now:
            return
        if self._importing is not None:
            self.context.order(log.store(replace(self._importing, number=log.next_number)))
        elif self.context.retained.doubtful and self.context.claim is not None:
            self.context.order(log.store(replace(self.context.claim, number=log.next_number)))
        else:
            for region in self.deployment.due():
                self.checkpoints.region_restarts(region)
            self.deployment.deploy_due()
            latest = self.context.retained.latest
            if latest is not None:
                self.checkpoints.restored(latest)

    def next_restart(self) -> float | None:
        """When a region may be deployed, or a task migrated, next; None if that waits for something else than time."""
        waits = self.checkpoints.may_change_newest or self.reweighting.is_storing or not self.context.log.is_idle
        times = (self.migrations.next_deadline(), None if waits else self.deployment.next_restart())
        return min((at for at in times if at is not None), default=None)

    # --- what the log answers ------------------------------------------------------------------------------------

    def checkpoint_stored(self, manifest: Manifest) -> None:
        """The manifest that we have ordered is durable."""
        self.finalizer.stored(manifest)

    def checkpoint_adopted(self, manifest: Manifest) -> None:
        """A manifest whose write had failed is durable after all."""
        self.finalizer.adopt(manifest)

    def checkpoint_not_stored(self, failure: Failure) -> None:
        """The manifest that we have ordered is not in the log."""
        self.finalizer.store_failed(failure)

    def entry_stored(self, entry: LogEntry) -> None:
        """An entry that is no checkpoint of ours is durable."""
        self._failed_entries = 0
        self.finalizer.settled()
        match entry:
            case Manifest():
                self._imported(entry)
            case Pinned() | Unpinned():
                self.pins.stored(entry)
            case Reweighted():
                self.reweighting.stored(entry)
            case Dropped():
                self.finalizer.dropped(entry.numbers)
            case Ended():
                self.end(CLOSING[self.state])
            case Claim() | Restarted():  # neither is ours to order here
                pass

    def entry_failed(self, failure: Failure, what: str = "its log cannot be closed") -> None:
        """An entry that is no checkpoint's could not be written."""
        self._failed_entries += 1
        if self._failed_entries < TRIES:
            return
        if self.state in CLOSING:
            message = f"all work of job {self.context.job!r} is done, but {what}: {failure.message}"
            failure = replace(failure, message=message)
        self.fail(failure)

    def savepoint_failed(self, event: SavepointFailed) -> None:
        """If it is the one that the job stops with, it is tried again: the log says that the job has stopped."""
        if not self.finalizer.savepoint_failed(event):
            self.entry_failed(event.failure, "the savepoint that it has stopped with cannot be written")

    def runs(self) -> None:
        """If every task runs or has finished, say so."""
        tasks = self.context.tasks
        if not tasks.all_started:
            if tasks.anything_runs:
                self.checkpoints.part_runs()
            return
        if self.state is not JobState.RUNNING:
            resumed = self.state is JobState.RESTARTING or self.restored_from is not None
            self.move(JobState.RUNNING)
            self.checkpoints.job_runs(resumed=resumed)
        if tasks.all_finished and not self.checkpoints.pendings:
            self.checkpoints.job_stops()
            self.checkpoints.refuse_queued("the job is over")
            self.move(JobState.FINISHING)

    def restart(self, region_index: int, failure: Failure) -> None:
        """A task of the region is gone: all of it starts again from the newest checkpoint, if the budget allows."""
        at = self.restarts.next_restart(self.context.now)
        if at is None:
            self.fail(self._spent(failure))
            return
        region = self.context.tasks.regions[region_index]
        self.checkpoints.region_lost(region, failure)
        self.deployment.stop(region)
        self.checkpoints.region_stops(region)
        self.context.tasks.schedule(region, at)
        if self.state is not JobState.RESTARTING:
            self.move(JobState.RESTARTING)

    def restart_all(self, failure: Failure) -> None:
        """The sources have stopped for a savepoint that failed: everything that has not finished restarts."""
        for region in self.context.tasks.regions:
            over = region.counts[TaskStatus.FINISHED.code] == len(region.tasks)
            if self.state in WORKING and region.restart_at is None and not over:
                self.restart(region.index, failure)

    def commit_again(self, failure: Failure) -> None:
        """A commit for a task that is gone failed: it is ordered again later, if the budget allows."""
        if self.restarts.next_restart(self.context.now) is None:
            self.fail(self._spent(failure))

    def _spent(self, failure: Failure) -> Failure:
        count = self.restarts.total
        return replace(failure, message=f"gave up after {count} restarts; the last failure: {failure.message}")

    # --- the end -------------------------------------------------------------------------------------------------

    def move_on(self) -> None:
        """What the log holds fits every shape: leave it to the next coordinator, which commits what is open."""
        if self.context.log.is_idle:
            self.checkpoints.refuse_queued("the job goes on in another shape: ask it again then")
            for region in self.context.tasks.regions:
                self.deployment.stop(region)
            self.end(JobState.MOVED)

    def stop(self) -> None:
        """The savepoint that the job stops with is durable: what is left is to commit, whatever still runs."""
        self.move(JobState.STOPPING)
        self._end_tasks(Failure("the job was stopped", retry=False))

    def fail(self, failure: Failure) -> None:
        """Nothing is retried: begin to end."""
        if self.state in CLOSING:  # all is visible: the next coordinator must find that, so nothing is dropped
            self._failed_entries = TRIES
        if self.state not in ENDING:
            self.failure = failure
            self._begin_ending(JobState.FAILING)

    def cancel(self) -> None:
        """A user wants it to end. A job that has all its work done is left to finish."""
        if self.state not in ENDING and self.state not in CLOSING:
            self._begin_ending(JobState.CANCELLING)

    def _begin_ending(self, to: JobState) -> None:
        self.move(to)
        self.ends_at = self.context.now + self.context.settings.ending_timeout
        self._end_tasks(Failure("the job ends", retry=False))

    def _end_tasks(self, failure: Failure) -> None:
        self.checkpoints.job_stops()
        self.checkpoints.abort_unstored(failure)
        self.checkpoints.refuse_queued("the job is over")
        for region in self.context.tasks.regions:
            self.deployment.stop(region)
            self.context.tasks.schedule(region, None)
        self.commits.job_ends()

    def end_if_settled(self) -> None:
        """End a failing or cancelled job once the log has answered and everything is committed, or time is up."""
        storing = isinstance(self.context.log.in_flight, Manifest)
        waiting = storing or self.commits.has_entries
        final = JobState.FAILED if self.state is JobState.FAILING else JobState.CANCELLED
        if self.context.now >= self.ends_at or not (waiting or self._drops(final)):
            self.end(final)

    def _drops(self, final: JobState) -> bool:
        """Whether the log has yet to say which checkpoints are not kept (rule 4). One that fails is left alone."""
        log, generation = self.context.log, self.context.generation
        numbers = self.context.retained.not_kept(_ENDINGS[final]) if generation else ()
        if not numbers or self._failed_entries >= TRIES:
            return False
        if log.is_idle:
            self.context.order(log.store(Dropped(number=log.next_number, generation=generation, numbers=numbers)))
        return True

    def close(self) -> None:
        """All work is done; once all is committed, close the log."""
        log = self.context.log
        if not self.finalizer.publish() or not log.is_idle or self.commits.unsettled():
            return
        stopped, status = self.finalizer.stopped_with, CLOSING[self.state].value
        reason = stopped.savepoint if stopped is not None else ""
        entry = Ended(number=log.next_number, generation=self.context.generation, status=status, reason=reason)
        self.context.order(log.store(entry))

    def end(self, final: JobState) -> None:
        """The last order."""
        self.move(final)
        if final in CLOSING.values():
            self.finalizer.dropped(self.context.retained.not_kept(_ENDINGS[final]))
        self.context.order(EndJob(final.value, self.failure))

    def supersede(self, entries: Sequence[LogEntry]) -> None:
        """A successor is in the log: leave it everything."""
        self.context.out.clear()
        self.failure = Failure(
            message=f"another coordinator has taken over job {self.context.job!r}{last_claim(entries)}",
            retry=False,
            remedy="wait for the other run to end, or choose another job name or checkpoint folder",
            kind="ConfigurationError",
        )
        self.end(JobState.SUPERSEDED)


LogAnswer = LogRead | LogFailed | EntryStored | EntryRefused | EntryFailed


class LogAnswers:
    """What the log's answers mean for the job: joins the log's writer with it.

    Rules:

    1. "Stored" completes a checkpoint or closes the job. "Refused" and "failed" are unclear: the log is read, and what
       it holds decides (:meth:`penstock.coordinator.log.log_writer.LogWriter.resolve`). An entry that had failed and is
       durable after all means the same as one that was stored at once.
    2. Until the job is ours the answers are the takeover's (``takeover.py``).
    3. An answer that nobody waits for is late or doubled, and changes nothing.
    """

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
        """An entry that had failed is in the log after all. A checkpoint follows it at the next number, made again:
        what it carries on is in the newest one. Other entries are ordered anew, if they are still wanted."""
        log = self._context.log
        entry = log.in_flight
        log.dropped()
        if _is_checkpoint(durable):
            self._job.checkpoint_adopted(durable)
        else:
            self._job.entry_stored(durable)
        if entry is not None and _is_checkpoint(entry):
            self._context.order(log.store(self._job.finalizer.made_again(entry)))

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

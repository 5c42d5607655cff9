"""The job's life: which state it is in, how it restarts, and how it ends.

Rules:

1. A job that fails or is cancelled stops its tasks, then commits what completed checkpoints hold, then ends. Its log
   stays open: it can be resumed from its newest checkpoint. Only a job that finished or was stopped closes the log; if
   the log cannot be closed, the job has failed, whatever is visible.
2. It finishes when every task has finished and everything is committed. It is stopped when the savepoint that it stops
   with stands in the log and in its folder and everything is committed: no task is needed for that.
3. It ends exactly once, with ``EndJob`` as the last order.
4. Nothing that a successor might go on from is deleted before an entry of our own in the log says so: ``Ended``, or
   ``Dropped`` if the policy keeps nothing of a job that fails or is cancelled. Where that cannot be written it stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec.structs import replace as renumber

from ...engine.core.identity import CheckpointId
from ..checkpoint.checkpoints import Checkpoints
from ..checkpoint.finalizer import CheckpointFinalizer, imported
from ..checkpoint.pins import Pins
from ..checkpoint.sink_commits import SinkCommits
from ..log.recovery import Over, TakeOver, last_claim
from ..log.retained import RetainedCheckpoints
from ..model.commands import EndJob
from ..model.events import Failure, SavepointFailed
from ..model.job_states import LEGAL_JOB_MOVES, JobState, TaskStatus, check_move
from ..model.kinds import CheckpointKind, ClaimMode
from ..model.manifest import Dropped, Ended, LogEntry, Manifest
from ..model.restarts import RestartBudget
from ..model.retention import Ending
from ..restore.stored_state import Snapshot
from ..state.context import Context
from .deployment import Deployment
from .migration import TaskMigrations
from .split_assignment import SplitAssignment
from .takeover import TRIES

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
        completed = RetainedCheckpoints(context.settings.retained, context.settings.retention)
        self.committing = SinkCommits(context)
        self.checkpoints = Checkpoints(context, completed)
        self.completion = CheckpointFinalizer(context, self.checkpoints, self.committing)
        self.deployment = Deployment(context, completed, self.committing)
        self.windows = SplitAssignment(context, self.checkpoints, self.committing)
        self.pins = Pins(context, completed, self.completion.let_go)
        self.restarts = RestartBudget(context.settings.restart_policy)
        self.handover = TaskMigrations(context, self.checkpoints, completed, self.restart)
        #: What a job without a checkpoint of its own starts from.
        self.snapshot = snapshot
        #: The snapshot as the first checkpoint of our log, until it stands there.
        self._importing: Manifest | None = None
        #: Why the job fails or failed.
        self.failure: Failure | None = None
        #: The checkpoint that this coordinator began with.
        self.restored_from: CheckpointId | None = None
        #: When a failing or cancelled job stops waiting for commits.
        self.give_up_at = float("inf")
        #: Entries that are no checkpoint's and failed, in a row.
        self.failed_entries = 0

    def move(self, to: JobState) -> None:
        self.state = check_move(f"job {self.context.job!r}", LEGAL_JOB_MOVES, self.state, to)

    # --- the beginning -------------------------------------------------------------------------------------------

    def begin(self, decision: TakeOver) -> None:
        """The job is ours: commit what may be open, deploy everything."""
        self.context.generation = decision.generation
        self.checkpoints.next_number = decision.next_checkpoint
        completed = self.completion.completed
        self.completion.let_go(completed.restore(decision.manifests, decision.pins))
        self.completion.let_go(completed.finish_dropping(decision.dropped))
        if decision.latest is not None:
            self._restore(decision.latest)
        elif self.snapshot is not None:
            self._import(self.snapshot)
        if decision.latest is not None and decision.latest.kind == CheckpointKind.STOP_WITH_SAVEPOINT.value:
            self.completion.stopped_with = decision.latest
            self.stop()
            return
        self.move(JobState.DEPLOYING)
        self.deployment.schedule_all()

    def _restore(self, manifest: Manifest) -> None:
        self.restored_from = manifest.checkpoint
        self.context.skip(manifest.skipped)
        self.committing.restore(manifest)

    def _import(self, snapshot: Snapshot) -> None:
        """Put the snapshot into our log: a coordinator that comes later must find it there."""
        context, found = self.context, snapshot.manifest
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

    def imported(self, manifest: Manifest) -> None:
        """The snapshot stands in our log."""
        self._importing = None
        self.completion.let_go(self.completion.completed.add(manifest))
        self._restore(manifest)

    def already_over(self, decision: Over) -> None:
        """A coordinator before us has done everything but to say so."""
        self.context.generation = decision.generation
        self.completion.completed.restore(decision.manifests, decision.pins)
        if decision.manifests:
            self.context.skip(decision.manifests[-1].skipped)
        self.end(JobState(decision.ended.status))

    # --- at work -------------------------------------------------------------------------------------------------

    def deploy_due(self) -> None:
        """Hand over what is leaving; deploy the regions whose time has come, once it is certain which manifest is the
        newest in the log.

        A doubtful manifest might still appear. Claiming its number again settles that: it appears before, and is then
        what we restore from, or never.
        """
        self.handover.advance()
        tasks, log = self.context.tasks, self.context.log
        if not tasks.restarting or self.checkpoints.settles_what_stands or not log.is_idle:
            return
        at = self.deployment.next_restart()
        if at is None or at > self.context.now:
            return
        if self._importing is not None:
            self.context.order(log.store(renumber(self._importing, number=log.next_number)))
        elif self.completion.completed.doubtful and self.context.claim is not None:
            self.context.order(log.store(renumber(self.context.claim, number=log.next_number)))
        else:
            self.deployment.deploy_due()
            latest = self.completion.completed.latest
            if latest is not None:
                self.checkpoints.history.restored(latest, self.context.now)

    def next_restart(self) -> float | None:
        """When a region may be deployed or handed over next; None if that waits for something else than time."""
        waits = self.checkpoints.settles_what_stands or not self.context.log.is_idle
        times = (self.handover.next_deadline(), None if waits else self.deployment.next_restart())
        return min((at for at in times if at is not None), default=None)

    def entry_failed(self, failure: Failure, what: str = "its log cannot be closed") -> None:
        """An entry that is no checkpoint's could not be written."""
        self.failed_entries += 1
        if self.failed_entries < TRIES:
            return
        if self.state in CLOSING:
            message = f"all work of job {self.context.job!r} is done, but {what}: {failure.message}"
            failure = replace(failure, message=message)
        self.fail(failure)

    def savepoint_failed(self, event: SavepointFailed) -> None:
        """If it is the one that the job stops with, it is tried again: the log says that the job has stopped."""
        if not self.completion.savepoint_failed(event):
            self.entry_failed(event.failure, "the savepoint that it has stopped with cannot be written")

    def runs(self) -> None:
        """If every task runs or has finished, say so."""
        tasks = self.context.tasks
        if not tasks.all_started:
            return
        if self.state is not JobState.RUNNING:
            resumed = self.state is JobState.RESTARTING or self.restored_from is not None
            self.move(JobState.RUNNING)
            self.checkpoints.decider.job_runs(self.context.now, resumed)
        if tasks.all_finished and not self.checkpoints.pendings:
            self.checkpoints.decider.job_stops()
            self._refuse_savepoints()
            self.move(JobState.FINISHING)

    def restart(self, region_index: int, failure: Failure) -> None:
        """A task of the region is gone: all of it starts again from the newest checkpoint, if the budget allows."""
        at = self.restarts.next_restart(self.context.now)
        if at is None:
            self.fail(self._spent(failure))
            return
        region = self.context.tasks.regions[region_index]
        self.checkpoints.abort_open(failure)
        self.deployment.stop(region)
        self.checkpoints.open_ends.region_stopped(region)
        self.context.tasks.schedule(region, at)
        self.checkpoints.decider.job_stops()
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

    def stop(self) -> None:
        """The savepoint that the job stops with stands: what is left is to commit, whoever still runs."""
        self.move(JobState.STOPPING)
        self._end_tasks(Failure("the job was stopped", retry=False))

    def fail(self, failure: Failure) -> None:
        """Nothing is retried: begin to end."""
        if self.state in CLOSING:  # all is visible: whoever comes next must find that, so nothing is dropped
            self.failed_entries = TRIES
        if self.state not in ENDING:
            self.failure = failure
            self._begin_ending(JobState.FAILING)

    def cancel(self) -> None:
        """A user wants it to end. A job that has all its work done is left to finish."""
        if self.state not in ENDING and self.state not in CLOSING:
            self._begin_ending(JobState.CANCELLING)

    def _begin_ending(self, to: JobState) -> None:
        self.move(to)
        self.give_up_at = self.context.now + self.context.settings.ending_timeout
        self._end_tasks(Failure("the job ends", retry=False))

    def _end_tasks(self, failure: Failure) -> None:
        checkpoints = self.checkpoints
        checkpoints.decider.job_stops()
        checkpoints.abort_open(failure)
        for pending in list(checkpoints.pendings.values()):
            if not pending.is_being_stored:
                checkpoints.abort(pending, failure)
        self._refuse_savepoints()
        for region in self.context.tasks.regions:
            self.deployment.stop(region)
            self.context.tasks.schedule(region, None)
        self.committing.job_ends()

    def _refuse_savepoints(self) -> None:
        for request in self.checkpoints.decider.give_up_savepoints():
            self.checkpoints.savepoints.refused(request, "the job is over")

    def end_if_settled(self) -> None:
        """End a failing or cancelled job once the log has answered and everything is committed, or time is up."""
        storing = isinstance(self.context.log.in_flight, Manifest)
        waiting = storing or self.committing.ledger.has_entries
        final = JobState.FAILED if self.state is JobState.FAILING else JobState.CANCELLED
        if self.context.now >= self.give_up_at or not (waiting or self._drops(final)):
            self.end(final)

    def _drops(self, final: JobState) -> bool:
        """Whether the log has yet to say which checkpoints are not kept (rule 4). One that fails is left alone."""
        log, generation = self.context.log, self.context.generation
        numbers = self.completion.completed.not_kept(_ENDINGS[final]) if generation else ()
        if not numbers or self.failed_entries >= TRIES:
            return False
        if log.is_idle:
            self.context.order(log.store(Dropped(number=log.next_number, generation=generation, numbers=numbers)))
        return True

    def dropped(self, entry: Dropped) -> None:
        """The log says that these are nobody's any more."""
        self.completion.let_go(self.completion.completed.drop(entry.numbers))

    def close(self) -> None:
        """All work is done; once all is committed, close the log."""
        log = self.context.log
        if not self.completion.publish() or not log.is_idle or not self.committing.ledger.is_empty:
            return
        stopped, status = self.completion.stopped_with, CLOSING[self.state].value
        reason = stopped.savepoint if stopped is not None else ""
        entry = Ended(number=log.next_number, generation=self.context.generation, status=status, reason=reason)
        self.context.order(log.store(entry))

    def closed(self) -> None:
        """The log is closed."""
        self.end(CLOSING[self.state])

    def end(self, final: JobState) -> None:
        """The last order."""
        self.move(final)
        if final in CLOSING.values():
            completed = self.completion.completed
            self.completion.let_go(completed.drop(completed.not_kept(_ENDINGS[final])))
        self.context.order(EndJob(final.value, self.failure))

    def supersede(self, entries: Sequence[LogEntry]) -> None:
        """A successor stands in the log: leave it everything."""
        self.context.out.clear()
        self.failure = Failure(
            message=f"another coordinator has taken over job {self.context.job!r}{last_claim(entries)}",
            retry=False,
            remedy="wait for the other run to end, or choose another job name or checkpoint folder",
            kind="ConfigurationError",
        )
        self.end(JobState.SUPERSEDED)

"""The job's life: which state it is in, how it restarts, and how it ends.

Rules:

1. A job that fails or is cancelled stops its tasks, then commits what completed checkpoints hold, then ends. Its log
   stays open: it can be resumed from its newest checkpoint. Only a job that finished closes the log.
2. It finishes when every task has finished and everything is committed.
3. It ends exactly once, with ``EndJob`` as the last order.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as renumber

from ..engine.identity import CheckpointId
from .checkpoints import Checkpoints
from .commands import EndJob
from .committing import Committing
from .completed import CompletedCheckpoints
from .context import Context
from .deployment import Deployment
from .events import Failure
from .failover import Failover
from .job_states import LEGAL_JOB_MOVES, JobState, check_move
from .manifest import Ended, Manifest
from .recovery import TakeOver
from .takeover import TRIES

ENDING = frozenset({JobState.FAILING, JobState.CANCELLING})
WORKING = frozenset({JobState.DEPLOYING, JobState.RUNNING, JobState.RESTARTING})


class Job:
    """The parts of one job's coordination and the state that joins them."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.state = JobState.CREATED
        completed = CompletedCheckpoints(context.settings.retained)
        self.committing = Committing(context)
        self.checkpoints = Checkpoints(context, completed, self.committing)
        self.deployment = Deployment(context, completed, self.committing)
        self.failover = Failover(context.settings)
        #: Why the job fails or failed.
        self.failure: Failure | None = None
        #: The checkpoint that this coordinator began with.
        self.restored_from: CheckpointId | None = None
        #: When a failing or cancelled job stops waiting for commits.
        self.give_up_at = float("inf")
        #: Claims and closing entries that failed. All output is committed when the log is closed, so the job has
        #: then finished without that entry too.
        self._failed_entries = 0

    def move(self, to: JobState) -> None:
        self.state = check_move(f"job {self.context.job!r}", LEGAL_JOB_MOVES, self.state, to)

    def begin(self, decision: TakeOver) -> None:
        """The job is ours: commit what may be open, deploy everything."""
        self.context.generation = decision.generation
        self.checkpoints.next_number = decision.next_checkpoint
        self.checkpoints.completed.restore(decision.manifests)
        if decision.latest is not None:
            self.restored_from = decision.latest.checkpoint
            self.committing.restore(decision.latest)
        self.move(JobState.DEPLOYING)
        self.deployment.schedule_all()

    def deploy_due(self) -> None:
        """Deploy the regions whose time has come, once it is certain which manifest is the newest in the log.

        A doubtful manifest might still appear. Claiming its number again settles that: it appears before, and is then
        what we restore from, or never.
        """
        log, at = self.context.log, self.deployment.next_restart()
        if at is None or at > self.context.now or self.checkpoints.pending is not None or not log.is_idle:
            return
        if self.checkpoints.completed.doubtful and self.context.claim is not None:
            self.context.order(log.store(renumber(self.context.claim, number=log.next_number)))
        else:
            self.deployment.deploy_due()

    def next_restart(self) -> float | None:
        """When a region may be deployed next; None if that waits for something else than time."""
        waits = self.checkpoints.pending is not None or not self.context.log.is_idle
        return None if waits else self.deployment.next_restart()

    def entry_failed(self, failure: Failure) -> None:
        """A claim or the closing entry could not be written."""
        self._failed_entries += 1
        if self._failed_entries < TRIES:
            return
        if self.state is JobState.FINISHING:
            self.end(JobState.FINISHED)
        else:
            self.fail(failure)

    def runs(self) -> None:
        """If every task runs or has finished, say so."""
        tasks = self.context.tasks
        if not tasks.all_started:
            return
        if self.state is not JobState.RUNNING:
            self.move(JobState.RUNNING)
            self.checkpoints.decider.job_runs(self.context.now)
        if tasks.all_finished and self.checkpoints.pending is None:
            self.checkpoints.decider.job_stops()
            self.move(JobState.FINISHING)

    def restart(self, region_index: int, failure: Failure) -> None:
        """A task of the region is gone: all of it starts again from the newest checkpoint, if the budget allows."""
        at = self.failover.next_restart(self.context.now)
        if at is None:
            self.fail(self._spent(failure))
            return
        region = self.context.tasks.regions[region_index]
        if self.checkpoints.pending is not None and self.checkpoints.pending.is_open:
            self.checkpoints.abort(failure.message)
        self.deployment.stop(region)
        self.checkpoints.region_stopped(region)
        region.restart_at = at
        self.checkpoints.decider.job_stops()
        if self.state is not JobState.RESTARTING:
            self.move(JobState.RESTARTING)

    def commit_again(self, failure: Failure) -> None:
        """A commit for a task that is gone failed: it is ordered again later, if the budget allows."""
        if self.failover.next_restart(self.context.now) is None:
            self.fail(self._spent(failure))

    def _spent(self, failure: Failure) -> Failure:
        count = self.context.settings.max_restarts
        return replace(failure, message=f"gave up after {count} restarts; the last failure: {failure.message}")

    # --- the end -------------------------------------------------------------------------------------------------

    def fail(self, failure: Failure) -> None:
        """Nothing is retried: begin to end."""
        if self.state not in ENDING:
            self.failure = failure
            self._begin_ending(JobState.FAILING)

    def cancel(self) -> None:
        """A user wants it to end. A job that has all its work done is left to finish."""
        if self.state not in ENDING and self.state is not JobState.FINISHING:
            self._begin_ending(JobState.CANCELLING)

    def _begin_ending(self, to: JobState) -> None:
        self.move(to)
        self.give_up_at = self.context.now + self.context.settings.ending_timeout
        self.checkpoints.decider.job_stops()
        if self.checkpoints.pending is not None and self.checkpoints.pending.is_open:
            self.checkpoints.abort("the job ends")
        for region in self.context.tasks.regions:
            self.deployment.stop(region)
            region.restart_at = None
        self.committing.job_ends()

    def end_if_settled(self) -> None:
        """End a failing or cancelled job once the log has answered and everything is committed, or time is up."""
        storing = isinstance(self.context.log.in_flight, Manifest)
        waiting = storing or bool(self.committing.ledger.with_entries())
        if not waiting or self.context.now >= self.give_up_at:
            self.end(JobState.FAILED if self.state is JobState.FAILING else JobState.CANCELLED)

    def close(self) -> None:
        """Everything has finished; once all is committed, close the log."""
        log = self.context.log
        if not log.is_idle or self.committing.ledger.tasks():
            return
        entry = Ended(number=log.next_number, generation=self.context.generation, status="finished")
        self.context.order(log.store(entry))

    def end(self, final: JobState) -> None:
        """The last order."""
        self.move(final)
        self.context.order(EndJob(final.value, self.failure))

    def supersede(self) -> None:
        """A successor stands in the log: leave it everything."""
        self.context.out.clear()
        self.failure = Failure(
            message=f"another coordinator has taken over job {self.context.job!r}",
            retry=False,
            remedy="wait for the other run to end, or choose another job name or checkpoint folder",
            kind="ConfigurationError",
        )
        self.end(JobState.SUPERSEDED)

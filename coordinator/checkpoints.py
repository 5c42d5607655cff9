"""Takes checkpoints: from the plan to the manifest in the log, and what follows from it.

Rules:

1. A checkpoint starts only while every task runs or has finished, the log is idle, and none is pending.
2. What is acknowledged by a stale attempt, or for a checkpoint that is over, is discarded, except files that a kept or
   doubtful manifest refers to. A current attempt's committables of such a checkpoint are carried to its next one.
3. Once its manifest is ordered into the log, only the log's answer ends a checkpoint.
4. Failures count in a row; one more than the settings tolerate fails the job (:meth:`Checkpoints.take_failure`).
"""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as replace_struct

from ..engine.identity import CheckpointId, Committable, StateHandle, TaskId
from .commands import AbortCheckpoint, DiscardEntries, DiscardState, ProposeRound, TriggerCheckpoint
from .committing import Committing
from .completed import CompletedCheckpoints
from .context import Context
from .events import Failure, RoundProposed, TaskAcked, TaskDeclined
from .failure_manager import FailureManager, Origin, Verdict
from .job_states import TaskStatus
from .manifest import Manifest, TaskState
from .pending import AckResult, PendingCheckpoint, Phase
from .plan_calculator import CheckpointPlan, compute_checkpoint_plan, task_ids
from .reasons import FailureReason
from .request_decider import RequestDecider
from .tasks import Region, TaskRecord

_REMEMBERED = 64
"""Given-up checkpoints whose late acknowledgements still count as news; later ones come from nowhere."""


class Checkpoints:
    """The pending checkpoint, the completed ones, and the wish for the next."""

    def __init__(self, context: Context, completed: CompletedCheckpoints, committing: Committing) -> None:
        self._context = context
        self._committing = committing
        self.completed = completed
        self.decider = RequestDecider(context.settings)
        self.pending: PendingCheckpoint | None = None
        self.completed_count = 0
        self.failed_count = 0
        self.next_number = 1
        self.failures = FailureManager(context.settings.tolerable_failures)
        #: The failure that went beyond the tolerable, until the machine takes it.
        self._fatal: Failure | None = None
        #: Given-up checkpoints of this generation, oldest first, bounded.
        self._aborted: list[CheckpointId] = []
        #: Regions with an ended branch that no checkpoint covers.
        self._final_regions: set[int] = set()

    @property
    def last_aborted(self) -> CheckpointId | None:
        """What silent tasks may still hold for; None while a newer checkpoint is pending."""
        return self._aborted[-1] if self._aborted and self.pending is None else None

    def next_deadline(self) -> float | None:
        """When a checkpoint is due, or the pending one times out."""
        if self.pending is not None:
            return self._expires_at(self.pending)
        return self.decider.next_at() if self._context.log.is_idle else None

    def take_failure(self) -> Failure | None:
        """The failure that must end the job, if there is one; it is told once."""
        failure, self._fatal = self._fatal, None
        return failure

    # --- start ---------------------------------------------------------------------------------------------------

    def start_due(self) -> None:
        """Start a checkpoint if one is due and possible."""
        context = self._context
        if self.pending is not None or not context.log.is_idle or not self.decider.is_due(context.now):
            return
        plan = compute_checkpoint_plan(context.graph, context.tasks.plan_states())
        if isinstance(plan, CheckpointPlan) and plan.to_wait_for:
            self._start(plan)

    def _start(self, plan: CheckpointPlan) -> None:
        context = self._context
        id = CheckpointId(context.generation, self.next_number)
        self.next_number += 1
        triggers, proposing = task_ids(plan.to_trigger), context.graph.deterministic
        self.pending = pending = PendingCheckpoint(id, triggers, task_ids(plan.to_wait_for), proposing, context.now)
        for task in task_ids(plan.finished):
            pending.finished[task] = self._carried(task)
        self.decider.started(context.now)
        self._tell(pending, triggers)

    def _tell(self, pending: PendingCheckpoint, tasks: tuple[TaskId, ...]) -> None:
        """Ask for a round, or order the barrier, whatever the phase wants."""
        context = self._context
        for task in tasks:
            record = context.tasks[task]
            if record.attempt is None:
                continue
            pending.triggers[task] = context.now
            if pending.phase is Phase.PROPOSING:
                context.order(ProposeRound(task, record.attempt, pending.id))
            else:
                at = pending.at_round(record.region, context.graph.deterministic)
                started = pending.started_at
                context.order(TriggerCheckpoint(task, record.attempt, pending.id, pending.kind, at, started))

    def proposed(self, event: RoundProposed, record: TaskRecord) -> None:
        """A source holds. When all do, the barrier goes to the largest round of each region."""
        pending = self.pending
        if pending is None or pending.id != event.checkpoint:
            return
        pending.propose(record.id, record.region, event.round)
        self._trigger_if_proposed(pending)

    def _trigger_if_proposed(self, pending: PendingCheckpoint) -> None:
        if pending.phase is Phase.PROPOSING and not pending.unproposed:
            pending.move(Phase.TRIGGERED)
            self._tell(pending, tuple(pending.triggers))

    def resend(self, before: float) -> None:
        """Ask or order again where no answer came."""
        pending = self.pending
        if pending is None or not pending.is_open:
            return
        silent = pending.unproposed if pending.phase is Phase.PROPOSING else pending.waiting & set(pending.triggers)
        self._tell(pending, tuple(task for task in sorted(silent) if pending.triggers[task] <= before))

    # --- answers -------------------------------------------------------------------------------------------------

    def acked(self, event: TaskAcked, record: TaskRecord | None) -> None:
        """``record`` is None for a stale attempt."""
        pending = self.pending
        if record is None or pending is None or pending.id != event.checkpoint:
            self._acked_late(event, record)
            return
        committables = [*record.unsaved, *(c for c in event.committables if c not in record.unsaved)]
        result = pending.acknowledge(
            TaskState(task=record.id, state=event.state, committables=tuple(committables), data_ended=event.data_ended)
        )
        if result is AckResult.ACCEPTED:
            record.unsaved.clear()
            if event.data_ended:
                self.data_ended(record)
        elif result is AckResult.LATE:
            self._discard(event.state)

    def declined(self, event: TaskDeclined) -> None:
        """A task could not take its snapshot: the checkpoint fails."""
        pending = self.pending
        if pending is not None and pending.id == event.checkpoint and pending.is_open and event.task in pending.waiting:
            self.failed(event.failure, FailureReason.CHECKPOINT_DECLINED, Origin.TASK)

    def _acked_late(self, event: TaskAcked, record: TaskRecord | None) -> None:
        if record is not None and event.checkpoint in self._aborted:
            self._carry(record, event.committables)
        self._discard(event.state)

    @staticmethod
    def _carry(record: TaskRecord, committables: tuple[Committable, ...]) -> None:
        record.unsaved += [c for c in committables if c not in record.unsaved]

    def data_ended(self, record: TaskRecord) -> None:
        """The task's data have ended; maybe that ends a branch, which then wants its checkpoint at once."""
        tasks = self._context.tasks
        if record.state is TaskStatus.RUNNING:
            tasks.move(record, TaskStatus.DATA_ENDED)
        if tasks.branch_ended(tasks.region_of(record)):
            self._final_regions.add(record.region)
        self.decider.want_final(bool(self._final_regions))

    def region_stopped(self, region: Region) -> None:
        """Its tasks will reach their end again."""
        self._final_regions.discard(region.index)
        self.decider.want_final(bool(self._final_regions))

    def finished(self, record: TaskRecord) -> None:
        """The task is over. If the pending checkpoint waited for it, it is repaired."""
        pending = self.pending
        if pending is None or not pending.drop_finished(self._carried(record.id)):
            return
        plan = compute_checkpoint_plan(self._context.graph, self._context.tasks.plan_states())
        if isinstance(plan, CheckpointPlan):
            self._tell(pending, pending.add_triggers(task_ids(plan.to_trigger), self._context.now))
        self._trigger_if_proposed(pending)

    def _carried(self, task: TaskId) -> TaskState:
        """A finished task's last state. Its committables are visible, or open in the ledger."""
        state = self.completed.state_of(task)
        if state is None:
            raise AssertionError(f"{task} has finished, but no completed checkpoint holds it")
        return replace_struct(state, committables=(), finished=True)

    # --- end -----------------------------------------------------------------------------------------------------

    def store_due(self) -> None:
        """Order the manifest when everybody has answered; give up a checkpoint that nobody is left to answer."""
        pending, context = self.pending, self._context
        if pending is None or not pending.is_acknowledged or not context.log.is_idle:
            return
        if not pending.acked:
            self.abort("every task has finished")
            return
        pending.move(Phase.STORING)
        manifest = Manifest(
            number=context.log.next_number,
            checkpoint=pending.id,
            fingerprint=context.fingerprint,
            parallelism=dict(context.graph.parallelism),
            tasks=pending.task_states(),
            uncommitted=self._committing.ledger.uncommitted(),
        )
        context.order(context.log.store(manifest))

    def stored(self, manifest: Manifest) -> None:
        """The manifest stands in the log: the checkpoint is complete, the sinks may commit."""
        pending, context = self.pending, self._context
        if pending is None or pending.id != manifest.checkpoint:
            raise AssertionError(f"the manifest of {manifest.checkpoint} was stored, which is not pending")
        pending.move(Phase.COMPLETED)
        self.pending = None
        self.completed_count += 1
        self.decider.completed(context.now)
        self.adopt(manifest)

    def adopt(self, manifest: Manifest) -> None:
        """The manifest is the newest in the log, whether it is the pending checkpoint's or one given up as failed.

        Every running task descends from it: no region is deployed while a manifest is doubtful.
        """
        context = self._context
        self.failures.completed(manifest.checkpoint)
        numbers, handles = self.completed.add(manifest)
        if numbers:
            context.order(DiscardEntries(numbers))
        self._discard(handles)
        for state in manifest.tasks:
            record = context.tasks[state.task]
            if state.data_ended and record.state is not TaskStatus.STOPPED:
                context.tasks.cover(record)
            if not state.finished:
                self._committing.completed(manifest.checkpoint, state.task, state.committables)
        tasks = context.tasks
        self._final_regions = {index for index in self._final_regions if tasks.branch_ended(tasks.regions[index])}
        self.decider.want_final(bool(self._final_regions))

    def settled(self) -> None:
        """Another entry took the number that a doubtful manifest might have had."""
        self._discard(self.completed.settle())

    def store_failed(self, failure: Failure) -> None:
        """The manifest failed to be written and is not in the log; it may still come, so its files stay."""
        pending, manifest = self.pending, self._context.log.in_flight
        if pending is None or not isinstance(manifest, Manifest):
            raise AssertionError("a manifest failed that was not ordered")
        self.completed.doubt(manifest)
        self._context.log.dropped()
        self.failed(failure, FailureReason.FINALIZE_CHECKPOINT_FAILURE)

    def _expires_at(self, pending: PendingCheckpoint) -> float | None:
        """When the checkpoint is given up. One that has to wait for the end of the data may take as long as that."""
        if not pending.is_open or pending.waits_for_the_end:
            return None
        return pending.started_at + self._context.settings.timeout

    def time_out(self) -> None:
        """Give the pending checkpoint up if its time is over."""
        pending, timeout = self.pending, self._context.settings.timeout
        if pending is None or (expires := self._expires_at(pending)) is None or self._context.now < expires:
            return
        missing = ", ".join(str(task) for task in sorted(pending.unproposed or pending.waiting)[:5])
        message = f"checkpoint {pending.id} was not complete after {timeout:g} s; it waited for {missing}"
        remedy = "raise the checkpoint timeout, or find out in the status what the task waits for"
        failure = Failure(message, retry=True, remedy=remedy, kind="StorageError")
        self.failed(failure, FailureReason.CHECKPOINT_EXPIRED)

    def failed(self, failure: Failure, reason: FailureReason, origin: Origin = Origin.COORDINATOR) -> None:
        """The pending checkpoint failed; maybe that is one failure too many."""
        pending = self.pending
        if pending is None:
            return
        self.failed_count += 1
        verdict = self.failures.failed(reason, pending.id, origin=origin)
        self.abort(failure.message)
        if verdict is Verdict.FAIL_JOB:
            self._fatal = replace(failure, message=f"checkpoint {pending.id} failed: {failure.message}")

    def abort(self, reason: str) -> None:
        """Give the pending checkpoint up: tell everybody, keep committables, drop files."""
        pending, context = self.pending, self._context
        if pending is None:
            return
        pending.move(Phase.ABORTED)
        self.pending = None
        self._aborted = [*self._aborted, pending.id][-_REMEMBERED:]
        self.decider.aborted(context.now)
        for task in pending.participants:
            record = context.tasks[task]
            if task in pending.acked:
                self._carry(record, pending.acked[task].committables)
            if record.is_started and record.attempt is not None:
                latest = self.completed.latest_id
                context.order(AbortCheckpoint(task, record.attempt, pending.id, latest))
        self._discard(pending.handles())

    def _discard(self, handles: tuple[StateHandle, ...]) -> None:
        """Order those files deleted that nobody refers to."""
        held = {handle.location for handle in self.pending.handles()} if self.pending is not None else set()
        gone = tuple(h for h in self.completed.unreferenced(handles) if h.location not in held)
        if gone and self._context.generation:
            self._context.order(DiscardState(gone))

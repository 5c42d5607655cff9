"""Checkpoints on their way: from the request to the last answer, or until it is aborted.

Rules:

1. A checkpoint starts only while every task runs or has finished, but for those of regions that are carried (rule 6),
   and none is in flight: so barriers are in every channel in the order of their ids.
2. What is acknowledged by a stale attempt, or for a checkpoint that is over, is discarded, except files that a kept or
   doubtful manifest refers to. A current attempt's committables of such a checkpoint are carried to its next one.
3. Once its manifest is ordered into the log, only the log's answer ends a checkpoint (``finalizer.py``).
4. Tasks take "aborted" for everything up to that id. Of a savepoint that could not be copied they need not hear: they
   have done their part.
5. Failures count in a row; one more than the settings tolerate fails the job (:meth:`Checkpoints.take_failure`). When
   the savepoint that the job stops with is aborted after its trigger, its sources have stopped: the job must restart
   (:meth:`Checkpoints.take_interruption`).
6. A region that does not run is *carried* by a checkpoint, where the newest one in the log holds it and the job shares
   nothing between regions (:meth:`Checkpoints._is_carried`): it takes no part, and what it had acknowledged is dropped
   as if the checkpoint were aborted. One that dies after all of it has cut keeps its cut until it is deployed again:
   it must then begin at what the newest checkpoint in the log says, and this one is not there yet. Nobody but carried
   regions: no checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from ...engine.core.identity import FINAL_ROUND, CheckpointId, Committable, StateHandle, TaskId
from ..model.commands import (
    AbortCheckpoint,
    DescribeTask,
    DiscardState,
    ExpectBarrier,
    ProposeRound,
    TriggerCheckpoint,
)
from ..model.events import Failure, RoundProposed, TaskAcked, TaskDeclined, TaskDescribed
from ..model.job_states import TaskStatus
from ..model.kinds import Cause, CheckpointKind, FailureReason, Request, StopMode
from ..model.manifest import Manifest, TaskState
from ..model.statistics import Overview, SavepointResult
from ..state.context import Context
from ..state.tasks import Region, TaskRecord
from .failures import FailureTolerance, Origin, Verdict
from .history import CheckpointHistory
from .pending import (
    AckResult,
    CheckpointPlan,
    HeldSources,
    PendingCheckpoint,
    Phase,
    compute_checkpoint_plan,
    flags_of,
    orphaned_consumers,
    vertex_states,
)
from .requests import EndedBranches, RequestDecider, SavepointResults
from .row_accounts import imbalance

_REMEMBERED = 64
"""Aborted checkpoints whose late acknowledgements still count."""

_DESCRIBED = 5
"""So many of the tasks that hold up a checkpoint are named, and asked what they are at."""
_ASKED_BEFORE = 1.0
"""Seconds before its time is over; no more than a quarter of that."""

SOURCE_ENDS = Failure("the end of a source is still on its way to the sinks", retry=True)
"""Why no place could be found for the barriers. The next checkpoint may find one."""

NOT_ALIGNED = Failure("its barriers did not align in time: the tasks cut where they stand instead", retry=True)
"""Why a checkpoint by agreement was given up."""

DEPLOYED_AGAIN = Failure("the only region that took part is deployed again", retry=True)
"""Why a checkpoint that nobody else takes part in is given up."""


class Checkpoints:
    """The pending checkpoints, and the wish for the next."""

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self._context = context
        self._requests = RequestDecider(settings)
        #: What is in flight: one at most (rule 1).
        self.pendings: dict[CheckpointId, PendingCheckpoint] = {}
        self.next_number = 1
        self._tolerance = FailureTolerance(settings.tolerable_failures)
        self._history = CheckpointHistory(context.graph.parallelism, settings.history)
        self._savepoints = SavepointResults()
        #: Checkpoints that failed, others than those aborted in the ordinary course of things.
        self.failed_count = 0
        #: The failure that went beyond the tolerable, and the one that a stop left the sources ended by, until taken.
        self._fatal: Failure | None = None
        self._interrupted: Failure | None = None
        #: Aborted checkpoints of this generation, oldest first.
        self._aborted: deque[CheckpointId] = deque(maxlen=_REMEMBERED)
        self._branches = EndedBranches(context.tasks, self._requests, each=settings.ended_branches)
        self._orders = BarrierOrders(context)

    @property
    def pending(self) -> PendingCheckpoint | None:
        """The one in flight."""
        return next(iter(self.pendings.values()), None)

    @property
    def may_change_newest(self) -> bool:
        """Whether an answer is awaited that may make another checkpoint the newest: of the log, or on the way to it."""
        return any(
            one.phase is Phase.STORING or (one.phase is Phase.COPYING and one.kind.commits)
            for one in self.pendings.values()
        )

    @property
    def last_aborted(self) -> CheckpointId | None:
        """What silent tasks may still hold for; None while a newer checkpoint is on its way."""
        travelling = any(one.is_open for one in self.pendings.values())
        return self._aborted[-1] if self._aborted and not travelling else None

    def was_aborted(self, checkpoint: CheckpointId) -> bool:
        """Whether it was aborted, as far as that is remembered."""
        return checkpoint in self._aborted

    def next_deadline(self) -> float | None:
        """When a checkpoint is due, or a pending one times out."""
        times = [self._expires_at(one) for one in self.pendings.values()]
        times += [self._asks_at(one) for one in self.pendings.values()]
        times.append(self._requests.next_at() if self._may_start else None)
        return min((at for at in times if at is not None), default=None)

    def take_failure(self) -> Failure | None:
        """The failure that must end the job, if there is one; it is told once."""
        failure, self._fatal = self._fatal, None
        return failure

    def take_interruption(self) -> Failure | None:
        """Why every region must restart, if so; it is told once."""
        failure, self._interrupted = self._interrupted, None
        return failure

    # --- requests ------------------------------------------------------------------------------------------------

    def request(self) -> None:
        """A checkpoint is wanted at once."""
        self._requests.request()

    def request_savepoint(self, request: Request) -> None:
        """A user asks."""
        self._savepoints.asked(request, (one.request for one in self.pendings.values()), self._requests)

    def refuse_savepoint(self, request: Request, why: str) -> None:
        """A user asks in vain."""
        self._savepoints.refused(request, why)

    def refuse_queued(self, why: str) -> None:
        """Nobody will take the savepoints that have not started."""
        for request in self._requests.drop_queued():
            self._savepoints.refused(request, why)

    @property
    def is_wanted(self) -> bool:
        """Whether a checkpoint is due, or on its way."""
        return bool(self.pendings) or self._requests.choose(self._context.now) is not None

    def job_runs(self, *, resumed: bool) -> None:
        """Every task runs or has finished; ``resumed``: not for the first time."""
        self._requests.job_runs(self._context.now, resumed)

    def job_stops(self) -> None:
        """Some task does not run: no checkpoint until ``job_runs``."""
        self._requests.job_stops()

    def part_runs(self) -> None:
        """Some region runs, and some does not."""
        self._requests.part_runs(self._context.now)

    def region_lost(self, region: Region, failure: Failure) -> None:
        """Its tasks are about to be stopped: what is on its way goes on without them, if it may (rule 6)."""
        for pending in list(self.pendings.values()):
            if not pending.is_open or pending.id not in self.pendings:
                continue
            if not self._may_carry(pending.request) or not self._is_carried(region):
                self.abort(pending, failure)
            elif not pending.has_cut(region.tasks):
                self._carry_region(pending, region, failure)

    def region_stops(self, region: Region) -> None:
        """Its tasks do not run any more, and will reach their end again."""
        self._branches.region_stopped(region)
        self._requests.part_runs(self._context.now)

    def region_restarts(self, region: Region) -> None:
        """It is deployed from the newest checkpoint: its cut for another one that is on its way is of no use."""
        for pending in list(self.pendings.values()):
            if pending.is_open and region.index not in pending.carried and pending.id in self.pendings:
                self._carry_region(pending, region, DEPLOYED_AGAIN)

    def _carry_region(self, pending: PendingCheckpoint, region: Region, failure: Failure) -> None:
        dropped = pending.carry(region.index, region.tasks)
        self._history.carried(pending, region.tasks, dropped)
        self._requests.carries(pending.request)
        if pending.waiting or pending.acked:
            self._trigger_if_proposed(pending)
        else:
            self.abort(pending, failure)
        self.discard(tuple(handle for state in dropped for handle in state.state))

    def _may_carry(self, request: Request) -> bool:
        """Whether the checkpoint may do without some region."""
        return not request.kind.is_savepoint and request.cause is not Cause.MOVE

    def _is_carried(self, region: Region) -> bool:
        """Whether checkpoints can do without the region: the newest one holds what it goes on from, as it is. Not where
        somebody outside reads its rows, nor where regions share the sets of splits that they read."""
        graph, latest = self._context.graph, self._context.retained.latest
        if latest is None or latest.root or latest.parallelism != graph.parallelism or graph.split_tasks:
            return False
        return not any(task.vertex in graph.paced for task in region.tasks) if graph.paced else True

    # --- start ---------------------------------------------------------------------------------------------------

    @property
    def _may_start(self) -> bool:
        """Rule 1, and that of ``released_splits``."""
        tasks = self._context.tasks
        carried = all(self._is_carried(tasks.regions[index]) for index in tasks.down)
        return tasks.anything_runs and carried and self._context.splits.is_between_windows

    def start_due(self) -> None:
        """Start a checkpoint if one is due and possible."""
        context = self._context
        request = self._requests.choose(context.now)
        if request is None or not self._may_start:
            return
        tasks = context.tasks
        left_out = flags_of(context.graph, (task for index in tasks.down for task in tasks.regions[index].tasks))
        plan = compute_checkpoint_plan(context.graph, vertex_states(tasks), left_out=left_out)
        if isinstance(plan, CheckpointPlan) and plan.waits:
            self._start(plan, request)

    def draw_id(self) -> CheckpointId:
        """The next id; task barriers have theirs from the same sequence."""
        self.next_number += 1
        return CheckpointId(self._context.generation, self.next_number - 1)

    def _start(self, plan: CheckpointPlan, request: Request) -> None:
        context, id = self._context, self.draw_id()
        is_cut = self._cuts(request)
        triggers, proposing = plan.to_trigger, context.graph.deterministic and not is_cut
        wait_for, finished = plan.waiting_set(), plan.finished_set()
        triggered = context.tasks.ids({vertex: numbers.tolist() for vertex, numbers in triggers.items()})
        pending = PendingCheckpoint(id, triggered, wait_for, proposing, context.now, request, finished, is_cut=is_cut)
        if context.splits.begun:
            pending.splits, pending.assigned = context.splits.boundary, context.splits.released
        pending.carried |= context.tasks.down
        self.pendings[id] = pending
        self._history.started(pending)
        for index in sorted(pending.carried):
            self._history.carried(pending, context.tasks.regions[index].tasks, ())
        self._requests.started(request, context.now, not pending.carried)
        self._orders.begin(pending)

    def _cuts(self, request: Request) -> bool:
        """Whether the tasks cut where they stand, and not at a place that their sources agree on."""
        settings = self._context.settings
        if not (self._context.graph.cuts and settings.unaligned) or request.aligned or request.stop is StopMode.DRAIN:
            return False
        return not settings.alignment_timeout or request.cause is Cause.INSTEAD or request.kind.is_savepoint

    def proposed(self, event: RoundProposed, record: TaskRecord) -> None:
        """A source holds. When all do, the barrier goes to the largest round of each region."""
        pending = self.pendings.get(event.checkpoint)
        if pending is not None:
            pending.propose(record.id, record.region, event.round)
            self._trigger_if_proposed(pending)

    def _trigger_if_proposed(self, pending: PendingCheckpoint) -> None:
        if pending.phase is not Phase.PROPOSING or pending.unproposed:
            return
        if pending.is_undecided:
            self.failed(pending, SOURCE_ENDS, FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING, Origin.TASK)
            return
        self._orders.trigger(pending)

    def resend(self, before: float) -> None:
        """Ask or order again where no answer came."""
        self._orders.resend(self.pendings.values(), before)

    # --- answers -------------------------------------------------------------------------------------------------

    def acked(self, event: TaskAcked, record: TaskRecord | None) -> bool:
        """Whether something becomes possible by it. ``record`` is None for a stale attempt."""
        pending = self._find(event.checkpoint)
        if record is None or pending is None:
            self._acked_late(event, record)
            return False
        committables = event.committables
        if record.unsaved:
            committables = (*record.unsaved, *(c for c in event.committables if c not in record.unsaved))
        result = pending.acknowledge(
            TaskState(
                task=record.id,
                state=event.state,
                committables=committables,
                data_ended=event.data_ended,
                ended=event.ended,
            )
        )
        if result is AckResult.ACCEPTED:
            self._orders.left(pending, record)
            wish = self._accepted(pending, event, record)
            return wish or not pending.waiting
        if result is AckResult.LATE:
            self._discard_late(event)
        return False

    def _find(self, id: CheckpointId) -> PendingCheckpoint | None:
        """As ``pendings.get``, faster for the one that there is."""
        for pending in self.pendings.values():
            known = pending.id
            if known is id or (known.number == id.number and known.generation == id.generation):
                return pending
        return None

    def _accepted(self, pending: PendingCheckpoint, event: TaskAcked, record: TaskRecord) -> bool:
        """Whether another checkpoint is wanted because of it."""
        self._history.acknowledged(event, self._context.now)
        if pending.kind.commits:
            record.unsaved = ()
        if event.finished_on_restore:
            pending.finished_on_restore.add(record.id)
        if event.ledger:
            pending.unbalanced = pending.unbalanced or imbalance(pending.id, record.id, event.ledger, event.state)
        return event.data_ended and self.data_ended(record)

    def declined(self, event: TaskDeclined) -> None:
        """A task could not take its snapshot: the checkpoint fails."""
        pending = self.pendings.get(event.checkpoint)
        if pending is not None and pending.is_open and event.task in pending.waiting:
            self.failed(pending, event.failure, event.reason, Origin.TASK)

    def _acked_late(self, event: TaskAcked, record: TaskRecord | None) -> None:
        if record is not None and event.checkpoint in self._aborted:
            self._carry(record, event.committables)
        self._discard_late(event)

    def _carry(self, record: TaskRecord, committables: tuple[Committable, ...]) -> None:
        """For the task's next acknowledgement, unless they are in the newest checkpoint."""
        stored = self._context.retained.state_of(record.id)
        known = (*record.unsaved, *(stored.committables if stored is not None else ()))
        record.unsaved += tuple(c for c in committables if c not in known)

    def data_ended(self, record: TaskRecord) -> bool:
        """The task's data have ended; whether that ends the first branch that wants its checkpoint at once."""
        tasks = self._context.tasks
        if record.state is TaskStatus.RUNNING:
            tasks.move(record, TaskStatus.DATA_ENDED)
        return self._branches.data_ended(record)

    def finished(self, record: TaskRecord, cut: CheckpointId | None = None) -> bool:
        """The task is over. Pending checkpoints that waited for it are repaired; whether something is possible by that.

        Not one that is older than the checkpoint that let the task end: only the task's acknowledgement, which may
        still come, says what it was then. A task that is cut as a whole says which was its last ``cut``: that one's
        acknowledgement is waited for.
        """
        covered, changed = record.covered_by, False
        for pending in list(self.pendings.values()):
            if covered is None or covered > pending.id:
                continue
            if pending.is_cut and cut is not None and cut >= pending.id:
                continue
            if not pending.drop_finished(record.id):
                continue
            self._history.finished(pending, record.id.vertex)
            orphans = orphaned_consumers(self._context.graph, self._context.tasks, record.id)
            self._orders.send(pending, pending.add_triggers(orphans, self._context.now))
            self._trigger_if_proposed(pending)
            self._orders.left(pending, record)
            changed = changed or not pending.is_open or not pending.waiting
        return changed

    def finished_lost(self, record: TaskRecord, failure: Failure) -> None:
        """The process of a task that has finished is gone: an answer that was on its way may never come."""
        for pending in list(self.pendings.values()):
            if pending.is_open and record.id in pending.waiting:
                self.failed(pending, failure, FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING, Origin.TASK)

    # --- end -----------------------------------------------------------------------------------------------------

    def _expires_at(self, pending: PendingCheckpoint) -> float | None:
        """When the checkpoint is aborted."""
        if pending.phase is Phase.STORING or pending.location:
            return None
        settings = self._context.settings
        after = settings.alignment_timeout if self._gives_way(pending) else settings.timeout
        return pending.started_at + min(after, settings.timeout)

    def _asks_at(self, pending: PendingCheckpoint) -> float | None:
        """When the silent tasks are asked what they are at, so that the failure can say it; None: not any more."""
        if pending.asked or not pending.is_open or self._gives_way(pending):
            return None
        timeout = self._context.settings.timeout
        return pending.started_at + timeout - min(_ASKED_BEFORE, timeout / 4)

    def _ask_silent(self) -> None:
        """Ask those tasks that hold up a checkpoint whose time is almost over."""
        for pending in self.pendings.values():
            at = self._asks_at(pending)
            if at is None or self._context.now < at:
                continue
            pending.asked = True
            for task in pending.silent(_DESCRIBED):
                attempt = self._context.tasks[task].attempt
                if attempt is not None:
                    self._context.order(DescribeTask(task, attempt, pending.id))

    def described(self, event: TaskDescribed) -> None:
        """A task says what it is at."""
        pending = self.pendings.get(event.checkpoint)
        if pending is not None:
            pending.described[event.task] = event.words

    def _gives_way(self, pending: PendingCheckpoint) -> bool:
        """Whether a cut takes the place of the checkpoint if its barriers do not align in time."""
        settings = self._context.settings
        may_cut = self._context.graph.cuts and settings.unaligned and settings.alignment_timeout > 0
        may_give_way = not pending.is_cut and not pending.request.aligned and pending.kind is CheckpointKind.CHECKPOINT
        return may_cut and pending.is_open and may_give_way

    def time_out(self) -> None:
        """Abort the pending checkpoints whose time is over, and ask what others wait for before theirs is."""
        now, timeout = self._context.now, self._context.settings.timeout
        for pending in list(self.pendings.values()):
            expires = self._expires_at(pending)
            if expires is None or now < expires or pending.id not in self.pendings:
                continue
            if self._gives_way(pending):
                self.abort(pending, NOT_ALIGNED)
                self._requests.request_instead()
                continue
            message = f"checkpoint {pending.id} was not complete after {timeout:g} s; it waited for {_missing(pending)}"
            remedy = "raise the checkpoint timeout, or see that what its tasks are at takes less time"
            failure = Failure(message, retry=True, remedy=remedy, kind="StorageError")
            # behind the end of all data there may be work for long, and nobody is unwell
            behind = FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING
            reason = behind if pending.waits_for_the_end else FailureReason.CHECKPOINT_EXPIRED
            self.failed(pending, failure, reason)
        self._ask_silent()

    def failed(
        self, pending: PendingCheckpoint, failure: Failure, reason: FailureReason, origin: Origin = Origin.COORDINATOR
    ) -> None:
        """The pending checkpoint failed; maybe that is one failure too many."""
        self.failed_count += 1
        verdict = self._tolerance.failed(reason, pending.id, pending.kind, origin)
        self.abort(pending, failure)
        if verdict is Verdict.FAIL_JOB and pending.request.cause is not Cause.STOP:
            self._fatal = replace(failure, message=f"checkpoint {pending.id} failed: {failure.message}")

    def unbalanced(self, pending: PendingCheckpoint, failure: Failure) -> None:
        """The rows of a checkpoint do not balance: it is aborted, and the job must end."""
        self.failed(pending, failure, FailureReason.LEDGER_DOES_NOT_BALANCE, Origin.TASK)
        self._fatal = failure

    def abort_unstored(self, failure: Failure) -> None:
        """The job ends: abort everything but what the log has yet to answer for."""
        self.abort_open(failure)
        for pending in list(self.pendings.values()):
            if not pending.is_being_stored:
                self.abort(pending, failure)

    def abort_open(self, failure: Failure) -> None:
        """Abort everything that tasks still take part in."""
        for pending in list(self.pendings.values()):
            if pending.is_open:
                self.abort(pending, failure)

    def abort(self, pending: PendingCheckpoint, failure: Failure) -> None:
        """Abort a pending checkpoint: tell everybody, keep committables, drop files."""
        context, request = self._context, pending.request
        travelling, triggered = pending.phase is not Phase.COPYING, pending.phase is not Phase.PROPOSING
        self._close(pending, Phase.ABORTED)
        self._aborted.append(pending.id)
        self._requests.aborted(request, context.now)
        self._history.failed(pending, context.now, failure.message)
        latest = self._context.retained.latest_id
        for task in pending.participants:
            record = context.tasks[task]
            # a failed copy of a savepoint may be reported when other attempts run: theirs list again what they hold
            if task in pending.acked and record.is_started and pending.kind is CheckpointKind.CHECKPOINT:
                self._carry(record, pending.acked[task].committables)
            if travelling and record.is_started and record.attempt is not None:
                context.order(AbortCheckpoint(task, record.attempt, pending.id, latest))
        if request.kind.is_savepoint:
            self._savepoints.failed(request, pending.id, failure)
        if request.cause is Cause.STOP and triggered and not pending.is_cut:
            self._interrupted = replace(failure, message=f"the job could not stop: {failure.message}", retry=True)
        self.discard(pending.handles())

    # --- what the finalizer says ---------------------------------------------------------------------------------

    def complete(self, pending: PendingCheckpoint) -> None:
        """It is complete, in the log or in a folder of its own."""
        self._close(pending, Phase.COMPLETED)
        self._requests.completed(self._context.now)
        self._history.completed(pending, self._context.now)

    def committed(self, checkpoints: Sequence[CheckpointId]) -> None:
        """For each of these a committable of it is visible."""
        if checkpoints:
            self._history.committed(checkpoints, self._context.now)

    def savepoint_taken(self, request: Request, checkpoint: CheckpointId, location: str) -> None:
        """The savepoint is complete, by us or by a coordinator before us."""
        self._savepoints.taken(request, checkpoint, location)

    def succeeded(self, checkpoint: CheckpointId) -> None:
        """A checkpoint or savepoint is complete: failures before it do not count any more."""
        self._tolerance.completed(checkpoint)

    def covered(self) -> None:
        """Branches that have ended may be covered now."""
        self._branches.look_again()

    def restored(self, manifest: Manifest) -> None:
        """Tasks are started from a checkpoint."""
        self._history.restored(manifest, self._context.now)

    def discarded(self, checkpoints: Collection[CheckpointId], handles: tuple[StateHandle, ...]) -> None:
        """These are not kept any more: their files can go."""
        self._history.discarded(checkpoints)
        self.discard(handles)

    # --- for people ----------------------------------------------------------------------------------------------

    def overview(self) -> Overview:
        """Counts, history and summary of this coordinator's checkpoints."""
        return self._history.overview(self._context.settings)

    @property
    def completed_count(self) -> int:
        return self._history.completed_count

    @property
    def savepoint_results(self) -> tuple[SavepointResult, ...]:
        """The newest, oldest first."""
        return self._savepoints.results

    def validate(self) -> None:
        """Every invariant that can be checked of what is on its way."""
        self._tolerance.validate()
        latest = self._context.retained.latest_id
        for pending in self.pendings.values():
            pending.validate()
            for task in (task for index in pending.carried for task in self._context.tasks.regions[index].tasks):
                if task in pending.waiting or task in pending.acked or task in pending.finished:
                    raise AssertionError(f"checkpoint {pending.id} carries {task}, which takes part")
            if latest is not None and pending.id <= latest and not pending.kind.is_savepoint:
                raise AssertionError(f"checkpoint {pending.id} is pending after {latest} completed")
        if len(self.pendings) > 1:
            raise AssertionError(f"more than one checkpoint is in flight: {list(self.pendings)}")

    # --- files ---------------------------------------------------------------------------------------------------

    def _close(self, pending: PendingCheckpoint, phase: Phase) -> None:
        pending.move(phase)
        del self.pendings[pending.id]

    def discard(self, handles: tuple[StateHandle, ...]) -> None:
        """Order those files deleted that nobody refers to."""
        self._discard(handles, [state for one in self.pendings.values() for state in one.acked.values()])

    def _discard_late(self, event: TaskAcked) -> None:
        """As above; only the task itself can have named its files."""
        self._discard(event.state, [one.acked[event.task] for one in self.pendings.values() if event.task in one.acked])

    def _discard(self, handles: tuple[StateHandle, ...], held: list[TaskState]) -> None:
        locations = {handle.location for state in held for handle in state.state}
        locations.update(*(one.named for one in self.pendings.values()))
        gone = tuple(h for h in self._context.retained.unreferenced(handles) if h.location not in locations)
        if gone and self._context.generation:
            self._context.order(DiscardState(gone))


def _missing(pending: PendingCheckpoint) -> str:
    """What a checkpoint waits for: whose answer, to what, and what these are in the middle of."""
    silent = pending.silent(_DESCRIBED)
    if not silent:
        return "the storage"
    names, proposing = ", ".join(map(str, silent)), pending.phase is Phase.PROPOSING
    left, total = len(pending.waiting), len(pending.waiting) + len(pending.acked)
    whom = f"the rounds of {names}" if proposing else f"the snapshots of {names} ({left} of {total} tasks)"
    unknown = "does not say what it is at: its process hangs, or it is in one call for long"
    told = [f"{task}: {pending.described.get(task, unknown)}" for task in silent if pending.asked]
    return ". ".join((whom, *told))


def align_sources(
    proposals: Mapping[TaskId, int], regions: Mapping[TaskId, int], aligned_sources: Collection[str], max_drift: int
) -> dict[int, HeldSources]:
    """Who is held for whom, by region. ``regions``: of every task that proposed; ``aligned_sources``: see rule 5 of
    :class:`BarrierOrders`."""
    live = [(task, round) for task, round in proposals.items() if round < FINAL_ROUND]
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for task, round in live:
        region = regions[task]
        first[region] = min(round, first.get(region, round))
        last[region] = max(round, last.get(region, round))
    apart = {region for region, round in last.items() if max_drift and round - first[region] >= max_drift}
    waiting = {region: HeldSources(set(), set()) for region in apart}
    for task, round in live:
        region = regions[task]
        if region not in waiting:
            continue
        if round < last[region]:
            waiting[region].behind.add(task)
        elif task.vertex in aligned_sources:
            waiting[region].tasks.add(task)
    return {region: each for region, each in waiting.items() if each.tasks}


class BarrierOrders:
    """The orders that bring a checkpoint's barriers on their way: rounds, triggers, and what paced tasks expect.

    Rules:

    1. Deterministic flows: sources are asked for their round first, and get the barrier's round when all have answered.
    2. A *paced* vertex takes no more than somebody outside reads. Its tasks are told when a checkpoint begins, so that
       they take what comes before its barriers: else a slow reader would hold the checkpoint up.
    3. Source alignment. A barrier of a deterministic flow stands at the largest round that a source of the region has
       proposed, and nothing but the credits of channels keeps sources together: rounds of which all rows are filtered
       away need none. So sources that stand at the barrier's round already are *held* if another one is ``max_drift``
       rounds behind: they get their trigger, and go on, when those behind have taken their snapshot. Then all stand
       behind the same round. Not so if the job stops with the checkpoint.
    4. Only sources that stand there are held. They have sent everything up to that round, and nobody who is behind
       needs more: tasks go through the rounds of their inputs in order, and what comes behind an aligned barrier is not
       read before all barriers have come. So a source behind reaches the round, or its end, which aborts the
       checkpoint.
    5. Only tasks that read one source, whose rounds are not cut short, are aligned (``Vertex.aligned_sources``): of
       others the proposal does not say where each of their sources stands. Nobody waits for a source that has ended,
       nor for another region.
    6. What has had no answer is ordered again.
    7. A cut needs none of this: nothing is proposed, nobody waits for anybody, and tasks take what there is room for.
       A job that stops with one stops there: what its tasks did behind the cut is made again by whoever goes on.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def begin(self, pending: PendingCheckpoint) -> None:
        """The checkpoint is planned."""
        self._announce(pending)
        self.send(pending, pending.triggers)

    def trigger(self, pending: PendingCheckpoint) -> None:
        """Every round is known: order the barriers, but of those who wait (rule 3)."""
        pending.move(Phase.TRIGGERED)
        context = self._context
        if pending.request.stop is None:
            regions = {task: context.tasks[task].region for task in pending.proposals}
            pending.held = align_sources(
                pending.proposals, regions, context.graph.aligned_sources, context.settings.max_drift
            )
        self.send(pending, [task for task in pending.triggers if not pending.is_held(task)])

    def left(self, pending: PendingCheckpoint, record: TaskRecord) -> None:
        """The task has taken its snapshot, or finished: others may have waited for that."""
        if pending.held and pending.is_open:
            self.send(pending, pending.left(record.id, record.region))

    def send(self, pending: PendingCheckpoint, tasks: Iterable[TaskId]) -> None:
        """Ask for a round, or order the barrier, whatever the phase wants."""
        context, triggers, now = self._context, pending.triggers, self._context.now
        deterministic, proposing = context.graph.deterministic, pending.phase is Phase.PROPOSING
        id, barrier, started, assigned = pending.id, pending.barrier, pending.started_at, pending.assigned
        is_cut, stop = pending.is_cut, None if pending.is_cut else pending.request.stop
        for task in tasks:
            record = context.tasks[task]
            attempt = record.attempt
            if attempt is None:
                continue
            if now > started:  # else that is when it was told already
                triggers[task] = now
            if proposing:
                context.out.append(ProposeRound(task, attempt, id))
            else:
                at = pending.at_round(record.region, deterministic and not is_cut)
                context.out.append(TriggerCheckpoint(task, attempt, id, barrier, at, started, stop, assigned, is_cut))

    def _announce(self, pending: PendingCheckpoint) -> None:
        context = self._context
        for vertex in context.graph.paced if not pending.is_cut else ():
            for subtask in range(context.graph.parallelism[vertex]):
                record = context.tasks[TaskId(vertex, subtask)]
                if record.id in pending.waiting and record.attempt is not None:
                    context.order(ExpectBarrier(record.id, record.attempt, pending.id))

    def resend(self, pendings: Iterable[PendingCheckpoint], before: float) -> None:
        """Order again what was ordered at or before that time and has had no answer."""
        for pending in pendings:
            if not pending.is_open:
                continue
            if pending.started_at <= before:
                self._announce(pending)
            proposing = pending.phase is Phase.PROPOSING
            without = [task for task in pending.triggers if task in pending.waiting and not pending.is_held(task)]
            silent = pending.unproposed if proposing else without
            self.send(pending, [task for task in sorted(silent) if pending.triggers[task] <= before])

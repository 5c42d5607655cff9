"""Finalizes checkpoints: makes the manifest, orders it into the log or a savepoint into its folder, and what follows.
At the end of the module: who commits what the sinks have prepared, until all is visible (:class:`SinkCommits`).

Rules:

1. Of the checkpoints that everybody has answered, the oldest is stored first. The log takes one entry at a time.
2. A savepoint's files are copied to its folder, then its manifest is created there: that makes it one, and it is never
   taken back. It refers to these copies, named relative to its folder, and to nothing else. Of the savepoint that the
   job stops with the manifest goes into the log in between, where it is the job's last checkpoint: so what the folder
   holds is what the log says, whatever dies and is asked again. A coordinator that finds it in the log commits what it
   holds, creates it in its folder and closes the log; nothing is deployed any more.
3. A manifest in the log makes older checkpoints superfluous, those in flight too.
4. Nothing is stored or copied whose rows do not balance (``row_accounts.py``): the job fails.
5. A vertex whose tasks were deployed as finished, some or all, had finished as a whole; so the manifest says.
6. The state of a task that has finished, or that was deployed as finished, is carried on from the newest checkpoint;
   its committables are visible, or still open. Not its channel files: it is over, so all has arrived.
7. The state of a region that takes no part is that of the newest checkpoint, all of it: the region goes on from there
   whichever of the two it is restored from. Its committables are visible, or still open, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from msgspec.structs import replace

from ...engine.core.identity import Attempt, CheckpointId, CommitPermit, Committable, JobIdentity, TaskId
from ...engine.core.state_machine import check_move
from ..log.recovery import TakeOver
from ..log.retained import Gone, RetainedCheckpoints
from ..model.commands import (
    CommitCheckpoint,
    CommitOrphans,
    CopySavepoint,
    DiscardCopies,
    DiscardEntries,
    DiscardSnapshot,
    StoreSavepoint,
)
from ..model.events import Failure, SavepointCopied, SavepointFailed, SavepointStored
from ..model.execution_graph import ExecutionGraph, JobEdge, Pattern, pointwise_upstreams
from ..model.job_states import TaskStatus
from ..model.kinds import Cause, CheckpointKind, FailureReason, Request, StopMode
from ..model.manifest import Manifest, OperatorEntry, TaskState
from ..model.task_set import TaskSet
from ..restore.finished_check import FinishedState
from ..restore.stored_channels import flights
from ..state.context import Context
from .checkpoints import Checkpoints
from .failures import Origin
from .pending import PendingCheckpoint, Phase


class StopState(Enum):
    """How far the savepoint is that the job stops with, from when it is durable on."""

    __hash__ = object.__hash__

    NONE = "none"
    """There is none in the log."""
    DURABLE = "durable"
    """Its manifest is in the log: nothing takes the stop back."""
    PUBLISHING = "publishing"
    """Its folder has been ordered to be made a savepoint."""
    PUBLISHED = "published"


LEGAL_STOP_MOVES: Mapping[StopState, frozenset[StopState]] = {
    StopState.NONE: frozenset({StopState.DURABLE}),
    StopState.DURABLE: frozenset({StopState.PUBLISHING, StopState.PUBLISHED}),
    StopState.PUBLISHING: frozenset({StopState.DURABLE, StopState.PUBLISHED}),
    StopState.PUBLISHED: frozenset(),
}


class CheckpointFinalizer:
    """The second half of a checkpoint's life."""

    def __init__(self, context: Context, checkpoints: Checkpoints, commits: SinkCommits) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._commits = commits
        self._retained = context.retained
        #: The checkpoint that the job stops with, once it is durable, and how far its savepoint is.
        self.stopped_with: Manifest | None = None
        self._stop = StopState.NONE
        #: Whether the newest checkpoint is the one that a job moves to another shape with.
        self.moved = False

    def store_due(self) -> None:
        """Order what everybody has answered; abort what nobody is left to answer."""
        for pending in list(self._checkpoints.pendings.values()):
            copied = pending.phase is Phase.COPYING and bool(pending.location)
            if not ((copied and pending.kind.commits) or pending.is_acknowledged):
                continue
            if pending.unbalanced is not None:
                self._checkpoints.unbalanced(pending, pending.unbalanced)
            elif not pending.acked:
                self._checkpoints.abort(pending, Failure("every task has finished", retry=True))
            elif pending.kind.is_savepoint and not copied:
                self._copy(pending)
            elif self._context.log.is_idle:
                self._store(pending)

    def _store(self, pending: PendingCheckpoint) -> None:
        manifest, number = pending.manifest, self._context.log.next_number
        if manifest is not None:  # its files have been copied
            manifest = replace(manifest, number=number, savepoint=pending.location)
        else:
            manifest = self._manifest(pending)
        pending.move(Phase.STORING)
        self._context.order(self._context.log.store(manifest))

    def made_again(self, manifest: Manifest) -> Manifest:
        """The manifest that is being stored, at the log's next number: another one has become the newest."""
        pending = self._checkpoints.pendings[manifest.checkpoint]
        if pending.manifest is not None:
            return replace(manifest, number=self._context.log.next_number)
        return self._manifest(pending)

    def _copy(self, pending: PendingCheckpoint) -> None:
        manifest, request = self._manifest(pending), pending.request
        pending.move(Phase.COPYING)
        pending.manifest = manifest
        again = "" if request.cause is Cause.STOP else request.name
        self._context.order(CopySavepoint(pending.id, request.target, *make_savepoint(manifest), again))

    def _manifest(self, pending: PendingCheckpoint) -> Manifest:
        made = make_manifest(self._context, pending, self._retained, self._commits.uncommitted())
        pending.named = {each.location: each for state in made.tasks for each in state.state if each.location}
        return made

    # --- savepoints ----------------------------------------------------------------------------------------------

    def copied(self, event: SavepointCopied) -> None:
        """The savepoint's files lie in its folder."""
        pending = self._checkpoints.pendings.get(event.checkpoint)
        if pending is None or pending.phase is not Phase.COPYING:
            if self._checkpoints.was_aborted(event.checkpoint):
                self._context.order(DiscardCopies(event.checkpoint, event.location))
            return
        pending.location = event.location
        if pending.manifest is not None and pending.request.cause is not Cause.STOP:
            self._context.order(StoreSavepoint(pending.id, event.location, *make_savepoint(pending.manifest)))

    def savepoint_stored(self, event: SavepointStored) -> None:
        """The savepoint is in its folder."""
        stop, pending = self.stopped_with, self._checkpoints.pendings.get(event.checkpoint)
        if stop is not None and stop.checkpoint == event.checkpoint:
            if self._stop is not StopState.PUBLISHED:
                self._move(StopState.PUBLISHED)
                self._checkpoints.savepoint_taken(Request(Cause.STOP, stop.request), stop.checkpoint, event.location)
        elif pending is not None and pending.phase is Phase.COPYING:
            pending.location = event.location
            self._checkpoints.complete(pending)
            self._checkpoints.savepoint_taken(pending.request, event.holds or pending.id, event.location)
            self._checkpoints.succeeded(pending.id)
            self._checkpoints.discard(pending.handles())

    def savepoint_failed(self, event: SavepointFailed) -> bool:
        """The savepoint could not be written; False: it is the one that the job stops with, and must be."""
        stop, pending = self.stopped_with, self._checkpoints.pendings.get(event.checkpoint)
        if stop is not None and stop.checkpoint == event.checkpoint:
            if self._stop is StopState.PUBLISHING:
                self._move(StopState.DURABLE)
            return False
        if pending is not None and pending.phase is Phase.COPYING:
            reason = FailureReason.FINALIZE_CHECKPOINT_FAILURE
            self._checkpoints.failed(pending, event.failure, reason, Origin.COORDINATOR)
        return True

    def stop_with(self, manifest: Manifest) -> None:
        """The savepoint that the job stops with is in the log."""
        self.stopped_with = manifest
        self._move(StopState.DURABLE)

    def _move(self, to: StopState) -> None:
        self._stop = check_move("the savepoint that the job stops with", LEGAL_STOP_MOVES, self._stop, to)

    def publish(self) -> bool:
        """Whether the savepoint that the job stops with is in its folder; if not, it is ordered there."""
        stop = self.stopped_with
        if stop is None or self._stop is StopState.PUBLISHED:
            return True
        if self._stop is StopState.DURABLE:
            self._move(StopState.PUBLISHING)
            self._context.order(StoreSavepoint(stop.checkpoint, stop.savepoint, *make_savepoint(stop)))
        return False

    # --- the log's answers ---------------------------------------------------------------------------------------

    def stored(self, manifest: Manifest) -> None:
        """The manifest is durable: the checkpoint is complete, the sinks may commit."""
        pending = self._checkpoints.pendings.get(manifest.checkpoint)
        if pending is None:
            raise AssertionError(f"the manifest of {manifest.checkpoint} was stored, which is not pending")
        self._checkpoints.complete(pending)
        self.adopt(manifest)

    def adopt(self, manifest: Manifest) -> None:
        """The manifest is the newest in the log, whether it is a pending checkpoint's or one that had failed.

        Every running task descends from it: no region is deployed while a manifest is doubtful.
        """
        tasks, stops = self._context.tasks, manifest.kind == CheckpointKind.STOP_WITH_SAVEPOINT.value
        self._checkpoints.succeeded(manifest.checkpoint)
        self.let_go(self._retained.add(manifest))
        for state in manifest.tasks:
            if state.cut is not None:
                continue
            record = tasks[state.task]
            if state.data_ended and record.state is not TaskStatus.STOPPED:
                tasks.cover(record, manifest.checkpoint)
            if stops:
                self._commits.add(manifest.checkpoint, state.task, state.committables)
            elif not state.finished:
                self._commits.completed(manifest.checkpoint, state.task, state.committables)
        self._checkpoints.covered()
        self.moved = self._moves_with(manifest)
        if stops:
            self.stop_with(manifest)

    def begin(self, decision: TakeOver) -> None:
        """What the log holds of checkpoints is ours; what of it nobody needs can go."""
        self.let_go(self._retained.restore(decision.manifests, decision.pins))
        self.let_go(self._retained.finish_dropping(decision.dropped))
        self.moved = decision.latest is not None and self._moves_with(decision.latest)

    def _moves_with(self, manifest: Manifest) -> bool:
        return self._context.settings.moves and not flights(manifest)

    def imported(self, snapshot: Manifest) -> None:
        """The snapshot that the job starts from is in our log."""
        self.let_go(self._retained.add(snapshot))

    def dropped(self, numbers: Collection[int]) -> None:
        """The log says that nobody goes on from these, or is closed."""
        self.let_go(self._retained.drop(numbers))

    def let_go(self, gone: Gone) -> None:
        """Order deleted what nobody needs any more."""
        if gone.numbers:
            self._context.order(DiscardEntries(gone.numbers))
        for snapshot in gone.snapshots:
            handles = tuple(handle for state in snapshot.tasks for handle in state.state)
            self._context.order(DiscardSnapshot(snapshot.root, handles))
        self._checkpoints.discarded(gone.checkpoints, gone.handles)

    def settled(self) -> None:
        """Another entry took the number that a doubtful manifest might have had."""
        self._checkpoints.discard(self._retained.settle())

    def store_failed(self, failure: Failure) -> None:
        """The manifest failed to be written and is not in the log; it may still come, so its files stay."""
        manifest = self._context.log.in_flight
        if not isinstance(manifest, Manifest) or manifest.checkpoint not in self._checkpoints.pendings:
            raise AssertionError("a manifest failed that was not ordered")
        self._retained.doubt(manifest)
        self._context.log.failed()
        pending = self._checkpoints.pendings[manifest.checkpoint]
        self._checkpoints.failed(pending, failure, FailureReason.FINALIZE_CHECKPOINT_FAILURE)


def make_manifest(
    context: Context,
    pending: PendingCheckpoint,
    completed: RetainedCheckpoints,
    uncommitted: tuple[tuple[TaskId, Committable], ...],
) -> Manifest:
    """The manifest, at the log's next number."""
    others = _carried_on(context, pending, completed)
    made = Manifest(
        number=context.log.next_number,
        checkpoint=pending.id,
        fingerprint=context.fingerprint,
        parallelism=dict(context.graph.parallelism),
        tasks=_task_states(pending, completed, others),
        uncommitted=uncommitted,
        kind=pending.kind.value,
        operators=describe_operators(context.graph, pending, others, completed.latest),
        lanes=context.graph.lanes,
        parts=context.graph.parts,
        broadcasts=context.graph.broadcasts,
        round_rows=context.graph.round_rows,
        epochs=context.graph.epochs,
        savepoint=pending.location,
        request=pending.request.name,
        drained=pending.request.stop is StopMode.DRAIN,
        skipped=context.skipped,
        uuid=context.identity.uuid,
        ancestors=context.identity.ancestors,
        inputs=context.recorded_inputs,
        splits=pending.splits,
        reweights=context.reweights,
    )
    return replace(made, shape=context.graph.shape) if flights(made) else made


def _carried_on(context: Context, pending: PendingCheckpoint, completed: RetainedCheckpoints) -> list[TaskState]:
    """What the newest checkpoint says of the regions that take no part."""
    found: list[TaskState] = []
    for task in (task for index in sorted(pending.carried) for task in context.tasks.regions[index].tasks):
        state, cut = completed.state_of(task), completed.cut_of(task)
        if state is None:
            raise AssertionError(f"{task} takes no part in {pending.id}, and no completed checkpoint holds it")
        found.append(replace(state, committables=(), cut=cut))
    return found


def describe_operators(
    graph: ExecutionGraph, pending: PendingCheckpoint, others: Sequence[TaskState] = (), before: Manifest | None = None
) -> tuple[OperatorEntry, ...]:
    """How far every operator has finished. ``others``: of regions that take no part, as the checkpoint ``before`` has
    them; a vertex that it says had finished is deployed as finished ever after.

    What feeds a vertex that is deployed as finished had finished, too. At another parallelism it is built anew for its
    lanes' ends and has yet to say them; until it has, no savepoint could be started from if it counted as running.
    """
    over = _surely_finished(graph, pending, others).by_vertex()
    restored = {task.vertex for task in pending.finished_on_restore}
    if others and before is not None:
        carried, whole = {state.task.vertex for state in others}, FinishedState.FULLY_FINISHED.value
        restored |= {entry.vertex for entry in before.operators if entry.finished == whole and entry.vertex in carried}
    for vertex in reversed(graph.order):
        if vertex in restored:
            restored |= {edge.source for edge in graph.inputs[vertex]}

    def finished(vertex: str) -> FinishedState:
        if over.get(vertex, 0) == graph.parallelism[vertex] or vertex in restored:
            return FinishedState.FULLY_FINISHED
        return FinishedState.PARTIALLY_FINISHED if over.get(vertex, 0) else FinishedState.ALL_RUNNING

    return tuple(
        OperatorEntry(
            operator=name,
            vertex=vertex,
            parallelism=graph.parallelism[vertex],
            finished=finished(vertex).value,
            state_of=graph.state_of.get(name),
        )
        for vertex, each in graph.operators.items()
        for name in each
    )


def _surely_finished(graph: ExecutionGraph, pending: PendingCheckpoint, others: Sequence[TaskState]) -> TaskSet:
    """The finished tasks, and those whose report must be on its way: a task finishes after all that feed it have.

    Without these a checkpoint might say that a consumer has finished and its producer has not: no restore accepts that.
    """
    over = TaskSet.of((*pending.finished, *(state.task for state in others if state.finished)))
    known = {**pending.acked, **{state.task: state for state in others}} if others else pending.acked
    for vertex in reversed(graph.order):
        mine = [task.subtask for task in over if task.vertex == vertex]
        for edge in graph.inputs[vertex] if mine else ():
            for feeder in _feeders(graph, edge, mine):
                state = known.get(feeder)
                if state is not None and state.data_ended:
                    over.add(feeder)
    return over


def _feeders(graph: ExecutionGraph, edge: JobEdge, consumers: Sequence[int]) -> Iterator[TaskId]:
    up, down = graph.parallelism[edge.source], graph.parallelism[edge.target]
    if edge.pattern is Pattern.ALL_TO_ALL:
        yield from (TaskId(edge.source, subtask) for subtask in range(up))
        return
    for consumer in consumers:
        yield from (TaskId(edge.source, feeder) for feeder in pointwise_upstreams(up, down, consumer))


def _task_states(
    pending: PendingCheckpoint, completed: RetainedCheckpoints, others: Sequence[TaskState]
) -> tuple[TaskState, ...]:
    states = pending.task_states(lambda task: carried(completed, task), others)
    if not pending.finished_on_restore:
        return states
    over = pending.finished_on_restore
    return tuple(_unchanged(state, completed) if state.task in over else state for state in states)


def _unchanged(state: TaskState, completed: RetainedCheckpoints) -> TaskState:
    """What a task that was deployed as finished has said, with what it had."""
    before = carried(completed, state.task)
    return replace(state, state=before.state, ended=before.ended)


def carried(completed: RetainedCheckpoints, task: TaskId) -> TaskState:
    """A finished task's last state. Its committables are visible, or open in the ledger; what it had in flight has been
    processed, or is in the channel files of those that it was for."""
    state = completed.state_of(task)
    if state is None:
        raise AssertionError(f"{task} has finished, but no completed checkpoint holds it")
    if state.finished and not state.committables and state.cut is None:
        return state
    files = tuple(handle for handle in state.state if not handle.is_flight)
    return replace(state, state=files, committables=(), finished=True, cut=None)


def make_savepoint(manifest: Manifest) -> tuple[Manifest, tuple[tuple[str, str], ...]]:
    """The manifest as it is in the savepoint's folder, and which file is copied to where below it. The same for the
    manifest that the log holds of it."""
    places: dict[str, str] = {}
    for state in manifest.tasks:
        for handle in state.state:
            name = handle.location.rpartition("/")[2]
            place = f"state/{manifest.checkpoint}/{len(places):06d}-{name}"
            if handle.location:
                places.setdefault(handle.location, place)
    tasks = tuple(
        replace(
            state,
            state=tuple(
                replace(each, location=places[each.location]) if each.location else each for each in state.state
            ),
        )
        for state in manifest.tasks
    )
    return replace(manifest, number=0, savepoint="", tasks=tasks), tuple(places.items())


def imported(
    manifest: Manifest,
    checkpoint: CheckpointId,
    number: int,
    fingerprint: str,
    identity: JobIdentity,
    root: str,
    claimed: bool,
    inputs: str = "",
) -> Manifest:
    """A snapshot as the first checkpoint of another job's log. It never ends that job, whatever it ended before."""
    return replace(
        manifest,
        number=number,
        checkpoint=checkpoint,
        fingerprint=fingerprint,
        uuid=identity.uuid,
        ancestors=identity.ancestors,
        root=root,
        claimed=claimed,
        inputs=inputs,
        kind="savepoint",
        savepoint="",
        request="",
    )


_TOLD = frozenset({TaskStatus.DEPLOYED, TaskStatus.RUNNING, TaskStatus.DATA_ENDED})


class CommitState(Enum):
    """Where the commits of one task are."""

    __hash__ = object.__hash__

    OPEN = "open"
    """Something is not known to be visible, and nobody has been told to commit it."""
    NOTIFIED = "notified"
    """Somebody has been told and has not answered."""
    SETTLED = "settled"
    """Everything is visible, or left to the run that resumes the job: nothing is remembered."""


LEGAL_COMMIT_MOVES: Mapping[CommitState, frozenset[CommitState]] = {
    CommitState.OPEN: frozenset({CommitState.NOTIFIED, CommitState.SETTLED}),
    CommitState.NOTIFIED: frozenset({CommitState.OPEN, CommitState.NOTIFIED, CommitState.SETTLED}),
    CommitState.SETTLED: frozenset(),
}


@dataclass(slots=True, eq=False)
class _TaskCommits:
    """One task's open commits."""

    #: Not known to be visible, oldest first.
    entries: list[tuple[CheckpointId, Committable]] = field(default_factory=list)
    state: CommitState = CommitState.OPEN
    #: Who was told last, up to which checkpoint, and when; of no meaning unless NOTIFIED.
    attempt: Attempt | None = None
    checkpoint: CheckpointId | None = None
    sent_at: float = 0.0


class SinkCommits:
    """What completed checkpoints hold that is not yet known to be visible, who was told to commit it, and who commits
    it where no task can.

    Rules:

    1. A committable enters when its checkpoint is durable, and leaves only when somebody answered that a permit with it
       has been committed. Until then every later manifest lists it, so a crash of anybody loses nothing.
    2. A permit for checkpoint n lists everything of the task up to n, so one answer settles all of it.
    3. Every task of a checkpoint is told, with or without committables: the notice is what lets it end.
    4. A started or deployed task gets ``CommitCheckpoint``; for a task that has finished, is gone from the graph, or
       whose job is ending, the shell commits (``CommitOrphans``) under attempt number 0, which no real attempt has.
    5. A task between two attempts waits: its next attempt is told as soon as it is deployed, before it starts.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        #: All and only the tasks whose commits are not settled.
        self._tasks: dict[TaskId, _TaskCommits] = {}
        #: Whether the job ends: no task is there to commit.
        self._ending = False

    # --- what happened -------------------------------------------------------------------------------------------

    def restore(self, manifest: Manifest) -> None:
        """Whatever the manifest holds may be invisible still: commit it again."""
        for state in manifest.tasks:
            self.add(manifest.checkpoint, state.task, state.committables)
        for task, committable in manifest.uncommitted:
            self.add(manifest.checkpoint, task, (committable,))
        for task in sorted(self._tasks):
            if self._context.tasks.get(task) is None:
                self._notify(task, manifest.checkpoint)

    def add(self, checkpoint: CheckpointId, task: TaskId, committables: Iterable[Committable]) -> None:
        """The checkpoint is durable and holds these of the task; one that is open already is not added twice."""
        for committable in committables:
            entries = self._tasks.setdefault(task, _TaskCommits()).entries
            if all(committable != known for _, known in entries):
                entries.append((checkpoint, committable))

    def completed(self, checkpoint: CheckpointId, task: TaskId, committables: tuple[Committable, ...]) -> None:
        """The checkpoint is durable: the task is told, with or without committables."""
        self.add(checkpoint, task, committables)
        self._notify(task, checkpoint)

    def confirm(self, task: TaskId, attempt: Attempt, checkpoint: CheckpointId) -> list[CheckpointId]:
        """Somebody has committed everything up to the checkpoint. An attempt that was not told last settles nothing.
        For each committable that is known to be visible now: its checkpoint."""
        commits = self._tasks.get(task)
        if commits is None or commits.state is not CommitState.NOTIFIED or commits.attempt != attempt:
            return []
        visible = [known for known, _ in commits.entries if known <= checkpoint]
        if visible:
            commits.entries = [entry for entry in commits.entries if entry[0] > checkpoint]
        answered = commits.checkpoint is not None and commits.checkpoint <= checkpoint
        # a task that is gone needs no notice, only its entries gone
        if answered or (attempt == self.orphan_attempt and not commits.entries):
            self._release(task, commits)
        return visible

    def deployed(self, task: TaskId) -> None:
        """A new attempt is there: it commits what the one before may not have."""
        commits = self._tasks.get(task)
        if commits is not None and commits.entries:
            self._notify(task, commits.entries[-1][0])

    def stopped(self, task: TaskId) -> None:
        """The attempt is over and will not answer; what is open waits for the next one."""
        commits = self._tasks.get(task)
        if commits is not None and commits.state is CommitState.NOTIFIED:
            self._release(task, commits)

    def finished(self, task: TaskId) -> None:
        """The task is over; what it leaves open, the shell commits."""
        self.stopped(task)
        self.deployed(task)

    def job_ends(self) -> None:
        """No task will commit any more."""
        self._ending = True
        for task in sorted(self._tasks):
            self.finished(task)

    def abandon(self, task: TaskId) -> None:
        """Leave the task's commits to the run that resumes the job: the log lists them."""
        commits = self._tasks.get(task)
        if commits is not None:
            self._move(task, commits, CommitState.SETTLED)

    def resend(self, before: float) -> None:
        """Give every order again that had no answer since then."""
        for task, commits in sorted(self._tasks.items()):
            if commits.state is CommitState.NOTIFIED and commits.sent_at <= before and commits.checkpoint is not None:
                self._notify(task, commits.checkpoint)

    # --- queries -------------------------------------------------------------------------------------------------

    @property
    def orphan_attempt(self) -> Attempt:
        """The attempt under which the shell commits (rule 4)."""
        return Attempt(self._context.generation, 0)

    @property
    def has_entries(self) -> bool:
        """Whether some committable is not known to be visible."""
        return any(commits.entries for commits in self._tasks.values())

    @property
    def oldest_open(self) -> CheckpointId | None:
        """The oldest checkpoint some of whose committables are not known to be visible."""
        return min((commits.entries[0][0] for commits in self._tasks.values() if commits.entries), default=None)

    def unsettled(self) -> tuple[TaskId, ...]:
        """Tasks with anything open, sorted."""
        return tuple(sorted(self._tasks))

    def uncommitted(self) -> tuple[tuple[TaskId, Committable], ...]:
        """Everything not known to be visible, for the next manifest."""
        return tuple((task, known) for task, commits in sorted(self._tasks.items()) for _, known in commits.entries)

    def validate(self) -> None:
        """Nothing settled is remembered, and entries are in the order of their checkpoints."""
        for task, commits in self._tasks.items():
            ids = [checkpoint for checkpoint, _ in commits.entries]
            notified = commits.state is CommitState.NOTIFIED
            if ids != sorted(ids) or not (ids or notified) or commits.state is CommitState.SETTLED:
                raise AssertionError(f"commits of {task} are {commits.state.value} and out of order or empty: {ids}")
            if notified and (commits.attempt is None or commits.checkpoint is None):
                raise AssertionError(f"nobody was told to commit for {task}, and an answer is awaited")

    # --- the moves -----------------------------------------------------------------------------------------------

    def _notify(self, task: TaskId, checkpoint: CheckpointId) -> None:
        """Order the process that can commit for the task; none can while it is between two attempts."""
        record, commits = self._context.tasks.get(task), self._tasks.get(task)
        if record is None or record.state is TaskStatus.FINISHED or self._ending:
            if commits is not None and commits.entries:
                permit = self._permit(task, commits, self.orphan_attempt, checkpoint)
                self._context.order(CommitOrphans(task, self.orphan_attempt, permit))
        elif record.state in _TOLD and record.attempt is not None:
            if commits is None:
                commits = self._tasks[task] = _TaskCommits()
            permit = self._permit(task, commits, record.attempt, checkpoint)
            self._context.order(CommitCheckpoint(task, record.attempt, permit))

    def _permit(self, task: TaskId, commits: _TaskCommits, attempt: Attempt, checkpoint: CheckpointId) -> CommitPermit:
        self._move(task, commits, CommitState.NOTIFIED)
        commits.attempt, commits.checkpoint, commits.sent_at = attempt, checkpoint, self._context.now
        listed = tuple(one for known, one in commits.entries if known is checkpoint or known <= checkpoint)
        identity = self._context.identity
        return CommitPermit(checkpoint, listed, by=identity) if identity.uuid else CommitPermit(checkpoint, listed)

    def _release(self, task: TaskId, commits: _TaskCommits) -> None:
        """No answer is awaited any more."""
        commits.attempt = commits.checkpoint = None
        self._move(task, commits, CommitState.OPEN if commits.entries else CommitState.SETTLED)

    def _move(self, task: TaskId, commits: _TaskCommits, to: CommitState) -> None:
        commits.state = check_move(f"commits of {task}", LEGAL_COMMIT_MOVES, commits.state, to)
        if to is CommitState.SETTLED:
            del self._tasks[task]

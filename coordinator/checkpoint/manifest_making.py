"""From a checkpoint that everybody has answered to its manifest, and to that of a savepoint.

Rules:

1. A vertex whose tasks were deployed as finished, some or all, had finished as a whole; so the manifest says.
2. The state of a task that has finished, or that was deployed as finished, is carried on from the newest checkpoint;
   its committables are visible, or open in the ledger. Not its channel files: it is over, so all has arrived.
3. A savepoint refers to copies of its own, named relative to its folder, and to nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ...engine.core.identity import CheckpointId, Committable, JobIdentity, StateHandle, TaskId
from ..log.completed import CompletedCheckpoints
from ..model.execution_graph import ExecutionGraph, JobEdge, Pattern, pointwise_upstreams
from ..model.manifest import Manifest, OperatorEntry, TaskState
from ..model.task_set import TaskSet
from ..restore.restore_check import FinishedState
from ..state.context import Context
from .pending import PendingCheckpoint


def make_manifest(
    context: Context,
    pending: PendingCheckpoint,
    completed: CompletedCheckpoints,
    uncommitted: tuple[tuple[TaskId, Committable], ...],
) -> Manifest:
    """The manifest, at the log's next number."""
    return Manifest(
        number=context.log.next_number,
        checkpoint=pending.id,
        fingerprint=context.fingerprint,
        parallelism=dict(context.graph.parallelism),
        tasks=_task_states(pending, completed),
        uncommitted=uncommitted,
        kind=pending.kind.value,
        operators=describe_operators(context.graph, pending),
        lanes=context.graph.lanes,
        savepoint=pending.location,
        request=pending.request.name,
        skipped=context.skipped,
        uuid=context.identity.uuid,
        ancestors=context.identity.ancestors,
        inputs=context.recorded_inputs,
        splits=pending.splits,
    )


def describe_operators(graph: ExecutionGraph, pending: PendingCheckpoint) -> tuple[OperatorEntry, ...]:
    """How far every operator has finished."""
    over = _surely_finished(graph, pending).by_vertex()
    restored = {task.vertex for task in pending.finished_on_restore}

    def finished(vertex: str) -> FinishedState:
        if over.get(vertex, 0) == graph.parallelism[vertex] or vertex in restored:
            return FinishedState.FULLY_FINISHED
        return FinishedState.PARTIALLY_FINISHED if over.get(vertex, 0) else FinishedState.ALL_RUNNING

    return tuple(
        OperatorEntry(
            operator=name, vertex=vertex, parallelism=graph.parallelism[vertex], finished=finished(vertex).value
        )
        for vertex, each in graph.operators.items()
        for name in each
    )


def _surely_finished(graph: ExecutionGraph, pending: PendingCheckpoint) -> TaskSet:
    """The finished tasks, and those whose report must be on its way: a task finishes after all that feed it have.

    Without these a checkpoint might say that a consumer has finished and its producer has not: no restore accepts that.
    """
    over = TaskSet.of(pending.finished)
    for vertex in reversed(graph.order):
        mine = [task.subtask for task in over if task.vertex == vertex]
        for edge in graph.inputs[vertex] if mine else ():
            for feeder in _feeders(graph, edge, mine):
                state = pending.acked.get(feeder)
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


def _task_states(pending: PendingCheckpoint, completed: CompletedCheckpoints) -> tuple[TaskState, ...]:
    states = pending.task_states(lambda task: carried(completed, task))
    if not pending.finished_on_restore:
        return states
    over = pending.finished_on_restore
    return tuple(_unchanged(state, completed) if state.task in over else state for state in states)


def _unchanged(state: TaskState, completed: CompletedCheckpoints) -> TaskState:
    """What a task that was deployed as finished has said, with what it had."""
    before = carried(completed, state.task)
    return replace(state, state=before.state, ended=before.ended)


def carried(completed: CompletedCheckpoints, task: TaskId) -> TaskState:
    """A finished task's last state. Its committables are visible, or open in the ledger; what it had in flight has been
    processed, or stands in the channel files of those that it was for."""
    state = completed.state_of(task)
    if state is None:
        raise AssertionError(f"{task} has finished, but no completed checkpoint holds it")
    if state.finished and not state.committables:
        return state
    files = tuple(handle for handle in state.state if not handle.is_channel_file)
    return replace(state, state=files, committables=(), finished=True)


def make_savepoint(manifest: Manifest) -> tuple[Manifest, tuple[tuple[str, str], ...]]:
    """The manifest as it stands in the savepoint's folder, and which file is copied to where below it. The same for the
    manifest that the log holds of it."""
    places: dict[str, str] = {}
    for state in manifest.tasks:
        for handle in state.state:
            name = handle.location.rpartition("/")[2]
            place = f"state/{manifest.checkpoint}/{len(places):06d}-{name}"
            places.setdefault(handle.location, place)
    tasks = tuple(
        replace(state, state=tuple(_moved(handle, places[handle.location]) for handle in state.state))
        for state in manifest.tasks
    )
    return replace(manifest, number=0, savepoint="", tasks=tasks), tuple(places.items())


def _moved(handle: StateHandle, location: str) -> StateHandle:
    return StateHandle(handle.operator, location, handle.bytes, handle.rows, handle.holds, handle.digest)


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

"""Who takes part in a checkpoint: trigger exactly the running tasks that have no running direct upstream task.

Rules:

1. A plan is computed anew for every checkpoint, from the graph and the tasks' states alone.
2. A task that has ended counts as not running for its consumers. Whatever is neither running nor ended makes the
   plan impossible for now: :class:`NotReady`. So does a task that ended otherwise than by finishing while none has
   finished.
3. The cost is linear in vertices, job edges and subtasks. States are one array per vertex; an ALL_TO_ALL edge is one
   look at its upstream array, a POINTWISE edge a few array operations.
4. Finished reports may arrive in any order, a task's before its upstream's too: only direct upstreams are looked at.
5. A checkpoint on its way is repaired each time a task finishes: :func:`orphaned_consumers` says of one task's
   consumers what the plan says of the whole graph, at the cost of these alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from ...engine.core.identity import TaskId
from ..model.execution_graph import ExecutionGraph, JobEdge, Pattern, pointwise_upstreams
from ..model.job_states import STARTED, TaskStatus
from ..model.kinds import FailureReason
from ..model.task_set import TaskSet
from ..state.tasks import TaskTable

Flags = npt.NDArray[np.bool_]
Subtasks = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class VertexStates:
    """One flag per subtask. ``finished`` implies ``ended``; no subtask is both running and ended."""

    running: Flags
    """It runs and can take a snapshot."""
    ended: Flags
    """It will not run again as this attempt: finished, failed or cancelled."""
    finished: Flags
    """It ended regularly."""

    @classmethod
    def of(cls, running: Sequence[bool], ended: Sequence[bool], finished: Sequence[bool]) -> Self:
        """From plain flags."""
        return cls(*(np.asarray(flags, dtype=np.bool_) for flags in (running, ended, finished)))

    @classmethod
    def of_codes(cls, codes: bytes | bytearray, running: Collection[int], finished: int) -> Self:
        """From one byte per subtask: those in ``running`` run, ``finished`` has ended regularly, others do neither."""
        states = np.frombuffer(codes, dtype=np.uint8)
        ended = states == finished
        runs = np.zeros(len(states), dtype=np.bool_)
        for code in running:
            runs |= states == code
        return cls(runs, ended, ended)


def vertex_states(tasks: TaskTable) -> dict[str, VertexStates]:
    """Every vertex's states."""
    running, finished = [state.code for state in STARTED], TaskStatus.FINISHED.code
    return {name: VertexStates.of_codes(codes, running, finished) for name, codes in tasks.codes.items()}


@dataclass(frozen=True)
class NotReady:
    """No checkpoint can be taken now."""

    reason: str
    kind: FailureReason = FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING


@dataclass(frozen=True, eq=False)
class CheckpointPlan:
    """One flag per subtask; vertices without any that is set are left out. ``parallelism``: subtasks of every vertex.

    Flags are an eighth of what subtask numbers are, and most plans need numbers for sources only: these are made when
    asked for.
    """

    triggers: Mapping[str, Flags]
    waits: Mapping[str, Flags]
    ended: Mapping[str, Flags]
    fully_finished: tuple[str, ...]
    parallelism: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def to_trigger(self) -> Mapping[str, Subtasks]:
        """Subtask numbers by vertex: who gets the trigger."""
        return _numbers(self.triggers)

    @cached_property
    def to_wait_for(self) -> Mapping[str, Subtasks]:
        """Who must acknowledge."""
        return _numbers(self.waits)

    @cached_property
    def finished(self) -> Mapping[str, Subtasks]:
        """Who has ended already."""
        return _numbers(self.ended)

    def waiting_set(self) -> TaskSet:
        """Who must acknowledge, as a set of its own, without an object per task."""
        return _task_set(self.waits)

    def finished_set(self) -> TaskSet:
        """Who has ended already."""
        return _task_set(self.ended)


def _numbers(flags: Mapping[str, Flags]) -> Mapping[str, Subtasks]:
    return {vertex: np.flatnonzero(each) for vertex, each in flags.items()}


def _task_set(flags: Mapping[str, Flags]) -> TaskSet:
    return TaskSet({vertex: bytearray(each.view(np.uint8)) for vertex, each in flags.items()})


def compute_checkpoint_plan(
    graph: ExecutionGraph, states: Mapping[str, VertexStates], after_finish: bool = True
) -> CheckpointPlan | NotReady:
    """The plan for these states. ``after_finish`` False: no checkpoints once a task has finished."""
    some_finished = any(bool(vertex.finished.any()) for vertex in states.values())
    if some_finished and not after_finish:
        return NotReady("a task has finished, and checkpoints after that are switched off")
    for name in graph.order:
        ready = states[name].running | states[name].ended if some_finished else states[name].running
        if not ready.all():
            return NotReady(f"{TaskId(name, int(ready.argmin()))} is not running")
    trigger: dict[str, Flags] = {}
    wait_for: dict[str, Flags] = {}
    ended: dict[str, Flags] = {}
    for name in graph.order:
        vertex = states[name]
        _put(trigger, name, _without_running_upstream(graph, states, name))
        _put(wait_for, name, vertex.running)
        _put(ended, name, vertex.ended)
    fully = tuple(name for name in graph.order if not states[name].running.any())
    return CheckpointPlan(trigger, wait_for, ended, fully, graph.parallelism)


def _without_running_upstream(graph: ExecutionGraph, states: Mapping[str, VertexStates], name: str) -> Flags:
    """The running subtasks of the vertex that nobody running feeds."""
    candidates = states[name].running.copy()
    for edge in graph.inputs[name]:
        if not candidates.any():
            break
        candidates &= ~_fed(edge, states[edge.source].running, len(candidates))
    return candidates


def _fed(edge: JobEdge, upstream: Flags, downstream: int) -> Flags:
    """Which downstream subtasks this edge gives a running upstream subtask."""
    if edge.pattern is Pattern.ALL_TO_ALL:
        return np.full(downstream, bool(upstream.any()))
    if len(upstream) == downstream:
        return upstream
    first = _first_upstreams(len(upstream), downstream)
    # With more upstreams each subtask reads from its first up to the next one's first, else it reads its first alone.
    fed: Flags = np.logical_or.reduceat(upstream, first) if len(upstream) > downstream else upstream[first]
    return fed


@lru_cache(maxsize=8)
def _first_upstreams(upstream: int, downstream: int) -> Subtasks:
    """The first upstream subtask of every downstream one; a graph asks again at every checkpoint."""
    first: Subtasks = np.arange(downstream, dtype=np.int64) * upstream // downstream
    first.setflags(write=False)
    return first


def _put(into: dict[str, Flags], name: str, flags: Flags) -> None:
    if flags.any():
        into[name] = flags


def orphaned_consumers(graph: ExecutionGraph, tasks: TaskTable, finished: TaskId) -> tuple[TaskId, ...]:
    """The running consumers of ``finished`` that have no running direct upstream task any more, each once."""
    found: dict[TaskId, None] = {}
    for edge in graph.outputs[finished.vertex]:
        for consumer in _consumers(graph, tasks, edge, finished):
            if tasks[consumer].is_started and not any(
                _is_fed(graph, tasks, other, consumer) for other in graph.inputs[edge.target]
            ):
                found[consumer] = None
    return tuple(found)


def _consumers(graph: ExecutionGraph, tasks: TaskTable, edge: JobEdge, finished: TaskId) -> Iterator[TaskId]:
    """Those that this edge may have fed by the task last."""
    up, down = graph.parallelism[edge.source], graph.parallelism[edge.target]
    if edge.pattern is Pattern.ALL_TO_ALL:
        if not tasks.any_started(edge.source):
            yield from (TaskId(edge.target, subtask) for subtask in range(down))
        return
    around = range(max(0, finished.subtask * down // up - 1), min(down, (finished.subtask + 1) * down // up + 2))
    for subtask in around:
        if finished.subtask in pointwise_upstreams(up, down, subtask):
            yield TaskId(edge.target, subtask)


def _is_fed(graph: ExecutionGraph, tasks: TaskTable, edge: JobEdge, consumer: TaskId) -> bool:
    if edge.pattern is Pattern.ALL_TO_ALL:
        return tasks.any_started(edge.source)
    feeders = pointwise_upstreams(graph.parallelism[edge.source], graph.parallelism[edge.target], consumer.subtask)
    return any(tasks[TaskId(edge.source, feeder)].is_started for feeder in feeders)

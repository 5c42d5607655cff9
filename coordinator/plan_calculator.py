"""Who takes part in a checkpoint: trigger exactly the running tasks that have no running direct upstream task.

Rules:

1. A plan is computed anew for every checkpoint, from the graph and the tasks' states alone.
2. A task that has ended counts as not running for its consumers. Whatever is neither running nor ended makes the
   plan impossible for now: :class:`NotReady`. So does a task that ended otherwise than by finishing while none has
   finished.
3. The cost is linear in vertices, job edges and subtasks. States are one array per vertex; an ALL_TO_ALL edge is one
   look at its upstream array, a POINTWISE edge a few array operations.
4. Finished reports may arrive in any order, a task's before its upstream's too: only direct upstreams are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from ..engine.identity import TaskId
from .execution_graph import ExecutionGraph, JobEdge, Pattern
from .reasons import FailureReason
from .task_set import TaskSet

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


@dataclass(frozen=True)
class NotReady:
    """No checkpoint can be taken now."""

    reason: str
    kind: FailureReason = FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING


@dataclass(frozen=True, eq=False)
class CheckpointPlan:
    """Subtask numbers by vertex; vertices without any are left out. ``parallelism``: subtasks of every vertex."""

    to_trigger: Mapping[str, Subtasks]
    to_wait_for: Mapping[str, Subtasks]
    finished: Mapping[str, Subtasks]
    fully_finished: tuple[str, ...]
    parallelism: Mapping[str, int] = field(default_factory=dict)

    @property
    def to_commit_to(self) -> Mapping[str, Subtasks]:
        """Who is told about the outcome: those that were waited for."""
        return self.to_wait_for

    def task_set(self, subtasks: Mapping[str, Subtasks]) -> TaskSet:
        """The plan's part as a set, without an object per task."""
        flags: dict[str, bytearray] = {}
        for vertex, numbers in subtasks.items():
            flags[vertex] = bytearray(self.parallelism[vertex])
            np.frombuffer(flags[vertex], dtype=np.uint8)[numbers] = 1
        return TaskSet(flags)


def ended_plan(finished: TaskSet, parallelism: Mapping[str, int]) -> CheckpointPlan:
    """A plan that says only which tasks had finished."""
    counts = finished.by_vertex()
    flags = {name: np.zeros(parallelism[name], dtype=np.bool_) for name in counts}
    for task in finished:
        flags[task.vertex][task.subtask] = True
    fully = tuple(name for name, count in counts.items() if count == parallelism[name])
    ended = {name: np.flatnonzero(vertex) for name, vertex in flags.items()}
    return CheckpointPlan({}, {}, ended, fully, parallelism)


def task_ids(subtasks: Mapping[str, Subtasks]) -> tuple[TaskId, ...]:
    """The plan's part as ids."""
    return tuple(TaskId(vertex, int(subtask)) for vertex, numbers in subtasks.items() for subtask in numbers)


def compute_checkpoint_plan(
    graph: ExecutionGraph, states: Mapping[str, VertexStates], after_finish: bool = True
) -> CheckpointPlan | NotReady:
    """The plan for these states. ``after_finish`` False: no checkpoints once a task has finished."""
    some_finished = any(bool(vertex.finished.any()) for vertex in states.values())
    if some_finished and not after_finish:
        return NotReady("a task has finished, and checkpoints after that are switched off")
    for name in graph.order:
        waiting = ~states[name].running & ~states[name].ended if some_finished else ~states[name].running
        if waiting.any():
            return NotReady(f"{TaskId(name, int(waiting.argmax()))} is not running")
    trigger: dict[str, Subtasks] = {}
    wait_for: dict[str, Subtasks] = {}
    ended: dict[str, Subtasks] = {}
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
    first = np.arange(downstream, dtype=np.int64) * len(upstream) // downstream
    # With more upstreams each subtask reads from its first up to the next one's first, else it reads its first alone.
    fed: Flags = np.logical_or.reduceat(upstream, first) if len(upstream) > downstream else upstream[first]
    return fed


def _put(into: dict[str, Subtasks], name: str, flags: Flags) -> None:
    if flags.any():
        into[name] = np.flatnonzero(flags)

"""Who takes part in a checkpoint, and who has answered. It is PROPOSING → TRIGGERED → STORING → COMPLETED, or ABORTED
before it is stored.

Rules:

1. ``waiting`` and ``acked`` are disjoint and, with the tasks that finished on the way, are the plan's wait-for set.
2. STORING begins when nobody is waited for any more, and may not be left but by the store's answer: the entry may
   be in the log already. A savepoint is COPYING before that, and complete after it unless the job stops with it.
3. A task that finishes before it acknowledged is repaired inside the checkpoint (:meth:`drop_finished`): its state is
   the one that let it end. Only a report of the current attempt says so, never a failed call.
4. Every region has its own round: regions share no channel, so a slow one need not catch up with a fast one. For the
   same reason a region that does not run can be *carried*: it takes no part, and the manifest says of it what the one
   before did (:meth:`PendingCheckpoint.carry`).

The plan says who takes part: trigger exactly the running tasks that have no running direct upstream task.

5. A plan is computed anew for every checkpoint, from the graph and the tasks' states alone.
6. A task that has ended counts as not running for its consumers. Whatever is neither running nor ended makes the
   plan impossible for now: :class:`NotReady`. So does a task that ended otherwise than by finishing while none has
   finished. Regions that are left out, as a whole, are not looked at.
7. The cost is linear in vertices, job edges and subtasks. States are one array per vertex; an ALL_TO_ALL edge is one
   look at its upstream array, a POINTWISE edge a few array operations.
8. Finished reports may arrive in any order, a task's before its upstream's too: only direct upstreams are looked at.
9. A checkpoint on its way is repaired each time a task finishes: :func:`orphaned_consumers` says of one task's
   consumers what the plan says of the whole graph, at the cost of these alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from ...engine.core.identity import (
    FINAL_ROUND,
    UNDECIDED_ROUND,
    BarrierKind,
    CheckpointId,
    StateHandle,
    TaskId,
    later_round,
)
from ...engine.core.state_machine import check_move
from ..model.events import Failure
from ..model.execution_graph import ExecutionGraph, JobEdge, Pattern, pointwise_upstreams
from ..model.job_states import STARTED, TaskStatus
from ..model.kinds import PERIODIC, CheckpointKind, FailureReason, Request
from ..model.manifest import Manifest, TaskState
from ..model.split_sets import SetPosition
from ..model.task_set import TaskSet
from ..state.tasks import TaskTable


class Phase(Enum):
    """Where a pending checkpoint is."""

    __hash__ = object.__hash__  # as in ``job_states``

    PROPOSING = "proposing"
    """Sources hold at the end of their round and propose it. Deterministic flows only."""
    TRIGGERED = "triggered"
    """Barriers travel; snapshots are taken."""
    COPYING = "copying"
    """A savepoint's files are copied to where the user wants them."""
    STORING = "storing"
    """Its manifest has been ordered into the log."""
    COMPLETED = "completed"
    ABORTED = "aborted"


LEGAL_PHASE_MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.PROPOSING: frozenset({Phase.TRIGGERED, Phase.ABORTED}),
    Phase.TRIGGERED: frozenset({Phase.COPYING, Phase.STORING, Phase.ABORTED}),
    Phase.COPYING: frozenset({Phase.STORING, Phase.COMPLETED, Phase.ABORTED}),
    Phase.STORING: frozenset({Phase.COMPLETED, Phase.ABORTED}),
    Phase.COMPLETED: frozenset(),
    Phase.ABORTED: frozenset(),
}

OPEN = frozenset({Phase.PROPOSING, Phase.TRIGGERED})
"""Tasks still take part."""


class AckResult(Enum):
    """What became of an acknowledgement."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """Heard before: nothing changes."""
    LATE = "late"
    """Of a checkpoint or attempt that is over: its files can go."""


class PendingCheckpoint:
    """Who was asked, who answered what. ``finished``: the tasks that had finished when it was planned."""

    def __init__(
        self,
        id: CheckpointId,
        triggers: Iterable[TaskId],
        wait_for: Iterable[TaskId],
        proposing: bool,
        now: float,
        request: Request = PERIODIC,
        finished: TaskSet | None = None,
        *,
        is_cut: bool = False,
    ) -> None:
        self.id = id
        #: Whether tasks cut where they stand: nothing is proposed, and what is in flight is state.
        self.is_cut = is_cut
        self.request = request
        self.started_at = now
        self.phase = Phase.PROPOSING if proposing else Phase.TRIGGERED
        #: Tasks that get the trigger, with when they were last told something.
        self.triggers: dict[TaskId, float] = dict.fromkeys(triggers, now)
        #: All and only the triggers whose round is not known yet.
        self.unproposed: set[TaskId] = set(self.triggers) if proposing else set()
        #: The largest round proposed, by region, and what each task proposed.
        self.rounds: dict[int, int] = {}
        self.proposals: dict[TaskId, int] = {}
        #: By region, tasks that get their trigger when others have taken their snapshot.
        self.held: dict[int, HeldSources] = {}
        #: All and only the tasks that still have to acknowledge.
        self.waiting = wait_for if isinstance(wait_for, TaskSet) else TaskSet.of(wait_for)
        #: What was acknowledged.
        self.acked: dict[TaskId, TaskState] = {}
        #: Tasks that had finished, or did on the way: their last state is carried on.
        self.finished = TaskSet() if finished is None else finished
        #: Of the tasks that acknowledged: those deployed as finished.
        self.finished_on_restore: set[TaskId] = set()
        #: Whether the silent tasks were asked what they are at, before its time is over; and what they said.
        self.asked = False
        self.described: dict[TaskId, str] = {}
        #: Regions that take no part: of their tasks the manifest says what the newest one says.
        self.carried: set[int] = set()
        #: Why it may never be stored: the books of a task do not balance.
        self.unbalanced: Failure | None = None
        #: The files that its manifest names, once it is made: those of tasks that had finished are among them.
        self.named: Mapping[str, StateHandle] = {}
        #: If the job takes split sets: what is covered of the log of split sets, and how many entries sources have got.
        self.splits: SetPosition | None = None
        self.assigned: int | None = None
        #: Of a savepoint: what it holds, once its files are being copied, and where they lie, once they do.
        self.manifest: Manifest | None = None
        self.location = ""

    @property
    def kind(self) -> CheckpointKind:
        return self.request.kind

    @property
    def barrier(self) -> BarrierKind:
        return BarrierKind.SAVEPOINT if self.kind.is_savepoint else BarrierKind.CHECKPOINT

    @property
    def is_open(self) -> bool:
        """Whether tasks still take part, so that they must hear of its end."""
        return self.phase in OPEN

    @property
    def is_being_stored(self) -> bool:
        """Whether its manifest may be in the log already."""
        return self.phase is Phase.STORING

    @property
    def is_acknowledged(self) -> bool:
        """Whether it can be stored."""
        return self.phase is Phase.TRIGGERED and not self.waiting

    @property
    def participants(self) -> tuple[TaskId, ...]:
        """Who must hear of an abort, sorted."""
        return tuple(sorted((*self.waiting, *self.acked)))

    def silent(self, count: int) -> Sequence[TaskId]:
        """The first of the tasks that have not answered."""
        return sorted(self.unproposed)[:count] or self.waiting.first(count)

    def move(self, to: Phase) -> None:
        self.phase = check_move(f"checkpoint {self.id}", LEGAL_PHASE_MOVES, self.phase, to)

    def propose(self, task: TaskId, region: int, round: int) -> bool:
        """Note a proposal; whether it was new. When the last one is in, every region's round is known."""
        if self.phase is not Phase.PROPOSING or task not in self.unproposed:
            return False
        self.unproposed.discard(task)
        self.proposals[task] = round
        self.rounds[region] = later_round(round, self.rounds.get(region, FINAL_ROUND))
        return True

    def is_held(self, task: TaskId) -> bool:
        """Whether the task gets its trigger only when others have taken their snapshot."""
        return any(task in waiting.tasks for waiting in self.held.values())

    def left(self, task: TaskId, region: int) -> tuple[TaskId, ...]:
        """The task has taken its snapshot, or finished; those that waited for it, if it was the last."""
        waiting = self.held.get(region)
        if waiting is None:
            return ()
        waiting.tasks.discard(task)
        waiting.behind.discard(task)
        if waiting.behind:
            return ()
        del self.held[region]
        return tuple(sorted(waiting.tasks))

    @property
    def is_undecided(self) -> bool:
        """Whether no place can be found for some region's barriers."""
        return UNDECIDED_ROUND in self.rounds.values()

    @property
    def waits_for_the_end(self) -> bool:
        """Whether some region's barriers come after the end of all its data: no source of it has rows left."""
        return any(round >= FINAL_ROUND for round in self.rounds.values())

    def at_round(self, region: int, deterministic: bool) -> int | None:
        """The round of the region's barriers: -1 if none of its sources is left."""
        return self.rounds.get(region, -1) if deterministic else None

    def acknowledge(self, state: TaskState) -> AckResult:
        """Take a snapshot's report (of a current attempt)."""
        task = state.task
        if self.phase is Phase.TRIGGERED and self.waiting.discard(task):
            self.acked[task] = state
            return AckResult.ACCEPTED
        return AckResult.DUPLICATE if task in self.acked else AckResult.LATE

    def drop_finished(self, task: TaskId) -> bool:
        """The task has finished; whether it still was waited for."""
        if not self.is_open or not self.waiting.discard(task):
            return False
        self.unproposed.discard(task)
        self.proposals.pop(task, None)
        self.triggers.pop(task, None)
        self.finished.add(task)
        return True

    def has_cut(self, tasks: Iterable[TaskId]) -> bool:
        """Whether everybody of a region that takes part has answered."""
        return self.phase is Phase.TRIGGERED and not any(task in self.waiting for task in tasks)

    def carry(self, region: int, tasks: Iterable[TaskId]) -> list[TaskState]:
        """The region takes no part any more; what its tasks had acknowledged."""
        dropped: list[TaskState] = []
        for task in tasks:
            self.triggers.pop(task, None)
            state = self.acked.pop(task, None)
            if state is not None:
                dropped.append(state)
            for known in (self.waiting, self.finished, self.unproposed, self.finished_on_restore):
                known.discard(task)
            self.proposals.pop(task, None)
        self.rounds.pop(region, None)
        self.held.pop(region, None)
        self.carried.add(region)
        return dropped

    def add_triggers(self, tasks: Iterable[TaskId], now: float) -> tuple[TaskId, ...]:
        """Tasks that lost their last running upstream on the way; those of them that are new here."""
        added = tuple(task for task in tasks if task not in self.triggers and task in self.waiting)
        for task in added:
            self.triggers[task] = now
            if self.phase is Phase.PROPOSING:
                self.unproposed.add(task)
        return added

    def handles(self) -> tuple[StateHandle, ...]:
        """The files acknowledged so far, and those that stayed because its manifest names them."""
        return (*(handle for state in self.acked.values() for handle in state.state), *self.named.values())

    def task_states(
        self, carried: Callable[[TaskId], TaskState], others: Iterable[TaskState] = ()
    ) -> tuple[TaskState, ...]:
        """What the manifest will hold. ``carried``: the last state of a task that has finished; ``others``: the states
        of regions that take no part."""
        states = [*self.acked.values(), *map(carried, self.finished), *others]
        return tuple(sorted(states, key=lambda state: (state.task.vertex, state.task.subtask)))

    def validate(self) -> None:
        """Rules 1 and 2."""
        waiting, finished = set(self.waiting), set(self.finished)
        if set(self.acked) & waiting or finished & (waiting | set(self.acked)):
            raise AssertionError(f"checkpoint {self.id}: a task is in two of waiting, acknowledged, finished")
        if self.phase in (Phase.COPYING, Phase.STORING) and waiting:
            raise AssertionError(f"checkpoint {self.id} is stored, but waits for {sorted(waiting)}")
        awaited = self.unproposed if self.phase is not Phase.ABORTED else set()
        if not awaited <= set(self.triggers) or (awaited and self.phase is not Phase.PROPOSING):
            raise AssertionError(f"checkpoint {self.id}: a proposal is awaited from a task that was not asked")
        for each in self.held.values():
            if self.phase is Phase.TRIGGERED and not (each.behind and each.tasks | each.behind <= waiting):
                raise AssertionError(f"checkpoint {self.id}: {sorted(each.tasks)} wait for no snapshot")


@dataclass(slots=True)
class HeldSources:
    """Of one region: the tasks that wait, and those that they wait for."""

    tasks: set[TaskId]
    behind: set[TaskId]


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
    graph: ExecutionGraph,
    states: Mapping[str, VertexStates],
    after_finish: bool = True,
    left_out: Mapping[str, Flags] | None = None,
) -> CheckpointPlan | NotReady:
    """The plan for these states. ``after_finish`` False: no checkpoints once a task has finished. ``left_out``: of
    regions that take no part the tasks, by vertex: whole regions, of which none runs."""
    left_out = left_out or {}
    some_finished = any(bool(vertex.finished.any()) for vertex in states.values())
    if some_finished and not after_finish:
        return NotReady("a task has finished, and checkpoints after that are switched off")
    for name in graph.order:
        ready = states[name].running | states[name].ended if some_finished else states[name].running
        if name in left_out:
            ready = ready | left_out[name]
        if not ready.all():
            return NotReady(f"{TaskId(name, int(ready.argmin()))} is not running")
    trigger: dict[str, Flags] = {}
    wait_for: dict[str, Flags] = {}
    ended: dict[str, Flags] = {}
    for name in graph.order:
        vertex = states[name]
        _put(trigger, name, _without_running_upstream(graph, states, name))
        _put(wait_for, name, vertex.running)
        _put(ended, name, vertex.ended & ~left_out[name] if name in left_out else vertex.ended)
    fully = tuple(name for name in graph.order if not states[name].running.any())
    return CheckpointPlan(trigger, wait_for, ended, fully, graph.parallelism)


def flags_of(graph: ExecutionGraph, tasks: Iterable[TaskId]) -> dict[str, Flags]:
    """The tasks as flags by vertex."""
    found: dict[str, Flags] = {}
    for task in tasks:
        if task.vertex not in found:
            found[task.vertex] = np.zeros(graph.parallelism[task.vertex], dtype=np.bool_)
        found[task.vertex][task.subtask] = True
    return found


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

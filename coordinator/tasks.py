"""Every task's current attempt and state, and the regions that live and die together.

Rules:

1. All tasks of a region are deployed together, under one attempt number; so one comparison fences every message.
2. Counts per state are kept, so that "does everything run" costs nothing however many tasks there are.
3. A task is *covered* once a completed checkpoint holds its end of data: only then may it finish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..engine.identity import Attempt, Committable, TaskId
from .commands import DeployTask
from .execution_graph import ExecutionGraph
from .job_states import LEGAL_TASK_MOVES, STARTED, TaskStatus, check_move
from .plan_calculator import VertexStates

_ENDED = frozenset({TaskStatus.DATA_ENDED, TaskStatus.FINISHED})


@dataclass(slots=True)
class TaskRecord:
    """What is known of one task."""

    id: TaskId
    region: int
    state: TaskStatus = TaskStatus.CREATED
    #: None until first deployed; then the newest attempt, also after it has stopped.
    attempt: Attempt | None = None
    #: The order that built the attempt, to give it again if no answer comes.
    deploy: DeployTask | None = None
    #: When something was last heard of the attempt, or ordered again; once its data have ended, only the latter.
    touched: float = 0.0
    #: Whether a completed checkpoint holds this attempt's end of data.
    covered: bool = False
    #: Acknowledged for a checkpoint that was given up; the next acknowledgement carries them on.
    unsaved: list[Committable] = field(default_factory=list)

    @property
    def is_started(self) -> bool:
        return self.state in STARTED


@dataclass(slots=True)
class Region:
    """Tasks connected by edges. ``restart_at``: when it is to be deployed; None if it is."""

    index: int
    tasks: tuple[TaskId, ...]
    restart_at: float | None = None
    deployments: int = 0
    counts: Counter[TaskStatus] = field(default_factory=Counter)
    #: By vertex: tasks that have not reached their end of data.
    unended: dict[str, int] = field(default_factory=dict)
    #: By vertex: tasks in DATA_ENDED that are not covered.
    uncovered: dict[str, int] = field(default_factory=dict)


class TaskTable:
    """The records of every task of the graph."""

    def __init__(self, graph: ExecutionGraph) -> None:
        self._graph = graph
        self.regions = [Region(index, tasks) for index, tasks in enumerate(graph.regions)]
        self._records = {task: TaskRecord(task, region.index) for region in self.regions for task in region.tasks}
        self.counts: Counter[TaskStatus] = Counter({TaskStatus.CREATED: len(self._records)})
        for region in self.regions:
            region.counts[TaskStatus.CREATED] = len(region.tasks)
            for task in region.tasks:
                region.unended[task.vertex] = region.unended.get(task.vertex, 0) + 1
                region.uncovered[task.vertex] = 0

    def get(self, task: TaskId) -> TaskRecord | None:
        """The record, or None for a task that this job does not have (an older parallelism's)."""
        return self._records.get(task)

    def __getitem__(self, task: TaskId) -> TaskRecord:
        return self._records[task]

    def __iter__(self) -> Iterator[TaskRecord]:
        return iter(self._records.values())

    def region_of(self, record: TaskRecord) -> Region:
        return self.regions[record.region]

    def current(self, task: TaskId, attempt: Attempt) -> TaskRecord | None:
        """The record if ``attempt`` is the task's and has not stopped; None for the word of a stale attempt."""
        record = self._records.get(task)
        if record is None or record.attempt != attempt or record.state is TaskStatus.STOPPED:
            return None
        return record

    @property
    def all_started(self) -> bool:
        """Whether every task runs or has finished."""
        return sum(self.counts[state] for state in (*STARTED, TaskStatus.FINISHED)) == len(self._records)

    @property
    def all_finished(self) -> bool:
        return self.counts[TaskStatus.FINISHED] == len(self._records)

    def move(self, record: TaskRecord, to: TaskStatus) -> None:
        """Change a task's state and the counts with it."""
        before = record.state
        record.state = check_move(f"task {record.id}", LEGAL_TASK_MOVES, before, to)
        region, vertex = self.regions[record.region], record.id.vertex
        for counts in (self.counts, region.counts):
            counts[before] -= 1
            counts[to] += 1
        region.unended[vertex] += (before in _ENDED) - (to in _ENDED)
        if TaskStatus.DATA_ENDED in (before, to) and not record.covered:
            region.uncovered[vertex] += 1 if to is TaskStatus.DATA_ENDED else -1

    def cover(self, record: TaskRecord) -> None:
        """A completed checkpoint holds the task's end."""
        if not record.covered:
            record.covered = True
            if record.state is TaskStatus.DATA_ENDED:
                self.regions[record.region].uncovered[record.id.vertex] -= 1

    def branch_ended(self, region: Region) -> bool:
        """Whether some vertex has ended, needs a checkpoint for it, and nothing that is about to end joins it.

        A vertex is about to end when all that feeds it has ended: it only drains. Waiting for it makes one
        checkpoint out of many when a whole chain ends; a branch whose consumers wait for other inputs does not wait.
        """
        draining: dict[str, bool] = {}
        for vertex in reversed(self._graph.order):
            if vertex not in region.unended:
                continue
            feeders = [edge.source for edge in self._graph.inputs[vertex] if edge.source in region.unended]
            ends_soon = region.unended[vertex] > 0 and bool(feeders) and not any(region.unended[f] for f in feeders)
            consumers = (edge.target for edge in self._graph.outputs[vertex])
            after = any(draining.get(consumer, False) for consumer in consumers)
            if not region.unended[vertex] and region.uncovered[vertex] and not after:
                return True
            draining[vertex] = ends_soon or after
        return False

    def plan_states(self) -> dict[str, VertexStates]:
        """The states as the plan calculator wants them."""
        states: dict[str, VertexStates] = {}
        for vertex in self._graph.vertices:
            records = [self._records[TaskId(vertex.name, subtask)] for subtask in range(vertex.parallelism)]
            finished = [record.state is TaskStatus.FINISHED for record in records]
            states[vertex.name] = VertexStates.of([record.is_started for record in records], finished, finished)
        return states

    def validate(self) -> None:
        """Rules 1 and 2."""
        if self.counts != Counter(record.state for record in self):
            raise AssertionError("the counts per state are wrong")
        for region in self.regions:
            records = [self._records[task] for task in region.tasks]
            if len({record.attempt for record in records}) > 1:
                raise AssertionError(f"region {region.index} mixes attempts")
            if region.counts != Counter(record.state for record in records):
                raise AssertionError(f"region {region.index}: the counts per state are wrong")
            for vertex, count in region.unended.items():
                mine = [record for record in records if record.id.vertex == vertex]
                open_ends = [r for r in mine if r.state is TaskStatus.DATA_ENDED and not r.covered]
                if count != sum(r.state not in _ENDED for r in mine) or region.uncovered[vertex] != len(open_ends):
                    raise AssertionError(f"region {region.index}: the counts of ended tasks are wrong")

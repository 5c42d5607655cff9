"""Every task's current attempt and state, and the regions that live and die together.

Rules:

1. All tasks of a region are deployed together, under one attempt number; so one comparison fences every message.
2. Counts per state are kept, and the states themselves as one byte per task beside the records; so "does everything
   run" costs nothing, and a plan costs a few array operations, however many tasks there are.
3. A task is *covered* once a completed checkpoint holds its end of data: only then may it finish.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ...engine.core.identity import Attempt, CheckpointId, Committable, TaskId
from ...engine.core.state_machine import check_move
from ..model.commands import DeployTask
from ..model.execution_graph import ExecutionGraph
from ..model.job_states import LEGAL_TASK_MOVES, TaskStatus

_STATES = tuple(TaskStatus)
_LEGAL = {before.code: frozenset(to.code for to in moves) for before, moves in LEGAL_TASK_MOVES.items()}


@dataclass(slots=True, eq=False)
class TaskRecord:
    """What is known of one task."""

    id: TaskId
    region: int
    state: TaskStatus = TaskStatus.CREATED
    #: None until first deployed; then the newest attempt, also after it has stopped.
    attempt: Attempt | None = None
    #: The order that built the attempt, to give it again if no answer comes; None once it is deployed.
    deploy: DeployTask | None = None
    #: When something was last heard of the attempt, or ordered again; once its data have ended, only the latter.
    touched: float = 0.0
    #: The first completed checkpoint that holds this attempt's end of data.
    covered_by: CheckpointId | None = None
    #: The process that is there for the task, and the one that built the attempt; empty: not told.
    process: str = ""
    built_by: str = ""
    #: Acknowledged for a checkpoint that was aborted; the next acknowledgement carries them on.
    unsaved: tuple[Committable, ...] = ()

    @property
    def is_started(self) -> bool:
        return self.state is TaskStatus.RUNNING or self.state is TaskStatus.DATA_ENDED

    @property
    def covered(self) -> bool:
        """Whether a completed checkpoint holds this attempt's end of data."""
        return self.covered_by is not None


@dataclass(slots=True)
class Region:
    """Tasks connected by edges. ``restart_at``: when it is to be deployed; None if it is."""

    index: int
    tasks: tuple[TaskId, ...]
    restart_at: float | None = None
    deployments: int = 0
    #: Tasks by state.
    counts: list[int] = field(default_factory=lambda: [0] * len(_STATES))
    #: By vertex: tasks that have not reached their end of data.
    unended: dict[str, int] = field(default_factory=dict)
    #: By vertex: tasks in DATA_ENDED that are not covered.
    uncovered: dict[str, int] = field(default_factory=dict)


def _running_or_over(counts: list[int]) -> int:
    """Of tasks counted by state, how many run or have finished."""
    running = counts[TaskStatus.RUNNING.code] + counts[TaskStatus.DATA_ENDED.code]
    return running + counts[TaskStatus.FINISHED.code]


class TaskTable:
    """The records of every task of the graph."""

    def __init__(self, graph: ExecutionGraph) -> None:
        self._graph = graph
        self.regions = [Region(index, tasks) for index, tasks in enumerate(graph.regions)]
        records = {task: TaskRecord(task, region.index) for region in self.regions for task in region.tasks}
        #: By vertex, in the order of subtasks.
        self._records = {
            vertex.name: [records[TaskId(vertex.name, subtask)] for subtask in range(vertex.parallelism)]
            for vertex in graph.vertices
        }
        #: The records' states as codes.
        self._codes = {vertex.name: bytearray(vertex.parallelism) for vertex in graph.vertices}
        self._size = len(records)
        #: Tasks by the code of their state.
        self._counts = [0] * len(_STATES)
        self._counts[TaskStatus.CREATED.code] = self._size
        #: Grows with every change of a state.
        self.version = 0
        #: What ``shown`` said last, of which version.
        self._shown: tuple[int, Mapping[TaskId, str]] | None = None
        #: Regions that are to be deployed: all and only those with a time.
        self.restarting: set[int] = set()
        #: Regions some of whose tasks neither run nor have finished.
        self.down: set[int] = {region.index for region in self.regions}
        for region in self.regions:
            region.counts[TaskStatus.CREATED.code] = len(region.tasks)
            for task in region.tasks:
                region.unended[task.vertex] = region.unended.get(task.vertex, 0) + 1
                region.uncovered[task.vertex] = 0

    def get(self, task: TaskId) -> TaskRecord | None:
        """The record, or None for a task that this job does not have (an older parallelism's)."""
        records = self._records.get(task.vertex)
        return records[task.subtask] if records is not None and task.subtask < len(records) else None

    def __getitem__(self, task: TaskId) -> TaskRecord:
        return self._records[task.vertex][task.subtask]

    def __iter__(self) -> Iterator[TaskRecord]:
        for records in self._records.values():
            yield from records

    def __len__(self) -> int:
        return self._size

    def region_of(self, record: TaskRecord) -> Region:
        return self.regions[record.region]

    def schedule(self, region: Region, at: float | None) -> None:
        """The region is to be deployed at that time; None: it is, or need not be."""
        region.restart_at = at
        if at is None:
            self.restarting.discard(region.index)
        else:
            self.restarting.add(region.index)

    def current(self, task: TaskId, attempt: Attempt) -> TaskRecord | None:
        """The record if ``attempt`` is the task's and has not stopped; None for the word of a stale attempt."""
        records = self._records.get(task.vertex)
        if records is None or task.subtask >= len(records):
            return None
        record = records[task.subtask]
        known = record.attempt
        current = known is attempt or known == attempt
        return record if current and record.state is not TaskStatus.STOPPED else None

    def shown(self) -> Mapping[TaskId, str]:
        """Every task's state, for people; the same object until a state changes."""
        if self._shown is None or self._shown[0] != self.version:
            self._shown = (self.version, {record.id: record.state.value for record in self})
        return self._shown[1]

    def count(self, state: TaskStatus) -> int:
        """How many tasks are in the state."""
        return self._counts[state.code]

    def first_in(self, state: TaskStatus, most: int) -> list[TaskId]:
        """The first tasks in the state."""
        found: list[TaskId] = []
        for vertex, codes in self._codes.items():
            at = codes.find(state.code)
            while at >= 0 and len(found) < most:
                found.append(self._records[vertex][at].id)
                at = codes.find(state.code, at + 1)
        return found

    def any_started(self, vertex: str) -> bool:
        """Whether some task of the vertex runs."""
        codes = self._codes[vertex]
        return codes.find(TaskStatus.RUNNING.code) >= 0 or codes.find(TaskStatus.DATA_ENDED.code) >= 0

    @property
    def all_started(self) -> bool:
        """Whether every task runs or has finished."""
        return not self.down

    @property
    def anything_runs(self) -> bool:
        """Whether some task can take a snapshot. All of its region run then, or have finished: it starts as a whole."""
        return bool(self._counts[TaskStatus.RUNNING.code] + self._counts[TaskStatus.DATA_ENDED.code])

    @property
    def all_finished(self) -> bool:
        return self._counts[TaskStatus.FINISHED.code] == self._size

    def move(self, record: TaskRecord, to: TaskStatus) -> None:
        """Change a task's state and the counts with it."""
        before, task = record.state, record.id
        if to.code not in _LEGAL[before.code]:
            check_move(f"task {task}", LEGAL_TASK_MOVES, before, to)
        record.state = to
        region, vertex = self.regions[record.region], task.vertex
        self._codes[vertex][task.subtask] = to.code
        self.version += 1
        for counts in (self._counts, region.counts):
            counts[before.code] -= 1
            counts[to.code] += 1
        if _running_or_over(region.counts) == len(region.tasks):
            self.down.discard(region.index)
        else:
            self.down.add(region.index)
        if before.has_ended is not to.has_ended:
            region.unended[vertex] += 1 if before.has_ended else -1
        if record.covered_by is None:
            if to is TaskStatus.DATA_ENDED:
                region.uncovered[vertex] += 1
            elif before is TaskStatus.DATA_ENDED:
                region.uncovered[vertex] -= 1

    def cover(self, record: TaskRecord, checkpoint: CheckpointId) -> None:
        """A completed checkpoint holds the task's end."""
        if record.covered_by is None:
            record.covered_by = checkpoint
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

    def ids(self, subtasks: Mapping[str, Iterable[int]]) -> list[TaskId]:
        """A plan's part as ids, those that the records have."""
        found: list[TaskId] = []
        for vertex, numbers in subtasks.items():
            records = self._records[vertex]
            found += [records[number].id for number in numbers]
        return found

    def feeds_unfinished(self, record: TaskRecord) -> bool:
        """Whether a consumer of the task has not finished: the end of their channel may be lost with the task's
        process, and the consumer would wait for it for ever."""
        consumers = {edge.target for edge in self._graph.outputs[record.id.vertex]}
        tasks = self.region_of(record).tasks
        return any(task.vertex in consumers and self[task].state is not TaskStatus.FINISHED for task in tasks)

    @property
    def codes(self) -> Mapping[str, bytearray]:
        """By vertex, its tasks' states as codes; not to be changed."""
        return self._codes

    def validate(self) -> None:
        """Rules 1 and 2."""
        codes = [record.state.code for record in self]
        if bytes(codes) != b"".join(self._codes.values()):
            raise AssertionError("the states beside the records are wrong")
        if self._counts != [codes.count(state.code) for state in _STATES]:
            raise AssertionError("the counts per state are wrong")
        if self.restarting != {region.index for region in self.regions if region.restart_at is not None}:
            raise AssertionError("the regions that are to be deployed are wrong")
        for region in self.regions:
            self._validate_region(region)

    def _validate_region(self, region: Region) -> None:
        attempt, counts = self[region.tasks[0]].attempt, [0] * len(_STATES)
        unended, uncovered = dict.fromkeys(region.unended, 0), dict.fromkeys(region.uncovered, 0)
        for record in (self[task] for task in region.tasks):
            if record.attempt is not attempt and record.attempt != attempt:
                raise AssertionError(f"region {region.index} mixes attempts")
            counts[record.state.code] += 1
            unended[record.id.vertex] += not record.state.has_ended
            uncovered[record.id.vertex] += record.state is TaskStatus.DATA_ENDED and not record.covered
        if (region.index in self.down) is (_running_or_over(counts) == len(region.tasks)):
            raise AssertionError(f"region {region.index}: whether all of its tasks run is wrong")
        if region.counts != counts:
            raise AssertionError(f"region {region.index}: the counts per state are wrong")
        if (region.unended, region.uncovered) != (unended, uncovered):
            raise AssertionError(f"region {region.index}: the counts of ended tasks are wrong")

"""The counts that long-lived objects give out on request: of a task, of a stage, of a job, of one window between
barriers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from ..core.identity import Attempt, CheckpointId, TaskId
from ..scheduler.protocol import HandleStatistics, Wait
from ..state.memory import MemoryStatistics
from .task_cut import CutPhase

NOTHING_HELD = MemoryStatistics()


class OperatorStatistics(msgspec.Struct, frozen=True):
    """Rows and batches that passed one operator of one attempt."""

    operator: str
    rows_in: int
    rows_out: int
    batches_out: int


class PassedStatistics(msgspec.Struct, frozen=True):
    """Of the ``rows`` of a source that its reader has asked a join for, by the keys that this has told, so many
    ``passed``, certainly all that the join needs. ``join`` "": the filters directly behind the source. ``early``: not
    by keys, but by what ``join``, or a filter further down, asks of rows."""

    join: str
    rows: int
    passed: int
    early: bool = False


class SourceStatistics(msgspec.Struct, frozen=True):
    """What one source of one attempt has read. ``rows`` counts from the beginning of the job, restores included.

    ``groups_left_out`` of the ``groups``, row groups of files, were not decoded, as some filter lets no row of them
    through, ``groups_by_bloom`` of these as bloom filters say so, ``groups_by_dictionary`` as dictionaries do, and
    statistics alone do not; ``pages_left_out``: within others. ``rows_left_out``: rows of these and of others that no
    filter, or no join, needs by what files tell. ``passed``: what filters and joins left of the rows, one after the
    other, this attempt.
    """

    operator: str
    rows: int
    batches: int
    split: str
    groups: int = 0
    groups_left_out: int = 0
    rows_left_out: int = 0
    groups_by_bloom: int = 0
    passed: tuple[PassedStatistics, ...] = ()
    groups_by_dictionary: int = 0
    pages_left_out: int = 0


class EdgeStatistics(msgspec.Struct, frozen=True):
    """One edge at one end of one attempt, all its channels there together.

    ``direction`` "out": what was sent, and ``queued`` bytes of it that nobody has consumed yet; "in": what was
    consumed, and ``queued`` bytes that wait here. ``channels``: how many there are.
    """

    edge: str
    direction: str
    channels: int
    rows: int
    batches: int
    bytes: int
    queued: int


class DriverWait(msgspec.Struct, frozen=True):
    """What one driver waits for."""

    driver: str
    wait: Wait


class PieceStatistics(msgspec.Struct, frozen=True):
    """What a thread is in the middle of: a call of ``operator`` in ``driver``, for at most ``seconds``. "": of none
    that is known, as where rows are read. ``is_whole``: a user's operator is given whole batches."""

    driver: str
    operator: str
    seconds: float
    is_whole: bool = False


class CutStatistics(msgspec.Struct, frozen=True):
    """How far the newest cut that the task has heard of has come. ``checkpoint`` None: it has heard of none.

    ``seconds``: since it was asked for. ``missing``: the first of the exchanges and producers whose barriers have not
    come, ``missing_count`` in all. ``late``: the drivers that have yet to come through a task barrier, or to a disk.
    ``unwritten``: those whose sinks still write what they flushed.
    """

    checkpoint: CheckpointId | None
    phase: CutPhase
    """``NONE``: it is told, or was given up."""
    seconds: float = 0.0
    missing: tuple[tuple[str, TaskId], ...] = ()
    missing_count: int = 0
    late: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()


class CopyStatistics(msgspec.Struct, frozen=True):
    """Of the parts of states that a process has read: those ``found`` as copies on its machine, and their ``bytes``;
    those ``missing`` there and those ``damaged`` there, which were read from the checkpoint folder."""

    found: int = 0
    bytes: int = 0
    missing: int = 0
    damaged: int = 0


NO_COPIES = CopyStatistics()


class TaskStatistics(msgspec.Struct, frozen=True):
    """A task's counts, and why its drivers wait."""

    task: TaskId
    attempt: Attempt
    state: str
    operators: tuple[OperatorStatistics, ...]
    sources: tuple[SourceStatistics, ...]
    why: tuple[str, ...]
    drivers: tuple[HandleStatistics, ...] = ()
    """What became of the drivers' time: running, queued, waiting by reason; wake-ups, steals, yields."""
    edges: tuple[EdgeStatistics, ...] = ()
    memory: MemoryStatistics = NOTHING_HELD
    """What the operators hold and have spilled."""
    waits: tuple[DriverWait, ...] = ()
    """The same as ``why``, for programs."""
    pieces: tuple[PieceStatistics, ...] = ()
    """Of the drivers that run at this moment."""
    writing: int = 0
    """Bytes of state, and of what is in flight, that are to be written for a checkpoint."""
    writing_seconds: float = 0.0
    """Since the oldest of them were handed over."""
    cut: CutStatistics | None = None
    """None: the job's checkpoints are no cuts."""
    copies: CopyStatistics = NO_COPIES
    """What its process has restored from local copies (``Checkpoints(local_copies=)``)."""


# ------------------------------------------------------------------ job statistics
#
# The counts of a whole job: by task, and by stage, all its subtasks together.


class StageStatistics(msgspec.Struct, frozen=True):
    """One stage: sums over its subtasks since their attempts began.

    ``rows_read``: by its sources since the beginning of the job; ``rows_in``, ``rows_out`` and their bytes: what came
    from other stages and went to them. ``busy``: the part of their time in which the subtasks worked, on average;
    ``busiest``: the one that worked longest, and its part. ``held``, ``spilled``: bytes of its operators.
    """

    stage: str
    subtasks: int
    rows_read: int
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    busy: float
    busiest: tuple[TaskId, float]
    held: int
    spilled: int


class JobStatistics(dict[TaskId, TaskStatistics]):
    """The counts of every task that is there to tell, by task."""

    @property
    def stages(self) -> dict[str, StageStatistics]:
        """The same by stage."""
        names = dict.fromkeys(task.vertex for task in self)
        return {name: _stage(name, [found for task, found in self.items() if task.vertex == name]) for name in names}

    @property
    def left_out(self) -> list[str]:
        """What the readers of sources have left out, and what passed: a sentence for each, all subtasks together."""
        sources: dict[str, list[SourceStatistics]] = {}
        for task in self.values():
            for source in task.sources:
                sources.setdefault(source.operator, []).append(source)
        return [f"{name}: {sentence}" for name, found in sources.items() for sentence in _left_out(found)]


def _left_out(sources: Sequence[SourceStatistics]) -> Iterator[str]:
    groups, left_out = sum(each.groups for each in sources), sum(each.groups_left_out for each in sources)
    if left_out:
        bloom = sum(each.groups_by_bloom for each in sources)
        words = sum(each.groups_by_dictionary for each in sources)
        by = [(left_out - bloom - words, "statistics"), (bloom, "bloom filters"), (words, "dictionaries")]
        said = " and ".join(f"{count:,} by {what}" for count, what in by if count)
        yield f"{left_out:,} of {groups:,} row groups have nothing that passes its filters, {said}"
    rows = sum(each.rows_left_out for each in sources)
    if rows:
        pages = sum(each.pages_left_out for each in sources)
        told = f" and {pages:,} pages" if pages else ""
        yield f"{rows:,} rows were not decoded, for what its files tell of their row groups{told}"
    for join, early in dict.fromkeys((each.join, each.early) for source in sources for each in source.passed):
        own = [each for source in sources for each in source.passed if (each.join, each.early) == (join, early)]
        asked, passed = sum(each.rows for each in own), sum(each.passed for each in own)
        if asked:
            needed = f"what {join} asks" if early else f"the keys that {join} has told"
            filters = needed if join else "its filters"
            yield f"{100 * passed / asked:.3g} % of {asked:,} rows pass {filters}"


def _stage(name: str, tasks: list[TaskStatistics]) -> StageStatistics:
    ins = [edge for found in tasks for edge in _edges(found, "in")]
    outs = [edge for found in tasks for edge in _edges(found, "out")]
    busy = {found.task: _busy(found) for found in tasks}
    busiest = max(busy, key=lambda task: (busy[task], -task.subtask))
    return StageStatistics(
        stage=name,
        subtasks=len(tasks),
        rows_read=sum(source.rows for found in tasks for source in found.sources),
        rows_in=sum(edge.rows for edge in ins),
        rows_out=sum(edge.rows for edge in outs),
        bytes_in=sum(edge.bytes for edge in ins),
        bytes_out=sum(edge.bytes for edge in outs),
        busy=sum(busy.values()) / len(busy),
        busiest=(busiest, busy[busiest]),
        held=sum(found.memory.held for found in tasks),
        spilled=sum(found.memory.spilled_bytes for found in tasks),
    )


def _edges(found: TaskStatistics, direction: str) -> Iterable[EdgeStatistics]:
    """Those that come from other tasks, or go there: an edge inside a task has both its ends there."""
    others = {edge.edge for edge in found.edges if edge.direction != direction}
    return (edge for edge in found.edges if edge.direction == direction and edge.edge not in others)


def _busy(found: TaskStatistics) -> float:
    """The part of its time in which a task has worked, whichever of its drivers did. Of a task that runs on its host's
    thread only ``cpu`` tells."""
    spans = [each.queued + each.running + each.paused + sum(each.waiting.values()) for each in found.drivers]
    worked = sum(max(each.running, each.cpu) for each in found.drivers)
    return min(1.0, worked / max(spans)) if spans and max(spans) > 0 else 0.0


class OperatorWindow(msgspec.Struct, frozen=True):
    """One operator in one window. ``drain_seconds``: time that it took to emit what it held at the barrier.

    ``first_at``: when its first row came, by ``time.perf_counter``; None: no row did. ``waits``: of the operator that a
    pipeline begins with, how long each input stood behind the barrier until the last one had come, in seconds.
    """

    operator: str
    rows_in: int
    rows_out: int
    bytes_out: int
    drain_seconds: float
    first_at: float | None = None
    waits: tuple[tuple[str, float], ...] = ()


class WindowStatistics(msgspec.Struct, frozen=True):
    """One window. ``seconds``: from the request to the barrier. ``operators``: of all pipelines, upstream first."""

    barrier: int
    operators: tuple[OperatorWindow, ...]
    seconds: float

    @property
    def rows(self) -> Mapping[str, int]:
        """Operator to rows emitted."""
        return {each.operator: each.rows_out for each in self.operators}

    @property
    def slowest(self) -> OperatorWindow | None:
        """The operator that took longest to drain."""
        return max(self.operators, key=lambda each: each.drain_seconds, default=None)

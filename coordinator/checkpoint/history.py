"""Keeps the statistics of checkpoints: what Flink's UI shows, in memory that does not grow with the job's age or size.

Rules:

1. Of a checkpoint each vertex keeps sums and extremes, and its ``SLOWEST`` slowest tasks; nothing per task beyond that.
2. The newest ``history`` checkpoints are remembered, and beyond them the latest completed, failed and savepoint.
   Summaries are over the newest ``SUMMARISED`` completed ones.
3. A time never goes back, so durations are never negative.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from ...engine.core.identity import CheckpointId, TaskId
from ..model.events import TaskAcked
from ..model.manifest import Manifest, TaskState
from ..model.settings import Settings
from ..model.statistics import (
    CheckpointStatistics,
    Counts,
    Overview,
    Restored,
    Spread,
    Summary,
    TaskCheckpoint,
    VertexCheckpoint,
)
from .pending import PendingCheckpoint

SLOWEST = 5
SUMMARISED = 1000
PORTION = 128
SPREADS = (
    *("duration", "alignment", "start_delay", "synchronous", "asynchronous"),
    *("sizes", "processed", "persisted", "placed"),
)
"""The figures of a vertex, in the order in which they are added."""
_FIGURES = ("duration", "bytes", "new_bytes", "processed_bytes", "persisted_bytes")


class _Figures:
    """Smallest, largest and sum of several figures that come together, as they come.

    They are looked at a portion at a time, figure by figure: many times faster than one by one.
    """

    __slots__ = ("_count", "_least", "_most", "_portion", "_sums")

    def __init__(self) -> None:
        self._portion: list[tuple[float, ...]] = []
        self._count = 0
        self._least: list[float] = []
        self._most: list[float] = []
        self._sums: list[float] = []

    def add(self, figures: tuple[float, ...]) -> None:
        self._portion.append(figures)
        if len(self._portion) == PORTION:
            self._digest()

    def _digest(self) -> None:
        columns = list(zip(*self._portion, strict=True))
        if not self._count:
            self._least, self._most = list(self._portion[0]), list(self._portion[0])
            self._sums = [0.0] * len(columns)
        self._least = [min(known, *each) for known, each in zip(self._least, columns, strict=True)]
        self._most = [max(known, *each) for known, each in zip(self._most, columns, strict=True)]
        self._sums = [known + sum(each) for known, each in zip(self._sums, columns, strict=True)]
        self._count += len(self._portion)
        self._portion.clear()

    @property
    def count(self) -> int:
        return self._count + len(self._portion)

    def spreads(self) -> dict[str, Spread]:
        """By the names in ``SPREADS``."""
        if self._portion:
            self._digest()
        if not self._count:
            return {name: Spread() for name in SPREADS}
        means = [each / self._count for each in self._sums]
        found = map(Spread, self._least, means, self._most)
        return dict(zip(SPREADS, found, strict=True))


class _Vertex:
    """One vertex's part in a checkpoint."""

    __slots__ = ("bytes", "carried", "dropped", "figures", "finished", "new_bytes", "slowest", "total", "unaligned")

    def __init__(self, total: int, finished: int) -> None:
        self.total, self.finished = total, finished
        self.bytes = self.new_bytes = self.unaligned = 0
        #: Tasks that take no part, and how many of them had acknowledged before.
        self.carried = self.dropped = 0
        self.figures = _Figures()
        #: A heap, the fastest of the slowest first: duration, subtask, what to show.
        self.slowest: list[tuple[float, int, TaskCheckpoint]] = []

    def add(self, event: TaskAcked, now: float, duration: float, size: int, new: int) -> None:
        timing = event.timing
        self.bytes += size
        self.new_bytes += new
        self.unaligned += timing.unaligned
        self.figures.add(
            (
                duration,
                timing.alignment,
                timing.start_delay,
                timing.synchronous,
                timing.asynchronous,
                size,
                timing.processed_bytes,
                timing.persisted_bytes,
                max(0.0, duration - timing.after_cut),
            )
        )
        if len(self.slowest) < SLOWEST or duration > self.slowest[0][0]:
            entry = (duration, -event.task.subtask, TaskCheckpoint(event.task, now, duration, size, timing))
            add = heapq.heappush if len(self.slowest) < SLOWEST else heapq.heappushpop
            add(self.slowest, entry)

    def show(self, name: str) -> VertexCheckpoint:
        return VertexCheckpoint(
            vertex=name,
            acknowledged=self.figures.count - self.dropped + self.finished,
            total=self.total,
            carried=self.carried,
            bytes=self.bytes,
            new_bytes=self.new_bytes,
            slowest=tuple(task for _, _, task in sorted(self.slowest, reverse=True)),
            unaligned=self.unaligned,
            **self.figures.spreads(),
        )


@dataclass(slots=True)
class _Running:
    """A checkpoint in progress."""

    pending: PendingCheckpoint
    vertices: dict[str, _Vertex]
    latest_ack_at: float | None = None
    processed: int = 0
    persisted: int = 0


@dataclass(slots=True)
class CheckpointHistory:
    """See the module's rules. ``length``: checkpoints remembered."""

    parallelism: Mapping[str, int]
    length: int
    #: In progress, by id, oldest first.
    _running: dict[CheckpointId, _Running] = field(default_factory=dict)
    #: Over, the newest last.
    _over: deque[CheckpointStatistics] = field(default_factory=deque)
    #: The figures of completed ones, the newest last.
    _completed: deque[tuple[float, ...]] = field(default_factory=lambda: deque(maxlen=SUMMARISED))
    _counts: Counts = field(default_factory=Counts)
    _latest: dict[str, CheckpointStatistics] = field(default_factory=dict)
    _restored: Restored | None = None
    #: By completed checkpoint that is remembered: the committables that are not known to be visible, if there are any.
    _hidden: dict[CheckpointId, int] = field(default_factory=dict)

    def started(self, pending: PendingCheckpoint) -> None:
        """A checkpoint has an id and a plan."""
        finished = pending.finished.by_vertex()
        vertices = {name: _Vertex(size, finished.get(name, 0)) for name, size in self.parallelism.items()}
        self._running[pending.id] = _Running(pending, vertices)
        self._count(triggered=1, in_progress=1)

    def acknowledged(self, event: TaskAcked, now: float) -> None:
        """A task's acknowledgement was accepted."""
        running = self._running[event.checkpoint]
        size = sum([handle.bytes for handle in event.state])
        new = event.timing.new_bytes
        running.latest_ack_at = now
        running.processed += event.timing.processed_bytes
        running.persisted += event.timing.persisted_bytes
        started = running.pending.started_at
        running.vertices[event.task.vertex].add(event, now, max(0.0, now - started), size, size if new is None else new)

    def finished(self, pending: PendingCheckpoint, vertex: str) -> None:
        """A task finished instead of acknowledging."""
        self._running[pending.id].vertices[vertex].finished += 1

    def carried(self, pending: PendingCheckpoint, tasks: Iterable[TaskId], dropped: Iterable[TaskState]) -> None:
        """A region takes no part: its tasks, and what they had acknowledged."""
        vertices, finished = self._running[pending.id].vertices, pending.finished.by_vertex()
        for task in tasks:
            vertices[task.vertex].carried += 1
            vertices[task.vertex].finished = finished.get(task.vertex, 0)
        for state in dropped:
            vertices[state.task.vertex].dropped += 1
            vertices[state.task.vertex].bytes -= sum(handle.bytes for handle in state.state)

    def completed(self, pending: PendingCheckpoint, now: float) -> None:
        """The checkpoint is complete."""
        made = [each for state in pending.acked.values() for each in state.committables] if pending.kind.commits else []
        shown = self._end(pending, "completed", now, "", sum(each.rows for each in made), visible=not made)
        if shown is not None:
            self._count(completed=1, in_progress=-1)
            if made:
                self._hidden[pending.id] = len(made)
            self._latest["savepoint" if pending.kind.is_savepoint else "completed"] = shown
            self._completed.append(tuple(float(getattr(shown, figure) or 0) for figure in _FIGURES))

    def committed(self, checkpoints: Sequence[CheckpointId], now: float) -> None:
        """For each of these a committable of it is visible."""
        for checkpoint in checkpoints:
            left = self._hidden.get(checkpoint, 0) - 1
            if left > 0:
                self._hidden[checkpoint] = left
            elif self._hidden.pop(checkpoint, None) is not None:
                self._change([checkpoint], visible_at=now)

    def failed(self, pending: PendingCheckpoint, now: float, message: str) -> None:
        """The checkpoint was aborted."""
        shown = self._end(pending, "failed", now, message)
        if shown is not None:
            self._count(failed=1, in_progress=-1)
            self._latest["failed"] = shown

    def discarded(self, checkpoints: Collection[CheckpointId]) -> None:
        """They were deleted."""
        if checkpoints:
            self._change(checkpoints, discarded=True)

    def _change(self, checkpoints: Collection[CheckpointId], **changes: object) -> None:
        """Note something of checkpoints that are over."""
        self._over = deque(replace(one, **changes) if one.checkpoint in checkpoints else one for one in self._over)
        for kind, one in self._latest.items():
            if one.checkpoint in checkpoints:
                self._latest[kind] = replace(one, **changes)

    def restored(self, manifest: Manifest, now: float) -> None:
        """Tasks are started from a checkpoint."""
        self._count(restored=1)
        self._restored = Restored(
            manifest.checkpoint, now, manifest.kind != "checkpoint", manifest.root or manifest.savepoint
        )

    def overview(self, settings: Settings | None = None) -> Overview:
        """Everything, for people."""
        running = [self._show(one, "in progress", None, "") for one in self._running.values()]
        return Overview(
            counts=self._counts,
            completed=self._latest.get("completed"),
            failed=self._latest.get("failed"),
            savepoint=self._latest.get("savepoint"),
            restored=self._restored,
            history=tuple(sorted((*self._over, *running), key=lambda one: one.checkpoint, reverse=True)),
            summary=self._summary(),
            settings=settings,
        )

    @property
    def completed_count(self) -> int:
        return self._counts.completed

    def _end(
        self, pending: PendingCheckpoint, status: str, now: float, message: str, rows: int = 0, visible: bool = False
    ) -> CheckpointStatistics | None:
        running = self._running.pop(pending.id, None)
        if running is None:
            return None
        shown = replace(self._show(running, status, now, message), rows=rows, visible_at=now if visible else None)
        self._over.append(shown)
        while len(self._over) > self.length:
            self._hidden.pop(self._over.popleft().checkpoint, None)
        return shown

    def _count(self, **changes: int) -> None:
        self._counts = replace(
            self._counts, **{name: getattr(self._counts, name) + change for name, change in changes.items()}
        )

    def _show(self, running: _Running, status: str, now: float | None, message: str) -> CheckpointStatistics:
        pending, vertices = running.pending, [each.show(name) for name, each in running.vertices.items()]
        latest = running.latest_ack_at
        return CheckpointStatistics(
            checkpoint=pending.id,
            kind=pending.kind.value,
            cause=pending.request.cause.value,
            status=status,
            triggered_at=pending.started_at,
            latest_ack_at=latest,
            duration=None if latest is None else max(0.0, latest - pending.started_at),
            ended_at=now,
            acknowledged=sum(each.acknowledged for each in vertices),
            total=sum(each.total for each in vertices),
            carried=sum(each.carried for each in vertices),
            bytes=sum(each.bytes for each in vertices),
            new_bytes=sum(each.new_bytes for each in vertices),
            processed_bytes=running.processed,
            persisted_bytes=running.persisted,
            vertices=tuple(vertices),
            location=pending.location,
            failure=message,
        )

    def _summary(self) -> dict[str, Summary]:
        return {
            figure: summarise([one[number] for one in self._completed])
            for number, figure in enumerate(_FIGURES)
            if self._completed
        }


def summarise(values: Sequence[float]) -> Summary:
    """Extremes, mean and percentiles: each the smallest value that so many percent do not exceed."""
    ordered = sorted(values)

    def percentile(percent: float) -> float:
        return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]

    return Summary(
        least=ordered[0],
        mean=sum(ordered) / len(ordered),
        most=ordered[-1],
        p50=percentile(50),
        p90=percentile(90),
        p95=percentile(95),
        p99=percentile(99),
        p999=percentile(99.9),
    )

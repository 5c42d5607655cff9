"""What a job reports to a metrics system: the table of metrics, with values from what engine and coordinator count.

No Ray here; ``actors/job/metrics.py`` hands the values on. ``docs/operations.md`` shows the table, and a test compares.

Rules:

1. Figures are read from what is counted anyhow, on a slow timer; nothing is added to the path of a batch.
2. A counter's sample is the total since its ``epoch`` began (an attempt, a generation of the coordinator), and the
   meter hands on what has come since the last look. So a restart neither repeats nor loses what was reported.
3. A gauge that is no longer reported (the task has ended, or sits in another process now) goes to 0.
4. Tags are few and bounded by the plan, and by the number of ranks: never a split, a checkpoint or an attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Protocol

import msgspec

from ...coordinator.model.statistics import CheckpointStatistics, JobStatus, Overview
from ...engine.core.identity import TaskId
from ...engine.feed.status import FeedStatus
from ...engine.plan.plan import JobPlan
from ...engine.plan.rounds import SplitAssignment, evenly_assigned, lanes_of
from ...engine.runtime.statistics import TaskStatistics


class Kind(Enum):
    """How a metric's values go together."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True):
    """A name with its meaning. ``tags``: their names, ``TASK_TAGS`` or ``JOB_TAGS`` first."""

    name: str
    kind: Kind
    unit: str
    tags: tuple[str, ...]
    meaning: str


TASK_TAGS = ("job", "stage", "subtask")
JOB_TAGS = ("job",)
DURATION_BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Of histograms of seconds."""

_EDGE, _OPERATOR = (*TASK_TAGS, "edge", "direction"), (*TASK_TAGS, "operator", "direction")
_FEED, _RANK = ("job", "feed"), ("job", "feed", "rank")
_SOURCE, _PIPELINE = (*TASK_TAGS, "source"), (*TASK_TAGS, "pipeline")
_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

EDGE_ROWS = Metric("penstock_edge_rows", _C, "rows", _EDGE, "rows sent into (out) or taken from (in) an edge")
EDGE_BATCHES = Metric("penstock_edge_batches", _C, "batches", _EDGE, "the same in batches")
EDGE_BYTES = Metric("penstock_edge_bytes", _C, "bytes", _EDGE, "the same in bytes, before compression")
EDGE_QUEUED = Metric(
    "penstock_edge_queued_bytes", _G, "bytes", _EDGE, "sent and not yet consumed (out), or waiting at the consumer (in)"
)
OPERATOR_ROWS = Metric("penstock_operator_rows", _C, "rows", _OPERATOR, "rows that an operator took in or gave out")
SOURCE_ROWS = Metric(
    "penstock_source_rows_read", _G, "rows", _SOURCE, "rows read since the beginning of the job, restores included"
)
SOURCE_LEFT = Metric(
    "penstock_source_rows_left", _G, "rows", _SOURCE, "lag: rows of the subtask's splits that it has not read yet"
)
BUSY = Metric("penstock_busy_seconds", _C, "seconds", _PIPELINE, "time in which a pipeline's driver ran")
QUEUED = Metric(
    "penstock_queued_seconds", _C, "seconds", _PIPELINE, "time in which it could have run and had no thread"
)
WAITING = Metric(
    "penstock_waiting_seconds", _C, "seconds", (*_PIPELINE, "reason"), "time in which it waited, by what it waited for"
)
HELD = Metric("penstock_state_bytes", _G, "bytes", TASK_TAGS, "what a task's operators hold in memory")
SPILLED = Metric("penstock_spilled_bytes", _C, "bytes", TASK_TAGS, "what they have spilled to disk")
FEED_WAITING = Metric("penstock_feed_waiting_rows", _G, "rows", _FEED, "rows that some rank has not taken")
FEED_KEPT = Metric("penstock_feed_kept_bytes", _G, "bytes", _FEED, "bytes of the rows that the feed keeps")
RANK_BATCH = Metric("penstock_rank_batch", _G, "batches", _RANK, "the global batch that the rank takes next")
RANK_AHEAD = Metric("penstock_rank_ahead_batches", _G, "batches", _RANK, "what it has fetched and not taken")
RANK_AHEAD_BYTES = Metric("penstock_rank_ahead_bytes", _G, "bytes", _RANK, "the same in bytes")
RANK_RATE = Metric("penstock_rank_batches_per_second", _G, "batches/s", _RANK, "how many it takes, of late")
RANK_WAITED = Metric("penstock_rank_waited_seconds", _C, "seconds", _RANK, "how long its loop has waited for data")
RUNNING = Metric("penstock_job_running", _G, "0 or 1", JOB_TAGS, "whether the job's state is running")
RESTARTS = Metric("penstock_restarts", _C, "restarts", JOB_TAGS, "restarts of regions")
COMPLETED = Metric(
    "penstock_checkpoints_completed", _C, "checkpoints", JOB_TAGS, "checkpoints and savepoints completed"
)
FAILED = Metric("penstock_checkpoints_failed", _C, "checkpoints", JOB_TAGS, "those that failed")
AGE = Metric(
    "penstock_checkpoint_age_seconds",
    _G,
    "seconds",
    JOB_TAGS,
    "lag: since the newest completed checkpoint was triggered",
)
DURATION = Metric(
    "penstock_checkpoint_duration_seconds", _H, "seconds", JOB_TAGS, "from the trigger to the latest acknowledgement"
)
ALIGNMENT = Metric(
    "penstock_checkpoint_alignment_seconds", _H, "seconds", JOB_TAGS, "the longest alignment of a task in a checkpoint"
)
START_DELAY = Metric(
    "penstock_checkpoint_start_delay_seconds",
    _H,
    "seconds",
    JOB_TAGS,
    "of the slowest task: what its alignment and writing leave of the time from the trigger to its acknowledgement",
)
SIZE = Metric("penstock_checkpoint_bytes", _G, "bytes", JOB_TAGS, "all state of the newest completed checkpoint")
WRITTEN = Metric("penstock_checkpoint_written_bytes", _G, "bytes", JOB_TAGS, "what was written for it")

METRICS = (
    *(EDGE_ROWS, EDGE_BATCHES, EDGE_BYTES, EDGE_QUEUED, OPERATOR_ROWS, SOURCE_ROWS, SOURCE_LEFT),
    *(BUSY, QUEUED, WAITING, HELD, SPILLED),
    *(FEED_WAITING, FEED_KEPT, RANK_BATCH, RANK_AHEAD, RANK_AHEAD_BYTES, RANK_RATE, RANK_WAITED),
    *(RUNNING, RESTARTS, COMPLETED, FAILED, AGE, DURATION, ALIGNMENT, START_DELAY, SIZE, WRITTEN),
)
"""All of them."""


class Sample(msgspec.Struct, frozen=True):
    """One value. ``tags``: the values of the metric's tags, in their order. ``epoch``: of a counter (rule 2)."""

    metric: Metric
    value: float
    tags: tuple[str, ...]
    epoch: str = ""


class Instruments(Protocol):
    """A metrics system, as far as it is needed here."""

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """A gauge has this value now."""

    def add(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """A counter has grown by so much (more than 0)."""

    def observe(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """A histogram gets a value."""


class Meter:
    """Turns samples into calls of ``instruments``. See the module's rules."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        #: by metric and tags: the epoch and the total that was handed on last
        self._totals: dict[tuple[str, tuple[str, ...]], tuple[str, float]] = {}
        #: the gauges that were reported at the last look
        self._gauges: dict[tuple[str, tuple[str, ...]], Metric] = {}

    def report(self, samples: Iterable[Sample]) -> None:
        """Hand on what has come since the last look."""
        before, self._gauges = self._gauges, {}
        for sample in samples:
            key, tags = (sample.metric.name, sample.tags), _named(sample.metric, sample.tags)
            match sample.metric.kind:
                case Kind.GAUGE:
                    self._gauges[key] = sample.metric
                    self._instruments.set(sample.metric, sample.value, tags)
                case Kind.HISTOGRAM:
                    self._instruments.observe(sample.metric, sample.value, tags)
                case Kind.COUNTER:
                    grown = self._grown(key, sample)
                    if grown > 0:
                        self._instruments.add(sample.metric, grown, tags)
        for key, metric in before.items():
            if key not in self._gauges:
                self._instruments.set(metric, 0.0, _named(metric, key[1]))

    def _grown(self, key: tuple[str, tuple[str, ...]], sample: Sample) -> float:
        epoch, total = self._totals.get(key, (sample.epoch, 0.0))
        self._totals[key] = (sample.epoch, sample.value)
        return sample.value - total if epoch == sample.epoch else sample.value


def _named(metric: Metric, values: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(metric.tags, values, strict=True))


class TaskFigures:
    """The samples of one task after the other."""

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        #: rows of a subtask's splits by source; None: they are not known
        self._planned: dict[tuple[str, TaskId], int | None] = {}

    def samples(self, found: TaskStatistics) -> Iterator[Sample]:
        """What a task has counted."""
        tags = (self._plan.name, found.task.vertex, str(found.task.subtask))
        epoch = str(found.attempt)
        for edge in found.edges:
            end = (*tags, edge.edge, edge.direction)
            yield Sample(EDGE_ROWS, edge.rows, end, epoch)
            yield Sample(EDGE_BATCHES, edge.batches, end, epoch)
            yield Sample(EDGE_BYTES, edge.bytes, end, epoch)
            yield Sample(EDGE_QUEUED, edge.queued, end)
        for operator in found.operators:
            yield Sample(OPERATOR_ROWS, operator.rows_in, (*tags, operator.operator, "in"), epoch)
            yield Sample(OPERATOR_ROWS, operator.rows_out, (*tags, operator.operator, "out"), epoch)
        for source in found.sources:
            yield Sample(SOURCE_ROWS, source.rows, (*tags, source.operator))
            planned = self._rows(source.operator, found.task)
            if planned is not None:
                yield Sample(SOURCE_LEFT, max(0, planned - source.rows), (*tags, source.operator))
        for driver in found.drivers:
            # a task that runs on its host's thread has one time for a whole turn: its own work counts as queued there
            unseen = max(0.0, driver.cpu - driver.running)
            yield Sample(BUSY, driver.running + unseen, (*tags, driver.name), epoch)
            yield Sample(QUEUED, max(0.0, driver.queued - unseen), (*tags, driver.name), epoch)
            for reason, waited in driver.waiting.items():
                yield Sample(WAITING, waited, (*tags, driver.name, reason), epoch)
        yield Sample(HELD, found.memory.held, tags)
        yield Sample(SPILLED, found.memory.spilled_bytes, tags, epoch)

    def _rows(self, source: str, task: TaskId) -> int | None:
        """Rows of the splits that the task's lanes read."""
        key = (source, task)
        if key not in self._planned:
            plan, lanes = self._plan.sources[source], self._plan.lanes
            mine = lanes_of(task.subtask, self._plan.stages[task.vertex].parallelism, lanes)
            assignment = SplitAssignment(lanes, evenly_assigned(len(plan.splits), lanes))
            rows = [split.rows for number, split in enumerate(plan.splits) if assignment.lane_of(number) in mine]
            often = self._plan.epochs.count if plan.repeats and self._plan.epochs else 1
            self._planned[key] = None if None in rows else often * sum(each or 0 for each in rows)
        return self._planned[key]


def feed_samples(job: str, found: FeedStatus) -> Iterator[Sample]:
    """What a feed and its ranks say of themselves."""
    tags = (job, found.feed)
    yield Sample(FEED_WAITING, found.waiting_rows, tags)
    yield Sample(FEED_KEPT, found.kept_bytes, tags)
    for each in found.ranks:
        rank = (*tags, str(each.rank))
        yield Sample(RANK_BATCH, each.taken, rank)
        yield Sample(RANK_AHEAD, each.ahead, rank)
        yield Sample(RANK_AHEAD_BYTES, each.bytes_ahead, rank)
        yield Sample(RANK_RATE, each.rate, rank)
        yield Sample(RANK_WAITED, each.waited, rank, str(each.generation))


class JobFigures:
    """The samples of one coordinator, look after look. Times are the coordinator's."""

    def __init__(self, job: str) -> None:
        self._tags = (job,)
        #: checkpoints whose duration was reported, as far as they are still remembered
        self._reported: frozenset[str] = frozenset()

    def samples(self, status: JobStatus, shown: Overview, now: float) -> Iterator[Sample]:
        """The job's state, and the checkpoints that have completed since the last look."""
        tags, epoch = self._tags, str(status.generation)
        yield Sample(RUNNING, float(status.state == "running"), tags)
        yield Sample(RESTARTS, status.restarts, tags, epoch)
        yield Sample(COMPLETED, shown.counts.completed, tags, epoch)
        yield Sample(FAILED, shown.counts.failed, tags, epoch)
        if shown.completed is not None:
            yield Sample(AGE, max(0.0, now - shown.completed.triggered_at), tags)
            yield Sample(SIZE, shown.completed.bytes, tags)
            yield Sample(WRITTEN, shown.completed.new_bytes, tags)
        completed = {str(one.checkpoint): one for one in shown.history if one.status == "completed"}
        for name, one in completed.items():
            if name not in self._reported:
                yield from self._checkpoint(one)
        self._reported = frozenset(completed)

    def _checkpoint(self, one: CheckpointStatistics) -> Iterator[Sample]:
        if one.duration is not None:
            yield Sample(DURATION, one.duration, self._tags)
        yield Sample(ALIGNMENT, max((vertex.alignment.most for vertex in one.vertices), default=0.0), self._tags)
        if one.slowest is not None:
            timing = one.slowest.timing
            accounted = timing.alignment + timing.synchronous + timing.asynchronous
            yield Sample(START_DELAY, max(0.0, one.slowest.duration - accounted), self._tags)

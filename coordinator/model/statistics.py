"""What a coordinator shows of itself: immutable snapshots, for progress lines, the UI and error messages.

Times are the coordinator's own, in seconds; a coordinator that takes over begins its statistics anew. Points in time of
windows are seconds since the epoch, each by the clock of the machine that it was read on: what lies between two of them
is only as exact as these clocks agree.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...engine.core.identity import CheckpointId, TaskId
from .events import NO_TIMING, Failure, SnapshotTiming, TaskReport
from .job_states import FINAL_JOB_STATES, JobState
from .settings import Settings


class PendingStatus(msgspec.Struct, frozen=True):
    """A checkpoint in flight. Finished tasks count as acknowledged. ``waits_for``: the first of the tasks that have not
    answered."""

    checkpoint: CheckpointId
    phase: str
    started_at: float
    acknowledged: int
    total: int
    kind: str = "checkpoint"
    waits_for: tuple[TaskId, ...] = ()
    carried: tuple[TaskId, ...] = ()
    """The first of the tasks that take no part, as their regions do not run: what is stored of them stays."""


class Spread(msgspec.Struct, frozen=True):
    """Smallest, mean and largest of a figure."""

    least: float = 0.0
    mean: float = 0.0
    most: float = 0.0


class TaskCheckpoint(msgspec.Struct, frozen=True):
    """One task's part in a checkpoint. ``duration``: from the trigger to its acknowledgement. ``bytes``: its state."""

    task: TaskId
    acknowledged_at: float
    duration: float
    bytes: int
    timing: SnapshotTiming = NO_TIMING


class VertexCheckpoint(msgspec.Struct, frozen=True):
    """All tasks of one vertex in a checkpoint. ``slowest``: those with the longest duration, the slowest first.

    The figures are those of :class:`SnapshotTiming`; ``sizes``: of each task's state; ``placed``: from the trigger to
    the task's cut, as far as its own clock can tell. ``unaligned``: how many tasks cut before the data that their
    barriers had yet to pass.
    """

    vertex: str
    acknowledged: int
    total: int
    bytes: int
    new_bytes: int
    duration: Spread
    alignment: Spread
    start_delay: Spread
    slowest: tuple[TaskCheckpoint, ...]
    synchronous: Spread = Spread()
    asynchronous: Spread = Spread()
    sizes: Spread = Spread()
    processed: Spread = Spread()
    persisted: Spread = Spread()
    unaligned: int = 0
    placed: Spread = Spread()
    carried: int = 0
    """Tasks that took no part, as their regions did not run: what an older checkpoint holds of them is carried on."""


class CheckpointStatistics(msgspec.Struct, frozen=True):
    """One checkpoint. ``status``: in progress, completed or failed. Finished tasks count as acknowledged.

    ``duration`` is from the trigger to the latest acknowledgement; ``bytes`` all of its state, carried state excluded,
    ``new_bytes`` what was written for it. ``rows``: those that become visible with it, ``visible_at``: when all of them
    were; None: some are not yet.
    """

    checkpoint: CheckpointId
    kind: str
    cause: str
    status: str
    triggered_at: float
    latest_ack_at: float | None
    duration: float | None
    ended_at: float | None
    acknowledged: int
    total: int
    bytes: int
    new_bytes: int
    processed_bytes: int
    persisted_bytes: int
    vertices: tuple[VertexCheckpoint, ...]
    location: str = ""
    failure: str = ""
    discarded: bool = False
    """Whether it was deleted since."""
    rows: int = 0
    visible_at: float | None = None
    carried: int = 0
    """Tasks that took no part, as their regions did not run; they are in ``total``."""

    @property
    def referenced_bytes(self) -> int:
        """Of its state, what older checkpoints had written."""
        return max(0, self.bytes - self.new_bytes)

    @property
    def place(self) -> float:
        """Seconds from the trigger until the last task had cut."""
        return max((vertex.placed.most for vertex in self.vertices), default=0.0)

    @property
    def pause(self) -> float:
        """The longest time in which a task did nothing else."""
        return max((vertex.synchronous.most for vertex in self.vertices), default=0.0)

    @property
    def write(self) -> float:
        """The longest time in which a task wrote its state."""
        return max((vertex.asynchronous.most for vertex in self.vertices), default=0.0)

    @property
    def commit(self) -> float | None:
        """Seconds from the last acknowledgement until it was complete; None: it is not."""
        if self.status != "completed" or self.ended_at is None or self.latest_ack_at is None:
            return None
        return self.ended_at - self.latest_ack_at

    @property
    def visible(self) -> float | None:
        """Seconds from the trigger until all rows up to it were visible; None: some are not yet."""
        return None if self.visible_at is None else self.visible_at - self.triggered_at

    @property
    def unaligned(self) -> int:
        """How many tasks took their snapshot before the data that their barriers had yet to pass."""
        return sum(vertex.unaligned for vertex in self.vertices)

    @property
    def slowest(self) -> TaskCheckpoint | None:
        """The task that took longest."""
        found = [vertex.slowest[0] for vertex in self.vertices if vertex.slowest]
        return max(found, key=lambda one: one.duration, default=None)


class Counts(msgspec.Struct, frozen=True):
    """Checkpoints and savepoints of this coordinator."""

    triggered: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    restored: int = 0


class Summary(msgspec.Struct, frozen=True):
    """A figure over the newest completed checkpoints."""

    least: float
    mean: float
    most: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float


class Restored(msgspec.Struct, frozen=True):
    """What the tasks were last started from."""

    checkpoint: CheckpointId
    at: float
    is_savepoint: bool
    location: str


class Overview(msgspec.Struct, frozen=True):
    """All checkpoints, as far as they are remembered. ``history``: the newest first, those in progress included."""

    counts: Counts = Counts()
    completed: CheckpointStatistics | None = None
    failed: CheckpointStatistics | None = None
    savepoint: CheckpointStatistics | None = None
    restored: Restored | None = None
    history: tuple[CheckpointStatistics, ...] = ()
    summary: Mapping[str, Summary] = {}
    """By figure: duration, bytes, new_bytes, processed_bytes, persisted_bytes."""
    settings: Settings | None = None
    """What the checkpoints are taken by."""


class JobStatus(msgspec.Struct, frozen=True):
    """A job at one moment. ``why`` is one sentence: what it waits for, and for whom."""

    job: str
    state: str
    generation: int
    restarts: int
    checkpoints_completed: int
    checkpoints_failed: int
    latest_completed: CheckpointId | None
    pending: PendingStatus | None
    """The newest checkpoint in flight."""
    tasks: Mapping[TaskId, str]
    failure: Failure | None
    restored_from: CheckpointId | None
    why: str
    in_flight: tuple[PendingStatus, ...] = ()
    """All checkpoints in flight, oldest first."""
    savepoints: tuple[SavepointResult, ...] = ()
    """How the newest savepoints that were asked for turned out, oldest first."""
    pins: Mapping[str, CheckpointId] = {}
    """Who depends on which checkpoint."""
    refused_pins: tuple[str, ...] = ()
    """The newest names whose checkpoint was not kept any more when they asked."""
    skipped: tuple[str, ...] = ()
    """Splits of the input that are poison and are not read any more, each with the reason, in a sentence."""
    reweights: tuple[ReweightResult, ...] = ()
    """How the newest changes of weights that were asked for turned out, oldest first."""
    uuid: str = ""
    """The job's identity, which is in its log and in whatever it writes."""
    latest_whole: CheckpointId | None = None
    """The newest completed checkpoint that every region took part in."""
    splits: SplitStatus | None = None
    """How far a job that takes split sets has come; None: it takes none, or has not begun."""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, in whatever way."""
        return JobState(self.state) in FINAL_JOB_STATES

    def savepoint(self, request: str) -> SavepointResult | None:
        """The result of a savepoint; None while there is none."""
        return next((one for one in reversed(self.savepoints) if one.request == request), None)

    def reweight(self, request: str) -> ReweightResult | None:
        """What came of a change of weights; None while it is open."""
        return next((one for one in reversed(self.reweights) if one.request == request), None)


class ReweightResult(msgspec.Struct, frozen=True):
    """How a change of weights turned out: in the log (``refused`` is empty), or why not. ``possible``: the first
    position that could still have been changed, if that is the reason. ``again``: its tasks were started anew, so it
    has to be found again how far those have come who read."""

    request: str
    refused: str = ""
    possible: int | None = None
    again: bool = False


class SavepointResult(msgspec.Struct, frozen=True):
    """How a savepoint that was asked for as ``request`` turned out: either ``location`` or ``failure`` is None."""

    request: str
    kind: str
    checkpoint: CheckpointId | None
    location: str | None
    failure: Failure | None


class WindowReport(msgspec.Struct, frozen=True):
    """One window of a job. ``sets``: split sets in it. ``tasks``: those that have drained; a coordinator that takes
    over knows nothing of windows that were complete before."""

    number: int
    sets: int
    requested_at: float
    tasks: Mapping[TaskId, TaskReport]
    reached: bool
    """Whether every task that runs has drained."""

    @property
    def seconds(self) -> float | None:
        """From the request to when the last task had drained; negative for what was fed and drained before it."""
        ends = [task.drained_at for task in self.tasks.values()]
        return max(ends) - self.requested_at if ends and self.reached else None

    @property
    def first_token(self) -> Mapping[TaskId, float]:
        """Task to the time from the request to its first row; negative if that had come before."""
        return {
            task: found.first_at - self.requested_at for task, found in self.tasks.items() if found.first_at is not None
        }

    @property
    def rows(self) -> Mapping[str, int]:
        """Operator to rows emitted, by all tasks together."""
        found: dict[str, int] = {}
        for task in self.tasks.values():
            for each in task.operators:
                found[each.operator] = found.get(each.operator, 0) + each.rows_out
        return found

    @property
    def slowest(self) -> TaskId | None:
        """The task that had drained last."""
        return max(self.tasks, key=lambda task: self.tasks[task].drained_at, default=None)


class SplitStatus(msgspec.Struct, frozen=True):
    """How far the split sets of a job, and its windows, have come. Windows count from 1; the counts are of all that was
    ever added to the job, also before a restart."""

    entries: int
    """Where the next entry of the log of split sets goes."""
    sets: int
    rounds: int
    requested: int
    """Barriers that the coordinator knows of."""
    reached: int
    """Windows that every task has drained."""
    published: int
    """Windows whose rows are visible in every sink."""
    open_sets: int
    """Split sets since the last barrier."""
    ended: bool
    """Whether nothing more will be added."""

"""The flows that simulated jobs run, and the disk that their sinks write to.

Every flow is small and awkward: splits of zero rows, lanes of unequal length, groups that span splits and rounds,
rounds of two rows. The sink keeps rows in the order in which they arrived, so that a wrong order shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.core.elements import Batch
from penstock.engine.core.identity import CheckpointId, CommitPermit, Committable
from penstock.engine.core.operator import OperatorContext, Output, Stateless
from penstock.engine.flow.flow import Flow
from penstock.engine.sinks.lane_counts import LaneCounts

JOB = "simulated"
LANES = 5
QUOTA = 2
"""Rows of a lane's round, where no merge join wants whole splits."""

SIZES = (3, 0, 5, 1, 2, 4, 0, 6, 2, 1, 3, 2)
"""Rows of the splits. Twelve splits on five lanes: lanes and subtasks end in different rounds."""

Row = tuple[object, ...]


@dataclass
class Disk:
    """What the sinks of a job have written: outlives every process. ``fails``: whether this commit fails."""

    fails: Callable[[], bool] = lambda: False
    prepared: dict[str, tuple[CheckpointId, str, list[Batch]]] = field(default_factory=dict)
    visible: dict[str, tuple[CheckpointId, str, list[Batch]]] = field(default_factory=dict)

    def written(self, sink: str) -> list[tuple[int, Row]]:
        """The visible rows of a sink with their lanes, in the order in which they were written."""
        files = sorted((at, place) for place, (at, operator, _) in self.visible.items() if operator == sink)
        batches = [batch for _, place in files for batch in self.visible[place][2]]
        return [
            (batch.tag.lane, row)
            for batch in batches
            for row in zip(*(column.to_pylist() for column in batch.records.columns), strict=True)
        ]


@dataclass(frozen=True)
class DiskSink:
    """Writes to ``disk`` in two phases, in the order of arrival."""

    name: str
    disk: Disk = field(compare=False)
    kind: str = "disk sink"
    guarantee: str = "exactly once"
    place: str = ""

    def describe(self) -> str:
        return self.name

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningDisk:
        return RunningDisk(self.disk, context, restored)

    def committer(self, job: str) -> DiskSink:
        return self

    def commit(self, permit: CommitPermit) -> None:
        if self.disk.fails():
            raise OSError("simulated: no commit today")
        for committable in permit.committables:
            place = committable.payload["place"]
            self.disk.visible[place] = self.disk.prepared[place]

    def clean(self, keep: Sequence[Committable], claims: Sequence[str] = ()) -> None:
        """Nothing is removed: a manifest may still land late."""

    def visible_rows(self, job: str) -> int | None:
        return len(self.disk.written(self.name))

    def check(self, job: str, resuming: bool = False) -> None:
        """A dictionary needs no check."""


class RunningDisk(Stateless):
    """Holds the batches of one subtask until the next checkpoint."""

    def __init__(self, disk: Disk, context: OperatorContext, restored: pa.Table | None) -> None:
        self._disk, self._context = disk, context
        self._counts = LaneCounts(restored)
        self._batches: list[Batch] = []
        self._flushed: dict[CheckpointId, list[Batch]] = {}

    def process(self, port: int, batch: Batch, out: Output) -> None:
        self._counts.add(batch.tag.lane, batch.records.num_rows)
        self._context.write(lambda: self._batches.append(batch), batch.records.nbytes)

    def flush(self, checkpoint: CheckpointId) -> None:
        self._context.write(lambda: self._close(checkpoint), 0)

    def _close(self, checkpoint: CheckpointId) -> None:
        self._flushed[checkpoint], self._batches = self._batches, []

    def prepare(self, checkpoint: CheckpointId) -> list[Committable]:
        batches = self._flushed.pop(checkpoint)
        if not batches:
            return []
        context = self._context
        place = f"{context.operator}/{context.task.subtask}/{context.attempt}/{checkpoint}"
        assert place not in self._disk.prepared, f"{place} is written twice"
        self._disk.prepared[place] = (checkpoint, context.operator, batches)
        return [Committable(context.operator, sum(batch.records.num_rows for batch in batches), {"place": place})]

    def snapshot(self) -> pa.Table | None:
        return self._counts.snapshot()


# --- flows -------------------------------------------------------------------------------------------------------


def numbers(sizes: Sequence[int] = SIZES) -> list[pa.Table]:
    """Rows with their split, their number in it, and a key that stays for three rows of the lane, across splits."""
    counts, tables = [0] * LANES, []
    for split, size in enumerate(sizes):
        lane = split % LANES
        keys = [lane * 100 + (counts[lane] + row) // 3 for row in range(size)]
        counts[lane] += size
        tables.append(
            pa.table(
                {
                    "split": pa.array([split] * size, pa.int64()),
                    "x": pa.array([split * 10 + row for row in range(size)], pa.int64()),
                    "key": pa.array(keys, pa.int64()),
                }
            )
        )
    return tables


def sides() -> tuple[list[pa.Table], list[pa.Table]]:
    """Two co-partitioned inputs; split ``s`` holds the keys ``10 s, 10 s + 1, …``, those on the left up to thrice."""
    left, right = [], []
    for split, size in enumerate(SIZES):
        keys = [10 * split + row // (1 + split % 3) for row in range(size)]
        left.append(pa.table({"key": pa.array(keys, pa.int64()), "x": pa.array(range(size), pa.int64())}))
        other = [10 * split + row for row in range((split * 7) % 5)]
        right.append(pa.table({"key": pa.array(other, pa.int64()), "y": pa.array([k * 2 for k in other], pa.int64())}))
    return left, right


def gathered(disk: Disk, flow: Flow) -> None:
    stream = flow.from_tables(numbers(), name="numbers").filter(pc.field("x") > 4)
    flow.attach(DiskSink("all", disk), stream.gather(), name="all")


def aggregated(disk: Disk, flow: Flow) -> None:
    groups = flow.from_tables(numbers(), name="numbers").stream_aggregate(by=["key"], n="count", total=("x", "sum"))
    flow.attach(DiskSink("all", disk), groups.gather(), name="all")


def joined(disk: Disk, flow: Flow) -> None:
    """The demo's shape: a merge join, a fork to a sink in every subtask and to totals behind a gather."""
    left, right = sides()
    other = flow.from_tables(right, name="right")
    both = flow.from_tables(left, name="left").filter(pc.field("x") < 5).merge_join(other, on=["key"], how="left")
    flow.attach(DiskSink("rows", disk), both, name="rows")
    totals = both.stream_aggregate(by=["key"], n="count", most=("y", "max"))
    flow.attach(DiskSink("all", disk), totals.gather(), name="all")


def forked(disk: Disk, flow: Flow) -> None:
    """No exchange: every subtask is a region of its own."""
    stream = flow.from_tables(numbers(), name="numbers")
    flow.attach(DiskSink("small", disk), stream.filter(pc.field("x") < 50), name="small")
    flow.attach(DiskSink("groups", disk), stream.stream_aggregate(by=["key"], n="count"), name="groups")


def chained(disk: Disk, flow: Flow) -> None:
    """Two exchanges in a row, and two sinks behind the last one."""
    stream = flow.from_tables(numbers(), name="numbers").gather().stream_aggregate(by=["key"], last=("x", "last"))
    end = stream.gather()
    flow.attach(DiskSink("all", disk), end, name="all")
    flow.attach(DiskSink("some", disk), end.filter(pc.field("last") > 30), name="some")


def two_inputs(disk: Disk, flow: Flow) -> None:
    """A driver with two ports, each fed by a gather of its own."""
    left, right = sides()
    one, other = flow.from_tables(left, name="left").gather(), flow.from_tables(right, name="right").gather()
    flow.attach(DiskSink("all", disk), one.merge_join(other, on=["key"]), name="all")


def separate(disk: Disk, flow: Flow) -> None:
    """Two flows in one job, one of them paced."""
    flow.attach(DiskSink("slow", disk), flow.from_tables(numbers(SIZES[:7]), name="slow-source", rate=300), name="slow")
    flow.attach(DiskSink("all", disk), flow.from_tables(numbers(), name="numbers").gather(), name="all")


def counted(disk: Disk, flow: Flow) -> None:
    """One row, whether or not there is any input: it must not come again after a restore."""
    stream = flow.from_tables(numbers(), name="numbers")
    flow.attach(DiskSink("all", disk), stream.filter(pc.field("x") > 1000).gather().aggregate(n="count"), name="all")
    totals = stream.gather().aggregate(total=("x", "sum"), n="count")
    flow.attach(DiskSink("totals", disk), totals, name="totals")


def enriched(disk: Disk, flow: Flow) -> None:
    """A short source whose rows are held by a join that the long one probes."""
    short = flow.from_tables(numbers((2, 1)), name="short").project(split="split", other="x")
    joined = flow.from_tables(numbers(), name="numbers").gather().hash_join(short.gather(), on=["split"], how="left")
    flow.attach(DiskSink("all", disk), joined, name="all")


def together(disk: Disk, flow: Flow) -> None:
    """A short and a long source in one stream."""
    short = flow.from_tables(numbers((2, 0, 1)), name="short")
    flow.attach(DiskSink("all", disk), flow.from_tables(numbers(), name="numbers").union(short).gather(), name="all")


PLAIN = (gathered, aggregated, joined, forked, chained, two_inputs, separate, counted, enriched, together)

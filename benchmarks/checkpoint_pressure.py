"""Checkpoints of jobs that cannot keep up, in this process (``checkpoints.py``).

Each job has ``SECONDS`` and a checkpoint every second, two subtasks, and something that takes 0.1 ms for a row:

- *slow function*: the function between source and sink, which gets batches of 65,536 rows;
- *small batches*: the same with 2,048 rows at a time;
- *slow sink*: the sink itself, which gets as many rows as take about 0.1 s;
- *whole batches*: the same with 65,536 rows at once (`Traits.rows_at_once`);
- *skew*: a function behind an exchange by a key that nine rows of ten have;
- *gather*: one function behind an ordered merge of all lanes;
- *early end*: the same, where one source ends long before the other;
- *slow rank*: a rank of a feed takes a batch of 256 rows every 0.1 s.

What is told of a job: how many checkpoints were complete and how many failed, seconds from trigger to complete, and the
longest time in which no new row became visible. If none was complete, or no row visible, that is the whole time.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from checkpoint_work import Maker

import penstock as ps
from harness import sized

SECONDS = sized(8.0, 1.0)
EVERY = sized("1s", "200ms")
ROW_SECONDS = sized(1e-4, 1e-6)
RANK_BATCH, RANK_SECONDS = 256, 0.1
SPLITS = 64
VISIBLE: dict[str, dict[str, tuple[float, int]]] = {}
"""By the name of a sink, and of what it commits: when how many rows became visible."""


@dataclass(frozen=True)
class Counted:
    """A sink whose rows become visible as counts in ``VISIBLE``. ``row_seconds``: what it takes for a row; ``at_once``:
    how many it takes in a call, if it says so."""

    place: str
    row_seconds: float = 0.0
    at_once: int | None = None
    kind: str = "counted"
    guarantee: str = "exactly once"

    @property
    def traits(self) -> ps.Traits:
        return ps.Traits(rows_at_once=self.at_once)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def build(self, context: Any, inputs: Sequence[pa.Schema], restored: Any) -> RunningCounted:
        return RunningCounted(self, context, restored)

    def describe(self) -> str:
        return "count rows"

    def check(self, job: str, resuming: bool = False) -> None:
        VISIBLE.setdefault(self.place, {})

    def visible_rows(self, job: str) -> int:
        return sum(rows for _, rows in VISIBLE[self.place].values())

    def committer(self, job: str) -> Noting:
        return Noting(self.place)


class RunningCounted(ps.Stateless):
    """Counts what comes between two checkpoints."""

    def __init__(self, config: Counted, context: Any, restored: Any) -> None:
        self.config, self.operator = config, context.operator
        self.counts = ps.LaneCounts(restored)
        self.rows, self.flushed = 0, dict[Any, list[ps.Committable]]()

    def process(self, port: int, batch: ps.Batch, out: Any) -> None:
        time.sleep(self.config.row_seconds * batch.records.num_rows)
        self.counts.take(batch.tag.lane, batch.records)
        self.rows += batch.records.num_rows

    def snapshot(self) -> pa.Table | None:
        return self.counts.snapshot()

    def flush(self, checkpoint: Any) -> None:
        if self.rows:
            self.flushed[checkpoint] = [ps.Committable(self.operator, self.rows, {"id": uuid4().hex})]
            self.rows = 0

    def prepare(self, checkpoint: Any) -> list[ps.Committable]:
        return self.flushed.pop(checkpoint, [])


class Noting:
    """Commits are told twice now and then, so each counts once."""

    def __init__(self, name: str) -> None:
        self.name = name

    def commit(self, permit: Any) -> None:
        for each in permit.committables:
            VISIBLE[self.name].setdefault(each.payload["id"], (time.monotonic(), each.rows))

    def clean(self, keep: Any, claims: Any = ()) -> None:
        pass


# ---------------------------------------------------------------------- jobs


class SlowRows:
    """Takes ``ROW_SECONDS`` for each row."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(ROW_SECONDS * batch.num_rows)
        return batch


class Skewed:
    """Nine rows of ten get the key 0."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = batch.column("n").to_numpy()
        return batch.set_column(1, "key", pa.array(np.where(numbers % 10 == 0, numbers % 1000, 0)))


def _made(flow: ps.Flow, count: int = SPLITS) -> ps.Stream:
    return flow.from_source(Maker(count))


def slow_function(flow: ps.Flow, sink: str) -> None:
    _made(flow).map_batches(SlowRows, Maker.schema).write_to(Counted(sink))


def small_batches(flow: ps.Flow, sink: str) -> None:
    _made(flow).map_batches(SlowRows, Maker.schema, batch_size=2_048).write_to(Counted(sink))


def slow_sink(flow: ps.Flow, sink: str) -> None:
    _made(flow).write_to(Counted(sink, ROW_SECONDS))


def whole_batches(flow: ps.Flow, sink: str) -> None:
    _made(flow).write_to(Counted(sink, ROW_SECONDS, at_once=65_536))


def skew(flow: ps.Flow, sink: str) -> None:
    keyed = _made(flow).map_batches(Skewed, Maker.schema).partition_by("key")
    keyed.map_batches(SlowRows, Maker.schema).write_to(Counted(sink))


def gather(flow: ps.Flow, sink: str) -> None:
    _made(flow).gather().map_batches(SlowRows, Maker.schema).write_to(Counted(sink))


def early_end(flow: ps.Flow, sink: str) -> None:
    both = _made(flow, 1).union(flow.from_source(Maker(SPLITS), name="long"))
    both.gather().map_batches(SlowRows, Maker.schema).write_to(Counted(sink))


def slow_rank(flow: ps.Flow, sink: str) -> None:
    _made(flow).feed(RANK_BATCH, name=sink)


JOBS: dict[str, Callable[[ps.Flow, str], None]] = {
    "slow function": slow_function,
    "small batches": small_batches,
    "slow sink": slow_sink,
    "whole batches": whole_batches,
    "skew": skew,
    "gather": gather,
    "early end": early_end,
    "slow rank": slow_rank,
}


# ---------------------------------------------------------------------- what is measured


@dataclass(frozen=True)
class Pressed:
    """Of one job. ``complete``: median seconds of its checkpoints; ``gap``: see the module."""

    completed: int
    failed: int
    complete: float
    gap: float
    in_flight: int
    pause: float


def pressed(name: str, order: str = "deterministic", alignment: Any = "aligned") -> Pressed:
    """Run one of ``JOBS`` for a while."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        sink = f"{name.replace(' ', '-')}-{uuid4().hex[:6]}"
        flow = ps.Flow(sink, order=order)  # type: ignore[arg-type]
        JOBS[name](flow, sink)
        checkpoints = ps.Checkpoints(Path(folder) / "state", every=EVERY, alignment=alignment)
        job = ps.run_local(flow, parallelism=2, checkpoints=checkpoints)
        began = time.monotonic()
        if name == "slow rank":
            threading.Thread(target=_take_slowly, args=(job, sink, began + SECONDS), daemon=True).start()
        while time.monotonic() < began + SECONDS and not job.status().is_over:
            time.sleep(0.05)
        shown = job.checkpoints()
        job.cancel()
        with suppress(ps.errors.PenstockError):
            job.wait(60.0)
        return _figures(shown, [at for at, _ in VISIBLE.get(sink, {}).values()], began)


def _take_slowly(job: Any, feed: str, until: float) -> None:
    with suppress(ps.errors.PenstockError), job.feed(feed).reader(0, 1) as reader:  # until the job has ended
        for _ in reader.iter_batches():
            time.sleep(RANK_SECONDS)
            if time.monotonic() > until:
                return


def _figures(shown: Any, visible: list[float], began: float) -> Pressed:
    done = [one for one in shown.history if one.status == "completed" and one.ended_at is not None]
    took = [one.ended_at - one.triggered_at for one in done]
    times = [began, *visible, began + SECONDS]
    return Pressed(
        completed=shown.counts.completed,
        failed=shown.counts.failed,
        complete=median(took) if took else SECONDS,
        gap=max(later - before for before, later in pairwise(times)),
        in_flight=max((one.persisted_bytes for one in done), default=0),
        pause=max((vertex.synchronous.most for one in done for vertex in one.vertices), default=0.0),
    )

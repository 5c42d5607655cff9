"""What checkpoints cost a job that has enough to do, and how long they take when it cannot keep up (``recovery.py``).

- *Steady cost*: the processor time of all of a job's processes, with a checkpoint every 0.1 s and without any, in turn.
  The difference over the number of checkpoints is what one costs; over an interval it is a share of one core. Of a job
  that keeps more than one core busy it is a smaller share, so this is an upper bound; and as ten times as many
  checkpoints are counted as anybody takes, the noise of the machine weighs a tenth.
- *Back-pressure*: a slow function behind an exchange, fed as fast as it reads. How long checkpoints take, from trigger
  to manifest, with barriers that wait in line and with barriers that overtake.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as ps
from harness import Row, make_row, sized

PATIENCE = 120.0
SHARES = {"1s": (1.0, 0.03), "10s": (10.0, 0.005)}
"""Interval, its seconds, and the share of a core that checkpoints may take at that interval."""
COST_INTERVAL = "100ms"
COST_SPLITS, SLOW_SPLITS = sized(6000, 200), sized(100, 12)
ROWS = 64 * 1024
SLOW_SECONDS = sized(0.1, 0.02)
"""What the slow function takes for a batch of ``ROWS``."""
SLOW_INTERVAL = sized("500ms", "50ms")
FASTER = 10.0
"""How many times shorter an unaligned checkpoint should be under back-pressure."""
LEAST = 1e-6
PERIODIC = "the interval is over"
"""Why a checkpoint that counts was taken."""


@dataclass(frozen=True)
class Made:
    """A split of rows that are made when it is read, so that the plan stays small."""

    id: str
    rows: int = ROWS

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        numbers = np.arange(start, self.rows)
        yield pa.record_batch({"n": numbers, "key": numbers % 1000})


@dataclass(frozen=True)
class Maker:
    """So many splits of them, of so many rows each."""

    count: int
    rows: int = ROWS
    kind = "made"
    schema = pa.schema({"n": pa.int64(), "key": pa.int64()})

    def splits(self) -> list[Made]:
        return [Made(str(number), self.rows) for number in range(self.count)]

    def describe(self) -> str:
        return f"{self.count} splits"


class Slow:
    """Takes its time for each batch."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(SLOW_SECONDS * batch.num_rows / ROWS)
        return batch


# ---------------------------------------------------------------------- steady cost


@dataclass(frozen=True, slots=True)
class Spent:
    """By one run: processor seconds from when all tasks ran, and checkpoints completed."""

    seconds: float
    checkpoints: int


def spend(every: str | None) -> Spent:
    """Group all of the rows, as fast as it goes."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        flow = ps.Flow("cost", lanes=4)
        flow.from_source(Maker(COST_SPLITS)).aggregate(by=["key"], total=("n", "sum")).write_parquet(folder / "out")
        with ps.run(flow, parallelism=2, checkpoints=ps.Checkpoints(folder / "state", every=every)) as job:
            job.wait_until(lambda status: status.state == "running", PATIENCE)
            pids = [identity.pid for identity in job.identities().values()] + [job.coordinator_process()]
            before = sum(map(_processor_time, pids))
            status = job.wait_until(lambda status: status.is_over, 10 * PATIENCE)
            return Spent(sum(map(_processor_time, pids)) - before, status.checkpoints_completed)


def _processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost_rows(rounds: int) -> list[Row]:
    """Shares of a core, for each interval."""
    without, often = [], []
    for _ in range(rounds):
        without.append(spend(None))
        often.append(spend(COST_INTERVAL))
    least = min(one.seconds for one in without) if rounds < 3 else median(one.seconds for one in without)
    each = [max(one.seconds - least, LEAST) / max(one.checkpoints - 1, 1) for one in often]
    rows = []
    for every, (seconds, share) in SHARES.items():
        shares, allowed = [100 * one / seconds for one in each], [100 * share] * rounds
        work = f"processor time of checkpoints, one every {every}"
        rows.append(make_row(work, "the aim, of one core", (shares, allowed), "%", 1.0, False))
    return rows


# ---------------------------------------------------------------------- back-pressure


def duration(alignment: Any) -> float:
    """Median seconds of the checkpoints of a job whose function cannot keep up."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        flow = ps.Flow("slow", lanes=4, order="arrival")
        made = flow.from_source(Maker(SLOW_SPLITS))
        made.rebalance().map_batches(Slow(), Maker.schema).write_parquet(folder / "out")
        checkpoints = ps.Checkpoints(folder / "state", every=SLOW_INTERVAL, alignment=alignment)
        with ps.run(flow, parallelism=2, checkpoints=checkpoints) as job:
            job.wait_until(lambda status: status.is_over, 10 * PATIENCE)
            job.wait()
            overview = job.checkpoints()
        taken = [(one.cause, one.duration) for one in overview.history if one.duration is not None]
        # the last one is taken behind the end of the data, when nothing is queued any more
        return median([seconds for cause, seconds in taken if cause == PERIODIC] or [seconds for _, seconds in taken])


def pressure_row(rounds: int) -> Row:
    """Unaligned against aligned."""
    unaligned, aligned = [], []
    for _ in range(rounds):
        aligned.append(duration("aligned"))
        unaligned.append(duration("unaligned"))
    work = "checkpoint under back-pressure, unaligned"
    return make_row(work, "aligned", (unaligned, aligned), "s", FASTER, False)

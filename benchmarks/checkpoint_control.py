"""What a checkpoint of an idle job costs: the control messages, the files, and what is told to those that wait.

The job has three tasks on Ray, two that read and one that gathers and writes, and a trickle of rows, so that the
difference between a run with checkpoints and one without is what these cost, and nothing that a full job would do
meanwhile. Over an interval it is a share of one core.

- *The job's processes*: the actors of the tasks and of the coordinator.
- *All*: these, the script that waits, and Ray's own processes on this machine.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

import penstock as ps
from harness import Row, make_row, sized

PATIENCE = 120.0
SHARES = {"1s": (1.0, 0.02), "10s": (10.0, 0.003)}
"""Interval, its seconds, and the share of a core that checkpoints may take at that interval."""
INTERVAL = "100ms"
SECONDS = sized(20.0, 2.0)
"""How long each run is measured."""
RATE, ROWS = 400.0, 4
"""Rows per second of the job, and rows of a split."""
SCHEMA = pa.schema({"n": pa.int64()})


@dataclass(frozen=True)
class Few:
    """A split of few rows that are made when it is read."""

    id: str
    rows: int = ROWS

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": pa.array(range(start, self.rows), pa.int64())})


@dataclass(frozen=True)
class Trickle:
    """So many splits of them."""

    count: int
    kind = "trickle"
    schema = SCHEMA

    def splits(self) -> list[Few]:
        return [Few(str(number)) for number in range(self.count)]

    def describe(self) -> str:
        return f"{self.count} splits"


@dataclass(frozen=True, slots=True)
class Idle:
    """One run: processor seconds of the job's processes and of all, and the checkpoints that were completed."""

    job: float
    all: float
    checkpoints: int


def idle(every: str | None, seconds: float = SECONDS) -> Idle:
    """A job with next to nothing to do."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        flow = ps.Flow("idle", lanes=4)
        count = int(RATE * (10 * seconds + 60) / ROWS)
        flow.from_source(Trickle(count)).gather().write_parquet(folder / "out")
        checkpoints = ps.Checkpoints(folder / "state", every=every)
        with ps.run(flow, parallelism=2, checkpoints=checkpoints, rate=RATE) as job:
            return _measured(job, every is not None, seconds)


def _measured(job: Any, checkpoints: bool, seconds: float) -> Idle:
    job.wait_until(lambda status: status.state == "running", PATIENCE)
    if checkpoints:
        job.wait_until(lambda status: status.checkpoints_completed >= 3, PATIENCE)
    own = [identity.pid for identity in job.identities().values()] + [job.coordinator_process()]
    everything = _machine_of(own[0])
    before = job.status().checkpoints_completed, _spent(own), _spent(everything)
    with suppress(TimeoutError):
        job.wait(seconds)
    return Idle(
        _spent(own) - before[1],
        _spent(everything) - before[2],
        job.status().checkpoints_completed - before[0],
    )


def _machine_of(pid: int) -> list[int]:
    """This script and everything that it, or what started the process, has started."""
    parents = {each: _parent(each) for each in map(int, filter(str.isdigit, os.listdir("/proc")))}
    raylet = parents.get(pid, 0)
    family = {os.getpid(), raylet}
    grown = True
    while grown:
        more = {each for each, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return sorted(family)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _spent(pids: Iterable[int]) -> float:
    """Processor seconds of these so far."""
    spent = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def control_rows(rounds: int) -> list[Row]:
    """Shares of a core at each interval, of the job's processes and of all."""
    without, often = [], []
    for _ in range(rounds):
        without.append(idle(None))
        often.append(idle(INTERVAL))
    rows = []
    for what, seconds_of in (("the job's processes", lambda one: one.job), ("all processes", lambda one: one.all)):
        least = median(map(seconds_of, without))
        each = [max(seconds_of(one) - least, 0.0) / max(one.checkpoints, 1) for one in often]
        for every, (seconds, share) in SHARES.items():
            shares, allowed = [100 * one / seconds for one in each], [100 * share] * rounds
            work = f"processor time of idle checkpoints, one every {every}: {what}"
            rows.append(make_row(work, "the aim, of one core", (shares, allowed), "%", 1.0, False))
    return rows


if __name__ == "__main__":
    for _ in range(2):
        base, with_them = idle(None), idle(INTERVAL)
        print(time.strftime("%H:%M:%S"), base, with_them)
        count = max(with_them.checkpoints, 1)
        print(f"ms per checkpoint: job {1e3 * (with_them.job - base.job) / count:.2f}", end=", ")
        print(f"all {1e3 * (with_them.all - base.all) / count:.2f}", flush=True)

"""What users notice of a death: seconds until rows flow again; and what checkpoints cost while nobody dies.

Run it as ``python benchmarks/recovery.py``; the result goes to ``benchmarks/results/recovery.json``. A job on Ray reads
in two tasks, at a pace, and gathers into one that writes Parquet; a checkpoint is taken every second.

- *First row*: from SIGKILL of a driver actor's process to the first batch at the sink that a new process has read or
  taken. *Next commit*: to the first checkpoint after it, with which rows become visible. With and without a spare.
- *Coordinator*: from its SIGKILL until a successor has claimed the job and all tasks run again. Rows flow until then.
- *Steady cost*: processor time of all processes of a job that reads as fast as it can, with checkpoints every second
  or every ten, over the same without any. That is an upper bound: the cost and the noise of the machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as ps
from harness import Row, make_row, report

RESULT = Path(__file__).parent / "results" / "recovery.json"
AIM_SECONDS, AIM_SECONDS_WITH_SPARE = 2.0, 0.7
AIM_COST = {"1s": 0.03, "10s": 0.005}
SPLITS, ROWS, PACE = 4000, 500, 20_000.0
COST_SPLITS, COST_ROWS = 40_000, 64 * 1024
PATIENCE = 120.0
WARM_UP_SECONDS = 1.5
"""The job has run for so long when a process is killed."""


class Stamp:
    """Adds to each batch which process has seen it."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("process", pa.array(np.full(batch.num_rows, os.getpid())))


class Witness:
    """Writes down when a batch came, which processes have read it, and which one takes it. ``file``: where to."""

    def __init__(self, file: str) -> None:
        self._file = file

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        pids = {*batch.column("process").unique().to_pylist(), os.getpid()}
        line = f"{time.monotonic()} {' '.join(map(str, pids))}\n".encode()
        file = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, line)
        os.close(file)
        return batch


def paced_flow(folder: Path) -> ps.Flow:
    """Reads at a pace in two tasks, gathers, and leaves a trace of each batch at the sink."""
    table = pa.table({"n": pa.array(range(ROWS))})
    flow = ps.Flow("recovery", lanes=4)
    numbers = flow.from_tables([table] * SPLITS, rate=PACE)
    schema = table.schema.append(pa.field("process", pa.int64()))
    gathered = numbers.map_batches(Stamp(), schema).gather()
    gathered.map_batches(Witness(str(folder / "trace")), schema).write_parquet(folder / "out")
    return flow


def first_new(folder: Path, before: set[int]) -> float | None:
    """When the first batch came that another process has read or taken."""
    for line in (folder / "trace").read_text().splitlines():
        at, *pids = line.split()
        if not {int(pid) for pid in pids} <= before:
            return float(at)
    return None


@contextmanager
def paced_job(spares: int) -> Iterator[tuple[Any, Path]]:
    """A job that has run for a while, and its folder."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        checkpoints = ps.Checkpoints(folder / "state", every="1s")
        with ps.run(
            paced_flow(folder), parallelism=2, checkpoints=checkpoints, runtime=ps.Runtime(spares=spares)
        ) as job:
            job.wait_until(lambda status: status.checkpoints_completed >= 1, PATIENCE)
            time.sleep(WARM_UP_SECONDS)
            yield job, folder


def kill_driver(victim: int, spares: int) -> tuple[float, float]:
    """Seconds to the first row and to the next commit after the death of one task's process."""
    with paced_job(spares) as (job, folder):
        known = {identity.pid for identity in job.identities().values()}
        job.kill_task(job.tasks()[victim])
        killed = time.monotonic()
        completed = job.wait_until(lambda status: status.restarts > 0, PATIENCE).checkpoints_completed
        job.wait_until(lambda status: status.checkpoints_completed > completed, PATIENCE)
        committed = time.monotonic() - killed
        first = first_new(folder, known)
        assert first is not None, "a checkpoint was completed, and no batch came before"
        return first - killed, committed


def kill_coordinator() -> float:
    """Seconds until a successor has all tasks running."""
    with paced_job(0) as (job, _):
        job.kill_coordinator()
        killed = time.monotonic()
        job.wait_until(lambda status: status.generation > 1 and status.state == "running", PATIENCE)
        return time.monotonic() - killed


# ---------------------------------------------------------------------- the cost of checkpoints


@dataclass(frozen=True)
class Made:
    """A split of rows that are made when it is read, so that the plan stays small."""

    id: str
    rows: int = COST_ROWS

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        numbers = np.arange(start, self.rows)
        yield pa.record_batch({"n": numbers, "key": numbers % 1000})


@dataclass(frozen=True)
class Maker:
    """So many splits of them."""

    kind = "made"
    schema = pa.schema({"n": pa.int64(), "key": pa.int64()})

    def splits(self) -> list[Made]:
        return [Made(str(number)) for number in range(COST_SPLITS)]

    def describe(self) -> str:
        return f"{COST_SPLITS} splits"


def cost_flow(folder: Path) -> ps.Flow:
    """Groups numbers, as fast as it can."""
    flow = ps.Flow("cost", lanes=4)
    flow.from_source(Maker()).aggregate(by=["key"], total=("n", "sum")).write_parquet(folder / "out")
    return flow


def processor_seconds(every: str | None) -> float:
    """Processor time that the job's processes take for all of its rows, from when they run."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        checkpoints = ps.Checkpoints(folder / "state", every=every)
        with ps.run(cost_flow(folder), parallelism=2, checkpoints=checkpoints) as job:
            job.wait_until(lambda status: status.state == "running", PATIENCE)
            pids = [identity.pid for identity in job.identities().values()] + [job.coordinator_process()]
            before = sum(map(_processor_time, pids))
            job.wait_until(lambda status: status.is_over, 10 * PATIENCE)
            return sum(map(_processor_time, pids)) - before


def _processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost_rows(rounds: int) -> Iterator[Row]:
    """Processor time with checkpoints over that without, as the share that comes on top."""
    seconds: dict[str | None, list[float]] = {None: [], "1s": [], "10s": []}
    for _ in range(rounds):
        for every, found in seconds.items():
            found.append(processor_seconds(every))
    for every, aim in AIM_COST.items():
        shares = [with_them / median(seconds[None]) for with_them in seconds[every]]
        allowed = [1 + aim] * rounds
        yield make_row(f"processor time, a checkpoint every {every}", "none", (shares, allowed), "×", 1.0, False)


# ---------------------------------------------------------------------- all of it


def death_rows(rounds: int) -> Iterator[Row]:
    """Seconds after deaths."""
    kinds = [(name, victim, spares) for spares in (0, 1) for name, victim in (("reader", 0), ("sink", -1))]
    found: dict[tuple[str, int, int], list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            found[kind].append(kill_driver(*kind[1:]))
    for (name, _, spares), times in found.items():
        aim = AIM_SECONDS_WITH_SPARE if spares else AIM_SECONDS
        with_spare = ", with a spare" if spares else ""
        for what, each in (("first row", [one[0] for one in times]), ("next commit", [one[1] for one in times])):
            allowed = aim if what == "first row" else aim + 1.0
            work = f"death of the {name}: {what}{with_spare}"
            yield make_row(work, f"the aim of {allowed:g} s", (each, [allowed] * rounds), "s", 1.0, False)


def coordinator_row(rounds: int) -> Row:
    """Seconds until the coordinator is back."""
    return make_row(
        "death of the coordinator: all tasks run again",
        f"the aim of {2 * AIM_SECONDS:g} s",
        ([kill_coordinator() for _ in range(rounds)], [2 * AIM_SECONDS] * rounds),
        "s",
        1.0,
        False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["deaths", "coordinator", "cost"], help="leave the others out")
    options = parser.parse_args()
    parts: dict[str, Callable[[], list[Row]]] = {
        "deaths": lambda: list(death_rows(options.rounds)),
        "coordinator": lambda: [coordinator_row(options.rounds)],
        "cost": lambda: list(cost_rows(options.rounds)),
    }
    report([row for name, part in parts.items() if options.only in (None, name) for row in part()], RESULT)


if __name__ == "__main__":
    main()

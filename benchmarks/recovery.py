"""What users notice of a death: seconds until rows flow again; and what checkpoints cost while nobody dies.

Run it as ``python benchmarks/recovery.py``; the result goes to ``benchmarks/results/recovery.json``. A job on Ray reads
in two tasks, at a pace, and gathers into one that writes Parquet; a checkpoint is taken every second.

- *First row*: from SIGKILL of a driver actor's process to the first batch at the sink that a new process has read or
  taken. *Next commit*: to the first checkpoint after it, with which rows become visible. With and without a spare.
- *Coordinator*: from its SIGKILL until a successor has claimed the job and all tasks run again. Rows flow until then.
- *Steady cost* of checkpoints, and how long one takes *under back-pressure*: see ``checkpoint_work.py``.

These are seconds by the clock: on a machine that does other things at the same time they are as many times longer as
processes wait for a core, which the start of a process (0.9 s of processor time) feels most. Modules must have been
compiled (``python -m compileall``), as an installed wheel's are: else each process does it anew, for half a second.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from checkpoint_work import PATIENCE, cost_rows, pressure_row

import penstock as ps
from harness import Row, make_row, report, results_folder, sized

AIM_SECONDS, AIM_SECONDS_WITH_SPARE, AIM_COORDINATOR = 1.0, 0.3, 4.0
SPLITS, ROWS, PACE = 4000, 500, 20_000.0
KINDS = sized([("reader", 0, 0), ("sink", -1, 0), ("reader", 0, 1), ("sink", -1, 1)], [("sink", -1, 1)])
"""Of whose process is killed: a name for it, the number of its task, and how many spares there are."""
WARM_UP_SECONDS = sized(1.5, 0.1)
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


# ---------------------------------------------------------------------- all of it


def death_rows(rounds: int) -> Iterator[Row]:
    """Seconds after deaths."""
    found: dict[tuple[str, int, int], list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            found[kind].append(kill_driver(*kind[1:]))
    for (name, _, spares), times in found.items():
        aim = AIM_SECONDS_WITH_SPARE if spares else AIM_SECONDS
        with_spare = ", with a spare" if spares else ""
        for what, each in (("first row", [one[0] for one in times]), ("next commit", [one[1] for one in times])):
            allowed = aim if what == "first row" else aim + 1.0
            work = f"death of the {name}: {what}{with_spare}"
            yield make_row(work, f"the aim of {allowed:g} s", (each, [allowed] * rounds), "s", 1.0, False)


def death_row(kind: tuple[str, int, int]) -> list[Row]:
    """The first row alone, after one death."""
    name, victim, spares = kind
    aim, first = AIM_SECONDS_WITH_SPARE if spares else AIM_SECONDS, kill_driver(victim, spares)[0]
    work = f"death of the {name}: first row{', with a spare' * spares}"
    return [make_row(work, f"the aim of {aim:g} s", ([first], [aim]), "s", 1.0, False)]


def coordinator_row(rounds: int) -> Row:
    """Seconds until the coordinator is back."""
    return make_row(
        "death of the coordinator: all tasks run again",
        f"the aim of {AIM_COORDINATOR:g} s",
        ([kill_coordinator() for _ in range(rounds)], [AIM_COORDINATOR] * rounds),
        "s",
        1.0,
        False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=sized(5, 1))
    parser.add_argument("--only", choices=["deaths", "coordinator", "cost", "pressure"], help="leave the others out")
    options = parser.parse_args()
    parts: dict[str, Callable[[], list[Row]]] = {
        "deaths": lambda: list(death_rows(options.rounds)),
        "coordinator": lambda: [coordinator_row(options.rounds)],
        "cost": lambda: cost_rows(options.rounds),
        "pressure": lambda: [pressure_row(options.rounds)],
    }
    rows = [row for name, part in parts.items() if options.only in (None, name) for row in part()]
    report(rows, results_folder() / "recovery.json")


if __name__ == "__main__":
    main()

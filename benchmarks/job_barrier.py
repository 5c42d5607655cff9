"""The task barrier over a whole job on Ray: a split set on warm actors against new actors for each split set.

Run it as ``python benchmarks/job_barrier.py``; the result goes to ``benchmarks/results/job_barrier.json``. The flow
reads in two tasks, aggregates by key behind a shuffle in two, gathers into one and writes Parquet: five actors and a
coordinator. Both sides end a set when its rows are visible in the output. What is compared:

1. *Warm, one by one*: ``add_splits``, ``request_barrier``, ``wait``, the next set; against a job started for each set
   on a cluster that stands and has its worker processes warm, from ``ps.run`` to the end of ``wait``.
2. *Warm, queued ahead*: sets and barriers are added without waiting; seconds per set until the last is visible.
3. The same two on the embedded runner, where a new job is new threads, not new processes.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa

import penstock as ps
from harness import Row, compare, report, results_folder, sized

ROWS = 1_500
SETS, NEW_JOBS, ROUNDS = sized((20, 1, 3), (2, 1, 1))
AIM_TIMES_CHEAPER = 10.0
PATIENCE = 300.0
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])

Run = Callable[..., Any]


def split_set() -> list[pa.Table]:
    """Two splits, one for each reading task."""
    half = ROWS // 2
    return [pa.table([[n % 100 for n in range(half)], list(range(half))], schema=SCHEMA) for _ in range(2)]


def aggregated(rows: ps.Stream, out: Path) -> None:
    totals = rows.filter(ps.field("v") >= 0).aggregate(["k"], total=("v", "sum"), exchange="key")
    totals.gather().write_parquet(out)


@contextmanager
def warm_job(run: Run, folder: Path, numbers: Iterator[int]) -> Iterator[Any]:
    """A job that has drained one window."""
    name = f"warm-{next(numbers)}"
    flow = ps.Flow(name, lanes=2)
    aggregated(flow.from_split_sets(SCHEMA, name="rows"), folder / name)
    with run(flow, parallelism=2) as job:
        job.add_splits({"rows": split_set()})
        job.request_barrier().wait(PATIENCE)
        yield job


def one_by_one(job: Any) -> float:
    """Seconds for a split set, waiting for each."""
    began = perf_counter()
    for _ in range(SETS):
        job.add_splits({"rows": split_set()})
        job.request_barrier().wait(PATIENCE)
    return (perf_counter() - began) / SETS


def queued_ahead(job: Any) -> float:
    """Seconds for a split set, waiting for the last."""
    began = perf_counter()
    for _ in range(SETS):
        job.add_splits({"rows": split_set()})
        barrier = job.request_barrier()
    barrier.wait(PATIENCE)
    return (perf_counter() - began) / SETS


def new_jobs(run: Run, folder: Path, numbers: Iterator[int]) -> float:
    """Seconds for a split set on actors of its own."""
    began = perf_counter()
    for _ in range(NEW_JOBS):
        name = f"new-{next(numbers)}"
        flow = ps.Flow(name, lanes=2)
        aggregated(flow.from_tables(split_set(), name="rows"), folder / name)
        run(flow, parallelism=2).wait(PATIENCE)
    return (perf_counter() - began) / NEW_JOBS


def rows_of(where: str, run: Run) -> list[Row]:
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as found:
        folder = Path(found)
        with warm_job(run, folder, numbers) as job:
            peer = f"a new job for each split set, {where}"
            return [
                compare(
                    f"split set of {ROWS} rows on a warm job, {how}, {where}",
                    peer,
                    partial(measured, job),
                    partial(new_jobs, run, folder, numbers),
                    aim=AIM_TIMES_CHEAPER,
                    rounds=ROUNDS,
                )
                for how, measured in (("one by one", one_by_one), ("queued ahead", queued_ahead))
            ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--no-ray", action="store_true", help="leave out what needs Ray")
    with_ray = not parser.parse_args().no_ray
    rows = rows_of("embedded", ps.run_local) + (rows_of("on Ray", ps.run) if with_ray else [])
    report(rows, results_folder() / "job_barrier.json")


if __name__ == "__main__":
    main()

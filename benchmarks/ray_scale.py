"""A job on Ray as it gets wider: 1, 2, 4 and 8 subtasks on the cores that there are; and a cluster of many workers.

Run it as ``python benchmarks/ray_scale.py``; the result goes to ``benchmarks/results/ray_scale.json``. ``--only
subtasks`` or ``--only workers`` makes one part; ``--workers 25 --raylets 5 --minutes 10`` is the large form of it.

- *Subtasks*: Parquet → filter → project → group by → Parquet, a new job each time, with as many readers as groupings.
  *Running*: from when all tasks run until all rows are visible. *Processor*: of all of the job's processes by then,
  their starts included. More subtasks than cores cannot be faster; what they cost besides is what is measured.
- *Workers*: Ray's multi-node test cluster, several raylets on this machine, and one job with so many subtasks that
  reads at a pace, groups by key behind an exchange (each subtask is connected to each), and takes a checkpoint every
  five seconds. Seconds until all tasks run; rows a second beside the pace; how long checkpoints take; the coordinator's
  share of a core; and the sums of all rows must be exact. The load of the machine is told beside it, for processes
  wait for a core long before the job is busy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from checkpoint_work import Maker
from house_data import bid_files

import penstock as ps
from harness import Row, make_row, report, results_folder, sized

SUBTASKS = sized((1, 2, 4, 8), (1, 2))
ROWS, FILES = sized((4_000_000, 8), (8_000, 2))
ROUNDS = sized(3, 1)
WORKERS, RAYLETS, MINUTES = sized((25, 5, 3.0), (2, 1, 0.05))
"""A subtask has two tasks here, each a process of its own."""
PACE_OF_ONE = sized(20_000.0, 200_000.0)
"""Rows a second of each subtask."""
SPLIT_ROWS = sized(8_192, 1_024)
EVERY = sized("5s", "0.5s")
PATIENCE = 1_200.0
MEMORY = 150 * 2**20
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "penstock"}


@dataclass(frozen=True, slots=True)
class Run:
    """Of a job: seconds until all tasks ran, seconds from then until the rows were visible, processor seconds."""

    started: float
    running: float
    processor: float


def processor_time(pids: list[int]) -> float:
    """Of processes that live."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def processes_of(job: Any) -> list[int]:
    return [identity.pid for identity in job.identities().values()] + [job.coordinator_process()]


def once(subtasks: int) -> Run:
    """A whole new job. The last of its processes are asked for their time when the rows are visible."""
    folder = bid_files(ROWS, "parquet", FILES)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        flow = ps.Flow("scale")
        bids = flow.read_parquet(folder, columns=["auction", "price"]).filter(ps.field("price") > 1000)
        euros = bids.project("auction", euros=ps.field("price") * 0.01)
        euros.aggregate(["auction"], exchange="key", n="count", total=("euros", "sum")).write_parquet(f"{name}/out")
        began = time.perf_counter()
        job = ps.run(flow, parallelism=subtasks)
        job.wait_until(lambda status: status.state not in {"created", "claiming", "deploying"}, PATIENCE)
        running = time.perf_counter()
        pids = processes_of(job)
        spent = processor_time(pids)
        while not job.status().is_over:
            try:
                spent = max(spent, processor_time(pids))
            except OSError:  # they are ending
                break
            time.sleep(0.02)
        job.wait(PATIENCE)
        over = time.perf_counter()
        assert ds.dataset(f"{name}/out").count_rows()
    return Run(running - began, over - running, spent)


def subtask_rows(rounds: int) -> list[Row]:
    """Each width against one subtask."""
    import ray

    ray.init(address="local", num_cpus=4 * max(SUBTASKS), include_dashboard=False, **QUIET)
    try:
        once(SUBTASKS[-1])
        found: dict[int, list[Run]] = {subtasks: [] for subtasks in SUBTASKS}
        for _ in range(rounds):
            for subtasks in SUBTASKS:
                found[subtasks].append(once(subtasks))
    finally:
        ray.shutdown()
    rows = []
    one = found[SUBTASKS[0]]
    for subtasks in SUBTASKS[1:]:
        runs, work = found[subtasks], f"{subtasks} subtasks, filter → project → group by on Ray"
        for what, pick in (("running", _running), ("start", _started), ("processor", _processor)):
            sides = [pick(run) for run in runs], [pick(run) for run in one]
            rows.append(make_row(f"{work}: {what}", "1 subtask", sides, "s", 0.0, False))
    return rows


def _running(run: Run) -> float:
    return run.running


def _started(run: Run) -> float:
    return run.started


def _processor(run: Run) -> float:
    return run.processor


# ---------------------------------------------------------------------- many workers


@contextmanager
def cluster_of(raylets: int, workers: int) -> Iterator[None]:
    """A head and so many raylets, with room for the tasks of ``workers`` subtasks."""
    import ray
    from ray.cluster_utils import Cluster

    each = {"num_cpus": -(-2 * workers // raylets) + 2, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": MEMORY})
    try:
        for _ in range(raylets):
            cluster.add_node(**each)
        ray.init(address=cluster.address, **QUIET)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def wide_flow(workers: int, minutes: float, out: Path) -> tuple[ps.Flow, int]:
    """The flow, and how many rows it reads."""
    splits = max(workers, round(workers * PACE_OF_ONE * minutes * 60 / SPLIT_ROWS))
    flow = ps.Flow("wide", lanes=max(128, 2 * workers))
    made = flow.from_source(Maker(splits, SPLIT_ROWS), rate=workers * PACE_OF_ONE)
    counted = made.aggregate(by=["key"], exchange="key", rows="count", total=("n", "sum"))
    counted.write_parquet(str(out))
    return flow, splits


def worker_rows(workers: int, raylets: int, minutes: float) -> list[Row]:
    """One run. Raises AssertionError if a row came twice or not at all."""
    with cluster_of(raylets, workers), tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        flow, splits = wide_flow(workers, minutes, folder / "out")
        began = time.perf_counter()
        job = ps.run(flow, parallelism=workers, checkpoints=ps.Checkpoints(folder / "state", every=EVERY))
        job.wait_until(lambda status: status.state not in {"created", "claiming", "deploying"}, PATIENCE)
        started, pids, load = time.perf_counter() - began, processes_of(job), os.getloadavg()[0]
        running, coordinator = time.perf_counter(), job.coordinator_process()
        before, all_before = processor_time([coordinator]), processor_time(pids)
        spent, all_spent, at = 0.0, 0.0, running
        while not job.status().is_over:
            try:
                spent, all_spent = processor_time([coordinator]) - before, processor_time(pids) - all_before
                at = time.perf_counter()
            except OSError:  # they are ending
                break
            time.sleep(1.0)
        job.wait(PATIENCE)
        seconds = time.perf_counter() - running
        overview, status = job.checkpoints(), job.status()
        taken = sorted(each.duration for each in overview.history if each.duration is not None)
        check_sums(folder / "out", splits)
        shutil.rmtree(folder / "out")
    rows, tasks = splits * SPLIT_ROWS, len(pids) - 1
    print(
        f"{tasks} tasks of {workers} subtasks on {raylets} raylets: "
        f"{started:.1f} s until all ran, then {seconds:.0f} s; "
        f"{status.checkpoints_completed} checkpoints, {status.checkpoints_failed} failed, {status.restarts} restarts; "
        f"load {load:.0f} at its start and {os.getloadavg()[0]:.0f} at its end",
        flush=True,
    )
    work = f"{tasks} tasks of {workers} subtasks on {raylets} raylets"
    share = 100 * spent / max(at - running, 0.001)
    return [
        one_row(f"{work}: until all run", started, "s"),
        one_row(f"{work}: rows a second", rows / seconds / 1e6, "M rows/s", workers * PACE_OF_ONE / 1e6, higher=True),
        one_row(f"{work}: checkpoint, median", median(taken) if taken else 0.0, "s"),
        one_row(f"{work}: checkpoint, longest", max(taken, default=0.0), "s"),
        one_row(f"{work}: coordinator's share of a core", share, "%"),
        one_row(f"{work}: processor seconds of all", all_spent, "s"),
    ]


def one_row(work: str, ours: float, unit: str, theirs: float = 0.0, *, higher: bool = False) -> Row:
    """A figure of a single run, against the pace that was asked for, or beside nothing."""
    peer = "the pace" if theirs else "itself"
    return make_row(work, peer, ([max(ours, 1e-9)], [theirs or max(ours, 1e-9)]), unit, 0.0, higher)


def check_sums(out: Path, splits: int) -> None:
    """Each row has been counted once."""
    table: pa.Table = ds.dataset(out).to_table()
    assert sum(table["rows"].to_pylist()) == splits * SPLIT_ROWS
    assert sum(table["total"].to_pylist()) == splits * SPLIT_ROWS * (SPLIT_ROWS - 1) // 2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("subtasks", "workers"), help="a part of it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--raylets", type=int, default=RAYLETS)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    asked = parser.parse_args()
    rows: list[Row] = []
    if asked.only != "workers":
        rows += subtask_rows(asked.rounds)
    if asked.only != "subtasks":
        rows += worker_rows(asked.workers, asked.raylets, asked.minutes)
    report(rows, results_folder() / "ray_scale.json")


if __name__ == "__main__":
    main()

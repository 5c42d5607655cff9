"""A job on Ray whose checkpoints lie in an object store, and what happens to it. Run in a process of its own: those of
a Ray cluster know of a store what stood in the environment at its start.

``python ray_on_store.py CASE BUCKET FOLDER``: the store is the one that the environment leads to, behind a proxy.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import dataset

import penstock as ps
from support.store_proxy import Asked, StoreProxy

GROUPS, SPLITS, ROWS = 3000, 60, 250
PATIENCE = 120.0
OUTAGE = 2.0
"""Seconds for which the store is gone."""


def make_flow(out: Path, rate: float) -> ps.Flow:
    """Counts of many groups, which change with every row: a state that is in a file at every checkpoint."""
    flow = ps.Flow("stored", lanes=4)
    tables = [pa.table({"g": [(split * ROWS + row) * 7919 % GROUPS for row in range(ROWS)]}) for split in range(SPLITS)]
    rows = flow.from_tables(tables, name="rows", rate=rate)
    rows.aggregate(["g"], n="count").write_parquet(out, name="out")
    return flow


@contextmanager
def cluster() -> Iterator[None]:
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


def kill(job: Any) -> None:
    """The last task's process; returns once its successor runs."""
    restarts = job.status().restarts
    job.kill_task(job.tasks()[-1])
    wait_restarted(job, restarts)


def wait_restarted(job: Any, restarts: int) -> None:
    """Until it has restarted more often and runs, which it says only when all tasks do."""
    job.wait_until(lambda status: status.restarts > restarts and status.state == "running", PATIENCE)


def copies(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*/penstock-copies-*/*/*") if path.is_file()]


def killed(job: Any, store: StoreProxy, folder: Path) -> None:
    kill(job)


def damaged(job: Any, store: StoreProxy, folder: Path) -> None:
    """All copies, time and again, until somebody has found one."""
    while not any(task.copies.damaged for task in job.statistics().values()):
        before = job.status()
        job.kill_task(job.tasks()[-1])
        while job.status().restarts == before.restarts:
            for path in copies(folder):
                path.write_bytes(b"\0" * path.stat().st_size)
        job.wait_until(lambda status: status.state == "running", PATIENCE)


def store_gone(job: Any, store: StoreProxy, folder: Path) -> None:
    """While processes die, and while none does; the store loses requests, refuses them, and does not answer."""
    faults: tuple[Callable[[Asked], Any], ...] = (lambda _: "lost request", lambda _: 503, lambda _: "lost answer")
    for number, fault in enumerate(faults):
        store.fault = fault
        restarts = job.status().restarts
        if number != 1:
            job.kill_task(job.tasks()[-1 - number])
        time.sleep(OUTAGE)
        store.calm()
        if number != 1:
            wait_restarted(job, restarts)
        completed = job.status().checkpoints_completed
        job.wait_until(lambda status, least=completed: status.checkpoints_completed > least, PATIENCE)
    job.kill_coordinator()


CASES: dict[str, Callable[[Any, StoreProxy, Path], None]] = {
    "killed": killed,
    "damaged": damaged,
    "store gone": store_gone,
}


def undergo(case: str, bucket: str, folder: Path) -> dict[str, Any]:
    """Run the job, let it happen, and say what was read from where and which rows are wrong."""
    with StoreProxy(os.environ["AWS_ENDPOINT_URL"]) as store:
        os.environ["AWS_ENDPOINT_URL"] = store.endpoint
        os.environ["RAY_TMPDIR"] = tempfile.gettempdir()  # paths of its sockets must be short
        os.environ["TMPDIR"] = str(folder / "machine")  # where copies lie, for all processes
        (folder / "machine").mkdir()
        with cluster():
            return run(CASES[case], store, bucket, folder)


def run(
    happens: Callable[[Any, StoreProxy, Path], None],
    store: StoreProxy,
    bucket: str,
    folder: Path,
) -> dict[str, Any]:
    checkpoints = ps.Checkpoints(
        f"s3://{bucket}/state", every="200ms", max_restarts=20, tolerable_failures=1000, restart_delay=0.05
    )
    with ps.run(make_flow(folder / "out", 500.0), checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 3, PATIENCE)
        asked = len(store.requests)
        happens(job, store, folder)
        read = [key for method, key, _ in store.requests[asked:] if method == "GET" and key.endswith(".arrow")]
        found = [task.copies for task in job.statistics().values()]
        status = job.wait(PATIENCE).status()
        wrong = "" if job.audit().clean else str(job.audit())
    rows = dataset.dataset(folder / "out", format="parquet").to_table().sort_by("g")
    counts = [SPLITS * ROWS // GROUPS] * GROUPS
    if rows["g"].to_pylist() != list(range(GROUPS)) or rows["n"].to_pylist() != counts:
        wrong += f" {rows.num_rows} rows, or others"
    return {
        "found": sum(each.found for each in found),
        "missing": sum(each.missing for each in found),
        "damaged": sum(each.damaged for each in found),
        "read": len(read),
        "restarts": status.restarts,
        "generation": status.generation,
        "left": [path.name for path in folder.glob("*/penstock-copies-*")],
        "wrong": wrong,
    }


def main(case: str, bucket: str, folder: str) -> None:
    print(json.dumps(undergo(case, bucket, Path(folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])

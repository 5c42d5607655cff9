"""One query of TPC-H, by one engine, on so many threads: wall, processor time and peak memory of this process."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from side import Answer, read_folder, serve, settings
from tpch_queries import NAMES, flow_of
from tpch_rows import texts, told

Rows = Iterable[Iterable[Any]]
Work = Callable[[], Rows]


def penstock(number: int, folder: Path, threads: int) -> Work:
    import penstock as ps

    def run() -> Rows:
        flow = flow_of(number, folder, "gather")
        job = ps.run_local(flow, threads=threads, parallelism=threads).wait()
        return [row.values() for row in job.result("rows").to_pylist()]

    return run


def penstock_ray(number: int, folder: Path, threads: int) -> Work:
    """On a cluster of this machine that is running when the work begins; the job's start and end are in its time. Its
    rows go to a file, as no actor hands them to this process."""
    from ray_cluster import join_ray

    import penstock as ps

    join_ray()

    def run() -> Rows:
        with TemporaryDirectory() as out:
            ps.run(flow_of(number, folder, "key", Path(out)), parallelism=threads).wait()
            return [row.values() for records in read_folder(out) for row in records.to_pylist()]

    return run


def duckdb(number: int, folder: Path, threads: int) -> Work:
    import duckdb as engine

    connection = engine.connect(config={"threads": threads})
    for name in NAMES:
        connection.execute(f"create view {name} as from read_parquet('{folder}/{name}.parquet')")
    return lambda: connection.execute(texts()[number - 1]).fetchall()


def datafusion(number: int, folder: Path, threads: int) -> Work:
    os.environ["TOKIO_WORKER_THREADS"] = str(threads)
    from datafusion import SessionConfig, SessionContext

    context = SessionContext(SessionConfig().with_target_partitions(threads))
    for name in NAMES:
        context.register_parquet(name, str(folder / f"{name}.parquet"))
    return lambda: [row.values() for row in context.sql(texts()[number - 1]).to_arrow_table().to_pylist()]


def polars(number: int, folder: Path, threads: int) -> Work:
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    from tpch_polars import frame_of

    return lambda: frame_of(number, folder).collect(engine="streaming").rows()


ENGINES: dict[str, Callable[[int, Path, int], Work]] = {
    "penstock": penstock,
    "penstock on Ray": penstock_ray,
    "duckdb": duckdb,
    "datafusion": datafusion,
    "polars": polars,
}


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    asked = settings()
    work = ENGINES[asked["engine"]](asked["query"], Path(asked["folder"]), asked["threads"])

    def run() -> Answer:
        began, used = time.perf_counter(), processor_seconds()
        rows = work()
        seconds, cpu = time.perf_counter() - began, processor_seconds() - used
        return {"seconds": seconds, "cpu": cpu, "peak": peak_memory(), "rows": told(rows)}

    serve(run, asked["engine"].partition(" ")[0])


def peak_memory() -> int:
    """The most bytes that this process has held, libraries and all."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()

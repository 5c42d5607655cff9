"""Our job on a Ray cluster with two CPUs: Parquet → filter → project → Parquet, with or without a group by.

A run is a whole new job on the warm cluster, from ``ps.run`` to the end of ``wait``. Beside it stands ``running``: the
seconds from when all tasks ran to when all rows were visible, which leaves out the start and the end of processes.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from bid_flows import over_parquet
from ray_cluster import join_ray
from side import Answer, digest, read_folder, serve, settings

import penstock as ps


def main() -> None:
    asked = settings()
    out = Path(asked["out"])
    join_ray()

    def run() -> Answer:
        shutil.rmtree(out, ignore_errors=True)
        flow = over_parquet(asked["folder"], asked["kind"], str(out))
        started = time.perf_counter()
        job = ps.run(flow, parallelism=2)
        job.wait_until(lambda status: status.state not in {"created", "claiming", "deploying"})
        running = time.perf_counter()
        job.wait_until(lambda status: status.is_over)
        over = time.perf_counter()
        job.wait()
        ended = time.perf_counter()
        rows = digest(read_folder(out))
        return {"seconds": ended - started, "running": over - running, "digest": rows, "rows": int(rows.split("-")[0])}

    serve(run, "penstock", "pyarrow", "ray")


if __name__ == "__main__":
    main()

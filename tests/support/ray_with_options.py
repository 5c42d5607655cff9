"""A job on Ray with all that it has in a bucket, of which neither this process nor the cluster's know anything but what
``storage_options`` say. The last task's process is killed on the way, and what comes then is asked for by a new one.

``python ray_with_options.py BUCKET``, with the options as JSON on the standard input.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

import pyarrow as pa
from pyarrow import dataset

import penstock as ps
from penstock.engine.files.paths import resolve
from support.ray_on_store import PATIENCE, cluster, kill


def run(bucket: str, options: dict[str, str]) -> dict[str, Any]:
    """The job's end, and the rows that it has written."""
    flow = ps.Flow("daily", lanes=4)
    rows = flow.read_parquet(f"s3://{bucket}/in", name="rows", rate=200.0, storage_options=options)
    rows.rebalance().write_parquet(f"s3://{bucket}/out", name="out", storage_options=options)
    checkpoints = ps.Checkpoints(
        f"s3://{bucket}/state", every="200ms", max_restarts=20, tolerable_failures=1000, storage_options=options
    )
    with ps.run(flow, checkpoints=checkpoints, audit="content") as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)
        kill(job)
        print(repr(job), repr(job.status()), *job.why(), repr(checkpoints), flow.explain())
        status = job.wait(PATIENCE).status()
        clean = job.audit().clean
    filesystem, folder = resolve(f"s3://{bucket}/out")
    found: pa.Table = dataset.dataset(folder, format="parquet", filesystem=filesystem).to_table()
    return {"state": status.state, "restarts": status.restarts, "clean": clean, "rows": sorted(found["n"].to_pylist())}


if __name__ == "__main__":
    os.environ["RAY_TMPDIR"] = tempfile.gettempdir()  # paths of its sockets must be short
    with cluster():
        print(json.dumps(run(sys.argv[1], json.load(sys.stdin))))

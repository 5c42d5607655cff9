"""Runs plain PySpark in a process of its own: a script that hands a frame over and is killed before it is done.

    python spark_killed.py FOLDER RATE

Nothing ends by itself before the kill: the last partition waits for the file ``go``, and at some rows a second the job
takes minutes, though its first rows are visible at once: the first partition has few. ``marks`` gets a file for each
partition that Spark begins to compute, ``told`` what a run that came to its end has said.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as ps
from support.spark_plain import plain_session

PARTITIONS, EACH, FEW = 4, 500, 4
LAST = PARTITIONS - 1


def ids() -> list[int]:
    """Those of the frame."""
    return [*range(FEW), *range(EACH, PARTITIONS * EACH)]


def frame_of(spark: Any, folder: Path) -> Any:
    def marked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        (folder / "marks" / f"{context.partitionId()}-{context.taskAttemptId()}-{os.getpid()}").touch()
        while context.partitionId() == LAST and not (folder / "go").exists():
            time.sleep(0.05)
        yield from batches

    rows = spark.range(0, PARTITIONS * EACH, 1, PARTITIONS).where(f"id < {FEW} OR id >= {EACH}")
    return rows.mapInArrow(marked, "id long")


def main() -> None:
    folder, rate = Path(sys.argv[1]), float(sys.argv[2])
    spark = plain_session(folder)
    flow = ps.Flow("killed", lanes=1)
    flow.from_spark(frame_of(spark, folder), name="rows", rate=rate).write_parquet(folder / "out")
    with ps.run_local(flow, checkpoints=ps.Checkpoints(folder / "state", every="0.2s")) as job:
        clean = job.wait(200).audit().clean
    spark.stop()
    (folder / "told").write_text(json.dumps({"clean": clean}))


if __name__ == "__main__":
    main()

"""A script with a Spark session on Ray that runs the jobs of some plans, one after the other: what accidents happen to.

    python spark_story.py FOLDER …

Each folder has a ``plan.json`` (:class:`Plan`) and gets what the job leaves: ``out``, ``state``, ``marks`` (a file for
each partition that Spark has begun to compute) and, a line a run, ``told``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

ROWS, PARTITIONS, LANES = 2_000, 12, 2
SCHEMA = "id long, value long"
DEADLINE = 200.0


@dataclass(frozen=True)
class Plan:
    """``shuffled``: the rows come in another order, in other partitions, whenever Spark computes them."""

    way: Literal["stage", "lease"]
    shuffled: bool = False
    checkpoints: bool = True
    #: rows a second of each reader; 0: as many as there are
    rate: float = 0.0
    #: how many partitions were begun when an executor is killed; 0: none is
    executor_dies_at: int = 0

    def write(self, folder: Path) -> Path:
        (folder / "marks").mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(asdict(self)))
        return folder


def in_any_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from random import SystemRandom

    for batch in batches:
        order = list(range(batch.num_rows))
        SystemRandom().shuffle(order)
        yield batch.take(pa.array(order))


def frame_of(spark: Any, plan: Plan, folder: Path) -> Any:
    """A frame that takes a fifth of a second a partition, and marks each that it begins."""

    def marked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        (folder / "marks" / f"{context.partitionId()}-{context.taskAttemptId()}-{os.getppid()}").touch()
        time.sleep(0.2)
        yield from batches

    if plan.shuffled:
        frame = spark.range(0, ROWS, 1, 4).mapInArrow(in_any_order, "id long").rdd.repartition(PARTITIONS)
        frame = frame.toDF("id long")
    else:
        frame = spark.range(0, ROWS, 1, PARTITIONS)
    return frame.selectExpr("id", "id * 7 AS value").mapInArrow(marked, SCHEMA)


def run_job(frame: Any, plan: Plan, folder: Path) -> dict[str, Any]:
    """What the job came to, as the script's user is told."""
    import penstock as ps

    flow = ps.Flow("story", lanes=LANES)  # six partitions each, so six rounds; a checkpoint stands between two of them
    flow.from_spark(frame, name="rows", handoff=plan.way, rate=plan.rate).write_parquet(folder / "out")
    settings = ps.Checkpoints(folder / "state", every="0.3s", retention="never" if plan.way == "lease" else "always")
    try:
        with ps.run(flow, checkpoints=settings if plan.checkpoints else None) as job:
            job.wait(DEADLINE)  # which compares the output with what the sink has counted
            kept = plan.checkpoints and plan.way == "stage"
            return {"state": job.status().state, "clean": job.audit().clean if kept else None}
    except ps.errors.PenstockError as error:
        return {"state": "failed", "clean": False, "error": str(error)}


def tell(folder: Path, told: dict[str, Any]) -> None:
    with (folder / "told").open("a") as file:
        print(json.dumps(told), file=file)


def with_an_accident(spark: Any, plan: Plan, folder: Path) -> None:
    """The job whose executor dies; where it fails and says so, the same again."""
    from support.spark_disasters import kill_amid

    killed: list[int] = []
    killer = kill_amid(folder / "marks", plan.executor_dies_at, killed)
    told = run_job(frame_of(spark, plan, folder), plan, folder)
    killer.join()
    tell(folder, {**told, "killed": killed})
    if told["state"] != "finished":
        tell(folder, run_job(frame_of(spark, plan, folder), plan, folder))


def main() -> None:
    import penstock as ps

    folders = [Path(name) for name in sys.argv[1:]]
    plans = [Plan(**json.loads((folder / "plan.json").read_text())) for folder in folders]
    with ExitStack() as stack:
        spark = stack.enter_context(ps.spark.session("story", cores=1, brief=True))
        for folder, plan in zip(folders, plans, strict=True):
            if plan.executor_dies_at:
                with_an_accident(spark, plan, folder)
            else:
                tell(folder, run_job(frame_of(spark, plan, folder), plan, folder))


if __name__ == "__main__":
    main()

"""Runs plain PySpark in a process of its own, stages a frame of 2,000 small partitions, and leaves ``facts.json``; with
Spark on Ray ``spark_many_leased`` leases it.

python spark_many.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

import penstock as ps
from support.spark_plain import plain_session

PARTITIONS, ROWS = 2_000, 6_000


def many(spark: Any, folder: Path, handoff: Literal["stage", "lease"]) -> ps.Flow:
    flow = ps.Flow("many")
    frame = spark.range(0, ROWS, 1, PARTITIONS)
    flow.from_spark(frame, name="rows", handoff=handoff).write_parquet(folder / "out")
    return flow


def is_exact(job: Any) -> bool:
    """Whether the output has the frame's rows, each once."""
    return sorted(job.output().to_table()["id"].to_pylist()) == [*range(ROWS)]


def main() -> None:
    folder = Path(sys.argv[1])
    spark = plain_session(folder)
    with ps.run_local(many(spark, folder, "stage"), checkpoints=folder / "state", parallelism=2) as job:
        facts = {"clean": job.wait(300).audit().clean, "exact": is_exact(job)}
    facts["files"] = len(list((folder / "state").glob("many/spark/rows/*/*.parquet")))
    spark.stop()
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()

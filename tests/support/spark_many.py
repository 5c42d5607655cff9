"""Runs plain PySpark in a process of its own, stages a frame of 2,000 small partitions, and leaves ``facts.json``.

python spark_many.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import penstock as ps
from support.spark_plain import plain_session

PARTITIONS, ROWS = 2_000, 6_000


def main() -> None:
    folder = Path(sys.argv[1])
    spark = plain_session(folder)
    flow = ps.Flow("many")
    flow.from_spark(spark.range(0, ROWS, 1, PARTITIONS), name="rows").write_parquet(folder / "out")
    with ps.run_local(flow, checkpoints=folder / "state", parallelism=2) as job:
        clean = job.wait(300).audit().clean
        found = job.output().to_table()["id"].to_pylist()
    files = len(list((folder / "state").glob("many/spark/rows/*/*.arrow")))
    spark.stop()
    (folder / "facts.json").write_text(
        json.dumps({"exact": sorted(found) == [*range(ROWS)], "clean": clean, "files": files})
    )


if __name__ == "__main__":
    main()

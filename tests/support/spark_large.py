"""Runs Spark on Ray with an executor of 1 GB in a process of its own, hands one partition of 600 MB over in both ways,
and leaves ``facts.json``.

python spark_large.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

import pyarrow.compute as pc

import penstock as ps
from support.spark_big import SCHEMA, measured, texts

ROWS = 600


def handed_over(frame: Any, handoff: Literal["stage", "lease"], folder: Path) -> dict[str, Any]:
    """What the job finds of the rows, or why it has ended."""
    flow = ps.Flow(handoff)
    rows = flow.from_spark(frame, name="rows", handoff=handoff)
    rows.map_batches(measured, SCHEMA).write_parquet(folder / handoff)
    try:
        with ps.run(flow) as job:
            job.wait(240)
            found = job.output().to_table()
    except ps.errors.PenstockError as error:
        return {"failed": str(error)}
    return {
        "ids": sorted(found["id"].to_pylist()) == [*range(ROWS)],
        "lengths": found["length"].unique().to_pylist(),
        "same": pc.all(found["same"]).as_py(),
    }


def executors(spark: Any) -> str:
    """The addresses of those that live; one that comes back has another."""
    return str(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" "))


def main() -> None:
    folder = Path(sys.argv[1])
    with ps.spark.session("large", cores=1, brief=True, memory="1g") as spark:
        facts: dict[str, Any] = {"executors_at_first": executors(spark)}
        frame = texts(spark, ROWS)
        facts["stage"] = handed_over(frame, "stage", folder)
        facts["lease"] = handed_over(frame, "lease", folder)
        facts["executors_at_the_end"] = executors(spark)
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()

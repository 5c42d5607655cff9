"""Runs Spark on Ray in a process of its own, leases the frame of ``spark_many``, and leaves ``facts.json``.

python spark_many_leased.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import penstock as ps
from support.spark_many import is_exact, many


def main() -> None:
    folder = Path(sys.argv[1])
    with ps.spark.session("many", cores=1, brief=True) as spark, ps.run(many(spark, folder, "lease")) as job:
        job.wait(1000)  # Spark is asked for four partitions at a time: 500 times
        facts = {"exact": is_exact(job), "released": job.spark_released, "splits": len(job.plan.sources["rows"].splits)}
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()

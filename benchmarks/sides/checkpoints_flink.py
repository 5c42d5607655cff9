"""The slow function of ``checkpoint_pressure.py`` as a Python function of Flink's on the mini cluster of its wheel: two
slots, exactly once, unaligned checkpoints every second, 0.1 ms a row. What Flink tells of its checkpoints.
"""

from __future__ import annotations

import json
import time
import urllib.request
from statistics import median
from typing import Any

import java_home
from side import Answer, serve, settings

PORT = 18081


def main() -> None:
    java_home.ensure()
    from pyflink.table import DataTypes, EnvironmentSettings, TableEnvironment
    from pyflink.table.udf import udf

    asked = settings()
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    options = {
        "parallelism.default": "2",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.dir": f"file://{asked['state']}",
        "rest.port": str(PORT),
        "rest.bind-port": str(PORT),
        "taskmanager.memory.managed.size": "512m",
    }
    for name, value in options.items():
        tables.get_config().set(name, value)
    tables.create_temporary_function("slow", udf(_slow, result_type=DataTypes.BIGINT()))
    tables.execute_sql("CREATE TABLE made (n BIGINT) WITH ('connector' = 'datagen', 'rows-per-second' = '1000000')")
    tables.execute_sql("CREATE TABLE nowhere (n BIGINT) WITH ('connector' = 'blackhole')")

    def run() -> Answer:
        job = tables.execute_sql("INSERT INTO nowhere SELECT slow(n) FROM made").get_job_client()
        while any(vertex["status"] != "RUNNING" for vertex in _ask(f"/{job.get_job_id()}")["vertices"]):
            time.sleep(0.2)
        time.sleep(asked["seconds"])
        found = _ask(f"/{job.get_job_id()}/checkpoints")
        job.cancel().result()
        took = [one["end_to_end_duration"] / 1000 for one in found["history"] if one["status"] == "COMPLETED"]
        counts = {name: found["counts"][name] for name in ("completed", "failed", "in_progress")}
        return {**counts, "complete": median(took) if took else asked["seconds"]}

    serve(run, "apache-flink")


def _slow(n: int) -> int:
    time.sleep(1e-4)
    return n


def _ask(what: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://localhost:{PORT}/jobs{what}") as answer:
        return dict(json.load(answer))


if __name__ == "__main__":
    main()

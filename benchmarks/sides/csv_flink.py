"""PyFlink SQL over the same CSV on the mini cluster of its wheel: streaming, exactly once, a checkpoint every second,
two slots; keyed count, min, max and sum into ``blackhole``, or the projection alone.

Mini-batches of one second and object reuse are on: without them Flink tells every change of every group. ``running``
is the running time that Flink itself tells of the job; ``seconds`` holds its submission too. For ``"check"`` the same
query runs once in batch mode and its rows are digested. Flink's CSV format cannot skip a header, which becomes a row
of nulls: ``WHERE`` drops it.
"""

from __future__ import annotations

import time

import java_home
from side import Answer, digest, serve, settings

COLUMNS = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, `at` BIGINT"
QUERIES = {
    "group": "SELECT auction, COUNT(*) AS n, MIN(price) AS least, MAX(price) AS most, SUM(price) AS total FROM bids "
    "WHERE auction > 0 GROUP BY auction",
    "project": "SELECT auction, bidder, price * CAST(0.01 AS DOUBLE) AS euros FROM bids WHERE auction > 0",
}
SINKS = {
    "group": "auction BIGINT, n BIGINT, least BIGINT, most BIGINT, total BIGINT",
    "project": "auction BIGINT, bidder BIGINT, euros DOUBLE",
}


def main() -> None:
    java_home.ensure()
    import pyarrow as pa
    from pyflink.table import EnvironmentSettings, TableEnvironment

    asked = settings()
    checking = asked.get("runner") == "check"
    mode = EnvironmentSettings.in_batch_mode() if checking else EnvironmentSettings.in_streaming_mode()
    tables = TableEnvironment.create(mode)
    options = {
        "parallelism.default": "2",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": f"file://{asked['state']}",
        "pipeline.object-reuse": "true",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "1 s",
        "table.exec.mini-batch.size": "50000",
        "taskmanager.memory.managed.size": "512m",
    }
    for name, value in options.items():
        if not checking or not name.startswith(("execution.checkpointing", "table.exec.mini")):
            tables.get_config().set(name, value)
    tables.execute_sql(
        f"CREATE TABLE bids ({COLUMNS}) WITH ('connector' = 'filesystem', 'path' = 'file://{asked['folder']}', "
        "'format' = 'csv', 'csv.ignore-parse-errors' = 'true')"
    )
    kind = asked["kind"]
    tables.execute_sql(f"CREATE TABLE nowhere ({SINKS[kind]}) WITH ('connector' = 'blackhole')")

    def run() -> Answer:
        started = time.perf_counter()
        result = tables.execute_sql(f"INSERT INTO nowhere {QUERIES[kind]}")
        result.wait()
        seconds = time.perf_counter() - started
        running = result.get_job_client().get_job_execution_result().result().get_net_runtime() / 1000
        return {"seconds": seconds, "running": running}

    def check() -> Answer:
        rows = [tuple(row) for row in tables.execute_sql(QUERIES[kind]).collect()]
        batch = pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*rows, strict=True)],
                                           [str(number) for number in range(len(rows[0]))])  # fmt: skip
        return {"digest": digest([batch]), "rows": len(rows), "seconds": 0.0}

    serve(check if checking else run, "apache-flink")


if __name__ == "__main__":
    main()

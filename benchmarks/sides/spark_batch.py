"""Spark batch in one warm session with two threads: Parquet → filter → project → Parquet, perhaps with a group by."""

from __future__ import annotations

import time
from pathlib import Path

import java_home
from side import Answer, digest, read_folder, serve, settings


def main() -> None:
    java_home.ensure()
    from pyspark.sql import SparkSession, functions

    asked = settings()
    out = Path(asked["out"])
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "3g").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.getOrCreate()

    def run() -> Answer:
        started = time.perf_counter()
        bids = spark.read.parquet(asked["folder"]).where("price > 1000")
        bids = bids.select("auction", functions.expr("price * cast(0.01 as double)").alias("euros"))
        if asked["kind"] == "group":
            bids = bids.groupBy("auction").agg(
                functions.count("*").alias("n"),
                functions.min("euros").alias("least"),
                functions.max("euros").alias("most"),
                functions.sum("euros").alias("total"),
            )
        bids.write.mode("overwrite").parquet(str(out))
        seconds = time.perf_counter() - started
        rows = digest(read_folder(out))
        return {"seconds": seconds, "digest": rows, "rows": int(rows.split("-")[0])}

    serve(run, "pyspark")
    spark.stop()


if __name__ == "__main__":
    main()

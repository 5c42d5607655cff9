"""Spark structured streaming over the same CSV with two threads: a file a micro-batch, each of them a checkpoint; keyed
count, min, max and sum into ``noop``, or the projection alone. For ``"check"`` the query runs once in batch mode."""

from __future__ import annotations

import shutil
import time

import java_home
from side import Answer, digest, serve, settings


def main() -> None:
    java_home.ensure()
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession, functions

    asked = settings()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "3g").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.getOrCreate()
    schema = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, at BIGINT"

    def query(bids: DataFrame) -> DataFrame:
        if asked["kind"] == "project":
            return bids.select("auction", "bidder", functions.expr("price * cast(0.01 as double)").alias("euros"))
        return bids.groupBy("auction").agg(
            functions.count("*").alias("n"),
            functions.min("price").alias("least"),
            functions.max("price").alias("most"),
            functions.sum("price").alias("total"),
        )

    def run() -> Answer:
        shutil.rmtree(asked["state"], ignore_errors=True)
        started = time.perf_counter()
        reader = spark.readStream.schema(schema).option("header", True).option("maxFilesPerTrigger", 1)
        rows = query(reader.csv(asked["folder"]))
        mode = "append" if asked["kind"] == "project" else "update"
        writer = rows.writeStream.format("noop").outputMode(mode).option("checkpointLocation", asked["state"])
        writer.trigger(availableNow=True).start().awaitTermination()
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "running": seconds}

    def check() -> Answer:
        found = query(spark.read.schema(schema).option("header", True).csv(asked["folder"])).collect()
        columns = [pa.array(column) for column in zip(*found, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, [str(number) for number in range(len(columns))])
        return {"digest": digest([batch]), "rows": len(found), "seconds": 0.0}

    serve(check if asked.get("runner") == "check" else run, "pyspark")
    spark.stop()


if __name__ == "__main__":
    main()

"""The flights job's data prepared with PySpark: typed, cleaned, times in UTC, flights and weather co-partitioned.

Both frames are repartitioned by (origin, day) into the same number of partitions and sorted within them, so partition i
of one holds the same groups as partition i of the other, and their rows come in the same order each time. A hash
partitioner is used because a range partitioner samples: its boundaries change from run to run.

Works in any Spark session whose time zone is UTC. The executors read the CSV files from ``workspace``: on a cluster of
several machines that must be a folder they share.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..engine.core.errors import ConfigurationError
from .flights_data import FLIGHTS, PLANES, SHIFT_DAYS, SPLITS, WEATHER, WIND_LIMIT, ZONE, folder, unpack

_COLUMNS = {
    "flights.csv": (
        "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay long, arr_time int, "
        "sched_arr_time int, arr_delay long, carrier string, flight long, tailnum string, origin string, dest string, "
        "air_time long, distance long, hour long, minute long, time_hour timestamp"
    ),
    "weather.csv": (
        "origin string, year int, month int, day int, hour long, temp double, dewp double, humid double, "
        "wind_dir long, wind_speed double, wind_gust double, precip double, pressure double, visib double, "
        "time_hour timestamp"
    ),
    "planes.csv": (
        "tailnum string, built long, type string, manufacturer string, model string, engines long, seats long, "
        "speed long, engine string"
    ),
}


def frames(spark: Any, scale: int, splits: int | None, workspace: Path) -> tuple[Any, Any, pa.Table]:
    """Flights and weather as DataFrames, and planes, which is small, as a table."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    if zone != "UTC":
        raise ConfigurationError(f"the Spark session's time zone is {zone}", "set spark.sql.session.timeZone=UTC")
    count = splits or SPLITS * scale
    flights = _shifted(_flights(spark, workspace), scale, ["time_hour", "scheduled_departure", "departure"])
    weather = _shifted(_weather(spark, workspace), scale, ["time_hour"])
    return (
        _partitioned(_identified(flights), count, ["origin", "time_hour", "flight_id"]).select(FLIGHTS.names),
        _partitioned(weather, count, ["origin", "time_hour"]).select(WEATHER.names),
        collect(read(spark, "planes.csv", workspace).select(PLANES.names), PLANES).sort_by("tailnum"),
    )


def read(spark: Any, name: str, workspace: Path) -> Any:
    """One of the CSV files, typed."""
    target = workspace / name
    if not target.exists():
        workspace.mkdir(parents=True, exist_ok=True)
        unpack(workspace) if name == "flights.csv" else shutil.copy(folder() / name, target)
    return spark.read.csv(f"file://{target.absolute()}", schema=_COLUMNS[name], header=True, nullValue="NA")


def collect(frame: Any, schema: pa.Schema | None = None) -> pa.Table:
    """All rows of a frame as one table in this process."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = schema or to_arrow_schema(frame.schema)
    return pa.Table.from_batches(frame._collect_as_arrow(), to_arrow_schema(frame.schema)).cast(schema)


def _flights(spark: Any, workspace: Path) -> Any:
    from pyspark.sql import functions as f

    clock = f.col("sched_dep_time")
    wall = f.make_timestamp("year", "month", "day", (clock / 100).cast("int"), clock % 100, f.lit(0))
    raw = read(spark, "flights.csv", workspace).withColumn("scheduled_departure", f.to_utc_timestamp(wall, ZONE))
    seconds = f.unix_timestamp("scheduled_departure") + f.col("dep_delay") * 60
    return (
        raw.withColumn("departure", f.timestamp_seconds(seconds))
        .withColumn("delays", f.array("dep_delay", "arr_delay"))
        .withColumn("day", f.make_date("year", "month", "day"))
    )


def _weather(spark: Any, workspace: Path) -> Any:
    from pyspark.sql import functions as f

    raw = read(spark, "weather.csv", workspace).withColumn("day", f.make_date("year", "month", "day"))
    for name in ("wind_speed", "wind_gust"):
        raw = raw.withColumn(name, f.when(f.col(name) <= WIND_LIMIT, f.col(name)))
    return raw


def _shifted(frame: Any, scale: int, instants: list[str]) -> Any:
    """``scale`` copies, their days and instants moved; see ``flights_data``."""
    from pyspark.sql import functions as f

    copies = frame.withColumn("copy", f.explode(f.sequence(f.lit(0), f.lit(scale - 1))))
    days = f.col("copy") * SHIFT_DAYS
    for name in instants:
        moved = f.unix_micros(name) + days.cast("long") * 86_400_000_000
        copies = copies.withColumn(name, f.timestamp_micros(moved))
    return copies.withColumn("day", f.date_add("day", days))


def _identified(flights: Any) -> Any:
    from pyspark.sql import functions as f

    number = f.concat("carrier", f.col("flight").cast("string"))
    return flights.withColumn("flight_id", f.concat_ws("-", f.col("day").cast("string"), number, "origin"))


def _partitioned(frame: Any, count: int, order: list[str]) -> Any:
    return frame.repartition(count, "origin", "day").sortWithinPartitions(*order)

"""Runs one Spark session in a process of its own and leaves what it gave in a folder, for tests/spark to look at.

    python spark_stage.py FOLDER

Starting Spark takes half a minute, so all the tests share this run. What it leaves: ``flights`` and ``weather``, the
partitions of the flights job (one IPC file each), ``planes``, ``features`` and ``daily`` from the reference query, the
partitions of a frame with every column type (leased and staged, read in an actor, before and after Spark stopped), and
``facts.json``.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import feather

TYPES = (
    "id int, b byte, sh short, lo long, fl float, d double, bo boolean, bi binary, day date, ts timestamp, "
    "ntz timestamp_ntz, small decimal(12,3), large decimal(38,18), s string, al array<long>, "
    "st array<struct<x:int,y:string>>, nested struct<p:double,q:array<string>>, m map<string,long>"
)
ROWS = 12
PARTITIONS = 8


def typed_rows() -> list[tuple[Any, ...]]:
    """Rows of every type, with nulls, empty values, NaN, times before 1970 and characters beyond ASCII."""
    second = datetime.datetime(1969, 12, 31, 23, 59, 59, 1, datetime.UTC)
    return [
        (row, *(None,) * 17)
        if row % 3 == 2
        else (
            row,
            *(row - 5, -row, row * 2**40),
            *(row / 4, float("nan") if row == 4 else row / 7, row % 2 == 0, bytes([row, 255])),
            *(
                datetime.date(1960 + row * 7, 1, 1 + row),
                second,
                second.replace(year=2024, tzinfo=None),
            ),
            *(Decimal(row) / 8, Decimal("12345678901234567890.123456789012345678"), f"héllo-{row}☃" if row else ""),
            *([row, None] if row else [], [(row, "a"), (None, None)] if row else [], (row / 2, ["u", None])),
            {"k": row, "z": None} if row else {},
        )
        for row in range(ROWS)
    ]


def save(folder: Path, name: str, tables: list[pa.Table]) -> None:
    (folder / name).mkdir()
    for position, table in enumerate(tables):
        feather.write_feather(table, folder / name / f"{position:04}.arrow", compression="uncompressed")


def read_in_actor(source: Any) -> list[pa.Table]:
    """The rows of a source's splits, read by an actor that gets them inside a list: it borrows their references."""
    import ray

    @ray.remote(num_cpus=0)
    class Reader:
        def __init__(self, splits: list[Any], schema: pa.Schema) -> None:
            self.splits = splits
            self.schema = schema

        def read(self) -> list[pa.Table]:
            return [pa.Table.from_batches(split.open(0), self.schema) for split in self.splits]

        def after(self, row: int) -> list[int]:
            return [sum(batch.num_rows for batch in split.open(row)) for split in self.splits]

    splits = source.splits()
    reader = Reader.remote(list(splits), source.schema)
    tables: list[pa.Table] = ray.get(reader.read.remote())
    sizes = [table.num_rows for table in tables]
    assert [split.rows or size for split, size in zip(splits, sizes, strict=True)] == sizes
    assert ray.get(reader.after.remote(1)) == [max(0, size - 1) for size in sizes]
    return tables


def stage_types(spark: Any, folder: Path, facts: dict[str, Any]) -> Any:
    """Lease a frame of every type, and stage it twice; gives the lease."""
    from penstock.actors.spark.lease import lease
    from penstock.actors.spark_bridge import open_frame
    from penstock.engine.flow.handoff import Destination

    frame = spark.createDataFrame(typed_rows(), TYPES).repartition(PARTITIONS, "id").sortWithinPartitions("id")
    source = open_frame(frame)
    leased = lease(frame, source.schema, "types", group=3)
    save(folder, "types", read_in_actor(leased))
    leased.lease.wait_released(60)
    facts |= {"types_schema": source.schema.to_string(), "describe": leased.describe(), "kind": leased.kind}
    to = Destination("types", str(folder / "checkpoints"))
    first, again = source.handed_over("first", to), open_frame(frame).handed_over("again", to)
    save(folder, "types_staged", read_in_actor(first))
    facts |= {"fingerprint": first.fingerprint, "fingerprint_again": again.fingerprint}
    other = open_frame(frame.where("id <> 3")).handed_over("other", to)
    facts |= {"fingerprint_other": other.fingerprint, "partitions": partitions_of(first)}
    facts["partitions_other"] = partitions_of(other)
    empty = frame.where("id < 0")
    nothing = lease(empty, source.schema, "empty")
    save(folder, "empty", read_in_actor(nothing))
    nothing.lease.close()
    lease_by_workers(spark, folder, facts)
    staged = open_frame(empty).handed_over("empty", to)
    facts["empty"] = [split.rows for split in staged.splits()]
    bare = open_frame(spark.range(10).repartition(3).select())
    counted = bare.handed_over("bare", Destination("bare", on_ray=True))
    facts["no_columns"] = [type(counted).__name__, sum(split.rows for split in counted.splits())]
    return leased


def lease_by_workers(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    """A frame that Spark's JVM does not write, and the kinds of blocks of one that it does."""
    import ray

    from penstock.actors.spark.lease import lease
    from penstock.actors.spark_bridge import open_frame

    pauses = spark.range(0, 6, 1, 3).selectExpr("id", "make_dt_interval(int(id)) AS pause")
    for name, frame in (("pauses", pauses), ("numbers", pauses.select("id"))):
        leased = lease(frame, open_frame(frame).schema, name)
        save(folder, name, read_in_actor(leased))
        blocks = [ray.get(leased.lease.holder.block.remote(position, 60.0)) for position in range(3)]
        facts[name] = [type(ray.get(block[0])).__name__ for block in blocks]
        leased.lease.close()


def partitions_of(staged: Any) -> list[list[Any]]:
    """Rows and digest of each partition."""
    return [[each.rows, each.digest] for each in staged.manifest.partitions]


def stage_flights(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    from penstock.actors.spark_bridge import open_frame
    from penstock.engine.flow.handoff import Destination
    from penstock.jobs import flights_etl, flights_reference

    started = time.monotonic()
    flights, weather, planes = flights_etl.frames(spark, 1, None, folder / "workspace")
    for name, frame in (("flights", flights), ("weather", weather)):
        source = open_frame(frame).handed_over(name, Destination("flights", str(folder / "checkpoints")))
        save(folder, name, [pa.Table.from_batches(split.open(0), source.schema) for split in source.splits()])
    facts["hand_over_seconds"] = time.monotonic() - started
    started = time.monotonic()
    features, daily = flights_reference.compute(spark, 1, folder / "workspace")
    facts["reference_seconds"] = time.monotonic() - started
    for name, table in (("planes", planes), ("features", features), ("daily", daily)):
        save(folder, name, [table])


def stage_refusals(spark: Any, facts: dict[str, Any]) -> None:
    """Errors that need a session."""
    from penstock.actors import spark_bridge
    from penstock.actors.spark.lease import lease
    from penstock.engine.core.errors import PenstockError
    from penstock.jobs import flights_etl

    def refused(action: Any) -> str:
        try:
            action()
        except PenstockError as error:
            return f"{type(error).__name__}: {error}"
        return "nothing was refused"

    facts["no_executor"] = refused(lambda: spark_bridge._await_executors(spark, 0.0, "the cluster is small"))
    interval = spark.sql("SELECT make_ym_interval(1, 2) AS months")
    facts["no_arrow_type"] = refused(lambda: spark_bridge.open_frame(interval))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    facts["wrong_zone"] = refused(lambda: flights_etl.frames(spark, 1, None, Path("unused")))
    moment = spark.sql("SELECT id, timestamp '2024-07-01 00:00:00' AS at FROM range(0, 2, 1, 1)")
    leased = lease(moment, spark_bridge.open_frame(moment).schema, "moment")
    rows = read_in_actor(leased)[0]
    leased.lease.close()
    facts["other_zone"] = [str(rows.schema.field("at").type), rows["at"][0].as_py().isoformat()]
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def measure_handoff(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    """``benchmarks/spark_handoff.py`` at tiny size; it needs a session, and this one is there."""
    import importlib

    os.environ["PENSTOCK_BENCH"] = "tiny"
    handoff = importlib.import_module("spark_handoff")
    facts["measured"] = [asdict(row) for row in handoff.rows_of(handoff.measure(spark, folder))]


def main() -> None:
    from penstock.actors import spark_bridge
    from penstock.actors.cluster import environment
    from penstock.engine.core.errors import ConfigurationError, SetupError
    from penstock.engine.flow.handoff import Destination

    folder = Path(sys.argv[1])
    facts: dict[str, Any] = {}
    cluster = environment.connect(spark=True)
    try:
        spark_bridge.start("huge", cores=4096)
    except SetupError as error:
        facts["no_room"] = str(error)
    with spark_bridge.session("stage") as spark:
        with spark_bridge.session() as same:
            facts["same_session"] = same is spark
        source = stage_types(spark, folder, facts)
        stage_flights(spark, folder, facts)
        stage_refusals(spark, facts)
        measure_handoff(spark, folder, facts)
        late = spark_bridge.open_frame(spark.range(3))
    save(folder, "types_after_stop", read_in_actor(source))
    try:
        late.handed_over("late", Destination("late", on_ray=True))
    except ConfigurationError as error:
        facts["after_stop"] = str(error)
    source.lease.close()
    environment.disconnect(cluster)
    (folder / "facts.json").write_text(json.dumps(facts))
    print("staged")


if __name__ == "__main__":
    main()

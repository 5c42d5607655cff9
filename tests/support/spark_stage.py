"""Runs one Spark session in a process of its own and leaves what it gave in a folder, for tests/spark to look at.

    python spark_stage.py FOLDER

Starting Spark takes half a minute, so all the tests share this run. What it leaves: ``flights`` and ``weather``, the
blocks of the flights job (one IPC file each), ``planes``, ``features`` and ``daily`` from the reference query, the
blocks of a frame with every column type (read in an actor, before and after Spark stopped), and ``facts.json``.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
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


def read_in_actor(splits: Any) -> list[pa.Table]:
    """The rows of the splits, read by an actor that gets them inside a list: it borrows their references."""
    import ray

    @ray.remote(num_cpus=0)
    class Reader:
        def __init__(self, splits: list[Any]) -> None:
            self.splits = splits

        def read(self) -> list[pa.Table]:
            return [pa.Table.from_batches(split.open(0), split.schema) for split in self.splits]

        def after(self, row: int) -> list[int]:
            return [sum(batch.num_rows for batch in split.open(row)) for split in self.splits]

    reader = Reader.remote(list(splits))
    sizes = [split.rows for split in splits]
    assert ray.get(reader.after.remote(1)) == [max(0, size - 1) for size in sizes]
    tables: list[pa.Table] = ray.get(reader.read.remote())
    assert [table.num_rows for table in tables] == sizes
    return tables


def stage_types(spark: Any, folder: Path, facts: dict[str, Any]) -> Any:
    """Hand a frame of every type over, twice; gives the source of the first time."""
    from penstock.actors.spark_bridge import open_frame

    frame = spark.createDataFrame(typed_rows(), TYPES).repartition(PARTITIONS, "id").sortWithinPartitions("id")
    source, again = open_frame(frame), open_frame(frame)
    save(folder, "types", read_in_actor(source.splits()))
    again.splits()
    facts |= {"fingerprint": source.fingerprint, "fingerprint_again": again.fingerprint}
    facts |= {"types_schema": source.schema.to_string(), "describe": source.describe(), "kind": source.kind}
    other = open_frame(frame.where("id <> 3"))
    other.splits()
    empty = open_frame(frame.where("id < 0"))
    facts |= {"fingerprint_other": other.fingerprint, "empty": [split.rows for split in empty.splits()]}
    save(folder, "empty", read_in_actor(empty.splits()))
    return source


def stage_flights(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    from penstock.actors.spark_bridge import open_frame
    from penstock.jobs import flights_etl, flights_reference

    started = time.monotonic()
    flights, weather, planes = flights_etl.frames(spark, 1, None, folder / "workspace")
    for name, frame in (("flights", flights), ("weather", weather)):
        source = open_frame(frame)
        save(folder, name, read_in_actor(source.splits()))
        facts[f"{name}_fingerprint"] = source.fingerprint
    facts["hand_over_seconds"] = time.monotonic() - started
    started = time.monotonic()
    features, daily = flights_reference.compute(spark, 1, folder / "workspace")
    facts["reference_seconds"] = time.monotonic() - started
    for name, table in (("planes", planes), ("features", features), ("daily", daily)):
        save(folder, name, [table])


def stage_refusals(spark: Any, facts: dict[str, Any]) -> None:
    """Errors that need a session."""
    from penstock.actors import spark_bridge
    from penstock.engine.errors import PenstockError
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
    rows = read_in_actor(spark_bridge.open_frame(moment).splits())[0]
    facts["other_zone"] = [str(rows.schema.field("at").type), rows["at"][0].as_py().isoformat()]
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def main() -> None:
    from penstock.actors import environment, spark_bridge
    from penstock.engine.errors import ConfigurationError, SetupError

    folder = Path(sys.argv[1])
    facts: dict[str, Any] = {}
    cluster = environment.connect(spark=True)
    try:
        spark_bridge.start("huge", cores=4096)
    except SetupError as error:
        facts["no_room"] = str(error)
    with spark_bridge.session("stage") as spark:
        source = stage_types(spark, folder, facts)
        stage_flights(spark, folder, facts)
        stage_refusals(spark, facts)
        late = spark_bridge.open_frame(spark.range(3))
    save(folder, "types_after_stop", read_in_actor(source.splits()))
    try:
        late.splits()
    except ConfigurationError as error:
        facts["after_stop"] = str(error)
    environment.disconnect(cluster)
    (folder / "facts.json").write_text(json.dumps(facts))
    print("staged")


if __name__ == "__main__":
    main()

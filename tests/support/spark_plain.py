"""Runs plain PySpark (no Ray) in a process of its own, stages frames, and leaves ``facts.json`` in a folder.

python spark_plain.py FOLDER
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from support.guides import GUIDES, blocks


def plain_session(folder: Path) -> Any:
    """Two threads, tasks that may fail twice, and settings unlike those of our own sessions."""
    from penstock.actors.cluster import java

    java.ensure()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.local.dir", str(folder / "local"))
    builder = builder.config("spark.sql.session.timeZone", "America/New_York")
    spark = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def rows_of(source: Any) -> list[list[Any]]:
    return [pa.Table.from_batches(split.open(0), source.schema).to_pylist() for split in source.splits()]


def stage_shapes(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    """Frames of unusual shapes, and one whose rows come in other batches the second time."""
    from pyspark.sql import functions

    from penstock.actors.spark_bridge import open_frame
    from penstock.engine.flow.handoff import Destination
    from support.spark_stage import TYPES, typed_rows

    to = Destination("shapes", str(folder / "checkpoints"))
    typed = spark.createDataFrame(typed_rows(), TYPES).repartition(3, "id").sortWithinPartitions("id")
    prints = []
    for size in (10_000, 1):
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", size)
        source = open_frame(typed).handed_over(f"typed-{size}", to)
        void = open_frame(typed.selectExpr("*", "null AS nothing")).handed_over(f"void-{size}", to)
        prints.append([source.fingerprint, void.fingerprint])
    facts["batches"] = prints
    facts["typed_ids"] = [[row["id"] for row in rows] for rows in rows_of(source)]
    facts["zoned"] = str(rows_of(source)[0][0]["ts"])
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10_000)
    empty = open_frame(typed.where("id < 0")).handed_over("empty", to)
    facts["empty"] = [len(rows) for rows in rows_of(empty)]
    bare = open_frame(spark.range(10).repartition(3).select()).handed_over("bare", to)
    facts["bare"] = sum(split.rows for split in bare.splits())
    wide = spark.range(0, 20, 1, 2).select(*[(functions.col("id") + n).alias(f"c{n}") for n in range(1000)])
    facts["wide"] = [rows[-1]["c999"] for rows in rows_of(open_frame(wide).handed_over("wide", to))]


HOSTILE = {
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.files.maxRecordsPerFile": "2",
    "spark.sql.sources.useV1SourceList": "",
    "spark.sql.sources.commitProtocolClass": "no.such.Protocol",
    "spark.sql.parquet.output.committer.class": "no.such.Committer",
}
"""What a session may say of Parquet files, which is not meant for those of a stage."""

OLD = (
    "SELECT id, date'0001-01-01' AS first, date'1500-02-28' AS day, date_add(date'9999-12-31', 100000000) AS last,"
    " timestamp'1500-02-28 12:00:00' AS ts, timestamp_ntz'1500-02-28 12:00:00' AS ntz,"
    " timestamp_micros(-9223372036854775808) AS least, timestamp_micros(9223372036854775807) AS most,"
    " cast(X'ff61' AS string) AS text, cast('-0.0' AS double) AS zero, cast('NaN' AS float) AS number,"
    " cast('99999999999999999999999999999999999999' AS decimal(38,0)) AS large, cast(0.1 AS decimal(1,1)) AS small"
    " FROM range(3)"
)
"""Values at the ends of what their types hold: days and instants beyond INT96, no UTF-8, no number."""


def frames(spark: Any) -> dict[str, Any]:
    """By name, such as Spark writes itself, in several partitions."""
    from support.spark_stage import TYPES, typed_rows

    typed = spark.createDataFrame(typed_rows(), TYPES).repartition(3, "id").sortWithinPartitions("id")
    nested = (
        "id", "array(array(id, null)) AS lists", "map('a', array(named_struct('x', map(id, 'q')))) AS `m.m`",
        "named_struct('x.y', named_struct('*', array(map(1, cast(null AS date))))) AS `*`",
        "cast(null AS array<map<string, struct<x: int>>>) AS `id.`",
    )  # fmt: skip
    rows = spark.range(5).selectExpr("id", "named_struct('x', id, 'l', array(id)) AS s")
    return {
        "typed": typed,
        "old": spark.sql(OLD),
        "nested": spark.range(0, 5, 1, 2).selectExpr(*nested),
        "joined": spark.range(9).join(rows, "id", "left").repartition(2, "id").sortWithinPartitions("id"),
        "kept": spark.range(0, 100, 1, 4).cache(),
        "holes": spark.range(0, 40, 1, 8).where("id BETWEEN 12 AND 22"),
        "nothing": typed.where("id < 0"),
        "wide": spark.range(0, 300, 1, 1).selectExpr("id", "repeat('x', int(100000 * (id % 2))) AS text"),
    }


def bits_of(table: pa.Table) -> str:
    """The table's values, those that are not equal to themselves or beyond Python's dates as the numbers they are."""
    whole, columns = table.combine_chunks(), []
    for column in whole.columns:
        array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        if (kind := array.type) in (pa.float32(), pa.date32()):
            array = array.view(pa.int32())
        elif pa.types.is_float64(kind) or pa.types.is_timestamp(kind):
            array = array.view(pa.int64())
        elif pa.types.is_string(kind):
            array = array.view(pa.binary())
        columns.append(array.to_pylist())
    return f"{whole.schema} {columns}"


def stage_both_ways(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    """The same frames by Spark's JVM and by its Python workers, and one by the JVM again, in a session that writes
    otherwise."""
    from penstock.actors.spark import stage as ways
    from penstock.actors.spark.types import arrow_schema

    before = {name: spark.conf.get(name) for name in HOSTILE}
    for name, value in HOSTILE.items():
        spark.conf.set(name, value)
    facts["ways"] = {}
    decided = ways.why_not
    for name, frame in frames(spark).items():
        found = []
        for position, why in enumerate((decided, lambda *_: "a test says so", decided)[: 3 if name == "typed" else 2]):
            ways.why_not = why  # type: ignore[assignment]
            staged = ways.stage(frame, arrow_schema(frame), str(folder / "ways [1]"), f"{name}-{position}", "rows")
            tables = [pa.Table.from_batches(split.open(0), staged.schema) for split in staged.splits()]
            kinds = {each.file.partition(".")[2] for each in staged.manifest.partitions if each.file}
            found.append(([bits_of(table) for table in tables], staged.fingerprint, sorted(kinds)))
        facts["ways"][name] = [found[0][0] == found[1][0], [each[2] for each in found]]
        facts["again"] = found[0][1] == found[2][1] if name == "typed" else facts["again"]
    ways.why_not = decided
    facts["session_left"] = {name: spark.conf.get(name) for name in HOSTILE} == HOSTILE
    for name, value in before.items():
        spark.conf.set(name, value)


def write_some(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    """Some partitions of a frame by Spark's JVM, one of them twice, as a lease has them written."""
    from penstock.actors.spark.evaluation import planned_before
    from penstock.actors.spark.parquet_writer import ParquetWriter
    from penstock.actors.spark.types import arrow_schema, by_position

    def placed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        for batch in batches:
            where = pa.array([TaskContext.get().partitionId()] * batch.num_rows, pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column(0), where], ["id", "at"])

    frame = spark.range(0, 40, 1, 8).where("id NOT BETWEEN 20 AND 24").mapInArrow(placed, "id long, at long")
    place = folder / "some"
    writer = ParquetWriter(planned_before(by_position(frame)), arrow_schema(frame), str(place))
    told = [*writer.compute([6, 3, 4]), *writer.compute([3])]
    facts["some"] = [[each.partition, each.rows] for each in told]
    files = {each.partition: each.file for each in told if each.rows}
    facts["some_rows"] = {at: parquet.read_table(place / file).to_pydict() for at, file in files.items()}
    facts["some_files"] = sorted(path.name for path in place.glob("*.parquet")) == sorted(
        each for each in {each.file for each in told} if each
    )
    context = spark.sparkContext
    facts["thread_left"] = context.getLocalProperty("spark.sql.parquet.datetimeRebaseModeInWrite") is None


def stage_badly(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    """A partition whose first attempts fail after their file was begun, and frames that cannot be computed."""
    from penstock.actors.spark.stage import find_stage
    from penstock.actors.spark_bridge import open_frame
    from penstock.engine.core.errors import ConfigurationError
    from penstock.engine.flow.handoff import Destination

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        for batch in batches:
            yield batch
            if context.partitionId() == 1 and context.attemptNumber() < 2:
                raise OSError("the executor's disk has gone")

    checkpoints = folder / "checkpoints"
    to = Destination("bad", str(checkpoints))
    shaky = spark.range(0, 40, 1, 4).mapInArrow(failing, "id long")
    source = open_frame(shaky).handed_over("shaky", to)
    facts["shaky"] = [[row["id"] for row in rows] for rows in rows_of(source)]
    facts["shaky_files"] = len(os.listdir(source.place))
    found = find_stage(str(checkpoints), "bad", "shaky", f"shaky: 4 splits {source.fingerprint}")
    facts["found"] = found is not None and found.place == source.place
    try:
        open_frame(spark.range(4).selectExpr("raise_error('boom') AS x")).handed_over("broken", to)
    except ConfigurationError as error:
        facts["broken"] = str(error)

    def raising(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raise ValueError(f"no row of {batch.num_rows} will do")
        yield from batches

    try:
        open_frame(spark.range(4).mapInArrow(raising, "id long")).handed_over("broken", to)
    except ConfigurationError as error:
        facts["raised"] = [error.message, error.remedy]
    facts["broken_left"] = sorted(os.listdir(checkpoints / "bad" / "spark" / "broken"))


RETURNED = (
    "SELECT id, date'1500-02-28' AS day, timestamp'1500-02-28 12:00:00' AS ts, "
    "timestamp_ntz'1500-02-28 12:00:00' AS ntz, interval '1 02:03:04' day to second AS pause,"
    " cast(null AS void) AS nothing, cast('ab' AS binary) AS bytes,"
    " array(interval '1 00:00:01' day to second) AS pauses, cast(id AS byte) AS small FROM range(3)"
)
"""Rows with a column of each type that Spark alone would take for another one when it reads a file."""

ODD_NAMES = (["user.id", "a`b", "*", "", "a b"], ["id", "ID"])


def give_back(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    """Rows out to a file and a table, and back, in a session whose settings make Spark read both differently."""
    import penstock as ps

    def job_of(name: str, frame: Any) -> Any:
        flow = ps.Flow(re.sub(r"\W", "-", name))
        stream = flow.from_spark(frame, name="rows")
        stream.write_parquet(folder / "back" / name, name="files")
        stream.collect("table")
        return ps.run_local(flow).wait(60)

    def told(frame: Any) -> list[Any]:
        names = [name for name in frame.columns if name not in ("bytes", "nothing")]
        rows = sorted(map(str, frame.selectExpr(*[f"string({name}) AS {name}" for name in names]).collect()))
        return [frame.dtypes, rows]

    frame = spark.sql(RETURNED)
    facts["gone"] = told(frame)
    job = job_of("run[1]", frame)
    job_of("run1", frame.selectExpr("id + 100 AS id", *frame.columns[1:]))
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY")
    spark.conf.set("spark.sql.parquet.inferTimestampNTZ.enabled", "false")
    spark.conf.set("spark.sql.parquet.binaryAsString", "true")
    facts["back"] = [told(job.to_spark(spark, sink)) for sink in ("files", "table")]
    facts["back_by_folder"] = told(ps.spark.read(spark, folder / "back" / "run[1]"))
    facts["odd_names"] = [
        job_of(f"names-{at}", spark.range(3).selectExpr(*["id"] * len(names)).toDF(*names)).output("files").to_table()
        .to_pylist()
        for at, names in enumerate(ODD_NAMES)
    ]  # fmt: skip
    facts["odd_back"] = sorted(map(list, ps.spark.read(spark, folder / "back" / "names-0").collect()))
    try:
        ps.spark.read(spark, folder / "back" / "names-1")
    except ps.errors.PenstockError as error:
        facts["same_name"] = str(error)
    spark.conf.set("spark.sql.caseSensitive", "true")
    facts["cases_back"] = sorted(map(list, ps.spark.read(spark, folder / "back" / "names-1").collect()))
    spark.conf.set("spark.sql.caseSensitive", "false")
    joined = spark.range(3).join(
        spark.range(2).selectExpr("id", "named_struct('x', id, 'l', array(id)) AS s"), "id", "left"
    )
    facts["null_struct"] = job_of("null-struct", joined).output("files").to_table().sort_by("id").to_pylist()


def refuse(spark: Any, facts: dict[str, Any]) -> None:
    import penstock as ps

    def refused(action: Any) -> str:
        try:
            action()
        except ps.errors.PenstockError as error:
            return str(error)
        return "nothing was refused"

    stream = spark.readStream.format("rate").load()
    facts["lease"] = refused(lambda: ps.Flow("f").from_spark(spark.range(3), handoff="lease"))
    facts["stream"] = refused(lambda: ps.Flow("f").from_spark(stream))
    facts["unknown"] = refused(lambda: ps.Flow("f").from_spark(spark.range(3), handoff="copy"))  # type: ignore[arg-type]
    facts["twice"] = refused(lambda: ps.Flow("f").from_spark(spark.range(3).selectExpr("id", "id")))
    facts["no_frame"] = refused(lambda: ps.Flow("f").from_spark([1, 2]))
    inside = spark.sql("SELECT named_struct('a', make_ym_interval(1, 2)) AS held")
    facts["no_type"] = refused(lambda: ps.Flow("f").from_spark(inside))
    facts["beside"] = refused(ps.spark.start)
    calendar = spark.sql("SELECT 1 AS id, array(make_interval(1, 2)) AS pauses")
    facts["no_name"] = refused(lambda: ps.Flow("f").from_spark(calendar))
    doubled = spark.sql("SELECT named_struct('x', 1, 'x', 2) AS s")
    facts["same_field"] = refused(lambda: ps.Flow("f").from_spark(doubled))


def follow_guide(folder: Path, facts: dict[str, Any]) -> None:
    """What the guide to a Delta table prints; the session that it asks for is the one that is there."""
    [guide] = [guide for guide in GUIDES if guide.stem == "spark-to-delta"]
    (folder / "guide").mkdir()
    printed = io.StringIO()
    with contextlib.chdir(folder / "guide"), contextlib.redirect_stdout(printed):
        exec(compile("\n".join(blocks(guide)), str(guide), "exec", dont_inherit=True), {"__name__": "guide"})
    facts["guide"] = printed.getvalue()


def run_jobs(spark: Any, folder: Path, facts: dict[str, Any]) -> None:
    """A job that is cancelled, and goes on when Spark is gone; its rows back as a DataFrame; another frame refused."""
    import penstock as ps

    frame = spark.range(0, 4000, 1, 6).selectExpr("id", "id % 7 AS key", "id / 3 AS value")
    frame = frame.repartition(6, "key").sortWithinPartitions("id")

    def flow(frame: Any, rate: float) -> Any:
        flow = ps.Flow("plain")
        flow.from_spark(frame, name="rows", rate=rate).filter(ps.field("key") > 0).write_parquet(folder / "out")
        return flow

    state = ps.Checkpoints(folder / "state", every="0.2s")
    with ps.run_local(flow(frame, 1500.0), checkpoints=state) as job:
        job.checkpoint(60)
        facts["spark_released"] = job.spark_released
        job.cancel()
        with suppress(ps.errors.PenstockError):
            job.wait(60)
    facts["first"] = job.status().state
    collected = ps.Flow("collected")
    collected.from_spark(frame.limit(10)).collect("few")
    with ps.run_local(collected) as few:
        few.wait(60)
        facts["few"] = sorted(row["id"] for row in few.to_spark(spark).collect())
    other = frame.withColumn("more", frame.id)
    silent = frame.withColumn("more", frame.id)
    expected = sorted(row["id"] for row in frame.where("key > 0").select("id").collect())
    spark.stop()
    try:
        ps.run_local(flow(other, 0.0), checkpoints=state)
    except ps.errors.PenstockError as error:
        facts["other_frame"] = str(error)
    try:
        stopped = ps.Flow("stopped")
        stopped.from_spark(silent).collect("rows")
        stopped.explain()
    except ps.errors.PenstockError as error:
        facts["stopped"] = str(error)
    with ps.run_local(flow(frame, 0.0), checkpoints=state) as job:
        job.wait(60)
        facts["audit"] = [job.audit().gaps, job.audit().repeats]
    facts["exact"] = sorted(job.output().to_table()["id"].to_pylist()) == expected
    again = plain_session(folder)
    facts["read"] = sorted(row["id"] for row in ps.spark.read(again, folder / "out").collect()) == expected
    facts["read_job"] = job.to_spark(again).count() == len(expected)
    again.stop()


def main() -> None:
    folder = Path(sys.argv[1])
    facts: dict[str, Any] = {}
    spark = plain_session(folder)
    stage_shapes(spark, folder, facts)
    stage_both_ways(spark, folder, facts)
    write_some(spark, folder, facts)
    stage_badly(spark, folder, facts)
    refuse(spark, facts)
    give_back(spark, folder, facts)
    follow_guide(folder, facts)
    run_jobs(spark, folder, facts)
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()

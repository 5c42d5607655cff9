"""Results back as a Spark DataFrame, in any session: plain Spark, Spark on Ray, Spark Connect.

Rules:

1. Parquet files are read by Spark itself: exactly those that are named, by their names (a folder, or a name with ``*``
   or ``[1]`` in it, would be a pattern, and give the rows of others), in the schema that they were written with.
2. What a session says about dates, zones and damaged files does not matter: the reader's own options do.
3. A table of this process travels inside the query, as Arrow in the function of ``mapInArrow``: exact for all types,
   and without pandas, which loses some. It is for results that fit into a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ...engine.core.errors import ConfigurationError
from .failures import cause_of, detail_of
from .types import in_utc, quietly, spark_schema

MOST_BYTES = 64 * 2**20
"""A larger table should be written to files."""

_PINNED = {
    "datetimeRebaseMode": "CORRECTED",  # days and instants before 1582 and 1900 as they were written
    "int96RebaseMode": "CORRECTED",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "__globPaths__": "false",  # Spark's own name for rule 1; escaped names would fail if there is a colon in them
}


def files_to_spark(spark: Any, files: Sequence[str], schema: pa.Schema) -> Any:
    """The rows of Parquet ``files``, given as URLs, which hold columns of ``schema``."""
    from pyspark.sql import types

    wanted = spark_schema(schema, stored=True)
    _check_cases(spark, schema.names)
    void = [position for position, column in enumerate(wanted) if isinstance(column.dataType, types.NullType)]
    for position in void:
        wanted[position].dataType = types.IntegerType()  # of which a file holds none: Spark reads no void
    try:
        frame = spark.read.schema(wanted).options(**_PINNED).parquet(*files)
    except Exception as error:
        raise ConfigurationError(
            f"Spark cannot open the files of the output: {cause_of(error)}",
            "the session needs a file system for their addresses: for s3://… the package hadoop-aws, and spark.hadoop."
            "fs.s3.impl=org.apache.hadoop.fs.s3a.S3AFileSystem; or read them here, with to_table()",
            detail=detail_of(error),
        ) from error
    return _with_void(frame, void) if void else frame


def _with_void(frame: Any, positions: Sequence[int]) -> Any:
    """The frame with columns of nothing in place of these."""
    from pyspark.sql import functions

    names = frame.columns
    numbered = [f"c{position}" for position in range(len(names))]
    frame = frame.toDF(*numbered)
    columns = [
        functions.lit(None).alias(name) if position in positions else frame[name]
        for position, name in enumerate(numbered)
    ]
    return frame.select(*columns).toDF(*names)


def _check_cases(spark: Any, names: Sequence[str]) -> None:
    """Raise ConfigurationError if Spark, as the session is set, would take columns for the same one."""
    folded = [name.lower() for name in names]
    same = [name for name, plain in zip(names, folded, strict=True) if folded.count(plain) > 1]
    if same and str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() != "true":
        raise ConfigurationError(
            f"columns {', '.join(map(repr, same))} differ in their case alone, and this Spark session does not tell "
            "them apart in files",
            'spark.conf.set("spark.sql.caseSensitive", "true") before the rows are read and used, or rename a column '
            "before the sink",
        )


def table_to_spark(spark: Any, table: pa.Table) -> Any:
    """The rows of a table, in one partition, in their order."""
    if table.nbytes > MOST_BYTES:
        raise ConfigurationError(
            f"{table.nbytes / 2**20:.0f} MiB of collected rows are too many to travel to Spark inside a query",
            "end the stream in write_parquet(…) and read that",
        )
    schema = spark_schema(table.schema, stored=False)
    table = _as_spark_reads(table, schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as arrow

        for batch in batches:
            for _ in range(batch.num_rows):
                with arrow.ipc.open_stream(data) as reader:
                    yield from reader

    return spark.range(0, 1, 1, 1).mapInArrow(rows, schema)


def _as_spark_reads(table: pa.Table, schema: Any) -> pa.Table:
    """The rows in the layouts and units that Arrow for Java reads."""
    from pyspark.sql.pandas.types import to_arrow_type

    columns = {}
    for column, wanted in zip(table.columns, schema, strict=True):
        kind = in_utc(quietly(to_arrow_type, wanted.dataType))
        try:
            columns[wanted.name] = column if column.type == kind else column.cast(kind)
        except pa.ArrowException as error:
            message = f"column {wanted.name!r} of type {column.type} cannot go back to Spark as {kind}: {error}"
            raise ConfigurationError(message, f"cast it to {kind} in the flow, and choose what is lost") from error
    return pa.table(columns)

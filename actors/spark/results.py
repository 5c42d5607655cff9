"""Results back as a Spark DataFrame, in any session: plain Spark, Spark on Ray, Spark Connect.

Rules:

1. Folders of Parquet files are read by Spark itself.
2. A table of this process travels inside the query, as Arrow in the function of ``mapInArrow``: exact for all types,
   and without pandas, which loses some. It is for results that fit into a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ...engine.errors import ConfigurationError

MOST_BYTES = 64 * 2**20
"""A larger table should be written to files."""


def folder_to_spark(spark: Any, path: str) -> Any:
    """The Parquet files below ``path``."""
    return spark.read.parquet(path if "://" in path else f"file://{path}")


def table_to_spark(spark: Any, table: pa.Table) -> Any:
    """The rows of a table, in one partition, in their order."""
    from pyspark.sql.pandas.types import from_arrow_schema

    if table.nbytes > MOST_BYTES:
        raise ConfigurationError(
            f"{table.nbytes / 2**20:.0f} MiB of collected rows are too many to travel to Spark inside a query",
            "end the stream in write_parquet(…) and read that",
        )
    schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
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

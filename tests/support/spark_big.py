"""Runs plain PySpark in a process of its own, stages a partition of 2.25 GiB in one column, and leaves ``facts.json``.

python spark_big.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

import penstock as ps
from support.spark_plain import plain_session

MB = 1 << 20
ROWS = 2304
"""Of 1 MiB each: more than the 32-bit offsets of one Arrow string column can tell apart."""

SCHEMA = pa.schema([("id", pa.int64()), ("length", pa.int64()), ("same", pa.bool_())])


def measured(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Each text's length, and whether it is its row's digit from end to end."""
    ids, column = rows.column("id"), rows.column("text")
    same = [not text.as_py().strip(str(id % 10)) for id, text in zip(ids.to_pylist(), column, strict=True)]
    length = pc.cast(pc.binary_length(column), pa.int64())
    return pa.record_batch([ids, length, pa.array(same)], schema=SCHEMA)


def texts(spark: Any, rows: int) -> Any:
    """A frame of one partition, with a text of 1 MiB in each row: its number's last digit, again and again."""
    return spark.range(0, rows, 1, 1).selectExpr("id", f"repeat(cast(id % 10 AS string), {MB}) AS text")


def main() -> None:
    folder = Path(sys.argv[1])
    spark = plain_session(folder)
    flow = ps.Flow("big")
    flow.from_spark(texts(spark, ROWS), name="rows").map_batches(measured, SCHEMA).write_parquet(folder / "out")
    with ps.run_local(flow, checkpoints=folder / "state") as job:
        clean = job.wait(300).audit().clean
        found = job.output().to_table()
    staged = [parquet.read_metadata(path) for path in (folder / "state").glob("big/spark/rows/*/*.parquet")]
    groups = [file.row_group(number) for file in staged for number in range(file.num_row_groups)]
    spark.stop()
    facts = {
        "ids": sorted(found["id"].to_pylist()) == [*range(ROWS)],
        "lengths": found["length"].unique().to_pylist(),
        "same": pc.all(found["same"]).as_py(),
        "clean": clean,
        "files": len(staged),
        "bytes": sum(group.total_byte_size for group in groups),
    }
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()

"""Stage by Spark's JVM alone: it writes a frame's partitions as Parquet, and no row passes through Python.

Rules:

1. Only what comes back as it went (``parquet_types``), into a folder of this machine's file systems, with a Spark that
   tells what a frame is computed from (3.5, classic): :func:`why_not`. All else goes through Python workers.
2. The settings that decide what the bytes mean are those of this write alone: a clone of the user's session has them,
   and the files' own are options of the writer. Instants are microseconds, days those of the calendar that Arrow has;
   one file for a partition; no form of older versions; pages have checksums; a row group is so small that no executor
   has to make it smaller, which would make other bytes of the same rows.
3. Spark's commit coordinator grants one attempt of a partition that its file counts, also if tasks are speculated; the
   committer is the one which moves files to their places at the job's end. Where either is another one, the frame goes
   the other way.
4. A file belongs to the partition that its name says, as a number: names do not sort beyond 99,999. Partitions without
   rows have none.
5. Spark's word (``_SUCCESS``) is not asked. The rows of all files, by their footers, are those that Spark counted as it
   wrote: a file that did not come, from a machine that does not share the folder, is no empty partition.
6. Every write has a folder of its own, inside the run's. Files are moved out of it under our names when they are synced
   and summed; what is in it besides, of attempts that failed, goes with it.
7. Widths of rows differ: the writer looks at what it holds after so many rows at most as a Python worker would get at a
   time (``evaluation``, rule 7).
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from ...engine.core.errors import ConfigurationError
from ...engine.files.durable import LOCAL, sync_file
from ...engine.files.paths import is_local, resolve
from ...engine.integrity.checksums import running_digest
from ...engine.sources.fed import PIECE_BYTES
from .evaluation import can_be_planned_before, rows_at_a_time
from .parquet_types import no_parquet_for
from .staged_splits import PARQUET, StagedPartition

GROUP_BYTES = 16 << 20
"""Of a row group, as it is written. An executor has some for each of its cores."""

COUNTED_SECONDS = 60
"""How long Spark may take to tell, after a write, how many rows it has counted."""

_TRIED = "3.5."
"""What the versions begin with with which this is tested."""

_COMMITTER = "org.apache.parquet.hadoop.ParquetOutputCommitter"
_SESSION = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "false",
    "spark.sql.parquet.output.committer.class": _COMMITTER,
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
    "spark.sql.sources.useV1SourceList": "parquet",
}
_OPTIONS = {
    "compression": "snappy",
    "maxRecordsPerFile": "0",
    "mapreduce.output.basename": "part",
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "parquet.summary.metadata.level": "NONE",
    "parquet.writer.version": "PARQUET_1_0",
    "parquet.block.size": str(GROUP_BYTES),
    "parquet.page.size": str(1 << 20),
    "parquet.page.size.check.estimate": "true",
    "parquet.page.size.row.check.min": "1",
    "parquet.page.row.count.limit": "20000",
    "parquet.page.write-checksum.enabled": "true",
    "parquet.enable.dictionary": "false",
    "parquet.bloom.filter.enabled": "false",
    # sums beside the files, of which we have our own
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
_COORDINATED = "spark.hadoop.outputCommitCoordination.enabled"
_ENCRYPTS = "parquet.crypto.factory.class"

_PART = re.compile(r"part-(\d{5,})-[0-9a-f-]{36}-c(\d{3,})(?:\.[a-z0-9]+)?\.parquet")


def why_not(frame: Any, schema: pa.Schema, place: str) -> str:
    """Why the frame goes through Python workers; empty: it need not (rules 1 and 3)."""
    if reason := no_parquet_for(schema):
        return reason
    if not is_local(resolve(place)[0]):
        return f"{place.partition('://')[0]}:// is reached by Python workers alone"
    if not (can_be_planned_before(frame) and str(frame.sparkSession.version).startswith(_TRIED)):
        return "this Spark does not tell what a frame is computed from"
    context = frame.sparkSession.sparkContext
    if str(context.getConf().get(_COORDINATED, "true")).lower() == "false":
        return "the commit coordinator is turned off"
    if context._jsc.hadoopConfiguration().get(_ENCRYPTS):
        return "the session encrypts Parquet files"
    return ""


def written_by_spark(planned: Any, schema: pa.Schema, place: str) -> tuple[StagedPartition, ...]:
    """Let Spark write a frame that is planned (``evaluation.planned_before``) into a local folder; what each partition
    came to; nothing if Spark has found out that there are no rows. Raises ConfigurationError if files are missing."""
    partitions = int(planned._jdf.queryExecution().toRdd().getNumPartitions())
    if not partitions:  # Spark would write a file that belongs to none
        return ()
    folder = f"{place}/{uuid.uuid4().hex}"
    try:
        counted = _write(planned, schema, folder)
        names = in_order(os.listdir(folder), partitions)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "penstock-stage") as several:
            found = list(several.map(lambda each: _accepted(folder, place, *each), enumerate(names)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = sum(each.rows for each in found)
    if rows != counted:
        raise ConfigurationError(
            f"Spark has written {counted} rows, and the files in {place} have {rows}",
            "the checkpoint folder must be on storage that Spark's executors and this process share",
        )
    return tuple(found)


def part_of(name: str) -> tuple[int, int] | None:
    """Partition and number of the file that Spark gave this name; None: it is no file of rows."""
    found = _PART.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def in_order(names: Iterable[str], partitions: int) -> Sequence[str]:
    """By partition: the name of its file, or nothing (rule 4). Raises ConfigurationError for names that one write of so
    many partitions does not leave."""
    found = [""] * partitions
    for name in names:
        part = part_of(name)
        if part is None:
            continue
        if part[0] >= partitions or part[1] or found[part[0]]:
            raise ConfigurationError(
                f"Spark was to write a file for each of {partitions} partitions, and has written {name}",
                "leave extensions of the session (spark.sql.extensions) out that change how it writes",
            )
        found[part[0]] = name
    return found


def _write(planned: Any, schema: pa.Schema, folder: str) -> int:
    """How many rows Spark has counted. Raises what Spark raises."""
    from pyspark.sql import functions

    held = planned._jdf
    session = held.sparkSession().cloneSession()
    for name, value in _SESSION.items():
        session.conf().set(name, value)
    # nothing is promised about nulls (``types``, rule 1)
    rows = session.internalCreateDataFrame(held.queryExecution().toRdd(), held.schema().asNullable(), False)
    jvm = planned.sparkSession.sparkContext._jvm
    seen = jvm.org.apache.spark.sql.Observation()
    count = functions.count(functions.lit(1)).alias("rows")._jc
    writer = rows.observe(seen, count, jvm.PythonUtils.toSeq([])).write()
    most = {"parquet.page.size.row.check.max": str(rows_at_a_time(schema, 0))}
    for name, value in (_OPTIONS | most).items():
        writer = writer.option(name, value)
    writer.parquet(f"file://{folder}")
    return _counted(seen)


def _counted(seen: Any) -> int:
    """What was observed of a write that is over. The word comes by a queue that may lose it."""
    found: list[int] = []
    waiting = threading.Thread(
        target=lambda: found.append(int(seen.getAsJava()["rows"])), name="penstock-spark-count", daemon=True
    )
    waiting.start()
    waiting.join(COUNTED_SECONDS)
    if not found:
        raise ConfigurationError(
            "Spark does not tell how many rows it has written", "run the same command again; its driver is overloaded"
        )
    return found[0]


def _accepted(folder: str, place: str, partition: int, name: str) -> StagedPartition:
    """Rule 6. A file without rows is none."""
    path = Path(folder, name)
    rows = parquet.read_metadata(path).num_rows if name else 0
    if not rows:
        return StagedPartition("", 0, 0, "")
    digest = running_digest()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    sync_file(LOCAL, str(path))
    file_name = f"{partition:06d}{PARQUET}"
    size = path.stat().st_size
    path.rename(Path(place, file_name))
    return StagedPartition(file_name, rows, size, f"xxh3:{digest.hexdigest()}")

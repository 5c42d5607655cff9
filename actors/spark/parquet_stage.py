"""Stage by Spark's JVM alone: it writes a frame's partitions as Parquet, and no row passes through Python.

Rules:

1. Only what comes back as it went (``parquet_types``), into a folder of this machine's file systems, with a Spark that
   tells what a frame is computed from (3.5, classic): :func:`why_not`. All else goes through Python workers.
2. A session is left alone whose commit coordinator is turned off (``parquet_writer``, rule 4), or that encrypts.
3. Spark's word is not enough: each file has, by its footer, the rows that Spark counted as it wrote. So a file that did
   not come, from a machine that does not share the folder, is no empty partition.
4. Every write has a folder of its own, inside the run's. Files are moved out of it under our names when they are synced
   and summed; what is in it besides, of attempts that failed, goes with it.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
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
from .evaluation import can_be_planned_before
from .parquet_types import no_parquet_for
from .parquet_writer import ParquetWriter, Written, partitions_of
from .staged_splits import PARQUET, StagedPartition

_TRIED = "3.5."
"""What the versions begin with with which this is tested."""

_AT_ONCE = 8
"""Files that are summed and synced at a time, however few processors there are: most of it is waiting for the disk."""

_COORDINATED = "spark.hadoop.outputCommitCoordination.enabled"
_ENCRYPTS = "parquet.crypto.factory.class"


def why_not(frame: Any, schema: pa.Schema, place: str) -> str:
    """Why the frame goes through Python workers; empty: it need not (rules 1 and 2)."""
    if reason := no_parquet_for(schema):
        return reason
    if not is_local(resolve(place)[0]):
        return f"{place.partition('://')[0]}:// is reached by Python workers alone"
    if not (can_be_planned_before(frame) and str(frame.sparkSession.version).startswith(_TRIED)):
        return "this Spark does not tell what a frame is computed from"
    context = frame.sparkSession.sparkContext
    if str(context._jsc.sc().getConf().get(_COORDINATED, "true")).lower() == "false":
        return "the commit coordinator is turned off"
    if context._jsc.hadoopConfiguration().get(_ENCRYPTS):
        return "the session encrypts Parquet files"
    return ""


def written_by_spark(planned: Any, schema: pa.Schema, place: str) -> tuple[StagedPartition, ...]:
    """Let Spark write a frame that is planned (``evaluation.planned_before``) into a local folder; what each partition
    came to; nothing if Spark has found out that there are no rows. Raises ConfigurationError if files are missing."""
    folder = f"{place}/{uuid.uuid4().hex}"
    try:
        told = _write(planned, schema, folder)
        with ThreadPoolExecutor(_AT_ONCE, "penstock-stage") as several:
            found = list(several.map(lambda each: _accepted(folder, place, each), told))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for each, written in zip(found, told, strict=True):
        if each.rows != written.rows:
            raise ConfigurationError(
                f"Spark has written {written.rows} rows of partition {written.partition}, and its file in {place} has "
                f"{each.rows}",
                "the checkpoint folder must be on storage that Spark's executors and this process share",
            )
    return tuple(found)


def _write(planned: Any, schema: pa.Schema, folder: str) -> Sequence[Written]:
    """What Spark says of each partition. Raises what Spark raises."""
    partitions = partitions_of(planned)
    return ParquetWriter(planned, schema, folder).compute(range(partitions)) if partitions else ()


def _accepted(folder: str, place: str, written: Written) -> StagedPartition:
    """Rule 4. A file without rows is none, nor is one that is not here."""
    path = Path(folder, written.file)
    rows = parquet.read_metadata(path).num_rows if written.rows and path.exists() else 0
    if not rows:
        return StagedPartition("", 0, 0, "")
    digest = running_digest()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    sync_file(LOCAL, str(path))
    file_name = f"{written.partition:06d}{PARQUET}"
    size = path.stat().st_size
    path.rename(Path(place, file_name))
    return StagedPartition(file_name, rows, size, f"xxh3:{digest.hexdigest()}")

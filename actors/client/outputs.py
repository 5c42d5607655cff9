"""What a job has made visible, for what reads it next: Spark, Ray Data, or a table in this process.

Rules:

1. Rows that were committed by the time of the call, and no others: what a reader of the output's folder sees.
2. Parquet files are handed on as a list of them and read where the reader runs, so they must be on storage that the
   reader's workers see. Rows that were collected in this process travel to Spark with the query, so they should be few.
3. Neither Ray nor Spark is imported before one of them is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs, parquet

from ...engine.arrow.nullability import loosened
from ...engine.core.errors import ConfigurationError, StorageError
from ...engine.core.schemas import no_rows
from ...engine.core.shown import hides_credentials
from ...engine.files.object_files import files_of
from ...engine.files.paths import absolute, is_hidden, is_local, resolve
from ...engine.plan.plan import JobPlan
from ...engine.sinks.collect import COLLECTED, CollectSink
from ...engine.sinks.parquet import ParquetSink
from ...engine.sources.parquet import ParquetSource


class SparkSession(Protocol):
    """A session of Spark, as far as results are concerned. Spark is imported by who has one."""

    @property
    def read(self) -> Any:
        """What reads files."""

    @property
    def createDataFrame(self) -> Any:  # noqa: N802 (Spark's name)
        """What makes a frame of rows."""


@hides_credentials
@dataclass(frozen=True)
class Output:
    """The rows of one sink. ``path``: of its folder; None: they were collected in this process. ``schema``: None where
    only the folder is known and it has no file yet."""

    path: str | None
    schema: pa.Schema | None
    collected: pa.Table | None = None
    partition_by: tuple[str, ...] = ()
    """Columns that are not in the files: their folders tell them."""

    def files(self) -> list[str]:
        """The data files as paths that Arrow's file system of the folder knows, sorted."""
        if self.path is None:
            return []
        filesystem, folder = resolve(absolute(self.path))
        found = filesystem.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
        root = folder.rstrip("/") + "/"
        return sorted(
            each.path for each in found if each.type == fs.FileType.File and not is_hidden(each.path.removeprefix(root))
        )

    def to_table(self) -> pa.Table:
        """All rows, file by file."""
        if self.collected is not None:
            return self.collected
        files = self.files()
        if not files:
            return pa.Table.from_batches([no_rows(self._known_schema())])
        if self.partition_by:
            types = {name: self._known_schema().field(name).type for name in self.partition_by}
            source = ParquetSource(str(self.path), hive_schema=types)
            rows = [records for split in source.splits() for records in split.open(0)]
            return pa.Table.from_batches(rows, source.schema).select(self._known_schema().names)
        filesystem, _ = resolve(absolute(str(self.path)))
        try:
            if files_of(filesystem) is not None:
                return _table_of_objects(filesystem, files, self.schema)
            return ds.dataset(files, schema=self.schema, format="parquet", filesystem=filesystem).to_table()
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error

    def to_spark(self, spark: Any) -> Any:
        """A DataFrame of ``spark``, any session (see ``ps.spark.read``)."""
        self._refuse_folders("Spark", "spark.read.parquet")
        from ..spark.results import files_to_spark, table_to_spark

        if self.collected is not None:
            return table_to_spark(spark, self.collected)
        files = self.files()
        if not files:
            return table_to_spark(spark, self._known_schema().empty_table())
        filesystem, folder = resolve(absolute(str(self.path)))
        try:
            schema = self.schema or parquet.read_schema(files[0], filesystem=filesystem)
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error
        root = f"file://{folder}" if is_local(filesystem) else absolute(str(self.path)).partition("?")[0]
        urls = [f"{root.rstrip('/')}/{file.removeprefix(folder).lstrip('/')}" for file in files]
        return files_to_spark(spark, urls, schema)

    def to_ray_dataset(self) -> Any:
        """A ``ray.data.Dataset``, on the cluster that this process is connected to."""
        self._refuse_folders("Ray", "ray.data.read_parquet")
        from ..spark.ray_datasets import files_to_dataset, table_to_dataset

        files = self.files()
        if self.collected is not None or not files:
            return table_to_dataset(self.to_table())
        filesystem, _ = resolve(absolute(str(self.path)))
        return files_to_dataset(files, filesystem)

    def _refuse_folders(self, reader: str, call: str) -> None:
        root = "" if self.path is None else resolve(absolute(self.path))[1]
        if self.partition_by or any("=" in os.path.dirname(file.removeprefix(root)) for file in self.files()):
            message = f"{self.path} has columns that only its folders tell"
            raise ConfigurationError(message, f"let {reader} read the whole folder: {call}({str(self.path)!r})")

    def _unreadable(self, error: Exception) -> StorageError:
        reason = str(error).splitlines()[0]
        return StorageError(f"the files in {self.path} cannot be read: {reason}", "restore them from a copy")

    def _known_schema(self) -> pa.Schema:
        if self.schema is None:
            remedy = "wait for the job's first checkpoint, or read the output of the job itself: job.output()"
            raise ConfigurationError(f"{self.path} holds no data files", remedy)
        return self.schema


def _table_of_objects(filesystem: fs.FileSystem, files: Sequence[str], schema: pa.Schema | None) -> pa.Table:
    """The rows of objects, which are fetched by this thread, into memory of Arrow's own. Arrow's threads would call
    Python for the bytes, or to let go of them, and one that does when the interpreter ends takes the process down."""
    parquets = ds.ParquetFileFormat()
    fragments = []
    for file in files:
        memory = pa.BufferOutputStream()
        with filesystem.open_input_file(file) as opened:
            memory.write(opened.read_buffer())
        fragments.append(parquets.make_fragment(memory.getvalue()))
    return ds.FileSystemDataset(fragments, schema or fragments[0].physical_schema, parquets).to_table()


def output_of(plan: JobPlan, name: str | None) -> Output:
    """The output of one of the plan's sinks, by its name; the name may be left out where there is one."""
    if name is None and len(plan.sinks) != 1:
        raise ConfigurationError(
            f"job {plan.name!r} has {len(plan.sinks)} sinks", f"name one of them: {', '.join(sorted(plan.sinks))}"
        )
    id = name or next(iter(plan.sinks))
    collecting = {config.name: id for id, (_, config) in plan.sinks.items() if isinstance(config, CollectSink)}
    id = id if id in plan.sinks else collecting.get(id, id)
    if id not in plan.sinks:
        raise ConfigurationError(f"job {plan.name!r} has no sink {id!r}", f"it has: {', '.join(sorted(plan.sinks))}")
    config = plan.sinks[id][1]
    if isinstance(config, CollectSink):
        return Output(None, None, COLLECTED.read(plan.key, config.name, plan.name))
    if isinstance(config, ParquetSink):
        return Output(str(config.path), _schema_of(plan, id), partition_by=tuple(config.partition_by))
    raise ConfigurationError(f"sink {id} writes no Parquet files", "read what it writes with the tools for that")


def _schema_of(plan: JobPlan, sink: str) -> pa.Schema:
    for stage in plan.stages.values():
        for pipeline in stage.pipelines:
            for operator in pipeline.operators:
                if operator.id == sink:
                    return loosened(operator.inputs[0])
    raise AssertionError(sink)

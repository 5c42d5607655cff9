"""What sinks have in common that write a folder of files, each row exactly once.

How the two phases look on storage, and whose a folder is, stands in ``output_folder``.

Rules:

1. Readers pass over names that begin with ``_`` (Spark and ``pyarrow.dataset`` by default), so a plain read of the
   folder sees committed files only, at any moment.
2. A committed file's name is fixed when it is prepared and stands in the committable; committing again changes
   nothing.
3. A folder is used by one sink of one job, unless the mode is "append". Data that were there before are never touched,
   unless it is "overwrite": then what jobs have written there before goes once the first of the new files are there.
4. The folder of a job that ends without a single row holds one file without rows, so that readers find the schema.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import pyarrow as pa
from pyarrow import fs

from ..core.errors import ConfigurationError, FlowError, StorageError
from ..core.operator import OperatorContext
from ..core.schemas import duplicate_of
from ..core.traits import Traits
from ..files.object_store import bucket_of, storage_options, writing_bytes
from ..files.paths import absolute, resolve, storage_error
from ..integrity.row_digests import RowDigest
from ..state.write_behind import LIMIT_BYTES
from .by_folder import check_by
from .file_committer import FileCommitter
from .file_formats import FileFormat, check_fields
from .file_writer import BUFFER_BYTES, OPEN_OBJECTS, RunningFileSink, restored_totals
from .lane_counts import LaneCounts
from .output_folder import Mode, OutputFolder, WriteMode


@dataclass(frozen=True, slots=True)
class FolderSink:
    """Writes files into the folder ``path``.

    ``mode``: "new" wants a folder without data, "append" adds to what is there, "overwrite" replaces what jobs have
    written there before. Files are closed at each checkpoint and after ``rows_per_file`` rows; ``row_group_rows`` rows
    stay in memory until they are written. ``partition_by``: rows go into folders named after their values in these
    columns (``by_folder``).
    """

    path: str | os.PathLike[str]
    mode: WriteMode = "new"
    rows_per_file: int = 1 << 20
    row_group_rows: int = 1 << 17
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    """Who asks the bucket of the path, and where (``access_key_id``, ``endpoint``, …); else the environment says it."""
    partition_by: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute(self.path))
        object.__setattr__(self, "storage_options", storage_options([str(self.path)], self.storage_options))
        object.__setattr__(self, "partition_by", tuple(self.partition_by))
        if self.mode not in get_args(WriteMode):
            raise ConfigurationError(f"mode is {self.mode!r}", 'give "new", "append" or "overwrite"')
        if min(self.rows_per_file, self.row_group_rows) < 1:
            raise ConfigurationError("rows_per_file and row_group_rows must be at least 1", "leave them at the default")

    @property
    def format(self) -> FileFormat:
        """Of the files."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        return f"{self.format.noun.lower()} sink"

    @property
    def traits(self) -> Traits:
        """It holds what waits to be written, the rows of a row group, and, while they are written, their pages."""
        held = LIMIT_BYTES + self.buffer_bytes + BUFFER_BYTES
        return Traits(deterministic=True, lane_wise=True, beyond_budget="", held_bytes=lambda _: held)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of rows that wait for their row group to be complete, at most; in a bucket also of the parts of the
        object that is being written."""
        objects = OPEN_OBJECTS if self.partition_by else 1
        return BUFFER_BYTES + (objects * writing_bytes() if bucket_of(str(self.path)) else 0)

    @property
    def guarantee(self) -> str:
        return "exactly once"

    @property
    def place(self) -> str:
        return "" if self.mode == "append" else str(self.path)

    def describe(self) -> str:
        by = f" by {', '.join(self.partition_by)}" if self.partition_by else ""
        return f"write {self.format.noun} files{by}{self.format.told}"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's schema, once it is sure that the files can hold it."""
        (schema,) = inputs
        if (twice := duplicate_of(schema.names)) is not None:
            remedy = f"rename them: a {self.format.noun} file needs unique names"
            raise FlowError(f"several columns are named {twice!r}", remedy)
        check_by(self.partition_by, schema)
        check_fields(self.format, pa.schema([each for each in schema if each.name not in self.partition_by]))
        return schema

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningFileSink:
        filesystem, folder = resolve(str(self.path))
        return RunningFileSink(
            filesystem,
            folder,
            context,
            inputs[0],
            LaneCounts(restored, self.digest(context, inputs[0])),
            restored_totals(restored),
            rows_per_file=self.rows_per_file,
            row_group_rows=self.row_group_rows,
            format=self.format,
            partition_by=self.partition_by,
        )

    def digest(self, context: OperatorContext, schema: pa.Schema) -> RowDigest | None:
        """What digests the rows; None: they can only be counted."""
        return None

    def committer(self, job: str) -> FileCommitter:
        return FileCommitter(self.output, job, self.output_mode)

    @property
    def output_mode(self) -> Mode:
        """Whether the folder is one job's, or several jobs add to it."""
        return "append" if self.mode == "append" else "exclusive"

    @property
    def output(self) -> OutputFolder:
        """The folder, for those who take it over and compare it with the log."""
        return OutputFolder(*resolve(str(self.path)), overwrites=self.mode == "overwrite")

    def visible_rows(self, job: str) -> int | None:
        """The rows of the job's files and of those whose snapshots it goes on from; in a folder of
        its own also those of files that are not the job's: a reader sees them. None if some were retired, and may be
        gone."""
        found = self.each_visible(job, self.format.rows)
        return None if found is None else sum(found)

    def each_visible(self, job: str, read: Callable[[fs.FileSystem, str, str], int]) -> list[int] | None:
        """What ``read`` finds in each of the files that ``visible_rows`` counts: it gets the file system, the folder,
        and a file's path in it. None if some may be gone."""
        output = self.output
        lineage = output.lineage_of(job)
        if output.retired(lineage) is not None:
            return None
        parts, foreign = output.parts(lineage)
        found = []
        for name in [part.name for part in parts] + ([] if self.mode == "append" else foreign):
            path = f"{output.folder}/{name}"
            try:
                found.append(read(output.filesystem, output.folder, name))
            except (OSError, pa.ArrowException) as error:
                remedy = "restore the file from a copy; the job counts what it has written and will not go on without"
                raise StorageError(f"the committed file {path} cannot be read: {error}", remedy) from error
        return found

    def check(self, job: str, resuming: bool = False) -> None:
        """Make the folder, try to write into it, and see whether it holds data.

        ``resuming``: the job goes on from a checkpoint, so files of its own are no surprise. Otherwise they are an
        earlier run's, even if that job had the same name.
        """
        filesystem, folder = resolve(str(self.path))
        try:
            if filesystem.get_file_info(folder).type == fs.FileType.File:
                raise ConfigurationError(f"the output folder {self.path} is a file", "choose another folder")
            filesystem.create_dir(folder, recursive=True)  # what is put there syncs it, with all above it
            probe = f"{folder}/_probe-{uuid.uuid4().hex}"
            with filesystem.open_output_stream(probe) as stream:
                stream.write(b"x")
            filesystem.delete_file(probe)
        except OSError as error:
            told = storage_error("write into the output folder", str(self.path), error)
            raise ConfigurationError(told.message, "make the folder writable, or choose another one") from error
        self.output.refuse_former_marker()
        if self.mode != "append" and not resuming:
            self._refuse_data(self.output)

    def _refuse_data(self, output: OutputFolder) -> None:
        _, data = output.parts(())
        if not data:
            return
        _, owner = output.owner()
        if self.mode == "overwrite":
            raise ConfigurationError(
                f"the output folder {self.path} holds {len(data)} data files that no job has written into a folder of "
                f"its own there ({data[0]} is one)",
                "move them away, or choose another folder: only what jobs have written is overwritten",
            )
        whose = f"belongs to job {owner.job!r} and " if owner is not None and owner.job else ""
        raise ConfigurationError(
            f"the output folder {self.path} {whose}already holds {len(data)} data files ({data[0]} is one)",
            'to write it anew, pass mode="overwrite"; to add to what it holds, mode="append"; or choose another folder',
        )

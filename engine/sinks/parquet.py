"""A sink that writes a folder of Parquet files, each row exactly once.

How the two phases look on storage, and whose a folder is, stands in ``output_folder``.

Rules:

1. Readers pass over names that begin with ``_`` (Spark and ``pyarrow.dataset`` by default), so a plain read of the
   folder sees committed files only, at any moment.
2. A committed file's name is fixed when it is prepared and stands in the committable; committing again changes
   nothing.
3. A folder is used by one sink of one job, unless the mode is "append". Data that were there before are never touched.
4. The folder of a job that ends without a single row holds one file without rows, so that readers find the schema.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
from pyarrow import fs, parquet

from ..core.errors import ConfigurationError, FlowError, StorageError
from ..core.operator import OperatorContext
from ..core.schemas import duplicate_of, no_rows
from ..core.shown import hides_credentials
from ..core.traits import Traits
from ..files.object_store import bucket_of, storage_options, writing_bytes
from ..files.paths import ROWS_PER_BATCH, absolute, resolve, storage_error
from ..integrity.row_digests import MODULUS, RowDigest
from ..state.write_behind import LIMIT_BYTES
from .by_folder import check_by, whole
from .output_folder import Mode, OutputFolder
from .parquet_committer import ParquetCommitter
from .parquet_writer import BUFFER_BYTES, OPEN_OBJECTS, RunningParquetSink, stored_schema

CODECS = ("zstd", "snappy", "lz4", "gzip", "brotli", "none")


@hides_credentials
@dataclass(frozen=True, slots=True)
class ParquetSink:
    """Writes Parquet files into the folder ``path``.

    ``mode``: "new" wants a folder without data, "append" adds to what is there. Files are closed at each checkpoint
    and after ``rows_per_file`` rows; ``row_group_rows`` rows stay in memory until they are written.
    """

    path: str | os.PathLike[str]
    mode: Literal["new", "append"] = "new"
    rows_per_file: int = 1 << 20
    row_group_rows: int = 1 << 17
    compression: str = "zstd"
    """Of the files: one of ``CODECS``."""
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    """Who asks the bucket of the path, and where (``access_key_id``, ``endpoint``, …); else the environment says it."""
    partition_by: Sequence[str] = ()
    """Rows go into folders named after their values in these columns (``by_folder``)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute(self.path))
        object.__setattr__(self, "storage_options", storage_options([str(self.path)], self.storage_options))
        object.__setattr__(self, "partition_by", tuple(self.partition_by))
        if self.mode not in ("new", "append"):
            raise ConfigurationError(f"mode is {self.mode!r}", 'give "new" or "append"')
        if self.compression not in CODECS:
            raise ConfigurationError(f"compression is {self.compression!r}", f"give one of {', '.join(CODECS)}")
        if min(self.rows_per_file, self.row_group_rows) < 1:
            raise ConfigurationError("rows_per_file and row_group_rows must be at least 1", "leave them at the default")

    @property
    def kind(self) -> str:
        return "parquet sink"

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
        return str(self.path) if self.mode == "new" else ""

    def describe(self) -> str:
        return "write Parquet files" + (f" by {', '.join(self.partition_by)}" if self.partition_by else "")

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's schema, once it is sure that Parquet can hold it."""
        (schema,) = inputs
        if (twice := duplicate_of(schema.names)) is not None:
            raise FlowError(f"several columns are named {twice!r}", "rename them: a Parquet file needs unique names")
        check_by(self.partition_by, schema)
        for each in {each.type: each for each in reversed(list(schema))}.values():
            if _has_dates_within(each.type):
                raise FlowError(
                    f"column {each.name!r} has type {each.type}: of dates in milliseconds within other types Parquet "
                    "stores other days",
                    f"cast {each.name!r} to hold date32 or timestamps before the sink",
                )
            if _holds_no_values(each.type):
                raise FlowError(
                    f"column {each.name!r} has type {each.type}: lists of the fixed size 0 cannot be read back from "
                    "Parquet by pyarrow if one of them is null",
                    f"drop {each.name!r} before the sink, or make it a list of any size",
                )
            try:
                parquet.write_table(pa.schema([each]).empty_table(), pa.BufferOutputStream())
            except (pa.ArrowException, OSError) as error:  # the latter from Parquet itself: nothing is stored here
                raise FlowError(
                    f"column {each.name!r} has type {each.type}, which Parquet cannot hold: {error}",
                    f"cast or drop {each.name!r} before the sink",
                ) from error
        return schema

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningParquetSink:
        filesystem, folder = resolve(str(self.path))
        return RunningParquetSink(
            filesystem,
            folder,
            context,
            inputs[0],
            restored,
            rows_per_file=self.rows_per_file,
            row_group_rows=self.row_group_rows,
            compression=self.compression,
            partition_by=self.partition_by,
        )

    def committer(self, job: str) -> ParquetCommitter:
        filesystem, folder = resolve(str(self.path))
        return ParquetCommitter(OutputFolder(filesystem, folder), job, self.output_mode)

    @property
    def output_mode(self) -> Mode:
        """Whether the folder is one job's, or several jobs add to it."""
        return "exclusive" if self.mode == "new" else "append"

    @property
    def output(self) -> OutputFolder:
        """The folder, for those who take it over and compare it with the log."""
        return OutputFolder(*resolve(str(self.path)))

    def visible_rows(self, job: str) -> int | None:
        """The rows of the job's files, by their footers, and of those whose snapshots it goes on from; in a folder of
        its own also those of files that are not the job's: a reader sees them. None if some were retired, and may be
        gone."""
        found = self._visible(job, _rows)
        return None if found is None else sum(found)

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """The schema in which the rows come back from its files."""
        return stored_schema(schema, self.partition_by)

    def visible_digest(self, job: str) -> int | str:
        """Of the rows of the same files, read back; pages are compared with their checksums."""
        found = self._visible(job, _digest)
        return "files that were retired may be gone" if found is None else sum(found) % MODULUS

    def _visible(self, job: str, read: Callable[[fs.FileSystem, str, str], int]) -> list[int] | None:
        output = self.output
        lineage = output.lineage_of(job)
        if output.retired(lineage) is not None:
            return None
        parts, foreign = output.parts(lineage)
        found = []
        for name in [part.name for part in parts] + (foreign if self.mode == "new" else []):
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
        if self.mode == "new" and not resuming:
            self._refuse_data()

    def _refuse_data(self) -> None:
        data = self.output.data_files()
        if not data:
            return
        _, owner = self.output.owner()
        whose = f"belongs to job {owner.job!r} and " if owner is not None and owner.job else ""
        raise ConfigurationError(
            f"the output folder {self.path} {whose}already holds {len(data)} data files ({data[0][0]} is one)",
            'choose another folder, remove this one, or add to what it holds with mode="append"',
        )


def _holds_no_values(type: pa.DataType) -> bool:
    """Whether there are lists of the fixed size 0 in the type."""
    if pa.types.is_fixed_size_list(type) and not type.list_size:
        return True
    return any(_holds_no_values(type.field(number).type) for number in range(type.num_fields))


def _has_dates_within(type: pa.DataType) -> bool:
    """Whether there are dates in milliseconds below the type itself."""
    inner = [type.field(number).type for number in range(type.num_fields)]
    if pa.types.is_dictionary(type):
        inner.append(type.value_type)
    return any(pa.types.is_date64(each) or _has_dates_within(each) for each in inner)


def _rows(filesystem: fs.FileSystem, folder: str, name: str) -> int:
    return int(parquet.read_metadata(f"{folder}/{name}", filesystem=filesystem).num_rows)


def _digest(filesystem: fs.FileSystem, folder: str, name: str) -> int:
    """Of the rows of a file, in its own schema: an earlier job of the lineage may have had another one."""
    path = f"{folder}/{name}"
    with parquet.ParquetFile(path, filesystem=filesystem, page_checksum_verification=True) as file:
        digest = RowDigest(whole(no_rows(file.schema_arrow), name).schema)
        return sum(digest.of(whole(rows, name)) for rows in file.iter_batches(ROWS_PER_BATCH, use_threads=False))

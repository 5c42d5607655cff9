"""A sink that writes a folder of Parquet files, each row exactly once.

How the two phases look on storage::

    out/part-<operator>-<subtask>-<checkpoint>-<n>.parquet    committed: the data set
    out/_staging/<job>/<operator>-<subtask>-<attempt>-<n>.parquet    prepared or being written: hidden
    out/_penstock.json                                         whose folder this is: hidden

Rules:

1. Readers pass over names that begin with ``_`` (Spark and ``pyarrow.dataset`` by default), so a plain read of the
   folder sees committed files only, at any moment.
2. A committed file's name is fixed when it is prepared and stands in the committable; committing again changes
   nothing.
3. A folder is used by one sink of one job, marked by ``_penstock.json``, unless the mode is "append". Data that were
   there before are never touched.
4. The folder of a job that ends without a single row holds one file without rows, so that readers find the schema.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyarrow import fs, parquet

from ..durable import make_folder, put_file
from ..errors import ConfigurationError, FlowError
from ..operators.protocol import OperatorContext
from ..sources.files import absolute, is_hidden, resolve, storage_error
from .parquet_committer import ParquetCommitter
from .parquet_writer import BUFFER_BYTES, RunningParquetSink

CODECS = ("zstd", "snappy", "lz4", "gzip", "brotli", "none")
MARKER = "_penstock.json"
FORMAT = 1
"""Version of the marker's form."""


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute(self.path))
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
    def buffer_bytes(self) -> int:
        """Bytes of rows that wait for their row group to be complete, at most."""
        return BUFFER_BYTES

    @property
    def guarantee(self) -> str:
        return "exactly once"

    @property
    def place(self) -> str:
        return str(self.path) if self.mode == "new" else ""

    def describe(self) -> str:
        return "write Parquet files"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The input's schema, once it is sure that Parquet can hold it."""
        (schema,) = inputs
        for name in schema.names:
            if schema.names.count(name) > 1:
                raise FlowError(f"several columns are named {name!r}", "rename them: a Parquet file needs unique names")
        for field in schema:
            try:
                parquet.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
                raise FlowError(
                    f"column {field.name!r} has type {field.type}, which Parquet cannot hold: {error}",
                    f"cast or drop {field.name!r} before the sink",
                ) from error
        return schema

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningParquetSink:
        filesystem, folder = resolve(str(self.path))
        self._claim(filesystem, folder, context)
        # two jobs that append to one folder may number their checkpoints alike
        suffix = "" if self.mode == "new" else f"-{uuid.uuid4().hex[:8]}"
        return RunningParquetSink(
            filesystem,
            folder,
            context,
            inputs[0],
            restored,
            rows_per_file=self.rows_per_file,
            row_group_rows=self.row_group_rows,
            compression=self.compression,
            suffix=suffix,
        )

    def committer(self, job: str) -> ParquetCommitter:
        filesystem, folder = resolve(str(self.path))
        return ParquetCommitter(filesystem, folder, job)

    def visible_rows(self, job: str) -> int | None:
        """The rows of the folder's data files, by their footers; None in a folder that is shared (mode "append")."""
        if self.mode == "append":
            return None
        filesystem, folder = resolve(str(self.path))
        found = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        files = [each.path for each in found if each.type == fs.FileType.File and not is_hidden(each.base_name)]
        return sum(int(parquet.read_metadata(path, filesystem=filesystem).num_rows) for path in files)

    def check(self, job: str, resuming: bool = False) -> None:
        """Make the folder, try to write into it, and see whose data it holds.

        ``resuming``: the job goes on from a checkpoint, so files of its own are no surprise. Otherwise they are an
        earlier run's, even if that job had the same name.
        """
        filesystem, folder = resolve(str(self.path))
        try:
            if filesystem.get_file_info(folder).type == fs.FileType.File:
                raise ConfigurationError(f"the output folder {self.path} is a file", "choose another folder")
            make_folder(filesystem, folder)
            probe = f"{folder}/_probe-{uuid.uuid4().hex}"
            with filesystem.open_output_stream(probe) as stream:
                stream.write(b"x")
            filesystem.delete_file(probe)
            if self.mode == "new":
                self._check_owner(filesystem, folder, job, resuming)
        except OSError as error:
            told = storage_error("write into the output folder", str(self.path), error)
            raise ConfigurationError(told.message, "make the folder writable, or choose another one") from error

    def _check_owner(self, filesystem: fs.FileSystem, folder: str, job: str, resuming: bool) -> None:
        owner = read_marker(filesystem, folder)
        found = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
        names = (each.path.removeprefix(folder.rstrip("/") + "/") for each in found if each.type == fs.FileType.File)
        data = sorted(name for name in names if not is_hidden(name))
        mine = owner is not None and owner["job"] == job
        if (resuming and mine) or (not data and (owner is None or mine)):
            return
        whose = f"belongs to job {owner['job']!r} and " if owner is not None and not mine else ""
        held = f"already holds {len(data)} data files ({data[0]} is one)" if data else "has no data yet"
        raise ConfigurationError(
            f"the output folder {self.path} {whose}{held}",
            'choose another folder, remove this one, or add to what it holds with mode="append"',
        )

    def _claim(self, filesystem: fs.FileSystem, folder: str, context: OperatorContext) -> None:
        """Mark the folder as this sink's, or find that it is. A folder to append to is nobody's."""
        if self.mode == "append":
            return
        mine = {"format": FORMAT, "job": context.job, "operator": context.operator}
        try:
            if (owner := read_marker(filesystem, folder)) is None:
                make_folder(filesystem, folder)
                # whole: another subtask may be reading it
                put_file(filesystem, f"{folder}/{MARKER}", json.dumps(mine).encode())
                owner = mine
        except OSError as error:
            raise storage_error("write into the output folder", str(self.path), error) from error
        if (owner["job"], owner["operator"]) != (context.job, context.operator):
            raise ConfigurationError(
                f"the output folder {self.path} belongs to sink {owner['operator']!r} of job {owner['job']!r}",
                'give each sink its own folder, or use mode="append"',
            )


def read_marker(filesystem: fs.FileSystem, folder: str) -> dict[str, Any] | None:
    """What ``_penstock.json`` says, or None if there is none."""
    path = f"{folder}/{MARKER}"
    if filesystem.get_file_info(path).type != fs.FileType.File:
        return None
    with filesystem.open_input_stream(path) as stream:
        data = stream.read()
    try:
        marker = json.loads(data)
        return {"job": str(marker["job"]), "operator": str(marker["operator"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} is not a marker of Penstock", "choose another output folder") from error

"""The running half of a sink of files: rows into hidden files, files into committables.

Rules:

1. A staged file's name carries the job's UUID, its coordinator's claim and the attempt, so nobody ever writes into a
   file of another.
2. Encoding, writing and closing happen on another thread (``OperatorContext.write``), in the order of the rows.
   ``prepare`` comes after the files are closed and safe from a power cut. It gives no committable if there were no
   rows, except at the end of a flow without any (rule 4 of the sink).
3. The totals of all files that were closed up to a checkpoint's barrier are part of its state (``settle``): whoever
   resumes compares them with what is there.
4. After an error the sink is broken: rows that did not reach a file are lost with it, so every later write fails the
   same way, and the attempt must be replaced. What it had not flushed is removed at once, on the thread that writes.
   What it had is whole, and the driver may be about to prepare it: it is left to ``prepare`` and ``close``.
5. Files promise nothing about nulls inside a type (``nullability``): a null struct holds no values to keep a promise.
6. Values that the file's types cannot hold are an error of the data, which no other attempt could mend.
7. With ``partition_by`` several files are open at once, one a folder. All together they hold no more bytes than one
   does otherwise: the one that holds most writes a row group. So many are open at most (``OPEN_FILES``); then the one
   that had no rows for the longest time is closed, and its folder gets another file.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow import fs, parquet

from ..arrow.days import whole_days
from ..arrow.nullability import loosely, loosened
from ..core.elements import Batch
from ..core.errors import DataError, PenstockError
from ..core.identity import CheckpointId, Committable
from ..core.operator import OperatorContext, Output, Stateless
from ..files.durable import make_folder, sync_file, sync_folder
from ..files.object_files import files_of
from ..files.paths import is_local, safe_name, storage_error
from ..integrity.checksums import digest, running_digest
from .by_folder import folder_name, folders_of, stored_with
from .file_formats import FileFormat, FileWriter
from .lane_counts import LaneCounts
from .output_folder import MODULUS, Totals, part_name

STAGING = "_staging"
UNCLAIMED = "unclaimed"
"""Where the attempts of a task stage that no coordinator ordered."""
TOTALS = ("files", "file_bytes", "file_names")
"""Columns of the state: a subtask's :class:`Totals`, in the row of one of its lanes."""
_KINDS = (pa.int64(), pa.int64(), pa.uint64())
BUFFER_BYTES = 64 * 1024 * 1024
"""A row group is written at this size even if it has few rows: wide rows must not fill the memory."""
OPEN_FILES, OPEN_OBJECTS = 128, 4
"""Rule 7: so many. An object that is being written holds parts of it."""


class StagedFile:
    """One hidden file that is being written. Rows wait until they make a row group."""

    def __init__(
        self, filesystem: fs.FileSystem, path: str, schema: pa.Schema, group_rows: int, format: FileFormat
    ) -> None:
        self.path = path
        self.rows = 0
        #: of the rows that are in no row group yet
        self.pending_bytes = 0
        self._filesystem = filesystem
        self._schema = schema
        self._group_rows = group_rows
        #: all and only the batches that are in no row group yet
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._format = format
        self._stream = filesystem.open_output_stream(path, compression=None)
        #: where reading a file back would cost more than each write's way through Python; None elsewhere
        self._digested = None if is_local(filesystem) else _Digested(self._stream)
        #: None until the first rows are known, which decide about dictionaries
        self._writer: FileWriter | None = None

    def write(self, records: pa.RecordBatch) -> None:
        """Take the rows; write row groups that are full."""
        self.rows += records.num_rows
        self._pending.append(records)
        self._pending_rows += records.num_rows
        self.pending_bytes += records.nbytes
        if self._pending_rows >= self._group_rows or self.pending_bytes >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits as a row group."""
        table = pa.Table.from_batches(self._pending, self._schema)
        writer = self._begun(table)
        for rows in range(0, table.num_rows, self._group_rows):
            writer.write_table(table.slice(rows, self._group_rows))
        self._pending, self._pending_rows, self.pending_bytes = [], 0, 0

    def _begun(self, table: pa.Table) -> FileWriter:
        """The writer; if there is none yet, one for a file that begins with these rows."""
        if self._writer is None:
            stream = self._stream if self._digested is None else pa.PythonFile(self._digested, mode="w")
            self._writer = self._format.begin(stream, self._schema, table)
        return self._writer

    def close(self) -> tuple[int, str]:
        """Write what is left; the file's size and digest, once its bytes are safe; its name may not be."""
        if self._pending:
            self.flush()
        self._begun(self._schema.empty_table()).close()
        self._stream.close()
        sync_file(self._filesystem, self.path)
        return self._content()

    def _content(self) -> tuple[int, str]:
        if self._digested is not None:
            return self._digested.bytes, self._digested.state.hexdigest()
        with open(self.path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return 0, digest(b"")
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as written:
                return len(written), digest(written)

    def abandon(self) -> None:
        """Close without finishing and remove the file, as far as a broken storage lets us."""
        # closing writes the rest, which fails again on a full disk
        with suppress(OSError):
            if self._writer is not None:
                self._writer.close()
        with suppress(OSError):
            self._stream.close()
        remove(self._filesystem, self.path)


class _Digested:
    """A stream that is written through, and what the digest of its bytes is. It is what pyarrow wants of a file."""

    closed = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self.state = running_digest()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        self.state.update(data)
        self.bytes += len(data)
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...


def remove(filesystem: fs.FileSystem, path: str) -> None:
    """Delete the file if it is there and the storage allows."""
    with suppress(OSError):
        filesystem.delete_file(path)


class RunningFileSink(Stateless):
    """Writes the rows of one subtask."""

    def __init__(
        self,
        filesystem: fs.FileSystem,
        folder: str,
        context: OperatorContext,
        schema: pa.Schema,
        counts: LaneCounts,
        totals: Totals,
        *,
        rows_per_file: int,
        row_group_rows: int,
        format: FileFormat,
        partition_by: Sequence[str] = (),
    ) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._context = context
        self._by = tuple(partition_by)
        #: of the files (rule 5)
        self._schema = loosened(stored_with(schema, self._by))
        self._rows_per_file = rows_per_file
        self._row_group_rows = row_group_rows
        self._format = format
        self._counts = counts
        #: of all files that were closed for a barrier since the job began
        self._totals = totals
        #: the same as of the barrier, for checkpoints that have not been prepared yet
        self._settled: dict[CheckpointId, Totals] = {}
        #: the flow has ended and rows are complete
        self._finished = False
        # what follows belongs to whoever writes, one at a time
        #: the file that takes the next rows of each folder ("" without them), the one that got rows last at the end
        self._open: OrderedDict[str, StagedFile] = OrderedDict()
        self._most_open = OPEN_FILES if files_of(filesystem) is None else OPEN_OBJECTS
        #: all and only the closed files that no checkpoint was flushed for, as payload entries without "final"
        self._closed: list[dict[str, Any]] = []
        #: those of checkpoints that have not been prepared yet
        self._flushed: dict[CheckpointId, list[dict[str, Any]]] = {}
        #: files opened by this attempt, to number them
        self._opened = 0
        #: the error that broke this sink, or None
        self._broken: PenstockError | None = None
        #: names by position of the columns of dates in milliseconds, of which files store days
        self._dates = {at: field.name for at, field in enumerate(schema) if pa.types.is_date64(field.type)}

    def process(self, port: int, batch: Batch, out: Output) -> None:
        records = batch.records
        for at, name in self._dates.items():
            records = records.set_column(at, records.schema.field(at), whole_days(records.column(at), name))
        self._counts.take(batch.tag.lane, records)
        self._context.write(partial(self._write, records), records.nbytes)

    def _write(self, records: pa.RecordBatch) -> None:
        try:
            self._check()
            for folder, rows in folders_of(records, self._by) if self._by else (("", records),):
                self._put(folder, rows)
        except (OSError, pa.ArrowException) as error:
            raise self._break(error) from error
        except PenstockError as error:
            self._give_up(error)
            raise

    def _put(self, folder: str, records: pa.RecordBatch) -> None:
        while records.num_rows:
            file = self._file_of(folder)
            piece = records.slice(0, self._rows_per_file - file.rows)
            records = records.slice(piece.num_rows)
            file.write(loosely(piece, self._schema))
            if file.rows == self._rows_per_file:
                self._roll(folder)
        while len(self._open) > 1 and sum(each.pending_bytes for each in self._open.values()) >= BUFFER_BYTES:
            max(self._open.values(), key=lambda each: each.pending_bytes).flush()

    def _file_of(self, folder: str) -> StagedFile:
        """The file that takes the next rows of the folder. Rule 7."""
        if folder in self._open:
            self._open.move_to_end(folder)
        else:
            if len(self._open) == self._most_open:
                self._roll(next(iter(self._open)))
            self._open[folder] = self._new_file()
        return self._open[folder]

    def finish(self, out: Output) -> None:
        self._finished = True

    def flush(self, checkpoint: CheckpointId) -> None:
        """Close the files of the rows before the barrier."""
        mark = self._finished and not self._counts.total and self._context.task.subtask == 0
        self._context.write(partial(self._close_files, checkpoint, mark), 0)

    def _close_files(self, checkpoint: CheckpointId, mark: bool) -> None:
        """Close what is open, or, to ``mark`` the end of a flow without rows, a file without rows."""
        try:
            self._check()
            if mark:
                self._file_of("/".join(folder_name(name, None) for name in self._by))
            for folder in list(self._open):
                self._roll(folder)
            if self._closed:
                sync_folder(self._filesystem, self._staging)
        except (OSError, pa.ArrowException) as error:
            raise self._break(error) from error
        except PenstockError as error:
            self._give_up(error)
            raise
        for number, file in enumerate(self._closed):
            folder = file.pop("folder")
            file["final"] = f"{folder}/" * bool(folder) + self._final_name(checkpoint, number)
            self._totals = self._totals.add(file["final"], file["bytes"])
        self._settled[checkpoint] = self._totals
        self._flushed[checkpoint], self._closed = self._closed, []

    def prepare(self, checkpoint: CheckpointId) -> list[Committable]:
        """The files of the rows before the barrier."""
        files = self._flushed.pop(checkpoint)
        if not files:
            return []
        return [Committable(self._context.operator, sum(file["rows"] for file in files), {"files": files})]

    @property
    def counts(self) -> LaneCounts:
        """Rows per lane."""
        return self._counts

    def snapshot(self) -> pa.Table | None:
        return self._counts.snapshot()

    def settle(self, checkpoint: CheckpointId, state: pa.Table | None) -> pa.Table | None:
        """The state as of the checkpoint's barrier, with the totals of the files up to it."""
        totals = self._settled.pop(checkpoint)
        if state is None and not totals.files:
            return None
        if state is None:
            state = LaneCounts.empty_at(self._context.lanes.start)
        for name, value, kind in zip(TOTALS, astuple(totals), _KINDS, strict=True):
            # one of the lanes carries them, to whoever has it next
            state = state.append_column(name, pa.array([value, *[0] * (state.num_rows - 1)], kind))
        return state

    def close(self) -> None:
        self._remove_unflushed()
        for files in self._flushed.values():
            self._remove(files)
        self._flushed = {}

    def _remove_unflushed(self) -> None:
        for open_file in self._open.values():
            open_file.abandon()
        self._remove(self._closed)
        self._open, self._closed = OrderedDict(), []

    def _remove(self, files: Sequence[Mapping[str, Any]]) -> None:
        for file in files:
            remove(self._filesystem, f"{self._folder}/{file['staged']}")

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _break(self, error: OSError | pa.ArrowException) -> PenstockError:
        told: PenstockError
        if isinstance(error, OSError):
            told = storage_error("write into the output folder", self._folder, error)
        else:
            types = ", ".join(f"{field.name} {field.type}" for field in self._schema)
            noun = self._format.noun
            remedy = f"cast the column to a type that {noun} stores whole, or filter such rows out; columns: {types}"
            told = DataError(f"{noun} cannot hold a value: {error}", remedy)
        self._give_up(told)
        return told

    def _give_up(self, error: PenstockError) -> None:
        """Rule 4."""
        self._broken = error
        self._remove_unflushed()

    def _new_file(self) -> StagedFile:
        path = f"{self._staging}/{self._staged_name(self._opened)}"
        if not self._opened:
            make_folder(self._filesystem, self._staging)
        self._opened += 1
        return StagedFile(self._filesystem, path, self._schema, self._row_group_rows, self._format)

    def _roll(self, folder: str) -> None:
        """Close the open file of a folder; it waits for the next checkpoint."""
        file = self._open[folder]
        size, content = file.close()
        staged = file.path.removeprefix(f"{self._folder}/")
        told = {"staged": staged, "rows": file.rows, "bytes": size, "digest": content}
        self._closed.append({**told, "folder": folder})
        del self._open[folder]

    def _staged_name(self, number: int) -> str:
        context = self._context
        name = f"{safe_name(context.operator)}-{context.task.subtask:05d}-{context.attempt}-{number:05d}"
        return name + self._format.ending

    @property
    def _staging(self) -> str:
        context = self._context
        return f"{self._folder}/{STAGING}/{safe_name(context.job)}/{safe_name(context.claim or UNCLAIMED)}"

    def _final_name(self, checkpoint: CheckpointId, number: int) -> str:
        context = self._context
        return part_name(context.operator, context.task.subtask, checkpoint, number, context.job, self._format.ending)


def stored_schema(schema: pa.Schema, by: Sequence[str] = ()) -> pa.Schema:
    """The schema in which rows come back from a file; the columns of its folders (``by``) as they were."""
    file = pa.BufferOutputStream()
    parquet.write_table(loosened(schema).empty_table(), file)
    found: pa.Schema = parquet.read_schema(pa.BufferReader(file.getvalue()))
    return pa.schema([schema.field(each.name) if each.name in by else each for each in found], found.metadata)


def restored_totals(state: pa.Table | None) -> Totals:
    """What the lanes carry of the totals."""
    if state is None or TOTALS[0] not in state.column_names:
        return Totals()
    files, size, names = (sum(value or 0 for value in state[name].to_pylist()) for name in TOTALS)
    return Totals(files, size, names % MODULUS)

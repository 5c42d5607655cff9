"""The state files of checkpoints: at most one for each task and checkpoint, never changed.

They lie in ``<checkpoint folder>/<job>/state/<vertex>-<subtask>/<checkpoint>-<attempt>.arrow``. A file has a part for
each operator whose state is new, and some for what is in flight. A part is an Arrow IPC file; handles say where it
begins and ends. A file of one part is an Arrow file, which any Arrow tool can read.

Rules:

1. A file's name is never used twice: it carries the checkpoint and the attempt. A file that could not be completed is
   removed, and no handle to it is given away.
2. What is new and takes no more than ``INLINE_BYTES`` in all is put into the handles, and there is no file. So a task
   with little state costs the store nothing, and a manifest of a thousand such tasks a few megabytes.
3. What an operator's last state had a part for, with the same bytes, gets that part's handle again. This is done only
   once ``completed`` has reported a checkpoint with that handle as durable: the files of a checkpoint that was aborted
   are deleted, so they must not be shared. A file stays as long as any of its parts is referred to. What an attempt
   was restored from is known to be durable, and counts as its last state.
4. Handles are relative to the checkpoint folder, and they come from storage, so they are checked to lie inside it.
5. Batches in flight are never shared.
6. Any Arrow schema will do; whether the rows make sense is the operators' business.
7. A handle carries the digest of its part's bytes. A part that has others is an error, never another table.
8. Nothing is acknowledged before it survives a power cut: the file of a task, and its folder.
9. A part is read from the copy that this machine has (``local_copies``), else from the checkpoint folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from threading import Lock

import pyarrow as pa
from pyarrow import ipc

from ...engine.core.errors import DamagedFileError, StorageError
from ...engine.core.identity import Attempt, CheckpointId, Holds, StateHandle, TaskId
from ...engine.core.union_buffers import whole_union_table
from ...engine.exchange.flight import Flight
from ...engine.files.durable import make_folder
from ...engine.files.paths import absolute, resolve, safe_name, storage_error
from ...engine.integrity.checksums import digest
from ...engine.runtime.statistics import NO_COPIES, CopyStatistics
from ...engine.state.change_log import Changes, LogCut, StatePart, merge_from, merged
from .damage import GO_ON, check_bytes, unreadable
from .local_copies import LocalCopies
from .state_file import INLINE_BYTES, StateFile, to_ipc
from .stores import is_gone

LOOK_AGAIN = 1.0
"""Seconds after which a file that is not there is looked for again."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A part of an operator's state, and the checkpoint it was written for."""

    handle: StateHandle
    since: CheckpointId


@dataclass(frozen=True, slots=True)
class _LastWrite:
    """What one task stored last: the parts of its operators' states, by operator and digest."""

    attempt: Attempt
    checkpoint: CheckpointId
    parts: dict[tuple[str, str], _Kept]


class SnapshotFiles:
    """Writes, reads and deletes the state files of ``job``. Safe to use from several threads. ``inline``: rule 2;
    ``copies``: rule 9; ``way_on``: what helps whoever misses a file or finds it damaged."""

    def __init__(
        self,
        folder_url: str,
        job: str,
        inline: int = INLINE_BYTES,
        copies: LocalCopies | None = None,
        way_on: str = GO_ON,
    ) -> None:
        self._way_on = way_on
        self._copies = copies
        self._url = absolute(folder_url)
        self._filesystem, folder = resolve(self._url)
        self._folder = folder.rstrip("/")
        self._job = safe_name(job)
        self._inline = inline
        self._lock = Lock()
        #: folders that were made, and synced with all above them
        self._made: set[str] = set()
        #: the latest write of each task, by (attempt, checkpoint): every later completed checkpoint of the task holds
        #: those of its files that were written for a completed checkpoint
        self._last: dict[TaskId, _LastWrite] = {}
        #: the latest checkpoint of each task that is known to be durable
        self._completed: dict[TaskId, CheckpointId] = {}
        #: bytes written and bytes saved by sharing, for statistics
        self.bytes_written = 0
        self.bytes_shared = 0

    @property
    def url(self) -> str:
        """The checkpoint folder, which locations are relative to."""
        return self._url

    def write(
        self,
        task: TaskId,
        checkpoint: CheckpointId,
        attempt: Attempt,
        tables: Mapping[str, pa.Table | Changes],
        flight: Flight | None = None,
    ) -> tuple[StateHandle, ...]:
        """Store the state of each operator, and what is in flight. Raises StorageError; then no new file of this call
        is left."""
        location = self._location(task, checkpoint, attempt)
        wrote = () if self._copies is None else (partial(self._copies.keep, checkpoint),)
        file = StateFile(self._filesystem, self._folder, location, self._make, self._inline, *wrote)
        #: of each operator: handles of what is stored, and places among what is new
        states: dict[str, list[StateHandle | int]] = {}
        parts: list[tuple[StatePart, int]] = []
        try:
            for operator, state in tables.items():
                if isinstance(state, Changes):
                    states[operator] = self._write_changes(file, task, attempt, operator, state, parts)
                else:
                    there = self._write_table(file, task, attempt, operator, state)
                    states[operator] = [there if isinstance(there, int) else there.handle]
            for table in _flight_tables(flight):
                file.add_table(task.vertex, table, Holds.FLIGHT)
            written = file.end()
        except OSError as error:
            file.remove()
            self._made.clear()  # a folder that is gone is made again
            raise storage_error("write a checkpoint into", self._url, error) from error
        handles = {
            name: [written[each] if isinstance(each, int) else each for each in found] for name, found in states.items()
        }
        for state_part, place in parts:
            if state_part.kept is None or (state_part.kept.since < checkpoint and state_part.table is not None):
                # rows that were let go of are where they were until this checkpoint stands: it may be given up
                state_part.kept = _Kept(written[place], checkpoint)
        self._remember(task, attempt, checkpoint, handles, written)
        flying = (each for each in written if each.is_flight)
        given = (*(each for found in handles.values() for each in found), *flying)
        if self._copies is not None:
            self._copies.named(checkpoint, given)
        return given

    def _write_table(
        self, file: StateFile, task: TaskId, attempt: Attempt, operator: str, table: pa.Table
    ) -> _Kept | int:
        """Store rows, unless they lie somewhere already. Their place among what is new, or where that is."""
        data = to_ipc(table)
        found = digest(data)
        shared = self._shared(task, operator, attempt, found)
        return shared or file.add(StateHandle(operator, "", data.size, table.num_rows, digest=found), data)

    def _write_changes(
        self,
        file: StateFile,
        task: TaskId,
        attempt: Attempt,
        operator: str,
        state: Changes,
        new: list[tuple[StatePart, int]],
    ) -> list[StateHandle | int]:
        """Store those parts that are not safe, put together if they are many."""
        found: list[StateHandle | int] = []
        for part in chain.from_iterable(map(self._parts_of, state.cuts)):
            if part.kept is not None and self._is_safe(task, part.kept):
                part.let_go()
                found.append(part.kept.handle)
                continue
            there = self._write_table(file, task, attempt, operator, self._rows_of(part))
            if isinstance(there, int):
                found.append(there)
                new.append((part, there))
            else:
                found.append(there.handle)
                part.kept = there
        return found

    def _parts_of(self, cut: LogCut) -> list[StatePart]:
        parts = cut.up_to_date()
        first = merge_from([part.rows for part in parts], cut.log.grows)
        if first < len(parts) - 1:
            table = merged([self._rows_of(part) for part in parts[first:]])
            whole = StatePart(lambda: table, table.num_rows)
            cut.log.merged(parts[first:], whole)
            parts[first:] = [whole]
        return parts

    def _is_safe(self, task: TaskId, kept: _Kept) -> bool:
        with self._lock:
            completed = self._completed.get(task)
        return completed is not None and kept.since <= completed and bool(kept.handle.location)

    def _rows_of(self, part: StatePart) -> pa.Table:
        table = part.table
        return self._read(part.kept.handle) if table is None else table

    def completed(self, task: TaskId, checkpoint: CheckpointId) -> None:
        """The checkpoint is durable, with the handles that ``write`` gave for this task."""
        with self._lock:
            latest = self._completed.get(task)
            self._completed[task] = checkpoint if latest is None else max(latest, checkpoint)
        if self._copies is not None:
            self._copies.completed(_folder_of(task), checkpoint)

    @property
    def copies(self) -> CopyStatistics:
        """What was read from copies on this machine."""
        return NO_COPIES if self._copies is None else self._copies.statistics

    def close(self) -> None:
        """The job is over, for this process."""
        if self._copies is not None:
            self._copies.close()

    def read(self, handles: Iterable[StateHandle]) -> dict[str, pa.Table]:
        """The tables of the state handles, those of one operator (of several tasks) one after the other, as given."""
        return {operator: merged(tables) for operator, tables in self._tables(handles).items()}

    def restored(
        self, task: TaskId, checkpoint: CheckpointId, attempt: Attempt, handles: Sequence[StateHandle]
    ) -> tuple[dict[str, pa.Table], dict[str, tuple[StatePart, ...]]]:
        """The same for an attempt that begins with a checkpoint of this job, which stands; and its parts, that what the
        attempt writes may go on with them (rule 3)."""
        tables = self._tables(handles)
        parts: dict[str, list[StatePart]] = {}
        last = _LastWrite(attempt, checkpoint, {})
        for handle in handles:
            if not handle.is_flight:
                found = parts.setdefault(handle.operator, [])
                table = tables[handle.operator][len(found)]
                found.append(StatePart(partial(_same, table), table.num_rows))
                found[-1].kept = last.parts[handle.operator, handle.digest] = _Kept(handle, checkpoint)
        with self._lock:
            self._last[task] = last
        self.completed(task, checkpoint)
        whole = {operator: merged(each) for operator, each in tables.items()}
        return whole, {operator: tuple(each) for operator, each in parts.items()}

    def _tables(self, handles: Iterable[StateHandle]) -> dict[str, list[pa.Table]]:
        tables: dict[str, list[pa.Table]] = {}
        handles = tuple(handles)
        if self._copies is not None:
            self._copies.restored(handles)
        for handle in handles:
            if not handle.is_flight:
                tables.setdefault(handle.operator, []).append(self._read(handle))
        return tables

    def read_flights(self, handles: Iterable[StateHandle]) -> tuple[Flight, ...]:
        """What tasks had in flight when they were cut as a whole, as given; none: they were not cut."""
        tables = [self._read(handle) for handle in handles if handle.holds is Holds.FLIGHT]
        found: list[Flight] = []
        while tables:
            place, behind = tables[0], 1 + tables[0].column("tables")[0].as_py()
            found.append(Flight(place.column("place")[0].as_py(), tuple(tables[1:behind])))
            del tables[:behind]
        return tuple(found)

    def read_place(self, handles: Iterable[StateHandle]) -> bytes | None:
        """The same without the rows: where the task's drivers stood."""
        found = next((handle for handle in handles if handle.is_flight), None)
        return None if found is None else self._read(found).column("place")[0].as_py()

    def _read(self, handle: StateHandle) -> pa.Table:
        copy = self._copy(handle)
        data = pa.py_buffer(handle.inline) if handle.inline else copy or self._part(handle)
        place = f"the state file {self._inside(handle.location)}" if handle.location else "a state in the log"
        check_bytes(place, data, handle.bytes, handle.digest, self._way_on)
        if self._copies is not None and copy is None and handle.location:
            self._copies.fetched(handle, data)
        try:
            with ipc.open_file(data) as reader:
                return whole_union_table(reader.read_all())
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable(place, error, self._way_on) from error

    def _copy(self, handle: StateHandle) -> pa.Buffer | None:
        return None if self._copies is None or not handle.location else self._copies.read(handle)

    def _part(self, handle: StateHandle) -> pa.Buffer:
        with self._opened(handle.location) as file:
            file.seek(handle.offset)
            return file.read_buffer(handle.bytes)

    def read_file(self, location: str, parts: Sequence[StateHandle]) -> pa.Buffer:
        """A whole file of which these are parts, sure to be what was written. Raises StorageError."""
        with self._opened(location) as file:
            data = file.read_buffer()
        for part in parts:
            piece = data[part.offset : part.offset + part.bytes]
            check_bytes(f"the state file {self._inside(location)}", piece, part.bytes, part.digest, self._way_on)
        return data

    @contextmanager
    def _opened(self, location: str) -> Iterator[pa.NativeFile]:
        path = self._inside(location)
        try:
            with self._found(path) as file:
                yield file
        except OSError as error:
            raise storage_error("read the state file", path, error) from error

    def _found(self, path: str) -> pa.NativeFile:
        """The file. One that is gone comes back no more often than one that is damaged is mended, so this is final;
        folders that several machines share may show it late, so it is looked for again. Where the whole folder is gone,
        it may be a mount that is away for a while."""
        with suppress(FileNotFoundError):
            return self._filesystem.open_input_file(path)
        time.sleep(LOOK_AGAIN)
        try:
            return self._filesystem.open_input_file(path)
        except FileNotFoundError as error:
            if is_gone(self._url):
                raise
            raise DamagedFileError(f"the state file {path} is gone", self._way_on) from error

    def delete(self, handles: Iterable[StateHandle]) -> None:
        """Delete the files; those that are gone already do not matter."""
        try:
            for location in dict.fromkeys(handle.location for handle in handles if handle.location):
                with suppress(FileNotFoundError):
                    self._filesystem.delete_file(self._inside(location))
        except OSError as error:
            raise storage_error("delete old checkpoints in", self._url, error) from error

    def _shared(self, task: TaskId, operator: str, attempt: Attempt, found: str) -> _Kept | None:
        """The part of the operator's last state with these bytes, if it is sure to stay."""
        with self._lock:
            last = self._last.get(task)
        if last is None or last.attempt != attempt:
            return None
        kept = last.parts.get((operator, found))
        return kept if kept is not None and self._is_safe(task, kept) else None

    def _remember(
        self,
        task: TaskId,
        attempt: Attempt,
        checkpoint: CheckpointId,
        handles: Mapping[str, list[StateHandle]],
        new: Sequence[StateHandle],
    ) -> None:
        written = sum(handle.bytes for handle in new)
        named = sum(handle.bytes for found in handles.values() for handle in found)
        locations = {handle.location for handle in new}
        with self._lock:
            self.bytes_written += written
            self.bytes_shared += named - sum(each.bytes for each in new if not each.is_flight)
            last = self._last.get(task)
            # a slow write of an older checkpoint changes nothing
            if last is not None and (last.attempt, last.checkpoint) >= (attempt, checkpoint):
                return
            before = last.parts if last is not None and last.attempt == attempt else {}
            parts: dict[tuple[str, str], _Kept] = {}
            for handle in chain.from_iterable(handles.values()):
                key = handle.operator, handle.digest
                kept = _Kept(handle, checkpoint) if handle.location in locations else before.get(key)
                if kept is not None:
                    parts[key] = kept
            self._last[task] = _LastWrite(attempt, checkpoint, parts)

    def _location(self, task: TaskId, checkpoint: CheckpointId, attempt: Attempt) -> str:
        name = f"{checkpoint.generation:04d}.{checkpoint.number:06d}-{attempt}.arrow"
        return f"{self._job}/state/{_folder_of(task)}/{name}"

    def _make(self, folder: str) -> None:
        if folder not in self._made:
            make_folder(self._filesystem, folder)
            self._made.add(folder)

    def _inside(self, location: str) -> str:
        if location.startswith("/") or ".." in location.split("/"):
            raise StorageError(
                f"the state file {location!r} lies outside {self._url}", "the checkpoint was altered by hand"
            )
        return f"{self._folder}/{location}"


def _folder_of(task: TaskId) -> str:
    return f"{safe_name(task.vertex)}-{task.subtask:05d}"


def _same(table: pa.Table) -> pa.Table:
    return table


def _flight_tables(flight: Flight | None) -> tuple[pa.Table, ...]:
    """Where each thing stood comes first, then the rows."""
    if flight is None:
        return ()
    place = pa.table({"place": pa.array([flight.place], pa.large_binary()), "tables": [len(flight.tables)]})
    return (place, *flight.tables)

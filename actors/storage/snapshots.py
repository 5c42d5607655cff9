"""The state files of checkpoints: one Arrow IPC file per task, operator and checkpoint, never changed.

They lie in ``<checkpoint folder>/<job>/state/<vertex>-<subtask>/<checkpoint>-<attempt>-<operator>.arrow``; any Arrow
tool can read them. What barriers have overtaken lies beside them, as ``…-<exchange>.input.arrow`` and
``…-<exchange>.output.arrow``.

Rules:

1. A file's name is never used twice: it carries the checkpoint and the attempt. A file that could not be completed is
   removed, and no handle to it is given away.
2. An operator whose state is the same as in its last file gets that file's handle again instead of a new file. This
   is done only once ``completed`` has reported a checkpoint with that handle as durable: the files of a checkpoint
   that was aborted are deleted, so they must not be shared.
3. Handles are relative to the checkpoint folder, and they come from storage, so they are checked to lie inside it.
4. Files of batches in flight are never shared.
5. Any Arrow schema will do; whether the rows make sense is the operators' business.
6. A handle carries the digest of its file's bytes. A file that has others is an error, never another table.
7. Nothing is acknowledged before it survives a power cut: the files of a task, and their folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

import pyarrow as pa
from pyarrow import ipc

from ...engine.core.errors import StorageError
from ...engine.core.identity import Attempt, CheckpointId, Holds, StateHandle, TaskId
from ...engine.exchange.channel_state import ChannelPart
from ...engine.files.durable import make_durable, make_folder
from ...engine.files.paths import absolute, resolve, safe_name, storage_error
from ...engine.integrity.checksums import digest
from .damage import GO_ON, check_bytes, unreadable


@dataclass(frozen=True, slots=True)
class _Kept:
    """The file that holds an operator's state, and the checkpoint it was written for."""

    handle: StateHandle
    since: CheckpointId


@dataclass(frozen=True, slots=True)
class _LastWrite:
    """What one task stored last: all of its operators."""

    attempt: Attempt
    checkpoint: CheckpointId
    files: dict[str, _Kept]


class SnapshotFiles:
    """Writes, reads and deletes the state files of ``job``. Safe to use from several threads."""

    def __init__(self, folder_url: str, job: str) -> None:
        self._url = absolute(folder_url)
        self._filesystem, folder = resolve(self._url)
        self._folder = folder.rstrip("/")
        self._job = safe_name(job)
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
        tables: Mapping[str, pa.Table],
        channels: Sequence[ChannelPart] = (),
    ) -> tuple[StateHandle, ...]:
        """Store one table per operator, and the batches in flight. Raises StorageError; then no new file of this call
        is left."""
        kept: dict[str, _Kept] = {}
        new: list[StateHandle] = []
        try:
            for operator, table in tables.items():
                data = _to_ipc(table)
                found = digest(data)
                if (shared := self._shared(task, operator, attempt, found)) is not None:
                    kept[operator] = shared
                    continue
                location = self._location(task, checkpoint, attempt, operator)
                handle = StateHandle(operator, location, data.size, table.num_rows, digest=found)
                new.append(handle)
                self._store(location, data)
                kept[operator] = _Kept(handle, checkpoint)
            for part in channels:
                location = self._location(task, checkpoint, attempt, part.exchange, f".{part.holds.value}")
                data = _to_ipc(part.table)
                new.append(
                    StateHandle(part.exchange, location, data.size, part.table.num_rows, part.holds, digest(data))
                )
                self._store(location, data)
            make_durable(self._filesystem, *(f"{self._folder}/{handle.location}" for handle in new))
        except OSError as error:
            self._remove(new)
            raise storage_error("write a checkpoint into", self._url, error) from error
        self._remember(task, _LastWrite(attempt, checkpoint, kept), new)
        return (*(each.handle for each in kept.values()), *(handle for handle in new if handle.is_channel_file))

    def completed(self, task: TaskId, checkpoint: CheckpointId) -> None:
        """The checkpoint is durable, with the handles that ``write`` gave for this task."""
        with self._lock:
            latest = self._completed.get(task)
            self._completed[task] = checkpoint if latest is None else max(latest, checkpoint)

    def read(self, handles: Iterable[StateHandle]) -> dict[str, pa.Table]:
        """The tables of the state handles, those of one operator (of several tasks) one after the other, as given."""
        tables: dict[str, list[pa.Table]] = {}
        for handle in handles:
            if not handle.is_channel_file:
                tables.setdefault(handle.operator, []).append(self._read(handle))
        # tasks that finished earlier may have stored less (``lane_counts``)
        return {operator: pa.concat_tables(each, promote_options="default") for operator, each in tables.items()}

    def read_channels(self, handles: Iterable[StateHandle]) -> dict[tuple[str, Holds], pa.Table]:
        """The batches in flight of the other handles, by exchange and side."""
        tables: dict[tuple[str, Holds], list[pa.Table]] = {}
        for handle in handles:
            if handle.is_channel_file:
                tables.setdefault((handle.operator, handle.holds), []).append(self._read(handle))
        return {key: pa.concat_tables(each) for key, each in tables.items()}

    def _read(self, handle: StateHandle) -> pa.Table:
        data = self.read_bytes(handle)
        try:
            with ipc.open_file(data) as reader:
                return reader.read_all()
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable(f"the state file {self._inside(handle)}", error, GO_ON) from error

    def read_bytes(self, handle: StateHandle) -> pa.Buffer:
        """The file of a handle, sure to be what was written. Raises StorageError."""
        path = self._inside(handle)
        try:
            with self._filesystem.open_input_file(path) as file:
                data = file.read_buffer()
        except FileNotFoundError as error:
            raise StorageError(f"the state file {path} is gone", GO_ON) from error
        except OSError as error:
            raise storage_error("read the state file", path, error) from error
        check_bytes(f"the state file {path}", data, handle.bytes, handle.digest, GO_ON)
        return data

    def delete(self, handles: Iterable[StateHandle]) -> None:
        """Delete the files; those that are gone already do not matter."""
        try:
            for handle in handles:
                with suppress(FileNotFoundError):
                    self._filesystem.delete_file(self._inside(handle))
        except OSError as error:
            raise storage_error("delete old checkpoints in", self._url, error) from error

    def _shared(self, task: TaskId, operator: str, attempt: Attempt, found: str) -> _Kept | None:
        """The operator's last file, if it holds the same state and is sure to stay."""
        with self._lock:
            last, completed = self._last.get(task), self._completed.get(task)
        if last is None or completed is None or last.attempt != attempt:
            return None
        kept = last.files.get(operator)
        same = kept is not None and kept.handle.digest == found
        return kept if kept is not None and same and kept.since <= completed else None

    def _remember(self, task: TaskId, write: _LastWrite, new: Sequence[StateHandle]) -> None:
        written = sum(handle.bytes for handle in new)
        with self._lock:
            self.bytes_written += written
            self.bytes_shared += sum(each.handle.bytes for each in write.files.values()) - written
            last = self._last.get(task)
            # a slow write of an older checkpoint changes nothing
            if last is None or (last.attempt, last.checkpoint) < (write.attempt, write.checkpoint):
                self._last[task] = write

    def _location(self, task: TaskId, checkpoint: CheckpointId, attempt: Attempt, operator: str, side: str = "") -> str:
        name = f"{checkpoint.generation:04d}.{checkpoint.number:06d}-{attempt}-{safe_name(operator)}{side}.arrow"
        return f"{self._job}/state/{safe_name(task.vertex)}-{task.subtask:05d}/{name}"

    def _store(self, location: str, data: pa.Buffer) -> None:
        path = f"{self._folder}/{location}"
        folder = path.rsplit("/", 1)[0]
        if folder not in self._made:
            make_folder(self._filesystem, folder)
            self._made.add(folder)
        with self._filesystem.open_output_stream(path) as stream:
            stream.write(data)

    def _remove(self, handles: Iterable[StateHandle]) -> None:
        self._made.clear()  # a folder that is gone is made again
        for handle in handles:
            with suppress(OSError):
                self._filesystem.delete_file(self._inside(handle))

    def _inside(self, handle: StateHandle) -> str:
        if handle.location.startswith("/") or ".." in handle.location.split("/"):
            raise StorageError(
                f"the state file {handle.location!r} lies outside {self._url}", "the checkpoint was altered by hand"
            )
        return f"{self._folder}/{handle.location}"


def _to_ipc(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with ipc.new_file(sink, table.schema, options=ipc.IpcWriteOptions(compression="lz4")) as writer:
        # a file takes one dictionary per column, the rows of an operator may have come with several
        writer.write_table(table.unify_dictionaries())
    return sink.getvalue()

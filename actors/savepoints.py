"""Savepoints on storage: a folder with copies of state files and, written last, ``savepoint.json``.

Rules:

1. A savepoint refers to nothing outside its folder, and by relative names: it can be moved as a whole, and outlives the
   job's own folder.
2. The folder holds a savepoint if and only if it holds ``savepoint.json``; a copy that failed leaves nothing.
3. Where the user named no folder it is ``<checkpoint folder>/<job>/savepoints/<checkpoint>``.
4. What sinks have prepared for it stays in their outputs. A copy of the manifest below the job's folder says so,
   wherever the savepoint is or goes: outputs are cleaned when the job ends.
5. What is copied is compared with its digest on the way; a damaged file makes no savepoint.
6. What is recorded of the job's inputs is copied too, as ``inputs.arrow``.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import msgspec
from pyarrow import fs

from ..coordinator.commands import StoreSavepoint
from ..coordinator.manifest import LogEntry, Manifest, decode, encode
from ..engine.durable import make_durable, make_folder, put_file, sync_folder
from ..engine.errors import StorageError
from ..engine.identity import StateHandle
from ..engine.sources.files import absolute, resolve, safe_name, storage_error
from .input_records import inputs_key, read_record
from .snapshots import SnapshotFiles
from .storage.damage import FROM_A_COPY, unreadable

FILE = "savepoint.json"
INPUTS = "inputs.arrow"


class SavepointFiles:
    """Writes and deletes the savepoints of ``job``, whose state files lie below ``folder_url``."""

    def __init__(self, folder_url: str, job: str) -> None:
        self._url = absolute(folder_url)
        self._job = safe_name(job)
        self._snapshots = SnapshotFiles(self._url, job)

    def store(self, command: StoreSavepoint) -> str:
        """Make the savepoint and return its folder. Raises StorageError; then nothing of it is left."""
        default = f"{self._url.rstrip('/')}/{self._job}/savepoints/{command.checkpoint}"
        place = absolute(command.target) if command.target else default
        filesystem, folder = resolve(place)
        try:
            stands = holds_savepoint(place)
        except OSError as error:
            raise storage_error("read the folder of a savepoint", place, error) from error
        if stands:
            if command.manifest.request and read_savepoint(place).request == command.manifest.request:
                # a coordinator before this one has written it, and did not live to say so, or to sync its name
                sync_folder(filesystem, folder)
                return place
            raise StorageError(f"{place} holds a savepoint already", "name another folder")
        try:
            self._copy(command, filesystem, folder)
        except (OSError, StorageError) as error:
            with suppress(OSError):
                _remove(filesystem, folder, (target for _, target in command.copies))
            if isinstance(error, OSError):
                raise storage_error("write a savepoint into", place, error) from error
            raise
        return place

    def _copy(self, command: StoreSavepoint, filesystem: fs.FileSystem, folder: str) -> None:
        handles = {handle.location: handle for task in command.manifest.tasks for handle in task.state}
        paths = [f"{folder}/{target}" for _, target in command.copies]
        for above in {path.rsplit("/", 1)[0]: None for path in paths} or (folder,):
            make_folder(filesystem, above)
        for (source, target), path in zip(command.copies, paths, strict=True):
            data = self._snapshots.read_bytes(replace(handles[target], location=source))
            with filesystem.open_output_stream(path) as stream:
                stream.write(data)
        make_durable(filesystem, *paths)
        if command.manifest.inputs:
            self._copy_inputs(command.manifest.inputs, filesystem, folder)
        own_files, own_folder = resolve(f"{self._url.rstrip('/')}/{self._job}/savepoints")
        make_folder(own_files, own_folder)
        put_file(own_files, f"{own_folder}/{command.checkpoint}.json", encode(command.manifest))
        put_file(filesystem, f"{folder}/{FILE}", encode(command.manifest))

    def _copy_inputs(self, digest: str, filesystem: fs.FileSystem, folder: str) -> None:
        data = read_record(f"{self._url.rstrip('/')}/{inputs_key(self._job, digest)}", digest)
        with filesystem.open_output_stream(f"{folder}/{INPUTS}") as stream:
            stream.write(data)
        make_durable(filesystem, f"{folder}/{INPUTS}")

    def delete(self, location: str, handles: Iterable[StateHandle]) -> None:
        """Delete a snapshot outside the job's folder; first what makes it one."""
        filesystem, folder = resolve(absolute(location))
        named = [handle.location for handle in handles] or [
            handle.location for state in read_savepoint(location).tasks for handle in state.state
        ]
        try:
            _remove(filesystem, folder, named)
        except OSError as error:
            raise storage_error("delete a savepoint in", location, error) from error


def _remove(filesystem: fs.FileSystem, folder: str, locations: Iterable[str]) -> None:
    for name in (FILE, INPUTS, *locations):
        with suppress(FileNotFoundError):
            filesystem.delete_file(f"{folder}/{name}")


def prepared_for_savepoints(folder_url: str, job: str) -> list[Manifest]:
    """The manifests of the job's savepoints (rule 4)."""
    filesystem, folder = resolve(absolute(folder_url))
    notes = fs.FileSelector(f"{folder.rstrip('/')}/{safe_name(job)}/savepoints", allow_not_found=True)
    try:
        found = [each.path for each in filesystem.get_file_info(notes) if each.path.endswith(".json")]
        entries = [_read_entry(filesystem, path) for path in found]
    except OSError as error:
        raise storage_error("read the notes of savepoints in", folder_url, error) from error
    return [entry for entry in entries if isinstance(entry, Manifest)]


def holds_savepoint(location: str) -> bool:
    """Whether a savepoint stands in this folder."""
    filesystem, folder = resolve(absolute(location))
    return bool(filesystem.get_file_info(f"{folder}/{FILE}").type != fs.FileType.NotFound)


def read_savepoint(location: str) -> Manifest:
    """The manifest of the savepoint in this folder. Raises StorageError."""
    filesystem, folder = resolve(absolute(location))
    try:
        entry = _read_entry(filesystem, f"{folder}/{FILE}")
    except FileNotFoundError as error:
        raise StorageError(f"{location} holds no savepoint", f"name the folder in which {FILE} lies") from error
    except OSError as error:
        raise storage_error("read the savepoint in", location, error) from error
    if not isinstance(entry, Manifest):
        raise StorageError(f"{location}/{FILE} is no savepoint", "use another savepoint")
    return entry


def _read_entry(filesystem: fs.FileSystem, path: str) -> LogEntry:
    with filesystem.open_input_stream(path) as stream:
        data = stream.read()
    try:
        return decode(data)
    except msgspec.MsgspecError as error:
        raise unreadable(path, error, f"{FROM_A_COPY}, or use another savepoint") from error

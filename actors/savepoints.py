"""Savepoints on storage: a folder with copies of state files and, written last, ``savepoint.json``.

Rules:

1. A savepoint refers to nothing outside its folder, and by relative names: it can be moved as a whole, and outlives the
   job's own folder.
2. The folder holds a savepoint if and only if it holds ``savepoint.json``; a copy that failed leaves nothing.
3. Where the user named no folder it is ``<checkpoint folder>/<job>/savepoints/<checkpoint>``.
4. What sinks have prepared for it stays in their outputs. A copy of the manifest below the job's folder says so,
   wherever the savepoint is or goes: outputs are cleaned when the job ends.
5. What is recorded of the job's inputs is copied too, as ``inputs.arrow``.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec
from pyarrow import fs

from ..coordinator.commands import StoreSavepoint
from ..coordinator.manifest import LogEntry, Manifest, decode, encode
from ..engine.errors import StorageError
from ..engine.identity import StateHandle
from ..engine.sources.files import absolute, make_durable, resolve, safe_name, storage_error
from .input_records import inputs_key, read_record

FILE = "savepoint.json"
INPUTS = "inputs.arrow"


class SavepointFiles:
    """Writes and deletes the savepoints of ``job``, whose state files lie below ``folder_url``."""

    def __init__(self, folder_url: str, job: str) -> None:
        self._url = absolute(folder_url)
        self._job = safe_name(job)

    def store(self, command: StoreSavepoint) -> str:
        """Make the savepoint and return its folder. Raises StorageError; then nothing of it is left."""
        default = f"{self._url.rstrip('/')}/{self._job}/savepoints/{command.checkpoint}"
        place = absolute(command.target) if command.target else default
        filesystem, folder = resolve(place)
        try:
            if holds_savepoint(place):
                if command.manifest.request and read_savepoint(place).request == command.manifest.request:
                    return place  # a coordinator before this one has written it, and did not live to say so
                raise StorageError(f"{place} holds a savepoint already", "name another folder")
            self._copy(command, filesystem, folder)
        except OSError as error:
            with suppress(OSError):
                _remove(filesystem, folder, (target for _, target in command.copies))
            raise storage_error("write a savepoint into", place, error) from error
        return place

    def _copy(self, command: StoreSavepoint, filesystem: fs.FileSystem, folder: str) -> None:
        source_files, source_folder = resolve(self._url.rstrip("/"))
        filesystem.create_dir(f"{folder}/state", recursive=True)
        for source, target in command.copies:
            path = f"{folder}/{target}"
            fs.copy_files(
                f"{source_folder}/{source}",
                path,
                source_filesystem=source_files,
                destination_filesystem=filesystem,
            )
            make_durable(filesystem, path)
        if command.manifest.inputs:
            self._copy_inputs(command.manifest.inputs, filesystem, folder)
        source_files.create_dir(f"{source_folder}/{self._job}/savepoints", recursive=True)
        note = f"{source_folder}/{self._job}/savepoints/{command.checkpoint}.json"
        for target, path in ((source_files, note), (filesystem, f"{folder}/{FILE}")):
            with target.open_output_stream(path) as stream:
                stream.write(encode(command.manifest))
            make_durable(target, path)

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
    except (OSError, msgspec.MsgspecError) as error:
        message = f"the notes of savepoints in {folder_url} cannot be read: {error}"
        raise StorageError(message, "move them away") from error
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
    except (OSError, msgspec.MsgspecError) as error:
        raise StorageError(f"the savepoint in {location} cannot be read: {error}", "use another savepoint") from error
    if not isinstance(entry, Manifest):
        raise StorageError(f"{location}/{FILE} is no savepoint", "use another savepoint")
    return entry


def _read_entry(filesystem: fs.FileSystem, path: str) -> LogEntry:
    with filesystem.open_input_stream(path) as stream:
        return decode(stream.read())

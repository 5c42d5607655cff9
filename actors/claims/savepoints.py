"""Savepoints on storage: a folder with copies of state files and, written last, ``savepoint.json``.

Rules:

1. A savepoint refers to nothing outside its folder, and by relative names: it can be moved as a whole, and outlives the
   job's own folder.
2. The folder holds a savepoint if and only if it holds ``savepoint.json``. That is created if it is absent, after
   everything else, and never changed or taken back: of two that want one folder, one gets it. (HDFS and its like are
   only asked before: there, two at the same moment are not kept apart.) Copies lie in a folder named by their
   checkpoint, so they meet nobody else's; copying that failed leaves nothing.
3. Where the user named no folder it is ``<checkpoint folder>/<job>/savepoints/<checkpoint>``.
4. What sinks have prepared for it stays in their outputs. A copy of the manifest below the job's folder says so,
   wherever the savepoint is or goes: outputs are cleaned when the job ends.
5. What is copied is compared with its digest on the way; a damaged file makes no savepoint.
6. What is recorded of the job's inputs is copied too, as ``inputs.arrow``, and what was staged for it: where the file
   system has links, as another name of the same files.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from pyarrow import fs

from ...coordinator.model.commands import CopySavepoint, StoreSavepoint
from ...coordinator.model.kinds import CheckpointKind
from ...coordinator.model.manifest import LogEntry, Manifest, decode, encode
from ...engine.core.errors import StorageError
from ...engine.core.identity import CheckpointId, StateHandle
from ...engine.files.durable import make_durable, make_folder, put_file, sync_folder
from ...engine.files.paths import absolute, resolve, safe_name, storage_error
from ..spark.carrying import carry_stages, remove_stages
from ..storage.damage import FROM_A_COPY, decoding
from ..storage.input_records import inputs_key, read_inputs, read_record
from ..storage.snapshots import SnapshotFiles
from ..storage.stores import store_in

FILE = "savepoint.json"
INPUTS = "inputs.arrow"


class SavepointFiles:
    """Writes and deletes the savepoints of ``job``, whose state files lie below ``folder_url``."""

    def __init__(self, folder_url: str, job: str) -> None:
        self._url = absolute(folder_url)
        self._job = safe_name(job)
        self._snapshots = SnapshotFiles(self._url, job)

    def copy(self, command: CopySavepoint) -> tuple[str, CheckpointId | None]:
        """Copy the files; the savepoint's folder, and of which checkpoint the folder holds the savepoint of this
        request already, if so. Raises StorageError; then nothing of the copies is left."""
        default = f"{self._url.rstrip('/')}/{self._job}/savepoints/{command.checkpoint}"
        place = absolute(command.target) if command.target else default
        if holds_savepoint(place):
            return place, _same_request(place, command.request)
        try:
            self._copy(place, command.manifest, command.copies, anew=True)
        except (OSError, StorageError) as error:
            with suppress(StorageError):
                self.discard_copies(place, command.checkpoint)
            if isinstance(error, OSError):
                raise storage_error("write a savepoint into", place, error) from error
            raise
        return place, None

    def _copy(self, place: str, manifest: Manifest, copies: Iterable[tuple[str, str]], anew: bool) -> None:
        """``anew`` False: only what is not there."""
        filesystem, folder = resolve(place)
        parts: dict[str, list[StateHandle]] = {}
        for handle in (each for task in manifest.tasks for each in task.state):
            parts.setdefault(handle.location, []).append(handle)
        make_folder(filesystem, f"{folder}/state/{manifest.checkpoint}")
        paths: list[str] = []
        for source, target in copies:
            path = f"{folder}/{target}"
            if anew or filesystem.get_file_info(path).type != fs.FileType.File:
                paths.append(path)
                data = self._snapshots.read_file(source, parts[target])
                with filesystem.open_output_stream(path) as stream:
                    stream.write(data)
        make_durable(filesystem, *paths)

    def store(self, command: StoreSavepoint) -> CheckpointId | None:
        """Make a savepoint of the copies; of which other checkpoint the folder holds the savepoint of this request, if
        so. Raises StorageError; then it may be there or not, and nothing is taken away."""
        manifest, place = command.manifest, command.location
        stops = manifest.kind == CheckpointKind.STOP_WITH_SAVEPOINT.value
        try:
            self._copy(place, manifest, command.copies, anew=False)
            if manifest.inputs and not holds_savepoint(place):
                self._copy_inputs(manifest.inputs, place)
                recorded = read_inputs(f"{place}/{INPUTS}", manifest.inputs)
                carry_stages(f"{self._url.rstrip('/')}/{self._job}", place, recorded.fingerprints)
            own_files, own_folder = resolve(f"{self._url.rstrip('/')}/{self._job}/savepoints")
            make_folder(own_files, own_folder)
            put_file(own_files, f"{own_folder}/{manifest.checkpoint}.json", encode(manifest))
            if _create(place, encode(manifest)) or read_savepoint(place) == manifest:
                return None
            return _same_request(place, "" if stops else manifest.request)
        except OSError as error:
            raise storage_error("write a savepoint into", place, error) from error

    def _copy_inputs(self, digest: str, place: str) -> None:
        filesystem, folder = resolve(place)
        data = read_record(f"{self._url.rstrip('/')}/{inputs_key(self._job, digest)}", digest)
        with filesystem.open_output_stream(f"{folder}/{INPUTS}") as stream:
            stream.write(data)
        make_durable(filesystem, f"{folder}/{INPUTS}")

    def discard_copies(self, place: str, checkpoint: CheckpointId) -> None:
        """Delete the files of a savepoint that was given up before it was one. No other savepoint has files there."""
        filesystem, folder = resolve(absolute(place))
        try:
            filesystem.delete_dir(f"{folder}/state/{checkpoint}")
            for each in (f"{folder}/state", folder):
                if not filesystem.get_file_info(fs.FileSelector(each)):
                    filesystem.delete_dir(each)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise storage_error("delete a savepoint in", place, error) from error

    def delete(self, location: str, handles: Iterable[StateHandle]) -> None:
        """Delete a snapshot outside the job's folder; first what makes it one."""
        filesystem, folder = resolve(absolute(location))
        named = [handle.location for handle in handles] or [
            handle.location for state in read_savepoint(location).tasks for handle in state.state
        ]
        named = [each for each in dict.fromkeys(named) if each]
        try:
            _remove(filesystem, folder, named)
        except OSError as error:
            raise storage_error("delete a savepoint in", location, error) from error


def _create(place: str, data: bytes) -> bool:
    """Create the file that makes the folder a savepoint; False: there is one."""
    filesystem, folder = resolve(place)
    store = store_in(filesystem, folder)
    if store is not None:
        return store.create(FILE, data)
    if holds_savepoint(place):
        return False
    put_file(filesystem, f"{folder}/{FILE}", data)
    return True


def _same_request(place: str, request: str) -> CheckpointId:
    """Of which checkpoint the savepoint there is, if it was taken for this request. Raises StorageError."""
    found = read_savepoint(place)
    if request and found.request == request:
        # a coordinator before this one has written it, and did not live to say so, or to sync its name
        sync_folder(*resolve(place))
        return found.checkpoint
    raise StorageError(f"{place} holds a savepoint already", "name another folder")


def _remove(filesystem: fs.FileSystem, folder: str, locations: Iterable[str]) -> None:
    for name in (FILE, INPUTS, *locations):
        with suppress(FileNotFoundError):
            filesystem.delete_file(f"{folder}/{name}")
    remove_stages(filesystem, folder)


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
    """Whether this folder holds a savepoint. Raises StorageError."""
    filesystem, folder = resolve(absolute(location))
    try:
        return bool(filesystem.get_file_info(f"{folder}/{FILE}").type != fs.FileType.NotFound)
    except OSError as error:
        raise storage_error("look for a savepoint in", location, error) from error


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
    with decoding(path, f"{FROM_A_COPY}, or use another savepoint"):
        return decode(data)

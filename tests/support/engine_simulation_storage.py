"""What outlives the processes of a simulated job: the log and the state files, both with faults and with oracles.

The files are written by the real :class:`SnapshotFiles`, onto a file system in memory; the log is the in-memory store.
Writing a file fails when it begins, or when it ends and its bytes are there. States here are small: ``inline`` says up
to how many bytes none is written.
The oracles look at what stands there, not at what a coordinator believes:

1. A manifest lands only while all of its state files exist; files of kept manifests are never deleted.
2. Claims are never deleted, nor the newest manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import fs
from pyarrow.fs import _MockFileSystem

from penstock.actors.storage.log import read_log
from penstock.actors.storage.memory_store import MemoryStore
from penstock.actors.storage.snapshots import SnapshotFiles
from penstock.coordinator.model.manifest import Claim, Ended, LogEntry, Manifest, decode
from penstock.engine.core.errors import StorageError
from penstock.engine.core.identity import StateHandle
from penstock.engine.state.change_log import merged
from support.engine_simulation_flows import JOB

FOLDER = "checkpoints"


class World(Protocol):
    """What storage asks of the simulation."""

    def fault(self, kind: str) -> bool:
        """Whether something of this kind goes wrong now."""

    def choose(self, number: int) -> int:
        """A number below ``number``, by the seed."""

    def later(self, action: object) -> None:
        """Something that happens at some later step."""


class Storage:
    """The log and the files of one job."""

    def __init__(self, world: World, retained: int, inline: int) -> None:
        self._world, self._retained, self.inline = world, retained, inline
        self._log = MemoryStore()
        self.files = _MockFileSystem()

    # --- the log, as a Store ---------------------------------------------------------------------------------------

    def create(self, key: str, data: bytes) -> bool:
        if not self._world.fault("store"):
            return self._create(key, data)
        way = self._world.choose(3)
        if way == 0:
            self._create(key, data)
        elif way == 1:
            self._world.later(lambda: self._create(key, data))
        raise OSError("simulated: the disk is full")

    def read(self, key: str) -> bytes | None:
        if self._world.fault("store"):
            raise OSError("simulated: the log cannot be read")
        return self._log.read(key)

    def list(self, prefix: str) -> list[str]:
        return self._log.list(prefix)

    def delete(self, key: str) -> None:
        data = self._log.read(key)
        if data is not None:
            entry = decode(data)
            kept = {manifest.number for manifest in self._kept()}
            assert isinstance(entry, Manifest), f"{key}, which is no manifest, is deleted"
            assert entry.number not in kept, f"manifest {entry.checkpoint} is deleted, but needed"
        self._log.delete(key)

    def _create(self, key: str, data: bytes) -> bool:
        entry = decode(data)
        if isinstance(entry, Manifest) and self._log.read(key) is None:
            missing = [place for place in places_of(entry) if not self.exists(place)]
            assert not missing, f"manifest {entry.checkpoint} lands without its files {missing}"
        return self._log.create(key, data)

    # --- what stands ---------------------------------------------------------------------------------------------

    def entries(self) -> list[LogEntry]:
        return read_log(self._log, JOB)

    def newest(self) -> Manifest | None:
        return next((entry for entry in reversed(self.entries()) if isinstance(entry, Manifest)), None)

    def generation(self) -> int:
        """Of the last claim."""
        return max((entry.generation for entry in self.entries() if isinstance(entry, Claim)), default=0)

    def is_closed(self) -> bool:
        """Whether the log says that the job has finished."""
        return any(isinstance(entry, Ended) for entry in self.entries())

    def exists(self, location: str) -> bool:
        return bool(self.files.get_file_info(f"{FOLDER}/{location}").type == fs.FileType.File)

    def check_deletion(self, handles: Iterable[StateHandle]) -> None:
        needed = {place for manifest in self._kept() for place in places_of(manifest)}
        lost = [handle.location for handle in handles if handle.location in needed]
        assert not lost, f"state of a kept manifest is deleted: {lost}"

    def _kept(self) -> list[Manifest]:
        return [entry for entry in self.entries() if isinstance(entry, Manifest)][-self._retained :]


def places_of(manifest: Manifest) -> list[str]:
    """The locations of the manifest's state files; what is inlined has none."""
    return [handle.location for task in manifest.tasks for handle in task.state if handle.location]


class _Disk:
    """The file system of the files, as one process has it."""

    def __init__(self, world: World, storage: Storage) -> None:
        self._world, self._storage = world, storage

    def open_output_stream(self, path: str) -> Any:
        assert not self._storage.exists(path.removeprefix(f"{FOLDER}/")), f"{path} is written twice"
        if not self._world.fault("snapshot"):
            return self._storage.files.open_output_stream(path)
        if self._world.choose(2):
            raise OSError("simulated: the disk is full")
        return _Full(self._storage.files.open_output_stream(path))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage.files, name)


class _Full:
    """A file of which it is known at the end that the disk has not taken it."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self.write, self._close = stream.write, stream.close

    def close(self) -> None:
        self._close()
        raise OSError("simulated: the disk is full")


class SimulatedSnapshots(SnapshotFiles):
    """One process's access to the files."""

    def __init__(self, world: World, storage: Storage) -> None:
        super().__init__("/" + FOLDER, JOB, storage.inline)
        disk: Any = _Disk(world, storage)
        self._filesystem, self._folder = disk, FOLDER
        self._world, self._storage = world, storage

    def _tables(self, handles: Iterable[StateHandle]) -> dict[str, list[pa.Table]]:
        if self._world.fault("restore"):
            raise StorageError("simulated: the state cannot be read")
        return super()._tables(handles)

    def delete(self, handles: Iterable[StateHandle]) -> None:
        handles = list(handles)
        self._storage.check_deletion(handles)
        super().delete(handles)


def last_tables(storage: Storage, snapshots: SnapshotFiles) -> Mapping[str, pa.Table]:
    """The tables of the newest checkpoint, by operator, of all tasks."""
    manifest = storage.newest()
    handles = [] if manifest is None else [handle for task in manifest.tasks for handle in task.state]
    return {name: merged(tables) for name, tables in SnapshotFiles._tables(snapshots, handles).items()}

"""What outlives every process of a simulated cluster: the log, the state files, the sinks' rows; and the oracles.

The oracles look at what *stands in the store*, not at what a coordinator believes:

1. A manifest lands only while all its state files exist, and the files of the newest manifests are never deleted.
2. Claims are never deleted, nor the newest manifests.
3. What is committed was prepared; what is visible in the end is what a run without failures shows.
"""

from __future__ import annotations

from penstock.coordinator.manifest import Claim, LogEntry, Manifest, decode, encode
from penstock.coordinator.memory_store import MemoryStore
from penstock.engine.identity import CheckpointId, CommitPermit, StateHandle
from support.simulated_model import Row, TaskState

Written = tuple[CheckpointId, str, list[Row]]
"""A file of a sink: for which checkpoint, by which vertex, with which rows."""


def key_of(number: int) -> str:
    return f"log/{number:012d}"


class SimulatedStorage:
    """Log, files and visible rows. ``fenced`` False: the broken store that lets a stale coordinator write on."""

    def __init__(self, retained: int, fenced: bool = True) -> None:
        self._log = MemoryStore()
        self._retained = retained
        self._fenced = fenced
        self.files: dict[str, TaskState] = {}
        #: What sinks have prepared, and what of it was committed, by location.
        self.prepared: dict[str, Written] = {}
        self.visible: dict[str, Written] = {}

    def entries(self) -> list[LogEntry]:
        found = (self._log.read(key) for key in self._log.list("log/"))
        return [decode(data) for data in found if data is not None]

    def newest(self) -> Manifest | None:
        manifests = [entry for entry in self.entries() if isinstance(entry, Manifest)]
        return manifests[-1] if manifests else None

    def last_claim(self) -> Claim | None:
        claims = [entry for entry in self.entries() if isinstance(entry, Claim)]
        return claims[-1] if claims else None

    def create(self, entry: LogEntry) -> bool:
        """Whether the entry stands, as the shell's rule has it: the same content counts as created."""
        if isinstance(entry, Manifest) and self._log.read(key_of(entry.number)) is None:
            missing = [h.location for task in entry.tasks for h in task.state if h.location not in self.files]
            assert not missing, f"manifest {entry.checkpoint} lands without its files {missing}"
        if self._log.create(key_of(entry.number), encode(entry)):
            return True
        if not self._fenced and isinstance(entry, Manifest):
            self._log.delete(key_of(entry.number))
            return self._log.create(key_of(entry.number), encode(entry))
        return self._log.read(key_of(entry.number)) == encode(entry)

    def delete_entries(self, numbers: tuple[int, ...]) -> None:
        manifests = [entry for entry in self.entries() if isinstance(entry, Manifest)]
        kept = {manifest.number for manifest in manifests[-self._retained :]}
        known = {manifest.number for manifest in manifests}
        for number in numbers:
            exists = self._log.read(key_of(number)) is not None
            assert not exists or (number in known and number not in kept), f"entry {number} is deleted, but needed"
            self._log.delete(key_of(number))

    def discard(self, handles: tuple[StateHandle, ...]) -> None:
        manifests = [entry for entry in self.entries() if isinstance(entry, Manifest)][-self._retained :]
        needed = {h.location for m in manifests for task in m.tasks for h in task.state}
        lost = [handle.location for handle in handles if handle.location in needed]
        assert not lost, f"state of a kept manifest is deleted: {lost}"
        for handle in handles:
            self.files.pop(handle.location, None)

    def has(self, handles: tuple[StateHandle, ...]) -> bool:
        return all(handle.location in self.files for handle in handles)

    def restore(self, handles: tuple[StateHandle, ...]) -> list[TaskState]:
        missing = [handle.location for handle in handles if handle.location not in self.files]
        assert not missing, f"a task is restored from files that are gone: {missing}"
        return [self.files[handle.location] for handle in handles]

    def commit(self, permit: CommitPermit) -> None:
        for committable in permit.committables:
            location = committable.payload["location"]
            self.visible[location] = self.prepared[location]

    def visible_rows(self) -> dict[str, list[str]]:
        """By sink and lane, in the order in which they were written."""
        rows: dict[str, list[str]] = {}
        for _, (_, vertex, written) in sorted(self.visible.items(), key=lambda item: (item[1][0], item[0])):
            for lane, value in written:
                rows.setdefault(f"{vertex} lane {lane}", []).append(value)
        return rows

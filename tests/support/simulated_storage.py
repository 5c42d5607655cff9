"""What outlives every process of a simulated cluster: the log, files, savepoints, the sinks' rows; and the oracles.

The oracles look at what *stands in the store*, not at what a coordinator believes:

1. A manifest lands only while all its state files exist, and the files of the newest manifests are never deleted.
2. Claims are never deleted, nor the newest manifests, nor pinned ones.
3. What is committed was prepared; what is visible in the end is what a run without failures shows.
4. A savepoint is restored after everything else of its job is gone, and from another place than it was made at.
5. What an ending of the job has dropped, rows and all, its user has taken away before the job begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from penstock.actors.storage.log import create_entry, delete_entries, key_of, read_entries
from penstock.actors.storage.memory_store import MemoryStore
from penstock.coordinator.model.commands import CopySavepoint, StoreSavepoint
from penstock.coordinator.model.kinds import CheckpointKind
from penstock.coordinator.model.manifest import (
    Claim,
    Dropped,
    Ended,
    LogEntry,
    Manifest,
    Pinned,
    Unpinned,
    decode,
    encode,
    split_dropped,
)
from penstock.engine.core.identity import CheckpointId, CommitPermit, StateHandle
from penstock.engine.feed.state import SequencerState
from support.simulated_model import FeedRows, Row, TaskState

Written = tuple[tuple[int, CheckpointId], str, list[Row]]
"""A file of a sink: of which job and for which checkpoint, by which vertex, with which rows."""


JOB = "job"


@dataclass
class Savepoint:
    """A savepoint's folder."""

    manifest: bytes
    files: dict[str, TaskState]


class SimulatedStorage:
    """Log, files and visible rows. ``fenced`` False: the broken store that lets a stale coordinator write on."""

    def __init__(self, retained: int, fenced: bool = True) -> None:
        self.log = MemoryStore()
        #: The log's entries, read; None after a change.
        self._entries: list[LogEntry] | None = None
        self._retained = retained
        self._fenced = fenced
        self.files: dict[str, TaskState] = {}
        #: By place; and what was copied there, by checkpoint, before that makes a savepoint.
        self.savepoints: dict[str, Savepoint] = {}
        self.copies: dict[tuple[str, CheckpointId], dict[str, TaskState]] = {}
        #: What sinks have prepared, and what of it was committed, by location.
        self.prepared: dict[str, Written] = {}
        self.visible: dict[str, Written] = {}
        #: How many states were carried on of tasks that took no part in a checkpoint.
        self.carried = 0
        #: Whether the job was ever ended in a way that keeps nothing.
        self.dropped = False
        #: The last savepoint in the log that the job stops with.
        self.stopped_with: Manifest | None = None
        #: Jobs before this one, and the first whose rows are still there.
        self.epoch = 0
        self._oldest_epoch = 0

    # --- the log -------------------------------------------------------------------------------------------------

    def entries(self) -> list[LogEntry]:
        if self._entries is None:
            self._entries = read_entries(self.log, JOB)
        return list(self._entries)

    def manifests(self) -> list[Manifest]:
        """Those that somebody may go on from."""
        return [entry for entry in split_dropped(self.entries())[0] if isinstance(entry, Manifest)]

    def newest(self) -> Manifest | None:
        return next(reversed(self.manifests()), None)

    def last_claim(self) -> Claim | None:
        claims = [entry for entry in self.entries() if isinstance(entry, Claim)]
        return claims[-1] if claims else None

    def pinned(self) -> dict[str, CheckpointId]:
        """Who depends on what, as the log says."""
        pins: dict[str, CheckpointId] = {}
        for entry in self.entries():
            if isinstance(entry, Pinned):
                pins[entry.name] = entry.checkpoint
            elif isinstance(entry, Unpinned):
                pins.pop(entry.name, None)
        return pins

    def create(self, entry: LogEntry) -> bool:
        """Whether the entry stands, as the shell's rule has it: the same content counts as created."""
        key = key_of(JOB, entry.number)
        is_new = self.log.read(key) is None
        if isinstance(entry, Manifest) and not entry.root and is_new:
            missing = [h.location for task in entry.tasks for h in task.state if h.location not in self.files]
            assert not missing, f"manifest {entry.checkpoint} lands without its files {missing}"
            self._check_carried(entry)
        self._entries = None
        if not self._fenced and isinstance(entry, Manifest):
            self.log.delete(key)
        stands = create_entry(self.log, JOB, entry) == "stored"
        if stands and isinstance(entry, Manifest) and entry.kind == CheckpointKind.STOP_WITH_SAVEPOINT.value:
            self.stopped_with = entry
        if isinstance(entry, Dropped) and is_new and not self.manifests():
            self.epoch += 1
            self._oldest_epoch, self.dropped = self.epoch, True
        return stands

    def _check_carried(self, entry: Manifest) -> None:
        """What a manifest carries on is what the one before it says of the task, and what that has of committables is
        visible, or listed still."""
        newest = self.newest()
        before = {state.task: state for state in newest.tasks} if newest is not None else {}
        listed = {str(committable.payload) for _, committable in entry.uncommitted}
        for state in entry.tasks:
            if state.cut is None:
                continue
            self.carried += 1
            found = before[state.task]
            expected = replace(found, committables=(), cut=found.cut or newest.checkpoint)  # type: ignore[union-attr]
            assert state == expected, f"{entry.checkpoint} carries {state}, and {found} stood before"
            lost = [
                each
                for each in found.committables
                if str(each.payload) not in listed and each.payload["location"] not in self.visible
            ]
            assert not lost, f"{entry.checkpoint} carries {state.task}, and nobody commits {lost}"

    def _needed(self) -> list[Manifest]:
        """The newest manifests, unless the log is closed, and those that somebody depends on."""
        manifests, pinned = self.manifests(), set(self.pinned().values())
        newest = [] if any(isinstance(one, Ended) for one in self.entries()) else manifests[-self._retained :]
        return [one for one in manifests if one in newest or one.checkpoint in pinned]

    def delete_entries(self, numbers: tuple[int, ...]) -> None:
        entries = {entry.number: entry for entry in self.entries()}
        kept, pins = {manifest.number for manifest in self._needed()}, self.pinned()
        for number in numbers:
            entry = entries.get(number)
            assert not isinstance(entry, Claim), f"claim {number} is deleted"
            assert number not in kept, f"entry {number} is deleted, but needed"
            assert entry is None or number != max(entries), f"the last entry, {number}, is deleted"
        delete_entries(self.log, JOB, numbers)
        self._entries = None
        assert self.pinned() == pins, f"what stood of pins has changed from {pins} to {self.pinned()}"

    # --- files ---------------------------------------------------------------------------------------------------

    def discard(self, handles: tuple[StateHandle, ...]) -> None:
        needed = {h.location for m in self._needed() if not m.root for task in m.tasks for h in task.state}
        lost = [handle.location for handle in handles if handle.location in needed]
        assert not lost, f"state of a kept manifest is deleted: {lost}"
        for handle in handles:
            self.files.pop(handle.location, None)

    def orphans(self) -> list[str]:
        """Files that no manifest in the log names."""
        named = {handle.location for m in self.manifests() if not m.root for task in m.tasks for handle in task.state}
        return sorted(self.files.keys() - named)

    def _folder(self, root: str) -> dict[str, TaskState]:
        if not root:
            return self.files
        assert root in self.savepoints, f"the savepoint {root} is gone"
        return self.savepoints[root].files

    def has(self, handles: tuple[StateHandle, ...], root: str) -> bool:
        if root and root not in self.savepoints:
            return False
        return all(handle.location in self._folder(root) for handle in handles)

    def restore(self, handles: tuple[StateHandle, ...], root: str) -> list[TaskState]:
        files = self._folder(root)
        missing = [handle.location for handle in handles if handle.location not in files]
        assert not missing, f"a task is restored from files that are gone: {missing}"
        return [files[handle.location] for handle in handles]

    # --- savepoints ----------------------------------------------------------------------------------------------

    def missing_for(self, order: CopySavepoint | StoreSavepoint) -> list[str]:
        """Files that a savepoint needs and that are gone."""
        copied = self.copies.get((order.location, order.checkpoint), {}) if isinstance(order, StoreSavepoint) else {}
        return [source for source, target in order.copies if source not in self.files and target not in copied]

    def copy_savepoint(self, order: CopySavepoint) -> tuple[str, CheckpointId | None] | None:
        """Where its copies are, and of which checkpoint the savepoint there is, if one was taken for this request.
        None: the folder holds another one."""
        location = order.target or f"savepoint {self.epoch} {order.checkpoint}"
        if location in self.savepoints:
            found = self.saved(location)
            return (location, found.checkpoint) if order.request and found.request == order.request else None
        self.copies[location, order.checkpoint] = {target: self.files[source] for source, target in order.copies}
        return location, None

    def store_savepoint(self, order: StoreSavepoint) -> CheckpointId | None:
        """Of which checkpoint the savepoint is that stands then; None: it is nobody's who asked."""
        files = self.copies.setdefault((order.location, order.checkpoint), {})
        files.update({target: self.files[source] for source, target in order.copies if target not in files})
        named = {handle.location for task in order.manifest.tasks for handle in task.state}
        assert named <= set(files), "the savepoint does not contain what it names"
        new = Savepoint(encode(order.manifest), {name: files[name] for name in named})
        standing = self.savepoints.setdefault(order.location, new)
        found, stops = self.saved(order.location), order.manifest.kind == CheckpointKind.STOP_WITH_SAVEPOINT.value
        same = standing.manifest == new.manifest or (not stops and found.request == order.manifest.request)
        return found.checkpoint if same else None

    def discard_copies(self, checkpoint: CheckpointId, location: str) -> None:
        standing = location in self.savepoints and self.saved(location).checkpoint == checkpoint
        assert not standing, f"the copies of a savepoint that stands in {location} are deleted"
        self.copies.pop((location, checkpoint), None)

    def saved(self, location: str) -> Manifest:
        manifest = decode(self.savepoints[location].manifest)
        assert isinstance(manifest, Manifest)
        return manifest

    def discard_snapshot(self, location: str) -> None:
        newest = self.newest()
        assert newest is None or newest.root != location, f"{location} is deleted, and the job starts from it"
        self.savepoints.pop(location, None)

    def start_over_from(self, location: str) -> tuple[Manifest, str]:
        """Another job: nothing is left of this one but the savepoint, which somebody has moved, and the sinks' rows."""
        manifest = self.saved(location)
        saved = self.savepoints.pop(location)
        self.epoch += 1
        self.log, self._entries, self.files = MemoryStore(), None, {}
        place = f"moved {location}"
        self.savepoints, self.copies = {place: saved}, {}
        return manifest, place

    def feed_state(self, manifest: Manifest, root: str) -> SequencerState[FeedRows]:
        """What the snapshot holds of the flow's feed."""
        states = (self._folder(root)[handle.location].feed for task in manifest.tasks for handle in task.state)
        return next(state for state in states if state is not None)

    def forget_rows_after(self, checkpoint: CheckpointId) -> None:
        """What was visible when the savepoint was taken is all that the next job finds."""
        last = (self.epoch - 1, checkpoint)
        self.visible = {place: written for place, written in self.visible.items() if written[0] <= last}

    # --- rows ----------------------------------------------------------------------------------------------------

    def prepare(self, location: str, checkpoint: CheckpointId, vertex: str, rows: list[Row]) -> str:
        """The name under which the rows can be committed."""
        place = f"{self.epoch}/{location}"
        assert place not in self.prepared, f"rows are prepared twice under {place}"
        self.prepared[place] = ((self.epoch, checkpoint), vertex, rows)
        return place

    def commit(self, permit: CommitPermit) -> None:
        for committable in permit.committables:
            location = committable.payload["location"]
            self.visible[location] = self.prepared[location]

    def visible_rows(self) -> dict[str, list[str]]:
        """By sink and lane, in the order in which they were written."""
        rows: dict[str, list[str]] = {}
        for _, (when, vertex, written) in sorted(self.visible.items(), key=lambda item: (item[1][0], item[0])):
            for lane, value in written if when[0] >= self._oldest_epoch else ():
                rows.setdefault(f"{vertex} lane {lane}", []).append(value)
        return rows

"""The completed checkpoints that are kept, and what nobody needs any more.

Rules:

1. Ids strictly increase. The newest is what a restart goes back to; it never goes.
2. How many stay, and which of them may go, says :func:`plan_subsumption`. Pinned ones stay whatever their
   number.
3. A state file may go when no kept manifest refers to it, no pending one will, and no *doubtful* one may: one whose
   write failed in a way that leaves open whether it will still appear in the log.
4. Entries of the log that may go are manifests and what was said of pins, never claims: what stops a stale coordinator
   is that the number it would write next is taken by its successor's claim. The last entry never goes, so that a
   successor's claim takes our next number, not one before it. What a successor might go on from goes only once an
   entry of our own says that it will (``Job``).
5. A snapshot that the job started from lies outside its folder: its files are not the job's, and go as a whole, if the
   job has claimed it.
6. What an event costs does not grow with the number of checkpoints that somebody depends on: references to files and
   to checkpoints are counted, and only manifests that may go are looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ...engine.core.identity import CheckpointId, StateHandle, TaskId
from ..model.kinds import CheckpointKind
from ..model.manifest import Manifest, Pinned, TaskState, Unpinned
from ..model.retention import Ending, RetentionPolicy, StoredCheckpoint, plan_subsumption


@dataclass(frozen=True, slots=True)
class Gone:
    """What nobody needs any more."""

    numbers: tuple[int, ...] = ()
    """Entries of the log."""
    handles: tuple[StateHandle, ...] = ()
    snapshots: tuple[Manifest, ...] = ()
    """Claimed snapshots outside the job's folder."""
    checkpoints: tuple[CheckpointId, ...] = ()


class RetainedCheckpoints:
    """Kept and doubtful manifests, oldest first."""

    def __init__(self, retained: int, policy: RetentionPolicy = RetentionPolicy.ALWAYS) -> None:
        self._retained = retained
        self._policy = policy
        #: The kept manifests by id; ids strictly increase.
        self._kept: dict[CheckpointId, Manifest] = {}
        #: Of them, those that nobody depends on; derived.
        self._free: dict[CheckpointId, Manifest] = {}
        #: Manifests that may or may not appear in the log at the number we write next.
        self._doubtful: list[Manifest] = []
        #: Who depends on which kept checkpoint, and where the log says so.
        self._pins: dict[str, CheckpointId] = {}
        #: A copy of it that is shown, and never changed; None: there is a newer one to make.
        self._shown: Mapping[str, CheckpointId] | None = None
        self._pin_entries: dict[str, int] = {}
        #: Kept for somebody, although the log does not say so yet.
        self._held: list[CheckpointId] = []
        #: How many names depend on a checkpoint, those in ``_held`` among them; derived.
        self._holders: Counter[CheckpointId] = Counter()
        #: Entries about pins that say nothing any more. They go when a manifest follows them.
        self._obsolete: list[int] = []
        #: How often the kept and doubtful manifests refer to a location; derived from the two.
        self._references: Counter[str] = Counter()
        #: Of the newest manifest, by task; derived.
        self._states: dict[TaskId, TaskState] = {}
        #: The newest checkpoint that every region took part in, kept or not.
        self.latest_whole: CheckpointId | None = None

    @property
    def latest(self) -> Manifest | None:
        return next(reversed(self._kept.values()), None)

    @property
    def latest_id(self) -> CheckpointId | None:
        return next(reversed(self._kept), None)

    @property
    def kept(self) -> tuple[Manifest, ...]:
        return tuple(self._kept.values())

    @property
    def doubtful(self) -> tuple[Manifest, ...]:
        return tuple(self._doubtful)

    @property
    def pins(self) -> Mapping[str, CheckpointId]:
        """Name to the checkpoint that it depends on, as the log says."""
        if self._shown is None:
            self._shown = dict(self._pins)
        return self._shown

    def state_of(self, task: TaskId) -> TaskState | None:
        """What the newest checkpoint holds of the task."""
        return self._states.get(task)

    def cut_of(self, task: TaskId) -> CheckpointId | None:
        """The newest completed checkpoint that the task took part in; None: the newest one does not hold it."""
        state = self._states.get(task)
        return None if state is None else state.cut or self.latest_id

    def restore(self, manifests: Iterable[Manifest], pins: Iterable[Pinned | Unpinned] = ()) -> Gone:
        """What the log holds, oldest first; what of it nobody needs."""
        self._let_go(self.kept)
        for manifest in manifests:
            self._keep(manifest)
        for entry in pins:
            if isinstance(entry, Pinned) and self.hold(entry.checkpoint):
                self._note_pin(entry)
            else:
                self._note_unpin(entry)
        return self._shrink(())

    def add(self, manifest: Manifest) -> Gone:
        """A checkpoint completed: what can go.

        Its number is taken now: a doubtful manifest is this one or can never appear.
        """
        newest = self.latest_id
        if newest is not None and manifest.checkpoint <= newest:
            raise AssertionError(f"checkpoint {manifest.checkpoint} completed after {newest}")
        doubtful, self._doubtful = self._doubtful, []
        self._keep(manifest)
        for other in doubtful:
            self._count(other, -1)
        obsolete, self._obsolete = tuple(self._obsolete), []
        gone = self._shrink(doubtful)
        return replace(gone, numbers=(*gone.numbers, *obsolete))

    def hold(self, checkpoint: CheckpointId) -> bool:
        """Somebody wants to depend on the checkpoint; whether it is kept. If so, until the log says who."""
        if checkpoint not in self._kept:
            return False
        self._held.append(checkpoint)
        self._hold(checkpoint)
        return True

    def pinned(self, entry: Pinned) -> Gone:
        """The log says so; what the name depended on before can go. A name depends on one checkpoint at a time."""
        self._note_pin(entry)
        return self._shrink(())

    def unpinned(self, entry: Unpinned) -> Gone:
        """The log says that the name depends on nothing any more; what can go."""
        self._note_unpin(entry)
        return self._shrink(())

    def _note_pin(self, entry: Pinned) -> None:
        self._held.remove(entry.checkpoint)
        self._release(entry.name)
        self._obsolete += [self._pin_entries[entry.name]] if entry.name in self._pin_entries else []
        self._pins[entry.name], self._pin_entries[entry.name] = entry.checkpoint, entry.number
        self._shown = None

    def _note_unpin(self, entry: Pinned | Unpinned) -> None:
        self._release(entry.name)
        before = self._pin_entries.pop(entry.name, None)
        self._obsolete += [entry.number] if before is None else [before, entry.number]

    def _hold(self, checkpoint: CheckpointId) -> None:
        self._holders[checkpoint] += 1
        self._free.pop(checkpoint, None)

    def _release(self, name: str) -> None:
        """The name depends on nothing."""
        checkpoint = self._pins.pop(name, None)
        if checkpoint is None:
            return
        self._shown = None
        self._holders[checkpoint] -= 1
        if not self._holders[checkpoint]:
            del self._holders[checkpoint]
            self._free[checkpoint] = self._kept[checkpoint]

    def settle(self) -> tuple[StateHandle, ...]:
        """The number is taken by another entry, so no doubtful manifest can appear any more: files that can go."""
        before, self._doubtful = self._doubtful, []
        for manifest in before:
            self._count(manifest, -1)
        return self.unreferenced(_handles(before))

    def doubt(self, manifest: Manifest) -> None:
        """The manifest's write failed, and it was not in the log afterwards; it may still come."""
        self._doubtful.append(manifest)
        self._count(manifest, 1)

    def unreferenced(self, handles: Iterable[StateHandle]) -> tuple[StateHandle, ...]:
        """Those of the files that no kept and no doubtful manifest refers to, each once."""
        distinct = {each.location: each for each in handles if each.location and each.location not in self._references}
        return tuple(distinct.values())

    def not_kept(self, ending: Ending) -> tuple[int, ...]:
        """The entries of those manifests that, after such an end, neither the policy nor anybody who depends on them
        keeps. While the log stays open, the newest is not dropped before an older one: it would be gone on from."""
        pinned = set(self._holders)
        if pinned and ending is not Ending.FINISHED and self.latest_id is not None:
            pinned.add(self.latest_id)
        going = [one for one in self._kept.values() if not self._stored(one).keeps_files(ending)]
        return tuple(one.number for one in going if one.checkpoint not in pinned)

    def drop(self, numbers: Collection[int]) -> Gone:
        """The log says that nobody goes on from these."""
        gone = [one for one in self._kept.values() if one.number in numbers]
        self._let_go(gone)
        return self._gone(gone, ())

    def finish_dropping(self, manifests: Sequence[Manifest]) -> Gone:
        """Somebody before us has dropped these, and not lived to delete them."""
        return self._gone(list(manifests), ())

    def _shrink(self, doubtful: Iterable[Manifest]) -> Gone:
        """Let go of what is too many; ``doubtful``: manifests that are doubtful no more."""
        # those that are pinned and older than all that are to be kept would be subsumed, and stay
        newest = islice(reversed(self._kept.items()), self._retained)
        plain = (one for one in reversed(self._kept.items()) if not CheckpointKind(one[1].kind).is_savepoint)
        looked_at = {**self._free, **dict(newest), **dict(islice(plain, 1))}
        stored = [self._stored(looked_at[id]) for id in sorted(looked_at)]
        gone = [self._free[one.id] for one in plan_subsumption(stored, self._retained) if one.id in self._free]
        self._let_go(gone)
        return self._gone(gone, doubtful)

    def _keep(self, manifest: Manifest) -> None:
        self._kept[manifest.checkpoint] = self._free[manifest.checkpoint] = manifest
        self._count(manifest, 1)
        self._states = {state.task: state for state in manifest.tasks}
        if all(state.cut is None for state in manifest.tasks):
            self.latest_whole = manifest.checkpoint

    def _let_go(self, manifests: Iterable[Manifest]) -> None:
        for manifest in manifests:
            del self._kept[manifest.checkpoint]
            self._free.pop(manifest.checkpoint, None)
            self._count(manifest, -1)
        newest = self.latest
        self._states = {} if newest is None else {state.task: state for state in newest.tasks}

    def _count(self, manifest: Manifest, by: int) -> None:
        """References to its files."""
        for handle in _handles((manifest,)):
            self._references[handle.location] += by
            if not self._references[handle.location]:
                del self._references[handle.location]

    def _gone(self, manifests: list[Manifest], doubtful: Iterable[Manifest]) -> Gone:
        return Gone(
            tuple(manifest.number for manifest in manifests),
            self.unreferenced(_handles((*manifests, *doubtful))),
            tuple(manifest for manifest in manifests if manifest.root and manifest.claimed),
            tuple(manifest.checkpoint for manifest in manifests),
        )

    def _stored(self, manifest: Manifest) -> StoredCheckpoint:
        foreign = bool(manifest.root) and not manifest.claimed
        policy = RetentionPolicy.ALWAYS if foreign else self._policy
        return StoredCheckpoint(manifest.checkpoint, CheckpointKind(manifest.kind), policy)

    def validate(self) -> None:
        """Rules 1, 2 and 6."""
        ids = [manifest.checkpoint for manifest in self._kept.values()]
        if ids != sorted(set(ids)):
            raise AssertionError(f"completed checkpoints are out of order: {ids}")
        holders = Counter([*self._pins.values(), *self._held])
        if not set(holders) <= set(ids):
            raise AssertionError(f"a pinned checkpoint is not kept: {self._pins}, {ids}")
        if holders != self._holders or set(self._free) != set(ids) - set(holders):
            raise AssertionError(f"{self._holders} depend on checkpoints, and nobody on {list(self._free)}")
        locations = (handle.location for handle in _handles((*self._kept.values(), *self._doubtful)))
        if Counter(locations) != self._references:
            raise AssertionError(f"references to files are not as counted: {self._references}")


def _handles(manifests: Iterable[Manifest]) -> tuple[StateHandle, ...]:
    """What lies in files of the job's own folder."""
    own = (manifest for manifest in manifests if not manifest.root)
    return tuple(each for manifest in own for state in manifest.tasks for each in state.state if each.location)

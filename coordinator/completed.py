"""The completed checkpoints that are kept, and what nobody needs any more.

Rules:

1. Ids strictly increase. The newest is what a restart goes back to; it is never given up.
2. A state file may go when no kept manifest refers to it, no pending one will, and no *doubtful* one may: one whose
   write failed in a way that leaves open whether it will still appear in the log.
3. Entries of the log that may go are manifests older than the oldest kept one, never claims: what stops a stale
   coordinator is that the number it would write next is taken by its successor's claim.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..engine.identity import CheckpointId, StateHandle, TaskId
from .manifest import Manifest, TaskState


class CompletedCheckpoints:
    """Kept and doubtful manifests, oldest first."""

    def __init__(self, retained: int) -> None:
        self._retained = retained
        #: The kept manifests; ids strictly increase.
        self._kept: list[Manifest] = []
        #: Manifests that may or may not appear in the log at the number we write next.
        self._doubtful: list[Manifest] = []
        #: Locations that the kept and doubtful manifests refer to; derived from the two.
        self._locations: frozenset[str] = frozenset()
        #: Of the newest manifest, by task; derived.
        self._states: dict[TaskId, TaskState] = {}

    @property
    def latest(self) -> Manifest | None:
        return self._kept[-1] if self._kept else None

    @property
    def latest_id(self) -> CheckpointId | None:
        return self._kept[-1].checkpoint if self._kept else None

    @property
    def doubtful(self) -> tuple[Manifest, ...]:
        return tuple(self._doubtful)

    def state_of(self, task: TaskId) -> TaskState | None:
        """What the newest checkpoint holds of the task."""
        return self._states.get(task)

    def vertex_handles(self, vertex: str) -> tuple[StateHandle, ...]:
        """All files of a vertex in the newest checkpoint, by subtask."""
        states = sorted((s for s in self._states.values() if s.task.vertex == vertex), key=lambda s: s.task)
        return tuple(handle for state in states for handle in state.state)

    def restore(self, manifests: Iterable[Manifest]) -> None:
        """What the log holds, oldest first."""
        self._kept = list(manifests)
        self._derive()

    def add(self, manifest: Manifest) -> tuple[tuple[int, ...], tuple[StateHandle, ...]]:
        """A checkpoint completed: the numbers of the entries, and the files, that can go.

        Its number is taken now: a doubtful manifest is this one or can never appear.
        """
        if self._kept and manifest.checkpoint <= self._kept[-1].checkpoint:
            raise AssertionError(f"checkpoint {manifest.checkpoint} completed after {self._kept[-1].checkpoint}")
        before = [*self._kept, *self._doubtful]
        self._kept.append(manifest)
        gone = self._kept[: -self._retained]
        self._kept = self._kept[-self._retained :]
        self._doubtful = []
        self._derive()
        return tuple(old.number for old in gone), self.unreferenced(_handles(before))

    def settle(self) -> tuple[StateHandle, ...]:
        """The number is taken by another entry, so no doubtful manifest can appear any more: files that can go."""
        before, self._doubtful = self._doubtful, []
        self._derive()
        return self.unreferenced(_handles(before))

    def doubt(self, manifest: Manifest) -> None:
        """The manifest's write failed, and it was not in the log afterwards; it may still come."""
        self._doubtful.append(manifest)
        self._derive()

    def unreferenced(self, handles: Iterable[StateHandle]) -> tuple[StateHandle, ...]:
        """Those of the files that no kept and no doubtful manifest refers to, each once."""
        distinct = {handle.location: handle for handle in handles if handle.location not in self._locations}
        return tuple(distinct.values())

    def _derive(self) -> None:
        manifests = (*self._kept, *self._doubtful)
        self._locations = frozenset(handle.location for handle in _handles(manifests))
        self._states = {state.task: state for state in self._kept[-1].tasks} if self._kept else {}

    def validate(self) -> None:
        """Rule 1."""
        ids = [manifest.checkpoint for manifest in self._kept]
        if ids != sorted(set(ids)):
            raise AssertionError(f"completed checkpoints are out of order: {ids}")


def _handles(manifests: Iterable[Manifest]) -> tuple[StateHandle, ...]:
    return tuple(handle for manifest in manifests for state in manifest.tasks for handle in state.state)

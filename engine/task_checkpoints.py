"""What a task knows of its checkpoints: what its drivers have snapshotted, what its sinks have prepared. Pure.

Rules:

1. Orders for a checkpoint that is older than the newest one, or was given up, are late and change nothing.
2. What sinks prepared stays until a commit covers it: if its checkpoint was given up, the next one carries it.
3. The final checkpoint is the first complete one whose drivers had all ended their data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from .identity import CheckpointId, Committable
from .task_listener import TaskSnapshot


@dataclass(slots=True)
class _Pending:
    """A checkpoint that some drivers have reached."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    data_ended: bool = True
    #: names of the drivers that have snapshotted
    drivers: set[str] = field(default_factory=set)


class TaskCheckpoints:
    """See the module's rules. ``drivers``: how many there are."""

    def __init__(self, drivers: int) -> None:
        self._drivers = drivers
        self._pending: dict[CheckpointId, _Pending] = {}
        #: what sinks prepared, by checkpoint, and no commit has covered yet
        self._prepared: dict[CheckpointId, list[Committable]] = {}
        #: the newest checkpoint that was triggered
        self.newest: CheckpointId | None = None
        self._given_up: CheckpointId | None = None
        self._final: CheckpointId | None = None
        #: the final checkpoint, or a later one, has been committed
        self.final_committed = False

    def is_late(self, checkpoint: CheckpointId) -> bool:
        """Whether an order for the checkpoint comes too late, or again."""
        if self._given_up is not None and checkpoint <= self._given_up:
            return True
        return self.newest is not None and checkpoint <= self.newest

    def add(
        self,
        checkpoint: CheckpointId,
        driver: str,
        tables: dict[str, pa.Table],
        committables: list[Committable],
        data_ended: bool,
    ) -> TaskSnapshot | None:
        """A driver has snapshotted; the whole task's snapshot if it was the last one."""
        self._prepared.setdefault(checkpoint, []).extend(committables)
        if self._given_up is not None and checkpoint <= self._given_up:
            return None
        pending = self._pending.setdefault(checkpoint, _Pending())
        pending.tables.update(tables)
        pending.data_ended = pending.data_ended and data_ended
        pending.drivers.add(driver)
        return self._complete(checkpoint, pending) if len(pending.drivers) == self._drivers else None

    def _complete(self, checkpoint: CheckpointId, pending: _Pending) -> TaskSnapshot:
        self._pending = {known: other for known, other in self._pending.items() if known > checkpoint}
        if pending.data_ended and self._final is None:
            self._final = checkpoint
        covered = sorted(known for known in self._prepared if known <= checkpoint)
        committables = tuple(committable for known in covered for committable in self._prepared[known])
        return TaskSnapshot(pending.tables, committables, pending.data_ended)

    def give_up(self, checkpoint: CheckpointId) -> None:
        """The coordinator gave the checkpoint up, and with it all older ones."""
        if self._given_up is None or checkpoint > self._given_up:
            self._given_up = checkpoint
        self._pending = {known: pending for known, pending in self._pending.items() if known > checkpoint}

    def forget(self, checkpoint: CheckpointId) -> None:
        """A driver gave the checkpoint up."""
        self._pending.pop(checkpoint, None)

    def committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint stands in the log and its committables are visible."""
        self._prepared = {known: found for known, found in self._prepared.items() if known > checkpoint}
        if self._final is not None and checkpoint >= self._final:
            self.final_committed = True

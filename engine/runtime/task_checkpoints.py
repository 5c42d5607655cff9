"""What a task knows of its checkpoints: what its drivers have snapshotted, what its sinks have prepared. Pure.

Rules:

1. Orders for a checkpoint that is older than the newest one, or was given up, are late and change nothing.
2. What sinks prepared stays until a commit covers it: if its checkpoint was given up, the next one carries it.
3. The final checkpoint is the first complete one whose drivers had all ended their data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..core.elements import Barrier
from ..core.identity import Account, BarrierKind, CheckpointId, Committable, EndedLanes, Holds, later_round
from ..exchange.channel_state import ChannelPart
from .checkpointing import DriverSnapshot


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """What one task adds to a checkpoint. ``tables``: operator id to state; ``data_ended``: it is a final one;
    ``finished_on_restore``: the task's operators had finished before it was built, and ``tables`` are left out; the
    rest is as in a driver's ``DriverSnapshot``, of all drivers together."""

    tables: dict[str, pa.Table]
    committables: tuple[Committable, ...]
    data_ended: bool
    channels: tuple[ChannelPart, ...] = ()
    unaligned: bool = False
    alignment: float = 0.0
    processed_bytes: int = 0
    ended: tuple[EndedLanes, ...] = ()
    finished_on_restore: bool = False
    ledger: tuple[Account, ...] = ()


class TaskCheckpoints:
    """See the module's rules. ``drivers``: how many there are; ``timeout``: of the alignment (``JobPlan``);
    ``finished``: before the task was built, so that its state is carried on by others."""

    def __init__(self, drivers: int, timeout: float | None = None, *, finished: bool = False) -> None:
        self._drivers = drivers
        self._finished = finished
        self._timeout = timeout
        #: the cuts of checkpoints that some drivers have reached, by the driver's name
        self._pending: dict[CheckpointId, dict[str, DriverSnapshot]] = {}
        #: what sinks prepared, by checkpoint, and no commit has covered yet
        self._prepared: dict[CheckpointId, list[Committable]] = {}
        #: the newest checkpoint that was triggered
        self._newest: CheckpointId | None = None
        self._aborted: CheckpointId | None = None
        #: the checkpoint that was proposed last, and the rounds in which sources stand
        self._proposed: CheckpointId | None = None
        self._rounds: list[int] = []
        self._final: CheckpointId | None = None
        #: the final checkpoint, or a later one, has been committed
        self.final_committed = False

    def is_late(self, checkpoint: CheckpointId) -> bool:
        """Whether an order for the checkpoint comes too late, or again."""
        if self._aborted is not None and checkpoint <= self._aborted:
            return True
        return self._newest is not None and checkpoint <= self._newest

    def propose(self, checkpoint: CheckpointId) -> None:
        """The sources are asked for their rounds."""
        self._proposed, self._rounds = checkpoint, []

    def proposed(self, checkpoint: CheckpointId, rounds: Sequence[int], sources: int) -> int | None:
        """Some have answered; the task's round when all ``sources`` have."""
        if self._proposed != checkpoint:
            return None
        self._rounds += rounds
        return later_round(*self._rounds) if len(self._rounds) == sources else None

    def order(self, checkpoint: CheckpointId, kind: BarrierKind, at: float) -> Barrier | None:
        """The barrier of a checkpoint that is triggered; None if that comes too late. Savepoints are always aligned."""
        if self.is_late(checkpoint):
            return None
        self._newest = checkpoint
        timeout = self._timeout if kind is BarrierKind.CHECKPOINT else None
        return Barrier(checkpoint, kind, at, unaligned=timeout == 0, timeout=timeout or None)

    def add(self, driver: str, cut: DriverSnapshot, committables: list[Committable]) -> TaskSnapshot | None:
        """A driver has snapshotted; the whole task's snapshot if it was the last one."""
        checkpoint = cut.barrier.checkpoint
        self.keep(checkpoint, committables)
        if self._aborted is not None and checkpoint <= self._aborted:
            return None
        cuts = self._pending.setdefault(checkpoint, {})
        cuts[driver] = cut
        return self._complete(checkpoint, list(cuts.values())) if len(cuts) == self._drivers else None

    def keep(self, checkpoint: CheckpointId, committables: list[Committable]) -> None:
        """Sinks have prepared something for the checkpoint."""
        self._prepared.setdefault(checkpoint, []).extend(committables)

    def _complete(self, checkpoint: CheckpointId, cuts: Sequence[DriverSnapshot]) -> TaskSnapshot:
        self._pending = {known: other for known, other in self._pending.items() if known > checkpoint}
        data_ended = all(cut.data_ended for cut in cuts)
        if data_ended and self._final is None:
            self._final = checkpoint
        channels = tuple(part for cut in cuts for part in cut.channels)
        in_flight = any(part.holds is Holds.INPUT for part in channels)
        assert not (data_ended and in_flight), "behind the end of its data nothing is on its way to a task"
        covered = sorted(known for known in self._prepared if known <= checkpoint)
        return TaskSnapshot(
            tables={} if self._finished else {id: table for cut in cuts for id, table in cut.tables.items()},
            committables=tuple(committable for known in covered for committable in self._prepared[known]),
            data_ended=data_ended,
            channels=channels,
            unaligned=any(cut.unaligned for cut in cuts),
            alignment=max(cut.alignment for cut in cuts),
            processed_bytes=sum(cut.processed_bytes for cut in cuts),
            ended=tuple(each for cut in cuts for each in cut.ended),
            finished_on_restore=self._finished,
            ledger=tuple(account for cut in cuts for account in cut.ledger),
        )

    def abort(self, checkpoint: CheckpointId) -> None:
        """The coordinator gave the checkpoint up, and with it all older ones."""
        if self._aborted is None or checkpoint > self._aborted:
            self._aborted = checkpoint
        self._pending = {known: cuts for known, cuts in self._pending.items() if known > checkpoint}

    def forget(self, checkpoint: CheckpointId) -> None:
        """A driver gave the checkpoint up."""
        self._pending.pop(checkpoint, None)

    def committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint stands in the log and its committables are visible."""
        self._prepared = {known: found for known, found in self._prepared.items() if known > checkpoint}
        if self._final is not None and checkpoint >= self._final:
            self.final_committed = True

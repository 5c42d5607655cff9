"""What a task tells its owner, and in which form.

The owner is whoever calls ``step``: a host with a thread of its own, the serial task, or a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from .errors import PenstockError
from .identity import CheckpointId, Committable


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """What one task adds to a checkpoint. ``tables``: operator id to state; ``data_ended``: it is a final one."""

    tables: dict[str, pa.Table]
    committables: tuple[Committable, ...]
    data_ended: bool


class TaskListener(Protocol):
    """What a task tells its owner. Called on the task's thread, from within its methods; must not block."""

    def round_proposed(self, checkpoint: CheckpointId, round: int) -> None: ...

    def snapshot_taken(self, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None: ...

    def drained(self, barrier: CheckpointId) -> None:
        """Every driver of the task has drained for a task barrier."""

    def data_ended(self) -> None: ...

    def finished(self) -> None: ...

    def failed(self, error: PenstockError) -> None: ...


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did. Without progress, call again after a message, or at ``wake_at`` if that is not None."""

    progressed: bool
    wake_at: float | None = None

"""What a plan that runs in this process hears of its tasks: there are no checkpoints, so most of it does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..core.errors import PenstockError
from ..core.identity import CheckpointId
from ..runtime.task_listener import TaskSnapshot
from ..runtime.windows import OperatorWindow


class PlanOwner(Protocol):
    """Whoever runs the plan."""

    def drained(self, barrier: CheckpointId, window: Sequence[OperatorWindow]) -> None: ...

    def data_ended(self) -> None: ...

    def failed(self, error: PenstockError) -> None: ...


class PlanListener:
    """Passes on what matters."""

    def __init__(self, owner: PlanOwner) -> None:
        self.drained = owner.drained
        self.data_ended = owner.data_ended
        self.failed = owner.failed

    def round_proposed(self, checkpoint: CheckpointId, round: int) -> None: ...

    def snapshot_taken(self, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None: ...

    def declined(self, checkpoint: CheckpointId) -> None: ...

    def finished(self) -> None: ...

"""What a task posts to its drivers: orders that reach the sources, on the thread that runs the driver."""

from __future__ import annotations

from collections.abc import Sequence

from .driver import Driver
from .elements import Barrier
from .identity import BarrierKind, CheckpointId
from .sources.reader import SplitReader


def drain(readers: Sequence[SplitReader], barrier: CheckpointId) -> None:
    """Place a task barrier behind the splits known so far."""
    for reader in readers:
        reader.trigger(Barrier(barrier, BarrierKind.DRAIN, 0.0), reader.last_round)


def abort(driver: Driver, checkpoint: CheckpointId) -> None:
    """Forget a checkpoint."""
    for reader in driver.readers:
        reader.abort(checkpoint)
    driver.checkpointing.abort(checkpoint)

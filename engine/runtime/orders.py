"""What a task posts to its drivers: orders for sources and paced operators, on the thread that runs the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..core.elements import Barrier
from ..core.identity import BarrierKind, CheckpointId
from ..sources.reader import SplitReader
from .driver import Driver
from .pacing import PacedOperator


def drain(readers: Sequence[SplitReader], barrier: CheckpointId) -> None:
    """Place a task barrier behind the splits known so far."""
    for reader in readers:
        reader.trigger(Barrier(barrier, BarrierKind.DRAIN, 0.0), reader.last_round)


def abort(driver: Driver, checkpoint: CheckpointId) -> None:
    """Forget a checkpoint."""
    for reader in driver.readers:
        reader.abort(checkpoint)
    driver.checkpointing.abort(checkpoint)


def advance(driver: Driver) -> None:
    """Look again at how far the end of the task has come."""
    driver.advanced = True


# ---- paced operators (``pacing``)


def _paced(drivers: Iterable[Driver]) -> Iterator[tuple[Driver, PacedOperator]]:
    for driver in drivers:
        if (paced := driver.chain.paced) is not None:
            yield driver, paced


def expect(drivers: Iterable[Driver], checkpoint: CheckpointId) -> None:
    """A checkpoint begins."""
    for driver, paced in _paced(drivers):
        driver.post(paced.expect, checkpoint)


def give_up(drivers: Iterable[Driver], checkpoint: CheckpointId) -> None:
    """A checkpoint was given up."""
    for driver, paced in _paced(drivers):
        driver.post(paced.give_up, checkpoint)


def committed(drivers: Iterable[Driver], checkpoint: CheckpointId) -> None:
    """A checkpoint stands in the log."""
    for driver, paced in _paced(drivers):
        driver.post(paced.committed, checkpoint)
        driver.post(advance, driver)


def are_released(drivers: Iterable[Driver]) -> bool:
    """Whether nobody outside needs the paced operators any more."""
    return all(paced.is_released for _, paced in _paced(drivers))

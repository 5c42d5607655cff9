"""What a task's sources are fed while it runs: split sets, task barriers behind them, and their end.

Rules:

1. A split set is whole rounds: in each of them one split for each lane of each source. It is given to a reader at once,
   so no round ends for want of a lane that is still to come, and a set begins in the same round everywhere.
2. What a reader has had is known by its rounds: a reader that is restored stands at the end of a window (its cursors
   say of which round), and gets what follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.errors import InternalError
from ..core.identity import CheckpointId
from ..core.source import Split
from .driver import Driver
from .orders import drain
from .task import Task


@dataclass(frozen=True, slots=True)
class FedSplits:
    """A split set as the sources get it: whole rounds, one split for each lane in each."""

    splits: Mapping[str, Sequence[Split]]


@dataclass(frozen=True, slots=True)
class FedBarrier:
    """A task barrier behind what was fed before."""

    barrier: CheckpointId


@dataclass(frozen=True, slots=True)
class FedEnd:
    """No more split sets."""


Fed = FedSplits | FedBarrier | FedEnd


def feed(task: Task, rounds: int, items: Sequence[Fed]) -> None:
    """Give the sources of a task what the caller has fed, behind so many ``rounds``."""
    for driver in task.drivers:
        if driver.readers:
            driver.post(_feed, driver, rounds, items)


def _feed(driver: Driver, rounds: int, items: Sequence[Fed]) -> None:
    for reader in driver.readers:
        if reader.last_round != rounds - 1 and not reader.over:
            message = f"is fed round {rounds}, but has had {reader.last_round + 1} rounds"
            raise InternalError(message, operator=reader.operator)
    for item in items:
        if isinstance(item, FedBarrier):
            drain(driver.readers, item.barrier)
        for reader in driver.readers:
            if isinstance(item, FedSplits):
                for split in item.splits[reader.operator]:
                    reader.add_split(split)
            elif isinstance(item, FedEnd):
                reader.no_more_splits()

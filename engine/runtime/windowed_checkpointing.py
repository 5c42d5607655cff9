"""A driver's part of barriers where task barriers and those of checkpoints come one after the other.

Rules:

1. Both kinds take their ids from one sequence, and stand in every channel in the order of their ids.
2. A checkpoint that is given up must not take a task barrier along: nobody gives those up, and one with a smaller id
   may still be on its way here when the order comes. So such an order voids the checkpoints' barriers to come, and
   touches an alignment only if that is for a checkpoint.
3. How long each input stood behind a task barrier is told with the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..core.elements import Barrier
from ..core.identity import BarrierKind, CheckpointId
from ..exchange.edges import InputChannel
from ..planner.overtaking import Overtaking
from ..sources.reader import SplitReader
from .checkpointing import Checkpointing, Driving
from .windows import OperatorWindow


class WindowedCheckpointing(Checkpointing):
    """See the module's rules. Nothing overtakes here."""

    def __init__(self, driver: Driving, overtaking: Overtaking) -> None:
        super().__init__(driver, overtaking)
        #: barriers of checkpoints up to this one mean nothing
        self._void: CheckpointId | None = None
        #: when the task barrier came on each feed
        self._came: dict[int, float] = {}

    def barrier(self, feed: int, barrier: Barrier) -> None:
        """A barrier was read in its turn."""
        if barrier.kind is BarrierKind.DRAIN:
            self._came[feed] = self._driver.clock()
        elif self._void is not None and barrier.checkpoint <= self._void:
            return
        super().barrier(feed, barrier)

    def abort(self, checkpoint: CheckpointId) -> None:
        """The coordinator gave the checkpoint up (rule 2)."""
        self._void = checkpoint if self._void is None else max(self._void, checkpoint)
        pending = self.handler.latest if self.handler.pending else None
        if pending is not None and pending <= checkpoint and not self.drains_next:
            super().abort(pending)

    def _drain(self, barrier: Barrier) -> Iterator[None]:
        driver, window = self._driver, list[OperatorWindow]()
        came, self._came = self._came, {}
        last = max(came.values(), default=0.0)
        yield from driver.chain.drain(driver.clock, window)
        if window:
            waits = tuple((self._input(feed), last - at) for feed, at in sorted(came.items()))
            window[0] = replace(window[0], waits=waits)
        driver.pending.append(barrier)
        driver.host.drained(driver, barrier.checkpoint, window)
        driver.ports.begin_window()

    def _input(self, feed: int) -> str:
        found = self._feeds[feed]
        if isinstance(found, SplitReader):
            return found.operator
        assert isinstance(found, InputChannel)
        return f"{found.channel.edge} from {found.channel.producer}"

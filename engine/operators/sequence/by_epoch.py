"""What operators have in common that hold rows, or parts of them, and give what is left when an epoch ends (in its last
round), at a task barrier, and at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from ...core.elements import FINAL_ROUND
from ...core.epochs import ends_epoch
from ...core.operator import Emitter, OperatorContext, Output, Stateless, Steps

GIVES_THE_REST = ("end_round", "drain", "finish")
"""The calls that do."""


class GivesTheRest(Stateless, ABC):
    """One input behind a gather. What is left leaves with the last lane at the end of an epoch, else with the first."""

    def __init__(self, context: OperatorContext) -> None:
        self._lane, self._last_lane = context.lanes.start, context.lanes.stop - 1
        self._memory, self._epochs = context.memory, context.epochs
        #: the last round that has ended
        self._round = max(context.ended_round, 0)
        self._emitter = Emitter()

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        """What is left leaves if an epoch ends."""
        self._round = self._round if round == FINAL_ROUND else round
        return self._end(round, out, self._last_lane) if ends_epoch(self._epochs, round) else None

    def drain(self, out: Output) -> Steps:
        """Give what is left, and begin anew."""
        return self._end(self._round, out, self._lane)

    def finish(self, out: Output) -> Steps:
        """Give what is left."""
        return self._end(FINAL_ROUND, out, self._lane)

    @abstractmethod
    def _end(self, round: int, out: Output, lane: int) -> Iterator[None]:
        """Give what is left, and begin anew."""

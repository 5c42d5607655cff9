"""Operators that somebody outside the job sets the pace of (a feed): what their task and their driver do for them.

Rules:

1. A paced operator refuses batches while it is full. Told to ``expect`` a checkpoint it takes what stands before the
   barriers all the same, until it has been cut, or given up.
2. So that this ends, the sources begin no further round while it is full (``HoldRound``, from consumer to producer and
   through every driver on the way): the checkpoint after the next finds nothing before its barriers. What is taken
   beyond the room is thus bounded by the credit of the channels and a round, however long it stays full.
3. A task whose paced operator is in use by others does not end, though its data have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from ..core.identity import CheckpointId
from ..exchange.edges import OutputChannel
from ..exchange.gate import Feed


@runtime_checkable
class PacedOperator(Protocol):
    """What a running operator offers besides, if somebody outside sets its pace. Its config says so with an attribute
    ``paced`` that is true."""

    def expect(self, checkpoint: CheckpointId) -> None:
        """Barriers of the checkpoint are on their way."""

    def give_up(self, checkpoint: CheckpointId) -> None:
        """They are not any more, nor those of older ones."""

    def committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint stands in the log."""

    @property
    def is_full(self) -> bool:
        """Whether no further round should begin."""

    @property
    def is_released(self) -> bool:
        """Whether nobody outside needs it any more."""

    @property
    def waits_for_whom(self) -> str:
        """Who does not read, in words; "" if nobody is waited for."""


def paced_of(running: Iterable[object]) -> PacedOperator | None:
    """The paced operator of a chain, if it has one."""
    return next((each for each in running if isinstance(each, PacedOperator)), None)


class Holding:
    """What one driver passes on of rule 2."""

    def __init__(self, paced: PacedOperator | None, feeds: Sequence[Feed], channels: Sequence[OutputChannel]) -> None:
        self._paced = paced
        self._feeds = feeds
        self._channels = channels
        self._told = False

    def pass_on(self) -> None:
        """Tell the feeds if it has changed."""
        paced = self._paced
        hold = (paced is not None and paced.is_full) or any(channel.held for channel in self._channels)
        if hold != self._told:
            self._told = hold
            for feed in self._feeds:
                feed.hold_rounds(hold)

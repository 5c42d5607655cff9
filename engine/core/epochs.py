"""How often a job reads its sources, and in which rounds. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from .elements import FINAL_ROUND


@dataclass(frozen=True, slots=True)
class Epochs:
    """The sources are read ``count`` times, each time in ``rounds`` rounds: those of epoch *e* are the rounds from
    e·rounds on. So whoever sees a round, or its end, knows the epoch without being told."""

    count: int
    rounds: int

    def of(self, round: int) -> int:
        """The epoch of a round; what comes at the end of the data is of the last one."""
        return self.count - 1 if round == FINAL_ROUND else round // self.rounds

    def ends_with(self, round: int) -> bool:
        """Whether the round is the last one of an epoch."""
        return round != FINAL_ROUND and (round + 1) % self.rounds == 0

    @property
    def end(self) -> int:
        """The round behind the last one."""
        return self.count * self.rounds


def epoch_of(epochs: Epochs | None, round: int) -> int:
    """The same, where the sources may be read once."""
    return 0 if epochs is None else epochs.of(round)


def ends_epoch(epochs: Epochs | None, round: int) -> bool:
    """Whether the rows of another epoch follow this round, or it is the last one of all epochs."""
    return epochs is not None and epochs.ends_with(round)

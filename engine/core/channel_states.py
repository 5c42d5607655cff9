"""The states of one end of a channel: how far its data have come, which rows are wanted, what was answered."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class EndState(Enum):
    """How far one end is: what may still pass it."""

    __hash__ = object.__hash__  # members are compared by identity; Enum hashes their names, in Python

    OPEN = "open"
    DATA_ENDED = "data ended"
    """``EndOfData`` has passed: no more batches."""
    CLOSED = "closed"
    """``EndOfPartition`` has passed: nothing follows."""


class Demand(Enum):
    """Which rows the consumer still needs."""

    __hash__ = object.__hash__

    ALL = "all rows"
    NEXT_WINDOW = "rows of the next window"
    """None before the next task barrier."""
    NONE = "no rows"
    """None ever again."""


class Answer(Enum):
    """What the consumer has answered to the end of the data."""

    __hash__ = object.__hash__

    NONE = "none"
    END_OF_DATA = "end of data"
    """It has processed every row."""
    DRAINED = "drained"
    """So has everybody further down, of what was emitted because of the end."""


END_MOVES: Mapping[EndState, frozenset[EndState]] = {
    EndState.OPEN: frozenset({EndState.DATA_ENDED, EndState.CLOSED}),
    EndState.DATA_ENDED: frozenset({EndState.CLOSED}),
    EndState.CLOSED: frozenset(),
}

DEMAND_MOVES: Mapping[Demand, frozenset[Demand]] = {
    Demand.ALL: frozenset({Demand.NEXT_WINDOW, Demand.NONE}),
    Demand.NEXT_WINDOW: frozenset({Demand.ALL, Demand.NONE}),
    Demand.NONE: frozenset(),
}

ANSWER_MOVES: Mapping[Answer, frozenset[Answer]] = {
    Answer.NONE: frozenset({Answer.END_OF_DATA, Answer.DRAINED}),
    Answer.END_OF_DATA: frozenset({Answer.DRAINED}),
    Answer.DRAINED: frozenset(),
}

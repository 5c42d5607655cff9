"""What a user asks of a shuffle, and the operator that it becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from ..core.arguments import Within, checked
from ..operators import DrawnShuffle, FullShuffle, Shuffle
from ..operators.sequence.shuffle import MAX_WINDOW

WINDOW = 64 * 1024
"""Rows: enough for a batch to have rows of all splits that are read at once, and few enough to be in memory."""
INTERLEAVE = 128
"""Splits: an open one holds about a page of each column."""


@checked()
@dataclass(frozen=True)
class ShuffleOptions:
    """Splits in an order that is drawn anew in each epoch, at most ``interleave`` of them read in turn, and then the
    rows of every ``window`` consecutive ones in a random order."""

    window: Annotated[int, Within(1, MAX_WINDOW)] = WINDOW
    interleave: Annotated[int, Within(1, 32768)] = INTERLEAVE


AskedShuffle: TypeAlias = int | bool | Literal["full"] | ShuffleOptions


def operator_of(asked: AskedShuffle, seed: int, epoch: int) -> Shuffle | FullShuffle:
    """The operator that shuffles so. A number is the window of one behind drawn splits."""
    if asked == "full":
        return FullShuffle(seed, epoch)
    if isinstance(asked, ShuffleOptions):
        options = asked
    else:
        options = ShuffleOptions() if asked is True else ShuffleOptions(window=asked)
    return DrawnShuffle(options.window, seed, epoch, interleave=options.interleave)

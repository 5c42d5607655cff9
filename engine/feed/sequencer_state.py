"""What a sequencer is told when it is made, and what a checkpoint holds of it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from .batch_grid import BatchGrid
from .messages import R
from .order_hash import OrderHash
from .ranks import RankPlace, Untaken

Place = tuple[int, bool, bool]
"""The position, whether the feed had ended, and whether all of it had been acknowledged."""


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """``drop_last``: the last batch of an epoch is left out if it is not full. ``most_rows``: kept before new ones must
    wait. ``epochs``: how often the feed's data come.

    ``apart``: so many batches, counted from the one that the slowest rank takes next, may be handed out; None: all that
    there are.

    ``ahead``: of these, at most so many that some rank has not taken; the rest is for what all have taken and not
    saved, of which the oldest goes first. None: no such division. ``ahead_bytes``: nor more than so many bytes that
    some rank has not taken, but for the batch that is wanted next; None: whatever they have. ``certain``: see rule
    4."""

    batch_size: int
    repeatable: bool = True
    drop_last: bool = False
    most_rows: int = 1 << 20
    ahead: int | None = None
    certain: bool = False
    epochs: int = 1
    apart: int | None = None
    ahead_bytes: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.most_rows:
            raise ValueError(
                f"a feed keeps at least one batch: {self.batch_size} rows a batch, {self.most_rows} rows in all"
            )

    @property
    def margin(self) -> int:
        """Rows of the same epoch behind a batch that tell that it is not the last one."""
        return 0 if self.epochs == 1 else self.batch_size if self.drop_last else 1


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Where an epoch has ended, and the ``content`` (``order_hash``) of all rows up to there."""

    position: int
    content: int


@dataclass(frozen=True, slots=True)
class SequencerState(Generic[R]):
    """What a checkpoint holds. ``first``: the position of the first of ``rows``; ``position``: behind the last.
    ``ends``: of the epochs that have ended. ``places`` and ``untaken``: what its desk knows of the ranks."""

    first: int
    position: int
    ended: bool
    order: OrderHash
    rows: tuple[R, ...]
    ends: tuple[EpochEnd, ...] = ()
    places: tuple[RankPlace, ...] = ()
    """Of the ranks of the newest world."""
    untaken: tuple[Untaken, ...] = ()

    def first_batch(self, batch_size: int, drop_last: bool) -> int:
        """The first batch that it holds, or that comes behind it."""
        return BatchGrid.of(batch_size, drop_last, [end.position for end in self.ends]).batch_from(self.first)

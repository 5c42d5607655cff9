"""The splits of a source that is read in every epoch.

Rules:

1. A lane reads its splits in the rounds of an epoch, one after the other, and then none until the next epoch begins.
   Its cursor counts on: behind the last split of an epoch comes the first one of the next.
2. A lane has ended when the rounds of all epochs are over, also one that has no split at all: all sources of a job end
   in the same round.
3. In a later epoch a split has an id of its own, so that errors, poison and the audit tell which reading they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from ..core.epochs import Epochs
from ..core.operator import Background
from ..core.source import Split
from ..plan.rounds import LaneCursor
from .picking import Chunk, Chunked, Pick, column_stream
from .read_ahead import PendingChunk
from .split_queue import SplitQueue


class RepeatedSplits(SplitQueue):
    """See the module's rules."""

    def __init__(
        self,
        schema: pa.Schema,
        splits: Sequence[Split],
        cursors: Sequence[LaneCursor],
        lane_count: int,
        quota: int | None,
        background: Background | None,
        epochs: Epochs,
    ) -> None:
        super().__init__(schema, splits, cursors, lane_count, quota, background)
        self._epochs = epochs

    def ended(self, cursor: LaneCursor, round: int = 0) -> bool:
        """Whether no round is left."""
        return cursor.needless or round >= self._epochs.end

    def take(self, cursor: LaneCursor, round: int, *, dropping: bool) -> Chunk | PendingChunk | None:
        """The next chunk of the lane's round; None at its end, and in rounds for which the epoch has no split."""
        if self._chunks is None:
            count = self._of_lane(cursor)
            if not count or cursor.ordinal // count > self._epochs.of(round):
                return None
        return super().take(cursor, round, dropping=dropping)

    def none_up_to(self, round: int | None) -> bool:
        """Never known: all are read again."""
        return False

    def _pass(self, cursor: LaneCursor) -> None:
        self._streams.pop(cursor.lane, None)
        cursor.ordinal, cursor.row = cursor.ordinal + 1, 0

    def _has_split(self, cursor: LaneCursor) -> bool:
        return True

    def _read_several(self, cursor: LaneCursor, background: Background) -> None:
        """Splits of several epochs would be in one go: each is read by itself."""

    def _begin_next(self, cursor: LaneCursor, background: Background) -> None:
        """A lane waits for the next epoch to begin: each is read by itself."""

    def _split(self, cursor: LaneCursor) -> Split:
        epoch, ordinal = divmod(cursor.ordinal, self._of_lane(cursor))
        return again(self._splits[self._deal.position(cursor.lane, ordinal)], epoch)

    def _of_lane(self, cursor: LaneCursor) -> int:
        return self._deal.count(cursor.lane, self.count)


def queue_of(
    schema: pa.Schema,
    splits: Sequence[Split],
    cursors: Sequence[LaneCursor],
    lane_count: int,
    quota: int | None,
    background: Background | None,
    epochs: Epochs | None,
) -> SplitQueue:
    """The queue of a source that is read once (``epochs`` None), or again and again."""
    if epochs is None:
        return SplitQueue(schema, splits, cursors, lane_count, quota, background)
    return RepeatedSplits(schema, splits, cursors, lane_count, quota, background, epochs)


def again(split: Split, epoch: int) -> Split:
    """The split as it is read in an epoch."""
    if epoch == 0:
        return split
    made: Split = split.again(epoch) if hasattr(split, "again") else SplitAgain(split, epoch)
    return made


def id_again(id: str, epoch: int) -> str:
    """What it is called there."""
    return id if epoch == 0 else f"{id} (epoch {epoch})"


class SplitAgain:
    """A split in a later epoch."""

    def __init__(self, split: Split, epoch: int) -> None:
        self._split = split
        self.id = id_again(split.id, epoch)
        self.rows = split.rows
        self.blocking = bool(getattr(split, "blocking", False))

    @property
    def is_at_hand(self) -> bool:
        """As the split is."""
        return bool(getattr(self._split, "is_at_hand", False))

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        """The rows from ``start`` on."""
        return self._split.open(start)

    def column_stream(self, start: int, pick: Pick | None, compact: bool) -> Chunked | None:
        """The same, in chunks, if the split can do that."""
        return column_stream(self._split, start, pick, compact)

"""The running source: turns splits into batches with order tags, rounds and barriers.

Rules:

1. It speaks like a channel (``peek``, ``pop``), so a driver cannot tell a source from an upstream driver.
2. A barrier stands only between two rounds, or after the end of the data. A snapshot is therefore a cursor per lane.
3. Proposing a round is a promise: until a trigger or an abort the reader does not pass the end of that round, so
   the largest of all proposals is a round that every source can still place its barrier after.
4. It reads the clock only as a number that the task hands in (``now``), for pacing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import pyarrow as pa

from ..elements import FINAL_ROUND, Barrier, Batch, Element, EndOfData, EndOfPartition, EndOfRound, Tag
from ..errors import DataError, InternalError, PenstockError, StorageError
from ..identity import BarrierKind, CheckpointId
from ..rounds import LaneCursor, RowStream, read_cursors, split_of, write_cursors
from .protocol import Split

RECENT_SPLITS = 1024
"""Splits remembered for error messages: more than can be in flight behind a reader."""


class SplitReader:
    """Reads the splits of a subtask's lanes, round by round. See the module's rules."""

    def __init__(
        self,
        operator: str,
        schema: pa.Schema,
        splits: Sequence[Split],
        lanes: range,
        lane_count: int,
        *,
        quota: int | None = None,
        rate: float = 0.0,
        restored: pa.Table | None = None,
        more: bool = False,
    ) -> None:
        self.operator = operator
        self._schema = schema
        #: splits known so far
        self.split_count = len(splits)
        #: those that have not been read to their end, by position
        self._splits = dict(enumerate(splits))
        #: whether splits may still be added; until then the data have not ended
        self._more = more
        self._lane_count = lane_count
        self._quota = quota
        #: rows per second that this reader may emit; 0: no limit
        self._rate = rate * len(lanes) / lane_count
        #: the round in progress, or the next one if none is
        self._round, self._cursors = read_cursors(restored, lanes)
        #: position in ``_cursors`` of the lane being read; None between rounds
        self._position: int | None = None
        #: the rest of the lane's round; None before it begins
        self._chunks: Iterator[pa.RecordBatch] | None = None
        #: the open split of each lane that stands within one
        self._streams: dict[int, RowStream] = {}
        self._sequence = 0
        #: batches emitted by this attempt
        self.batches = 0
        #: an element that was looked at and not yet taken
        self._head: Element | None = None
        self._hold: CheckpointId | None = None
        #: barriers to be placed, each with the round after which it stands (None: the one in progress), in order
        self._barriers: deque[tuple[Barrier, int | None]] = deque()
        #: rows of the lane's round so far
        self._taken = 0
        #: split id by (round, lane) of the batches emitted last, for error messages
        self._recent: dict[tuple[int, int], str] = {}
        self._closing = False
        self.data_ended = False
        self.closed = False
        self.now = 0.0
        #: before this time no batch is emitted
        self.due = 0.0

    # ------------------------------------------------------------------ the channel's face

    def peek(self) -> Element | None:
        """The next element; None while the reader holds, paces or waits for a trigger."""
        if self._head is None:
            try:
                self._head = self._produce()
            except PenstockError as error:
                raise error.at(self.operator) from error
            except (OSError, pa.ArrowException) as error:
                message = f"reading split {self.current_split} failed: {error}"
                raise StorageError(message, "check that the input can still be read", self.operator) from error
        return self._head

    def pop(self) -> Element:
        """Take the element that ``peek`` showed."""
        element = self.peek()
        if element is None:
            raise InternalError("pop without an element", operator=self.operator)
        self._head = None
        if isinstance(element, EndOfData):
            self.data_ended = True
        elif isinstance(element, EndOfPartition):
            self.closed = True
        return element

    def say_all_processed(self) -> None:
        """A source has nobody upstream."""

    @property
    def rows(self) -> int:
        """Rows read since the beginning of the job."""
        return sum(cursor.rows for cursor in self._cursors)

    @property
    def held(self) -> bool:
        """Whether the reader waits for the coordinator to choose a round."""
        return self._hold is not None

    @property
    def current_split(self) -> str:
        """The id of the split that the last batch came from; "none" before the first."""
        return next(reversed(self._recent.values()), "none")

    def split_at(self, round: int, lane: int) -> str:
        """The id of the split that a recent batch of (``round``, ``lane``) came from; "" if that is long ago."""
        return self._recent.get((round, lane), "")

    # ------------------------------------------------------------------ checkpoints

    def propose(self, checkpoint: CheckpointId) -> int:
        """Promise to stop at the end of the round in progress (or of the last one) and say which it is.

        -1 if no round has begun. ``FINAL_ROUND`` if the end of the data has been sent: a barrier can only follow it,
        so the others must go on to their ends too.
        """
        self._hold = checkpoint
        if self.data_ended or isinstance(self._head, EndOfData):
            return FINAL_ROUND
        return self._round if self._position is not None else self._round - 1

    def trigger(self, barrier: Barrier, at_round: int | None) -> None:
        """Place the barrier at the end of ``at_round`` (None: of the round in progress), or of the data."""
        self._hold = None
        self._barriers.append((barrier, at_round))

    def abort(self, checkpoint: CheckpointId) -> None:
        """Forget a proposal or a barrier that has not been placed yet."""
        if self._hold is not None and self._hold <= checkpoint:
            self._hold = None
        while self._barriers and self._barriers[0][0].checkpoint <= checkpoint:
            self._barriers.popleft()

    def add_split(self, split: Split) -> None:
        """One more split, behind all others. Only for a reader that was told to expect more."""
        if not self._more:
            raise InternalError("a split after the last one", operator=self.operator)
        self._splits[self.split_count] = split
        self.split_count += 1

    def no_more_splits(self) -> None:
        """The splits added so far are all; their end is the end of the data."""
        self._more = False

    @property
    def held_splits(self) -> int:
        """Splits that the reader still refers to."""
        return len(self._splits)

    def close(self) -> None:
        """Send the end of the partition, once the data have ended."""
        self._closing = True

    def snapshot(self) -> pa.Table:
        """The cursors. Only between two rounds, which is where barriers stand."""
        if self._position is not None:
            raise InternalError("snapshot in the middle of a round", operator=self.operator)
        return write_cursors(self._round, self._cursors)

    # ------------------------------------------------------------------ producing

    def _produce(self) -> Element | None:
        if self._position is None:
            return self._between_rounds()
        return self._within_round()

    def _between_rounds(self) -> Element | None:
        if self.closed:
            return None
        starved = all(self._ended(cursor) for cursor in self._cursors)
        ended = starved and not self._more
        if self._barrier_is_due(ended):
            return self._barriers.popleft()[0]
        if ended and self.data_ended:
            return EndOfPartition() if self._closing else None
        if self._hold is not None:
            return None
        if ended:
            return EndOfData()
        if starved:
            return None
        self._position, self._sequence = 0, 0
        return self._within_round()

    def _barrier_is_due(self, ended: bool) -> bool:
        """Whether the next barrier stands here.

        A reader that has no rows left stands at the end of every later round as well, so that its barrier comes before
        the end of its data wherever the barrier of another one comes between two rounds. Without a round a barrier
        rather comes after the end: that makes the checkpoint a final one. A task barrier closes a window before that.
        """
        if not self._barriers:
            return False
        barrier, at_round = self._barriers[0]
        if self.data_ended:
            return True
        if at_round is None:
            return not ended or barrier.kind is BarrierKind.DRAIN
        return at_round < FINAL_ROUND if ended else self._round - 1 >= at_round

    def _within_round(self) -> Element | None:
        if self.now < self.due:
            return None
        while self._position is not None and self._position < len(self._cursors):
            batch = self._next_batch(self._cursors[self._position])
            if batch is not None:
                return batch
            self._position, self._sequence = self._position + 1, 0
        self._position = None
        self._round += 1
        if self._round >= FINAL_ROUND:
            raise InternalError("the flow has used up its rounds", operator=self.operator)
        return EndOfRound(self._round - 1)

    def _next_batch(self, cursor: LaneCursor) -> Batch | None:
        """The next batch of the lane's round; None at its end."""
        if self._chunks is None:
            if self._ended(cursor):
                return None
            split = self._splits[split_of(cursor.lane, cursor.ordinal, self._lane_count)]
            self._remember(cursor.lane, split.id)
            if cursor.lane not in self._streams:
                self._streams[cursor.lane] = RowStream(iter(split.open(cursor.row)))
            self._chunks = self._streams[cursor.lane].chunks(self._quota)
            self._taken = 0
        chunk = next(self._chunks, None)
        if chunk is None:
            self._end_lane_round(cursor)
            return None
        if not chunk.schema.equals(self._schema):
            message = f"split {self.current_split} has the schema {chunk.schema}, the source promised {self._schema}"
            raise DataError(message, "read all inputs with one schema")
        cursor.row += chunk.num_rows
        cursor.rows += chunk.num_rows
        self._taken += chunk.num_rows
        tag = Tag(self._round, cursor.lane, self._sequence)
        self._sequence += 1
        self.batches += 1
        if self._rate:
            self.due = max(self.due, self.now) + chunk.num_rows / self._rate
        return Batch(chunk, tag)

    def _remember(self, lane: int, split: str) -> None:
        self._recent[self._round, lane] = split
        if len(self._recent) > RECENT_SPLITS:
            del self._recent[next(iter(self._recent))]

    def _end_lane_round(self, cursor: LaneCursor) -> None:
        """A round that ended before its quota ended the split."""
        self._chunks = None
        if self._quota is None or self._taken < self._quota:
            self._check_length(cursor)
            del self._streams[cursor.lane]
            del self._splits[split_of(cursor.lane, cursor.ordinal, self._lane_count)]
            cursor.ordinal, cursor.row = cursor.ordinal + 1, 0

    def _check_length(self, cursor: LaneCursor) -> None:
        """A split that ends elsewhere than planned has changed: what was read and what is counted would not agree."""
        split = self._splits[split_of(cursor.lane, cursor.ordinal, self._lane_count)]
        if split.rows is not None and split.rows != cursor.row:
            message = f"split {split.id} had {split.rows} rows when the job was planned and gave {cursor.row}"
            raise DataError(message, "keep the inputs unchanged while a job runs, or start a new job")

    def _ended(self, cursor: LaneCursor) -> bool:
        return split_of(cursor.lane, cursor.ordinal, self._lane_count) >= self.split_count

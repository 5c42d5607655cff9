"""The running source: turns splits into batches with order tags, rounds and barriers.

Rules:

1. It speaks like a channel (``peek``, ``pop``), so a driver cannot tell a source from an upstream driver.
2. A barrier stands only between two rounds, or after the end of the data. A snapshot is therefore a cursor per lane. A
   cut that waits for no round (``capture``) may be made between any two calls: it holds where each lane stands within
   its round, and what was said of the end. What was looked at and not taken comes again.
3. Proposing a round is a promise: until a trigger or an abort the reader does not pass the end of that round, so
   the largest of all proposals is a round that every source can still place its barrier after.
4. It reads the clock only as a number that the task hands in (``now``), for pacing.
5. A job that stops with a savepoint ends here behind the barrier's round: *drained*, with the end of the data before
   the barrier, so that operators finish; or *suspended*, with nothing behind it. If given up, the task restarts.
6. Held by ``pause_rounds`` it begins no round but those up to a barrier.
7. ``handed_on`` are the digests of the rows that the first operator got, if they are wanted: whoever gives a batch to
   it adds that. At every cut they stand beside the cursors, so a restore takes both back to the same row.
8. Rows wait until joins have told what they need (``picking``), if that is about to be known: not for longer than
   ``PATIENCE_SECONDS``, and not while a barrier is to be placed, for what is told may come behind it.
9. Where splits are added, only who adds them says that the data end: when no row is needed ever again, the rounds go
   on without rows. Otherwise what comes at the end would come in some window or other, as threads happen to run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Literal, TypeAlias

import pyarrow as pa

from ..arrow.dictionaries import PlainNulls
from ..core.channel_states import DEMAND_MOVES, Demand, EndState
from ..core.elements import (
    FINAL_ROUND,
    Barrier,
    Batch,
    CancelBarrier,
    Element,
    EndOfData,
    EndOfPartition,
    EndOfRound,
    PickedBatch,
    Tag,
    ends_window,
    is_task_barrier,
)
from ..core.epochs import Epochs
from ..core.errors import InternalError, PenstockError, StorageError
from ..core.identity import CLOSING_ROUND, BarrierKind, CheckpointId
from ..core.operator import Background
from ..core.source import Split
from ..core.state_machine import StateMachine
from ..integrity.lane_digests import LaneDigests
from ..plan.rounds import (
    LaneCursor,
    ReaderPlace,
    SplitAssignment,
    before,
    evenly_assigned,
    read_cursors,
    write_cursors,
    write_cut,
)
from .picking import Pick, PickedRows
from .read_ahead import PENDING, PendingChunk
from .repeated import queue_of

PATIENCE_SECONDS = 10.0
"""A filter that comes later than this is late: what has been read meanwhile is waiting in the join."""

Stop: TypeAlias = Literal["drain", "suspend"]
"""How the data end at a barrier that the job stops with; see rule 5."""


class ReaderState(Enum):
    """How far a source has come."""

    __hash__ = object.__hash__  # members are compared by identity; Enum hashes their names, in Python

    READING = "reading"
    STOPPING = "stopping"
    """The job stops here for good: the data end, whether or not rows are left."""
    SUSPENDED = "suspended"
    """The job stops with a savepoint: nothing follows."""
    DATA_ENDED = "data ended"
    CLOSED = "closed"


LEGAL_READER_MOVES: Mapping[ReaderState, frozenset[ReaderState]] = {
    ReaderState.READING: frozenset({ReaderState.STOPPING, ReaderState.SUSPENDED, ReaderState.DATA_ENDED}),
    ReaderState.STOPPING: frozenset({ReaderState.DATA_ENDED}),
    ReaderState.SUSPENDED: frozenset(),
    ReaderState.DATA_ENDED: frozenset({ReaderState.CLOSED}),
    ReaderState.CLOSED: frozenset(),
}


_SAID = {ReaderState.DATA_ENDED: EndState.DATA_ENDED, ReaderState.CLOSED: EndState.CLOSED}


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
        background: Background | None = None,
        epochs: Epochs | None = None,
        handed_on: LaneDigests | None = None,
        at_once: int = 1,
    ) -> None:
        self.operator = operator
        self.handed_on = handed_on
        self._plain = PlainNulls(schema)
        #: rows per second that this reader may emit; 0: no limit
        self._rate = rate * _share(lanes, lane_count if more else len(splits), lane_count)
        dealt = 0 if more else evenly_assigned(len(splits), lane_count)
        place, self._cursors = read_cursors(restored, lanes, dealt)
        #: the round in progress, or the next one if none is
        self._round = place.round
        #: rows read before this attempt, and those that it read and threw away
        self.restored_rows, self.dropped = self.rows, 0
        self._state = StateMachine(f"source {operator}", LEGAL_READER_MOVES, ReaderState.READING)
        self._demand = StateMachine(f"the demand on source {operator}", DEMAND_MOVES, place.demand)
        if more and not self.over and all(cursor.needless for cursor in self._cursors):
            self._demand.move(Demand.NONE)
        #: whether splits may still be added: until then the data have not ended
        self._more = more and not self.over
        self._splits = queue_of(schema, splits, self._cursors, lane_count, quota, background, epochs)
        self._splits.at_once = at_once
        #: position in ``_cursors`` of the lane being read; None between rounds
        self._position: int | None = 0 if place.begun else None
        #: batches emitted by this attempt
        self.batches = 0
        #: an element that was looked at and not yet taken
        self._head: Element | None = None
        self._hold: CheckpointId | None = None
        #: the last checkpoint that could not be cut here
        self.declined: CheckpointId | None = None
        #: barriers to be placed, in order, each with the round after which it stands (None: the one in progress), and
        #: with how the data end there, if they do
        self._barriers: deque[tuple[Barrier, int | None, Stop | None]] = deque()
        #: the task is over; everything that came of the end of the data is processed; no further round may begin
        self._closing = self._rounds_paused = False
        #: before ``due`` no batch is emitted
        self.now = self.due = 0.0
        #: until when rows wait for what joins tell; None: they have not begun to
        self._patient_until: float | None = None
        self._end(place.said)
        self._drained = place.drained and self.data_ended

    def _end(self, said: EndState) -> None:
        """Take back what was said of the end, unless rows have been added behind it: whoever gets them says so."""
        if said is not EndState.OPEN and all(self._splits.ended(cursor, self._round) for cursor in self._cursors):
            self._state.move(ReaderState.DATA_ENDED)
        if said is EndState.CLOSED and self.data_ended:
            self._state.move(ReaderState.CLOSED)

    @property
    def data_ended(self) -> bool:
        """Whether EndOfData has been taken."""
        return self._state.state in (ReaderState.DATA_ENDED, ReaderState.CLOSED)

    @property
    def closed(self) -> bool:
        """Whether EndOfPartition has been taken."""
        return self._state.state is ReaderState.CLOSED

    @property
    def window_ends(self) -> bool:
        """Whether it is known that no batch comes before the next task barrier, or the end of the data."""
        if self._head is not None and not isinstance(self._head, EndOfRound):
            return ends_window(self._head)
        drain = next((at for barrier, at, _ in self._barriers if barrier.kind is BarrierKind.DRAIN), None)
        return (drain is not None or not self._more) and self._splits.none_up_to(drain)

    @property
    def over(self) -> bool:
        """Whether no row is needed ever again."""
        return self._demand.state is Demand.NONE

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
            self._state.move(ReaderState.DATA_ENDED)
        elif isinstance(element, Barrier):
            if element.kind is BarrierKind.DRAIN and self._splits.pick is not None:
                self._splits.pick.window += 1
            if element.kind is BarrierKind.DRAIN and self._demand.state is Demand.NEXT_WINDOW:
                self._demand.move(Demand.ALL)
        elif isinstance(element, EndOfPartition):
            self._state.move(ReaderState.CLOSED)
        return element

    def acknowledge_end_of_data(self) -> None: ...

    def acknowledge_drained(self) -> None:
        """Its barriers may stand behind the end now."""
        self._drained = True

    def pause_rounds(self, paused: bool) -> None:
        self._rounds_paused = paused

    def cancel_input(self, for_good: bool) -> None:
        """Skip the rows before the next task barrier; all that are left, if none can come (rule 9)."""
        if self._demand.state is Demand.ALL:
            self._demand.move(Demand.NONE if for_good else Demand.NEXT_WINDOW)
        elif for_good and not self.over:
            self._demand.move(Demand.NONE)
        self._splits.stop_round()
        if isinstance(self._head, Batch):
            self.dropped += self._head.rows
            self._head = None
        ahead = [self._head, *(barrier for barrier, _, _ in self._barriers)]
        drains = any(each is not None and is_task_barrier(each) for each in ahead)
        if not (self._more or drains):
            self._splits.pass_all()
            if self._position is not None:
                self._position = len(self._cursors)

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
        return self._splits.current

    def split_at(self, round: int, lane: int) -> str:
        """The id of the split that a recent batch of (``round``, ``lane``) came from; "" if that is long ago."""
        return self._splits.at(round, lane)

    # ------------------------------------------------------------------ checkpoints

    def propose(self, checkpoint: CheckpointId) -> int:
        """Promise to stop at the end of the round in progress (or of the last one) and say which it is.

        -1 if no round has begun. If the end of the data has been sent, a barrier can only follow it: ``FINAL_ROUND``,
        or ``CLOSING_ROUND`` until everything because of it is processed.
        """
        self._hold = checkpoint
        if self.data_ended or isinstance(self._head, EndOfData):
            return FINAL_ROUND if self._drained else CLOSING_ROUND
        return self._round if self._position is not None else self._round - 1

    def trigger(self, barrier: Barrier, at_round: int | None, stop: Stop | None = None) -> None:
        """Place the barrier at the end of ``at_round`` (None: of the round in progress), or of the data (rule 5)."""
        self._hold = None
        self._barriers.append((barrier, at_round, stop))

    def abort(self, checkpoint: CheckpointId) -> None:
        """Forget a proposal or a barrier that has not been placed yet."""
        if self._hold is not None and self._hold <= checkpoint:
            self._hold = None
        drain = BarrierKind.DRAIN  # nobody gives those up
        self._barriers = deque(one for one in self._barriers if one[0].kind is drain or one[0].checkpoint > checkpoint)

    def add_splits(self, rounds: int, splits: Mapping[int, Split]) -> None:
        """So many more rounds, behind all others, with splits at these places: lane ``place % lanes`` of round
        ``place // lanes`` of them. Only for a reader that was told to expect more."""
        if not self._more:
            if self.over:
                return
            raise InternalError("a split after the last one", operator=self.operator)
        self._splits.add_rounds(rounds, splits)

    def no_more_splits(self) -> None:
        """The splits added so far are all."""
        self._more = False

    @property
    def last_round(self) -> int:
        """The round in which the lanes come to the end of the splits known so far, if each is read in one round."""
        return self._splits.last_round

    def close(self) -> None:
        """Send the end of the partition, once the data have ended."""
        self._closing = True

    def snapshot(self) -> pa.Table:
        """The cursors. Only between two rounds, which is where barriers stand."""
        if self._position is not None:
            raise InternalError("snapshot in the middle of a round", operator=self.operator)
        return self._beside(write_cursors(self._round, self._cursors))

    def _beside(self, table: pa.Table) -> pa.Table:
        return table if self.handed_on is None else self.handed_on.beside(table, (each.lane for each in self._cursors))

    def capture(self) -> pa.Table:
        """All that it needs to go on from here, whatever it is in the middle of (rule 2). Barriers and proposals are
        left out: who restores a cut has given those up."""
        has_ended_round = isinstance(self._head, EndOfRound)
        place = ReaderPlace(
            self._round - has_ended_round,
            self._position is not None or has_ended_round,
            _SAID.get(self._state.state, EndState.OPEN),
            self._demand.state,
            self._drained,
        )
        return self._beside(write_cut(place, before(self._cursors, self._head)))

    # ------------------------------------------------------------------ producing

    def _produce(self) -> Element | None:
        return self._between_rounds() if self._position is None else self._within_round()

    def _between_rounds(self) -> Element | None:
        if self.closed or self._state.state is ReaderState.SUSPENDED:
            return None
        self._stop_if_drained()
        starved = all(self._splits.ended(cursor, self._round) for cursor in self._cursors)
        ended = (starved and not self._more) or self.data_ended or self._state.state is ReaderState.STOPPING
        if self._barrier_is_due(ended):
            barrier, _, stop = self._barriers.popleft()
            if stop == "suspend" and self._state.state is ReaderState.READING:
                self._state.move(ReaderState.SUSPENDED)
            return barrier
        if ended and self._is_beyond():
            self.declined = self._barriers.popleft()[0].checkpoint
            return CancelBarrier(self.declined)
        if ended and self.data_ended:
            return EndOfPartition() if self._closing else None
        if self._hold is not None or (self._rounds_paused and not self._barriers):
            return None
        if ended:
            return EndOfData()
        if starved:
            return None
        self._position = 0
        return self._within_round()

    def _stop_if_drained(self) -> None:
        """If the job stops here for good, the data end here."""
        if self._barriers and self._state.state is ReaderState.READING:
            _, at_round, stop = self._barriers[0]
            if stop == "drain" and (at_round is None or self._round - 1 >= at_round):
                self._state.move(ReaderState.STOPPING)

    def _barrier_is_due(self, ended: bool) -> bool:
        """Whether the next barrier stands here.

        Without a round a barrier rather comes after the end: that makes the checkpoint a final one. A task barrier
        closes a window before that.
        """
        if not self._barriers:
            return False
        barrier, at_round, stop = self._barriers[0]
        if self.data_ended or (ended and barrier.kind is BarrierKind.DRAIN):
            return True
        if stop == "drain":
            return False
        return not ended if at_round is None else self._round - 1 >= at_round

    def _is_beyond(self) -> bool:
        """Whether the next barrier stands after a round that this reader has no rows for.

        Then the checkpoint is given up. Before the end of the data the barrier would move that end among the rounds of
        the others, and so the order; behind it, what is emitted at the end may have to wait for them.
        """
        if not self._barriers or self.data_ended or self._barriers[0][2] == "drain":
            return False
        at_round = self._barriers[0][1]
        return at_round is not None and self._round - 1 < at_round < FINAL_ROUND

    def _within_round(self) -> Element | None:
        if self.now < self.due or self._awaits_keys:
            return None
        while self._position is not None and self._position < len(self._cursors):
            cursor = self._cursors[self._position]
            if cursor.round <= self._round:
                batch = self._next_batch(cursor)
                if batch is PENDING:
                    return None
                if batch is not None:
                    return batch
                cursor.end_round(self._round)
            self._position += 1
        self._position = None
        self._round += 1
        if self._round >= FINAL_ROUND:
            raise InternalError("the flow has used up its rounds", operator=self.operator)
        return EndOfRound(self._round - 1)

    @property
    def _awaits_keys(self) -> bool:
        """Rule 8."""
        pick = self._splits.pick
        if pick is None or self._hold is not None or self._barriers or self._demand.state is not Demand.ALL:
            return False
        if not any(keys.is_awaited() for keys in pick.joins):
            return False
        if self._patient_until is None:
            self._patient_until = self.now + PATIENCE_SECONDS
        return self.now < self._patient_until

    @property
    def wakes_at(self) -> float:
        """When it may go on, if it waits for a time to come."""
        return max(self.due, self._patient_until or 0.0)

    def _next_batch(self, cursor: LaneCursor) -> Batch | PendingChunk | None:
        """The next batch of the lane's round; None at its end; PENDING while it is read."""
        chunk = self._splits.take(cursor, self._round, dropping=self._demand.state is not Demand.ALL)
        if chunk is PENDING or chunk is None:
            return chunk
        tag = Tag(self._round, cursor.lane, cursor.sequence)
        cursor.sequence += 1
        self.batches += 1
        if isinstance(chunk, PickedRows):
            if self.picking is not None and self.picking.conditions:
                self.picking.filtered.add(chunk.counts[0], chunk.counts[-1])
            batch: Batch = PickedBatch(chunk.records, tag, counts=chunk.counts)
        else:
            batch = Batch(self._plain.of(chunk), tag)
        if self._rate:
            self.due = max(self.due, self.now) + batch.rows / self._rate
        return batch

    @property
    def picking(self) -> Pick | None:
        """Which rows it gives, and what it counts of that; None: it gives all."""
        return self._splits.pick

    @property
    def awaits(self) -> str:
        """What it waits for besides rows, for people; "": nothing."""
        pick = self._splits.pick
        if pick is None or self._patient_until is None or self.now >= self._patient_until:
            return ""
        joins = [keys.join for keys in pick.joins if keys.is_awaited()]
        return f"the keys by which {' and '.join(joins)} leaves rows of {self.operator} out" if joins else ""

    def pick(self, pick: Pick | None, compact: bool = False) -> None:
        """Give only these rows (``picking``; None: all), ``compact``: in whatever form columns come. Before the first
        is read."""
        self._splits.pick, self._splits.compact = pick, compact


def _share(lanes: Sequence[int], splits: int, lane_count: int) -> float:
    """Of a source's rate: the lanes' part of those that have a split at all."""
    dealt = evenly_assigned(splits, lane_count)
    used = {SplitAssignment(lane_count, dealt).lane_of(position) for position in range(dealt)} or set(range(lane_count))
    return len(used & set(lanes)) / len(used)

"""The splits that a reader has, and the chunks of the ones that its lanes are in.

Rules:

1. A lane reads the splits that are assigned to it, each from where its cursor stands; splits of other lanes are
   counted, and left to other readers. Where it has none in a round that others have one in, it is through at once.
2. A round of a lane is the rest of its split, or ``quota`` rows of it. One that ends before its quota ends the split.
3. While a lane is read, other threads begin with what the next ones come to (``at_once``), where splits give chunks
   (``picking``, rule 5). Cursors count what was taken, so nobody sees that, and an error is told at its turn. Where no
   thread is left for that, a split at hand (``core.source.Split``) is read in place: to change threads for each chunk
   costs more than it saves.
4. A split that has another schema or another number of rows than planned has changed: what was read and what is counted
   would not agree, so that is an error. Views and runs become plain here (``plain_types``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from ..arrow.compact import fits
from ..arrow.plain_types import plain_batches
from ..core.errors import DataError
from ..core.operator import Background
from ..core.source import Split
from ..core.union_buffers import WholeUnions
from ..core.user_code import is_to_be_told, raised, user_frames
from ..plan.rounds import LaneCursor, RowStream, SplitAssignment
from .picking import Chunk, Chunked, Pick, PickedRows, PickingStream, column_stream, rows_read
from .read_ahead import FEW_ROWS, OneOfSeveral, PendingChunk, ReadAhead, ReadInPlace, SmallSplits

GIVES = "a split's open gives record batches"

SMALL_SPLITS, FEW_AHEAD = 32, 8
"""So many small splits are read in one go at most, and the next go begins when so many of them are left."""

RECENT_SPLITS = 1024
"""Splits remembered for error messages: more than can be in flight behind a reader."""


class SplitQueue:
    """See the module's rules. ``background`` runs what may wait for a disk or a network; None: nothing does."""

    def __init__(
        self,
        schema: pa.Schema,
        splits: Sequence[Split],
        cursors: Sequence[LaneCursor],
        lane_count: int,
        quota: int | None,
        background: Background | None,
    ) -> None:
        self._schema = schema
        self._cursors = cursors
        self._lane_count = lane_count
        self._deal = SplitAssignment(lane_count, next((each.dealt for each in cursors), 0))
        self._quota = quota
        self._background = background
        #: what is wanted of their rows; None: all. Set before the first is read
        self.pick: Pick | None = None
        #: columns may come in their compact forms
        self.compact = False
        #: splits known so far, those of other lanes included. A fed source does not get again what it had read before a
        #: restart; its lanes stand behind equally many
        read = 0 if splits else max((each.ordinal for each in cursors if not each.needless), default=0)
        self.count = read * lane_count
        #: those that have not been read to their end, by position, in the order of these
        self._splits: dict[int, Split] = {}
        #: the open split of each lane that stands within one
        self._streams: dict[int, Chunked] = {}
        #: the rest of the round of the lane that is being read; None before it begins
        self._chunks: ReadInPlace | ReadAhead | OneOfSeveral | None = None
        #: small splits that are read before their turn, by position (``read_ahead``, rule 4), and the go they are in
        self._ahead: dict[int, tuple[Chunked, OneOfSeveral]] = {}
        self._go: SmallSplits | None = None
        #: how many lanes are read at once (rule 3), set before the first is; and the rounds that were begun, by lane
        self.at_once = 1
        self._begun: dict[int, ReadAhead] = {}
        #: split id by (round, lane) of the chunks taken last
        self._recent: dict[tuple[int, int], str] = {}
        for split in splits:
            self.add(split)

    def add(self, split: Split) -> None:
        """One more split, behind all others."""
        self._put(self.count, split)
        self.count += 1

    def add_rounds(self, rounds: int, splits: Mapping[int, Split]) -> None:
        """So many rounds of all lanes, behind all splits, with ``splits`` at these places; others stay empty."""
        for place in sorted(splits):
            self._put(self.count + place, splits[place])
        self.count += rounds * self._lane_count

    def _put(self, position: int, split: Split) -> None:
        lane = self._deal.lane_of(position)
        if any(not cursor.needless and cursor.lane == lane for cursor in self._cursors):
            self._splits[position] = split

    def ended(self, cursor: LaneCursor, round: int = 0) -> bool:
        """Whether the lane has no split left, in this ``round`` or a later one."""
        return cursor.needless or self._position(cursor) >= self.count

    @property
    def last_round(self) -> int:
        """The round in which the lanes come to the end of the splits known so far, if each is read in one round."""
        return max(self._deal.count(cursor.lane, self.count) for cursor in self._cursors) - 1

    def none_up_to(self, round: int | None) -> bool:
        """Whether no split is left of those that the lanes come to in ``round`` and before, each read in one
        round; None: none at all."""
        first = next(iter(self._splits), None)
        if first is None or round is None:
            return first is None
        return self._quota is None and self._deal.count(self._deal.lane_of(first), first) > round

    @property
    def current(self) -> str:
        """The id of the split that was begun last; "none" before the first."""
        return next(reversed(self._recent.values()), "none")

    def at(self, round: int, lane: int) -> str:
        """The id of the split that a recent chunk of (``round``, ``lane``) came from; "" if that is long ago."""
        return self._recent.get((round, lane), "")

    # ------------------------------------------------------------------ reading

    def take(self, cursor: LaneCursor, round: int, *, dropping: bool) -> Chunk | PendingChunk | None:
        """The next chunk of the lane's round; None at its end; PENDING while it is read.

        ``dropping``: nobody needs the rows, so a split that is not begun yet is passed over.
        """
        if self._chunks is None:
            if self.ended(cursor, round):
                return None
            if dropping or not self._has_split(cursor):
                self._pass(cursor)
                return None
            self._begin(cursor, round)
        assert self._chunks is not None
        chunk = self._chunks.take()
        if isinstance(chunk, PendingChunk):
            return chunk
        if chunk is None:
            self._end_round(cursor)
            return None
        if not isinstance(chunk, PickedRows) and not self._fits(chunk.schema, self._streams[cursor.lane]):
            message = f"split {self.current} has the schema {chunk.schema}, the source promised {self._schema}"
            raise DataError(message, "read all inputs with one schema")
        rows = rows_read(chunk)
        cursor.row += rows
        cursor.rows += rows
        cursor.taken += rows
        return chunk

    def _fits(self, found: pa.Schema, stream: Chunked) -> bool:
        """Rows of a split that is opened have the schema: nobody has checked the dictionaries that it gives."""
        is_opened = isinstance(stream, RowStream | PickingStream)
        return found.equals(self._schema) or (self.compact and not is_opened and fits(found, self._schema))

    def _begin(self, cursor: LaneCursor, round: int) -> None:
        split = self._split(cursor)
        self._recent[round, cursor.lane] = split.id
        if len(self._recent) > RECENT_SPLITS:
            del self._recent[next(iter(self._recent))]
        background = self._background if self._may_wait(cursor, split) else None
        if background is not None and cursor.lane not in self._streams:
            self._read_several(cursor, background)
            if (found := self._ahead.pop(self._position(cursor), None)) is not None:
                self._streams[cursor.lane], self._chunks = found
                return
        if cursor.lane not in self._streams:
            self._streams[cursor.lane] = self._stream(split, cursor.row)
        if background is None:
            self._chunks = ReadInPlace(self._chunks_of(cursor))
        else:
            self._chunks = self._begun.pop(cursor.lane, None) or self._read_ahead(cursor, background)
            self._begin_next(cursor, background)

    def _may_wait(self, cursor: LaneCursor, split: Split) -> bool:
        """Whether another thread is to read the split, or does already. Rule 3."""
        if not getattr(split, "blocking", False):
            return False
        if self.at_once > 1 or cursor.lane in self._begun or self._position(cursor) in self._ahead:
            return True
        return not getattr(split, "is_at_hand", False)

    def _read_ahead(self, cursor: LaneCursor, background: Background) -> ReadAhead:
        return ReadAhead(self._chunks_of(cursor), background)

    def _chunks_of(self, cursor: LaneCursor) -> Iterator[Chunk]:
        """Of what is left of the lane's round."""
        return self._streams[cursor.lane].chunks(None if self._quota is None else self._quota - cursor.taken)

    def _begin_next(self, cursor: LaneCursor, background: Background) -> None:
        """Rule 3. With joins not beyond the round: behind a task barrier they need other rows."""
        place = next(place for place, each in enumerate(self._cursors) if each is cursor)
        following = self._cursors[place + 1 :]
        if self.pick is None or not self.pick.joins:
            following = [*following, *self._cursors[:place]]
        for each in following[: self.at_once - 1]:
            read = each.lane in self._begun or self._position(each) in self._ahead
            if not (read or each.needless) and self._has_split(each) and self._gives_chunks(each):
                self._begun[each.lane] = self._read_ahead(each, background)

    def _gives_chunks(self, cursor: LaneCursor) -> bool:
        """Whether the split of the lane, which is opened if it is not yet, gives chunks by itself."""
        if cursor.lane not in self._streams:
            found = column_stream(self._split(cursor), cursor.row, self.pick, self.compact)
            if found is None:
                return False
            self._streams[cursor.lane] = found
        return not isinstance(self._streams[cursor.lane], RowStream | PickingStream)

    def _read_several(self, cursor: LaneCursor, background: Background) -> None:
        """Read the next small splits in one go, if few are left of those that are read."""
        if len(self._ahead) > FEW_AHEAD or (self._go is not None and not self._go.is_over):
            return
        if self.pick is not None and self.pick.joins:
            return  # what joins need is another thing behind the next task barrier
        begun = {self._position(each) for each in self._cursors if each.row}
        found: list[tuple[int, Chunked]] = []
        for position in self._next_positions(cursor):
            if position in self._ahead:
                continue
            stream = self._small_stream(position) if position not in begun else None
            if stream is None or len(found) == SMALL_SPLITS:
                break
            found.append((position, stream))
        if len(found) > 1:
            go = self._go = SmallSplits([stream.chunks(None) for _, stream in found], background)
            for place, (position, stream) in enumerate(found):
                self._ahead[position] = stream, OneOfSeveral(go, place)

    def _next_positions(self, cursor: LaneCursor) -> Iterator[int]:
        """Of the splits that lanes come to, beginning with that of ``cursor``."""
        lanes = [each for each in self._cursors if not each.needless]
        begin = lanes.index(cursor)
        order = [*lanes[begin:], *lanes[:begin]]
        for further in range(SMALL_SPLITS):
            yield from (self._deal.position(each.lane, each.ordinal + further) for each in order)

    def _small_stream(self, position: int) -> Chunked | None:
        """A split that has not begun and may be read before its turn: a small one of files, of one round."""
        split = self._splits.get(position)
        rows = None if split is None else split.rows
        if rows is None or rows > FEW_ROWS or (self._quota is not None and rows >= self._quota):
            return None
        if split is None or getattr(split, "is_far", False):  # lanes wait for several at once
            return None
        return column_stream(split, 0, self.pick, self.compact)

    def _stream(self, split: Split, start: int) -> Chunked:
        found = column_stream(split, start, self.pick, self.compact)
        if found is not None:
            return found
        rows = RowStream(rows_of(split, start))
        return rows if self.pick is None else PickingStream(rows, self.pick)

    def _end_round(self, cursor: LaneCursor) -> None:
        self._chunks = None
        if self._quota is None or cursor.taken < self._quota:
            split = self._split(cursor)
            if split.rows is not None and split.rows != cursor.row:
                message = f"split {split.id} had {split.rows} rows when the job was planned and gave {cursor.row}"
                raise DataError(message, "keep the inputs unchanged while a job runs, or start a new job")
            self._pass(cursor)

    # ------------------------------------------------------------------ passing over

    def stop_round(self) -> None:
        """Read no more of the round that a lane is in."""
        self._chunks = None

    def pass_all(self) -> None:
        """Nobody needs another row: all lanes end where they stand."""
        for cursor in self._cursors:
            cursor.needless = cursor.needless or not self.ended(cursor)
        self._streams.clear()
        self._begun.clear()
        self._ahead.clear()
        self._splits.clear()

    def _pass(self, cursor: LaneCursor) -> None:
        """Go on to the lane's next split, whether or not the current one was read."""
        self._streams.pop(cursor.lane, None)
        self._begun.pop(cursor.lane, None)
        self._ahead.pop(self._position(cursor), None)
        self._splits.pop(self._position(cursor), None)
        cursor.ordinal, cursor.row = cursor.ordinal + 1, 0

    def _has_split(self, cursor: LaneCursor) -> bool:
        """Whether there is one where the lane stands: rounds that a caller adds need not have one in every lane."""
        return self._position(cursor) in self._splits

    def _split(self, cursor: LaneCursor) -> Split:
        return self._splits[self._position(cursor)]

    def _position(self, cursor: LaneCursor) -> int:
        return self._deal.position(cursor.lane, cursor.ordinal)


def rows_of(split: Split, start: int) -> Iterator[pa.RecordBatch]:
    """The rows of a split; it is opened when the first of them is wanted, on the thread that wants it."""
    try:
        opened: object = split.open(start)
        if not isinstance(opened, Iterable):
            raise DataError(f"split {split.id} was opened, and gave a {type(opened).__name__}", GIVES)
        yield from plain_batches(map(WholeUnions(), _batches_of(split, opened)))
    except (GeneratorExit, OSError, pa.ArrowException):
        raise
    except BaseException as error:
        if not is_to_be_told(error) or user_frames(error) is None:
            raise
        raise raised(f"reading split {split.id}: it", error, "correct the source, or leave the split out") from error


def _batches_of(split: Split, opened: Iterable[object]) -> Iterator[pa.RecordBatch]:
    for records in opened:
        if not isinstance(records, pa.RecordBatch):
            raise DataError(f"split {split.id} gave a {type(records).__name__}", GIVES)
        yield records

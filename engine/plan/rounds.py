"""Order lanes and rounds: who reads what, in which order, whatever the parallelism.

Rules:

1. A flow has a fixed number of order lanes. Each reads the splits of a source that are assigned to it, one after the
   other. Subtasks own contiguous ranges of lanes: a change of parallelism moves lanes, never rows.
2. In each round a lane reads the next piece of its current split: the rest of it, or at most ``quota`` rows. A split's
   end always ends the lane's round; an empty split makes an empty round.
3. A lane that has no split left has ended; a source has ended when all of its lanes have. Lanes that have not ended all
   stand in the same round, in every subtask.
4. Splits go to the lanes in turns, one to each: lane ``l`` of ``L`` gets the splits ``l, l + L, l + 2L, …``. A source
   that has fewer splits than lanes when it is first read has them assigned at even distances, in the same order:
   subtasks own neighbouring lanes, so the first few would all be one subtask's. Those that come later go by turns.
5. How splits were assigned is part of a lane's cursor: a restored source goes on as it began, also with more splits.
6. A cut that waits for no round finds each lane in a round of its own: those of one reader in two rounds that follow
   each other, those of several in any. Whoever reads them again begins with the smallest; a lane that has passed a
   round says nothing in it. So does one that waits for a round, of subtasks without an exchange between them: each
   agrees on a round of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ..arrow.combining import fewest
from ..core.channel_states import Demand, EndState
from ..core.elements import Batch
from ..core.operator import LANE, OUTPUT_BYTES
from ..kernels.row_bits import row_bits, row_bits_of_all, total_bits

CHUNK_ROWS = 128 * 1024
"""Rows of a canonical chunk: large enough for vectorised kernels, small enough to stay in a core's cache. It has at
most ``OUTPUT_BYTES`` bytes, or a single row."""

EARLIER_ROUND_ROWS = 256 * 1024
"""Rows of a lane's round in every flow, before flows could say how many."""

LANES_AT_ONCE = 2
"""So many lanes of a source are read at a time, where there are threads for it: to read takes about as long as to work
on what was read, so two readers keep up with one who works."""

CURSOR_SCHEMA = pa.schema(
    [
        (LANE, pa.int32()),
        ("round", pa.int64()),
        ("ordinal", pa.int64()),
        ("row", pa.int64()),
        ("rows", pa.int64()),
        ("needless", pa.bool_()),
        ("dealt", pa.int32()),
    ]
)
"""A source's state: for each lane the next round, the split (``ordinal``-th of the lane), the next row in it, and the
number of rows read since the beginning; ``needless``: nobody needs the rest, so the lane has ended where it stands;
``dealt``: how the splits were assigned (``SplitAssignment.first``)."""

CUT_FIELDS = pa.schema(
    [
        ("lane_round", pa.int64()),
        ("taken", pa.int64()),
        ("sequence", pa.int64()),
        ("begun", pa.bool_()),
        ("said", pa.string()),
        ("demand", pa.string()),
        ("drained", pa.bool_()),
    ]
)
"""What stands beside that at a cut that waits for no round. ``round`` is then the first one of which the reader has not
told the end, ``begun``: whether it is in it; for each lane its own round, and what has been read in that: so many rows,
in so many chunks (``sequence``). The rest is the reader's (``ReaderPlace``)."""


def lanes_of(subtask: int, parallelism: int, lanes: int) -> range:
    """The lanes that a subtask owns: contiguous, and as equal in number as possible."""
    return range(subtask * lanes // parallelism, (subtask + 1) * lanes // parallelism)


def evenly_assigned(splits: int, lanes: int) -> int:
    """How many splits are assigned at even distances (rule 4); 0: none, as each lane has one."""
    return splits if splits < lanes else 0


@dataclass(frozen=True, slots=True)
class SplitAssignment:
    """Positions in a source's list of splits, and the lanes that read them. ``first``: see :func:`evenly_assigned`."""

    lanes: int
    first: int = 0

    def lane_of(self, position: int) -> int:
        """The lane that reads a split."""
        if position < self.first:
            return position * self.lanes // self.first
        return (position - self.first) % self.lanes

    def position(self, lane: int, ordinal: int) -> int:
        """Of the ``ordinal``-th split of a lane."""
        own = self._own(lane) if self.first else None
        if own is not None:
            if not ordinal:
                return own
            ordinal -= 1
        return self.first + ordinal * self.lanes + lane

    def count(self, lane: int, splits: int) -> int:
        """How many of the source's splits a lane has."""
        own = self._own(lane)
        begun = int(own is not None and own < splits)
        return begun + max(0, -((lane - splits + self.first) // self.lanes))

    def positions(self, lane: int, ordinals: int) -> Iterator[int]:
        """Of the first so many splits of a lane."""
        return (self.position(lane, ordinal) for ordinal in range(ordinals))

    def _own(self, lane: int) -> int | None:
        """The split that the lane got at even distances."""
        position = -(-lane * self.first // self.lanes)
        return position if position < self.first and position * self.lanes // self.first == lane else None


@dataclass(slots=True)
class LaneCursor:
    """Where one lane stands."""

    lane: int
    #: splits of the lane that have been read to their end
    ordinal: int = 0
    #: rows of the current split that have been read
    row: int = 0
    #: rows read in all
    rows: int = 0
    #: nobody needs what is left: the lane has ended
    needless: bool = False
    #: how the source's splits were assigned to its lanes (``SplitAssignment.first``)
    dealt: int = 0
    #: the first round that it has not passed
    round: int = 0
    #: rows read in this round, and chunks
    taken: int = 0
    sequence: int = 0

    def end_round(self, round: int) -> None:
        """Nothing more comes in this round."""
        self.round, self.taken, self.sequence = round + 1, 0, 0


@dataclass(frozen=True, slots=True)
class ReaderPlace:
    """Where a reader stands, beside its lanes: the first ``round`` of which it has not told the end, and whether that
    has ``begun``. Of states at a cut alone: how far it has told its end, which rows are wanted of it, and whether all
    that came of its end is processed."""

    round: int = 0
    begun: bool = False
    said: EndState = EndState.OPEN
    demand: Demand = Demand.ALL
    drained: bool = False


_TOLD = ("ordinal", "row", "rows", "needless", "dealt")


def write_cursors(round: int, cursors: Sequence[LaneCursor]) -> pa.Table:
    """The cursors of one subtask as a state table, between two rounds. ``round``: the next round; a lane that is ahead
    (rule 6) keeps its own."""
    return _table([max(round, cursor.round) for cursor in cursors], cursors)


def _table(rounds: Sequence[int], cursors: Sequence[LaneCursor]) -> pa.Table:
    values = [[getattr(cursor, name) for cursor in cursors] for name in ("lane", *_TOLD)]
    return pa.table([values[0], rounds, *values[1:]], schema=CURSOR_SCHEMA)


def write_cut(place: ReaderPlace, cursors: Sequence[LaneCursor]) -> pa.Table:
    """The same anywhere, also within a round."""
    table = _table([place.round] * len(cursors), cursors)
    told = [[getattr(cursor, name) for cursor in cursors] for name in ("round", "taken", "sequence")]
    told += [[each] * len(cursors) for each in (place.begun, place.said.value, place.demand.value, place.drained)]
    for field, values in zip(CUT_FIELDS, told, strict=True):
        table = table.append_column(field, pa.array(values, field.type))
    return table


def read_cursors(table: pa.Table | None, lanes: range, dealt: int = 0) -> tuple[ReaderPlace, list[LaneCursor]]:
    """Where the reader of ``lanes`` stands, and their cursors; lanes without state stand at their beginning.
    ``dealt``: of a source that begins; states that do not tell are older than rule 4.

    Of several readers it begins with the smallest round in which one of them was (rule 6).
    """
    stored = [] if table is None else table.to_pylist()
    found = {int(row[LANE]): _as_cut(row) for row in stored if int(row[LANE]) in lanes}
    rows = list(found.values())
    dealt = next(((row.get("dealt") or 0) for row in rows), dealt)
    place = _place_of(rows) if rows else ReaderPlace()
    cursors = [cursor_of(found[lane]) if lane in found else LaneCursor(lane, dealt=dealt) for lane in lanes]
    for cursor in cursors:
        cursor.round = max(cursor.round, place.round)
    return place, cursors


def _as_cut(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a state between two rounds, which says less, as that of a cut there."""
    if row.get("said") is not None:
        return row
    here = ReaderPlace()
    told = {"said": here.said.value, "demand": here.demand.value, "begun": here.begun, "drained": here.drained}
    return {**row, **told, "lane_round": row["round"]}


def _place_of(rows: Sequence[dict[str, Any]]) -> ReaderPlace:
    going_on = [row for row in rows if row["said"] == EndState.OPEN.value]
    round = min((row["round"] for row in going_on), default=max(row["round"] for row in rows))
    begun = any(row["lane_round"] > round or (row["round"] == round and row["begun"]) for row in going_on)
    said = EndState.OPEN if going_on else EndState.DATA_ENDED
    if all(row["said"] == EndState.CLOSED.value for row in rows):
        said = EndState.CLOSED
    demands = {row["demand"] for row in rows}
    demand = Demand(demands.pop()) if len(demands) == 1 else Demand.ALL
    return ReaderPlace(round, begun, said, demand, all(row["drained"] for row in rows))


def cursor_of(row: dict[str, Any]) -> LaneCursor:
    """A row of a source's state."""
    told = row["ordinal"], row["row"], row["rows"], bool(row.get("needless")), row.get("dealt") or 0
    cut = (row.get(name) or 0 for name in ("lane_round", "taken", "sequence"))
    return LaneCursor(row[LANE], *told, *cut)


def before(cursors: list[LaneCursor], unread: object) -> list[LaneCursor]:
    """The cursors as they were before a batch was read that nobody has taken yet (anything else: as they are)."""
    if not isinstance(unread, Batch):
        return cursors
    lane, rows = unread.tag.lane, unread.rows
    return [_before(cursor, rows) if cursor.lane == lane else cursor for cursor in cursors]


def _before(cursor: LaneCursor, rows: int) -> LaneCursor:
    row, all, taken = cursor.row - rows, cursor.rows - rows, cursor.taken - rows
    return replace(cursor, row=row, rows=all, taken=taken, sequence=cursor.sequence - 1)


class RowStream:
    """The rows of one split from some row on, given out in pieces of a wanted number of rows.

    It stays open from round to round, so that a source that cannot skip reads each split once.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._left: pa.RecordBatch | None = None
        #: the bits of any row, once they were asked for; None: rows differ
        self._bits_of_all: int | None = None
        self._is_asked = False

    def chunks(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """The next ``limit`` rows (None: all) in canonical chunks: ``CHUNK_ROWS`` rows each, the last may be smaller.

        Where so many rows have more than ``OUTPUT_BYTES`` bytes a chunk has fewer, but one at least. The cuts depend on
        the rows and their positions alone, not on how the source cut its batches.
        """
        wanted = limit
        while wanted is None or wanted > 0:
            chunks = self._take(CHUNK_ROWS if wanted is None else min(CHUNK_ROWS, wanted))
            if not chunks:
                return
            wanted = None if wanted is None else wanted - sum(chunk.num_rows for chunk in chunks)
            yield from chunks

    def _take(self, rows: int) -> list[pa.RecordBatch]:
        """The next ``rows`` rows, or as many as there are or have room, in one chunk unless that is too large; nothing
        at the end."""
        parts: list[pa.RecordBatch] = []
        missing, seen = rows, 0
        room: int | None = None  # in bits; measured only when it may become scarce
        while missing:
            batch = self._left if self._left is not None else next(self._batches, None)
            if batch is None:
                break
            part = batch.slice(0, missing)
            seen += part.nbytes
            if 2 * seen > OUTPUT_BYTES:
                if room is None:
                    room = 8 * OUTPUT_BYTES - sum(map(self._bits, parts))
                fitting = self._rows_in(part, room)
                if parts and not fitting:
                    self._left = batch
                    break
                part = part.slice(0, max(fitting, 1))
                room -= self._bits(part)
            self._left = batch.slice(part.num_rows) if part.num_rows < batch.num_rows else None
            if part.num_rows:
                parts.append(part)
                missing -= part.num_rows
        return fewest(parts)

    def _bits(self, records: pa.RecordBatch) -> int:
        """Of all rows together. It costs as much to look at the types of thousands of columns as to read some rows,
        so that is done once."""
        if not self._is_asked:
            self._is_asked, self._bits_of_all = True, row_bits_of_all(records)
        same = self._bits_of_all
        return total_bits(records) if same is None else same * int(records.num_rows)

    def _rows_in(self, records: pa.RecordBatch, room: int) -> int:
        if self._bits(records) <= room:
            return int(records.num_rows)
        same = self._bits_of_all
        return max(0, room // same) if same else rows_in(records, room)


def rows_in(records: pa.RecordBatch, room: int) -> int:
    """How many rows, from the first one on, have at most ``room`` bits together."""
    if total_bits(records) <= room:
        return int(records.num_rows)
    bits = row_bits(records.columns, np.arange(records.num_rows))
    if isinstance(bits, int):
        return int(max(0, min(records.num_rows, room // bits)) if bits else records.num_rows)
    return int(np.searchsorted(np.cumsum(bits), room, side="right"))

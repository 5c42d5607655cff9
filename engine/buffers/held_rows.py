"""Rows that an operator holds back, with the round and the lane that each of them came in.

Rules:

1. Rows are held in the order in which they came, that of their tags. What is restored from several subtasks is put into
   that order again, by round and lane; rows of one round and lane always come from one subtask, in order.
2. A state table may be larger than the memory: it is read piece by piece, and made of pieces that stay where they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..core.elements import Batch
from ..core.operator import LANE, OUTPUT_BYTES, OUTPUT_ROWS
from ..core.schemas import no_rows
from ..kernels.pieces import Bound, Positions
from ..kernels.row_bits import row_bits
from .state_rows import as_rows, rows_of_state
from .stored_rows import RowsApart, StoredRows, brought_together

Lanes = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Held:
    """Rows, and where they came from."""

    records: pa.RecordBatch
    rounds: Positions
    lanes: Lanes

    def take(self, rows: Positions) -> Held:
        """Some of the rows."""
        return Held(self.records.take(pa.array(rows)), self.rounds[rows], self.lanes[rows])

    def part(self, part: slice) -> Held:
        """Some consecutive rows."""
        return Held(self.records.slice(part.start, part.stop - part.start), self.rounds[part], self.lanes[part])

    def pieces(self, bound: Bound) -> Iterator[slice]:
        """The rows in consecutive parts within the bound. Rows of one round and lane are cut where their own number and
        size ask for it, whatever other rows there are."""
        bits = row_bits(self.records.columns, np.arange(len(self.lanes)))
        start = stop = size = 0
        for _, _, first, rows in self.units():
            mine = bits if isinstance(bits, int) else bits[first : first + rows]
            for part in bound.parts(rows, mine):
                more = int(mine * (part.stop - part.start) if isinstance(mine, int) else mine[part].sum())
                end = first + int(part.stop)
                if stop > start and (end - start > bound.rows or size + more > bound.bytes * 8):
                    yield slice(start, stop)
                    start, size = stop, 0
                stop, size = end, size + more
        if stop > start:
            yield slice(start, stop)

    def units(self) -> list[tuple[int, int, int, int]]:
        """Runs of one round and lane: the two, the first row, the number of rows."""
        change = (np.diff(self.rounds) != 0) | (np.diff(self.lanes) != 0)
        starts = np.append(0, np.flatnonzero(change) + 1)
        ends = np.append(starts[1:], len(self.lanes))
        return [
            (int(self.rounds[start]), int(self.lanes[start]), int(start), int(end - start))
            for start, end in zip(starts, ends, strict=True)
            if end > start
        ]


class LeavingRows:
    """All rows of a collection, for one who picks pieces of them in another order; as a state, what they were."""

    def __init__(self, schema: pa.Schema, parts: list[Held], bound: Bound) -> None:
        """The list is emptied."""
        self._tags = [(part.rounds, part.lanes) for part in parts]
        batches = [part.records for part in parts]
        parts.clear()
        self.records = RowsApart(schema, batches, bound)

    @property
    def held(self) -> Iterator[Held]:
        """The rows in the order in which they came, a part at a time."""
        start = 0
        for rounds, lanes in self._tags:
            rows = self.records.picked(pa.array(np.arange(start, start + len(lanes))))
            start += len(lanes)
            yield Held(rows, rounds, lanes)


class HeldRows:
    """A growing collection of rows of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._parts: list[Held] = []
        #: all rows as one batch, of which the parts are slices, if anybody has asked for it since the last ones came
        self._whole: pa.RecordBatch | None = None
        #: the number of rows, and of their bytes
        self.rows = 0
        self.bytes = 0

    def add(self, batch: Batch) -> None:
        """Hold the rows of a batch."""
        rows = batch.records.num_rows
        # arrays of one number that take no memory: nothing is written to what is held
        rounds: Positions = np.ndarray(rows, np.int64, np.array([batch.tag.round], dtype=np.int64), strides=(0,))
        lanes: Lanes = np.ndarray(rows, np.int32, np.array([batch.tag.lane], dtype=np.int32), strides=(0,))
        self.put(Held(batch.records, rounds, lanes), batch.size)

    def put(self, held: Held, size: int | None = None) -> None:
        """Hold these rows as well. ``size``: that of the rows, if it is known."""
        if held.records.num_rows:
            self._whole = None
            self._parts.append(held)
            self.rows += held.records.num_rows
            self.bytes += held.records.nbytes if size is None else size

    def keep(self, pick: Callable[[pa.RecordBatch], Positions]) -> None:
        """Let go of all rows but those that ``pick`` names of each batch."""
        parts = self._parts
        self.clear()
        for part in parts:
            self.put(part.take(pick(part.records)))

    def take_all(self) -> Held:
        """All rows, which are held no longer."""
        whole = self.peek()
        self.clear()
        return whole

    def leave(self, bound: Bound) -> LeavingRows:
        """All rows, which are held no longer, for one who picks pieces, and is asked for them until all have left."""
        parts, self._parts = self._parts, []
        self.clear()
        return LeavingRows(self.schema, parts, bound)

    @property
    def lanes(self) -> Lanes:
        """The lane of each row."""
        return np.concatenate([np.zeros(0, dtype=np.int32), *(part.lanes for part in self._parts)])

    def take_pieces(self, bound: Bound) -> Iterator[Held]:
        """All rows, a piece at a time (``Held.pieces``), in whatever batches they came; those of a piece are held no
        longer when the next one is asked for, and are no state any more from when they are given."""
        parts, self._parts, self._whole = deque(self._parts), [], None
        last: list[Held] = []  # the piece that may take more
        while parts:
            together, last = last, []
            rows, bits = sum(len(held.lanes) for held in together), sum(map(_bits, together))
            while True:
                together.append(parts.popleft())
                rows, bits = rows + len(together[-1].lanes), bits + _bits(together[-1])
                if not parts or rows > bound.rows or bits > bound.bytes * 8:
                    break
            whole = _followed(self.schema, together)
            pieces = list(whole.pieces(bound))
            if parts:
                last.append(whole.part(pieces.pop()))
            for number, part in enumerate(pieces, 1):
                self._parts, self._whole = [*(whole.part(later) for later in pieces[number:]), *last, *parts], None
                yield whole.part(part)
            self._parts, self._whole = [], None
            self.rows = sum(len(held.lanes) for held in (*last, *parts))
            self.bytes = sum(held.records.nbytes for held in (*last, *parts))

    def peek(self) -> Held:
        """All rows as one batch."""
        if not self._parts:
            return Held(no_rows(self.schema), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))
        if len(self._parts) > 1:
            whole = self.records()
            self._parts = [_joined(whole, self._parts)]
        return self._parts[0]

    def records(self) -> pa.RecordBatch:
        """The same for one who does not ask where they came from: that stays as short as it is."""
        if len(self._parts) < 2:
            return self._parts[0].records if self._parts else no_rows(self.schema)
        if self._whole is None:
            tags = [(part.rounds, part.lanes) for part in self._parts]
            batches = [part.records for part in self._parts]
            self._parts.clear()
            whole = self._whole = brought_together(self.schema, batches)
            start = 0
            for rounds, lanes in tags:
                self._parts.append(Held(whole.slice(start, len(lanes)), rounds, lanes))
                start += len(lanes)
        return self._whole

    def clear(self) -> None:
        """Hold nothing any more. (``take_all`` would bring everything together first.)"""
        self._parts, self._whole, self.rows, self.bytes = [], None, 0, 0

    def behind(self, start: int) -> list[Held]:
        """The rows but for the first so many, in whatever parts they are."""
        found: list[Held] = []
        for part in self._parts:
            rows = len(part.lanes)
            if rows > start:
                found.append(part.part(slice(max(start, 0), rows)))
            start -= rows
        return found

    def snapshot(self) -> pa.Table | None:
        """The rows as a state table."""
        return state_table([self.peek()]) if self.rows else None

    def restore(self, table: pa.Table) -> None:
        """Hold the rows of state tables, in the order of their tags."""
        for held in restored_rows(table, self.schema):
            self.put(held)


def _bits(held: Held) -> int:
    """What the rows take, without the dictionaries that they share with others."""
    bits = row_bits(held.records.columns, np.arange(len(held.lanes)))
    return bits * len(held.lanes) if isinstance(bits, int) else int(bits.sum())


def _followed(schema: pa.Schema, parts: list[Held]) -> Held:
    """The first ones, then the others, as one. The list is emptied."""
    if len(parts) == 1:
        return parts.pop()
    tags = [Held(no_rows(schema), part.rounds, part.lanes) for part in parts]
    batches = [part.records for part in parts]
    parts.clear()
    return _joined(brought_together(schema, batches), tags)


def _joined(whole: pa.RecordBatch, parts: Sequence[Held]) -> Held:
    """All rows, with the rounds and lanes of these parts."""
    rounds = np.concatenate([part.rounds for part in parts])
    return Held(whole, rounds, np.concatenate([part.lanes for part in parts]))


def state_table(parts: Iterable[Held]) -> pa.Table:
    """The rows of one part or more as a state table; they are not copied."""
    # one dictionary per column: a file of Arrow's IPC format takes no more
    return pa.Table.from_batches([_state(held) for held in parts]).unify_dictionaries()


def restored_rows(
    table: pa.Table, schema: pa.Schema, column: str = "row", order: Positions | None = None
) -> Iterator[Held]:
    """The rows of state tables, piece by piece; in the order of their tags (rule 1), unless another one is given."""
    order = tag_order(table) if order is None else order
    if len(order) and bool((np.diff(order) == 1).all()):
        yield from (_held(records, schema, column) for records in table.slice(order[0], len(order)).to_batches())
        return
    stored = StoredRows(table.schema, table.to_batches())
    for rows in pieces_of_state(table, order):
        yield _held(stored.take(rows), schema, column)


def pieces_of_state(table: pa.Table, order: Positions) -> Iterator[Positions]:
    """The rows of a state table in this order, a piece at a time, as far as their mean size tells."""
    limit = max(1, min(OUTPUT_ROWS, OUTPUT_BYTES * table.num_rows // max(table.nbytes, 1)))
    return (order[start : start + limit] for start in range(0, len(order), limit))


def tag_order(table: pa.Table) -> Positions:
    """The rows of state tables in the order of their tags."""
    return np.lexsort([table.column(LANE).to_numpy(), table.column("round").to_numpy()])


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Of rows in a file: their columns, then where they came from. Columns go by position: names may occur twice."""
    return pa.schema([*schema, pa.field("round", pa.int64()), pa.field(LANE, pa.int32())])


def stored(held: Held) -> pa.RecordBatch:
    """Rows as they lie in a file."""
    columns = [*held.records.columns, pa.array(held.rounds), pa.array(held.lanes)]
    return pa.RecordBatch.from_arrays(columns, schema=stored_schema(held.records.schema))


def from_stored(records: pa.RecordBatch, schema: pa.Schema) -> Held:
    """Rows from a file."""
    *columns, rounds, lanes = records.columns
    return Held(pa.RecordBatch.from_arrays(columns, schema=schema), rounds.to_numpy(), lanes.to_numpy())


def _state(held: Held) -> pa.RecordBatch:
    lanes, rounds = pa.array(held.lanes), pa.array(held.rounds)
    return pa.record_batch({LANE: lanes, "round": rounds, "row": as_rows(held.records)})


def _held(state: pa.RecordBatch, schema: pa.Schema, column: str) -> Held:
    records = rows_of_state(state.column(column), schema)
    rounds, lanes = state.column("round").to_numpy(), state.column(LANE).to_numpy()
    return Held(records, rounds.astype(np.int64), lanes.astype(np.int32))

"""Hash join: the right side is built into a lookup, the left side probes it. No input need be sorted.

Rules:

1. A subtask joins what it receives: for one answer in all, both inputs must be gathered into one subtask. Rows of any
   round and lane meet; they never meet across a task barrier.
2. Left rows are held until the right side has ended, or a barrier has come. From then on they pass through, batch by
   batch, under their own tags. Those held from earlier rounds come first, in their order, in the round that follows the
   right side's last one (at a barrier: in the last round that has ended), under the first lane of the subtask.
3. Order is that of the left side, the matches of a row in the order of the right side. Right rows that stay without
   match (right, full), and those of a right semi join, come behind all others: at the end, or at a barrier in the last
   round that has ended. Their lane is the last one under which rows of that round have left, else the subtask's first:
   a later one would keep them from what they meet further down (a merge join), an earlier one would bring them before
   left rows where a part is put in the order of tags.
4. Null keys match nothing. NaN equals NaN. Empty sides are sides.
5. State is the rows of both sides, and which right rows have matched. Where rows only come it is given in parts
   (``change_log``): a side's parts begin anew when it has let go of rows, or when right rows have matched that had not.
6. When too much is held, the rows of the larger side go to a file, then those of the other. A right side in a file is
   probed there (``spilled_lookup``): left rows need not wait, and rows and their order are the same. One byte per right
   row stays in memory: whether it has matched. Rows that come of a file leave in the pieces that they lie there in, so
   batches may be cut elsewhere: to cut them as in memory, rows of several pieces would have to be put together again.
7. The side that is complete first is told to those who read the other one, where rows of that without match give
   nothing (``kernels.key_filter``). If it is the left one, right rows that match nothing are not held: a small left
   side makes the right one small. Which one it is changes no row, no order and no tag. Whoever has been told nothing
   when the join is closed is told that.
8. A plan may say which port to read first (``OperatorContext.read_first``). Batches of the other one are refused until
   it has ended, unless it stands at a barrier, and its rounds do not wait for those of the other one. Left rows of
   rounds that the right side has had leave in the round after its last one all the same: those before are over then
   (``past``).
9. Left rows are matched at most ``PIECE_ROWS`` at a time; output leaves in pieces, each made when its step is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...buffers.held_rows import Held, HeldRows, restored_rows, state_table, tag_order
from ...buffers.spilled_rows import SpilledRows
from ...buffers.state_rows import row_type
from ...buffers.stored_rows import StoredRows
from ...core.elements import FINAL_ROUND, Batch
from ...core.operator import LANE, Emitter, KeyListener, OperatorContext, Output, Stateless, Steps
from ...core.schemas import no_rows
from ...core.traits import Cut, Emission, Traits
from ...kernels.key_filter import KeyTest
from ...kernels.keys import valid_rows
from ...kernels.pieces import PIECE_ROWS, Bound, Flags, Positions, indices, picked
from ...state.change_log import FEW, ChangeLog, Changes, StatePart, as_changes
from .equi_join import NAMES, NEED_A_MATCH, EquiJoin
from .join_output import JoinOutput
from .join_shape import LEFT, LEFT_ALONE, RIGHT
from .matching import JoinStep, Matches
from .sorted_lookup import SortedLookup
from .spilled_lookup import SpilledLookup

NO_ROWS: Positions = np.zeros(0, dtype=np.int64)

INDEX_BYTES = 32
"""What a lookup in memory takes for each right row, besides the row: it is counted from the start."""


MOST_TOLD = 8 * 1024 * 1024
"""Of more rows nobody is told: a test of so many keys is slower than to look them up."""

NEITHER = -1
"""The port of rows of the state that say only what is the same for all."""

MUCH = 0.8
"""If a larger share of a batch may match, the other rows are not looked for any further."""


@dataclass(frozen=True, eq=False)
class HashJoin(EquiJoin):
    """Joins inputs in any order; see ``EquiJoin`` for what can be asked."""

    kind: str = "hash join"

    @property
    def traits(self) -> Traits:
        """Left rows wait until the right side is built."""
        return Traits(
            columns=self.columns,
            emission=Emission.AFTER_BUILD,
            lineage=self.lineage,
            deterministic=True,
            beyond_budget="",
            build_side=self.build_side,
            key_filters=self.key_filters,
            needs_match=self.needs_match,
            may_miss_rows=lambda _: [self.how in LEFT_ALONE and self.filter is None, False],
            asks=self.asks,
            early=self.early,
            cut=dict.fromkeys(("process", "end_port", "drain", "finish"), Cut.BEFORE),
            # rows of both sides; of right rows, in some joins, whether they have matched
            state_of=None if self.how in LEFT_ALONE else lambda _: f"right rows that have matched {self.describe()}",
        )

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningHashJoin:
        """A running join with the rows of ``restored``."""
        running = RunningHashJoin(self, inputs, context)
        if restored is not None:
            running.restore(restored, context.stored)
        return running


@dataclass(slots=True)
class Built:
    """The right side, complete, and which of its rows have matched."""

    records: pa.RecordBatch | StoredRows
    lookup: SortedLookup | SpilledLookup
    matched: Flags

    def pieces(self, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, Flags]]:
        """The rows, as they lie, and their flags."""
        if not isinstance(self.records, StoredRows):
            yield self.records, self.matched
            return
        for start, records in zip(self.records.starts.tolist(), self.records.batches, strict=False):
            rows = pa.RecordBatch.from_arrays(records.columns[: len(schema)], schema=schema)
            yield rows, self.matched[start : start + records.num_rows]

    def delete(self) -> None:
        """Remove the files of the lookup."""
        if isinstance(self.lookup, SpilledLookup):
            self.lookup.delete()


class RunningHashJoin(Stateless):
    """See the module's rules."""

    def __init__(
        self,
        config: HashJoin,
        inputs: Sequence[pa.Schema],
        context: OperatorContext,
        stored_as: Callable[[pa.Table], pa.Table] | None = None,
    ) -> None:
        """``stored_as``: what else a state says of its rows."""
        self._stored_as = stored_as or _as_it_is
        self._keys = config.keys
        self._inputs = inputs
        shape, bound = config.shape(inputs), Bound(context.output_rows, context.output_bytes)
        self._output = JoinOutput(config.how, shape, config.condition(shape), bound)
        self._memory = context.memory
        #: the rows of both sides: those in files came first
        self._spilled = (SpilledRows(inputs[LEFT], context.memory), SpilledRows(inputs[RIGHT], context.memory))
        self._held = (HeldRows(inputs[LEFT]), HeldRows(inputs[RIGHT]))
        #: for restored right rows and those that came later: which had matched; None: none of them
        self._matched: Flags | None = None
        #: what was given to checkpoints of each side, and how many right rows had matched then
        self._logs = [ChangeLog(grows=True), ChangeLog(grows=True)]
        self._logged_matched = 0
        self._notes_matches = config.how not in LEFT_ALONE
        self._built: Built | None = None
        self._ended = [place.ended for place in context.ports] or [False, False]
        #: the first round that has not ended on any port, and on the right one
        self._next = self._next_right = 1 + context.ended_round
        if context.ports:
            self._next_right = 1 + context.ports[RIGHT].round
        self._lanes = context.lanes
        #: the last round and lane under which rows have left
        self._last = max(((tag.round, tag.lane) for tag in context.last.values()), default=(-1, 0))
        self._emitter = Emitter()
        #: for each port whether its rows without match give nothing, and who reads it and wants to know what matches
        self._reducible = [config.how in NEED_A_MATCH[port] for port in (LEFT, RIGHT)]
        self._listeners: list[Sequence[KeyListener]] = [context.listeners.get(port, ()) for port in (LEFT, RIGHT)]
        if context.holds or context.epochs:
            self._give_up()
        #: the port that is read first, if one is
        self.read_first = context.read_first
        #: others have copies of the right side, and count on all of it
        self.is_copied = False
        self._holds = context.holds
        #: whether right rows that match nothing are looked for, as the left side is complete; what they may match
        self._reduces = False
        self._test: KeyTest | None = None
        #: what tests take, in bytes; the task barriers so far
        self._told = self._window = 0
        #: for each port whether none of its rows comes before the next task barrier
        self._window_ended = [False, False]

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Hold the rows, or join those of the left side if the right side is complete."""
        if port == LEFT and self._ended[RIGHT]:
            if batch.tag.round < self._next_right:
                return self._join(batch.records, self._next_right, self._lanes.start, out)
            return self._join(batch.records, batch.tag.round, batch.tag.lane, out)
        self._held[port].add(batch if port == LEFT else self._reduced(batch))
        self._spill_if_too_much()
        return None

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        """Note how far the port is."""
        if round < FINAL_ROUND:
            self._next = max(self._next, round + 1)
            if port == RIGHT:
                self._next_right = max(self._next_right, round + 1)
        return None

    def end_port(self, port: int, out: Output) -> Steps:
        """With the right side ended, join the left rows that have waited for it."""
        self._ended[port] = True
        if not self._ended[1 - port] and self._reducible[1 - port]:
            self._tell(port)
            self._reduces = port == LEFT and not self.is_copied and self._is_known(LEFT)
        return self._join_waiting(out) if port == RIGHT else None

    def finish(self, out: Output) -> Steps:
        """Emit the right rows that come last."""
        return self._emit_rest(FINAL_ROUND, out)

    def drain(self, out: Output) -> Steps:
        """Join what has come, and begin anew."""
        self._window, self._test, self._reduces = self._window + 1, None, False
        self._window_ended = [False, False]
        first_open = self._next_right if self.read_first == RIGHT and self._ended[RIGHT] else 0
        return self._drained(max(self._next - 1, first_open), out)

    def accepts(self, port: int) -> bool:
        """Not while the other side is read first."""
        return self.read_first in (None, port) or self._ended[1 - port]

    def past(self, port: int) -> int:
        """See ``ReadsInTurn``."""
        return self._next_right - 1 if port == RIGHT == self.read_first else -1

    def end_window(self, port: int) -> None:
        """No further row comes on this port before the next task barrier."""
        self._window_ended[port] = not self._holds

    def needs_no_more(self, port: int) -> bool:
        """Whether the other side has no more rows, none at all, and this one's give nothing without them."""
        other = 1 - port
        is_complete = self._ended[other] or self._window_ended[other]
        if not is_complete or not self._reducible[port] or (self.is_copied and port == RIGHT):
            return False
        return not (self._held[other].rows or self._spilled[other].rows)

    def snapshot(self) -> pa.Table | None:
        """The rows of both sides, with ``port``, ``matched``, and ``next``: the right side's first open round."""
        tables = []
        for port in (LEFT, RIGHT):
            parts = [*self._spilled[port].read(), *([self._held[port].peek()] if self._held[port].rows else [])]
            if parts:
                tables.append(self._marked(parts, port, self._flags_of(port), self._next_right))
        return pa.concat_tables(tables) if tables else None

    def changes(self) -> pa.Table | Changes | None:
        """The same; of many rows only those that have come since it was asked last, and of each lane one that is of no
        port and says ``next``."""
        if self._rows(LEFT) + self._rows(RIGHT) < FEW:
            self._logs = [ChangeLog(grows=True), ChangeLog(grows=True)]  # ``change_log``, rule 6
            return self.snapshot()
        matched = int(np.count_nonzero(self._flags())) if self._notes_matches else 0
        if matched != self._logged_matched:
            self._logs[RIGHT], self._logged_matched = ChangeLog(grows=True), matched
        found = Changes(())
        for port in (LEFT, RIGHT):
            log, known = self._logs[port], self._logs[port].rows
            parts = [*self._spilled[port].read(known), *self._held[port].behind(known - self._spilled[port].rows)]
            if parts:
                flags = self._flags_of(port)[known:].copy()
                make = partial(self._marked, parts, port, flags, self._next_right)
                log.add(StatePart(make, len(flags)))
            found += log.cut()
        return found + as_changes(self._open_round())

    def restore(self, table: pa.Table, stored: Sequence[StatePart] = ()) -> None:
        """Take over the rows of earlier snapshots. ``stored``: the parts of the table, if they are known."""
        told = int(pc.max(table.column("next")).as_py())
        self._next, self._next_right = max(self._next, told), max(self._next_right, told)
        ports, matched = (table.column(name).to_numpy() for name in ("port", "matched"))
        by_tag = tag_order(table)
        for port in (LEFT, RIGHT):
            order = by_tag[ports[by_tag] == port]
            if port == RIGHT and len(order):
                self._matched = matched[order]
            for held in restored_rows(table, self._inputs[port], NAMES[port], order):
                self._held[port].put(held)
                self._spill_if_too_much()
            alike = self._marked([HeldRows(self._inputs[port]).peek()], port, np.zeros(0, dtype=bool), 0).schema
            parts = [part for part in stored if _is_of(part.table, alike, port)]
            if sum(part.rows for part in parts) == len(order) and bool((np.diff(order) > 0).all()):
                self._logs[port] = ChangeLog(grows=True, stored=parts)
        self._logged_matched = 0 if self._matched is None else int(np.count_nonzero(self._matched))

    def close(self) -> None:
        """Remove the files."""
        self._give_up()
        self._forget_right()
        self._held[LEFT].clear()
        self._spilled[LEFT].clear()
        self._memory.hold(0)

    # ------------------------------------------------------------------ holding

    @property
    def _bytes(self) -> int:
        matched = 0 if self._matched is None else self._matched.nbytes
        right = self._held[RIGHT].bytes + self._held[RIGHT].rows * INDEX_BYTES
        return self._held[LEFT].bytes + right + matched + self._told

    def _spill_if_too_much(self) -> None:
        if self._memory.hold(self._bytes):
            larger = LEFT if self._held[LEFT].bytes > self._held[RIGHT].bytes else RIGHT
            self._spill(larger)
            if self._memory.hold(self._bytes):
                self._spill(LEFT + RIGHT - larger)

    def _rows(self, port: int) -> int:
        return self._spilled[port].rows + self._held[port].rows

    def _spill(self, port: int) -> None:
        if self._held[port].rows:
            self._spilled[port].write(self._held[port].take_all())
            self._memory.hold(self._bytes)

    def _complete(self) -> Built:
        """The right side as a lookup. Its rows stay held, as state."""
        if self._built is None:
            self._built = self._in_memory() or self._on_disk()
        return self._built

    def _tell(self, port: int) -> None:
        """This side is complete: say to those who read the other one what its rows may match."""
        wanted, self._listeners[1 - port] = self._listeners[1 - port], ()
        if not self._is_known(port):
            for each in wanted:
                each.give_up()
        elif wanted:
            keys = self._key_columns(port)
            self._told = sum(each.publish(self._window, [keys[key] for key in each.keys]) for each in wanted)

    def _give_up(self) -> None:
        """Those that have not been told anything are told nothing: nobody need wait for it."""
        for each in chain(*self._listeners):
            each.give_up()
        self._listeners = [(), ()]

    def _is_known(self, port: int) -> bool:
        return not self._spilled[port].rows and self._held[port].rows <= MOST_TOLD

    def _key_columns(self, port: int) -> list[pa.Array]:
        records = self._held[port].records()
        return [records.column(name) for name in self._keys[port]]

    def _reduced(self, batch: Batch) -> Batch:
        """Without the right rows that match nothing, if that is known."""
        if not self._reduces:
            return batch
        if self._test is None:
            self._test = KeyTest(self._key_columns(LEFT))
            self._told += self._test.nbytes
            if self._matched is None:
                self._held[RIGHT].keep(self._matching)
                self._logs[RIGHT] = ChangeLog(grows=True)
        rows = self._matching(batch.records)
        self._reduces = len(rows) < batch.records.num_rows * MUCH
        return batch if len(rows) == batch.records.num_rows else Batch(picked(batch.records, indices(rows)), batch.tag)

    def _matching(self, right: pa.RecordBatch) -> Positions:
        assert self._test is not None, "nobody knows what right rows may match"
        return self._test.picked([right.column(name) for name in self._keys[RIGHT]])

    def _in_memory(self) -> Built | None:
        if self._spilled[RIGHT].rows:
            return None
        records = self._held[RIGHT].records()
        lookup = SortedLookup([records.column(name) for name in self._keys[RIGHT]])
        surplus = max(0, lookup.nbytes - records.num_rows * INDEX_BYTES)  # of keys that are long
        if surplus and self._memory.hold(self._bytes + surplus):
            return None
        return Built(records, lookup, self._flags())

    def _on_disk(self) -> Built:
        self._spill(RIGHT)
        rows = self._spilled[RIGHT].by_position()
        places = [self._inputs[RIGHT].get_field_index(name) for name in self._keys[RIGHT]]
        lookup = SpilledLookup(rows, places, self._memory, self._bytes)
        return Built(rows, lookup, self._flags())

    def _flags(self) -> Flags:
        rows = self._rows(RIGHT)
        if self._matched is None or len(self._matched) < rows:
            known = self._matched if self._matched is not None else np.zeros(0, dtype=bool)
            self._matched = np.append(known, np.zeros(rows - len(known), dtype=bool))
        return self._matched

    def _flags_of(self, port: int) -> Flags:
        return self._flags() if port == RIGHT else np.zeros(self._rows(LEFT), dtype=bool)

    def _forget_left(self) -> None:
        self._logs[LEFT] = ChangeLog(grows=True)
        self._held[LEFT].clear()
        self._spilled[LEFT].clear()
        self._memory.hold(self._bytes)

    def _forget_right(self) -> None:
        if self._built is not None:
            self._built.delete()
        self._held[RIGHT].clear()
        self._spilled[RIGHT].clear()
        self._logs[RIGHT] = ChangeLog(grows=True)
        self._built = self._matched = None
        self._logged_matched = self._told = 0
        self._memory.hold(self._bytes)

    # ------------------------------------------------------------------ joining

    def _drained(self, round: int, out: Output) -> Iterator[None]:
        yield from self._join_held(round, out)
        yield from self._emit_rest(round, out)
        self._forget_left()

    def _join_waiting(self, out: Output) -> Iterator[None]:
        yield from self._join_held(self._next_right, out)
        self._forget_left()

    def _join_held(self, round: int, out: Output) -> Iterator[None]:
        """The left rows that waited: those of rounds before ``round`` in it, under the first lane. They stay state."""
        for held in self._waiting():
            late = int(np.searchsorted(held.rounds, round))  # rounds only grow
            if late:
                yield from self._join(held.records.slice(0, late), round, self._lanes.start, out)
            rest = Held(held.records.slice(late), held.rounds[late:], held.lanes[late:])
            for own_round, lane, start, rows in rest.units():
                yield from self._join(rest.records.slice(start, rows), own_round, lane, out)

    def _waiting(self) -> Iterator[Held]:
        yield from self._spilled[LEFT].read()
        yield self._held[LEFT].peek()

    def _join(self, left: pa.RecordBatch, round: int, lane: int, out: Output) -> Iterator[None]:
        built = self._complete()
        for start in range(0, left.num_rows, PIECE_ROWS):
            part = left if left.num_rows <= PIECE_ROWS else left.slice(start, PIECE_ROWS)
            step = JoinStep(part, built.records, self._matches(part, built), NO_ROWS, built.matched)
            yield from self._emit(step, round, lane, out)

    def _matches(self, left: pa.RecordBatch, built: Built) -> Matches:
        keys = [left.column(name) for name in self._keys[LEFT]]
        valid = valid_rows(keys)
        if valid is None:
            return built.lookup.matches(keys)
        found = built.lookup.matches([picked(column, indices(valid)) for column in keys])
        return found.spread(valid, left.num_rows)

    def _emit_rest(self, round: int, out: Output) -> Iterator[None]:
        """The right rows that have their place behind all others; then nothing is held."""
        nothing = no_rows(self._inputs[LEFT])
        lane = self._last[1] if self._last[0] == round else self._lanes.start
        for records, matched in self._complete().pieces(self._inputs[RIGHT]):
            places = np.zeros(records.num_rows, dtype=np.int64)
            step = JoinStep(nothing, records, Matches.none(0), places, matched)
            yield from self._emit(step, round, lane, out)
        self._forget_right()

    def _emit(self, step: JoinStep, round: int, lane: int, out: Output) -> Iterator[None]:
        for records in self._output.rows(step):
            if records.num_rows:
                self._last = max(self._last, (round, lane))
            self._emitter.emit(records, round, lane, out)
            yield

    def _marked(self, parts: Sequence[Held], port: int, matched: Flags, open_round: int) -> pa.Table:
        """Rows of a side as state."""
        table = state_table(parts)
        rows = table.num_rows
        columns = {name: table.column(name) for name in table.column_names if name != "row"}
        columns |= _noted(rows, port, matched, open_round)
        for number, schema in enumerate(self._inputs):
            columns[NAMES[number]] = table.column("row") if number == port else pa.nulls(rows, row_type(schema))
        return self._stored_as(pa.table(columns))

    def _open_round(self) -> pa.Table:
        """Rows of neither side."""
        lanes = pa.array(np.array(self._lanes, dtype=np.int32))
        rounds = pa.array(np.zeros(len(lanes), dtype=np.int64))
        noted = _noted(len(lanes), NEITHER, np.zeros(len(lanes), dtype=bool), self._next_right)
        return self._stored_as(pa.table({LANE: lanes, "round": rounds} | noted))


def _as_it_is(table: pa.Table) -> pa.Table:
    return table


def _is_of(table: pa.Table | None, schema: pa.Schema, port: int) -> bool:
    """Whether a part has rows of this side, and nothing else."""
    return table is not None and table.schema.equals(schema) and pc.unique(table.column("port")).to_pylist() == [port]


def _noted(rows: int, port: int, matched: Flags, open_round: int) -> dict[str, pa.Array]:
    """What the state says of each row."""
    ports, rounds = np.full(rows, port, dtype=np.int8), np.full(rows, open_round, dtype=np.int64)
    return {"port": pa.array(ports), "matched": pa.array(matched), "next": pa.array(rounds)}

"""Merge join of two inputs that are split alike and sorted by the keys within each split.

Rules:

1. The two inputs are co-partitioned: rows join only within one (round, lane), a *unit*. Output carries the unit's round
   and lane, and comes in the order that ``join_output`` gives.
2. A port has completed a unit when a later tag, the end of the unit's round, or the end of the port has come. Units are
   joined in order. A unit of ordinary size is joined when both sides are complete; a larger one is joined as it comes,
   in steps (``merge_sides``), so that about ``HELD_ROWS`` rows a side are held, and whatever one group of equal keys
   needs: its right rows must all be there before its first left row can be joined. Output leaves in pieces, each made
   when its step is taken; until the last one both sides' rows of the joining count as held.
3. Null keys match nothing and may stand anywhere; joins that keep rows without match keep them. NaN equals NaN.
4. ``accepts`` refuses the side that holds enough while the other one is needed, never both. What both hold is told to
   the operator's account after each batch and each join; it is not spilled.
5. State holds the rows that have come and are not yet joined: none at the end of a round that both ports have ended.
   A snapshot within a unit that is being joined in steps would number the pieces of its output anew; in deterministic
   flows barriers stand at ends of rounds, where no unit is open.
6. ``drain`` joins what is there as if it were all: rows never join across a task barrier. What operators before the
   join emit at one comes behind the last round that has ended. Such *late* rows belong to the unit of the final round
   and their lane, where they meet those of a side that has ended before the barrier; they leave in the round that ended
   last. If the other side stands behind the barrier already, and so has no more, the driver gives them without asking.
7. Once a side has ended, or has no more rows before the next task barrier, and none of its rows can match what is still
   to come, no more is needed of the other side, unless its rows stay without a match: inner and semi joins end both
   sides early, left and anti joins the right one, right joins the left one.
8. Inputs whose rows come in other rounds than the source rows that they are made of would miss each other: the planner
   lets in none (``engine.planner.emission``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...buffers.state_rows import as_rows, row_type, rows_of_state
from ...core.elements import FINAL_ROUND, Batch, Tag
from ...core.operator import LANE, Emitter, OperatorContext, Output, PortPlace, Stateless, Steps
from ...core.schemas import no_rows
from ...core.traits import Cut, Emission, Traits
from ...expressions.evaluator import single_array
from ...kernels.pieces import Bound
from .equi_join import NAMES, NEED_A_MATCH, EquiJoin
from .join_output import JoinOutput
from .join_shape import LEFT, RIGHT, RIGHT_STAYS
from .matching import JoinStep
from .merge_sides import STEP_ROWS, Side, SideRows, Unit, is_less, is_worth_a_step, step

HELD_ROWS = 2 * STEP_ROWS
"""A side that holds this many rows is refused while the other one is needed: one step's worth ahead of the last."""

HELD_BYTES = 64 * 1024 * 1024
"""The same in bytes, for wide rows: twice 64 MiB is what a merge join may hold beyond a single group."""

HELD_UNITS = 64
"""The same in units, for splits of few rows."""

UnitKey: TypeAlias = tuple[int, int]

ENDED = (float("inf"), -1)
"""How far a port has come that has ended."""


@dataclass(frozen=True, eq=False)
class MergeJoin(EquiJoin):
    """Joins inputs that are sorted by their keys, unit by unit; see ``EquiJoin`` for what can be asked."""

    kind: str = "merge join"

    @property
    def traits(self) -> Traits:
        """Rows meet within a round and lane."""
        return Traits(
            columns=self.columns,
            emission=Emission.PER_ROUND,
            lineage=self.lineage,
            beyond_budget="the rows of one key, and the last ones of each side",
            deterministic=True,
            co_partitioned_by=self.keys,
            ends_epochs=True,
            cut=dict.fromkeys(("process", "end_round", "end_port", "drain"), Cut.BEFORE),
        )

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningMergeJoin:
        """A running join with the rows of ``restored``."""
        running = RunningMergeJoin(self, inputs, context)
        if restored is not None:
            running.restore(restored)
        return running


class RunningMergeJoin(Stateless):
    """See the module's rules."""

    def __init__(self, config: MergeJoin, inputs: Sequence[pa.Schema], context: OperatorContext) -> None:
        self._on = config.keys
        self._memory = context.memory
        self._inputs = inputs
        shape, bound = config.shape(inputs), Bound(context.output_rows, context.output_bytes)
        self._output = JoinOutput(config.how, shape, config.condition(shape), bound)
        self._placed = config.how in RIGHT_STAYS or config.how == "right semi"
        self._how = config.how
        #: for each port whether no further row can matter, and whether none comes, before the next task barrier
        self._satisfied = [False, False]
        self._window_ended = [False, False]
        self._empty = (no_rows(inputs[LEFT]), no_rows(inputs[RIGHT]))
        #: units of which a row has come and that are not yet joined, by round and lane
        self._units: dict[UnitKey, Unit] = {}
        #: for each port the first unit that is not complete; only grows
        self._reached = [_reached(place) for place in context.ports or (PortPlace(), PortPlace())]
        #: the port whose rows would let the first unit go on; None if there is no unit
        self._needed: int | None = None
        #: for each port whether it holds enough
        self._is_full = [False, False]
        #: while a call emits: the rows that were held before it, unit by unit
        self._before: list[tuple[UnitKey, int, SideRows]] | None = None
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Hold the batch, and join what it completes."""
        before = self._held
        key = self._unit(port, batch.tag)
        self._side(key, port).add(batch.records, self._on[port], _where(port, key))
        return self._advance(out, before)

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        """Every unit of the round is complete on this port."""
        self._reached[port] = (round + 1, -1)
        return self._advance(out, self._held)

    def end_port(self, port: int, out: Output) -> Steps:
        """Every unit is complete on this port."""
        self._reached[port] = ENDED
        return self._advance(out, self._held)

    def drain(self, out: Output) -> Iterator[None]:
        """Join what has come of every unit, and begin anew."""
        self._before = self._held
        for key in sorted(self._units):
            yield from self._emit(self._step(self._units.pop(key), (True, True)), key, out)
            self._account()
        self._before = self._needed = None
        self._satisfied, self._window_ended = [False, False], [False, False]

    def accepts(self, port: int) -> bool:
        """Not if this side holds enough while the other one is needed."""
        return not self._is_full[port] or self._needed is None or self._needed == port

    def close(self) -> None:
        """Let go of everything."""
        self._units, self._before = {}, None
        self._account()

    def end_window(self, port: int) -> None:
        """No further row comes on this port before the next task barrier."""
        self._window_ended[port] = True

    def needs_no_more(self, port: int) -> bool:
        """Whether the other side has ended, and neither its rows nor this one's can come of further rows here."""
        has_ended = self._window_ended[1 - port] or self._reached[1 - port] == ENDED
        if self._how not in NEED_A_MATCH[port] or not has_ended:
            return False
        if not self._satisfied[port]:
            self._satisfied[port] = not any(self._may_match(key, unit, port) for key, unit in self._units.items())
        return self._satisfied[port]

    def snapshot(self) -> pa.Table | None:
        """The rows held, as structs in columns ``left`` and ``right``, with the port and the unit's round; ``matched``:
        whether the row has matched something."""
        held = self._held if self._before is None else self._before
        tables = [self._state_rows(key, port, part) for key, port, part in held]
        return pa.concat_tables(tables) if tables else None

    def restore(self, table: pa.Table) -> None:
        """Take over the rows of earlier snapshots."""
        units = table.group_by([LANE, "round", "port"], use_threads=False).aggregate([]).to_pylist()
        for unit in sorted(units, key=lambda each: (each["round"], each[LANE], each["port"])):
            mine = pc.field(LANE) == unit[LANE]
            rows = table.filter(mine & (pc.field("round") == unit["round"]) & (pc.field("port") == unit["port"]))
            port, key = unit["port"], (unit["round"], unit[LANE])
            structs = single_array(rows.column(NAMES[port]))
            records = rows_of_state(structs, self._inputs[port])
            matched = single_array(rows.column("matched")).to_numpy(zero_copy_only=False).copy()
            self._side(key, port).add(records, self._on[port], _where(port, key), matched)
        self._account()

    # ------------------------------------------------------------------ parts

    def _unit(self, port: int, tag: Tag) -> UnitKey:
        """The unit of a batch that has come; notes how far the port is."""
        key = (tag.round, tag.lane)
        if key < self._reached[port]:
            return (FINAL_ROUND, tag.lane)  # late
        self._reached[port] = key
        return key

    def _round(self, key: UnitKey) -> int:
        """The round in which a unit's rows leave: its own; late ones in the round that has ended last."""
        open_rounds = [round for round, _ in self._reached if round < FINAL_ROUND]
        if key[0] < FINAL_ROUND or not open_rounds:
            return key[0]
        return max(0, int(min(open_rounds)) - 1)

    def _side(self, key: UnitKey, port: int) -> Side:
        if key not in self._units:
            self._units[key] = Unit()
        return self._units[key].sides[port]

    @property
    def _held(self) -> list[tuple[UnitKey, int, SideRows]]:
        """The rows held, in order."""
        return [
            (key, port, part)
            for key, unit in sorted(self._units.items())
            for port, side in enumerate(unit.sides)
            for part in side.parts
        ]

    def _advance(self, out: Output, before: list[tuple[UnitKey, int, SideRows]]) -> Steps:
        """Join what can be joined. ``before``: what was held before the call; a cut on the way stands on that."""
        if not self._units:
            return None
        self._before = before
        return self._joined(out)

    def _joined(self, out: Output) -> Iterator[None]:
        """Join every unit that is complete on both ports, in order, and what can be joined of the one after them."""
        self._needed = None
        while self._units:
            key = min(self._units)
            complete = (self._reached[LEFT] > key, self._reached[RIGHT] > key)
            unit = self._units[key]
            if all(complete):
                del self._units[key]
                yield from self._emit(self._step(unit, complete), key, out)
                continue
            if is_worth_a_step(unit, complete):
                yield from self._emit(self._step(unit, complete), key, out)
            self._needed = self._port_needed(unit, complete)
            break
        self._before = None
        self._account()

    def _account(self) -> None:
        """Say how much is held, and note which side holds enough."""
        rows, held = [0, 0], [0, 0]
        for unit in self._units.values():
            for port, side in enumerate(unit.sides):
                rows[port] += side.rows
                held[port] += side.bytes
        for port in (LEFT, RIGHT):
            full = rows[port] >= HELD_ROWS or held[port] >= HELD_BYTES or len(self._units) >= HELD_UNITS
            self._is_full[port] = full
        self._memory.hold(held[LEFT] + held[RIGHT])

    def _may_match(self, key: UnitKey, unit: Unit, port: int) -> bool:
        """Whether a further row on the port may match one that the other side holds in this unit."""
        mine, other = unit.sides[port], unit.sides[1 - port]
        if not other.rows or self._reached[port] > key:
            return False
        return self._reached[port] < key or not (other.is_without_keys or is_less(other.last, mine.last))

    def _step(self, unit: Unit, complete: tuple[bool, bool]) -> JoinStep | None:
        return step(unit, complete, self._empty, placed=self._placed)

    def _port_needed(self, unit: Unit, complete: tuple[bool, bool]) -> int:
        if any(complete):
            return RIGHT if complete[LEFT] else LEFT
        return RIGHT if unit.sides[LEFT].is_full else LEFT

    def _emit(self, made: JoinStep | None, key: UnitKey, out: Output) -> Iterator[None]:
        if made is not None:
            for records in self._output.rows(made):
                self._emitter.emit(records, self._round(key), key[1], out)
                yield

    def _state_rows(self, key: UnitKey, port: int, part: SideRows) -> pa.Table:
        records, rows = part.records, part.records.num_rows
        columns = {
            LANE: pa.array(np.full(rows, key[1], dtype=np.int32)),
            "round": pa.array(np.full(rows, key[0], dtype=np.int64)),
            "port": pa.array(np.full(rows, port, dtype=np.int8)),
            "matched": pa.array(part.noted()),
        }
        for number, schema in enumerate(self._inputs):
            columns[NAMES[number]] = as_rows(records) if number == port else pa.nulls(rows, row_type(schema))
        return pa.table(columns)


def _reached(place: PortPlace) -> tuple[float, int]:
    """The first unit that is not complete on a port that has come so far."""
    if place.ended:
        return ENDED
    if place.is_final:
        return (FINAL_ROUND + 1, -1)
    at = (-1, -1) if place.at is None else (place.at.round, place.at.lane)
    return max((place.round + 1, -1), at)


def _where(port: int, key: UnitKey) -> str:
    round = "final round" if key[0] == FINAL_ROUND else f"round {key[0]}"
    return f"{NAMES[port]} input of the merge join ({round}, lane {key[1]})"

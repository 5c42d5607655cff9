"""Runs one operator as a driver does, and cuts it wherever a cut may stand: after each element and after each piece.

Rules:

1. The ports go through the rounds in step; which one speaks is drawn from a seed, within what ``accepts`` allows. Rows
   come in small batches of several lanes, some of them in the final round; ``windows`` puts a task barrier behind each
   round.
2. At a cut the state is taken as ``Traits.cut`` says, and passes through Arrow IPC; the operator is closed wherever it
   stands, another one is built of the state and goes on. Nothing is said twice: how far ports have come the new one
   hears from ``OperatorContext.ports``. One that has finished is not built again.
3. What a driver has to keep for its operators is in :class:`Continued`: rows of the call that is made again, by lane,
   and the last tag of each lane. Everything that an operator knows besides is in its state.
4. Every promise that ``support.operator_harness`` checks is checked: the tags of a lane ascend over all
   attempts. (Over all lanes they do not: what leaves at a barrier or at the end may be under an earlier one.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.engine.core.elements import FINAL_ROUND, Batch, EndOfData, EndOfRound, Tag
from penstock.engine.core.operator import AsynchronousOperator, OperatorConfig, OperatorContext, PortPlace
from penstock.engine.core.traits import Cut, traits_of
from support.operator_harness import Collected, Units, rows_of, through_storage

Event = Batch | EndOfRound | EndOfData
Row = tuple[int, int, tuple[Any, ...]]


@dataclass
class Continued:
    """Stands behind an operator over all attempts: leaves out what it has emitted before, numbers go on."""

    schema: pa.Schema
    batches: list[Batch] = field(default_factory=list)
    #: lane -> its last tag, and what that was at the last cut
    last: dict[int, Tag] = field(default_factory=dict)
    at_cut: dict[int, Tag] = field(default_factory=dict)
    #: lane -> rows that the call under way has emitted, in whichever attempt, and those to be left out of it
    given: dict[int, int] = field(default_factory=dict)
    leaves_out: dict[int, int] = field(default_factory=dict)
    _shifts: dict[tuple[int, int], int] = field(default_factory=dict)

    def restored(self, leaves_out: dict[int, int]) -> None:
        """Another operator goes on."""
        self.at_cut, self.leaves_out, self._shifts = dict(self.last), dict(leaves_out), {}

    def emit(self, batch: Batch) -> None:
        round, lane, rows = batch.tag.round, batch.tag.lane, batch.records.num_rows
        assert rows, "an empty batch was emitted"
        known = min(self.leaves_out.get(lane, 0), rows)
        if known:
            self.leaves_out[lane] -= known
        if known == rows:
            return
        tag, before = batch.tag, self.at_cut.get(lane)
        if before is not None and before.round == round:
            shift = self._shifts.setdefault((round, lane), max(0, before.sequence + 1 - tag.sequence))
            tag = Tag(round, lane, tag.sequence + shift)
        assert lane not in self.last or self.last[lane] < tag, f"{tag} after {self.last[lane]}"
        self.last[lane] = tag
        self.given[lane] = self.given.get(lane, 0) + rows - known
        checked = Collected(self.schema)
        checked.emit(Batch(batch.records.slice(known), tag))
        self.batches += checked.batches


def events_of(units: Units, chance: random.Random, *, with_final: bool, exchanged: bool = False) -> list[Event]:
    """What a port says; ``with_final``: the rows of the last round are those of the final one; ``exchanged``: those of
    a round come from several producers, in no order but that of each lane."""
    found: list[Event] = []
    last = max(round for round, _ in units)
    for round in range(last + 1):
        told = FINAL_ROUND if with_final and round == last else round
        for (_, lane), rows in sorted(item for item in units.items() if item[0][0] == round):
            left, number = rows.combine_chunks(), 0
            while left.num_rows:
                size = chance.randint(1, 5)
                (records,) = left.slice(0, size).to_batches()
                found.append(Batch(records, Tag(told, lane, number)))
                left, number = left.slice(size), number + 1
        if exchanged:
            rows_of_round = [event for event in found if isinstance(event, Batch) and event.tag.round == told]
            found[len(found) - len(rows_of_round) :] = shuffled(rows_of_round, chance)
        if told == round:
            found.append(EndOfRound(round))
    return [*found, EndOfRound(FINAL_ROUND), EndOfData()]


def in_parts(stream: Sequence[Event], rows: int | None) -> list[Event]:
    """What an operator is given that takes so many rows at once: no two parts have the same tag."""
    found: list[Event] = []
    numbers: dict[tuple[int, int], int] = {}
    for event in stream:
        for at in range(0, event.records.num_rows, rows) if rows and isinstance(event, Batch) else ():
            where = event.tag.round, event.tag.lane
            number = numbers[where] = max(numbers.get(where, -1) + 1, event.tag.sequence)
            found.append(Batch(event.records.slice(at, rows), Tag(*where, number)))
        if not (rows and isinstance(event, Batch)):
            found.append(event)
    return found


def shuffled(batches: list[Batch], chance: random.Random) -> list[Event]:
    """In some order in which each lane keeps its own."""
    lanes = [each.tag.lane for each in batches]
    chance.shuffle(lanes)
    left = {lane: [each for each in batches if each.tag.lane == lane] for lane in lanes}
    return [left[lane].pop(0) for lane in lanes]


class CutRun:
    """One run, over however many attempts."""

    def __init__(
        self,
        config: OperatorConfig,
        where: OperatorContext,
        inputs: Sequence[pa.Schema],
        streams: Sequence[Sequence[Event]],
        chance: random.Random,
        *,
        windows: bool = False,
    ) -> None:
        self._config, self._where, self._inputs = config, where, inputs
        self._streams = [in_parts(stream, traits_of(config).rows_at_once) for stream in streams]
        self._chance, self._windows, self._cuts = chance, windows, traits_of(config).cut
        self.out = Continued(config.output_schema(inputs))
        #: port -> events that have been handled, the last round that ended, whether the data have
        self._taken = [0] * len(streams)
        self._places = [PortPlace()] * len(streams)
        #: task barriers so far
        self._barriers = 0
        #: the call under way: the method, what it is given; and what is left of it
        self._call: tuple[str, tuple[Any, ...]] | None = None
        self._steps: Iterator[None] = iter(())
        self.finished = False
        self._running = config.build(where, inputs, None)

    def advance(self) -> bool:
        """Go on to the next place at which a cut may stand: behind a call, before the first of its steps or behind a
        piece. False at the end."""
        if self.finished:
            return False
        before = len(self.out.batches)
        if self._call is None:
            self._begin(*self._next())
            return True
        while self._call is not None and len(self.out.batches) == before:
            self._step()
        return True

    @property
    def is_giving(self) -> str:
        """The method whose steps are under way; "": none is."""
        return "" if self._call is None else self._call[0]

    def cut(self) -> None:
        """Take the state, and go on with an operator that is built of it."""
        how = self._reach()
        state = self._running.snapshot()
        state = None if state is None else through_storage(state)
        self._end_attempt()
        if self.finished:
            return
        again, given = self._call, dict(self.out.given)
        where = replace(self._where, ports=tuple(self._places), last=dict(self.out.last))
        self._running = self._config.build(where, self._inputs, state)
        self.out.restored(given if again is not None and how is Cut.BEFORE else {})
        if again is not None:
            self._make(*again)

    def look(self) -> None:
        """Take the state, as for a cut, and go on."""
        self._reach()
        self._running.snapshot()

    def rows(self, cuts: Callable[[], bool], looks: Callable[[], bool] = lambda: False) -> list[Row]:
        """What comes out in all, with a cut wherever it ``cuts``."""
        while self.advance():
            if looks():
                self.look()
            if cuts():
                self.cut()
        self._end_attempt()
        batches = self.out.batches
        return [(each.tag.round, each.tag.lane, row) for each in batches for row in rows_of(each.records)]

    # ------------------------------------------------------------------ calls

    def _next(self) -> tuple[str, tuple[Any, ...]]:
        """What the driver would do now."""
        open_ports = [port for port, place in enumerate(self._places) if not place.ended]
        if not open_ports:
            return "finish", ()
        slowest = min(self._places[port].round for port in open_ports)
        if self._windows and slowest > self._barriers - 1:
            self._barriers += 1
            return "drain", ()
        ready = [port for port in open_ports if self._places[port].round <= slowest]
        welcome = [port for port in ready if not isinstance(self._event(port), Batch) or self._running.accepts(port)]
        assert welcome, f"ports {ready} have input, and none is accepted"
        port = self._chance.choice(welcome)
        event = self._event(port)
        self._taken[port] += 1
        if isinstance(event, Batch):
            return "process", (port, event)
        return ("end_round", (port, event.round)) if isinstance(event, EndOfRound) else ("end_port", (port,))

    def _event(self, port: int) -> Event:
        return self._streams[port][self._taken[port]]

    def _begin(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.out.given = {}
        self._make(name, arguments)

    def _make(self, name: str, arguments: tuple[Any, ...]) -> None:
        self._call = name, arguments
        running: Any = self._running
        steps = getattr(running, name)(*arguments, self.out)
        while isinstance(running, AsynchronousOperator) and running.poll(self.out):
            pass
        self._steps = iter(steps or ())
        if steps is None:
            self._end_call()

    def _step(self) -> None:
        if next(self._steps, self) is self:
            self._end_call()

    def _reach(self) -> Cut:
        """Go on to where the state may be taken."""
        how = Cut.AFTER if self._call is None else self._cuts.get(self._call[0], Cut.AFTER)
        while self._call is not None and how is Cut.AFTER:
            self._step()
        return how

    def _end_call(self) -> None:
        assert self._call is not None
        assert not any(self.out.leaves_out.values()), f"{self._call[0]} gives less than it has given before"
        (name, arguments), self._call = self._call, None
        if name == "finish":
            self.finished = True
        elif name == "process":
            self._note(arguments[0], at=arguments[1].tag)
        elif name == "end_port":
            self._note(arguments[0], ended=True)
        elif name == "end_round" and arguments[1] == FINAL_ROUND:
            self._note(arguments[0], is_final=True)
        elif name == "end_round":
            self._note(arguments[0], round=arguments[1])

    def _note(self, port: int, **changes: Any) -> None:
        self._places[port] = replace(self._places[port], **changes)

    def _end_attempt(self) -> None:
        getattr(self._steps, "close", lambda: None)()
        self._running.close()

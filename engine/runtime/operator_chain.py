"""The operators of one driver: batches are pushed through them, control elements walk past them one after the other.

Rules:

1. A batch goes as far down the chain as it can within one call; what leaves the last operator goes to ``put``.
2. A control element (the end of a round, of a port, of the data, a task barrier) reaches an operator only after
   everything that the operators before it emitted on its account. It is a generator: each step lets one operator emit a
   little, so that the driver can stop between two steps until its output has been sent.
3. For lanes for which an operator had finished before the task was restored it does not finish again: what it emits for
   them is dropped.
4. Only the first operator has several ports, and only the first one may have work under way elsewhere
   (``AsynchronousOperator``); the planner cuts pipelines accordingly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from ..core.elements import FINAL_ROUND, Batch
from ..core.errors import PenstockError
from ..core.identity import CheckpointId, Committable, EndedLanes
from ..core.operator import AsynchronousOperator, RunningSink, SatisfiableOperator, SettlingSink, Stateless, Steps
from .ended_operator import ended_lanes, with_carried
from .operator_instance import OperatorInstance, blame
from .pacing import paced_of
from .windows import OperatorWindow


class _Link:
    """The output of one operator: the next one in the chain, or what is behind the chain."""

    __slots__ = ("_chain", "_position", "_source", "finishing")

    def __init__(self, chain: OperatorChain, position: int) -> None:
        self._chain = chain
        self._position = position
        self._source = chain.operators[position]
        #: the operator emits what it holds, as its data have ended
        self.finishing = False

    def emit(self, batch: Batch) -> None:
        source = self._source
        if self.finishing and batch.tag.lane in source.ended:
            return
        source.rows_out += batch.records.num_rows
        source.batches_out += 1
        source.bytes_out += batch.size
        self._chain.push(self._position + 1, 0, batch)


class OperatorChain:
    """See the module's rules. ``put`` takes what leaves the last operator."""

    def __init__(self, operators: Sequence[OperatorInstance], put: Callable[[Batch], None]) -> None:
        self.operators = operators
        self._put = put
        self._links = [_Link(self, position) for position in range(len(operators))]
        first: object = operators[0].running if operators else None
        self._asynchronous = first if isinstance(first, AsynchronousOperator) else None
        #: operators behind the first one that may refuse a batch
        self._choosy = [
            operator.running
            for operator in operators[1:]
            if getattr(type(operator.running), "accepts", None) is not Stateless.accepts
        ]
        self._sinks = [(each, each.running) for each in operators if isinstance(each.running, RunningSink)]
        running: list[object] = [operator.running for operator in operators]
        self.paced = paced_of(running)
        self._satisfiable = [
            (position, each) for position, each in enumerate(running) if isinstance(each, SatisfiableOperator)
        ]

    # ------------------------------------------------------------------ batches

    def push(self, position: int, port: int, batch: Batch) -> None:
        """Give a batch to the operator at ``position``; past the last one it leaves the chain."""
        if position == len(self.operators):
            self._put(batch)
            return
        operator = self.operators[position]
        if operator.first_at is None:
            operator.first_at = time.perf_counter()
        operator.rows_in += batch.records.num_rows
        operator.at = batch.tag
        with blame(operator):
            operator.running.process(port, batch, self._links[position])

    @property
    def has_room(self) -> bool:
        """Whether the operators behind the first one take what it emits."""
        return not self._choosy or all(each.accepts(0) for each in self._choosy)

    def wants(self, port: int) -> bool:
        """Whether the first operator takes a batch on this port now."""
        return not self.operators or self.operators[0].running.accepts(port)

    def accepts(self, port: int, is_last: bool = False) -> bool:
        """Whether a batch on this port is welcome now; if no other port can say more in this window, the first operator
        must take it."""
        return (is_last or self.wants(port)) and self.has_room

    def satisfied(self, port: int) -> bool:
        """Whether no further row on this port can matter to what leaves the chain."""
        return any(found.satisfied(0 if position else port) for position, found in self._satisfiable)

    def satisfied_for_good(self, port: int) -> bool:
        """The same, also behind the next task barrier."""
        lasting = [(position, found) for position, found in self._satisfiable if getattr(found, "for_good", False)]
        return any(found.satisfied(0 if position else port) for position, found in lasting)

    @property
    def may_be_satisfied(self) -> bool:
        """Whether ``satisfied`` can ever be true."""
        return bool(self._satisfiable)

    # ------------------------------------------------------------------ work under way elsewhere

    @property
    def under_way(self) -> str:
        """What the first operator has under way elsewhere, in words; "" if nothing."""
        return "" if self._asynchronous is None else self._asynchronous.waits_for

    def poll(self) -> bool:
        """Take over what has come back. Whether anything has."""
        if self._asynchronous is None:
            return False
        with blame(self.operators[0]):
            return self._asynchronous.poll(self._links[0])

    # ------------------------------------------------------------------ control elements

    def end_round_first(self, port: int, round: int) -> Iterator[None]:
        """A round has ended on one port of the first operator."""
        for first in self.operators[:1]:
            if (steps := _call(first, first.running.end_round, port, round, self._links[0])) is not None:
                yield from _take(first, steps)

    def end_port_first(self, port: int, is_last: bool = False) -> Iterator[None]:
        """A port of the first operator has ended, the last one or another."""
        for first in self.operators[:1]:
            self._links[0].finishing = is_last
            if (steps := _call(first, first.running.end_port, port, self._links[0])) is not None:
                yield from _take(first, steps)

    def end_round_rest(self, round: int) -> Iterator[None]:
        """A round has ended on all ports: tell the operators behind the first one."""
        for position in range(1, len(self.operators)):
            if (steps := self._end_round(position, round)) is not None:
                yield from _take(self.operators[position], steps)

    def finish(self) -> Iterator[None]:
        """All ports have ended: the operators emit what they hold, upstream first."""
        for link in self._links:
            link.finishing = True
        for position, operator in enumerate(self.operators):
            if position:
                yield from _take(operator, self._end_round(position, FINAL_ROUND))
                yield from _take(operator, _call(operator, operator.running.end_port, 0, self._links[position]))
            yield from _take(operator, _call(operator, operator.running.finish, self._links[position]))

    def drain(self, clock: Callable[[], float], window: list[OperatorWindow]) -> Iterator[None]:
        """A task barrier: the operators emit what they hold and forget it, upstream first, unless they are to hold.
        What happened in each of them since the last one is added to ``window``."""
        for position, operator in enumerate(self.operators):
            began = clock()
            steps = None if operator.hold else _call(operator, operator.running.drain, self._links[position])
            if steps is not None:
                yield from _take(operator, steps)
            window.append(operator.end_window(clock() - began))

    def _end_round(self, position: int, round: int) -> Steps:
        operator = self.operators[position]
        return _call(operator, operator.running.end_round, 0, round, self._links[position])

    # ------------------------------------------------------------------ state and the end

    def snapshot(self) -> dict[str, pa.Table]:
        """The state of the operators, by id, leaving out those that hold nothing."""
        tables: dict[str, pa.Table] = {}
        for operator in self.operators:
            with blame(operator):
                table = operator.running.snapshot()
            if table is not None:
                tables[operator.id] = table
        return tables

    def ended(self, finished: bool) -> tuple[EndedLanes, ...]:
        """For which lanes each operator has finished: for all of the task's if the chain has ``finished``."""
        found: list[EndedLanes] = []
        for operator in self.operators:
            if finished or (operator.ended and len(operator.ended) == len(operator.lanes)):
                found.append(EndedLanes(operator.id, operator.lanes.start, operator.lanes.stop))
            else:
                found += ended_lanes(operator.id, operator.ended)
        return tuple(found)

    def flush(self, checkpoint: CheckpointId) -> None:
        """A checkpoint's barrier has come: let the sinks write out what they have."""
        for operator, sink in self._sinks:
            with blame(operator):
                sink.flush(checkpoint)

    def prepare(self, checkpoint: CheckpointId) -> list[Committable]:
        """What the sinks flushed, once it is written."""
        found: list[Committable] = []
        for operator, sink in self._sinks:
            with blame(operator):
                made = sink.prepare(checkpoint)
            operator.prepared += sum(each.rows for each in made)
            operator.prepares = operator.prepares or bool(made)
            found += made
        return found

    def settle(self, checkpoint: CheckpointId, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
        """The state as of the checkpoint, with what the sinks know now that everything is written, and that of
        the lanes for which operators had finished before."""
        settled = dict(tables)
        for operator, sink in self._sinks:
            if isinstance(sink, SettlingSink):
                with blame(operator):
                    state = sink.settle(checkpoint, tables.get(operator.id))
                if state is not None:
                    settled[operator.id] = state
        for operator in self.operators:
            if operator.carried is not None:
                settled[operator.id] = with_carried(settled.get(operator.id), operator.carried)
        return settled

    @property
    def sinks(self) -> list[OperatorInstance]:
        """The operators that make rows visible."""
        return [operator for operator, _ in self._sinks]

    def close(self) -> list[PenstockError]:
        """Close all operators, upstream first, whatever some of them raise; what was raised comes back."""
        raised: list[PenstockError] = []
        for operator in self.operators:
            try:
                with blame(operator):
                    operator.running.close()
            except PenstockError as error:
                raised.append(error)
        return raised


def _call(operator: OperatorInstance, method: Callable[..., Steps], *arguments: Any) -> Steps:
    """Call a method of the operator, blaming it for whatever is raised."""
    with blame(operator):
        return method(*arguments)


def _take(operator: OperatorInstance, steps: Steps) -> Iterator[None]:
    """Take the steps that a call has answered, blaming the operator for whatever is raised."""
    while steps is not None:
        with blame(operator):
            try:
                next(steps)
            except StopIteration:
                return
        yield

"""One running instance of a pipeline: takes elements from its ports, pushes them through its operators, sends the rest.

Rules:

1. A step handles at most one element, and only when everything that the previous one produced has been sent. So a
   driver never holds more than the output of one element, and back-pressure reaches its inputs at once.
2. Control elements keep their place: ``EndOfRound`` leaves after all that the operators emitted in that round, a
   barrier after all that came before it, ``EndOfData`` after ``finish``.
3. The ports of a driver go through the rounds in step: none is read in round ``r + 1`` before all have ended ``r``.
4. Round ``FINAL_ROUND`` is ended by ``finish``, not before: operators emit into it when they finish.
5. An error leaves the driver named once, with the operator and, for user code, the split (the task adds that).
6. A driver that waits says for what and whom (``wait``). It never waits inside a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from .alignment import Alignment, BarrierAligner
from .edges import OutputChannel
from .elements import (
    FINAL_ROUND,
    Barrier,
    Batch,
    CancelBarrier,
    Element,
    EndOfData,
    EndOfPartition,
    EndOfRound,
)
from .gate import Delivered, Gate, Refused, Starved
from .identity import BarrierKind, CheckpointId
from .operator_instance import OperatorInstance, blame
from .scheduler.states import DriverState, Wait, WaitReason, check_move


class DriverHost(Protocol):
    """What a driver tells its task."""

    def aligned(self, driver: Driver, barrier: Barrier) -> None:
        """All barriers of the checkpoint have come; the driver's operators stand exactly at the cut."""

    def abandoned(self, driver: Driver, checkpoint: CheckpointId) -> None:
        """The driver gave the checkpoint up, because a newer one began or a cancel marker came."""


class _Link:
    """The output of the operator at ``position``: the operator after it, or the driver's own output."""

    def __init__(self, driver: Driver, position: int) -> None:
        self._driver = driver
        self._position = position

    def emit(self, batch: Batch) -> None:
        if self._position >= 0:
            source = self._driver.operators[self._position]
            source.rows_out += batch.records.num_rows
            source.batches_out += 1
        self._driver.push(self._position + 1, 0, batch)


@dataclass(slots=True)
class _Port:
    """A gate and how far it has come."""

    gate: Gate
    #: number of the gate's first feed among all feeds of the driver
    base: int
    #: the last round that has ended here; FINAL_ROUND once the data have ended
    round: int = -1
    ended: bool = False


@dataclass(slots=True, eq=False)
class Driver:
    """See the module's rules. ``outputs``: every element goes to all of these channels (their partitioning is done by
    whoever made them); a pipeline that ends in a sink has none."""

    name: str
    gates: Sequence[Gate]
    operators: Sequence[OperatorInstance]
    outputs: Sequence[OutputChannel]
    host: DriverHost
    state: DriverState = DriverState.CREATED
    #: what a WAITING driver waits for; None in every other state
    wait: Wait | None = None
    #: EndOfData has been put out: all operators have finished
    data_ended: bool = False
    #: the task is over: the end of the partition may go out
    closing: bool = False
    aligner: BarrierAligner = field(init=False)
    _ports: list[_Port] = field(init=False)
    _links: list[_Link] = field(init=False)
    #: produced and not yet sent, in order
    _pending: deque[Element] = field(default_factory=deque)
    #: the last round that every port has ended
    _round: int = -1
    _kind: BarrierKind = BarrierKind.CHECKPOINT
    _timestamp: float = 0.0

    def __post_init__(self) -> None:
        feeds = 0
        self._ports = []
        for gate in self.gates:
            self._ports.append(_Port(gate, feeds))
            feeds += len(gate.feeds)
        self.aligner = BarrierAligner(feeds)
        self._links = [_Link(self, position) for position in range(-1, len(self.operators))]

    # ------------------------------------------------------------------ running

    def step(self) -> bool:
        """Handle one element, if possible. True: progress was made; False: see ``wait`` and ``state``."""
        self._move(DriverState.RUNNING)
        self.wait = None
        progressed = self._flush()
        if not self._pending:
            progressed = self._take() or progressed
            progressed = self._flush() or progressed
        if self._pending and self.wait is None:
            self.wait = Wait(WaitReason.OUTPUT, self._full_channel())
        if not self._pending and self._inputs_closed() and self.closing:
            self._move(DriverState.FINISHING)
        elif progressed:
            self._move(DriverState.READY)
        else:
            self.wait = self.wait or Wait(WaitReason.COMMIT, "the final checkpoint")
            self._move(DriverState.WAITING)
        return progressed

    def _take(self) -> bool:
        starved: list[str] = []
        for number, port in enumerate(self._ports):
            if self._is_ahead(port):
                continue
            found = port.gate.poll(self._blocked(port), self._accepts(number))
            if isinstance(found, Delivered):
                self._handle(number, port, found)
                return True
            if isinstance(found, Starved):
                starved += [self._whom(port, feed) for feed in found.waits_for]
            elif isinstance(found, Refused):
                continue
        self._explain(starved)
        return False

    def _is_ahead(self, port: _Port) -> bool:
        """Whether the port has ended a round that another one has not: it is not read until that one has caught up,
        so that operators see the rounds one after the other, whichever port is faster."""
        return not port.ended and any(other.round < port.round for other in self._ports if not other.ended)

    def _handle(self, number: int, port: _Port, found: Delivered) -> None:
        channel, element = port.base + found.feed, found.element
        if isinstance(element, Batch):
            self.push(0, number, element)
        elif isinstance(element, EndOfRound):
            self._end_round(number, port, element.round)
        elif isinstance(element, EndOfData):
            port.gate.feeds[found.feed].say_all_processed()
            if port.gate.data_ended:
                self._end_port(number, port)
        elif isinstance(element, Barrier):
            self._kind, self._timestamp = element.kind, element.timestamp
            self._aligned(self.aligner.barrier(channel, element.checkpoint))
        elif isinstance(element, CancelBarrier):
            self._aligned(self.aligner.cancel(element.checkpoint))
        elif isinstance(element, EndOfPartition):
            self._aligned(self.aligner.end(channel))
        else:
            self._pending.append(element)

    # ------------------------------------------------------------------ data

    def push(self, position: int, port: int, batch: Batch) -> None:
        """Give a batch to the operator at ``position``; past the last one it is the driver's output."""
        if position == len(self.operators):
            self._pending.append(batch)
            return
        operator = self.operators[position]
        operator.rows_in += batch.records.num_rows
        operator.at = batch.tag
        with blame(operator):
            operator.running.process(port, batch, self._links[position + 1])

    def _end_round(self, number: int, port: _Port, round: int) -> None:
        port.round = round
        if self.operators:
            with blame(self.operators[0]):
                self.operators[0].running.end_round(number, round, self._links[1])
        self._forward_rounds()

    def _forward_rounds(self) -> None:
        """End, in the rest of the chain and downstream, every round that all live ports have ended."""
        live = [port.round for port in self._ports if not port.ended]
        reached = min(live) if live else max(port.round for port in self._ports)
        if reached <= self._round or reached in (-1, FINAL_ROUND):
            return
        self._round = reached
        for position, operator in enumerate(self.operators):
            if position:
                with blame(operator):
                    operator.running.end_round(0, reached, self._links[position + 1])
        self._pending.append(EndOfRound(reached))

    def _end_port(self, number: int, port: _Port) -> None:
        port.ended = True
        if self.operators:
            with blame(self.operators[0]):
                self.operators[0].running.end_port(number, self._links[1])
        self._forward_rounds()
        if all(other.ended for other in self._ports):
            self._finish()

    def _finish(self) -> None:
        for position, operator in enumerate(self.operators):
            with blame(operator):
                if position:
                    operator.running.end_round(0, FINAL_ROUND, self._links[position + 1])
                    operator.running.end_port(0, self._links[position + 1])
                operator.running.finish(self._links[position + 1])
        self._pending.append(EndOfRound(FINAL_ROUND))
        self._pending.append(EndOfData())
        self.data_ended = True

    # ------------------------------------------------------------------ barriers

    def inject(self, barrier: Barrier, feeds: Sequence[int]) -> None:
        """A trigger reached a driver whose upstream tasks have all finished: count the channels of ``feeds`` (numbers
        among all feeds) as if their barrier had come. Nothing but the end of their partition can still be in them."""
        self._kind, self._timestamp = barrier.kind, barrier.timestamp
        for feed in feeds:
            if feed in self.aligner.open:
                self._aligned(self.aligner.barrier(feed, barrier.checkpoint, block=False))

    def abort(self, checkpoint: CheckpointId) -> None:
        """The coordinator gave the checkpoint up."""
        self._aligned(self.aligner.abort(checkpoint))

    def _aligned(self, outcome: Alignment) -> None:
        for checkpoint in outcome.aborted:
            self._pending.append(CancelBarrier(checkpoint))
            self.host.abandoned(self, checkpoint)
        if outcome.aligned is not None:
            if self._kind is BarrierKind.DRAIN:
                self._drain()
            barrier = Barrier(outcome.aligned, self._kind, self._timestamp)
            self._pending.append(barrier)
            self.host.aligned(self, barrier)

    def _drain(self) -> None:
        """The task barrier: one operator after the other emits what it holds and forgets it, upstream first."""
        for position, operator in enumerate(self.operators):
            with blame(operator):
                operator.running.drain(self._links[position + 1])

    def snapshot(self) -> dict[str, pa.Table]:
        """The state of the operators, by id, leaving out those that hold nothing."""
        tables: dict[str, pa.Table] = {}
        for operator in self.operators:
            with blame(operator):
                table = operator.running.snapshot()
            if table is not None:
                tables[operator.id] = table
        return tables

    # ------------------------------------------------------------------ output and waiting

    def _flush(self) -> bool:
        """Send what is pending, as far as credit allows."""
        sent = False
        while self._pending:
            element = self._pending[0]
            if isinstance(element, Batch) and not all(channel.ready for channel in self.outputs):
                break
            self._pending.popleft()
            for channel in self.outputs:
                channel.send(element)
            sent = True
        if not self._pending and self.closing and self._inputs_closed():
            for channel in self.outputs:
                if not channel.closed:
                    channel.send(EndOfPartition())
                    sent = True
        return sent

    def _blocked(self, port: _Port) -> set[int]:
        return {channel - port.base for channel in self.aligner.blocked if channel >= port.base}

    def _accepts(self, number: int) -> bool:
        return not self.operators or self.operators[0].running.accepts(number)

    def _inputs_closed(self) -> bool:
        return all(feed.closed for port in self._ports for feed in port.gate.feeds)

    def _full_channel(self) -> str:
        return next((str(channel.channel) for channel in self.outputs if not channel.ready), "output")

    def _whom(self, port: _Port, feed: int) -> str:
        found = port.gate.feeds[feed]
        return str(getattr(found, "channel", None) or getattr(found, "operator", feed))

    def _explain(self, starved: list[str]) -> None:
        if self.aligner.blocked:
            self.wait = Wait(WaitReason.ALIGNMENT, ", ".join(starved) or "its other inputs")
        elif not self.data_ended:
            self.wait = Wait(WaitReason.INPUT, ", ".join(starved) or "its other port")

    # ------------------------------------------------------------------ life cycle

    def start(self) -> None:
        """Make the driver runnable."""
        self._move(DriverState.READY)

    def wake(self) -> None:
        """Something that a waiting driver may have waited for has happened. Any other state is left alone."""
        if self.state is DriverState.WAITING:
            self._move(DriverState.READY)

    def close(self) -> None:
        """Close the operators, upstream first, once. Only when no thread is in ``step``."""
        if self.state in (DriverState.CLOSED, DriverState.RELEASED):
            return
        if self.state not in (DriverState.CREATED, DriverState.FINISHING):
            self._move(DriverState.FINISHING)
        self._move(DriverState.CLOSED)
        self.wait = None
        for operator in self.operators:
            with blame(operator):
                operator.running.close()

    def _move(self, to: DriverState) -> None:
        check_move(self.name, self.state, to)
        self.state = to

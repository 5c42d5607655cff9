"""One running instance of a pipeline: takes elements from its ports, pushes them through its operators, sends the rest.

Rules:

1. A step handles at most one element (or a part of one that may produce much), and only when everything that the
   previous one produced has been sent: a driver holds little, and back-pressure reaches its inputs at once.
2. Control elements keep their place: ``EndOfRound`` leaves after all that the operators emitted in that round, a
   barrier after all that came before it, ``EndOfData`` after ``finish``.
3. The ports of a driver go through the rounds in step: none is read in round ``r + 1`` before all have ended ``r``.
4. Round ``FINAL_ROUND`` is ended by ``finish``, not before: operators emit into it when they finish.
5. An error leaves the driver named once, with the operator and, for user code, the split (the task adds that).
6. A driver is touched by the thread that runs it alone. Whatever comes from outside (frames, credit, orders) is posted
   to its inbox, and taken out at the beginning of a step.
7. A driver that cannot go on says for what and whom it waits. It never waits inside a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from .agenda import Agenda
from .alignment import Alignment, BarrierAligner
from .driver_host import Cut, DriverHost
from .edges import Grant, Outlet, OutputChannel, Upstream
from .elements import FINAL_ROUND, Barrier, Batch, CancelBarrier, Element, EndOfData, EndOfPartition, EndOfRound
from .errors import PenstockError
from .gate import PUT_ASIDE, Delivered, Gate, Starved
from .identity import BarrierKind, CheckpointId
from .operator_chain import OperatorChain
from .operator_instance import OperatorInstance
from .ports import NO_FEEDS, Port, Ports
from .scheduler.protocol import Handle
from .scheduler.runnable import Blocked, Failed, Finished, Outcome, Progress, Quantum
from .scheduler.states import Wait
from .sources.reader import SplitReader
from .waiting import FOR_CONSUMER, FOR_DISK, WaitWords
from .windows import OperatorWindow
from .write_behind import WriteBehind

PROGRESS, FINISHED = Progress(), Finished()


@dataclass(slots=True, eq=False)
class Driver:
    """See the module's rules. ``outlets``: every element goes to all of them; a pipeline that ends in a sink has none.

    ``readers`` are those among the feeds that are sources.
    """

    name: str
    gates: Sequence[Gate]
    operators: Sequence[OperatorInstance]
    outlets: Sequence[Outlet]
    host: DriverHost
    readers: Sequence[SplitReader] = ()
    #: measures how long operators take to drain, in seconds
    clock: Callable[[], float] = float
    #: what sinks write, and what operators spill: of that nothing may be under way when they go on
    writing: WriteBehind = field(default_factory=WriteBehind)
    spilling: WriteBehind = field(default_factory=WriteBehind)
    #: how the scheduler knows the driver; None before it does
    handle: Handle | None = None
    wait: Wait | None = None
    #: EndOfData has been put out: all operators have finished
    data_ended: bool = False
    #: the task is over: the end of the partition may go out
    closing: bool = False
    aligner: BarrierAligner = field(init=False)
    chain: OperatorChain = field(init=False)
    ports: Ports = field(init=False)
    #: what was posted and not yet taken: an action and its arguments
    _inbox: deque[tuple[Callable[..., object], tuple[Any, ...]]] = field(default_factory=deque)
    #: elements that are being handled
    _agenda: Agenda = field(default_factory=Agenda)
    #: produced and not yet sent, in order
    pending: deque[Element] = field(default_factory=deque)
    #: the last round that every port has ended
    _round: int = -1
    _kind: BarrierKind = BarrierKind.CHECKPOINT
    _timestamp: float = 0.0
    #: task barriers for which the operators have drained, or drain, and which have not been sent
    _drains: int = 0
    _advanced: bool = False
    _finished: bool = False
    _words: WaitWords = field(init=False)

    def __post_init__(self) -> None:
        self.ports = Ports(self.gates)
        self.aligner = BarrierAligner(len(self.ports.feeds))
        self.chain = OperatorChain(self.operators, self.pending.append)
        self._words = WaitWords(self.ports.feeds, self.outlets)

    # ------------------------------------------------------------------ running

    def post(self, action: Callable[..., object], *arguments: Any) -> None:
        """Let the driver call ``action`` before its next step. From any thread."""
        self._inbox.append((action, arguments))
        if self.handle is not None:
            self.handle.wake()

    @property
    def busy(self) -> bool:
        """Whether an element is being handled."""
        return bool(self._agenda)

    def open(self) -> None:
        """Operators are built with the task; one that was restored may need no rows at all."""
        self._drop_what_is_not_needed()

    def run(self, quantum: Quantum) -> Outcome:
        """Handle elements until none is left or the turn is over."""
        for reader in self.readers:
            reader.now = quantum.now
        try:
            while self.step():
                if quantum.expired():
                    return PROGRESS
        except PenstockError as error:
            return Failed(error)
        if self._finished:
            return FINISHED
        waiting = [reader.due for reader in self.readers if not reader.data_ended and reader.due > quantum.now]
        return Blocked((self.wait,) if self.wait is not None else (), min(waiting, default=None))

    def step(self) -> bool:
        """Handle one element, if possible. True: progress was made; False: see ``wait``."""
        while self._inbox:
            action, arguments = self._inbox.popleft()
            action(*arguments)
        progressed = self._step()
        if self._advanced:
            self._advanced = False
            self.host.advanced(self)
        return progressed

    def _step(self) -> bool:
        progressed = self._flush()
        if not self.pending:
            progressed = self._work() or progressed
            progressed = self._flush() or progressed
        if self.closing and not self._finished and not self.pending and self.ports.closed:
            for outlet in self.outlets:
                outlet.send(EndOfPartition())
            self._finished = True
        if progressed:
            self.wait = None
        elif self.pending:
            self.wait = self._words.for_output()
        return progressed

    def _work(self) -> bool:
        """Go on with what is under way, or take the next element."""
        if not (self.writing.has_room() and self.spilling.has_room()):
            self.wait = FOR_DISK
            return False
        if not self._agenda:
            return self.chain.poll() or self._take()
        if not self.chain.has_room:
            self.wait = FOR_CONSUMER
            return False
        self._agenda.go_on()
        return True

    # ------------------------------------------------------------------ input

    def _take(self) -> bool:
        starved: list[int] = []
        refused, busy = False, self.chain.under_way
        blocked, behind = self.aligner.blocked, self._behind()
        for port in self.ports.readable(behind, self.chain.wants):
            accepts = port.dropping or self.chain.accepts(port.number, self.ports.is_last(port, behind))
            found = port.gate.poll(port.blocked(blocked), accepts, not busy)
            if isinstance(found, Delivered):
                self._handle(port, found)
                return True
            if found is PUT_ASIDE:
                return True
            if isinstance(found, Starved):
                starved += [port.base + feed for feed in found.waits_for]
            else:
                refused = True
        aligning = bool(self.aligner.blocked)
        self.wait = self._words.explain(busy, refused, starved, aligning=aligning, ended=self.data_ended)
        return False

    def _behind(self) -> set[int]:
        """The feeds that stand behind a task barrier: what they say next belongs to the next window."""
        return self.aligner.blocked if self._kind is BarrierKind.DRAIN else NO_FEEDS

    def _handle(self, port: Port, found: Delivered) -> None:
        element = found.element
        if isinstance(element, Batch):
            if not port.dropping:
                self.chain.push(0, port.number, element)
                self._drop_what_is_not_needed()
        elif isinstance(element, EndOfRound):
            self._agenda.add(self._end_round(port, element.round))
        elif isinstance(element, EndOfData):
            port.gate.feeds[found.feed].say_all_processed()
            if port.gate.data_ended:
                self._agenda.add(self._end_port(port))
        elif isinstance(element, Barrier):
            self._kind, self._timestamp = element.kind, element.timestamp
            self._aligned(self.aligner.barrier(port.base + found.feed, element.checkpoint))
        elif isinstance(element, CancelBarrier):
            self._aligned(self.aligner.cancel(element.checkpoint))
        elif isinstance(element, EndOfPartition):
            self._aligned(self.aligner.end(port.base + found.feed))
            self._advanced = True
        else:
            self.pending.append(element)

    def _end_round(self, port: Port, round: int) -> Iterator[None]:
        port.round = port.round if round == FINAL_ROUND else round
        yield from self.chain.end_round_first(port.number, round)
        yield from self._forward_rounds()

    def _forward_rounds(self) -> Iterator[None]:
        """End, in the rest of the chain and downstream, every round that all live ports have ended."""
        reached = self.ports.reached
        if reached <= self._round:
            return
        self._round = reached
        yield from self.chain.end_round_rest(reached)
        self.pending.append(EndOfRound(reached))

    def _end_port(self, port: Port) -> Iterator[None]:
        port.ended = True
        yield from self.chain.end_port_first(port.number)
        yield from self._forward_rounds()
        self._drop_what_is_not_needed()
        if self.ports.ended:
            yield from self.chain.finish()
            self.pending += (EndOfRound(FINAL_ROUND), EndOfData())
            self.data_ended = self._advanced = True

    def _drop_what_is_not_needed(self) -> None:
        """Tell the feeds of a port whose rows cannot matter any more before the next task barrier."""
        if self._drains or not (self.chain.may_be_satisfied or self.outlets):
            return
        channels = [channel for outlet in self.outlets for channel in outlet.channels]
        unread = bool(channels) and all(channel.dropping for channel in channels)
        never_read = unread and all(channel.dropping_for_good for channel in channels)
        chain = self.chain
        self.ports.drop(
            self._behind(),
            lambda port: unread or chain.satisfied(port),
            lambda port: never_read or chain.satisfied_for_good(port),
        )

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
        self._drains += outcome.aligned is not None and self._kind is BarrierKind.DRAIN
        if outcome.aborted or outcome.aligned is not None:
            self._agenda.add(self._cut(outcome, self._kind, self._timestamp))

    def _cut(self, outcome: Alignment, kind: BarrierKind, timestamp: float) -> Iterator[None]:
        for checkpoint in outcome.aborted:
            self.pending.append(CancelBarrier(checkpoint))
            self.host.abandoned(self, checkpoint)
        if outcome.aligned is None:
            return
        barrier = Barrier(outcome.aligned, kind, timestamp)
        if kind is not BarrierKind.DRAIN:
            self.pending.append(barrier)
            cut = Cut(barrier, self.snapshot(), self.data_ended)
            self.chain.flush(barrier.checkpoint)
            self.writing.then(partial(self._prepared, cut))
            return
        window: list[OperatorWindow] = []
        yield from self.chain.drain(self.clock, window)
        self.pending.append(barrier)
        self.host.drained(self, outcome.aligned, window)
        self.ports.begin_window()

    def _prepared(self, cut: Cut) -> None:
        self.host.prepared(self, cut, self.chain.prepare(cut.barrier.checkpoint))

    def snapshot(self) -> dict[str, pa.Table]:
        """The state of operators and sources, by id, leaving out those that hold nothing."""
        tables = self.chain.snapshot()
        for reader in self.readers:
            tables[reader.operator] = reader.snapshot()
        return tables

    # ------------------------------------------------------------------ output

    def _flush(self) -> bool:
        """Send what is pending, as far as credit allows."""
        sent = False
        while self.pending:
            element = self.pending[0]
            if isinstance(element, Batch) and not all(outlet.ready for outlet in self.outlets):
                break
            self.pending.popleft()
            for outlet in self.outlets:
                outlet.send(element)
            sent = True
            if isinstance(element, Barrier) and element.kind is BarrierKind.DRAIN:
                self._drains -= 1
                self._drop_what_is_not_needed()
        return sent

    def deliver(self, channel: OutputChannel, message: Upstream) -> None:
        """A consumer has said something (called through the inbox)."""
        channel.deliver(message)
        if not isinstance(message, Grant):
            self._advanced = True
            self._drop_what_is_not_needed()

    def close_partition(self) -> None:
        """The task is over: end the partition once the inputs are closed."""
        self.closing = True
        for reader in self.readers:
            reader.close()

    # ------------------------------------------------------------------ waiting

    def close(self) -> None:
        """Close the operators, upstream first. Only when no thread is in ``run``."""
        self.writing.end()
        self.spilling.end()
        errors = self.chain.close()
        self._inbox.clear()
        self._agenda.clear()
        self.pending.clear()
        self.host.closed(self, errors)

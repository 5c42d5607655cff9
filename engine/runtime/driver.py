"""One running instance of a pipeline: takes elements from its ports, pushes them through its operators, sends the rest.

Rules:

1. A step takes at most one element, and calls operators, also for a control element, until something has left the
   chain; it may be stopped between any two calls, and between any two pieces of what one operator emits. Nothing goes
   on before all that was produced has been sent: a driver holds little, and back-pressure reaches its inputs at once.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, assert_never

import pyarrow as pa

from ..core.elements import (
    FINAL_ROUND,
    Barrier,
    Batch,
    CancelBarrier,
    Element,
    EndOfData,
    EndOfPartition,
    EndOfRound,
    is_task_barrier,
    size_of,
)
from ..core.errors import InternalError, PenstockError
from ..core.identity import BarrierKind, CheckpointId
from ..core.operator import ThrottledOperator
from ..core.state_machine import StateMachine
from ..exchange.channels import Grant, InputChannel, OutputChannel, ResultPartition, Upstream
from ..exchange.input_gate import SPOOLED, Delivered, GateInput, InputGate, Starved
from ..scheduler.protocol import Blocked, Failed, Finished, Handle, Outcome, Progress, Quantum, Wait, WaitReason
from ..sources.reader import SplitReader
from ..state.write_behind import WriteBehind
from . import orders
from .chain_flight import ControlStep, What
from .checkpointing import Checkpointing, DriverHost
from .continuations import Continuations
from .driver_shape import DriverShape
from .input_ports import NO_FEEDS, Port, Ports
from .operator_chain import OperatorChain, OperatorInstance, plain_batch

# ------------------------------------------------------------------ waiting
#
# The sentences in which a driver says for what and whom it waits. Built once each: a driver may wait often.

FOR_COMMIT = Wait(WaitReason.COMMIT, "the final checkpoint")
FOR_LOG = Wait(WaitReason.COMMIT, "a change of its weights")
FOR_DISK = Wait(WaitReason.DEPENDENCY, "what it writes to disk")
FOR_CONSUMER = Wait(WaitReason.CONSUMER, "the reader of its output")


class WaitReasons:
    """The waits of one driver, by the feeds that have to speak or the partition that has to be read."""

    def __init__(
        self,
        feeds: Sequence[GateInput],
        partitions: Sequence[ResultPartition],
        throttled: ThrottledOperator | None = None,
    ) -> None:
        self._feeds = feeds
        self._throttled = throttled
        self._channels = [channel for partition in partitions for channel in partition.channels]
        self._known: dict[tuple[object, ...], Wait] = {}

    def for_output(self) -> Wait:
        """Credit of the first channel that is full."""
        return self._of_channel(next((number for number, each in enumerate(self._channels) if not each.ready), 0))

    def _of_channel(self, number: int) -> Wait:
        key = (WaitReason.OUTPUT, (number,))
        if key not in self._known:
            channel = self._channels[number].channel
            self._known[key] = Wait(WaitReason.OUTPUT, str(channel), (channel.consumer,))
        return self._known[key]

    def for_consumer(self) -> Wait:
        """Whoever reads what leaves the driver; of a feed, the ranks."""
        whom = "" if self._throttled is None else self._throttled.waiting_for
        return Wait(WaitReason.CONSUMER, whom) if whom else FOR_CONSUMER

    def explain(self, busy: str, refused: bool, starved: Sequence[int], *, aligning: bool, ended: bool) -> Wait:
        """Why no element was taken. ``busy``: what is under way elsewhere; ``refused``: there is a batch that nobody
        wants; ``starved``: the feeds that have nothing; ``aligning``: some feeds wait for barriers on others."""
        if busy:
            return Wait(WaitReason.DEPENDENCY, busy)
        if refused and not starved:
            return self.for_consumer()
        if aligning:
            return self._for(WaitReason.ALIGNMENT, starved, "its other inputs")
        if self._throttled is not None and self._throttled.waiting_for:
            return self.for_consumer()
        held = next((number for number, channel in enumerate(self._channels) if channel.rounds_paused), None)
        if held is not None:
            return self._of_channel(held)
        return FOR_COMMIT if ended else self._for(WaitReason.INPUT, starved, "its other port")

    def _for(self, reason: WaitReason, feeds: Sequence[int], otherwise: str) -> Wait:
        named = [self._feeds[feed] for feed in feeds]
        if reason is WaitReason.INPUT and named and all(_throttled(feed) for feed in named):
            reason = WaitReason.TIMER
        keys = [getattr(feed, "awaits", "") for feed in named]
        key = (reason, tuple(feeds), *keys)
        if key not in self._known:
            whom = [
                awaited or str(getattr(feed, "channel", None) or getattr(feed, "operator", "a feed"))
                for feed, awaited in zip(named, keys, strict=True)
            ]
            tasks = tuple(dict.fromkeys(feed.channel.producer for feed in named if isinstance(feed, InputChannel)))
            pace = "the pace of " if reason is WaitReason.TIMER else ""
            self._known[key] = Wait(reason, pace + (", ".join(whom) or otherwise), tasks)
        return self._known[key]


def _throttled(feed: GateInput) -> bool:
    """Whether it is a source that keeps to its rate."""
    return bool(getattr(feed, "due", 0.0) > getattr(feed, "now", 0.0))


class RoundThrottle:
    """What one driver passes on of rule 2."""

    def __init__(
        self, throttled: ThrottledOperator | None, feeds: Sequence[GateInput], channels: Sequence[OutputChannel]
    ) -> None:
        self._throttled = throttled
        self._feeds = feeds
        self._channels = channels
        self._sent = False

    def pass_on(self) -> None:
        """Tell the feeds if it has changed."""
        throttled = self._throttled
        hold = (throttled is not None and throttled.is_full) or any(channel.rounds_paused for channel in self._channels)
        if hold != self._sent:
            self._sent = hold
            for feed in self._feeds:
                feed.pause_rounds(hold)


class OutputGate(Protocol):
    """The way out of a task, which is shut between a barrier that has gone out and the cut. Whoever sends, or hears
    what consumers answer, has the lock."""

    @property
    def lock(self) -> AbstractContextManager[Any]: ...

    @property
    def is_shut(self) -> bool:
        """Whether nothing may be sent."""


PROGRESS, FINISHED = Progress(), Finished()
FORWARD = ControlStep(What.FORWARD)


def at_once() -> bool:
    """The end of a turn of one call."""
    return True


class DriverPhase(Enum):
    """How far a driver has come. (Whether a thread is in it, or it waits, is its scheduler's ``DriverState``.)"""

    __hash__ = object.__hash__  # members are compared by identity; Enum hashes their names, in Python

    RUNNING = "running"
    DATA_ENDED = "data ended"
    """All operators have finished, and ``EndOfData`` has been put out."""
    CLOSING = "closing"
    """The task is over: the end of the partition goes out once all inputs are closed."""
    FINISHED = "finished"


LEGAL_PHASE_MOVES: Mapping[DriverPhase, frozenset[DriverPhase]] = {
    DriverPhase.RUNNING: frozenset({DriverPhase.DATA_ENDED}),
    DriverPhase.DATA_ENDED: frozenset({DriverPhase.CLOSING}),
    DriverPhase.CLOSING: frozenset({DriverPhase.FINISHED}),
    DriverPhase.FINISHED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class DriverSchemas:
    """The declared schemas of a driver's ports, of the ports of each of its operators, and of what leaves it."""

    ports: Sequence[pa.Schema] = ()
    operators: Sequence[Sequence[pa.Schema]] = ()
    leaving: pa.Schema | None = None


@dataclass(slots=True, eq=False, repr=False)
class Driver:
    """See the module's rules. ``partitions``: every element goes to all of them; a pipeline that ends in a sink has
    none.

    ``readers`` are those among the feeds that are sources.
    """

    name: str
    gates: Sequence[InputGate]
    operators: Sequence[OperatorInstance]
    partitions: Sequence[ResultPartition]
    host: DriverHost
    readers: Sequence[SplitReader] = ()
    #: the schema of what leaves the task, which it leaves without compact columns; None if nothing does
    leaving: pa.Schema | None = None
    #: in which rows are stored that are in flight at a cut
    schemas: DriverSchemas = DriverSchemas()
    #: the pipeline of the plan that it runs; only a cut asks
    shape: Callable[[], DriverShape] = DriverShape
    #: measures how long operators take to drain, in seconds
    clock: Callable[[], float] = float
    #: what sinks write, and what operators spill: of that nothing may be under way when they go on
    writing: WriteBehind = field(default_factory=WriteBehind)
    spilling: WriteBehind = field(default_factory=WriteBehind)
    #: how the scheduler knows the driver; None before it does
    handle: Handle | None = None
    wait: Wait | None = None
    #: None: nothing goes out before a cut
    gate: OutputGate | None = None
    phase: StateMachine[DriverPhase] = field(init=False)
    checkpointing: Checkpointing = field(init=False)
    chain: OperatorChain = field(init=False)
    ports: Ports = field(init=False)
    #: orders that were sent and not yet taken
    _inbox: deque[orders.Order] = field(default_factory=deque)
    #: elements that are being handled
    continuations: Continuations = field(init=False)
    #: produced and not yet sent, in order
    pending: deque[Element] = field(default_factory=deque)
    #: the last round that every port has ended
    round: int = -1
    #: by the clock of whoever runs the driver
    now: float = 0.0
    #: the task is to look at its end again
    advanced: bool = False
    #: its task is about to be cut, and the pause is asked for: nothing is begun
    stops: bool = False
    #: called when the driver may be cut again, and spills nothing: its task could not be cut, because of it
    cut_waits: Callable[[], None] | None = None
    _words: WaitReasons = field(init=False)
    _throttle: RoundThrottle = field(init=False)
    _channels: list[OutputChannel] = field(init=False)

    def __post_init__(self) -> None:
        self.phase = StateMachine(f"driver {self.name}", LEGAL_PHASE_MOVES, DriverPhase.RUNNING)
        self.ports = Ports(self.gates)
        for port in self.ports.all:
            port.handed_on = next((each.handed_on for each in self.readers if each in port.gate.feeds), None)
        put = self.pending.append if self.leaving is None else self._leave
        self.chain = OperatorChain(self.operators, put, len(self.ports.all))
        self.continuations = Continuations(self.chain, self._perform)
        self.checkpointing = Checkpointing(self)
        self._channels = [channel for partition in self.partitions for channel in partition.channels]
        self._words = WaitReasons(self.ports.feeds, self.partitions, self.chain.throttled)
        self._throttle = RoundThrottle(self.chain.throttled, self.ports.feeds, self._channels)

    # ------------------------------------------------------------------ running

    def send(self, order: orders.Order) -> None:
        """Let the driver perform an order before its next step. From any thread."""
        self._inbox.append(order)
        self.wake()

    def deliver(self, output: OutputChannel, message: Upstream) -> None:
        """Let the driver hear, before its next step, what a consumer has answered. From any thread. Credit wakes nobody
        who does not wait for it: either it is seen here that the driver does, or there, before it says so (``run``),
        that credit has come."""
        self._inbox.append(orders.Deliver(output, message))
        wait = self.wait
        if not isinstance(message, Grant) or (wait is not None and wait.reason is WaitReason.OUTPUT):
            self.wake()

    def wake(self) -> None:
        """Something has happened that the driver may wait for."""
        handle = self.handle
        if handle is not None:
            handle.wake()

    @property
    def data_ended(self) -> bool:
        """Whether all operators have finished."""
        return self.phase.state is not DriverPhase.RUNNING

    @property
    def busy(self) -> bool:
        """Whether an element is being handled."""
        return self.chain.busy or bool(self.continuations)

    def open(self) -> None:
        """Operators are built with the task; one that was restored may need no rows at all."""
        self._cancel_unneeded_inputs()

    def run(self, quantum: Quantum) -> Outcome:
        """Handle elements until none is left or the turn is over."""
        self.now = quantum.now
        for reader in self.readers:
            reader.now = self.now
        try:
            while self.step(quantum.expired) or self._inbox:
                if quantum.expired():
                    return PROGRESS
        except PenstockError as error:
            return Failed(error)
        if self.phase.state is DriverPhase.FINISHED:
            return FINISHED
        waiting = [reader.wakes_at for reader in self.readers if not reader.data_ended]
        wake_at = min((due for due in waiting if due > self.now), default=None)
        return Blocked((self.wait,) if self.wait is not None else (), wake_at)

    def step(self, expired: Callable[[], bool] = at_once) -> bool:
        """Take an element, or go on with one, if possible; the turn is over when it has ``expired``. True: progress was
        made; False: see ``wait``."""
        self.take_orders()
        if self.stops:
            return True
        if self.cut_waits is not None and self.spilling.has_room() and self.may_be_cut:
            ask, self.cut_waits = self.cut_waits, None
            ask()
            return True  # nothing is begun before the cut
        # an order that comes later is answered by the task's end
        progressed = self.phase.state is not DriverPhase.FINISHED and self._step(expired)
        if self.ports.undrained and not self.busy and (not self.data_ended or self._end_is_settled):
            self.ports.acknowledge_drained()
        if self.chain.throttled is not None:
            self._throttle.pass_on()
        if self.advanced:
            self.advanced = False
            self.host.end_advanced(self)
        return progressed

    def take_orders(self) -> bool:
        """Perform all orders that have come. Whether there were any."""
        found = bool(self._inbox)
        while self._inbox:
            self.perform(self._inbox.popleft())
        return found

    @property
    def may_be_cut(self) -> bool:
        """Whether no task barrier is being handled, or would be overtaken."""
        drains = any(is_task_barrier(each) for each in self.pending) or any(
            is_task_barrier(each) for feed in self.ports.feeds if isinstance(feed, InputChannel) for each in feed.queued
        )
        return self.continuations.may_be_cut and not drains

    def go_on_from(self, round: int, *, data_ended: bool) -> None:
        """Stand where another driver stood at a cut: it had forwarded this round, and perhaps finished. Then the end is
        said again, behind what it had not sent, for who has forgotten that it came."""
        self.round = round
        if data_ended:
            ends = (EndOfRound(FINAL_ROUND), EndOfData())
            self.pending = deque(each for each in self.pending if each not in ends)
            self.pending += ends
            self.phase.move(DriverPhase.DATA_ENDED)
            self.advanced = True

    @property
    def _end_is_settled(self) -> bool:
        """Whether nothing that was sent because of the end is on its way. Rows of a round that others go on with are in
        their place; those of the end may wait, further down, for all rounds of others."""
        return not self.pending and all(
            channel.drained for partition in self.partitions for channel in partition.channels
        )

    def _step(self, expired: Callable[[], bool]) -> bool:
        progressed = bool(self.pending) and self._flush()
        if not self.pending:
            progressed = self._work(expired) or progressed
            if self.pending:
                progressed = self._flush() or progressed
        closing = self.phase.state is DriverPhase.CLOSING
        # a cut is told when what its sinks flushed is written, which the driver must hear
        if closing and not (self.busy or self.pending or self.writing.is_awaited) and self.ports.closed:
            self._put_out(EndOfPartition())
        if progressed:
            self.wait = None
        elif self.pending:
            self.wait = self._words.for_output()
        return progressed

    def _work(self, expired: Callable[[], bool]) -> bool:
        """Go on with what is under way, or take the next element."""
        if not (self.writing.has_room() and self.spilling.has_room()):
            self.wait = FOR_DISK
            return False
        if self.chain.busy or self.continuations.is_due:
            return self._go_on(expired)
        if self.chain.poll():
            return True
        if not self._take():
            return False
        if not (self.continuations and expired()):
            self._go_on(expired)
        return True

    def _go_on(self, expired: Callable[[], bool]) -> bool:
        """Let operators and control elements go on until something is to be sent. Whether any has."""
        progressed = False
        while not self.pending and (self.chain.busy or self.continuations.is_due):
            if progressed and (expired() or not (self.writing.has_room() and self.spilling.has_room())):
                break
            if not (self._call_operators(expired) if self.chain.busy else self._resume()):
                break
            progressed = True
        return progressed

    def _resume(self) -> bool:
        """Go on with a control element."""
        if not self.chain.has_room:
            self.wait = self._words.for_consumer()
            return False
        self.continuations.resume()
        return True

    def _call_operators(self, expired: Callable[[], bool]) -> bool:
        """Let operators go on until the chain is idle, something has left it, or the turn is over."""
        pending, may_write, may_spill = self.pending, self.writing.has_room, self.spilling.has_room
        called = self.chain.go_on(lambda: pending or expired() or not (may_write() and may_spill()))
        if not called:
            self.wait = FOR_LOG if self.chain.is_held else self._words.for_consumer()
        elif not self.chain.busy:
            self._cancel_unneeded_inputs()
        return called

    # ------------------------------------------------------------------ input

    def _take(self) -> bool:
        starved: list[int] = []
        refused, busy = False, self.chain.under_way
        may_queue = self.chain.may_queue and len(self.ports.all) == 1
        if self.continuations and not (self.continuations.let_pass and not self.ports.any_cancelled):
            self.wait = self._words.explain(busy, refused, starved, aligning=False, ended=False)
            return False
        blocked, behind = self.checkpointing.blocked, self.checkpointing.behind
        if self.chain.window_aware is not None and (ended := self.ports.end_windows(behind)):
            for number in ended:
                self.chain.end_window(number)
            self._cancel_unneeded_inputs()
        in_turn = blocked if self.chain.reads_in_turn else NO_FEEDS
        for port in self.ports.readable(behind, self.chain.wants, blocked):
            if port.only is not None and not blocked and port.only.peek() is None:  # whatever is accepted
                if not port.only.closed:
                    starved.append(port.base)
                continue
            is_last = bool(behind or in_turn) and self.ports.is_last(port, behind, in_turn)
            accepts = port.cancelled or self.chain.accepts(port.number, is_last)
            found = port.gate.poll(port.blocked(blocked), accepts, may_queue or not busy)
            if isinstance(found, Delivered):
                self._handle(port, found)
                return True
            if found is SPOOLED:
                return True
            if isinstance(found, Starved):
                starved += [port.base + feed for feed in found.waits_for]
            else:
                refused = True
        aligning = bool(blocked)
        self.wait = self._words.explain(busy, refused, starved, aligning=aligning, ended=self.data_ended)
        return False

    def _handle(self, port: Port, found: Delivered) -> None:
        element = found.element
        if isinstance(element, Batch):
            if self.checkpointing.handler.first is not None:
                self.checkpointing.read(size_of(element))
            port.take(element)
            if element.matters and not port.cancelled:
                self.chain.push(port.number, element)
        elif isinstance(element, EndOfRound):
            self.continuations.add(ControlStep(What.ROUND_ENDS, port=port.number, round=element.round), may_pass=True)
        elif isinstance(element, EndOfData):
            port.gate.feeds[found.feed].acknowledge_end_of_data()
            if not port.gate.data_ended:
                port.gate.feeds[found.feed].acknowledge_drained()
            else:
                self.ports.undrained.append(port)
                self.continuations.add(ControlStep(What.PORT_ENDS, port=port.number))
        elif isinstance(element, Barrier):
            self.checkpointing.barrier(port.base + found.feed, element)
            if element.kind is not BarrierKind.DRAIN:
                self.host.barrier_arrived(self, element)
        elif isinstance(element, CancelBarrier):
            self.checkpointing.cancel(element.checkpoint)
        elif isinstance(element, EndOfPartition):
            self.checkpointing.end(port.base + found.feed)
            self.advanced = True
        else:
            self.pending.append(element)

    def _perform(self, step: ControlStep) -> Sequence[ControlStep]:
        """What a control element means to the driver itself; the steps that follow from it."""
        port = self.ports.all[step.port]
        match step.what:
            case What.ROUND_ENDS:
                port.round = port.round if step.round == FINAL_ROUND else step.round
                return (*self.chain.round_steps(step.port, step.round), FORWARD)
            case What.FORWARD:
                reached = self.ports.reached
                if reached > self.round:
                    self.round = reached
                    return (*self.chain.rest_steps(reached), ControlStep(What.SAY_ROUND, round=reached))
            case What.SAY_ROUND:
                self.pending.append(EndOfRound(step.round))
            case What.PORT_ENDS:
                port.ended = True
                past = self.chain.past(step.port)
                runs_ahead = past > self.ports.past
                self.ports.past = max(past, self.ports.past)
                told = (*self.chain.port_steps(step.port, self.ports.ended), FORWARD, ControlStep(What.PORT_HAS_ENDED))
                return (FORWARD, *told) if runs_ahead else told
            case What.PORT_HAS_ENDED:
                self._cancel_unneeded_inputs()
                if self.ports.ended:
                    return (*self.chain.finish_steps(), ControlStep(What.SAY_END))
            case _:
                self.pending += (EndOfRound(FINAL_ROUND), EndOfData())
                self.phase.move(DriverPhase.DATA_ENDED)
                self.advanced = True
        return ()

    def _cancel_unneeded_inputs(self) -> None:
        """Tell the feeds of a port whose rows cannot matter any more before the next task barrier."""
        if self.chain.busy or self.checkpointing.drains or not (self.chain.may_terminate_early or self.partitions):
            return
        channels = self._channels
        unread = bool(channels) and channels[0].cancelled and all(channel.cancelled for channel in channels)
        if not unread and not self.chain.may_terminate_early:
            return
        never_read = unread and all(channel.cancelled_for_good for channel in channels)
        chain = self.chain
        unread = never_read or (unread and not chain.holds)
        self.ports.cancel(
            self.checkpointing.behind,
            lambda port: unread or chain.needs_no_more(port),
            lambda port: never_read or chain.needs_nothing_for_good(port),
        )

    # ------------------------------------------------------------------ orders

    def perform(self, order: orders.Order) -> None:
        """Do what was sent from outside, on the thread that runs the driver."""
        throttled = self.chain.throttled
        match order:
            case orders.Receive(channel, frame):
                channel.receive(frame)
            case orders.Deliver(output, message):
                self._deliver(output, message)
            case orders.ProposeRound(checkpoint):
                self.host.rounds_proposed(self, checkpoint, [reader.propose(checkpoint) for reader in self.readers])
            case orders.PlaceBarrier(barrier, at_round, stop):
                for reader in self.readers:
                    reader.trigger(barrier, at_round, stop)
            case orders.InjectBarrier(barrier, inputs):
                self.checkpointing.inject(barrier, inputs)
            case orders.JoinBarrier(barrier):
                self.checkpointing.join(barrier)
            case orders.ExpectBarriers(checkpoint):
                if throttled is not None:
                    throttled.expect(checkpoint)
            case orders.AbortCheckpoint(checkpoint):
                self._abort(checkpoint)
            case orders.NotifyCommitted(checkpoint):
                if throttled is not None:
                    throttled.committed(checkpoint)
                    self.advanced = True
            case orders.AddSplits(reader, rounds, splits):
                reader.add_splits(rounds, splits)
            case orders.NoMoreSplits(reader):
                reader.no_more_splits()
            case orders.DrainSources(checkpoint):
                self._drain_sources(checkpoint)
            case orders.TakeSplitSets(rounds, items):
                self._take_split_sets(rounds, items)
            case orders.Steer(_, reweights, limit):
                if self.chain.steered is not None:
                    self.host.steered(self, order, self.chain.steered.steer(reweights, limit))
            case orders.ClosePartition():
                self.phase.move(DriverPhase.CLOSING)
                for reader in self.readers:
                    reader.close()
            case orders.CheckEnd():
                self.advanced = True
            case orders.CallBack(action):
                action()
            case _:
                assert_never(order)

    def give_up(self, checkpoint: CheckpointId) -> None:
        """Hold and align no more for the checkpoint, nor for older ones, and place no barrier of theirs."""
        for reader in self.readers:
            reader.abort(checkpoint)
        if self.chain.throttled is not None:
            self.chain.throttled.abort(checkpoint)
        self.checkpointing.abort(checkpoint)

    def _abort(self, checkpoint: CheckpointId) -> None:
        self.give_up(checkpoint)
        for feed in self.ports.feeds:
            if isinstance(feed, InputChannel):
                feed.give_up(checkpoint)

    def _drain_sources(self, barrier: CheckpointId) -> None:
        for reader in self.readers:
            reader.trigger(Barrier(barrier, BarrierKind.DRAIN, 0.0), reader.last_round)

    def _take_split_sets(self, rounds: int, items: Sequence[orders.SplitSetOrder]) -> None:
        for reader in self.readers:
            if reader.last_round != rounds - 1 and not reader.over:
                message = f"gets splits for round {rounds}, but has had {reader.last_round + 1} rounds"
                raise InternalError(message, operator=reader.operator)
        for item in items:
            if isinstance(item, orders.DrainSources):
                self._drain_sources(item.barrier)
            for reader in self.readers:
                if isinstance(item, orders.AddSplitSet):
                    reader.add_splits(item.rounds, item.splits[reader.operator])
                elif isinstance(item, orders.EndSplitSets):
                    reader.no_more_splits()

    @property
    def is_released(self) -> bool:
        """Whether nobody outside needs its throttled operator any more."""
        return self.chain.throttled is None or self.chain.throttled.is_released

    # ------------------------------------------------------------------ output

    def _leave(self, batch: Batch) -> None:
        assert self.leaving is not None
        self.pending.append(plain_batch(batch, self.leaving))

    def _flush(self) -> bool:
        """Send what is pending, as far as credit allows."""
        sent = False
        while self.pending:
            element = self.pending[0]
            if isinstance(element, Batch):
                for partition in self.partitions:
                    if not partition.ready:
                        return sent
            if not self._put_out(element):
                return sent
            self.pending.popleft()
            sent = True
            if is_task_barrier(element):
                self.checkpointing.drains -= 1
                self._cancel_unneeded_inputs()
        return sent

    def _put_out(self, element: Element) -> bool:
        """Send an element, and finish with the end of the partition. False: the way out is shut."""
        if self.gate is None:
            self._send_to_all(element)
            return True
        with self.gate.lock:
            goes_out = bool(self.partitions) or isinstance(element, EndOfPartition)
            may_send = not (goes_out and self.gate.is_shut)
            if may_send:
                self._send_to_all(element)
        return may_send

    def _send_to_all(self, element: Element) -> None:
        for partition in self.partitions:
            partition.send(element)
        if isinstance(element, EndOfPartition):
            self.phase.move(DriverPhase.FINISHED)

    def _deliver(self, channel: OutputChannel, message: Upstream) -> None:
        """A consumer has answered."""
        with nullcontext() if self.gate is None else self.gate.lock:
            channel.deliver(message)
        if not isinstance(message, Grant):
            self.advanced = True
            self._throttle.pass_on()
            self._cancel_unneeded_inputs()

    # ------------------------------------------------------------------ end

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold. Only when no thread is in ``run``."""
        phase = self.phase.state
        assert phase is not DriverPhase.FINISHED or not (self.pending or self.busy), f"{self.name} is not empty"
        assert phase is DriverPhase.RUNNING or self.ports.ended, f"{self.name}: {phase.value}, and a port goes on"
        for partition in self.partitions:
            for channel in partition.channels:
                channel.validate()
        for each in self.ports.feeds:
            if isinstance(each, InputChannel):
                each.validate()

    def close(self) -> None:
        """Close the operators, upstream first. Only when no thread is in ``run``."""
        self.writing.end()
        self.spilling.end()
        errors = self.chain.close()
        self._inbox.clear()
        self.continuations.clear()
        self.pending.clear()
        self.host.closed(self, errors)

    def release(self) -> None:
        """Refer to nothing any more, once it is closed: every circle of references in a task passes through a driver.
        Orders may still come, and are left alone."""
        self.handle = self.gate = None
        self.gates = self.operators = self.partitions = self.readers = ()
        del self.host, self.checkpointing, self.chain, self.continuations, self.ports, self.writing, self.spilling
        del self._words, self._throttle, self._channels

"""Channels: what connects two drivers, within a task, between tasks, or between processes.

A channel has two ends, both pure: an :class:`OutputChannel` at the producer and an :class:`InputChannel` at the
consumer. A *wire* carries messages between them; in one process it is a function call, between processes a transport.
Every wire passes the contract tests in ``tests/support/channel_contract.py``.

Rules:

1. Elements are numbered per channel, from 0, without gaps. A repeated number is dropped, a gap is an error: a wire
   that loses an element must fail, not go on.
2. Credit is bytes, granted by the consumer as it consumes: a producer stops when the credit is used up (the high mark)
   and goes on when half of it has come back, or all that was sent has been consumed (the low mark). With credit it may
   send one batch, however large. Control elements need no credit and are never held back.
3. ``AllProcessed`` travels upstream once: everything before ``EndOfData`` has been processed. ``EndSettled`` follows,
   once: so has everything, further down, that was emitted because of it.
4. ``DropInput`` travels upstream when the consumer needs no more rows of its window (the part between two task
   barriers): from then on the producer's end throws batches away, up to its next task barrier. Control elements go on.
   The message names the window, because it may arrive when the producer is already in the next one.
5. ``HoldRound`` travels upstream, through drivers, to the sources: while it holds they begin no round (``pacing``).
6. An end belongs to one pair of attempts. Messages of other attempts are dropped before they reach it. Each end is
   touched by one driver alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core.elements import Barrier, Batch, Element, EndOfData, EndOfPartition, size_of
from ..core.errors import InternalError
from ..core.identity import Attempt, BarrierKind, CheckpointId, Tally, TaskId
from ..integrity.tally import Count

DEFAULT_CREDIT = 16 * 1024 * 1024
"""Bytes in flight per channel: a few batches of 64 Ki rows, so that producer and consumer overlap."""


@dataclass(frozen=True, slots=True, order=True)
class ChannelId:
    """One channel: an edge of the plan between two tasks (the same task twice for an edge inside a task)."""

    edge: str
    producer: TaskId
    consumer: TaskId

    def __str__(self) -> str:
        return f"{self.edge}: {self.producer} → {self.consumer}"


@dataclass(frozen=True, slots=True)
class Frame:
    """One element on its way downstream."""

    channel: ChannelId
    attempts: tuple[Attempt, Attempt]
    """Of producer and consumer."""
    sequence: int
    element: Element
    size: int | None = None
    """What the element counts for at the producer, which the consumer must grant again to the byte. It cannot be
    measured there: a wire may leave out what nobody needs (the validity bitmap of a column that has no nulls)."""
    sent: Tally | None = None
    """With a barrier and the end of the data: what was sent on the channel before it (``ledger``)."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Credit on its way upstream. ``total`` counts all bytes ever granted, so that a repeat does no harm."""

    channel: ChannelId
    attempts: tuple[Attempt, Attempt]
    total: int


@dataclass(frozen=True, slots=True)
class AllProcessed:
    """The consumer has processed every record of the channel."""

    channel: ChannelId
    attempts: tuple[Attempt, Attempt]


@dataclass(frozen=True, slots=True)
class EndSettled:
    """Nothing that was emitted because of the end of the channel's data is on its way any more, however far down."""

    channel: ChannelId
    attempts: tuple[Attempt, Attempt]


@dataclass(frozen=True, slots=True)
class DropInput:
    """The consumer needs no more rows before the task barrier that ends ``window`` (windows count from 0), or, if
    ``for_good``, never again."""

    channel: ChannelId
    attempts: tuple[Attempt, Attempt]
    window: int
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class HoldRound:
    """Whether the consumer has so many rows that no further round should begin."""

    channel: ChannelId
    attempts: tuple[Attempt, Attempt]
    hold: bool


_TELLING = (Barrier, EndOfData)
"""With these goes the tally of what was sent before them."""

Upstream = Grant | AllProcessed | DropInput | EndSettled | HoldRound


def _is_drain(element: Element) -> bool:
    return isinstance(element, Barrier) and element.kind is BarrierKind.DRAIN


class Outlet(Protocol):
    """Where a driver puts its elements: one channel, or several between which batches are divided."""

    @property
    def channels(self) -> Sequence[OutputChannel]: ...

    @property
    def ready(self) -> bool:
        """Whether a batch may be sent now."""

    def send(self, element: Element) -> None:
        """Send one element. A batch needs ``ready``; every other element goes to all channels."""


class OutputChannel:
    """The producer's end; the simplest outlet. ``wire`` takes frames; ``deliver`` takes what comes back."""

    def __init__(
        self,
        channel: ChannelId,
        attempts: tuple[Attempt, Attempt],
        wire: Callable[[Frame], None],
        credit: int = DEFAULT_CREDIT,
    ) -> None:
        self.channel = channel
        self.attempts = attempts
        self._wire = wire
        #: bytes that may still be sent; may go below zero by one batch
        self._credit = credit
        #: all bytes granted beyond the initial credit
        self._granted = 0
        self._sequence = 0
        #: the consumer has said AllProcessed
        self.all_processed = False
        #: the consumer has said EndSettled
        self.settled = False
        #: EndOfPartition has been sent; nothing follows
        self.closed = False
        #: bytes of batches sent and not yet consumed
        self.in_flight = 0
        #: batches and bytes sent
        self._count = Count()
        self.sent = 0
        #: the consumer needs no more rows of this window: batches are thrown away
        self.dropping = False
        #: the same for all windows to come
        self.dropping_for_good = False
        #: the consumer wants no further round to begin
        self.held = False
        #: task barriers sent
        self._window = 0

    @property
    def channels(self) -> Sequence[OutputChannel]:
        return (self,)

    @property
    def ready(self) -> bool:
        """Whether a batch may be sent now."""
        return self._credit > 0 or self.dropping

    def send(self, element: Element) -> None:
        """Send one element. A batch needs ``ready``; anything else may always be sent."""
        if self.closed:
            raise InternalError(f"{self.channel}: {type(element).__name__} sent after the end of the partition")
        if isinstance(element, Batch):
            if self.dropping:
                return
            self._count.add(element)
        elif _is_drain(element):
            self._window += 1
            self.dropping = self.dropping_for_good
        size = size_of(element)
        self._credit -= size
        self.in_flight += size
        self.sent += size
        self.closed = isinstance(element, EndOfPartition)
        sequence, self._sequence = self._sequence, self._sequence + 1
        told = self._count.tally if isinstance(element, _TELLING) else None
        self._wire(Frame(self.channel, self.attempts, sequence, element, size, told))

    @property
    def rows(self) -> int:
        """Rows sent."""
        return self._count.rows

    @property
    def batches(self) -> int:
        """Batches sent."""
        return self._count.batches

    def deliver(self, message: Upstream) -> None:
        """Take a message of the consumer. Those of other attempts and repeats change nothing."""
        if message.attempts != self.attempts:
            return
        if isinstance(message, AllProcessed):
            self.all_processed = True
        elif isinstance(message, EndSettled):
            self.settled = True
        elif isinstance(message, HoldRound):
            self.held = message.hold
        elif isinstance(message, DropInput):
            self.dropping_for_good = self.dropping_for_good or message.for_good
            self.dropping = self.dropping or message.window == self._window or message.for_good
        elif message.total > self._granted:
            new, self._granted = message.total - self._granted, message.total
            self._credit += new
            self.in_flight -= new


class InputChannel:
    """The consumer's end: a queue that always takes what the wire brings. ``reply`` takes messages upstream."""

    def __init__(
        self,
        channel: ChannelId,
        attempts: tuple[Attempt, Attempt],
        reply: Callable[[Upstream], None],
        credit: int = DEFAULT_CREDIT,
    ) -> None:
        self.channel = channel
        self.attempts = attempts
        self._reply = reply
        self._queue: deque[tuple[Element, int]] = deque()
        self._expected = 0
        #: rows, batches and bytes of batches taken out of the queue, and bytes that the producer was granted again
        self.rows = self.batches = self.consumed = 0
        self._granted = 0
        #: so many bytes are owed before a grant, as long as batches are queued
        self._mark = credit // 2
        #: bytes of the batches in the queue
        self.queued_bytes = 0
        #: EndOfData has been taken out of the queue
        self.data_ended = False
        #: EndOfPartition has been taken out of the queue
        self.closed = False
        #: task barriers taken out of the queue
        self._window = 0
        #: batches that were in flight at the checkpoint that the attempt is restored from
        self.restored = Count()
        #: what the producer says it had sent, before the barriers that have come and before the end of its data
        self._told: dict[CheckpointId, Tally | None] = {}
        self._told_at_end: Tally | None = None
        #: told of every element that comes in, where barriers may overtake batches
        self.watch: Callable[[Element], None] | None = None

    def receive(self, frame: Frame) -> bool:
        """Take a frame from the wire. False: dropped, as a repeat or of another attempt. A gap is an error."""
        if frame.attempts != self.attempts or frame.sequence < self._expected:
            return False
        if frame.sequence > self._expected:
            raise InternalError(
                f"{self.channel}: element {frame.sequence} came where {self._expected} was expected",
                remedy="the connection lost an element; the job restarts from its last checkpoint",
            )
        self._expected += 1
        size = size_of(frame.element) if frame.size is None else frame.size
        self._queue.append((frame.element, size))
        self.queued_bytes += size
        if isinstance(frame.element, EndOfData):
            self._told_at_end = frame.sent
        elif isinstance(frame.element, Barrier) and frame.element.kind is not BarrierKind.DRAIN and not self.is_local:
            # nobody asks for the others, so nobody would forget them
            self._told[frame.element.checkpoint] = frame.sent
        if self.watch is not None:
            self.watch(frame.element)
        return True

    def refill(self, batches: Iterable[Batch]) -> None:
        """Put in front batches that were in flight at the checkpoint that is restored. Their producer has forgotten
        them, so they count nothing against its credit."""
        for batch in batches:
            self.restored.add(batch)
            self._queue.append((batch, 0))

    @property
    def is_local(self) -> bool:
        """Whether it lies within a task."""
        return self.channel.producer == self.channel.consumer

    def told_before(self, checkpoint: CheckpointId) -> Tally | None:
        """What the producer says it had sent before the checkpoint's barrier, or in all; None: it has not said so.
        Asked once for each checkpoint: older ones are forgotten."""
        told = self._told.get(checkpoint, self._told_at_end)
        self._told = {known: other for known, other in self._told.items() if known > checkpoint}
        return told

    def queued_before(self, checkpoint: CheckpointId) -> tuple[list[Batch], bool]:
        """The batches that stand before the checkpoint's barrier, and whether that has come."""
        found: list[Batch] = []
        for element, _ in self._queue:
            if isinstance(element, Barrier) and element.checkpoint == checkpoint:
                return found, True
            if isinstance(element, Batch):
                found.append(element)
        return found, False

    def overtake(self, checkpoint: CheckpointId) -> Barrier | None:
        """Take the checkpoint's barrier out of the queue, ahead of what stands before it; None if it is not there."""
        for place, (element, _) in enumerate(self._queue):
            if isinstance(element, Barrier) and element.checkpoint == checkpoint:
                del self._queue[place]
                return element
        return None

    def peek(self) -> Element | None:
        """The next element, or None if the queue is empty."""
        return self._queue[0][0] if self._queue else None

    def pop(self) -> Element:
        """Take the next element out. Its bytes are granted to the producer again, when half of the credit is owed or no
        batch is left: a producer that was stopped by a full queue is not woken for each batch."""
        element, size = self._queue.popleft()
        if isinstance(element, Batch):
            self.queued_bytes -= size
            self.rows += element.records.num_rows
            self.batches += 1
            self.consumed += size
            if not self.queued_bytes or self.consumed - self._granted >= self._mark:
                self._granted = self.consumed
                self._reply(Grant(self.channel, self.attempts, self._granted))
        elif isinstance(element, EndOfData):
            self.data_ended = True
        elif isinstance(element, EndOfPartition):
            self.closed = True
        elif _is_drain(element):
            self._window += 1
        return element

    def drop_input(self, for_good: bool) -> None:
        """Tell the producer that no more rows of this window are needed, or none ever."""
        self._reply(DropInput(self.channel, self.attempts, self._window, for_good))

    def hold_rounds(self, hold: bool) -> None:
        """Tell the producer whether further rounds should begin."""
        self._reply(HoldRound(self.channel, self.attempts, hold))

    def say_all_processed(self) -> None:
        """Tell the producer that all its records have been processed."""
        self._reply(AllProcessed(self.channel, self.attempts))

    def say_settled(self) -> None:
        """Tell the producer that nothing of its end is on its way any more."""
        self._reply(EndSettled(self.channel, self.attempts))

    def __len__(self) -> int:
        return len(self._queue)

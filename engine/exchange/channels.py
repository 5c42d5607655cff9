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
3. ``EndOfDataAck`` travels upstream once: everything before ``EndOfData`` has been processed. ``DrainedAck`` follows,
   once: so has everything, further down, that was emitted because of it.
4. ``CancelInput`` travels upstream when the consumer needs no more rows of its window (the part between two task
   barriers): from then on the producer's end throws batches away, up to its next task barrier. Control elements go on.
   The message names the window, because it may arrive when the producer is already in the next one.
5. ``PauseRounds`` travels upstream, through drivers, to the sources: while it holds they begin no round
   (``core.operator``).
6. An end belongs to one pair of attempts. Messages of other attempts are dropped before they reach it. Each end is
   touched by one driver alone; but barriers at which tasks cut as a whole go out on other threads, so what moves the
   producer's end has the lock of its task (``runtime.driver.OutputGate``).
7. A barrier at which a task is to cut as a whole (``runtime.task_cut``) is never queued. What comes behind it waits
   aside until the task has cut, so nothing of it is read before; on the channels whose barrier has not come yet, what
   comes after the cut is recorded until it does.
8. A consumer that is restored from such a cut may have heard the end of the data already. A producer that is deployed
   again to say only its end says it again: that is not heard twice, and is answered again. The end of the partition is
   forgotten, and waited for: else a consumer might be over before its producer has been answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from ..core.channel_states import ANSWER_MOVES, DEMAND_MOVES, END_MOVES, Answer, Demand, EndState
from ..core.elements import Barrier, Batch, Element, EndOfData, EndOfPartition, ends_window, is_task_barrier, size_of
from ..core.errors import InternalError
from ..core.identity import NOTHING, Attempt, BarrierKind, CheckpointId, Tally, TaskId
from ..core.state_machine import StateMachine
from ..integrity.tally import RunningTally

DEFAULT_CREDIT = 16 * 1024 * 1024
"""Bytes in flight per channel: a few batches of 64 Ki rows, so that producer and consumer overlap."""


class ChannelId(msgspec.Struct, frozen=True, order=True):
    """One channel: an edge of the plan between two tasks (the same task twice for an edge inside a task)."""

    edge: str
    producer: TaskId
    consumer: TaskId

    def __str__(self) -> str:
        return f"{self.edge}: {self.producer} → {self.consumer}"


class Frame(msgspec.Struct, frozen=True):
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


class Grant(msgspec.Struct, frozen=True):
    """Credit on its way upstream. ``total`` counts all bytes ever granted, so that a repeat does no harm."""

    channel: ChannelId
    attempts: tuple[Attempt, Attempt]
    total: int


class EndOfDataAck(msgspec.Struct, frozen=True):
    """The consumer has processed every record of the channel."""

    channel: ChannelId
    attempts: tuple[Attempt, Attempt]


class DrainedAck(msgspec.Struct, frozen=True):
    """Nothing that was emitted because of the end of the channel's data is on its way any more, however far down."""

    channel: ChannelId
    attempts: tuple[Attempt, Attempt]


class CancelInput(msgspec.Struct, frozen=True):
    """The consumer needs no more rows before the task barrier that ends ``window`` (windows count from 0), or, if
    ``for_good``, never again."""

    channel: ChannelId
    attempts: tuple[Attempt, Attempt]
    window: int
    for_good: bool = False


class PauseRounds(msgspec.Struct, frozen=True):
    """Whether the consumer has so many rows that no further round should begin."""

    channel: ChannelId
    attempts: tuple[Attempt, Attempt]
    paused: bool


_WITH_TALLY = (Barrier, EndOfData)
"""With these goes the tally of what was sent before them."""

Upstream = Grant | EndOfDataAck | CancelInput | DrainedAck | PauseRounds


class CutWatch(Protocol):
    """Who hears on arrival what matters for the cuts of a task (rule 7). On the thread of the channel's driver."""

    def barrier_came(self, channel: InputChannel, barrier: Barrier) -> bool:
        """An unaligned barrier; whether what follows waits."""

    def partition_ended(self, channel: InputChannel) -> None:
        """Nothing follows."""


class ResultPartition(Protocol):
    """Where a driver puts its elements: one channel, or several between which batches are divided."""

    @property
    def channels(self) -> Sequence[OutputChannel]: ...

    @property
    def ready(self) -> bool:
        """Whether a batch may be sent now."""

    def send(self, element: Element) -> None:
        """Send one element. A batch needs ``ready``; every other element goes to all channels."""


class OutputChannel:
    """The producer's end; the simplest partition. ``wire`` takes frames; ``deliver`` takes what comes back."""

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
        self._end = StateMachine(f"the producer's end of {channel}", END_MOVES, EndState.OPEN)
        self._demand = StateMachine(f"the demand on {channel}", DEMAND_MOVES, Demand.ALL)
        self._answer = StateMachine(f"the answer on {channel}", ANSWER_MOVES, Answer.NONE)
        #: bytes of batches sent and not yet consumed
        self.in_flight = 0
        #: batches and bytes sent
        self._count = RunningTally()
        self.sent = 0
        #: the consumer wants no further round to begin
        self.rounds_paused = False
        #: task barriers sent
        self._window = 0

    @property
    def channels(self) -> Sequence[OutputChannel]:
        return (self,)

    @property
    def ready(self) -> bool:
        """Whether a batch may be sent now."""
        return self._credit > 0 or self.cancelled

    @property
    def closed(self) -> bool:
        """Whether EndOfPartition has been sent."""
        return self._end.state is EndState.CLOSED

    @property
    def is_local(self) -> bool:
        """Whether it lies within a task."""
        return self.channel.producer == self.channel.consumer

    @property
    def cancelled(self) -> bool:
        """Whether the consumer needs no more rows of this window: batches are thrown away."""
        return self._demand.state is not Demand.ALL

    @property
    def cancelled_for_good(self) -> bool:
        """The same for all windows to come."""
        return self._demand.state is Demand.NONE

    @property
    def end_of_data_acknowledged(self) -> bool:
        """Whether the consumer has processed everything."""
        return self._answer.state is not Answer.NONE

    @property
    def drained(self) -> bool:
        """Whether nothing that was emitted because of the end is on its way, however far down."""
        return self._answer.state is Answer.DRAINED

    def send(self, element: Element) -> None:
        """Send one element. A batch needs ``ready``; anything else may always be sent."""
        if self.closed:
            raise InternalError(f"{self.channel}: {type(element).__name__} sent after the end of the partition")
        if isinstance(element, Batch):
            if self.cancelled:
                return
            self._count.add(element)
        elif is_task_barrier(element):
            self._window += 1
            if self._demand.state is Demand.NEXT_WINDOW:
                self._demand.move(Demand.ALL)
        elif isinstance(element, EndOfData):
            self._end.move(EndState.DATA_ENDED)
        elif isinstance(element, EndOfPartition):
            self._end.move(EndState.CLOSED)
        size = size_of(element)
        self._credit -= size
        self.in_flight += size
        self.sent += size
        sequence, self._sequence = self._sequence, self._sequence + 1
        tally = self._count.tally if isinstance(element, _WITH_TALLY) else None
        self._wire(Frame(self.channel, self.attempts, sequence, element, size, tally))

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
        if isinstance(message, EndOfDataAck | DrainedAck) and self._end.state is EndState.OPEN:
            return  # to what an earlier attempt had said: what this one says is answered again
        if isinstance(message, EndOfDataAck):
            if self._answer.state is Answer.NONE:
                self._answer.move(Answer.END_OF_DATA)
        elif isinstance(message, DrainedAck):
            if self._answer.state is not Answer.DRAINED:
                self._answer.move(Answer.DRAINED)
        elif isinstance(message, PauseRounds):
            self.rounds_paused = message.paused
        elif isinstance(message, CancelInput):
            self._cancel(message)
        elif message.total > self._granted:
            new, self._granted = message.total - self._granted, message.total
            self._credit += new
            self.in_flight -= new

    def _cancel(self, message: CancelInput) -> None:
        demand = self._demand.state
        if message.for_good and demand is not Demand.NONE:
            self._demand.move(Demand.NONE)
        elif message.window == self._window and demand is Demand.ALL:
            self._demand.move(Demand.NEXT_WINDOW)

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        assert self.in_flight >= 0, f"{self.channel} has {self.in_flight} bytes in flight"
        assert self._end.state is not EndState.OPEN or not self.end_of_data_acknowledged, (
            f"{self.channel}: answered early"
        )


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
        #: a barrier at which the task is to cut, and what came behind it (rule 7)
        self._behind: deque[tuple[Element, int]] = deque()
        #: who hears of barriers, where tasks cut as a whole
        self.watch: CutWatch | None = None
        #: what is in flight across the cut that is open, beyond what was queued; None: its barrier has come
        self.recorded: list[Element] | None = None
        self._recorded_for: CheckpointId | None = None
        #: the end of the data had been heard at the cut that is restored, or was queued; ``acknowledge_drained`` was
        #: called
        self._has_heard_end = self._drained = False
        self._expected = 0
        #: rows, batches and bytes of batches taken out of the queue, and bytes that the producer was granted again
        self.rows = self.batches = self.consumed = 0
        self._granted = 0
        #: so many bytes are owed before a grant, as long as batches are queued
        self._mark = credit // 2
        #: bytes of the batches in the queue
        self.queued_bytes = 0
        #: how many these are, ahead of each end of a window in the queue, and behind the last of these
        self._batches_of_windows = deque([0])
        #: moved by what is taken out of the queue
        self._end = StateMachine(f"the consumer's end of {channel}", END_MOVES, EndState.OPEN)
        #: task barriers taken out of the queue
        self._window = 0
        #: batches that were in flight at the checkpoint that the attempt is restored from
        self.restored = RunningTally()
        #: what the producer says it had sent, before the barriers that have come and before the end of its data
        self._tallies: dict[CheckpointId, Tally | None] = {}
        self._final_tally: Tally | None = None

    @property
    def data_ended(self) -> bool:
        """Whether EndOfData has been taken out of the queue."""
        return self._end.state is not EndState.OPEN

    @property
    def closed(self) -> bool:
        """Whether EndOfPartition has been taken out of the queue."""
        return self._end.state is EndState.CLOSED

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
        if isinstance(frame.element, EndOfData):
            self._final_tally = frame.sent
        elif isinstance(frame.element, Barrier) and frame.element.kind is not BarrierKind.DRAIN and not self.is_local:
            # nobody asks for the others, so nobody would forget them
            self._tallies[frame.element.checkpoint] = frame.sent
        if self._has_heard_end and self._was_heard(frame.element):
            return True
        if self._behind:
            self._behind.append((frame.element, size))
        else:
            self._come(frame.element, size)
        return True

    def _come(self, element: Element, size: int) -> None:
        """The next element, with nothing that waits before it."""
        watch = self.watch
        if watch is not None:
            if isinstance(element, Barrier) and element.unaligned:
                if watch.barrier_came(self, element):
                    self._behind.append((element, size))
                return
            if self.recorded is not None:
                self.recorded.append(element)
            if isinstance(element, EndOfPartition):
                watch.partition_ended(self)
        self._put(element, size)

    def _put(self, element: Element, size: int) -> None:
        self._queue.append((element, size))
        if isinstance(element, Batch):
            self.queued_bytes += size
            self._batches_of_windows[-1] += 1
        elif ends_window(element):
            self._batches_of_windows.append(0)

    def _was_heard(self, element: Element) -> bool:
        """Whether the element says again what was heard before the restore (rule 8)."""
        if isinstance(element, EndOfData) and self.data_ended:
            self.answer_again()
        return not isinstance(element, Barrier | EndOfPartition)

    def answer_again(self) -> None:
        """Tell the producer once more that its data were processed, and drained, if they were: the attempt that was
        told so is gone."""
        self.acknowledge_end_of_data()
        if self._drained:
            self.acknowledge_drained()

    def record(self, checkpoint: CheckpointId) -> None:
        """Keep what comes from now on, until the checkpoint's barrier does."""
        self.recorded, self._recorded_for = [], checkpoint

    def give_up(self, checkpoint: CheckpointId) -> None:
        """The checkpoint was given up, and with it all older ones."""
        if self._recorded_for is not None and self._recorded_for <= checkpoint:
            self.recorded = self._recorded_for = None
        self.go_on_behind(checkpoint)

    def go_on_behind(self, checkpoint: CheckpointId) -> None:
        """Let come what waits behind the barriers of checkpoints up to this one."""
        while self._behind:
            barrier, _ = self._behind[0]
            assert isinstance(barrier, Barrier)
            if barrier.checkpoint > checkpoint:
                return
            waiting, self._behind = self._behind, deque()
            waiting.popleft()
            while waiting and not self._behind:
                self._come(*waiting.popleft())
            self._behind += waiting

    @property
    def waits_at(self) -> CheckpointId | None:
        """The checkpoint whose barrier has come, and at which the task has not cut yet."""
        found = self._behind[0][0] if self._behind else None
        return found.checkpoint if isinstance(found, Barrier) else None

    @property
    def queued(self) -> list[Element]:
        """What waits in the queue."""
        return [element for element, _ in self._queue]

    @property
    def end(self) -> EndState:
        """How far what was taken out of the queue has come."""
        return self._end.state

    def put_back(self, elements: Sequence[Element], end: EndState, *, drained: bool) -> None:
        """Go on as at a cut: these had come and were not taken, and what was taken had come to ``end``. Their producer
        has forgotten them, so they count nothing against its credit. ``drained``: if the data had ended, the producer
        had been told that they are drained, too. The end of the partition comes again (rule 8)."""
        if end is not EndState.OPEN:
            self._end.move(EndState.DATA_ENDED)
            self._drained = drained
        for element in elements:
            if isinstance(element, Batch):
                self.restored.add(element)
            if not isinstance(element, EndOfPartition):
                self._put(element, 0)
        if end is not EndState.OPEN or any(isinstance(element, EndOfData) for element in elements):
            self._has_heard_end, self._final_tally = True, NOTHING

    @property
    def is_local(self) -> bool:
        """Whether it lies within a task."""
        return self.channel.producer == self.channel.consumer

    def sent_before(self, checkpoint: CheckpointId) -> Tally | None:
        """What the producer says it had sent before the checkpoint's barrier, or in all; None: it has not said so.
        Asked once for each checkpoint: older ones are forgotten."""
        tally = self._tallies.get(checkpoint, self._final_tally)
        self._tallies = {known: other for known, other in self._tallies.items() if known > checkpoint}
        return tally

    def peek(self) -> Element | None:
        """The next element, or None if the queue is empty."""
        return self._queue[0][0] if self._queue else None

    def pop(self) -> Element:
        """Take the next element out. Its bytes are granted to the producer again, when half of the credit is owed or no
        batch is left: a producer that was stopped by a full queue is not woken for each batch."""
        element, size = self._queue.popleft()
        if isinstance(element, Batch):
            self.queued_bytes -= size
            self._batches_of_windows[0] -= 1
            self.rows += element.records.num_rows
            self.batches += 1
            self.consumed += size
            if not self.queued_bytes or self.consumed - self._granted >= self._mark:
                self._granted = self.consumed
                self._reply(Grant(self.channel, self.attempts, self._granted))
        elif ends_window(element):
            self._batches_of_windows.popleft()
            if isinstance(element, EndOfData):
                self._end.move(EndState.DATA_ENDED)
            else:
                self._window += 1
        elif isinstance(element, EndOfPartition):
            self._end.move(EndState.CLOSED)
        return element

    @property
    def window_ends(self) -> bool:
        """Whether no batch stands before the next task barrier, or the end of the data, and that has come."""
        return len(self._batches_of_windows) > 1 and not self._batches_of_windows[0]

    def cancel_input(self, for_good: bool) -> None:
        """Tell the producer that no more rows of this window are needed, or none ever."""
        self._reply(CancelInput(self.channel, self.attempts, self._window, for_good))

    def pause_rounds(self, paused: bool) -> None:
        """Tell the producer whether further rounds should begin."""
        self._reply(PauseRounds(self.channel, self.attempts, paused))

    def acknowledge_end_of_data(self) -> None:
        """Tell the producer that all its records have been processed."""
        self._reply(EndOfDataAck(self.channel, self.attempts))

    def acknowledge_drained(self) -> None:
        """Tell the producer that nothing of its end is on its way any more."""
        self._drained = True
        self._reply(DrainedAck(self.channel, self.attempts))

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        queued = sum(size for element, size in self._queue if isinstance(element, Batch))
        assert self.queued_bytes == queued, f"{self.channel} counts {self.queued_bytes} bytes, {queued} are queued"
        batches = sum(isinstance(element, Batch) for element, _ in self._queue)
        assert sum(self._batches_of_windows) == batches, f"{self.channel} counts batches wrongly, {batches} are queued"
        assert not (self.closed and self._queue), f"{self.channel} is closed and has a queue"

    def __len__(self) -> int:
        return len(self._queue)

"""A gate in front of a barrier handler: queued channels, the items in them, and what the handler's answers do to both.

It does for a handler what the owner must do (``penstock.engine.alignment.protocol``, rules 2 and 3), in memory, and
keeps a record of it. Rules:

1. Each channel is a queue. Announcements, barriers of unaligned checkpoints and cancel markers go to the priority
   queue; an aligned barrier with a timeout that arrives on a *remote* channel is announced there.
2. ``poll`` takes the priority queue first, and then the channel that has been waiting longest. A channel polled, from
   whichever queue, goes to the tail if it still has items. Remote channels that are blocked are skipped.
3. A barrier that the handler wants prioritised moves from its channel to the end of the priority queue.
4. An unaligned snapshot captures, of each channel, the data queued ahead of the channel's barrier; data that arrive
   afterwards, ahead of it, are kept when they arrive. Only those of completed checkpoints count.
5. The handler is validated after every event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.engine.alignment import Aborted, BarrierArrival, BarrierHandler, Outcome, SnapshotMode, Triggered


@dataclass(frozen=True)
class Data:
    """``size`` bytes; ``number`` tells the items of a channel apart."""

    size: int = 0
    number: int = 0


@dataclass(frozen=True)
class BarrierItem:
    """A barrier; ``injected``: by a trigger."""

    barrier: BarrierArrival[int]
    injected: bool = False


@dataclass(frozen=True)
class Announcement:
    """A barrier is queued in the channel."""

    barrier: BarrierArrival[int]


@dataclass(frozen=True)
class Cancel:
    """A cancel marker."""

    checkpoint: int


@dataclass(frozen=True)
class End:
    """The end of the partition."""


Item: TypeAlias = Data | BarrierItem | Announcement | Cancel | End


@dataclass
class BarrierGate:
    """See the module's rules."""

    handler: BarrierHandler[int]
    remote: Sequence[bool]
    now: int = 0
    queues: list[deque[Item]] = field(init=False)
    priority: deque[tuple[int, Item]] = field(default_factory=deque)
    #: channels with items, the one that waits longest first
    waiting: list[int] = field(default_factory=list)
    triggered: list[Triggered[int]] = field(default_factory=list)
    aborted: list[Aborted[int]] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    #: data that were polled, by channel
    processed: list[list[Data]] = field(init=False)
    #: how much was processed of each channel when a snapshot was taken
    cuts: dict[int, list[int]] = field(default_factory=dict)
    #: data queued ahead of the barrier when an unaligned snapshot was taken, by checkpoint and channel
    captured: dict[int, list[list[Data]]] = field(default_factory=dict)
    #: data that arrived later, ahead of the barrier
    kept: dict[int, list[list[Data]]] = field(default_factory=dict)
    #: data that arrived ahead of the barrier, by checkpoint and channel; missing: it has not arrived
    ahead: dict[tuple[int, int], int] = field(default_factory=dict)
    _arrived: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.queues = [deque() for _ in self.remote]
        self.processed = [[] for _ in self.remote]
        self._arrived = [0 for _ in self.remote]

    # ------------------------------------------------------------------ moving items

    def arrive(self, channel: int, item: Item) -> None:
        if isinstance(item, Data):
            self._keep(channel, item)
            self._arrived[channel] += 1
        elif isinstance(item, BarrierItem):
            self.ahead.setdefault((item.barrier.checkpoint, channel), self._arrived[channel])
            if self.remote[channel] and item.barrier.timeout is not None and not item.barrier.unaligned:
                self.priority.append((channel, Announcement(item.barrier)))
        if isinstance(item, Announcement | Cancel) or (isinstance(item, BarrierItem) and item.barrier.unaligned):
            self.priority.append((channel, item))
            return
        if not self.queues[channel]:
            self.waiting.append(channel)
        self.queues[channel].append(item)

    def poll(self) -> Item | None:
        """Take the next item and give it to the handler; None: there is none, or all that have some are blocked."""
        if self.priority:
            channel, item = self.priority.popleft()
        else:
            blocked = self.handler.blocked
            free = (one for one in self.waiting if not (self.remote[one] and one in blocked))
            if (channel := next(free, -1)) < 0:
                return None
            item = self.queues[channel].popleft()
        if channel in self.waiting:
            self.waiting.remove(channel)
        if self.queues[channel]:
            self.waiting.append(channel)
        self.handle(channel, item)
        return item

    def deliver(self, channel: int, item: Item) -> None:
        """Let it arrive, then poll as long as there is something to poll, of any channel."""
        self.arrive(channel, item)
        while self.poll() is not None:
            pass

    def handle(self, channel: int, item: Item) -> None:
        """Give the item to the handler, past all queues."""
        match item:
            case Data():
                self.processed[channel].append(item)
                self.handler.read(item.size)
            case BarrierItem():
                self._apply(self.handler.barrier(channel, item.barrier, self.now, injected=item.injected))
            case Announcement():
                self._apply(self.handler.announcement(channel, item.barrier, self.now))
            case Cancel():
                self._apply(self.handler.cancel(channel, item.checkpoint))
            case End():
                self._apply(self.handler.end(channel, self.now))
        self.handler.validate()

    def fire(self) -> None:
        """Run the timer if it is due."""
        self._apply(self.handler.fire(self.now))
        self.handler.validate()

    def abort(self, checkpoint: int) -> None:
        """The coordinator gave the checkpoint up."""
        self._apply(self.handler.abort(checkpoint))
        self.handler.validate()

    # ------------------------------------------------------------------ what the handler's answers do

    def _apply(self, outcome: Outcome[int]) -> None:
        self.aborted += outcome.aborted
        for channel in outcome.prioritised:
            self._prioritise(channel)
        if outcome.triggered is not None:
            self._snapshot(outcome.triggered)
        if outcome.completed is not None:
            self.completed.append(outcome.completed)

    def _prioritise(self, channel: int) -> None:
        queue = self.queues[channel]
        found = next((one for one in queue if _is_barrier(one, self.handler.latest)), None)
        if found is not None:
            queue.remove(found)
            self.priority.append((channel, found))
            if not queue:
                self.waiting.remove(channel)

    def _snapshot(self, triggered: Triggered[int]) -> None:
        self.triggered.append(triggered)
        self.cuts[triggered.checkpoint] = [len(items) for items in self.processed]
        if triggered.mode is SnapshotMode.UNALIGNED:
            channels = range(len(self.remote))
            self.captured[triggered.checkpoint] = [self._overtaken(triggered.checkpoint, one) for one in channels]
            self.kept[triggered.checkpoint] = [[] for _ in channels]

    def _overtaken(self, checkpoint: int, channel: int) -> list[Data]:
        queued = [item for item in self.queues[channel] if isinstance(item, Data)]
        behind = self._arrived[channel] - self.ahead.get((checkpoint, channel), self._arrived[channel])
        return queued[: max(len(queued) - behind, 0)]

    def _keep(self, channel: int, item: Data) -> None:
        checkpoint = self.handler.persists(channel)
        if checkpoint is not None and (checkpoint, channel) not in self.ahead:
            self.kept[checkpoint][channel].append(item)


def _is_barrier(item: Item, checkpoint: int | None) -> bool:
    return isinstance(item, BarrierItem) and item.barrier.checkpoint == checkpoint

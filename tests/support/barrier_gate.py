"""A gate in front of a barrier handler: queued channels, the items in them, and what the handler's answers do to both.

It does for a handler what the owner must do (``penstock.engine.alignment.protocol``), in memory, and keeps a record of
it. Rules:

1. Each channel is a queue. Barriers that pass at once, and cancel markers, go to the priority queue.
2. ``poll`` takes the priority queue first, and then the channel that has been waiting longest. A channel polled, from
   whichever queue, goes to the tail if it still has items. Channels that are blocked are skipped.
3. A cut captures, of each channel, the data queued ahead of the channel's barrier; data that arrive afterwards, ahead
   of it, are kept when they arrive. Only those of completed checkpoints count.
4. The handler is validated after every event.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.engine.alignment import Aborted, AbortReason, AlignedHandler, AlignmentTimes, BarrierArrival, Outcome
from penstock.engine.core.elements import Barrier
from penstock.engine.core.identity import BarrierKind
from penstock.engine.runtime.task_cut import BarrierMeaning, CutPhase, TaskCut


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
class Cancel:
    """A cancel marker."""

    checkpoint: int


@dataclass(frozen=True)
class End:
    """The end of the partition."""


Item: TypeAlias = Data | BarrierItem | Cancel | End


class AtOnce:
    """Barriers that pass at once, handled by ``TaskCut``: the task cuts in the moment in which it is asked to. Such
    barriers have no cancel markers."""

    blocked = frozenset[int]()

    def __init__(self, channels: int) -> None:
        self.cut = TaskCut(range(channels))
        self.open = set(range(channels))
        self.latest: int | None = None
        self.times = AlignmentTimes()

    @property
    def pending(self) -> bool:
        return self.cut.phase is not CutPhase.NONE

    def barrier(
        self, channel: int, barrier: BarrierArrival[int], now: float, *, injected: bool = False
    ) -> Outcome[int]:
        came = Barrier(barrier.checkpoint, BarrierKind.CHECKPOINT, barrier.created, unaligned=True)  # type: ignore[arg-type]
        found: BarrierMeaning = self.cut.order(came) if injected else self.cut.arrive(channel, came)
        aborted = () if found.gives_up is None else (Aborted(found.gives_up, AbortReason.SUBSUMED),)
        if found.asks:
            self.latest = barrier.checkpoint
            self.cut.take()
        return Outcome(aborted, barrier.checkpoint if found.asks else None)  # type: ignore[arg-type]

    def persists(self, channel: int) -> int | None:
        """The checkpoint that records what arrives on the channel."""
        return self.latest if channel in self.cut.waits_for else None

    def cancel(self, channel: int, checkpoint: int) -> Outcome[int]:
        raise AssertionError("no marker goes along with barriers that pass at once")

    def abort(self, checkpoint: int) -> Outcome[int]:
        given_up = self.cut.abort(checkpoint)  # type: ignore[arg-type]
        return Outcome(() if given_up is None else (Aborted(given_up, AbortReason.NOTIFIED),))  # type: ignore[arg-type]

    def end(self, channel: int, now: float) -> Outcome[int]:
        self.open.discard(channel)
        self.cut.end(channel)
        return Outcome()

    def read(self, size: int) -> None:
        """Nobody counts it."""

    def validate(self) -> None:
        self.cut.validate()


@dataclass
class BarrierGate:
    """See the module's rules."""

    handler: AlignedHandler[int] | AtOnce
    channels: int
    now: int = 0
    queues: list[deque[Item]] = field(init=False)
    priority: deque[tuple[int, Item]] = field(default_factory=deque)
    #: channels with items, the one that waits longest first
    waiting: list[int] = field(default_factory=list)
    triggered: list[int] = field(default_factory=list)
    aborted: list[Aborted[int]] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    #: data that were polled, by channel
    processed: list[list[Data]] = field(init=False)
    #: how much was processed of each channel when a snapshot was taken
    cuts: dict[int, list[int]] = field(default_factory=dict)
    #: data queued ahead of the barrier when the task cut, by checkpoint and channel
    captured: dict[int, list[list[Data]]] = field(default_factory=dict)
    #: data that arrived later, ahead of the barrier
    kept: dict[int, list[list[Data]]] = field(default_factory=dict)
    #: data that arrived ahead of the barrier, by checkpoint and channel; missing: it has not arrived
    ahead: dict[tuple[int, int], int] = field(default_factory=dict)
    _arrived: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.queues = [deque() for _ in range(self.channels)]
        self.processed = [[] for _ in range(self.channels)]
        self._arrived = [0 for _ in range(self.channels)]

    # ------------------------------------------------------------------ moving items

    def arrive(self, channel: int, item: Item) -> None:
        if isinstance(item, Data):
            self._keep(channel, item)
            self._arrived[channel] += 1
        elif isinstance(item, BarrierItem):
            self.ahead.setdefault((item.barrier.checkpoint, channel), self._arrived[channel])
        if isinstance(item, Cancel) or (isinstance(item, BarrierItem) and isinstance(self.handler, AtOnce)):
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
            channel = next((one for one in self.waiting if one not in self.handler.blocked), -1)
            if channel < 0:
                return None
            item = self.queues[channel].popleft()
        if channel in self.waiting:
            self.waiting.remove(channel)
        if self.queues[channel]:
            self.waiting.append(channel)
        self.handle(channel, item)
        return item

    def handle(self, channel: int, item: Item) -> None:
        """Give the item to the handler, past all queues."""
        was_pending = self.handler.pending
        match item:
            case Data():
                self.processed[channel].append(item)
                self.handler.read(item.size)
            case BarrierItem():
                self._apply(self.handler.barrier(channel, item.barrier, self.now, injected=item.injected), was_pending)
            case Cancel():
                self._apply(self.handler.cancel(channel, item.checkpoint), was_pending)
            case End():
                self._apply(self.handler.end(channel, self.now), was_pending)
        self.handler.validate()

    def abort(self, checkpoint: int) -> None:
        """The coordinator gave the checkpoint up."""
        self._apply(self.handler.abort(checkpoint), self.handler.pending)
        self.handler.validate()

    # ------------------------------------------------------------------ what the handler's answers do

    def _apply(self, outcome: Outcome[int], was_pending: bool) -> None:
        self.aborted += outcome.aborted
        if outcome.triggered is not None:
            self._snapshot(outcome.triggered)
        over = not self.handler.pending and (outcome.triggered is not None or (was_pending and not outcome.aborted))
        if over and self.handler.latest is not None:
            self.completed.append(self.handler.latest)

    def _snapshot(self, triggered: int) -> None:
        self.triggered.append(triggered)
        self.cuts[triggered] = [len(items) for items in self.processed]
        if isinstance(self.handler, AtOnce):
            self.captured[triggered] = [self._passed(triggered, one) for one in range(self.channels)]
            self.kept[triggered] = [[] for _ in range(self.channels)]

    def _passed(self, checkpoint: int, channel: int) -> list[Data]:
        queued = [item for item in self.queues[channel] if isinstance(item, Data)]
        behind = self._arrived[channel] - self.ahead.get((checkpoint, channel), self._arrived[channel])
        return queued[: max(len(queued) - behind, 0)]

    def _keep(self, channel: int, item: Data) -> None:
        checkpoint = self.handler.persists(channel) if isinstance(self.handler, AtOnce) else None
        if checkpoint is not None and (checkpoint, channel) not in self.ahead:
            self.kept[checkpoint][channel].append(item)

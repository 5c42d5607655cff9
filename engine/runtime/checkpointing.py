"""A driver's part of a checkpoint: waits for barriers, cuts, and keeps what they overtake (``alignment`` decides).
At the end of the module the task's part: it joins what its drivers say (:class:`TaskCheckpoints`).

Rules:

1. A cut is taken between two elements: what is under way in the chain comes to its end first, all pieces of it, and so
   does what an operator has under way elsewhere. Then the operators' state is taken, sinks flush, and the barrier goes
   out, all at once.
2. *Aligned*: a channel is not read behind its barrier before all have come, so nothing is in flight across the cut.
3. *Unaligned* (where ``Overtaking`` allows it): the barrier is taken out of its channel's queue. The cut is at the
   first one. What stood before the barriers, or still comes before them, is processed and recorded; what the driver
   has made and not sent is recorded, too, and the barrier goes ahead of it. Savepoints are never unaligned.
4. The cut is told when everything from before it is written *and* all barriers have come. If it is given up before
   that, what was recorded is dropped; what sinks prepared is told all the same.
5. A timeout runs from when the first barrier came to this driver, by its own clock: clocks of others differ. What has
   been cut is not turned any more, so a barrier that waits behind unsent batches then keeps its place.
6. The cut is that of the checkpoint that the handler names, and goes under that checkpoint's barrier. A barrier that is
   read later may be of an older one, which was given up while it stood in its queue: that one means nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from ..alignment import AlignedHandler, AlternatingHandler, BarrierArrival, Outcome, SnapshotMode, Triggered
from ..alignment.single import SingleCheckpointHandler
from ..core.elements import Barrier, Batch, CancelBarrier, Element
from ..core.errors import PenstockError
from ..core.identity import Account, BarrierKind, CheckpointId, Committable, EndedLanes, Holds, later_round
from ..exchange.channel_state import ChannelPart, channel_table
from ..exchange.channels import InputChannel, ResultPartition
from ..exchange.flight import Flight
from ..planner.overtaking import Overtaking
from ..sources.reader import SplitReader
from ..state.write_behind import WriteBehind
from . import orders
from .continuations import Continuations
from .input_ports import NO_FEEDS, Ports
from .ledger import SnapshotLedger
from .operator_chain import OperatorChain
from .statistics import OperatorWindow

# ------------------------------------------------------------------ driver host
#
# What a driver tells its task, and in which form.


class DriverSnapshot(msgspec.Struct, frozen=True):
    """What a driver was at the cut of a checkpoint. ``tables``: operator id to state; ``ended``: for which lanes its
    operators have finished; ``channels``: what ``unaligned`` barriers have overtaken; ``alignment``: seconds from the
    first barrier to the last, in which ``processed_bytes`` of batches were read; ``ledger``: what came in and went out,
    up to the cut."""

    barrier: Barrier
    tables: dict[str, pa.Table]
    data_ended: bool
    ended: tuple[EndedLanes, ...] = ()
    unaligned: bool = False
    channels: tuple[ChannelPart, ...] = ()
    alignment: float = 0.0
    processed_bytes: int = 0
    ledger: tuple[Account, ...] = ()


class DriverView(Protocol):
    """A driver, as its host sees it."""

    @property
    def name(self) -> str: ...

    @property
    def readers(self) -> Sequence[SplitReader]: ...


class DriverHost(Protocol):
    """What a driver tells its task, on the thread that runs the driver."""

    def barrier_arrived(self, driver: DriverView, barrier: Barrier) -> None:
        """A checkpoint's barrier has come to the driver."""

    def prepared(self, driver: DriverView, cut: DriverSnapshot, committables: list[Committable]) -> None:
        """All barriers of a checkpoint have come, and everything from before its cut is written."""

    def committables_left(self, driver: DriverView, checkpoint: CheckpointId, committables: list[Committable]) -> None:
        """The driver gave a checkpoint up after its cut; this is what its sinks had prepared by then."""

    def drained(self, driver: DriverView, barrier: CheckpointId, window: Sequence[OperatorWindow]) -> None:
        """The same for a task barrier, when the driver's operators have drained."""

    def rounds_proposed(self, driver: DriverView, checkpoint: CheckpointId, rounds: Sequence[int]) -> None:
        """The driver's sources will stand at the end of these rounds."""

    def checkpoint_aborted(self, driver: DriverView, checkpoint: CheckpointId) -> None:
        """The driver gave the checkpoint up, because a newer one began or a cancel marker came."""

    def steered(self, driver: DriverView, order: orders.Steer, possible: int | None) -> None:
        """The order is carried out; ``possible``: the first limit that it might have had."""

    def end_advanced(self, driver: DriverView) -> None:
        """The driver has come further towards its end: its data, an input or the records of a consumer have ended."""

    def closed(self, driver: DriverView, errors: Sequence[PenstockError]) -> None:
        """The driver's operators are closed; ``errors``: what they raised."""


class CheckpointedDriver(DriverView, Protocol):
    """What a checkpoint needs of its driver."""

    host: DriverHost
    chain: OperatorChain
    ports: Ports
    pending: deque[Element]
    continuations: Continuations
    writing: WriteBehind
    now: float

    @property
    def partitions(self) -> Sequence[ResultPartition]: ...

    @property
    def data_ended(self) -> bool: ...

    @property
    def clock(self) -> Callable[[], float]: ...


@dataclass(slots=True, eq=False)
class _PendingSnapshot:
    """A cut that is not told yet."""

    cut: DriverSnapshot
    ledger: SnapshotLedger
    #: what barriers have overtaken, by feed, and what was not sent
    inputs: dict[int, list[Batch]] = field(default_factory=dict)
    outputs: list[Batch] = field(default_factory=list)
    #: feeds whose barrier has not come
    recording: set[int] = field(default_factory=set)
    committables: list[Committable] | None = None
    sinks: tuple[Account, ...] = ()
    #: all barriers have come
    complete: bool = False
    aborted: bool = False


class Checkpointing:
    """See the module's rules."""

    def __init__(self, driver: CheckpointedDriver, overtaking: Overtaking) -> None:
        self._driver = driver
        self._overtaking = overtaking
        self._feeds = driver.ports.feeds
        self.overtakes = overtaking.exchange is not None
        channels = len(self._feeds)
        self.handler: SingleCheckpointHandler[CheckpointId] = (
            AlternatingHandler(channels) if self.overtakes else AlignedHandler(channels)
        )
        #: the feeds that must not be read now
        self.blocked = self.handler.blocked
        #: the barriers that were seen of checkpoints that are not over, by checkpoint (rule 6)
        self._seen: dict[CheckpointId, Barrier] = {}
        #: the newest one that came anywhere in the task
        self._in_task: Barrier | None = None
        #: feeds whose barrier is to be handled out of turn, with its checkpoint
        self._urgent: dict[int, CheckpointId] = {}
        #: the checkpoint that is ordered of a source, and when its barrier overtakes; None: it does not
        self._source_due: tuple[CheckpointId, float] | None = None
        #: the unaligned cut whose barriers have not all come, and the checkpoint whose barriers had last
        self._open: _PendingSnapshot | None = None
        self._completed: CheckpointId | None = None
        #: task barriers for which the operators have drained, or drain, and which have not been sent
        self.drains = 0
        if overtaking.exchange:
            for number, feed in enumerate(self._feeds):
                if isinstance(feed, InputChannel):
                    feed.on_element = partial(self._arrived, number)

    # ------------------------------------------------------------------ what the driver asks

    @property
    def behind(self) -> set[int]:
        """The feeds that stand behind a task barrier: what they say next belongs to the next window."""
        return self.handler.blocked if self.handler.blocked and self.drains_next else NO_FEEDS

    @property
    def drains_next(self) -> bool:
        """Whether the pending barrier is a task barrier."""
        latest = self.handler.latest
        return self.handler.pending and latest is not None and self._seen[latest].kind is BarrierKind.DRAIN

    @property
    def deadline(self) -> float | None:
        """When something is due by itself."""
        deadline = self.handler.next_deadline
        return deadline if self._source_due is None or deadline is not None else self._source_due[1]

    @property
    def is_due(self) -> bool:
        """Whether something is to be handled out of turn, as soon as the driver is between two elements."""
        if self._urgent:
            return True
        deadline = self.deadline
        return deadline is not None and deadline <= self._driver.now

    def read(self, size: int) -> None:
        """A batch was read while barriers are waited for."""
        self.handler.read(size)

    # ------------------------------------------------------------------ what comes

    def barrier(self, feed: int, barrier: Barrier) -> None:
        """A barrier was read in its turn."""
        if self._urgent.get(feed) == barrier.checkpoint:
            del self._urgent[feed]
        self._not_due(barrier.checkpoint)
        self._count(feed, barrier, [])

    def cancel(self, checkpoint: CheckpointId) -> None:
        """A cancel marker was read."""
        self._act(self.handler.cancel(0, checkpoint))

    def end(self, feed: int) -> None:
        """The partition of a feed has ended."""
        self._act(self.handler.end(feed, self._driver.now))
        if self._in_task is not None:
            self.join(self._in_task)

    def abort(self, checkpoint: CheckpointId) -> None:
        """The coordinator gave the checkpoint up."""
        self._urgent = {feed: known for feed, known in self._urgent.items() if known > checkpoint}
        self._not_due(checkpoint)
        self._act(self.handler.abort(checkpoint))

    def inject(self, barrier: Barrier, feeds: Sequence[int]) -> None:
        """A trigger reached a driver whose upstream tasks have all finished: count the channels of ``feeds`` (numbers
        among all feeds) as if their barrier had come. Nothing but the end of their partition can still be in them. If
        even that is out there is nothing to count: the last cut was before the end of the data, which the barrier had
        overtaken."""
        self.join(barrier)
        for feed in feeds:
            if feed in self.handler.open:
                self._see(barrier)
                arrival = self._arrival(barrier)
                self._act(self.handler.barrier(feed, arrival, self._driver.now, injected=True))

    def join(self, barrier: Barrier) -> None:
        """A barrier has come elsewhere in the task. A driver whose inputs are all closed gets it from nobody else."""
        if self._in_task is None or barrier.checkpoint > self._in_task.checkpoint:
            self._in_task = barrier
        barrier, latest = self._in_task, self.handler.latest
        if self.handler.open or (latest is not None and barrier.checkpoint <= latest):
            return
        self._see(barrier)
        self.handler.abort(barrier.checkpoint)  # it is known from now on
        mode = SnapshotMode.UNALIGNED if self._arrival(barrier).unaligned else SnapshotMode.ALIGNED
        self._act(Outcome(triggered=Triggered(barrier.checkpoint, mode), completed=barrier.checkpoint))

    def ordered(self, barrier: Barrier) -> None:
        """The driver's source was told to place a barrier."""
        if self.overtakes and barrier.unaligned:
            self._urgent[0] = barrier.checkpoint
        elif self.overtakes and barrier.timeout is not None:
            self._source_due = barrier.checkpoint, self._driver.now + barrier.timeout

    def _arrived(self, feed: int, element: Element) -> None:
        """An element has come into the queue of a feed."""
        found = self._open
        if isinstance(element, Barrier):
            if found is not None and element.checkpoint >= found.cut.barrier.checkpoint:
                found.recording.discard(feed)
            if element.unaligned:
                self._urgent[feed] = element.checkpoint
            elif element.timeout is not None:
                self._see(element)
                self._act(self.handler.announcement(feed, self._arrival(element), self._driver.now))
        elif found is not None and feed in found.recording and isinstance(element, Batch):
            found.inputs.setdefault(feed, []).append(element)

    def overtake(self) -> None:
        """Handle what is due out of turn. Only between two elements."""
        if self.handler.next_deadline is not None:
            self._act(self.handler.fire(self._driver.now))
        if self._source_due is not None and self._source_due[1] <= self._driver.now:
            self._urgent[0], self._source_due = self._source_due[0], None
        while self._urgent:
            number, checkpoint = self._urgent.popitem()
            feed = self._feeds[number]
            if isinstance(feed, InputChannel):
                passed, _ = feed.queued_before(checkpoint)
                barrier = feed.overtake(checkpoint)
            else:
                assert isinstance(feed, SplitReader)
                passed, barrier = [], feed.overtake(checkpoint)
            if barrier is not None:
                self._count(number, replace(barrier, unaligned=True), passed)

    # ------------------------------------------------------------------ what follows from it

    def _arrival(self, barrier: Barrier) -> BarrierArrival[CheckpointId]:
        unaligned, timeout = barrier.unaligned and self.overtakes, barrier.timeout
        return BarrierArrival(barrier.checkpoint, self._driver.now, unaligned, timeout)

    def _see(self, barrier: Barrier) -> None:
        """Keep the barrier until its checkpoint is over; those of older ones mean nothing any more."""
        latest = self.handler.latest
        if latest is None or barrier.checkpoint >= latest:
            self._seen = {known: each for known, each in self._seen.items() if latest is None or known >= latest}
            self._seen[barrier.checkpoint] = barrier

    def _not_due(self, checkpoint: CheckpointId) -> None:
        """The checkpoint's barrier is placed, or given up, and with it older ones."""
        if self._source_due is not None and self._source_due[0] <= checkpoint:
            self._source_due = None

    def _count(self, feed: int, barrier: Barrier, passed: list[Batch]) -> None:
        self._see(barrier)
        self._act(self.handler.barrier(feed, self._arrival(barrier), self._driver.now), {feed: passed})

    def _act(self, outcome: Outcome[CheckpointId], passed: dict[int, list[Batch]] | None = None) -> None:
        barrier = None if outcome.triggered is None else self._seen[outcome.triggered.checkpoint]
        self.drains += barrier is not None and barrier.kind is BarrierKind.DRAIN
        for feed in outcome.prioritised:
            assert self.handler.latest is not None, "somebody announced it"
            self._urgent[feed] = self.handler.latest
        if outcome.completed is not None:
            self._completed, found = outcome.completed, self._open
            if found is not None and found.cut.barrier.checkpoint == outcome.completed:
                self._complete(found)
        if outcome.aborted or barrier is not None:
            drains = not outcome.aborted and barrier is not None and barrier.kind is BarrierKind.DRAIN
            self._driver.continuations.add(self._snapshot_at(outcome, barrier, passed or {}), may_pass=drains)

    def _snapshot_at(
        self, outcome: Outcome[CheckpointId], barrier: Barrier | None, passed: dict[int, list[Batch]]
    ) -> Iterator[None]:
        driver = self._driver
        for each in outcome.aborted:
            driver.pending.append(CancelBarrier(each.checkpoint))
            self._abort_pending(each.checkpoint)
            driver.host.checkpoint_aborted(driver, each.checkpoint)
        if barrier is None or outcome.triggered is None:
            return
        if barrier.kind is BarrierKind.DRAIN:
            yield from self._drain(barrier)
            return
        unaligned = outcome.triggered.mode is SnapshotMode.UNALIGNED
        if self.overtakes:
            barrier = replace(barrier, unaligned=unaligned)
        ended = driver.chain.ended(driver.data_ended)
        tables = self.snapshot()
        ledger = SnapshotLedger(driver.ports.all, driver.chain.sinks, tables)
        found = _PendingSnapshot(DriverSnapshot(barrier, tables, driver.data_ended, ended, unaligned), ledger)
        if unaligned:
            self._record(found, passed)
        self._send(found, barrier)
        driver.chain.flush(barrier.checkpoint)
        if self._completed == barrier.checkpoint:
            self._complete(found)
        else:
            self._open = found
        driver.writing.then(partial(self._written, found))

    def _drain(self, barrier: Barrier) -> Iterator[None]:
        driver, window = self._driver, list[OperatorWindow]()
        yield from driver.chain.drain(driver.clock, window)
        driver.pending.append(barrier)
        driver.host.drained(driver, barrier.checkpoint, window)
        driver.ports.begin_window()

    def _record(self, found: _PendingSnapshot, passed: dict[int, list[Batch]]) -> None:
        """Keep what stands in the queues ahead of the barriers, and go on with what comes there."""
        checkpoint = found.cut.barrier.checkpoint
        found.inputs = {feed: list(batches) for feed, batches in passed.items() if batches}
        for number, feed in enumerate(self._feeds):
            if self.handler.persists(number) == checkpoint and isinstance(feed, InputChannel):
                batches, has_come = feed.queued_before(checkpoint)
                if batches:
                    found.inputs[number] = batches
                if not has_come:
                    found.recording.add(number)

    def _send(self, found: _PendingSnapshot, barrier: Barrier) -> None:
        """Put the barrier behind what was made before it, or, if it may overtake that, ahead of it."""
        driver = self._driver
        if not found.cut.unaligned or self._overtaking.output is None:
            driver.pending.append(barrier)
            return
        found.outputs = [element for element in driver.pending if isinstance(element, Batch)]
        for partition in driver.partitions:
            partition.send(barrier)

    def snapshot(self) -> dict[str, pa.Table]:
        """The state of operators and sources, by id, leaving out those that hold nothing."""
        tables = self._driver.chain.snapshot()
        for reader in self._driver.readers:
            tables[reader.operator] = reader.snapshot()
        return tables

    # ------------------------------------------------------------------ the end of a cut

    def _complete(self, found: _PendingSnapshot) -> None:
        times = self.handler.times
        accounts = found.ledger.inputs(found.cut.barrier.checkpoint, found.inputs)
        found.cut = replace(found.cut, alignment=times.duration, processed_bytes=times.processed_bytes, ledger=accounts)
        found.complete = True
        if self._open is found:
            self._open = None
        self._notify_host(found)

    def _abort_pending(self, checkpoint: CheckpointId) -> None:
        if self._open is not None and self._open.cut.barrier.checkpoint <= checkpoint:
            found, self._open = self._open, None
            found.aborted = True
            self._notify_host(found)

    def _written(self, found: _PendingSnapshot) -> None:
        chain, checkpoint = self._driver.chain, found.cut.barrier.checkpoint
        found.committables = chain.prepare(checkpoint)
        found.sinks = found.ledger.outputs()
        found.cut = replace(found.cut, tables=chain.settle(checkpoint, found.cut.tables))
        self._notify_host(found)

    def _notify_host(self, found: _PendingSnapshot) -> None:
        """Tell the host, once (rule 4)."""
        driver, committables = self._driver, found.committables
        if committables is None:
            return
        if found.aborted:
            driver.host.committables_left(driver, found.cut.barrier.checkpoint, committables)
        elif found.complete:
            ledger = (*found.cut.ledger, *found.sinks)
            driver.host.prepared(driver, replace(found.cut, channels=self._parts(found), ledger=ledger), committables)

    def _parts(self, found: _PendingSnapshot) -> tuple[ChannelPart, ...]:
        inputs = channel_table((feed, found.inputs[feed]) for feed in sorted(found.inputs))
        outputs = channel_table([(0, found.outputs)])
        parts = []
        if inputs is not None:
            assert self._overtaking.exchange, "only channels of an exchange are overtaken"
            parts.append(ChannelPart(self._overtaking.exchange, Holds.INPUT, inputs))
        if outputs is not None:
            assert self._overtaking.output is not None, "only what goes to exchanges is overtaken"
            parts.append(ChannelPart(self._overtaking.output, Holds.OUTPUT, outputs))
        return tuple(parts)


# ------------------------------------------------------------------ windowed checkpointing
#
# A driver's part of barriers where task barriers and those of checkpoints come one after the other.
#
# Rules:
#
# 1. Both kinds take their ids from one sequence, and stand in every channel in the order of their ids.
# 2. A checkpoint that is given up must not take a task barrier along: nobody gives those up, and one with a smaller id
#    may still be on its way here when the order comes. So such an order voids the checkpoints' barriers to come, and
#    touches an alignment only if that is for a checkpoint.
# 3. How long each input stood behind a task barrier is told with the window.


class WindowedCheckpointing(Checkpointing):
    """See the rules above. Nothing overtakes here."""

    def __init__(self, driver: CheckpointedDriver, overtaking: Overtaking) -> None:
        super().__init__(driver, overtaking)
        #: barriers of checkpoints up to this one mean nothing
        self._void: CheckpointId | None = None
        #: when the task barrier came on each feed
        self._came: dict[int, float] = {}

    def barrier(self, feed: int, barrier: Barrier) -> None:
        """A barrier was read in its turn."""
        if barrier.kind is BarrierKind.DRAIN:
            self._came[feed] = self._driver.clock()
        elif self._void is not None and barrier.checkpoint <= self._void:
            return
        super().barrier(feed, barrier)

    def abort(self, checkpoint: CheckpointId) -> None:
        """The coordinator gave the checkpoint up (rule 2)."""
        self._void = checkpoint if self._void is None else max(self._void, checkpoint)
        pending = self.handler.latest if self.handler.pending else None
        if pending is not None and pending <= checkpoint and not self.drains_next:
            super().abort(pending)

    def _drain(self, barrier: Barrier) -> Iterator[None]:
        driver, window = self._driver, list[OperatorWindow]()
        came, self._came = self._came, {}
        last = max(came.values(), default=0.0)
        yield from driver.chain.drain(driver.clock, window)
        if window:
            waits = tuple((self._input(feed), last - at) for feed, at in sorted(came.items()))
            window[0] = replace(window[0], waits=waits)
        driver.pending.append(barrier)
        driver.host.drained(driver, barrier.checkpoint, window)
        driver.ports.begin_window()

    def _input(self, feed: int) -> str:
        found = self._feeds[feed]
        if isinstance(found, SplitReader):
            return found.operator
        assert isinstance(found, InputChannel)
        return f"{found.channel.edge} from {found.channel.producer}"


class TaskSnapshot(msgspec.Struct, frozen=True):
    """What one task adds to a checkpoint. ``tables``: operator id to state; ``data_ended``: it is a final one;
    ``finished_on_restore``: the task's operators had finished before it was built, and ``tables`` are left out;
    ``flight``: of a task that cuts as a whole; ``synchronous``: seconds in which no driver ran because of it; the rest
    is as in a driver's ``DriverSnapshot``, of all drivers together."""

    tables: dict[str, pa.Table]
    committables: tuple[Committable, ...]
    data_ended: bool
    channels: tuple[ChannelPart, ...] = ()
    unaligned: bool = False
    alignment: float = 0.0
    processed_bytes: int = 0
    ended: tuple[EndedLanes, ...] = ()
    finished_on_restore: bool = False
    ledger: tuple[Account, ...] = ()
    flight: Flight | None = None
    synchronous: float = 0.0


class TaskCheckpoints:
    """What a task knows of its checkpoints: what its drivers have snapshotted, what its sinks have prepared. Pure.

    ``drivers``: how many there are; ``timeout``: of the alignment (``JobPlan``); ``finished``: before the task was
    built, so that its state is carried on by others. Rules:

    1. Orders for a checkpoint that is older than the newest one, or was given up, are late and change nothing.
    2. What sinks prepared stays until a commit covers it: if its checkpoint was given up, the next one carries it.
    3. The final checkpoint is the first complete one whose drivers had all ended their data.
    """

    def __init__(self, drivers: int, timeout: float | None = None, *, finished: bool = False) -> None:
        self._drivers = drivers
        self._finished = finished
        self._timeout = timeout
        #: the cuts of checkpoints that some drivers have reached, by the driver's name
        self._pending: dict[CheckpointId, dict[str, DriverSnapshot]] = {}
        #: what sinks prepared, by checkpoint, and no commit has covered yet
        self._prepared: dict[CheckpointId, list[Committable]] = {}
        #: the newest checkpoint that was triggered
        self._newest: CheckpointId | None = None
        #: the newest one whose barrier has come to any driver
        self._arrived: CheckpointId | None = None
        self._aborted: CheckpointId | None = None
        #: the checkpoint that was proposed last, and the rounds in which sources stand
        self._proposed: CheckpointId | None = None
        self._rounds: list[int] = []
        self._final: CheckpointId | None = None
        #: the final checkpoint, or a later one, has been committed
        self.final_committed = False

    def is_late(self, checkpoint: CheckpointId) -> bool:
        """Whether an order for the checkpoint comes too late, or again."""
        if self._aborted is not None and checkpoint <= self._aborted:
            return True
        return self._newest is not None and checkpoint <= self._newest

    def propose(self, checkpoint: CheckpointId) -> None:
        """The sources are asked for their rounds."""
        self._proposed, self._rounds = checkpoint, []

    def proposed(self, checkpoint: CheckpointId, rounds: Sequence[int], sources: int) -> int | None:
        """Some have answered; the task's round when all ``sources`` have."""
        if self._proposed != checkpoint:
            return None
        self._rounds += rounds
        return later_round(*self._rounds) if len(self._rounds) == sources else None

    def order(
        self, checkpoint: CheckpointId, kind: BarrierKind, at: float, *, unaligned: bool = False
    ) -> Barrier | None:
        """The barrier of a checkpoint that is triggered; None if that comes too late. Savepoints are aligned, unless
        the task is told to cut as a whole (``unaligned``)."""
        if self.is_late(checkpoint):
            return None
        self._newest = checkpoint
        timeout = self._timeout if kind is BarrierKind.CHECKPOINT else None
        return Barrier(checkpoint, kind, at, unaligned=unaligned or timeout == 0, timeout=timeout or None)

    def arrives_first(self, checkpoint: CheckpointId) -> bool:
        """A barrier has come to a driver; whether none of this checkpoint, or of a later one, had come to any."""
        if self._arrived is not None and checkpoint <= self._arrived:
            return False
        self._arrived = checkpoint
        return True

    def add(self, driver: str, cut: DriverSnapshot, committables: list[Committable]) -> TaskSnapshot | None:
        """A driver has snapshotted; the whole task's snapshot if it was the last one."""
        checkpoint = cut.barrier.checkpoint
        self.keep(checkpoint, committables)
        if self._aborted is not None and checkpoint <= self._aborted:
            return None
        cuts = self._pending.setdefault(checkpoint, {})
        cuts[driver] = cut
        return self._complete(checkpoint, list(cuts.values())) if len(cuts) == self._drivers else None

    def keep(self, checkpoint: CheckpointId, committables: list[Committable]) -> None:
        """Sinks have prepared something for the checkpoint."""
        self._prepared.setdefault(checkpoint, []).extend(committables)

    def _complete(self, checkpoint: CheckpointId, cuts: Sequence[DriverSnapshot]) -> TaskSnapshot:
        self._pending = {known: other for known, other in self._pending.items() if known > checkpoint}
        data_ended = all(cut.data_ended for cut in cuts)
        if data_ended and self._final is None:
            self._final = checkpoint
        channels = tuple(part for cut in cuts for part in cut.channels)
        in_flight = any(part.holds is Holds.INPUT for part in channels)
        assert not (data_ended and in_flight), "behind the end of its data nothing is on its way to a task"
        covered = sorted(known for known in self._prepared if known <= checkpoint)
        return TaskSnapshot(
            tables={} if self._finished else {id: table for cut in cuts for id, table in cut.tables.items()},
            committables=tuple(committable for known in covered for committable in self._prepared[known]),
            data_ended=data_ended,
            channels=channels,
            unaligned=any(cut.unaligned for cut in cuts),
            alignment=max(cut.alignment for cut in cuts),
            processed_bytes=sum(cut.processed_bytes for cut in cuts),
            ended=tuple(each for cut in cuts for each in cut.ended),
            finished_on_restore=self._finished,
            ledger=tuple(account for cut in cuts for account in cut.ledger),
        )

    def abort(self, checkpoint: CheckpointId) -> None:
        """The coordinator gave the checkpoint up, and with it all older ones."""
        if self._aborted is None or checkpoint > self._aborted:
            self._aborted = checkpoint
        self._pending = {known: cuts for known, cuts in self._pending.items() if known > checkpoint}

    def forget(self, checkpoint: CheckpointId) -> None:
        """A driver gave the checkpoint up."""
        self._pending.pop(checkpoint, None)

    def committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint stands in the log and its committables are visible."""
        self._prepared = {known: found for known, found in self._prepared.items() if known > checkpoint}
        if self._final is not None and checkpoint >= self._final:
            self.final_committed = True

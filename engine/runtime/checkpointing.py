"""A driver's part of a checkpoint by agreement: waits for barriers (``alignment`` decides), cuts, and sends them on.
At the end of the module the task's part: it joins what its drivers say (:class:`TaskCheckpoints`).

Rules:

1. A cut is taken between two elements: what is under way in the chain comes to its end first, all pieces of it, and so
   does what an operator has under way elsewhere. Then the operators' state is taken, sinks flush, and the barrier goes
   out, all at once.
2. A channel is not read behind its barrier before all have come, so nothing is in flight across the cut. Barriers of
   cuts that wait for nothing do not come here: there a task is cut as a whole (``task_cutting``).
3. The cut is told when everything from before it is written.
4. The cut is that of the checkpoint that the handler names, and goes under that checkpoint's barrier. A barrier that is
   read later may be of an older one, which was given up while it stood in its queue: that one means nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from ..alignment import AlignedHandler, BarrierArrival, Outcome
from ..core.elements import Barrier, CancelBarrier, Element
from ..core.errors import PenstockError
from ..core.identity import Account, BarrierKind, CheckpointId, Committable, EndedLanes, later_round
from ..exchange.channels import InputChannel, ResultPartition
from ..exchange.flight import Flight
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
    operators have finished; ``unaligned``: its task was cut as a whole; ``alignment``: seconds from the first barrier
    to the last, in which ``processed_bytes`` of batches were read; ``ledger``: what came in and went out, up to the
    cut."""

    barrier: Barrier
    tables: dict[str, pa.Table]
    data_ended: bool
    ended: tuple[EndedLanes, ...] = ()
    unaligned: bool = False
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


class Checkpointing:
    """See the module's rules."""

    def __init__(self, driver: CheckpointedDriver) -> None:
        self._driver = driver
        self._feeds = driver.ports.feeds
        self.handler: AlignedHandler[CheckpointId] = AlignedHandler(len(self._feeds))
        #: the feeds that must not be read now
        self.blocked = self.handler.blocked
        #: that of the newest checkpoint that any was seen of (rule 4)
        self._newest: Barrier | None = None
        #: the newest one that came anywhere in the task
        self._in_task: Barrier | None = None
        #: task barriers for which the operators have drained, or drain, and which have not been sent
        self.drains = 0

    # ------------------------------------------------------------------ what the driver asks

    @property
    def behind(self) -> set[int]:
        """The feeds that stand behind a task barrier: what they say next belongs to the next window."""
        return self.handler.blocked if self.handler.blocked and self.drains_next else NO_FEEDS

    @property
    def drains_next(self) -> bool:
        """Whether the pending barrier is a task barrier."""
        return self.handler.pending and self._newest is not None and self._newest.kind is BarrierKind.DRAIN

    def read(self, size: int) -> None:
        """A batch was read while barriers are waited for."""
        self.handler.read(size)

    # ------------------------------------------------------------------ what comes

    def barrier(self, feed: int, barrier: Barrier) -> None:
        """A barrier was read in its turn."""
        self._count(feed, barrier)

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
        self._act(self.handler.abort(checkpoint))

    def inject(self, barrier: Barrier, feeds: Sequence[int]) -> None:
        """A trigger reached a driver whose upstream tasks have all finished: count the channels of ``feeds`` (numbers
        among all feeds) as if their barrier had come. Nothing but the end of their partition can still be in them. If
        even that is out there is nothing to count."""
        self.join(barrier)
        for feed in feeds:
            if feed in self.handler.open:
                self._count(feed, barrier, injected=True)

    def join(self, barrier: Barrier) -> None:
        """A barrier has come elsewhere in the task. A driver whose inputs are all closed gets it from nobody else."""
        if self._in_task is None or barrier.checkpoint > self._in_task.checkpoint:
            self._in_task = barrier
        barrier, latest = self._in_task, self.handler.latest
        if self.handler.open or (latest is not None and barrier.checkpoint <= latest):
            return
        self._see(barrier)
        self.handler.abort(barrier.checkpoint)  # it is known from now on
        self._act(Outcome(triggered=barrier.checkpoint))

    # ------------------------------------------------------------------ what follows from it

    def _see(self, barrier: Barrier) -> None:
        """Keep the newest; those of older checkpoints mean nothing any more."""
        latest = self.handler.latest
        if latest is None or barrier.checkpoint >= latest:
            self._newest = barrier

    def _count(self, feed: int, barrier: Barrier, *, injected: bool = False) -> None:
        self._see(barrier)
        arrival = BarrierArrival(barrier.checkpoint, self._driver.now)
        self._act(self.handler.barrier(feed, arrival, self._driver.now, injected=injected))

    def _act(self, outcome: Outcome[CheckpointId]) -> None:
        barrier = None if outcome.triggered is None else self._newest
        self.drains += barrier is not None and barrier.kind is BarrierKind.DRAIN
        if outcome.aborted or barrier is not None:
            drains = not outcome.aborted and barrier is not None and barrier.kind is BarrierKind.DRAIN
            self._driver.continuations.add(self._snapshot_at(outcome, barrier), may_pass=drains)

    def _snapshot_at(self, outcome: Outcome[CheckpointId], barrier: Barrier | None) -> Iterator[None]:
        driver = self._driver
        for each in outcome.aborted:
            driver.pending.append(CancelBarrier(each.checkpoint))
            driver.host.checkpoint_aborted(driver, each.checkpoint)
        if barrier is None:
            return
        if barrier.kind is BarrierKind.DRAIN:
            yield from self._drain(barrier)
            return
        ended = driver.chain.ended(driver.data_ended)
        tables = self.snapshot()
        ledger = SnapshotLedger(driver.ports.all, driver.chain.sinks, tables)
        times = self.handler.times
        cut = DriverSnapshot(
            barrier,
            tables,
            driver.data_ended,
            ended,
            alignment=times.duration,
            processed_bytes=times.processed_bytes,
            ledger=ledger.inputs(barrier.checkpoint, {}),
        )
        driver.pending.append(barrier)
        driver.chain.flush(barrier.checkpoint)
        driver.writing.then(partial(self._written, cut, ledger))

    def _drain(self, barrier: Barrier) -> Iterator[None]:
        driver, window = self._driver, list[OperatorWindow]()
        yield from driver.chain.drain(driver.clock, window)
        driver.pending.append(barrier)
        driver.host.drained(driver, barrier.checkpoint, window)
        driver.ports.begin_window()

    def snapshot(self) -> dict[str, pa.Table]:
        """The state of operators and sources, by id, leaving out those that hold nothing."""
        tables = self._driver.chain.snapshot()
        for reader in self._driver.readers:
            tables[reader.operator] = reader.snapshot()
        return tables

    def _written(self, cut: DriverSnapshot, ledger: SnapshotLedger) -> None:
        """Everything from before the cut is; told, also if the checkpoint was given up meanwhile: what sinks prepared
        belongs to the next one then."""
        chain, checkpoint = self._driver.chain, cut.barrier.checkpoint
        committables = chain.prepare(checkpoint)
        accounts = (*cut.ledger, *ledger.outputs())
        told = replace(cut, tables=chain.settle(checkpoint, cut.tables), ledger=accounts)
        self._driver.host.prepared(self._driver, told, committables)


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
    """See the rules above."""

    def __init__(self, driver: CheckpointedDriver) -> None:
        super().__init__(driver)
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
    ``flight``: of a task that was cut as a whole; ``synchronous``: seconds in which no driver ran because of it; the
    rest is as in a driver's ``DriverSnapshot``, of all drivers together."""

    tables: dict[str, pa.Table]
    committables: tuple[Committable, ...]
    data_ended: bool
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

    ``drivers``: how many there are; ``finished``: before the task was built, so that its state is carried on by others.
    Rules:

    1. Orders for a checkpoint that is older than the newest one, or was given up, are late and change nothing.
    2. What sinks prepared stays until a commit covers it: if its checkpoint was given up, the next one carries it.
    3. The final checkpoint is the first complete one whose drivers had all ended their data.
    """

    def __init__(self, drivers: int, *, finished: bool = False) -> None:
        self._drivers = drivers
        self._finished = finished
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

    def order(self, checkpoint: CheckpointId, kind: BarrierKind, at: float, *, unaligned: bool) -> Barrier | None:
        """The barrier of a checkpoint that is triggered; None if that comes too late. ``unaligned``: the task is to cut
        as a whole."""
        if self.is_late(checkpoint):
            return None
        self._newest = checkpoint
        return Barrier(checkpoint, kind, at, unaligned=unaligned)

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
        covered = sorted(known for known in self._prepared if known <= checkpoint)
        return TaskSnapshot(
            tables={} if self._finished else {id: table for cut in cuts for id, table in cut.tables.items()},
            committables=tuple(committable for known in covered for committable in self._prepared[known]),
            data_ended=data_ended,
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

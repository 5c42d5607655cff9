"""Cuts a task as a whole: stops its drivers, takes all that they are, lets the barrier go out, and lets them go on.

Rules:

1. ``TaskCut`` says when, and what a barrier means. Whoever asks for a cut is in a driver, so the cut is taken by the
   thread that leaves the last driver; nobody who hands messages in ever does it.
2. Before a cut all orders that have come are performed, so what was sent within the task lies in its channels.
3. The barrier goes out on all exchanges ahead of what was made and not sent, which is the driver's state; then all is
   taken, sinks flush, and the drivers go on.
4. A cut is told when all barriers have come, and all is written that sinks flushed. If it is given up before that, what
   they prepared is kept for the next one.
5. A task barrier (of windows) that is being handled is not cut: the cut is taken when it is through.
6. A cut gives up what sources still hold, or have yet to place, for older checkpoints; orders for those that come
   later are late.
7. Drivers do not stand still while one of them spills: the cut is taken when that is over. If another one spills then,
   it is waited for in the pause: else a cut might never come.
8. A task that is over is not cut once one of its drivers has finished: what it has sent was processed, and the end of
   its partitions counts as the barrier. It says which cut was its ``last``: the coordinator waits for the answer to
   that one, and for none to later ones. A driver does not finish before what its sinks flushed for a cut is known to
   be written, so every cut is told.
9. The barrier goes out as soon as it is known that a cut follows the pieces that the drivers are at: on whichever
   thread brings it, in their middle. From then on nothing is sent (``OutputGate``) until the cut, or until its
   checkpoint is over. For that no driver may have finished, nor spill, and there may be no task barriers. What drivers
   begin to spill is waited for in the pause then, and barriers by agreement, which the newer one gives up, are not
   handled. Every driver is told, so all stop at the end of the longest piece.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pyarrow as pa

from ..core.elements import Barrier, Batch, Element
from ..core.identity import Account, CheckpointId, Committable, EndedLanes, Tally, TaskId
from ..exchange.channels import ChannelId, InputChannel, ResultPartition
from ..exchange.flight import Flight, FlightWriter
from ..scheduler.protocol import Query
from . import orders
from .checkpointing import DriverSnapshot
from .driver import Driver, DriverPhase
from .ledger import SnapshotLedger
from .places import DriverPlace, TaskPlace, capture, in_flight, with_recorded
from .statistics import CutStatistics
from .task_cut import BarrierMeaning, CutPhase, TaskCut

_BEFORE_THE_CUT = frozenset({CutPhase.FORWARDED, CutPhase.ASKED})
NAMED = 4
"""So many of the channels are named whose barriers have not come."""


@dataclass(slots=True, eq=False)
class _DriverCut:
    """What one driver was at the cut. ``held``: rows in flight at its gates, by feed; ``committables``: None until
    what its sinks flushed is written."""

    driver: Driver
    place: DriverPlace
    tables: dict[str, pa.Table]
    data_ended: bool
    ended: tuple[EndedLanes, ...]
    ledger: SnapshotLedger
    held: dict[int, list[Batch]]
    sent: dict[int, Tally | None] = field(default_factory=dict)
    recorded: dict[int, list[Element]] = field(default_factory=dict)
    sinks: tuple[Account, ...] | None = None

    def snapshot(self, of: _OpenCut) -> DriverSnapshot:
        """What the driver adds to a cut that is complete."""
        held = {
            feed: [*batches, *(each for each in self.recorded.get(feed, ()) if isinstance(each, Batch))]
            for feed, batches in self.held.items()
        }
        accounts = (*self.ledger.inputs(of.barrier.checkpoint, held, self.sent), *(self.sinks or ()))
        return DriverSnapshot(
            of.barrier,
            self.tables,
            self.data_ended,
            self.ended,
            unaligned=True,
            alignment=(of.completed or of.began) - of.began,
            ledger=accounts,
        )


@dataclass(slots=True, eq=False)
class _OpenCut:
    """A cut that is not told yet."""

    barrier: Barrier
    writer: FlightWriter
    drivers: dict[Driver, _DriverCut]
    began: float
    #: seconds in which no driver ran
    pause: float = 0.0
    #: when the last barrier had come
    completed: float | None = None

    @property
    def is_ready(self) -> bool:
        return self.completed is not None and all(each.sinks is not None for each in self.drivers.values())


Told = Callable[[CheckpointId, Mapping[str, DriverSnapshot], Flight, float], None]


def _nobody(*_: object) -> None:
    """Hears what a task that is closed would be told."""


def _first(channels: Collection[Hashable]) -> tuple[tuple[str, TaskId], ...]:
    """The exchange and the producer of the first of them."""
    found = sorted(each for each in channels if isinstance(each, ChannelId))
    return tuple((each.edge, each.producer) for each in found[:NAMED])


class TaskCutting:
    """See the module's rules. ``outputs``: partitions to other tasks; ``told``: takes what a cut is, and for how many
    seconds no driver ran; ``keep``: what sinks prepared, told or not; ``forwards``: there are no task barriers."""

    def __init__(
        self,
        drivers: Sequence[Driver],
        outputs: Sequence[ResultPartition],
        query: Query,
        told: Told,
        keep: Callable[[CheckpointId, list[Committable]], None],
        failed: Callable[[BaseException], None],
        clock: Callable[[], float],
        lanes: range,
        *,
        forwards: bool,
    ) -> None:
        self._drivers, self._outputs, self._query = drivers, outputs, query
        self._told, self._keep, self._failed, self._clock = told, keep, failed, clock
        self._lanes, self._forwards = lanes, forwards
        self._places = {
            feed: (driver, number)
            for driver in drivers
            for number, feed in enumerate(driver.ports.feeds)
            if isinstance(feed, InputChannel) and not feed.is_local
        }
        for channel in self._places:
            channel.watch = self
        self.lock = threading.Lock()
        for driver in drivers if forwards else ():
            driver.gate = self
        self._machine = TaskCut(channel.channel for channel in self._places)
        #: a pause was asked for and is not over
        self._pausing = False
        #: the newest cut has let drivers go on until something was spilled
        self._waited_for_disk = False
        #: by the clock: when the newest cut was asked for, and when no driver ran any more
        self._began = self._stopped_at = 0.0
        self._open: _OpenCut | None = None
        #: the newest checkpoint that the task was cut for
        self.last: CheckpointId | None = None

    def release(self) -> None:
        """Everything is closed. Of the task, which refers to this, nothing is kept."""
        with self.lock:
            self._drivers, self._outputs, self._open = (), (), None
        self._places = {}
        self._told = self._keep = self._failed = _nobody

    def statistics(self) -> CutStatistics | None:
        """How far the newest cut has come. From any thread."""
        if not self._drivers:
            return None
        with self.lock:
            found, phase = self._open, self._machine.phase
            if phase is CutPhase.NONE and found is None:
                missing = self._machine.live
                return CutStatistics(self._machine.newest, phase, 0.0, _first(missing), len(missing))
            seconds = self._clock() - self._began
            if phase in _BEFORE_THE_CUT or found is None:
                late = tuple(driver.name for driver in self._drivers if driver.cut_waits is not None)
                return CutStatistics(self._machine.newest, CutPhase.ASKED, seconds, late=late)
            missing, cuts = self._machine.waits_for, found.drivers.values()
            unwritten = tuple(cut.driver.name for cut in cuts if cut.sinks is None)
            checkpoint = found.barrier.checkpoint
            return CutStatistics(checkpoint, CutPhase.OPEN, seconds, _first(missing), len(missing), unwritten=unwritten)

    # ------------------------------------------------------------------ barriers that go out

    @property
    def is_shut(self) -> bool:
        """``OutputGate``."""
        return self._machine.is_shut

    def come(self, barrier: Barrier, *, is_order: bool = False) -> None:
        """A barrier has come, of which its driver is told besides, or the order to cut. From any thread."""
        goes_out = False
        try:
            with self.lock:
                goes_out = self._is_sure and self._forward(barrier)
        except BaseException as error:
            self._failed(error)
        for driver in self._drivers if goes_out or is_order else ():
            driver.send(orders.CallBack(partial(self.order, barrier)))

    @property
    def _is_sure(self) -> bool:
        """Whether a cut follows the pieces that drivers are at (rule 9). Under the lock."""
        return self._forwards and (
            self._machine.is_shut
            or all(each.phase.state is not DriverPhase.FINISHED and each.spilling.idle for each in self._drivers)
        )

    def _forward(self, barrier: Barrier) -> bool:
        """Let the barrier go out, unless it has, or means nothing. Under the lock."""
        goes_out = self._machine.forward(barrier)
        if goes_out:
            if self._machine.phase is CutPhase.FORWARDED:
                self._began = self._clock()
            for output in self._outputs:
                if not output.channels[0].closed:
                    output.send(barrier)
        return goes_out

    # ------------------------------------------------------------------ what comes, on threads of drivers

    def order(self, barrier: Barrier) -> None:
        """The trigger, or a barrier that has come to another driver."""
        with self.lock:
            found = self._asked(self._machine.order(barrier), barrier)
        if found.asks:
            self._pause()
        elif self._machine.is_shut:
            self.retry()  # the cut may wait for a driver that gets nowhere now

    def barrier_came(self, channel: InputChannel, barrier: Barrier) -> bool:
        """An unaligned barrier; whether what follows waits."""
        with self.lock:
            found = self._asked(self._machine.arrive(channel.channel, barrier), barrier)
            done = self._heard(channel, found.completes) if found.records_no_more else None
        if found.asks:
            self._pause()
        if done is not None:
            self._tell(done)
        return found.holds

    def _asked(self, found: BarrierMeaning, barrier: Barrier) -> BarrierMeaning:
        """A driver has heard of a barrier, which goes out now if it has not. Under the lock."""
        if found.asks and not self._machine.is_shut:
            self._began = self._clock()
            if self._is_sure:
                self._forward(barrier)
        return found

    def partition_ended(self, channel: InputChannel) -> None:
        """Nothing follows."""
        with self.lock:
            done = self._heard(channel, self._machine.end(channel.channel))
        if done is not None:
            self._tell(done)

    def is_late(self, checkpoint: CheckpointId) -> bool:
        """Whether a cut was asked for, here or upstream, that gives the checkpoint up."""
        return self._machine.is_late(checkpoint)

    def retry(self) -> None:
        """A driver that could not be cut can be now."""
        if self._machine.phase is CutPhase.ASKED:
            self._pause()

    def abort(self, checkpoint: CheckpointId) -> None:
        """The coordinator gave the checkpoint up. From any thread."""
        with self.lock:
            self._machine.abort(checkpoint)
            if self._open is not None and self._open.barrier.checkpoint <= checkpoint:
                self._open = None

    def _heard(self, channel: InputChannel, completes: bool) -> _OpenCut | None:
        """All has come that is in flight on a channel; the cut, if it is ready now. Under the lock."""
        found, channel_has = self._open, channel.recorded
        channel.recorded = None
        if found is None or channel_has is None:
            return None
        driver, number = self._places[channel]
        cut = found.drivers[driver]
        cut.recorded[number] = channel_has
        cut.sent[number] = channel.sent_before(found.barrier.checkpoint)
        if completes:
            found.completed = self._clock()
        return self._if_ready(found)

    def _if_ready(self, found: _OpenCut) -> _OpenCut | None:
        if self._open is not found or not found.is_ready:
            return None
        self._open = None
        return found

    # ------------------------------------------------------------------ the cut

    def _pause(self) -> None:
        with self.lock:
            if self._pausing:
                return
            self._pausing = True
        for driver in self._drivers:
            driver.stops = True
        self._query.pause().add_done_callback(self._stopped)

    def _stopped(self, paused: Future[None]) -> None:
        """No thread is in a driver."""
        self._stopped_at = self._clock()
        try:
            self._cut()
        except BaseException as error:
            self._failed(error)
        finally:
            with self.lock:
                self._pausing = False
            for driver in self._drivers:
                driver.stops = False
                driver.wake()
            self._query.resume()

    def _cut(self) -> None:
        """Cut as often as somebody has asked."""
        while True:
            while sum(driver.take_orders() for driver in self._drivers):
                """Orders of one driver may post others to another."""
            with self.lock:
                barrier = self._machine.barrier if self._machine.phase is CutPhase.ASKED else None
            if barrier is None:
                return
            if any(driver.phase.state is DriverPhase.FINISHED for driver in self._drivers):
                self._pass_by(barrier.checkpoint)
                return
            for channel in self._places:
                while (waits := channel.waits_at) is not None and waits < barrier.checkpoint:
                    channel.go_on_behind(waits)
            is_shut = self._machine.is_shut  # asked once: it may go out at any time
            for driver in self._drivers:
                driver.give_up(barrier.checkpoint)
                if is_shut:
                    driver.continuations.leave_out_barriers()
            if late := [] if is_shut else self._late():
                for driver in late:
                    driver.cut_waits = self.retry
                return
            self._waited_for_disk = False
            self._take(barrier)

    def _pass_by(self, checkpoint: CheckpointId) -> None:
        """The task is about to say that it has finished, and nothing of it is in flight (rule 8)."""
        with self.lock:
            self._machine.abort(checkpoint)
        for channel in self._places:
            channel.go_on_behind(checkpoint)

    def _late(self) -> list[Driver]:
        """The drivers that the cut waits for (rules 5 and 7), if the way out is not shut."""
        late = [driver for driver in self._drivers if not driver.may_be_cut]
        if not late and not self._waited_for_disk:
            late = [driver for driver in self._drivers if not driver.spilling.idle]
            self._waited_for_disk = bool(late)
        return late

    def _take(self, barrier: Barrier) -> None:
        checkpoint, writer = barrier.checkpoint, FlightWriter()
        with self.lock:
            if self._machine.barrier is not barrier:
                return  # given up meanwhile
            self._forward(barrier)
        cuts = {driver: self._of(driver, writer) for driver in self._drivers}
        found = _OpenCut(barrier, writer, cuts, self._began)
        with self.lock:
            if self._machine.barrier is not barrier:
                return  # given up meanwhile
            if self._machine.take():
                found.completed = self._clock()
            waited = self._machine.waits_for
            self._open, self.last = found, checkpoint
            for channel, (driver, number) in self._places.items():
                if channel.channel in waited:
                    channel.record(checkpoint)
                else:
                    channel.recorded = None
                    cuts[driver].sent[number] = channel.sent_before(checkpoint)
        found.pause = self._clock() - self._stopped_at
        for cut in cuts.values():
            cut.driver.chain.flush(checkpoint)
            cut.driver.writing.then(partial(self._written, found, cut))
        for channel in self._places:
            channel.go_on_behind(checkpoint)

    def _of(self, driver: Driver, writer: FlightWriter) -> _DriverCut:
        driver.spilling.settle()
        place = capture(driver, writer)
        driver.spilling.settle()
        tables = driver.chain.snapshot()
        for reader in driver.readers:
            tables[reader.operator] = reader.capture()
        ledger = SnapshotLedger(driver.ports.all, driver.chain.sinks, tables)
        held: dict[int, list[Batch]] = {}
        for port in driver.ports.all:
            aside = [each for each in port.gate.capture()[1] if isinstance(each, Batch)]
            for number, feed in enumerate(port.gate.feeds):
                queued = in_flight(feed.queued) if isinstance(feed, InputChannel) else ()
                held[port.base + number] = [each for each in queued if isinstance(each, Batch)]
            held[port.base] += aside
        return _DriverCut(driver, place, tables, driver.data_ended, driver.chain.ended(driver.data_ended), ledger, held)

    # ------------------------------------------------------------------ the end of a cut

    def _written(self, found: _OpenCut, cut: _DriverCut) -> None:
        """What the sinks of a driver flushed is written. On its thread, or at once."""
        checkpoint = found.barrier.checkpoint
        self._keep(checkpoint, cut.driver.chain.prepare(checkpoint))
        sinks = cut.ledger.outputs()
        cut.tables = cut.driver.chain.settle(checkpoint, cut.tables)
        with self.lock:
            cut.sinks = sinks
            done = self._if_ready(found)
        if done is not None:
            self._tell(done)

    def _tell(self, found: _OpenCut) -> None:
        """Everything of a cut is there."""
        places: dict[str, DriverPlace] = {}
        snapshots: dict[str, DriverSnapshot] = {}
        for cut in found.drivers.values():
            name = cut.driver.name
            places[name] = with_recorded(cut.place, cut.recorded, cut.driver.schemas.ports, found.writer)
            snapshots[name] = cut.snapshot(found)
        place = TaskPlace((self._lanes.start, self._lanes.stop), places)
        flight = Flight(msgspec.msgpack.encode(place), found.writer.tables())
        self._told(found.barrier.checkpoint, snapshots, flight, found.pause)

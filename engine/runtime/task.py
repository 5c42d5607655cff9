"""One subtask of a stage: its drivers, sources and channels, and its part of the checkpoint protocol.

Rules:

1. The scheduler runs the drivers; this object only tells them things (through their inboxes) and collects what they
   say. Its methods may be called from any thread and never block. With a scheduler of its own (``SerialScheduler``) the
   task runs on the thread of whoever calls ``step``.
2. A checkpoint of the task is complete when each driver has snapshotted at its barrier. What sinks prepared for a
   checkpoint that was given up is handed over again with the next one.
3. The task is at the end of its data when all drivers are; its *final* checkpoint is the first one that it snapshots
   after that. It closes its channels only when that checkpoint (or a later one) has been committed, every consumer has
   processed everything, and all its inputs are closed: so a finished task leaves nothing in a channel.
4. The first error ends the task; the operators are closed once, whatever happened.
5. The listener is told one thing at a time, in the order in which things happened, outside the task's lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa

from ..core.elements import Barrier
from ..core.errors import InternalError, PenstockError, without_frames
from ..core.identity import (
    FINAL_ROUND,
    Attempt,
    BarrierKind,
    CheckpointId,
    Committable,
    Reweight,
    TaskId,
)
from ..core.source import Split
from ..core.state_machine import StateMachine
from ..exchange.channels import Frame, InputChannel, Upstream
from ..exchange.flight import Flight
from ..files.object_store import store_waits
from ..plan.plan import JobPlan
from ..scheduler.protocol import DriverState, Handle, Places, QueryOpener, QueryStatistics, Wait
from ..scheduler.serial import SerialScheduler
from ..sources.reader import SplitReader, Stop
from ..state.memory import TaskMemory
from . import orders
from .checkpointing import DriverSnapshot, DriverView, TaskCheckpoints, TaskSnapshot
from .driver import Driver
from .key_meetings import KeyMeetings
from .operator_chain import with_split
from .restored import Restored
from .statistics import (
    DriverWait,
    EdgeStatistics,
    OperatorStatistics,
    OperatorWindow,
    PassedStatistics,
    PieceStatistics,
    SourceStatistics,
    TaskStatistics,
)
from .task_builder import TaskParts, Wiring, build_parts
from .task_cutting import TaskCutting

if TYPE_CHECKING:
    from ..feed.server import FeedServer

# ------------------------------------------------------------------ task listener
#
# What a task tells its owner, and in which form.
#
# The owner is whoever calls ``step``: a host with a thread of its own, the serial task, or a test.


class TaskListener(Protocol):
    """What a task tells its owner: one thing at a time, on whichever thread it happened. Must not block."""

    def round_proposed(self, checkpoint: CheckpointId, round: int) -> None: ...

    def snapshot_taken(self, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None: ...

    def drained(self, barrier: CheckpointId, window: Sequence[OperatorWindow]) -> None:
        """One driver has drained for a task barrier. Several drivers may say so at the same time."""

    def declined(self, checkpoint: CheckpointId) -> None:
        """A source has no rows left up to the round of the checkpoint: it cannot be cut there."""

    def steered(self, order: orders.Steer, possible: int | None) -> None:
        """A mixture goes by these changes of its weights, and is held where it is to be held. ``possible``: the first
        position where it could have been."""

    def data_ended(self) -> None: ...

    def finished(self, cut: CheckpointId | None) -> None:
        """``cut``: the newest checkpoint that the task was cut for as a whole; it has told it before."""

    def failed(self, error: PenstockError) -> None: ...


class Step(msgspec.Struct, frozen=True):
    """What a step did. Without progress, call again after a message, or at ``wake_at`` if that is not None."""

    progressed: bool
    wake_at: float | None = None


class EventQueue:
    """What a task has to tell its listener, in order, one at a time, whichever threads add to it.

    ``notify`` is called outside all locks. A thread that finds another one telling leaves its own news to that one.
    """

    def __init__(self, listener: TaskListener) -> None:
        self.listener = listener
        self._queue: deque[Callable[[TaskListener], None]] = deque()
        self._notifying = threading.Lock()

    def add(self, event: Callable[[TaskListener], None]) -> None:
        """Put something at the end."""
        self._queue.append(event)

    def notify(self) -> None:
        """Tell the listener all there is."""
        while self._queue and self._notifying.acquire(blocking=False):
            try:
                while self._queue:
                    self._queue.popleft()(self.listener)
            finally:
                self._notifying.release()


# ------------------------------------------------------------------ task statistics
#
# Puts the counts of a task's parts together. They are numbers that other threads may be changing: each is right by
# itself, and two of them may be a moment apart.


def statistics_of(
    task: TaskId,
    attempt: Attempt,
    state: str,
    drivers: Sequence[Driver],
    why: tuple[str, ...],
    query: QueryStatistics,
    memory: TaskMemory,
) -> TaskStatistics:
    """All of it. ``drivers``: downstream first, as the task keeps them."""
    operators, sources, edges = _operators(drivers), _sources(drivers), _edges(drivers)
    held = memory.statistics()
    waits, pieces = _waits(drivers), _pieces(drivers, query)
    return TaskStatistics(task, attempt, state, operators, sources, why, query.handles, edges, held, waits, pieces)


def _pieces(drivers: Sequence[Driver], query: QueryStatistics) -> tuple[PieceStatistics, ...]:
    """What threads are in the middle of. Where no operator is called it may be anything of the driver's turn."""
    found = {driver.name: driver.chain.piece() for driver in drivers}
    whole = {each.id for driver in drivers for each in driver.operators if each.takes_whole_batches}
    return tuple(
        PieceStatistics(handle.name, *(at := found.get(handle.name) or ("", handle.present)), is_whole=at[0] in whole)
        for handle in query.handles
        if handle.state == DriverState.RUNNING.value
    )


def _operators(drivers: Sequence[Driver]) -> tuple[OperatorStatistics, ...]:
    """Rows and batches of every operator, upstream first."""
    return tuple(
        OperatorStatistics(operator.id, operator.rows_in, operator.rows_out, operator.batches_out)
        for driver in reversed(drivers)
        for operator in driver.operators
    )


def _sources(drivers: Sequence[Driver]) -> tuple[SourceStatistics, ...]:
    """What the sources have read."""
    return tuple(_source(reader) for driver in drivers for reader in driver.readers)


def _source(reader: SplitReader) -> SourceStatistics:
    found = SourceStatistics(reader.operator, reader.rows, reader.batches, reader.current_split)
    pick = reader.picking
    if pick is None:
        return found
    filtered = [("", pick.filtered)] if pick.conditions else []
    early = tuple(PassedStatistics(each.by, each.passed.rows, each.passed.passed, early=True) for each in pick.early)
    joined = [(keys.join, met) for keys, met in zip(pick.joins, pick.met, strict=True)]
    return msgspec.structs.replace(
        found,
        groups=pick.skipped.groups,
        groups_left_out=pick.skipped.groups_left_out,
        groups_by_bloom=pick.skipped.by_bloom,
        groups_by_dictionary=pick.skipped.by_dictionary,
        pages_left_out=pick.skipped.pages_left_out,
        rows_left_out=pick.skipped.rows,
        passed=early + tuple(PassedStatistics(by, each.rows, each.passed) for by, each in filtered + joined),
    )


def _waits(drivers: Sequence[Driver]) -> tuple[DriverWait, ...]:
    """What the drivers wait for that cannot go on, upstream first."""
    waiting = [each for each in reversed(drivers) if each.handle and each.handle.state is DriverState.WAITING]
    return tuple(DriverWait(driver.name, wait) for driver in waiting if driver.handle for wait in driver.handle.waits)


def _edges(drivers: Sequence[Driver]) -> tuple[EdgeStatistics, ...]:
    """Every edge that ends or begins in the task, local ones included, upstream first."""
    found: dict[tuple[str, str], EdgeStatistics] = {}
    for driver in reversed(drivers):
        for one in (*_inputs(driver), *_outputs(driver)):
            key = (one.edge, one.direction)
            found[key] = _sum(found[key], one) if key in found else one
    return tuple(found.values())


def _inputs(driver: Driver) -> Iterator[EdgeStatistics]:
    for feed in driver.ports.feeds:
        if isinstance(feed, InputChannel):
            edge = feed.channel.edge
            yield EdgeStatistics(edge, "in", 1, feed.rows, feed.batches, feed.consumed, feed.queued_bytes)


def _outputs(driver: Driver) -> Iterator[EdgeStatistics]:
    for partition in driver.partitions:
        for each in partition.channels:
            yield EdgeStatistics(each.channel.edge, "out", 1, each.rows, each.batches, each.sent, each.in_flight)


def _sum(one: EdgeStatistics, other: EdgeStatistics) -> EdgeStatistics:
    return EdgeStatistics(
        one.edge,
        one.direction,
        one.channels + other.channels,
        one.rows + other.rows,
        one.batches + other.batches,
        one.bytes + other.bytes,
        one.queued + other.queued,
    )


class TaskState(StrEnum):
    """How far a task has come; its value is what users see."""

    CREATED = "created"
    RUNNING = "running"
    DATA_ENDED = "data ended"
    """All drivers are at the end of their data; it takes part in checkpoints until one covers that end."""
    CLOSING = "closing"
    """That checkpoint is committed, and nobody needs the task any more: its channels are being closed."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDINGS = frozenset({TaskState.FAILED, TaskState.CANCELLED})

LEGAL_TASK_MOVES: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.CREATED: frozenset({TaskState.RUNNING, TaskState.CANCELLED}),
    TaskState.RUNNING: frozenset({TaskState.DATA_ENDED, *_ENDINGS}),
    TaskState.DATA_ENDED: frozenset({TaskState.CLOSING, *_ENDINGS}),
    TaskState.CLOSING: frozenset({TaskState.FINISHED, *_ENDINGS}),
    TaskState.FINISHED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELLED: frozenset(),
}

STARTED = frozenset({TaskState.RUNNING, TaskState.DATA_ENDED, TaskState.CLOSING})
LIVE = STARTED | {TaskState.CREATED}
_DATA_ENDED = frozenset({TaskState.DATA_ENDED, TaskState.CLOSING, TaskState.FINISHED})


class Task:
    """See the module's rules. ``attempts``: of all tasks of the region; ``restored``: of several subtasks.

    ``scheduler``: who runs the drivers; None: whoever calls ``step``, and ``notify`` asks for that when something
    happened on another thread.
    """

    def __init__(
        self,
        plan: JobPlan,
        task: TaskId,
        attempt: Attempt,
        attempts: Mapping[TaskId, Attempt],
        restored: Mapping[str, pa.Table] | Restored,
        wiring: Wiring,
        listener: TaskListener,
        *,
        more_splits: bool = False,
        scheduler: QueryOpener | None = None,
        notify: Callable[[], None] | None = None,
        feeds: Mapping[str, FeedServer] | None = None,
        meetings: KeyMeetings | None = None,
    ) -> None:
        self.id = task
        self.attempt = attempt
        self._machine = StateMachine(f"task {task}", LEGAL_TASK_MOVES, TaskState.CREATED)
        self.error: PenstockError | None = None
        #: the first error of an operator's close, if nothing had failed before
        self.closing_error: PenstockError | None = None
        self._lock = threading.Lock()
        self._events = EventQueue(listener)
        self._serial = SerialScheduler(notify=notify) if scheduler is None else None
        opener: QueryOpener = scheduler or self._serial_scheduler
        self._query = opener.open(str(task), on_failure=self._driver_failed, on_closed=self._all_closed)
        self._parts = TaskParts()
        #: the counts when everything was closed: nothing else is left then
        self._last: TaskStatistics | None = None
        try:
            self._parts = build_parts(
                plan,
                task,
                attempts,
                restored,
                wiring,
                self,
                self._query,
                more_splits=more_splits,
                feeds=feeds,
                meetings=meetings,
            )
        except BaseException:
            self._query.cancel()
            raise
        self._sources = len(self.readers)
        self._cutting = TaskCutting(
            self.drivers,
            [each for driver in self.drivers for each in driver.partitions if not each.channels[0].is_local],
            self._query,
            self._cut_told,
            self._keep,
            self._cut_failed,
            clock=time.monotonic,
            lanes=plan.stages[task.vertex].lanes_of(task.subtask),
            forwards=not more_splits,
        )
        finished = isinstance(restored, Restored) and restored.finished
        self._checkpoints = TaskCheckpoints(len(self.drivers), finished=finished)
        for rank, driver in enumerate(self.drivers):
            driver.handle = self._query.add(driver, rank=rank)

    @property
    def _serial_scheduler(self) -> SerialScheduler:
        if self._serial is None:
            raise InternalError(f"{self.id} is run by a scheduler, not by steps")
        return self._serial

    @property
    def state(self) -> TaskState:
        """How far it has come."""
        return self._machine.state

    def was_entered(self, places: Places) -> bool:
        """Whether who had these ``shell.places`` is in the task: in an operator, a user's function, or in what its
        listener is told."""
        return self._query.was_entered(places)

    @property
    def data_ended(self) -> bool:
        """Whether all drivers are at the end of their data."""
        return self.state in _DATA_ENDED

    @property
    def opening(self) -> int:
        """Rows of the flight that the task was restored with, the one that says where each stood among them."""
        return self._parts.opening

    @property
    def drivers(self) -> list[Driver]:
        """The drivers, downstream first."""
        return self._parts.drivers

    @property
    def readers(self) -> list[SplitReader]:
        """The sources."""
        return [reader for driver in self.drivers for reader in driver.readers]

    # ------------------------------------------------------------------ running

    def start(self) -> None:
        """Make all drivers runnable; nothing if it was cancelled before, by another task's failure, say."""
        with self._lock:
            if self.state is TaskState.CANCELLED:
                return
            self._machine.move(TaskState.RUNNING)
        self._query.start()

    def step(self, now: float, slice: float | None = None) -> Step:
        """Let the drivers run for a turn each, or a ``slice`` of seconds. Only without a scheduler of others."""
        turn = self._serial_scheduler.turn(now, len(self.drivers), slice)
        return Step(turn.progressed, turn.wake_at) if self.state in STARTED else Step(False)

    def end_advanced(self, driver: DriverView) -> None:
        """A driver has come further towards its end (called by the driver)."""
        self._advance_end()

    def _advance_end(self) -> None:
        """Go on with the end of the task (rule 3), as far as it has come."""
        with self._lock:
            if self.state is TaskState.RUNNING and all(driver.data_ended for driver in self.drivers):
                self._machine.move(TaskState.DATA_ENDED)
                self._events.add(lambda listener: listener.data_ended())
            covered = self.state is TaskState.DATA_ENDED and self._checkpoints.final_committed
            if covered and self._parts.ends_agree:
                self._machine.move(TaskState.CLOSING)
                for driver in self.drivers:
                    driver.send(orders.ClosePartition())
        self._events.notify()

    def _all_closed(self) -> None:
        """Every driver is closed (called by the scheduler)."""
        with self._lock:
            if self.state in STARTED:
                self._machine.move(TaskState.FINISHED)
                self._tell_finished()
            self._last = self._statistics()
            self._cutting.release()  # first: it looks at drivers from any thread
            self._parts.release()
        self._events.notify()

    def report_again(self) -> None:
        """Tell the listener once more how far the end of the task has come: the first report may have been lost."""
        failure = self.error
        with self._lock:
            if self.state is TaskState.FAILED and failure is not None:
                self._events.add(lambda listener: listener.failed(failure))
            if self.data_ended:
                self._events.add(lambda listener: listener.data_ended())
            if self.state is TaskState.FINISHED:
                self._tell_finished()
        self._events.notify()

    def _tell_finished(self) -> None:
        cut = self._cutting.last
        self._events.add(lambda listener: listener.finished(cut))

    # ------------------------------------------------------------------ messages of other tasks

    def receive(self, frame: Frame) -> None:
        """An element came from a producer."""
        found = self._parts.inputs.get(frame.channel)
        if found is not None and self.state in LIVE:
            (channel, driver), element = found, frame.element
            driver.send(orders.Receive(channel, frame))
            if isinstance(element, Barrier) and element.unaligned and frame.attempts == channel.attempts:
                self._cutting.come(element)

    def deliver(self, message: Upstream) -> None:
        """Credit, or the news that all has been processed, came from a consumer."""
        found = self._parts.outputs.get(message.channel)
        if found is not None:
            channel, driver = found
            driver.deliver(channel, message)

    # ------------------------------------------------------------------ checkpoints

    def propose_round(self, checkpoint: CheckpointId) -> None:
        """Hold the sources at the end of their round and tell the listener which it is."""
        with self._lock:
            if self._checkpoints.is_late(checkpoint) or self._cutting.is_late(checkpoint):
                return
            self._checkpoints.propose(checkpoint)
            reading = [driver for driver in self.drivers if driver.readers]
            if not reading:
                self._events.add(lambda listener: listener.round_proposed(checkpoint, FINAL_ROUND))
            for driver in reading:
                driver.send(orders.ProposeRound(checkpoint))
        self._events.notify()

    def rounds_proposed(self, driver: DriverView, checkpoint: CheckpointId, rounds: Sequence[int]) -> None:
        """Sources of a driver stand at the end of their rounds (called by the driver)."""
        with self._lock:
            latest = self._checkpoints.proposed(checkpoint, rounds, self._sources)
            if latest is not None:
                self._events.add(lambda listener: listener.round_proposed(checkpoint, latest))
        self._events.notify()

    def trigger(
        self,
        checkpoint: CheckpointId,
        kind: BarrierKind,
        at_round: int | None,
        at: float,
        stop: Stop | None = None,
        unaligned: bool = False,
    ) -> None:
        """Inject the barrier: into the sources, where the data end then if the job is to ``stop``, and into inputs from
        other tasks (they have all finished then). ``unaligned``: the task cuts as a whole, where it stands."""
        with self._lock:
            late = self._cutting.is_late(checkpoint)
            barrier = None if late else self._checkpoints.order(checkpoint, kind, at, unaligned=unaligned)
        if barrier is None:
            return
        if unaligned:
            self._cutting.come(barrier, is_order=True)
            return
        for driver in self.drivers:
            if driver.readers:
                driver.send(orders.PlaceBarrier(barrier, at_round, stop))
            if driver in self._parts.entries:
                driver.send(orders.InjectBarrier(barrier, self._parts.entries[driver]))

    def abort(self, checkpoint: CheckpointId) -> None:
        """The checkpoint was given up: stop holding and aligning for it."""
        with self._lock:
            self._checkpoints.abort(checkpoint)
            self._cutting.abort(checkpoint)
            if self.state not in LIVE:
                return
        for driver in self.drivers:
            driver.send(orders.AbortCheckpoint(checkpoint))

    def reads(self, source: str) -> bool:
        """Whether the source is one of this task's."""
        return any(reader.operator == source for reader in self.readers)

    def add_splits(self, source: str, rounds: int, splits: Mapping[int, Split]) -> None:
        """So many more rounds for a source that expects more, with the splits at these places of them."""
        reader, driver = self._parts.reader(source)
        driver.send(orders.AddSplits(reader, rounds, splits))

    def no_more_splits(self, source: str) -> None:
        """The splits of a source are complete."""
        reader, driver = self._parts.reader(source)
        driver.send(orders.NoMoreSplits(reader))

    def drain(self, barrier: CheckpointId) -> None:
        """Send a task barrier behind the splits that the sources have got so far."""
        for driver in self.drivers:
            if driver.readers:
                driver.send(orders.DrainSources(barrier))

    def take_split_sets(self, rounds: int, items: Sequence[orders.SplitSetOrder]) -> None:
        """Give the sources split sets, behind so many ``rounds``."""
        for driver in self.drivers:
            if driver.readers:
                driver.send(orders.TakeSplitSets(rounds, items))

    def expect(self, checkpoint: CheckpointId) -> None:
        """A checkpoint begins: throttled operators take what stands before its barriers."""
        for driver in self._parts.throttled:
            driver.send(orders.ExpectBarriers(checkpoint))

    def steer(self, operator: str, reweights: tuple[Reweight, ...], limit: int | None) -> None:
        """Let a mixture go by these changes of its weights, and hold it at ``limit``."""
        order = orders.Steer(operator, reweights, limit)
        found = (driver for driver in self.drivers if driver.operators and driver.operators[0].id == operator)
        driver = next(found, None)
        if driver is None or driver.data_ended or driver.chain.steered is None:
            self._events.add(lambda listener: listener.steered(order, None))
            self._events.notify()
        else:
            driver.send(order)

    def steered(self, driver: DriverView, order: orders.Steer, possible: int | None) -> None:
        """A mixture goes by them (called by the driver)."""
        self._events.add(lambda listener: listener.steered(order, possible))
        self._events.notify()

    def notify_committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint stands in the log and its committables are visible."""
        with self._lock:
            self._checkpoints.committed(checkpoint)
        for driver in self._parts.throttled:
            driver.send(orders.NotifyCommitted(checkpoint))
        self._advance_end()

    def barrier_arrived(self, driver: DriverView, barrier: Barrier) -> None:
        """A barrier has come to a driver (called by the driver): others may have no input left that brings it. Told
        once, by the first that it comes to."""
        with self._lock:
            if not self._checkpoints.arrives_first(barrier.checkpoint):
                return
        for other in self.drivers:
            if other is not driver:
                other.send(orders.JoinBarrier(barrier))

    def prepared(self, driver: DriverView, cut: DriverSnapshot, committables: list[Committable]) -> None:
        """A driver has everything of its cut (called by the driver)."""
        checkpoint = cut.barrier.checkpoint
        with self._lock:
            snapshot = self._checkpoints.add(driver.name, cut, committables)
            if snapshot is not None:
                self._events.add(lambda listener: listener.snapshot_taken(checkpoint, snapshot))
        self._events.notify()

    def _cut_told(
        self, checkpoint: CheckpointId, cuts: Mapping[str, DriverSnapshot], flight: Flight, pause: float
    ) -> None:
        """The task is cut, all of its drivers at once."""
        with self._lock:
            found = [self._checkpoints.add(name, cut, []) for name, cut in cuts.items()]
            snapshot = found[-1]
            if snapshot is not None:
                whole = msgspec.structs.replace(snapshot, flight=flight, synchronous=pause)
                self._events.add(lambda listener: listener.snapshot_taken(checkpoint, whole))
        self._events.notify()

    def _keep(self, checkpoint: CheckpointId, committables: list[Committable]) -> None:
        with self._lock:
            self._checkpoints.keep(checkpoint, committables)

    def _cut_failed(self, error: BaseException) -> None:
        """An operator has failed while its state was taken."""
        self._driver_failed(None, error)
        self._query.cancel(error)

    def drained(self, driver: DriverView, barrier: CheckpointId, window: Sequence[OperatorWindow]) -> None:
        """A driver has drained for a task barrier (called by the driver). Told at once: the next window begins."""
        self._events.listener.drained(barrier, window)

    def checkpoint_aborted(self, driver: DriverView, checkpoint: CheckpointId) -> None:
        """A driver gave a checkpoint up (called by the driver)."""
        with self._lock:
            self._checkpoints.forget(checkpoint)
            if any(reader.declined == checkpoint for reader in driver.readers):
                self._events.add(lambda listener: listener.declined(checkpoint))
        self._events.notify()

    # ------------------------------------------------------------------ ends and queries

    def pause(self) -> Future[None]:
        """Keep the drivers from running; the future: no thread is inside any of them. Messages are kept."""
        return self._query.pause()

    def resume(self) -> None:
        """Let them run again."""
        self._query.resume()

    def cancel(self) -> Future[None]:
        """Stop and release everything; nothing is told to the listener. The future: every driver is closed."""
        with self._lock:
            if self.state in LIVE:
                self._machine.move(TaskState.CANCELLED)
        return self._query.cancel()

    def stop(self, timeout: float) -> bool:
        """Cancel, and wait until every driver is closed; False if that takes more than ``timeout`` seconds."""
        closed = self.cancel()
        if self._serial is not None:
            return self._serial.finish(closed, timeout)
        return closed in wait([closed], timeout).done

    def closed(self, driver: DriverView, errors: Sequence[PenstockError]) -> None:
        """A driver's operators are closed (called by the driver)."""
        if self.error is not None:
            for later in errors:
                self.error.add_note(f"while closing {driver.name}: {later}")
        elif errors and self.closing_error is None:
            self.closing_error = without_frames(errors[0])

    def _driver_failed(self, handle: Handle | None, error: BaseException) -> None:
        """The first error of a driver (called by the scheduler, before it closes the others)."""
        if not isinstance(error, PenstockError):
            error = InternalError(f"{type(error).__name__}: {error}", operator="" if handle is None else handle.name)
        # another driver's readers have nothing to do with it, even if they are in the same round
        readers = [each for driver in self.drivers if driver.handle is handle for each in driver.readers]
        failure = without_frames(with_split(error, readers))
        with self._lock:
            if self.state not in STARTED:
                return
            self.error = failure
            self._machine.move(TaskState.FAILED)
            self._events.add(lambda listener: listener.failed(failure))
        self._events.notify()

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold. Only when no thread is in a driver."""
        with self._lock:
            state = self.state
            assert (self.error is not None) == (state is TaskState.FAILED), f"{self.id}: {state} with {self.error!r}"
            ended = [driver.data_ended for driver in self.drivers]
            assert state not in _DATA_ENDED or all(ended), f"{self.id} is {state}, and a driver has data"

    @property
    def memory_held(self) -> int:
        """Bytes that the operators hold."""
        return self._parts.memory.statistics().held

    def waits(self) -> list[Wait]:
        """What the drivers wait for."""
        return [wait for driver in self.drivers if (handle := driver.handle) is not None for wait in handle.waits]

    def why(self) -> list[str]:
        """One sentence for each driver that waits, and for each object store that this process waits for."""
        held = [reader.operator for reader in self.readers if reader.held]
        waiting = "waits for commit: the coordinator's choice of a round"
        return self._query.why() + [f"{operator} {waiting}" for operator in held] + store_waits()

    def statistics(self) -> TaskStatistics:
        """Counts since this attempt began."""
        with self._lock:
            return self._last or self._statistics()

    def _statistics(self) -> TaskStatistics:
        parts, query = self._parts, self._query.statistics()
        state = TaskState.RUNNING if self.state in STARTED else self.state
        found = statistics_of(self.id, self.attempt, state, parts.drivers, tuple(self.why()), query, parts.memory)
        return msgspec.structs.replace(found, cut=self._cutting.statistics())

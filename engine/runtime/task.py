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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait

import pyarrow as pa

from ..core.elements import Barrier
from ..core.errors import InternalError, PenstockError
from ..core.identity import FINAL_ROUND, Attempt, BarrierKind, CheckpointId, Committable, Opening, TaskId
from ..core.source import Split
from ..exchange.channel_state import Restored
from ..exchange.edges import Frame, Upstream
from ..plan.plan import JobPlan
from ..scheduler.protocol import Handle, Scheduler
from ..scheduler.serial import SerialScheduler
from ..scheduler.states import Wait
from ..sources.reader import SplitReader, Stop
from . import orders
from .driver import Driver
from .driver_host import Cut, Teller
from .operator_instance import blame_split
from .statistics import TaskStatistics
from .task_checkpoints import TaskCheckpoints
from .task_listener import News, Step, TaskListener
from .task_parts import TaskParts, Wiring, build_parts
from .task_statistics import statistics_of
from .windows import OperatorWindow


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
        scheduler: Scheduler | None = None,
        notify: Callable[[], None] | None = None,
    ) -> None:
        self.id = task
        self.attempt = attempt
        #: running, finished, failed or cancelled
        self.state = "created"
        self.error: PenstockError | None = None
        self._lock = threading.Lock()
        self._news = News(listener)
        self._serial = SerialScheduler(notify=notify) if scheduler is None else None
        opener: Scheduler = scheduler or self._serial_scheduler
        self._query = opener.open(str(task), on_failure=self._driver_failed, on_closed=self._all_closed)
        self._parts = TaskParts()
        try:
            self._parts = build_parts(
                plan, task, attempts, restored, wiring, self, self._query, more_splits=more_splits
            )
        except BaseException:
            self._query.cancel()
            raise
        finished = isinstance(restored, Restored) and restored.finished
        self._checkpoints = TaskCheckpoints(len(self.drivers), plan.alignment_timeout, finished=finished)
        self._told_data_ended = False
        self._ending = False
        for rank, driver in enumerate(self.drivers):
            driver.handle = self._query.add(driver, rank=rank)

    @property
    def _serial_scheduler(self) -> SerialScheduler:
        if self._serial is None:
            raise InternalError(f"{self.id} is run by a scheduler, not by steps")
        return self._serial

    @property
    def data_ended(self) -> bool:
        """Whether all drivers are at the end of their data."""
        return self._told_data_ended

    @property
    def opening(self) -> tuple[Opening, ...]:
        """Rows in flight that the task was restored with."""
        return tuple(self._parts.opening)

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
        """Make all drivers runnable."""
        self.state = "running"
        self._query.start()

    def step(self, now: float, slice: float | None = None) -> Step:
        """Let the drivers run for a turn each, or a ``slice`` of seconds. Only without a scheduler of others."""
        turn = self._serial_scheduler.turn(now, len(self.drivers), slice)
        return Step(turn.progressed, turn.wake_at) if self.state == "running" else Step(False)

    def advanced(self, driver: Teller) -> None:
        """A driver has come further towards its end (called by the driver)."""
        self._advance_end()

    def _advance_end(self) -> None:
        """Go on with the end of the task (rule 3), as far as it has come."""
        with self._lock:
            if not self._told_data_ended and all(driver.data_ended for driver in self.drivers):
                self._told_data_ended = True
                self._news.add(lambda listener: listener.data_ended())
            ends = not self._ending and self._checkpoints.final_committed and self._parts.ends_agree
            if ends:
                self._ending = True
                for driver in self.drivers:
                    driver.post(driver.close_partition)
        self._news.tell()

    def _all_closed(self) -> None:
        """Every driver is closed (called by the scheduler)."""
        with self._lock:
            if self.state == "running":
                self.state = "finished"
                self._news.add(lambda listener: listener.finished())
            self._parts.release()
        self._news.tell()

    def report_again(self) -> None:
        """Tell the listener once more how far the end of the task has come: the first report may have been lost."""
        failure = self.error
        with self._lock:
            if self.state == "failed" and failure is not None:
                self._news.add(lambda listener: listener.failed(failure))
            if self._told_data_ended:
                self._news.add(lambda listener: listener.data_ended())
            if self.state == "finished":
                self._news.add(lambda listener: listener.finished())
        self._news.tell()

    # ------------------------------------------------------------------ messages of other tasks

    def receive(self, frame: Frame) -> None:
        """An element came from a producer."""
        found = self._parts.inputs.get(frame.channel)
        if found is not None and self.state in ("created", "running"):
            found[1].post(found[0].receive, frame)

    def deliver(self, message: Upstream) -> None:
        """Credit, or the news that all has been processed, came from a consumer."""
        found = self._parts.outputs.get(message.channel)
        if found is not None:
            found[1].post(found[1].deliver, found[0], message)

    # ------------------------------------------------------------------ checkpoints

    def propose_round(self, checkpoint: CheckpointId) -> None:
        """Hold the sources at the end of their round and tell the listener which it is."""
        with self._lock:
            if self._checkpoints.is_late(checkpoint):
                return
            self._checkpoints.propose(checkpoint)
            reading = [driver for driver in self.drivers if driver.readers]
            if not reading:
                self._news.add(lambda listener: listener.round_proposed(checkpoint, FINAL_ROUND))
            for driver in reading:
                driver.post(self._propose, driver, checkpoint)
        self._news.tell()

    def _propose(self, driver: Driver, checkpoint: CheckpointId) -> None:
        rounds = [reader.propose(checkpoint) for reader in driver.readers]
        with self._lock:
            latest = self._checkpoints.proposed(checkpoint, rounds, len(self.readers))
            if latest is not None:
                self._news.add(lambda listener: listener.round_proposed(checkpoint, latest))
        self._news.tell()

    def trigger(
        self, checkpoint: CheckpointId, kind: BarrierKind, at_round: int | None, at: float, stop: Stop | None = None
    ) -> None:
        """Inject the barrier: into the sources, where the data end then if the job is to ``stop``, and into inputs from
        other tasks (they have all finished then)."""
        with self._lock:
            barrier = self._checkpoints.order(checkpoint, kind, at)
        for driver in self.drivers if barrier is not None else ():
            if driver.readers:
                driver.post(driver.trigger, barrier, at_round, stop)
            if driver in self._parts.entries:
                driver.post(driver.checkpointing.inject, barrier, self._parts.entries[driver])

    def abort(self, checkpoint: CheckpointId) -> None:
        """The checkpoint was given up: stop holding and aligning for it."""
        with self._lock:
            self._checkpoints.give_up(checkpoint)
            if self.state != "running":
                return
        for driver in self.drivers:
            driver.post(orders.abort, driver, checkpoint)

    def reads(self, source: str) -> bool:
        """Whether the source is one of this task's."""
        return any(reader.operator == source for reader in self.readers)

    def add_split(self, source: str, split: Split) -> None:
        """One more split for a source that expects more."""
        reader, driver = self._parts.reader(source)
        driver.post(reader.add_split, split)

    def no_more_splits(self, source: str) -> None:
        """The splits of a source are complete."""
        reader, driver = self._parts.reader(source)
        driver.post(reader.no_more_splits)

    def drain(self, barrier: CheckpointId) -> None:
        """Send a task barrier behind the splits that the sources have got so far."""
        for driver in self.drivers:
            if driver.readers:
                driver.post(orders.drain, driver.readers, barrier)

    def notify_committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint stands in the log and its committables are visible."""
        with self._lock:
            self._checkpoints.committed(checkpoint)
        self._advance_end()

    def met(self, driver: Teller, barrier: Barrier) -> None:
        """A barrier has come to a driver (called by the driver): others may have no input left that brings it."""
        for other in self.drivers:
            if other is not driver:
                other.post(other.checkpointing.join, barrier)

    def prepared(self, driver: Teller, cut: Cut, committables: list[Committable]) -> None:
        """A driver has everything of its cut (called by the driver)."""
        checkpoint = cut.barrier.checkpoint
        with self._lock:
            snapshot = self._checkpoints.add(driver.name, cut, committables)
            if snapshot is not None:
                self._news.add(lambda listener: listener.snapshot_taken(checkpoint, snapshot))
        self._news.tell()

    def left_over(self, driver: Teller, checkpoint: CheckpointId, committables: list[Committable]) -> None:
        """A driver gave a checkpoint up after its cut (called by the driver)."""
        with self._lock:
            self._checkpoints.keep(checkpoint, committables)

    def drained(self, driver: Teller, barrier: CheckpointId, window: Sequence[OperatorWindow]) -> None:
        """A driver has drained for a task barrier (called by the driver). Told at once: the next window begins."""
        self._news.listener.drained(barrier, window)

    def abandoned(self, driver: Teller, checkpoint: CheckpointId) -> None:
        """A driver gave a checkpoint up (called by the driver)."""
        with self._lock:
            self._checkpoints.forget(checkpoint)
            if any(reader.declined == checkpoint for reader in driver.readers):
                self._news.add(lambda listener: listener.declined(checkpoint))
        self._news.tell()

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
            if self.state in ("created", "running"):
                self.state = "cancelled"
        return self._query.cancel()

    def stop(self, timeout: float) -> bool:
        """Cancel, and wait until every driver is closed; False if that takes more than ``timeout`` seconds."""
        closed = self.cancel()
        if self._serial is not None:
            return self._serial.finish(closed, timeout)
        return closed in wait([closed], timeout).done

    def closed(self, driver: Teller, errors: Sequence[PenstockError]) -> None:
        """A driver's operators are closed (called by the driver)."""
        if self.error is not None:
            for later in errors:
                self.error.add_note(f"while closing {driver.name}: {later}")

    def _driver_failed(self, handle: Handle | None, error: BaseException) -> None:
        """The first error of a driver (called by the scheduler, before it closes the others)."""
        if not isinstance(error, PenstockError):
            error = InternalError(f"{type(error).__name__}: {error}", operator="" if handle is None else handle.name)
        failure = blame_split(error, self.readers)
        with self._lock:
            if self.state != "running":
                return
            self.error, self.state = failure, "failed"
            self._news.add(lambda listener: listener.failed(failure))
        self._news.tell()

    @property
    def memory_held(self) -> int:
        """Bytes that the operators hold."""
        return self._parts.memory.statistics().held

    def waits(self) -> list[Wait]:
        """What the drivers wait for."""
        return [wait for driver in self.drivers if driver.handle is not None for wait in driver.handle.waits]

    def why(self) -> list[str]:
        """One sentence for each driver that waits."""
        held = [reader.operator for reader in self.readers if reader.held]
        waiting = "waits for commit: the coordinator's choice of a round"
        return self._query.why() + [f"{operator} {waiting}" for operator in held]

    def statistics(self) -> TaskStatistics:
        """Counts since this attempt began."""
        parts, query = self._parts, self._query.statistics()
        return statistics_of(self.id, self.attempt, self.state, parts.drivers, tuple(self.why()), query, parts.memory)

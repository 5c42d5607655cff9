"""A whole plan in this process: splits in, batches out, task barriers in between. Velox's task contract.

``add_split``, ``request_barrier``, ``no_more_splits`` and ``next`` mean what they mean in Velox. What differs, on
purpose:

1. ``next`` gives neither a batch nor a future exactly when a barrier is reached or the task has finished; ``state``
   tells which. Velox cannot tell the two apart.
2. Splits may be added after a barrier was requested: they belong to the next window. So windows can be queued ahead.
3. Every operator drains; none refuses a barrier. An operator that has ended early does not hold one up.
4. A barrier's future resolves to statistics of its window (``windows.WindowStatistics``) when the plan has drained,
   whether or not its batches have been read by then. If the task fails or is cancelled the future carries the error.
5. A call that fails adds nothing: splits are looked at before any is queued. ``run`` gives the window of its own split
   set, and drops what nobody has read of earlier ones.
6. Sources may get different numbers of splits in a window: a barrier makes up for the missing ones with empty splits,
   so that the windows of all sources begin in the same round.
7. Each stage has ``parallelism`` subtasks; the rows come in the same order whatever it is. With ``degree`` 0 they run
   on the thread that calls ``next``, with a degree of n on at most n threads of the pool that all tasks of the process
   share (or of ``scheduler``); ahead of the reader by a few batches. Nothing runs before somebody pulls, unless
   ``eager``. All methods may be called from several threads; each batch goes to one.
8. It is a context manager, which cancels it at the end; who drops it does the same. When it has finished, failed (and
   ``next`` has said so) or been cancelled, nothing but its statistics is left, no thread works for it, and the pool has
   none left if nobody else uses it. ``cancel`` may be called from anywhere, the task's own functions and callbacks
   included; ``next`` in those would wait for itself and is refused. An interrupt (Ctrl-C) on the thread that drives the
   task is raised there, and the task is cancelled.
9. ``timeout`` seconds after its start the task fails with a ``QueryTimeoutError``, wherever it stands. Without threads
   of its own it notices that when somebody pulls. ``group`` and ``weight`` are its share of a scheduler that it has in
   common with others.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Self

import pyarrow as pa

from ..core.arguments import Parallelism, Seconds, Threads, checked
from ..core.errors import ConfigurationError, InternalError, PenstockError, fresh
from ..core.futures import wait_for
from ..core.identity import CheckpointId
from ..core.user_code import on_callers_thread
from ..plan.plan import JobPlan
from ..runtime.statistics import TaskStatistics, WindowStatistics
from ..runtime.task import Task
from ..scheduler.pool import PoolScheduler, shared_pool
from ..scheduler.protocol import Scheduler, Share, WaitReason
from ..scheduler.serial import SerialScheduler
from ..sinks.output import OutputSink
from ..sources.given import NewSplit
from .plan_inputs import PlanInputs, StreamLike, plan_look, plan_stream
from .plan_output import OUTPUT_BATCHES, SERIAL_BATCHES, PlanOutput
from .reading import reading
from .running_plan import OVER, PlanState, RunningPlan


class PlanTask:
    """Runs the flow that ends in ``stream``. Its sources get their splits from ``add_split`` alone. See the module."""

    #: whether its sources get splits from outside
    _fed = True

    @checked()
    def __init__(
        self,
        stream: StreamLike,
        *,
        degree: Threads = 0,
        parallelism: Parallelism = 1,
        eager: bool = False,
        scheduler: Scheduler | None = None,
        timeout: Seconds | None = None,
        group: str = "default",
        weight: float = 1.0,
    ) -> None:
        share = Share(group, weight, timeout, degree or None)
        self.schema = stream.schema
        self._output = PlanOutput(OUTPUT_BATCHES if degree or scheduler is not None else SERIAL_BATCHES)
        plan = self._planned(stream, OutputSink(self._output.put, self._output.has_room), parallelism)
        pool = shared_pool() if scheduler is None and degree else scheduler
        #: whose threads run it; None: the caller's, or a scheduler's without threads
        self._pool = pool if isinstance(pool, PoolScheduler) else None
        self._serial = SerialScheduler(notify=self._output.wake) if pool is None else None
        self._plan = RunningPlan(plan, pool or self._serial, share, self._output, fed=self._fed)
        weakref.finalize(self, self._plan.abandon).atexit = False
        self._lock = self._plan.lock
        schemas = {id: source.schema for id, source in plan.sources.items() if self._fed}
        self._inputs = PlanInputs(schemas, self.tasks, plan.lanes)
        #: grows whenever a caller has changed what can run, or taken what others may look for
        self._changes = 0
        #: when something happens by itself, by the serial scheduler's clock; None: never
        self._wake_at: float | None = None
        if eager:
            self._plan.start()

    def _planned(self, stream: StreamLike, sink: OutputSink, parallelism: int) -> JobPlan:
        return plan_stream(stream, sink, parallelism)

    @property
    def state(self) -> PlanState:
        """How far it has come."""
        return self._plan.state

    @property
    def error(self) -> PenstockError | None:
        """What it has failed with."""
        return self._plan.error

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        with self._lock:
            assert (self.error is not None) == (self.state is PlanState.FAILED), f"{self.state} with {self.error!r}"

    # ------------------------------------------------------------------ input

    @checked()
    def add_split(self, source: str, split: NewSplit) -> None:
        """Queue one more split for a source: a table, a record batch, a pandas frame, a dict of arrays, a file's path
        (Parquet, Arrow IPC, CSV), or a ``Split``. What does not fit the source is refused, and nothing is added."""
        self._add({source: split})

    def _add(self, given: Mapping[str, NewSplit]) -> None:
        """Queue one more split for each of these sources, or for none if one of them is refused."""
        self._check_addable(given)
        splits = {source: self._inputs.split(source, each) for source, each in given.items()}
        with self._lock:
            self._check_addable(given)
            for source, split in splits.items():
                self._inputs.add(source, split)
            self._changes += 1

    def _check_addable(self, sources: Iterable[str]) -> None:
        for source in sources:
            self._inputs.check_open(source)
        self._check_alive()

    @checked()
    def no_more_splits(self, source: str) -> None:
        """The splits of the source are complete."""
        with self._lock:
            self._inputs.check(source)
            if source in self._inputs.complete:
                return
            self._check_alive()
            self._inputs.end(source)
            self._changes += 1

    def request_barrier(self) -> Future[WindowStatistics]:
        """Ask for a barrier behind the splits queued so far; the future resolves when the plan has drained."""
        with self._lock:
            if self.state not in OVER:
                return self._end_window()[1]
            future = self._plan.windows.request(time.perf_counter())[1]
        self._plan.refuse_waiting()
        return future

    def _end_window(self) -> tuple[CheckpointId, Future[WindowStatistics]]:
        """Send a barrier behind the splits queued so far."""
        self._check_endable()
        barrier, future = self._plan.windows.request(time.perf_counter())
        self._inputs.even_out()
        for task in self.tasks:
            task.drain(barrier)
        self._changes += 1
        return barrier, future

    def _check_endable(self) -> None:
        if self._inputs.complete:
            ended = ", ".join(self._inputs.complete)
            raise ConfigurationError(f"no barrier can follow the last split of {ended}", "request it before")

    @property
    def under_barrier(self) -> bool:
        """Whether a barrier was requested that the plan has not drained for."""
        return self._plan.windows.outstanding

    # ------------------------------------------------------------------ output

    def next(self) -> tuple[pa.RecordBatch | None, Future[None] | None]:
        """The next batch; (None, a future) if nothing can be given before that is done; (None, None) when a barrier
        is reached or the task has finished (see ``state``).

        Raises the task's error once it failed, and ConfigurationError if nothing can happen before splits are added, or
        if one of the task's own functions calls it.
        """
        return self._next()

    def _next(self, window: int | None = None) -> tuple[pa.RecordBatch | None, Future[None] | None]:
        """The same, of this window alone; or of any."""
        self._check_outside()
        self._plan.start()
        while True:
            seen = self._output.seen
            with self._lock:
                changes = self._changes
                if window is not None and self._output.is_gone(window):
                    raise ConfigurationError(
                        "the window was read elsewhere, or dropped when the reading of a later one began",
                        "read the windows of several split sets one after the other",
                    )
                if self._output and self.state is not PlanState.CANCELLED:
                    return self._take(), None
                over = self.state in OVER
                if not over:
                    self._plan.move(PlanState.FINISHED if self._at_end() else PlanState.RUNNING)
                running = self.state is PlanState.RUNNING
            if not running:
                self._plan.close()
                if over:
                    self._check_alive()
                return None, None
            if self._serial is None:
                return None, self._output.waits(seen)
            if not self._turn(self._serial, changes):
                # what is under way elsewhere may have come back before anybody waited for it: hence another look
                pulled = self._output.waits(self._output.seen)
                if not self._turn(self._serial, changes):
                    return None, pulled

    def _check_outside(self) -> None:
        if self._plan.is_lost:
            raise ConfigurationError(
                "this process is a fork of the one that made the task, and has none of its threads",
                "make a task in the fork, or one with degree=0",
            )
        if self._plan.is_inside:
            raise ConfigurationError(
                "a task was asked for its next batch by one of its own functions or callbacks, which it waits for",
                "read on the thread that drives the task; within it, cancel() and add_split() may be called",
            )

    def _check_alive(self) -> None:
        if self.error is not None:
            raise fresh(self.error)
        if self.state in OVER:
            raise ConfigurationError(f"the task is {self.state}", "make a new one")

    @checked()
    def read(self, timeout: Seconds | None = None) -> pa.RecordBatch | None:
        """The next batch, waiting for it; None when a barrier is reached or the task has finished.

        Raises TimeoutError after ``timeout`` seconds without one.
        """
        return self._read(timeout)

    def _read(self, timeout: float | None = None, window: int | None = None) -> pa.RecordBatch | None:
        while True:
            batch, future = self._next(window)
            if future is None:
                return batch
            with reading(self._plan), nullcontext() if self._pool is None else self._pool.waiting():
                wait_for(future, timeout, self._wake_at)

    @checked()
    def run(self, split_set: Mapping[str, NewSplit]) -> Iterator[pa.RecordBatch]:
        """Give one split to each source and give all that depends on them: the task is warm and empty afterwards.

        What is refused is refused here, and nothing is added. What is not read of a window is dropped: of this one when
        the iterator is closed, of earlier ones when the reading of this one begins.
        """
        self._check_outside()
        try:
            with self._lock:
                self._check_addable(split_set)
                self._check_endable()
                self._add(split_set)
                barrier, _ = self._end_window()
        except PenstockError:
            if self.state in OVER:
                self._plan.close()
            raise
        return self._read_window(barrier.number)

    def _read_window(self, number: int) -> Iterator[pa.RecordBatch]:
        self._skip(number - 1)
        try:
            while True:
                batch = self._read(window=number)
                if batch is None:
                    return
                yield batch
        except BaseException:
            self._skip(number)
            raise

    def _skip(self, window: int) -> None:
        """Drop what is left of this window and of those before it."""
        if self._plan.is_lost:
            return
        with self._lock:
            self._changes += 1
            if self._output.skip(window):
                self._plan.wake_exit()
        self._output.wake()  # whoever reads one of them

    def _turn(self, scheduler: SerialScheduler, changes: int) -> bool:
        """Run the plan on this thread, as its caller saw it before so many ``changes``. False: it waits for something
        that is under way elsewhere."""
        with reading(self._plan), self._plan.turns:
            with self._lock:
                requested = self.under_barrier
            while self._one_turn(scheduler):
                if self._output or self.state in OVER or self._at_end():
                    return True
            waits = [wait.reason for task in self.tasks for wait in task.waits()]
        if self._output or self.state in OVER or self._at_end() or self._changes > changes:
            return True
        if WaitReason.DEPENDENCY in waits or scheduler.is_awaiting or not (self._fed or self._wake_at is None):
            return False
        missing = ", ".join(self._inputs.missing)
        if missing and not requested:
            raise ConfigurationError(
                f"nothing can happen before sources {missing} get splits",
                "add a split, request a barrier, or say no_more_splits",
            )
        raise InternalError(f"nothing can run while work remains: {'; '.join(self.why())}")

    def _one_turn(self, scheduler: SerialScheduler) -> bool:
        """A turn of one driver: between two of them another thread's cancel is seen."""
        try:
            with on_callers_thread():
                turn = scheduler.turn(quanta=1)
        except BaseException:  # an interrupt
            self.cancel()
            raise
        self._wake_at = turn.wake_at
        return turn.progressed

    def _take(self) -> pa.RecordBatch | None:
        found, made_room = self._output.take()
        self._changes += 1
        if made_room:
            self._plan.wake_exit()
        if isinstance(found, WindowStatistics):
            if self.state not in OVER:
                self._plan.move(PlanState.BARRIER)
            return None
        return found

    def _at_end(self) -> bool:
        return not self.under_barrier and all(task.data_ended for task in self.tasks)

    # ------------------------------------------------------------------ the rest

    @property
    def tasks(self) -> list[Task]:
        """The tasks of the plan, upstream first."""
        return self._plan.tasks

    def statistics(self) -> list[TaskStatistics]:
        """The counts of the plan's tasks."""
        return [task.statistics() for task in self.tasks]

    def why(self) -> list[str]:
        """What each driver waits for."""
        return [sentence for task in self.tasks for sentence in task.why()]

    def cancel(self) -> None:
        """Stop and release everything; futures of barriers get the error. From anywhere: returns when all is closed,
        but within the task itself (in a user's function, a callback) at once, and all is closed when that has returned.
        """
        self._plan.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()


class LookTask(PlanTask):
    """Gives the rows of a stream as a job would, of the splits that its sources have; nothing is added to them."""

    _fed = False

    def _planned(self, stream: StreamLike, sink: OutputSink, parallelism: int) -> JobPlan:
        return plan_look(stream, sink)

"""A plan that runs in this process, as its tasks see it: who passes on what they send, hears of their ends, ends them.

Rules:

1. It knows nothing of whoever feeds and reads it (``PlanTask``): who drops that, has abandoned the plan, and it ends.
2. Nothing refers upward for good: a task that is closed has let go of everything (``Task``), and its listener knows the
   plan weakly. So what is dropped is gone at once, without the garbage collector.
3. An error is kept without its frames, which would hold all that ran, and is raised as a copy.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from enum import StrEnum
from threading import RLock, Thread

from ..core.errors import ConfigurationError, PenstockError, fresh
from ..core.futures import refuse, resolve
from ..core.identity import Attempt, CheckpointId, TaskId
from ..core.state_machine import StateMachine
from ..exchange.channels import Frame, Upstream
from ..plan.plan import JobPlan
from ..runtime.checkpointing import TaskSnapshot
from ..runtime.orders import Steer
from ..runtime.statistics import OperatorWindow
from ..runtime.task import Task
from ..scheduler.pool import PoolScheduler
from ..scheduler.protocol import Places, Scheduler, Share
from ..scheduler.serial import SerialScheduler
from ..scheduler.shell import is_inside, places
from .plan_output import PlanOutput
from .windows import Windows

_log = logging.getLogger(__name__)


class PlanState(StrEnum):
    """How far a plan has come; its value is what users see."""

    RUNNING = "running"
    BARRIER = "barrier"
    """A task barrier was reached, and its window has been read."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


OVER = frozenset({PlanState.FINISHED, PlanState.FAILED, PlanState.CANCELLED})

LEGAL_PLAN_MOVES: Mapping[PlanState, frozenset[PlanState]] = {
    PlanState.RUNNING: OVER | {PlanState.BARRIER},
    PlanState.BARRIER: OVER | {PlanState.RUNNING},
    **dict.fromkeys(OVER, frozenset()),
}

_ATTEMPT = Attempt(0, 0)


class PlanListener:
    """Passes on what matters to a plan: it has no checkpoints."""

    def __init__(self, plan: RunningPlan) -> None:
        self._plan = weakref.ref(plan)

    def drained(self, barrier: CheckpointId, window: Sequence[OperatorWindow]) -> None:
        if (plan := self._plan()) is not None:
            plan.drained(barrier, window)

    def data_ended(self) -> None:
        if (plan := self._plan()) is not None:
            plan.output.wake()

    def failed(self, error: PenstockError) -> None:
        if (plan := self._plan()) is not None:
            plan.failed(error)

    def round_proposed(self, checkpoint: CheckpointId, round: int) -> None: ...

    def snapshot_taken(self, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None: ...

    def declined(self, checkpoint: CheckpointId) -> None: ...

    def steered(self, order: Steer, possible: int | None) -> None: ...

    def finished(self, cut: CheckpointId | None) -> None: ...


class RunningPlan:
    """See the module's rules. ``scheduler``: who runs it; a serial one belongs to this plan alone. ``fed``:
    its sources get more splits than the plan has."""

    def __init__(
        self,
        plan: JobPlan,
        scheduler: Scheduler | None,
        share: Share,
        output: PlanOutput,
        *,
        fed: bool = True,
    ) -> None:
        assert scheduler is not None
        self.error: PenstockError | None = None
        self.output = output
        #: guards all that follows
        self.lock = RLock()
        #: held by the thread that runs the plan, if it has none of its own
        self.turns = RLock()
        self._machine = StateMachine("the plan", LEGAL_PLAN_MOVES, PlanState.RUNNING)
        self._scheduler = scheduler
        #: whose threads run it; None: those of the process that will start it
        self._process: int | None = None
        self._started = False
        #: nothing of it is left
        self._closed = False
        [(stage, *_)] = plan.sinks.values()
        self._exit = TaskId(stage, 0)
        self._tasks: dict[TaskId, Task] = {}
        self.windows = Windows(0)
        try:
            self._build(plan, scheduler, share, fed)
        except BaseException:
            self._shut_down()
            raise
        self.windows = Windows(sum(len(task.drivers) for task in self.tasks))

    def _build(self, plan: JobPlan, scheduler: Scheduler, share: Share, fed: bool) -> None:
        attempts = dict.fromkeys(plan.tasks(), _ATTEMPT)
        shared, listener = scheduler.share(share), PlanListener(self)
        for task in attempts:
            self._tasks[task] = Task(
                plan, task, _ATTEMPT, attempts, {}, self, listener, more_splits=fed, scheduler=shared
            )

    @property
    def tasks(self) -> list[Task]:
        """The tasks, upstream first."""
        return list(self._tasks.values())

    @property
    def state(self) -> PlanState:
        """How far it has come."""
        return self._machine.state

    def move(self, to: PlanState) -> None:
        """It has come so far, if it had not before."""
        if to is not self.state:
            self._machine.move(to)

    @property
    def is_lost(self) -> bool:
        """Whether this process is a fork of the one whose threads run it: nothing happens here, locks may be held."""
        return self._process is not None and os.getpid() != self._process

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in the plan: in a user's function, or in a callback."""
        return is_inside() and self.was_entered(places())

    def was_entered(self, places: Places) -> bool:
        """The same of whichever thread had these places."""
        return any(task.was_entered(places) for task in self.tasks)

    def start(self) -> None:
        """Let it run, unless that was said before."""
        with self.lock:
            if self.state in OVER:  # cancelled before it started
                return
            started, self._started = self._started, True
            if not started and not isinstance(self._scheduler, SerialScheduler):
                self._process = os.getpid()
        if not started:
            for task in reversed(self.tasks):  # downstream first: who has not started drops what comes
                task.start()

    def wake_exit(self) -> None:
        """Let the end of the plan look whether another batch is welcome."""
        for driver in self._tasks[self._exit].drivers:
            driver.wake()

    # ------------------------------------------------------------------ what the tasks say

    def send(self, frame: Frame) -> None:
        """A frame for another task of the plan."""
        self._tasks[frame.channel.consumer].receive(frame)

    def reply(self, message: Upstream) -> None:
        """A message for the producer of a channel."""
        self._tasks[message.channel.producer].deliver(message)

    def drained(self, barrier: CheckpointId, window: Sequence[OperatorWindow]) -> None:
        """A driver has drained. The one that feeds the output is the last, and puts nothing of the next window there
        before it has come back from here."""
        with self.lock:
            reached = self.windows.drained(barrier, window, time.perf_counter())
        if reached is not None:
            resolve(*reached)
            self.output.put(reached[1])

    def failed(self, error: PenstockError) -> None:
        """A task has failed: so has the plan."""
        with self.lock:
            if self.state not in OVER:
                self.error = error
                self.move(PlanState.FAILED)
        for task in self.tasks:
            task.cancel()
        self.refuse_waiting()

    # ------------------------------------------------------------------ the end

    def cancel(self) -> None:
        """Stop, and release everything."""
        if self.is_lost:
            return
        with self.lock:
            if self.state not in OVER:
                self.move(PlanState.CANCELLED)
        self.close()

    def abandon(self) -> None:
        """Nobody reads it any more. Whoever drops the last reference may hold any lock, the scheduler's too, and does
        not wait: unless everything runs on his thread, another one ends the plan."""
        if self._closed or self.is_lost:
            return
        if isinstance(self._scheduler, SerialScheduler):
            self.cancel()
        else:
            Thread(target=self.cancel, name="penstock-closing", daemon=True).start()

    def close(self) -> None:
        """Release everything. Returns when all is closed, but within the plan at once. What an operator's close raises
        is a note of the plan's error; if there is none the rows are out and stand, and it is logged."""
        closed_before = self._closed
        self._shut_down()
        self.refuse_waiting()
        if self.state is PlanState.CANCELLED:
            self.output.clear()
        if self._closed and not closed_before and self.error is None:
            for task in self.tasks:
                if task.closing_error is not None:
                    _log.warning("a plan that was %s did not close: %s", self.state, task.closing_error)

    def _shut_down(self) -> None:
        closed = [task.cancel() for task in self.tasks]
        if self.is_inside:
            return
        if isinstance(self._scheduler, SerialScheduler):
            with self.turns:
                self._scheduler.shutdown()
        elif is_inside():  # this thread may be the one that the end of the tasks waits for
            return
        elif isinstance(self._scheduler, PoolScheduler):
            self._scheduler.settle(closed)
        elif self.state is PlanState.CANCELLED:  # of one that has finished the reader may be who runs the tasks
            wait(closed)
        self._closed = True

    def refuse_waiting(self) -> None:
        """Nothing more comes: tell everybody who waits."""
        with self.lock:
            unreached = self.windows.abort()
        over = ConfigurationError(f"the task is {self.state}", "make a new one")
        for future in unreached:
            refuse(future, fresh(self.error or over))
        self.output.wake()

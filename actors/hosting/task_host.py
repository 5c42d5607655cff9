"""The thread that owns a task: everything said to the task comes in through one mailbox. No Ray.

Rules:

1. Nobody but the thread gives the task orders. Calls from outside post a message and return.
2. With a scheduler the task runs on its threads, and orders wait for nothing. Without one it runs on this thread, and
   the mailbox is emptied between two steps, so an order waits for a slice of work, and the element it ended in.
3. An attempt is built in place of an older one, which is stopped first; orders and frames of others are dropped, and
   orders to build or start one that name another incarnation of the process: they were repeated on the way.
   Frames that come before ``StartTask`` are kept: a producer may have been started earlier.
4. Files are read, written and committed on a few other threads. What comes of it is told to the coordinator by those
   threads, whatever has become of the attempt: a stale attempt's files must be discarded by somebody who knows of them.
5. Nothing is decided here: an error ends the attempt and is reported, and the coordinator says what happens next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ...coordinator.model import commands
from ...coordinator.model.commands import DeployTask
from ...coordinator.model.events import (
    DataEnded,
    Event,
    Failure,
    RoundProposed,
    TaskDeclined,
    TaskDeployed,
    TaskFailed,
    TaskFinished,
    TaskLost,
)
from ...engine.core.errors import PenstockError
from ...engine.core.identity import Attempt, CheckpointId, TaskId
from ...engine.exchange.channel_state import Restored
from ...engine.exchange.channels import Frame, Upstream
from ...engine.plan.plan import JobPlan
from ...engine.runtime.statistics import OperatorWindow
from ...engine.runtime.task import Step, Task
from ...engine.runtime.task_checkpoints import TaskSnapshot
from ...engine.scheduler.protocol import Scheduler
from ..protocol.messages import (
    UNKNOWN_TIME,
    Abandoned,
    Arrived,
    Asked,
    Closed,
    CommitDone,
    Deployment,
    HostMessage,
    Mailbox,
    Order,
    Ordered,
    StateRead,
    Woken,
)
from ..protocol.translate import failure_of
from ..transport.protocol import BrokenLink, Transport
from .task_feed import TaskFeed
from .task_files import TaskFiles

NO_ROWS_LEFT = Failure("a source has no rows up to the round of the checkpoint: it is about to end", retry=True)
SLICE = 0.02
"""Seconds for which the task runs on this thread before it looks into the mailbox."""
CLOSE_SECONDS = 10.0
"""How long a new attempt waits for the operators of the old one to be closed: a user's function may be stuck."""


class TaskHost:
    """See the module's rules. ``report`` sends an event to the coordinator; it may be called from any thread."""

    def __init__(
        self,
        plan: JobPlan,
        task: TaskId,
        files: TaskFiles,
        report: Callable[[Event], None],
        transport: Callable[[Callable[[BrokenLink], None]], Transport],
        scheduler: Scheduler | None = None,
        incarnation: str = "",
    ) -> None:
        self._plan = plan
        self._scheduler = scheduler
        self._incarnation = incarnation
        self._id = task
        self._files = files
        self._report = report
        self._feed = TaskFeed(plan, files.folder, report)
        self._transport = transport(self._link_broke)
        self._mailbox: Mailbox[HostMessage] = Mailbox()
        self._thread = threading.Thread(target=self._run, name=f"penstock-task-{task}", daemon=True)
        #: the newest deployment; its attempt is the only one that orders and frames may name
        self._deployment: DeployTask | None = None
        #: the task of that attempt, from when its state has been read until it ends
        self._task: Task | None = None
        self._started = False
        #: frames that came between deployment and start
        self._early: list[Frame] = []
        self._open = True

    # ------------------------------------------------------------------ from any thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, message: HostMessage) -> None:
        """Say something to the thread."""
        self._mailbox.post(message)

    def ask(self, question: Callable[[Task], Any], timeout: float) -> Any:
        """The answer to a question about the task; None if none is deployed. Raises TimeoutError if it is too busy."""
        answer: Future[Any] = Future()
        self.post(Asked(question, answer))
        return answer.result(timeout)

    def close(self) -> None:
        """Stop the task and end the thread; returns when both have ended."""
        self.post(Closed())
        self._thread.join()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        step = Step(False)
        while self._open:
            for message in self._mailbox.take(self._patience(step)):
                with _Guard(self):
                    self._handle(message)
            step = self._step()
        self._transport.close()

    def _patience(self, step: Step) -> float | None:
        if step.progressed:
            return 0
        return None if step.wake_at is None else max(0.0, step.wake_at - time.monotonic())

    def _step(self) -> Step:
        if self._task is None or not self._started or self._scheduler is not None:
            return Step(False)
        with _Guard(self):
            return self._task.step(time.monotonic(), SLICE)
        return Step(False)

    def _handle(self, message: HostMessage) -> None:
        match message:
            case Arrived(frames, upstream):
                self._arrived(frames, upstream)
            case Ordered(command):
                self._order(command)
            case Deployment(command):
                self._deploy(message, command)
            case StateRead(attempt, state):
                self._build(attempt, state)
            case CommitDone():
                self._commit_done(message)
            case Asked():
                message.put_to(self._task)
            case Woken():
                pass
            case Abandoned():
                self._release()
            case Closed():
                self._release()
                self._open = False

    def _arrived(self, frames: tuple[Frame, ...], upstream: tuple[Upstream, ...]) -> None:
        current = [frame for frame in frames if self._is_current(frame.attempts[1])]
        if not self._started:
            self._early += current
        elif self._task is not None:
            with _Guard(self):
                for frame in current:
                    self._task.receive(frame)
        for message in upstream:
            if self._task is not None and self._is_current(message.attempts[0]):
                self._task.deliver(message)

    # ------------------------------------------------------------------ orders

    def _deploy(self, deployment: Deployment, command: DeployTask) -> None:
        if command.incarnation not in ("", self._incarnation):
            return
        if self._deployment is not None and command.attempt <= self._deployment.attempt:
            if self._task is not None and command.attempt == self._task.attempt:
                self._report(TaskDeployed(self._id, command.attempt, UNKNOWN_TIME, self._incarnation))
            return
        self._release()
        self._deployment = command
        attempts = dict(command.attempts)
        self._transport.connect({task: (attempts[task], address) for task, address in deployment.peers.items()})
        self._files.read(command, lambda state: self.post(StateRead(command.attempt, state)))

    def _build(self, attempt: Attempt, state: Restored | PenstockError) -> None:
        deployment = self._deployment
        if deployment is None or attempt != deployment.attempt:
            return
        if isinstance(state, PenstockError):
            self._fail(state)
            return
        with _Guard(self):
            listener = _Listener(self, attempt)
            attempts = dict(deployment.attempts)
            self._feed.begin()
            self._task = Task(
                replace(self._plan, claim=deployment.claim),
                self._id,
                attempt,
                attempts,
                state,
                self._transport,
                listener,
                more_splits=bool(self._plan.fed),
                scheduler=self._scheduler,
                notify=lambda: self.post(Woken()),
            )
            opening = self._task.opening
            self._report(TaskDeployed(self._id, attempt, UNKNOWN_TIME, self._incarnation, opening))

    def _order(self, command: Order) -> None:
        if not self._is_current(command.attempt):
            return
        if isinstance(command, commands.StartTask) and command.incarnation not in ("", self._incarnation):
            return
        if isinstance(command, commands.CommitCheckpoint):
            self._files.commit(command, self.post)
        elif self._task is not None:
            self._order_task(self._task, command)

    def _order_task(self, task: Task, command: Order) -> None:
        with _Guard(self):
            match command:
                case commands.StartTask():
                    self._start(task)
                case commands.StopTask():
                    self._release()
                case commands.ProposeRound(checkpoint=checkpoint):
                    task.propose_round(checkpoint)
                case commands.TriggerCheckpoint():
                    self._feed.trigger(task, command)
                case commands.AssignSplits():
                    self._feed.fed(task, command)
                case commands.AbortCheckpoint(checkpoint=checkpoint):
                    task.abort(checkpoint)
                case commands.CommitCheckpoint():
                    pass  # the files' threads do that
                case commands.ExpectBarrier(checkpoint=checkpoint):
                    task.expect(checkpoint)

    def _start(self, task: Task) -> None:
        if self._started:
            task.report_again()
            return
        self._started = True
        task.start()
        early, self._early = self._early, []
        for frame in early:
            task.receive(frame)

    def _commit_done(self, message: CommitDone) -> None:
        if not self._is_current(message.attempt):
            return
        if message.error is not None:
            self._fail(message.error)
        elif self._task is not None:
            self._task.notify_committed(message.checkpoint)

    # ------------------------------------------------------------------ ends

    def _is_current(self, attempt: Attempt) -> bool:
        return self._deployment is not None and attempt == self._deployment.attempt

    def _fail(self, error: BaseException) -> None:
        if self._deployment is not None:
            self._report(TaskFailed(self._id, self._deployment.attempt, failure_of(error), UNKNOWN_TIME))
        self._release()

    def _release(self) -> None:
        task, self._task = self._task, None
        self._started, self._early = False, []
        if task is not None:
            task.stop(CLOSE_SECONDS)

    def _link_broke(self, link: BrokenLink) -> None:
        self._report(TaskLost(link.task, link.attempt, f"{self._id} lost its connection: {link.reason}", UNKNOWN_TIME))

    def taken_snapshot(self, attempt: Attempt, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None:
        """Store a snapshot and tell the coordinator (called by the listener)."""
        self._files.write(self._id, attempt, checkpoint, snapshot)

    def tell(self, event: Event) -> None:
        """Report an event (called by the listener)."""
        self._report(event)


class _Guard:
    """Turns an error that escapes from the task into the attempt's failure, so that the thread lives on."""

    def __init__(self, host: TaskHost) -> None:
        self._host = host

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if error is None:
            return False
        self._host._fail(error)  # whatever it is: an interrupt is the main thread's, and this is not that
        return True


class _Listener:
    """What one attempt of the task says, told to the coordinator."""

    def __init__(self, host: TaskHost, attempt: Attempt) -> None:
        self._host = host
        self._id = host._id
        self._attempt = attempt

    def round_proposed(self, checkpoint: CheckpointId, round: int) -> None:
        self._host.tell(RoundProposed(self._id, self._attempt, checkpoint, round, UNKNOWN_TIME))

    def snapshot_taken(self, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None:
        self._host.taken_snapshot(self._attempt, checkpoint, snapshot)

    def declined(self, checkpoint: CheckpointId) -> None:
        self._host.tell(TaskDeclined(self._id, self._attempt, checkpoint, NO_ROWS_LEFT, UNKNOWN_TIME, True))

    def drained(self, barrier: CheckpointId, window: Sequence[OperatorWindow]) -> None:
        self._host._feed.drained(self._host._task, barrier, window)

    def data_ended(self) -> None:
        self._host.tell(DataEnded(self._id, self._attempt, UNKNOWN_TIME))

    def finished(self) -> None:
        self._host.tell(TaskFinished(self._id, self._attempt, UNKNOWN_TIME))

    def failed(self, error: PenstockError) -> None:
        self._host.tell(TaskFailed(self._id, self._attempt, failure_of(error), UNKNOWN_TIME))

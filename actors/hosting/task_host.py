"""The thread that owns a task, and the threads that do its files: everything comes in through one mailbox. No Ray.

Rules:

1. Nobody but the thread gives the task orders. Calls from outside post a message and return.
2. With a scheduler the task runs on its threads, and orders wait for nothing. Without one it runs on this thread, and
   the mailbox is emptied between two steps, so an order waits for a slice of work, and the element it ended in.
3. An attempt is built in place of an older one, which is stopped first; orders and frames of others are dropped, and
   orders to build or start one that name another incarnation of the process: they were repeated on the way.
   Frames that come before ``StartTask`` are kept: a producer may have been started earlier.
   What tasks of the same process send each other goes past the mailbox (``arrive``) as soon as the task runs on threads
   of a scheduler and everything that came before is out of it: no thread is woken only to hand something on.
4. Files are read, written and committed on a few other threads. They report what comes of it to the coordinator,
   whatever has become of the attempt: a stale attempt's files must be discarded by somebody who knows of them.
5. A sign of life is given by the thread, so that one that hangs is found out; for it by who asks while it may take its
   time: where it runs the task itself, and while an attempt is built or closed, which calls users' functions.
6. Nothing is decided here: an error ends the attempt and is reported, and the coordinator says what happens next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from ...coordinator.model import commands
from ...coordinator.model.commands import CommitCheckpoint, DeployTask
from ...coordinator.model.events import (
    DataEnded,
    Event,
    Failure,
    MixtureSteered,
    RoundProposed,
    SnapshotTiming,
    TaskAcked,
    TaskCommitted,
    TaskDeclined,
    TaskDeployed,
    TaskDescribed,
    TaskFailed,
    TaskFinished,
    TaskLost,
)
from ...engine.core.errors import PenstockError, as_penstock_error
from ...engine.core.identity import Attempt, CheckpointId, TaskId
from ...engine.exchange.channels import Frame, Upstream
from ...engine.plan.plan import JobPlan
from ...engine.runtime.checkpointing import TaskSnapshot
from ...engine.runtime.key_meetings import KeyMeetings
from ...engine.runtime.orders import Steer
from ...engine.runtime.restored import NOTHING_RESTORED, Restored
from ...engine.runtime.statistics import OperatorWindow, TaskStatistics
from ...engine.runtime.task import Step, Task
from ...engine.scheduler.protocol import QueryOpener
from ...engine.scheduler.threads import InOrder, Threads
from ...engine.state.change_log import StatePart
from ..protocol.messages import (
    UNKNOWN_TIME,
    Arrived,
    Closed,
    CommitDone,
    CoordinatorGone,
    Deployment,
    Mailbox,
    Order,
    SignAsked,
    StateRead,
    StatisticsAsked,
    TaskMessage,
    Woken,
    answer,
)
from ..protocol.translate import failure_of
from ..storage.damage import START_ELSEWHERE
from ..storage.local_copies import LocalCopies
from ..storage.snapshots import SnapshotFiles
from ..transport.protocol import BrokenLink, Transport
from .task_split_sets import TaskSplitSets
from .waiting_chain import what_it_is_at

if TYPE_CHECKING:
    from ...engine.feed.server import FeedServer

NO_ROWS_LEFT = Failure("a source has no rows up to the round of the checkpoint: it is about to end", retry=True)
SLICE = 0.02
"""Seconds for which the task runs on this thread before it looks into the mailbox."""
CLOSE_SECONDS = 10.0
"""How long a new attempt waits for the operators of the old one to be closed: a user's function may be stuck."""
THREADS = 2
"""One snapshot may be written while another commit runs; more would only compete for the same disk."""


def snapshots_of(plan: JobPlan, folder: str, *, local_copies: bool) -> SnapshotFiles:
    """The state files of a job, for a process that hosts its tasks."""
    return SnapshotFiles(folder, plan.name, copies=LocalCopies(plan.key) if local_copies else None)


class TaskFiles:
    """What a task has read, written and committed for it. ``report`` sends an event to the coordinator.

    1. The task's thread never waits for storage. Results come back through callbacks, on one of these threads.
    2. Storage that fails declines the checkpoint: the task goes on. A commit that fails ends the attempt: what the log
       promises must become visible, so the coordinator restarts and commits again.
    3. Committing is idempotent (the committer's contract), so an order given twice is carried out twice; but one after
       the other: the permit of a later checkpoint lists what the commit before has not answered for yet.
    4. Snapshots are stored one after the other, in their order, as states in parts want it (``change_log``, rule 2).
    """

    def __init__(self, plan: JobPlan, snapshots: SnapshotFiles, report: Callable[[Event], None]) -> None:
        self._plan = plan
        self._snapshots = snapshots
        self._report = report
        self._threads = Threads(THREADS, "penstock-files")
        self._commits, self._writes = InOrder(self._threads), InOrder(self._threads)
        #: the snapshots that are to be written, and when they were handed over
        self._under_way: dict[tuple[Attempt, CheckpointId], tuple[TaskSnapshot, float]] = {}
        #: the files of the last snapshot: those that are named again were not written again
        self._named: frozenset[str] = frozenset()

    @property
    def folder(self) -> str:
        """The checkpoint folder."""
        return self._snapshots.url

    @property
    def writing(self) -> int:
        """Bytes of snapshots that are to be written."""
        under_way = [snapshot for snapshot, _ in list(self._under_way.values())]
        flights = sum(each.flight.nbytes for each in under_way if each.flight is not None)
        return flights + sum(int(table.nbytes) for each in under_way for table in each.tables.values())

    def with_files(self, found: TaskStatistics) -> TaskStatistics:
        """The counts of the task, with that and with what was read from copies on this machine."""
        since = [since for _, since in list(self._under_way.values())]
        seconds = time.perf_counter() - min(since) if since else 0.0
        copies = self._snapshots.copies
        return msgspec.structs.replace(found, writing=self.writing, writing_seconds=seconds, copies=copies)

    def read(self, command: DeployTask, done: Callable[[Restored | PenstockError], None]) -> None:
        """Read what an attempt is restored from and hand it, or the error, to ``done``: at once if there is nothing."""
        if not (command.state or command.ended or command.finished or command.reweights):
            done(NOTHING_RESTORED)
            return

        def work() -> None:
            snapshots = self._snapshots
            if command.root:
                snapshots = SnapshotFiles(command.root, self._plan.name, way_on=START_ELSEWHERE)
            try:
                done(self._restored(command, snapshots))
            except Exception as error:
                done(as_penstock_error(error))

        self._threads.submit(work)

    def _restored(self, command: DeployTask, snapshots: SnapshotFiles) -> Restored:
        """What the attempt is restored from: of a task that had finished only how far its sources had come."""
        state = command.state
        if command.finished:
            state = tuple(each for each in state if each.operator in self._plan.sources)
        parts: dict[str, tuple[StatePart, ...]] = {}
        if snapshots is self._snapshots and command.restored_from is not None:
            tables, parts = snapshots.restored(command.task, command.restored_from, command.attempt, state)
        else:
            tables = snapshots.read(state)
        flights = snapshots.read_flights(state)
        return Restored(tables, command.ended, command.finished, flights, command.reweights, parts)

    def write(self, task: TaskId, attempt: Attempt, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None:
        """Store a snapshot and report that it is there, or why it is not."""

        def work() -> None:
            started = time.perf_counter()
            try:
                # the files of a task that was deployed as finished are carried on by the coordinator
                carried = snapshot.finished_on_restore
                held = snapshot.tables, snapshot.flight
                state = () if carried else self._snapshots.write(task, checkpoint, attempt, *held)
            except Exception as error:
                failure = failure_of(as_penstock_error(error))
                self._report(TaskDeclined(task, attempt, checkpoint, failure, UNKNOWN_TIME))
                return
            finally:
                del self._under_way[attempt, checkpoint]
            ended, named = snapshot.data_ended, self._named
            self._named = frozenset(handle.location for handle in state)
            written = sum(each.bytes for each in state if not each.location or each.location not in named)
            timing = SnapshotTiming(
                alignment=snapshot.alignment,
                synchronous=snapshot.synchronous,
                asynchronous=time.perf_counter() - started,
                new_bytes=written,
                processed_bytes=snapshot.processed_bytes,
                persisted_bytes=sum(handle.bytes for handle in state if handle.is_flight),
                unaligned=snapshot.unaligned,
            )
            self._report(
                TaskAcked(
                    task,
                    attempt,
                    checkpoint,
                    state,
                    snapshot.committables,
                    ended,
                    UNKNOWN_TIME,
                    timing,
                    finished_on_restore=carried,
                    ended=snapshot.ended,
                    ledger=snapshot.ledger,
                )
            )

        self._under_way[attempt, checkpoint] = snapshot, time.perf_counter()
        self._writes.submit(work)

    def commit(self, command: CommitCheckpoint, done: Callable[[CommitDone], None]) -> None:
        """Make a permit's committables visible, report it, then call ``done``."""

        def work() -> None:
            self._snapshots.completed(command.task, command.permit.checkpoint)
            error: PenstockError | None = None
            try:
                self._plan.commit(command.permit)
            except PenstockError as failed:
                error = failed
            else:
                self._report(TaskCommitted(command.task, command.attempt, command.permit.checkpoint, UNKNOWN_TIME))
            done(CommitDone(command.attempt, command.permit.checkpoint, error))

        self._commits.submit(work)

    def close(self) -> None:
        """Let what runs end and start nothing new."""
        self._threads.close(drop=True)
        self._snapshots.close()


class TaskHost:
    """See the module's rules. ``report`` sends an event to the coordinator; it may be called from any thread."""

    def __init__(
        self,
        plan: JobPlan,
        task: TaskId,
        files: TaskFiles,
        report: Callable[[Event], None],
        transport: Callable[[Callable[[BrokenLink], None]], Transport],
        scheduler: QueryOpener | None = None,
        incarnation: str = "",
        feeds: Mapping[str, FeedServer] | None = None,
        meetings: KeyMeetings | None = None,
    ) -> None:
        self._plan = plan
        self._scheduler = scheduler
        self._incarnation = incarnation
        self._feeds = feeds
        self._meetings = meetings
        self._id = task
        self._files = files
        self._report = report
        self._split_sets = TaskSplitSets(plan, files.folder, report)
        self._transport = transport(self._link_broke)
        self._mailbox: Mailbox[TaskMessage] = Mailbox()
        #: the task, while what arrives goes past the mailbox; set under the lock, when nothing that has is left in that
        self._reached: Task | None = None
        self._door = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"penstock-task-{task}", daemon=True)
        #: the newest deployment; its attempt is the only one that orders and frames may name
        self._deployment: DeployTask | None = None
        #: the task of that attempt, from when its state has been read until it ends
        self._task: Task | None = None
        self._started = False
        #: frames that came between deployment and start
        self._early: list[Frame] = []
        self._open = True
        #: the thread may be in users' functions for as long as these take
        self._takes_time = scheduler is None

    # ------------------------------------------------------------------ from any thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, message: TaskMessage) -> None:
        """Put a message into the thread's mailbox."""
        self._mailbox.post(message)

    def arrive(self, message: Frame | Upstream) -> None:
        """Take what a task of this process sends. What comes from one of its drivers stays in order."""
        task = self._reached
        if task is None:
            with self._door:
                task = self._reached
                if task is None:
                    self.post(Arrived((message,), ()) if isinstance(message, Frame) else Arrived((), (message,)))
                    return
        if isinstance(message, Frame):
            task.receive(message)
        else:
            task.deliver(message)

    def give_sign(self, answer: Callable[[], None]) -> None:
        """Have ``answer`` called to show that the host is alive (rule 5)."""
        if self._takes_time:
            answer()
        else:
            self.post(SignAsked(answer))

    def statistics(self, timeout: float) -> TaskStatistics | None:
        """What the task has counted; None if none is deployed. Raises TimeoutError if it is too busy to say."""
        found: Future[TaskStatistics | None] = Future()
        self.post(StatisticsAsked(found))
        return found.result(timeout)

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
            if self._started and self._reached is None and self._scheduler is not None:
                self._pass_mailbox()
            step = self._step()
        self._transport.close()

    def _pass_mailbox(self) -> None:
        """Let what arrives go past the mailbox if it is empty; else what is in it comes first."""
        with self._door:
            if self._mailbox.is_empty:
                self._reached = self._task

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

    def _handle(self, message: TaskMessage) -> None:
        match message:
            case Arrived(frames, upstream):
                self._arrived(frames, upstream)
            case Deployment(command):
                self._deploy(message, command)
            case StateRead(attempt, state):
                self._build(attempt, state)
            case CommitDone():
                self._commit_done(message)
            case StatisticsAsked(found):
                task = self._task
                answer(found, lambda: None if task is None else self._files.with_files(task.statistics()))
            case SignAsked(sign):
                sign()
            case Woken():
                pass
            case CoordinatorGone():
                self._release()
            case Closed():
                self._release()
                self._open = False
            case _:
                self._order(message)

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
                self._report_deployed(self._task)
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
        with _Guard(self), self._taking_time():
            listener = _Listener(self, attempt)
            attempts = dict(deployment.attempts)
            self._split_sets.begin()
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
                feeds=self._feeds,
                meetings=self._meetings,
            )
            self._report_deployed(self._task)

    def _report_deployed(self, task: Task) -> None:
        self._report(TaskDeployed(self._id, task.attempt, UNKNOWN_TIME, self._incarnation, task.opening))

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
                    self._split_sets.trigger(task, command)
                case commands.AssignSplits():
                    self._split_sets.take(task, command)
                case commands.AbortCheckpoint(checkpoint=checkpoint):
                    task.abort(checkpoint)
                case commands.CommitCheckpoint():
                    pass  # the files' threads do that
                case commands.ExpectBarrier(checkpoint=checkpoint):
                    task.expect(checkpoint)
                case commands.DescribeTask(checkpoint=checkpoint):
                    words = what_it_is_at(self._files.with_files(task.statistics()), checkpoint)
                    self._report(TaskDescribed(self._id, command.attempt, checkpoint, words, UNKNOWN_TIME))
                case commands.SteerMixture():
                    task.steer(command.operator, command.reweights, command.limit)

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
        task, self._task, self._reached = self._task, None, None
        self._started, self._early = False, []
        if task is not None:
            with self._taking_time():
                task.stop(CLOSE_SECONDS)

    @contextmanager
    def _taking_time(self) -> Iterator[None]:
        """Rule 5."""
        before, self._takes_time = self._takes_time, True
        try:
            yield
        finally:
            self._takes_time = before

    def _link_broke(self, link: BrokenLink) -> None:
        self._report(TaskLost(link.task, link.attempt, f"{self._id} lost its connection: {link.reason}", UNKNOWN_TIME))


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
    """Reports what becomes of one attempt of the task."""

    def __init__(self, host: TaskHost, attempt: Attempt) -> None:
        self._host = host
        self._report, self._id, self._attempt = host._report, host._id, attempt

    def round_proposed(self, checkpoint: CheckpointId, round: int) -> None:
        self._report(RoundProposed(self._id, self._attempt, checkpoint, round, UNKNOWN_TIME))

    def snapshot_taken(self, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None:
        self._host._files.write(self._id, self._attempt, checkpoint, snapshot)

    def declined(self, checkpoint: CheckpointId) -> None:
        self._report(TaskDeclined(self._id, self._attempt, checkpoint, NO_ROWS_LEFT, UNKNOWN_TIME, True))

    def drained(self, barrier: CheckpointId, window: Sequence[OperatorWindow]) -> None:
        self._host._split_sets.drained(self._host._task, barrier, window)

    def steered(self, order: Steer, possible: int | None) -> None:
        known = len(order.reweights)
        report = MixtureSteered(self._id, self._attempt, order.operator, known, order.limit, possible, UNKNOWN_TIME)
        self._report(report)

    def data_ended(self) -> None:
        self._report(DataEnded(self._id, self._attempt, UNKNOWN_TIME))

    def finished(self, cut: CheckpointId | None) -> None:
        self._report(TaskFinished(self._id, self._attempt, UNKNOWN_TIME, cut))

    def failed(self, error: PenstockError) -> None:
        self._report(TaskFailed(self._id, self._attempt, failure_of(error), UNKNOWN_TIME))

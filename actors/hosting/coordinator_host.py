"""The thread that owns a coordinator: events in, commands out. No Ray, and no decisions.

Rules:

1. Nobody but the thread touches the core. Whatever happens is posted to its mailbox and becomes an event there, with
   this process's monotonic time in place of the sender's.
2. The commands of one event are carried out in order, before the next event is handled. What takes time (the log, the
   files, calls to other processes) is handed on; what comes of it comes back as an event.
3. One timer: the mailbox is waited for until ``next_deadline``, then the core is told that the time has come; or until
   the next beat, when the processes are looked after. What is in the mailbox then is handled first.
4. An error that escapes from the core is a bug. It ends the thread. ``died`` is told, which may end the process, so
   that another takes over; if it returns, everybody who waits gets the error.
5. Whoever waits for a change of the status gets it at once, but for news of checkpoints that are under way: these wait
   ``LULL`` seconds for company. A checkpoint would otherwise cost an answer, and the next question, for each task.
6. What is deleted at a job's end is deleted when the host is closed: till then its checkpoints are what it is audited
   by.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from ...coordinator.machine import Coordinator
from ...coordinator.model import commands
from ...coordinator.model.commands import Command, DeployTask
from ...coordinator.model.events import DeadlinePassed, Event
from ...coordinator.model.manifest import Claimant
from ...coordinator.model.settings import Settings
from ...coordinator.model.statistics import JobStatus
from ...coordinator.restore.stored_state import Snapshot
from ...engine.core.errors import InternalError
from ...engine.plan.plan import JobPlan
from ..claims.ownership import outputs_of
from ..claims.presence import this_claimant
from ..protocol.messages import (
    Asked,
    Beat,
    Closed,
    CoordinatorMessage,
    Mailbox,
    Order,
    ProcessMessage,
    Versioned,
)
from ..protocol.translate import execution_graph, unexpected
from .coordinator_files import CoordinatorFiles

LULL = 0.1


def coordinator_of(
    plan: JobPlan, settings: Settings, snapshot: Snapshot | None, claimant: Claimant | None = None
) -> Coordinator:
    """A coordinator of the planned job, unlike any other. ``claimant``: whose run it is; by default this process's."""
    return Coordinator(
        plan.name,
        plan.fingerprint,
        plan.description,
        execution_graph(plan),
        settings,
        uuid.uuid4().hex,
        snapshot,
        plan.uuid,
        bool(outputs_of(plan)),
        plan.inputs,
        claimant or this_claimant(),
    )


_DELETES = (commands.DiscardState, commands.DiscardEntries, commands.DiscardSnapshot)


class Drivers(Protocol):
    """The processes that host the tasks. Both methods are called on the coordinator's thread and must not block."""

    def perform(self, command: DeployTask | commands.ReplaceProcess | Order) -> None:
        """Hand an order to the process of its task."""

    def handle(self, message: ProcessMessage) -> list[Event]:
        """Take note of what became of a process; the events that follow from it."""


class Witness(Protocol):
    """Somebody who is told what happens (``logs``). Called on the coordinator's thread."""

    def told(self, event: Event) -> None:
        """The core is about to handle an event."""

    def changed(self, before: JobStatus, after: JobStatus) -> None:
        """The status is another one."""


class CoordinatorHost:
    """See the module's rules."""

    def __init__(
        self,
        core: Coordinator,
        files: Callable[[Callable[[Event], None]], CoordinatorFiles],
        drivers: Callable[[Callable[[ProcessMessage], None]], Drivers],
        validate: bool = False,
        period: float | None = None,
        told: Callable[[JobStatus], None] | None = None,
        witness: Witness | None = None,
        died: Callable[[InternalError, JobStatus], None] | None = None,
    ) -> None:
        self._core = core
        #: is told of each new status, on the thread, before anybody else
        self._told = told
        self._witness = witness
        self._died = died
        #: seconds between two beats, and when the next one is due; None: never
        self._period = period
        self._beat_at = None if period is None else time.monotonic() + period
        self._validate = validate
        self._mailbox: Mailbox[CoordinatorMessage] = Mailbox()
        self._files = files(self.post)
        self._drivers = drivers(self.post)
        self._thread = threading.Thread(target=self._run, name="penstock-coordinator", daemon=True)
        self._open = True
        #: what is deleted at the job's end, once whoever waited for it has had the time to audit it
        self._at_close: list[Command] = []
        #: guards the four fields below; notified when they change
        self._changed = threading.Condition()
        self._version = (uuid.uuid4().hex, 0)
        #: the newest version with more to tell than news of checkpoints that are under way
        self._telling = 0
        self._status = core.status()
        self._error: InternalError | None = None

    # ------------------------------------------------------------------ from any thread

    def start(self) -> None:
        """Start the thread, and with it the job."""
        self._thread.start()

    def post(self, message: CoordinatorMessage) -> None:
        """Tell the thread something."""
        self._mailbox.post(message)

    def wait_status(self, version: tuple[str, int] | None, timeout: float) -> Versioned:
        """The status, soon after its version is another than the one given (rule 5), or after ``timeout`` seconds."""
        until = time.monotonic() + timeout
        with self._changed:
            self._changed.wait_for(lambda: self._version != version or self._error is not None, timeout)
            if version is not None and version[0] == self._version[0]:
                company = min(LULL, until - time.monotonic())
                self._changed.wait_for(lambda: self._telling > version[1] or self._error is not None, company)
            if self._error is not None:
                raise self._error
            return Versioned(self._version, self._status)

    def ask(self, question: Callable[[Coordinator], Any], timeout: float) -> Any:
        """The answer to a question about the core. Raises TimeoutError."""
        if self._error is not None:
            raise self._error
        answer: Future[Any] = Future()
        self.post(Asked(question, answer))
        return answer.result(timeout)

    def close(self) -> None:
        """End the thread, without a word to anybody; returns when it has ended."""
        self.post(Closed())
        self._thread.join()
        at_close, self._at_close = self._at_close, []
        for command in at_close:
            self._do(command)
        self._files.close()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._perform(self._core.start(time.monotonic()))
            while self._open:
                for message in self._mailbox.take(self._patience()):
                    self._handle(message)
                self._look_at_clock()
                self._publish()
        except Exception as error:
            failure = unexpected(error)
            if self._died is not None:
                self._died(failure, self._status)
            with self._changed:
                self._error = failure
                self._changed.notify_all()

    def _patience(self) -> float | None:
        times = [at for at in (self._core.next_deadline(), self._beat_at) if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        deadline = self._core.next_deadline()
        if deadline is not None and deadline <= now:
            self._tell(DeadlinePassed(now))
        if self._period is not None and self._beat_at is not None and self._beat_at <= now:
            self._beat_at = now + self._period
            self._handle(Beat())

    def _handle(self, message: CoordinatorMessage) -> None:
        if isinstance(message, Closed):
            self._open = False
        elif isinstance(message, Asked):
            message.put_to(self._core)
        elif isinstance(message, ProcessMessage):
            for event in self._drivers.handle(message):
                self._tell(event)
        else:
            self._tell(message)

    def _tell(self, event: Event) -> None:
        if self._witness is not None:
            self._witness.told(event)
        self._perform(self._core.handle(replace(event, now=time.monotonic())))
        if self._validate:
            self._core.validate()

    def _perform(self, orders: list[Command]) -> None:
        """Rule 6."""
        ends = any(isinstance(command, commands.EndJob) for command in orders)
        for command in orders:
            if ends and isinstance(command, _DELETES):
                self._at_close.append(command)
            else:
                self._do(command)

    def _do(self, command: Command) -> None:
        match command:
            case commands.ReadLog():
                self._files.read_log()
            case commands.StoreEntry(entry):
                self._files.store(entry)
            case commands.DiscardState(handles):
                self._files.discard(handles)
            case commands.CopySavepoint():
                self._files.copy_savepoint(command)
            case commands.StoreSavepoint():
                self._files.store_savepoint(command)
            case commands.DiscardCopies(checkpoint, location):
                self._files.discard_copies(location, checkpoint)
            case commands.DiscardSnapshot(location, handles):
                self._files.discard_snapshot(location, handles)
            case commands.DiscardEntries(numbers):
                self._files.discard_entries(numbers)
            case commands.ReadSplitSets(start):
                self._files.read_split_sets(start)
            case commands.DiscardSplitSets(numbers):
                self._files.discard_split_sets(numbers)
            case commands.TakeOutputs():
                self._files.take_outputs(command)
            case commands.CommitOrphans():
                self._files.commit(command)
            case commands.EndJob():
                self._files.end_presence()  # the status says the rest, and whoever waits for it is told
            case _:
                self._drivers.perform(command)

    def _publish(self) -> None:
        status = self._core.status()
        if self._told is not None and status != self._status:
            self._told(status)
        with self._changed:
            before = self._status
            if status != before:
                self._status = status
                self._version = (self._version[0], self._version[1] + 1)
                if _without_news(status) != _without_news(before):
                    self._telling = self._version[1]
                self._changed.notify_all()
        if self._witness is not None and status != before:
            self._witness.changed(before, status)


def _without_news(status: JobStatus) -> JobStatus:
    """All that a status tells but what is under way."""
    return replace(status, pending=None, in_flight=(), why="")

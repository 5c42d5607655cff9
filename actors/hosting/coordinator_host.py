"""The thread that owns a coordinator, and the threads that do its files: events in, commands out. No Ray, no decisions.

Rules:

1. Nobody but the thread touches the core. Whatever happens is posted to its mailbox and becomes an event there, with
   this process's monotonic time in place of the sender's.
2. The commands of one event are carried out in order, before the next event is handled. What takes time (the log, the
   files, calls to other processes) is handed on; what comes of it comes back as an event.
3. One timer: the mailbox is waited for until ``next_deadline``, then the core gets ``DeadlinePassed``; or until
   the next heartbeat, when the processes are looked after. What is in the mailbox then is handled first.
4. An error that escapes from the core is a bug. It ends the thread. ``on_death`` is called, which may end the process,
   so that another takes over; if it returns, everybody who waits gets the error.
5. Who waits for a change of the status gets it at once, unless it is only about checkpoints that are under way: these
   wait for more of them, ``COALESCING_DELAY`` at most. A checkpoint would otherwise cost an answer, and the next
   question, for each task.
6. What is deleted at a job's end is deleted when the host is closed: till then its checkpoints are what it is audited
   by.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol, TypeAlias

import pyarrow as pa
from msgspec.structs import replace

from ...coordinator.machine import Coordinator
from ...coordinator.model import commands, events
from ...coordinator.model.commands import Command
from ...coordinator.model.events import Event, Failure, SplitSetsRead
from ...coordinator.model.manifest import Claim, Claimant, Manifest
from ...coordinator.model.settings import Settings
from ...coordinator.model.statistics import JobStatus, Overview, WindowReport
from ...coordinator.model.store import Store
from ...coordinator.restore.stored_state import Snapshot
from ...engine.core.errors import InternalError, as_penstock_error, unexpected
from ...engine.plan.plan import JobPlan
from ...engine.scheduler.threads import Threads
from ..audit.audit import state_of
from ..claims.ownership import outputs_of, take_outputs
from ..claims.presence import Presence, find_running, this_claimant
from ..claims.savepoints import SavepointFiles
from ..protocol.messages import (
    UNKNOWN_TIME,
    CheckpointsAsked,
    Closed,
    CoordinatorMessage,
    DriverCommand,
    HeartbeatDue,
    Mailbox,
    ProcessMessage,
    Versioned,
    WindowsAsked,
    answer,
)
from ..protocol.translate import execution_graph, failure_of
from ..storage.log import SplitLog, create_entry, delete_entries, naming_log, read_entries
from ..storage.snapshots import SnapshotFiles

_log = logging.getLogger(__name__)

COALESCING_DELAY = 0.1
"""Seconds."""


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


# ---- the files

FileCommand: TypeAlias = (
    commands.ReadLog
    | commands.StoreEntry
    | commands.DiscardEntries
    | commands.ReadSplitSets
    | commands.DiscardSplitSets
    | commands.TakeOutputs
    | commands.CommitOrphans
    | commands.CopySavepoint
    | commands.StoreSavepoint
    | commands.DiscardCopies
    | commands.DiscardSnapshot
    | commands.DiscardState
)
_OF_THE_LOG = (commands.ReadLog, commands.StoreEntry, commands.DiscardEntries, commands.ReadSplitSets)
"""Done by a thread of their own, in order, so that entries wait for nothing else."""


class CoordinatorFiles:
    """What a coordinator has read, stored, committed and deleted for it, on threads of its own.

    The coordinator's thread never waits for storage: the answers are given to ``notify`` as events, by one of these
    threads. Deleting what nobody needs may fail: the files stay, nothing else happens. ``refused``: why nobody is to
    take the job over: the log is not read, and the job fails with that. ``at_once``: the log is in memory, and nobody
    else can read it: there is nothing to wait for, nor anybody who asks whether the run goes on.
    """

    def __init__(
        self,
        plan: JobPlan,
        store: Store,
        snapshots: SnapshotFiles,
        notify: Callable[[Event], None],
        take_over: bool = False,
        refused: Failure | None = None,
        at_once: bool = False,
    ) -> None:
        self._refused = refused
        self._at_once = at_once
        self._plan = plan
        self._take_over = take_over
        self._store = store
        self._splits = SplitLog(store, plan.name)
        self._snapshots = snapshots
        self._savepoints = SavepointFiles(snapshots.url, plan.name)
        self._notify = notify
        self._presence = Presence()
        self._log_thread = Threads(1, "penstock-log")
        self._file_thread = Threads(1, "penstock-files")

    def perform(self, command: FileCommand) -> None:
        """Carry out a command, later; notify of the event that answers it, if one does."""
        if self._at_once and isinstance(command, _OF_THE_LOG):
            self._work(command)
            return
        if isinstance(command, commands.StoreEntry) and isinstance(command.entry, Claim):
            self._presence.begin(command.entry.owner)  # who reads the claim finds its run
        threads = self._log_thread if isinstance(command, _OF_THE_LOG) else self._file_thread
        threads.submit(partial(self._work, command))

    def _work(self, command: FileCommand) -> None:
        try:
            with self._naming(command):
                event = self._carry_out(command)
        except Exception as error:
            event = _failed(command, failure_of(as_penstock_error(error)))
        if event is not None:
            self._notify(event)

    def _naming(self, command: FileCommand) -> AbstractContextManager[None]:
        """What the store refuses says where: all else has errors of its own."""
        if not isinstance(command, _OF_THE_LOG):
            return nullcontext()
        action = "read" if isinstance(command, commands.ReadLog | commands.ReadSplitSets) else "write into"
        return naming_log(action, self._snapshots.url, self._plan.name)

    def _carry_out(self, command: FileCommand) -> Event | None:
        match command:
            case commands.ReadLog():
                return self._read_log()
            case commands.StoreEntry(entry):
                is_stored = create_entry(self._store, self._plan.name, entry) == "stored"
                return (events.EntryStored if is_stored else events.EntryRefused)(entry.number, UNKNOWN_TIME)
            case commands.DiscardEntries(numbers):
                delete_entries(self._store, self._plan.name, numbers)
            case commands.ReadSplitSets(start):
                entries, oldest = self._splits.read(start)
                return SplitSetsRead(tuple(entries), oldest, UNKNOWN_TIME)
            case commands.DiscardSplitSets(numbers):
                self._splits.delete(numbers)
            case commands.TakeOutputs():
                take_outputs(self._plan, command, self._snapshots.url, self._state_of, take_over=self._take_over)
                return events.OutputsTaken(UNKNOWN_TIME)
            case commands.CommitOrphans(task, attempt, permit):
                self._plan.commit(permit)
                return events.TaskCommitted(task, attempt, permit.checkpoint, UNKNOWN_TIME)
            case commands.CopySavepoint(checkpoint):
                location, holds = self._savepoints.copy(command)
                if holds is not None:
                    return events.SavepointStored(checkpoint, location, UNKNOWN_TIME, holds)
                return events.SavepointCopied(checkpoint, location, UNKNOWN_TIME)
            case commands.StoreSavepoint(checkpoint, location):
                return events.SavepointStored(checkpoint, location, UNKNOWN_TIME, self._savepoints.store(command))
            case commands.DiscardCopies(checkpoint, location):
                self._savepoints.discard_copies(location, checkpoint)
            case commands.DiscardSnapshot(location, handles):
                self._savepoints.delete(location, handles)
            case commands.DiscardState(handles):
                self._snapshots.delete(handles)
        return None

    def _read_log(self) -> Event:
        if self._refused is not None:
            return events.LogFailed(self._refused, UNKNOWN_TIME)
        entries = tuple(read_entries(self._store, self._plan.name))
        return events.LogRead(entries, UNKNOWN_TIME, find_running(entries))

    def _state_of(self, manifest: Manifest, root: str) -> Mapping[str, pa.Table]:
        return state_of(manifest, root, self._plan.name, self._plan.sinks)

    def end_presence(self) -> None:
        """The run is over."""
        self._presence.end()

    def close(self, last: Sequence[FileCommand] = ()) -> None:
        """Let what is under way end, then carry out what comes ``last``: entries go before the files that they name."""
        self._presence.end()
        self._log_thread.close(drop=True)
        for command in sorted(last, key=lambda command: not isinstance(command, commands.DiscardEntries)):
            self._file_thread.submit(partial(self._work, command))
        self._file_thread.close()


def _failed(command: FileCommand, failure: Failure) -> Event | None:
    """The event that answers a command which has failed."""
    match command:
        case commands.ReadLog():
            return events.LogFailed(failure, UNKNOWN_TIME)
        case commands.StoreEntry(entry):
            return events.EntryFailed(entry.number, failure, UNKNOWN_TIME)
        case commands.TakeOutputs():
            return events.OutputsRefused(failure, UNKNOWN_TIME)
        case commands.CommitOrphans(task, attempt):
            return events.TaskFailed(task, attempt, failure, UNKNOWN_TIME)
        case commands.CopySavepoint(checkpoint) | commands.StoreSavepoint(checkpoint):
            return events.SavepointFailed(checkpoint, failure, UNKNOWN_TIME)
        case commands.ReadSplitSets(start):
            _log.warning("the log of split sets could not be read: %s", failure.message)
            return SplitSetsRead((), start, UNKNOWN_TIME, failed=True)
        case _:
            _log.warning("%s: what nobody needs stays: %s", type(command).__name__, failure.message)
            return None


# ---- the thread


class Drivers(Protocol):
    """The processes that host the tasks. Both methods are called on the coordinator's thread and must not block."""

    def perform(self, command: DriverCommand) -> None:
        """Send an order to the process of its task."""

    def handle(self, message: ProcessMessage) -> list[Event]:
        """Take note of what became of a process; the events that follow from it."""


class Observer(Protocol):
    """Sees what happens (``logs``). Called on the coordinator's thread."""

    def on_event(self, event: Event) -> None:
        """The core is about to handle an event."""

    def on_status(self, before: JobStatus, after: JobStatus) -> None:
        """The status is another one."""


class CoordinatorHost:
    """See the module's rules. ``heartbeat``: seconds between two looks at the processes; None: nobody looks."""

    def __init__(
        self,
        core: Coordinator,
        files: Callable[[Callable[[Event], None]], CoordinatorFiles],
        drivers: Callable[[Callable[[CoordinatorMessage], None]], Drivers],
        validate: bool = False,
        heartbeat: float | None = None,
        on_status: Callable[[JobStatus], None] | None = None,
        observer: Observer | None = None,
        on_death: Callable[[InternalError, JobStatus], None] | None = None,
    ) -> None:
        self._core = core
        #: gets each new status, on the thread, before anybody else
        self._on_status = on_status
        self._observer = observer
        self._on_death = on_death
        #: seconds between two heartbeats, and when the next one is due; None: never
        self._heartbeat = heartbeat
        self._heartbeat_at = None if heartbeat is None else time.monotonic() + heartbeat
        self._validate = validate
        self._mailbox: Mailbox[CoordinatorMessage] = Mailbox()
        self._files = files(self.post)
        self._drivers = drivers(self.post)
        self._thread = threading.Thread(target=self._run, name="penstock-coordinator", daemon=True)
        self._open = True
        #: more has happened than signs of life since the status was last published
        self._may_differ = True
        #: what is deleted at the job's end, once those who wait for it have had the time to audit it
        self._at_close: list[FileCommand] = []
        #: guards the four fields below; notified when they change
        self._changed = threading.Condition()
        self._version = (uuid.uuid4().hex, 0)
        #: the newest version that does not wait (rule 5)
        self._urgent = 0
        self._status = core.status()
        self._error: InternalError | None = None

    # ------------------------------------------------------------------ from any thread

    def start(self) -> None:
        """Start the thread, and with it the job."""
        self._thread.start()

    def post(self, message: CoordinatorMessage) -> None:
        """Put a message into the thread's mailbox."""
        self._mailbox.post(message)

    def wait_status(self, version: tuple[str, int] | None, timeout: float) -> Versioned:
        """The status, soon after its version is another than the one given (rule 5), or after ``timeout`` seconds."""
        until = time.monotonic() + timeout
        with self._changed:
            self._changed.wait_for(lambda: self._version != version or self._error is not None, timeout)
            if version is not None and version[0] == self._version[0]:
                delay = min(COALESCING_DELAY, until - time.monotonic())
                self._changed.wait_for(lambda: self._urgent > version[1] or self._error is not None, delay)
            if self._error is not None:
                raise self._error
            return Versioned(self._version, self._status)

    def checkpoints(self, timeout: float) -> Overview:
        """Counts, history and summary of the checkpoints. Raises TimeoutError."""
        found: Future[Overview] = Future()
        self._ask(CheckpointsAsked(found))
        return found.result(timeout)

    def windows(self, timeout: float) -> tuple[WindowReport, ...]:
        """The statistics of the newest windows between task barriers. Raises TimeoutError."""
        found: Future[tuple[WindowReport, ...]] = Future()
        self._ask(WindowsAsked(found))
        return found.result(timeout)

    def _ask(self, question: CheckpointsAsked | WindowsAsked) -> None:
        if self._error is not None:
            raise self._error
        self.post(question)

    def close(self) -> None:
        """End the thread and notify nobody; returns when it has ended."""
        self.post(Closed())
        self._thread.join()
        at_close, self._at_close = self._at_close, []
        self._files.close(at_close)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._perform(self._core.start(time.monotonic()))
            while self._open:
                for message in self._mailbox.take(self._patience()):
                    self._handle(message)
                self._look_at_clock()
                if self._may_differ:
                    self._may_differ = False
                    self._publish()
        except Exception as error:
            failure = unexpected(error)
            if self._on_death is not None:
                self._on_death(failure, self._status)
            with self._changed:
                self._error = failure
                self._changed.notify_all()

    def _patience(self) -> float | None:
        times = [at for at in (self._core.next_deadline(), self._heartbeat_at) if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        deadline = self._core.next_deadline()
        if deadline is not None and deadline <= now:
            self._notify(events.DeadlinePassed(now))
        if self._heartbeat is not None and self._heartbeat_at is not None and self._heartbeat_at <= now:
            self._heartbeat_at = now + self._heartbeat
            self._handle(HeartbeatDue())

    def _handle(self, message: CoordinatorMessage) -> None:
        if isinstance(message, (events.TaskAcked, events.TaskCommitted)):  # in a large job most are
            self._notify(message)
            return
        if isinstance(message, ProcessMessage):
            for event in self._drivers.handle(message):
                self._notify(event)
            return
        self._may_differ = True
        match message:
            case CheckpointsAsked(found):
                answer(found, self._core.checkpoint_statistics)
            case WindowsAsked(reports):
                answer(reports, self._core.windows)
            case Closed():
                self._open = False
            case _:
                self._notify(message)

    def _notify(self, event: Event) -> None:
        if self._observer is not None:
            self._observer.on_event(event)
        self._may_differ = True
        self._perform(self._core.handle(replace(event, now=time.monotonic())))
        if self._validate:
            self._core.validate()

    def _perform(self, orders: list[Command]) -> None:
        """Rule 6."""
        if not orders:
            return
        ends = any(isinstance(command, commands.EndJob) for command in orders)
        for command in orders:
            if ends and isinstance(command, commands.DiscardState | commands.DiscardEntries | commands.DiscardSnapshot):
                self._at_close.append(command)
            else:
                self._do(command)

    def _do(self, command: Command) -> None:
        if isinstance(command, commands.EndJob):
            self._files.end_presence()  # the status says the rest
        elif isinstance(command, DriverCommand):
            self._drivers.perform(command)
        else:
            self._files.perform(command)

    def _publish(self) -> None:
        status = self._core.status()
        if self._on_status is not None and status != self._status:
            self._on_status(status)
        with self._changed:
            before = self._status
            if status != before:
                self._status = status
                self._version = (self._version[0], self._version[1] + 1)
                if _without_progress(status) != _without_progress(before):
                    self._urgent = self._version[1]
                self._changed.notify_all()
        if self._observer is not None and status != before:
            self._observer.on_status(before, status)


def _without_progress(status: JobStatus) -> JobStatus:
    """The status without the checkpoints that are under way."""
    return replace(status, pending=None, in_flight=(), why="")

"""The coordinator: facts in, orders out. All that decides about a job's life and its checkpoints.

Rules:

1. ``handle`` is the only way in. No clock, thread, file or network: time comes with the events, and ``next_deadline``
   says when to come back if nothing happens.
2. Every event is handled in two steps: what it says is noted, then whatever has become possible is done, in the fixed
   order of :meth:`Coordinator._advance`. So an order never depends on which event made it possible.
3. The log is the truth. The job is claimed in it before anything else; a checkpoint is complete when its manifest
   is durable there; after an unclear answer the log is read before anything is decided.
4. A coordinator that finds a successor in the log ends with ``EndJob("superseded")`` and orders nothing more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import assert_never

from ..engine.core.identity import CheckpointId, JobIdentity
from ..engine.core.state_machine import IllegalTransition
from .job.job import CLOSING, ENDING, WORKING, Job, LogAnswers
from .job.status import describe
from .job.takeover import Takeover
from .model.commands import Command
from .model.events import (
    CancelRequested,
    CheckpointRequested,
    DataEnded,
    DeadlinePassed,
    EntryFailed,
    EntryRefused,
    EntryStored,
    Event,
    Failure,
    LogFailed,
    LogRead,
    MixtureSteered,
    NoticeGiven,
    OutputsRefused,
    OutputsTaken,
    PinRequested,
    ProcessReady,
    ReweightRequested,
    RoundProposed,
    SavepointCopied,
    SavepointFailed,
    SavepointRequested,
    SavepointStored,
    SplitsAssigned,
    SplitSetsAdded,
    SplitSetsRead,
    SplitSkipped,
    StopRequested,
    TaskAcked,
    TaskCommitted,
    TaskDeclined,
    TaskDeployed,
    TaskDescribed,
    TaskFailed,
    TaskFinished,
    TaskLost,
    UnpinRequested,
    WindowDrained,
)
from .model.execution_graph import ExecutionGraph
from .model.job_states import FINAL_JOB_STATES, JobState, TaskStatus
from .model.kinds import Cause, Request
from .model.manifest import Claimant, Manifest
from .model.settings import Settings
from .model.statistics import JobStatus, Overview, WindowReport
from .restore.stored_state import Snapshot
from .state.context import Context
from .state.tasks import TaskRecord

LOGGED = 40
"""Events kept: a checkpoint of a small job, from its trigger on."""


class EventLog:
    """The last ``LOGGED`` events with the orders given because of them: the text that goes with an error of ours."""

    def __init__(self) -> None:
        self._pairs: deque[tuple[Event, tuple[Command, ...]]] = deque(maxlen=LOGGED)

    def add(self, event: Event, commands: Sequence[Command]) -> None:
        self._pairs.append((event, tuple(commands)))

    def show(self, word: str = "") -> str:
        """One line per event and per command; only pairs that mention ``word``."""
        lines: list[str] = []
        for event, commands in self._pairs:
            said = [_shorten(event), *(f"    → {_shorten(command)}" for command in commands)]
            if any(word in line for line in said):
                lines += said
        return "\n".join(lines)


def _shorten(message: Event | Command) -> str:
    text = f"LogRead({len(message.entries)} entries)" if isinstance(message, LogRead) else str(message)
    return text if len(text) <= 300 else f"{text[:300]}…"


_Done = TaskAcked | TaskDeclined | TaskCommitted | DataEnded | TaskFinished | SplitsAssigned | WindowDrained
_TaskReport = TaskDeployed | RoundProposed | MixtureSteered | TaskDescribed | _Done


class Coordinator:
    """One job's coordinator, from its claim to its end.

    ``owner`` should differ between any two coordinators (a random text from the shell), so that two that start at the
    same moment do not take each other's claim for their own. ``snapshot``: what a job without a checkpoint of its own
    starts from. ``uuid``: the job's identity; a log of another one is refused. ``has_outputs``: whether there are
    places that must be taken over before anything is written (``TakeOutputs``). ``inputs``: digests of what is recorded
    of the job's inputs (``Context``). ``claimant``: whose run it is, for the claim.
    """

    def __init__(
        self,
        job: str,
        fingerprint: str,
        description: str,
        graph: ExecutionGraph,
        settings: Settings,
        owner: str = "",
        snapshot: Snapshot | None = None,
        uuid: str = "",
        has_outputs: bool = False,
        inputs: tuple[str, ...] = (),
        claimant: Claimant | None = None,
    ) -> None:
        ancestors = () if snapshot is None else (*snapshot.manifest.ancestors, snapshot.manifest.uuid)
        identity = JobIdentity(uuid, ancestors=ancestors)
        self._context = Context(job, fingerprint, graph, settings, identity, has_outputs, inputs)
        self._job = Job(self._context, snapshot)
        takeover = Takeover(self._context, description, owner, snapshot, claimant)
        self._log_answers = LogAnswers(self._job, takeover)
        self._event_log = EventLog()
        #: When unanswered orders are looked through next.
        self._resend_at = float("-inf")
        #: When next something becomes possible by itself; derived after every event that changes anything.
        self._deadline: float | None = None

    # --- the door ------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Command]:
        """Begin: the first order is to read the log."""
        self._job.move(JobState.CLAIMING)
        self._context.now = now
        self._resend_at = now + self._context.settings.resend
        return [self._context.log.read()]

    def handle(self, event: Event) -> list[Command]:
        """Note what happened, do what has become possible; the orders, to be carried out in order."""
        context = self._context
        context.out = []
        context.now = max(context.now, event.now)
        try:
            if self._job.state not in FINAL_JOB_STATES:
                no_change = self._note(event)
                if not no_change or (self._deadline is not None and context.now >= self._deadline):
                    self._advance()
                    self._deadline = self._find_deadline()
        except IllegalTransition as error:
            self._event_log.add(event, context.out)
            raise IllegalTransition(error.message, detail=f"what happened before:\n{self.event_log()}") from error
        self._event_log.add(event, context.out)
        return context.out

    def next_deadline(self) -> float | None:
        """When ``DeadlinePassed`` is wanted if nothing else happens; None: never."""
        return self._deadline

    def _find_deadline(self) -> float | None:
        job = self._job
        if job.state in FINAL_JOB_STATES or job.state in (JobState.CREATED, JobState.CLAIMING):
            return None
        times: list[float | None] = [self._resend_at]
        if job.state in ENDING:
            times.append(job.ends_at)
        elif job.state in WORKING:
            times.append(job.checkpoints.next_deadline())
            times.append(job.next_restart())
        return min(time for time in times if time is not None)

    def status(self) -> JobStatus:
        """A snapshot for people."""
        return describe(self._job)

    def checkpoint_statistics(self) -> Overview:
        """Counts, history and summary of this coordinator's checkpoints."""
        return self._job.checkpoints.overview()

    def windows(self) -> tuple[WindowReport, ...]:
        """The newest windows between task barriers, oldest first."""
        return self._job.splits.reports()

    def event_log(self, word: str = "") -> str:
        """The last events and orders, as text; only those that mention ``word``."""
        return self._event_log.show(word)

    def validate(self) -> None:
        """Every invariant that can be checked; raises AssertionError. For tests."""
        job, context = self._job, self._context
        context.tasks.validate()
        context.retained.validate()
        job.checkpoints.validate()
        job.commits.validate()
        self._log_answers.validate()
        job.splits.validate()
        flying = context.log.in_flight
        stored = [one.id for one in job.checkpoints.pendings.values() if one.is_being_stored]
        own = [flying.checkpoint] if isinstance(flying, Manifest) and not flying.root else []
        if stored != own and job.state not in FINAL_JOB_STATES:
            raise AssertionError(f"checkpoints {stored} are being stored, but the manifests {own} are in flight")
        if job.state is JobState.RUNNING and not context.tasks.all_started:
            raise AssertionError("the job runs, but some task does not")
        if self._deadline != self._find_deadline():
            raise AssertionError(
                f"the deadline {self._deadline} is not {self._find_deadline()}: an event did change something"
            )

    # --- what happened -------------------------------------------------------------------------------------------

    def _note(self, event: Event) -> bool:
        """Whether nothing has become possible by it, as by most answers of a large job, but not by the last."""
        job = self._job
        if isinstance(event, _TaskReport):
            return self._note_report(event)
        match event:
            case SplitSetsAdded() | SplitSetsRead():
                job.splits.note(event)
            case LogRead() | LogFailed() | EntryStored() | EntryRefused() | EntryFailed():
                self._log_answers.note(event)
            case OutputsTaken() | OutputsRefused():
                self._log_answers.note_outputs(event)
            case TaskFailed() | TaskLost():
                self._note_loss(event)
            case CancelRequested():
                job.cancel()
            case CheckpointRequested():
                job.checkpoints.request()
            case SavepointRequested(name, target, aligned=aligned):
                self._note_wish(Request(Cause.SAVEPOINT, name, target, aligned=aligned))
            case StopRequested(name, target, mode, aligned=aligned):
                self._note_wish(Request(Cause.STOP, name, target, mode, aligned))
            case SavepointCopied():
                job.finalizer.copied(event)
            case SavepointStored():
                job.finalizer.savepoint_stored(event)
            case SavepointFailed():
                job.savepoint_failed(event)
            case PinRequested() | UnpinRequested():
                job.pins.request(event)
            case ProcessReady(task, incarnation):
                record = self._context.tasks.get(task)
                if record is not None and job.deployment.process_ready(record, incarnation):
                    self._note_loss(TaskLost(task, record.attempt, "another process took its place", event.now))
            case ReweightRequested():
                job.reweighting.request(event)
            case NoticeGiven():
                job.migrations.noticed(event)
            case SplitSkipped(skipped):
                self._context.skip((skipped,))
            case DeadlinePassed():
                pass
            case _:
                assert_never(event)
        return False

    def _note_wish(self, request: Request) -> None:
        if self._job.state in ENDING or self._job.state in CLOSING:
            self._job.checkpoints.refuse_savepoint(request, "the job is ending")
        else:
            self._job.checkpoints.request_savepoint(request)

    def _note_report(self, event: _TaskReport) -> bool:
        """What a task says of itself. A stale attempt's word only matters for what it left behind."""
        job = self._job
        record = self._context.tasks.current(event.task, event.attempt)
        no_change = True
        if isinstance(event, TaskAcked):
            no_change = not job.checkpoints.acked(event, record)
        elif isinstance(event, TaskCommitted):
            job.checkpoints.committed(job.commits.confirm(event.task, event.attempt, event.checkpoint))
            no_change = job.state is JobState.RUNNING
        if record is None:
            return no_change
        if record.state is not TaskStatus.DATA_ENDED:  # an ended task may answer everything, and its end be lost
            record.touched = self._context.now
        if isinstance(event, (TaskAcked, TaskCommitted)):
            return no_change
        if isinstance(event, TaskDeployed):
            no_change = self._task_deployed(event, record)
        elif isinstance(event, DataEnded):
            no_change = not (record.is_started and job.checkpoints.data_ended(record))
        elif isinstance(event, TaskFinished):
            no_change = not (record.is_started and self._task_finished(record, event.cut))
        elif isinstance(event, RoundProposed):
            job.checkpoints.proposed(event, record)
            no_change = False
        elif isinstance(event, TaskDeclined):
            job.checkpoints.declined(event)
            no_change = False
        elif isinstance(event, TaskDescribed):
            job.checkpoints.described(event)
        elif isinstance(event, MixtureSteered):
            job.reweighting.answered(event)
            no_change = False
        elif isinstance(event, SplitsAssigned | WindowDrained):
            job.splits.note_report(event, record)
        return no_change

    def _task_deployed(self, event: TaskDeployed, record: TaskRecord) -> bool:
        """No change unless it was the last of its region, or comes from a second process."""
        deployment = self._job.deployment
        if deployment.is_built_twice(record, event.incarnation):
            self._note_loss(TaskLost(event.task, event.attempt, "two processes have built it", event.now))
            return False
        unbalanced = deployment.deployed(record, event.incarnation, event.opening)
        if unbalanced is not None:
            self._job.fail(unbalanced)
            return False
        return record.state is not TaskStatus.RUNNING

    def _task_finished(self, record: TaskRecord, cut: CheckpointId | None) -> bool:
        """Whether something becomes possible."""
        job = self._job
        if not record.covered:
            text = f"{record.id} has finished before a completed checkpoint held its end of data"
            job.fail(Failure(text, retry=False, kind="InternalError", detail=self.event_log(str(record.id))))
            return True
        self._context.tasks.move(record, TaskStatus.FINISHED)
        job.commits.finished(record.id)
        return job.checkpoints.finished(record, cut) or not self._context.tasks.anything_runs

    def _note_loss(self, event: TaskFailed | TaskLost) -> None:
        job = self._job
        if isinstance(event, TaskFailed):
            failure = event.failure
        else:
            text = f"the process of task {event.task} is gone: {event.reason}"
            failure = Failure(text, retry=True, kind="TaskLostError")
        if event.attempt == job.commits.orphan_attempt:
            self._orphan_failed(event, failure)
            return
        record = self._context.tasks.get(event.task)
        over = (TaskStatus.CREATED, TaskStatus.STOPPED)
        if record is None or record.state in over or (event.attempt is not None and record.attempt != event.attempt):
            return
        if record.state is TaskStatus.FINISHED and not (
            isinstance(event, TaskLost) and self._context.tasks.feeds_unfinished(record)
        ):
            if isinstance(event, TaskLost):
                job.checkpoints.finished_lost(record, failure)
            return
        if failure.retry:
            job.restart(record.region, failure)
        else:
            job.fail(failure)

    def _orphan_failed(self, event: TaskFailed | TaskLost, failure: Failure) -> None:
        """The shell could not commit for a task that is gone: again later, or never, as the failure says."""
        if self._job.state in ENDING:
            self._job.commits.abandon(event.task)
        elif failure.retry:
            self._job.commit_again(failure)
        else:
            self._job.fail(failure)

    # --- what has become possible --------------------------------------------------------------------------------

    def _advance(self) -> None:
        job = self._job
        if job.state in WORKING:
            job.checkpoints.time_out()
            job.finalizer.store_due()
            failure = job.checkpoints.take_failure()
            interruption = job.checkpoints.take_interruption()
            if failure is not None:
                job.fail(failure)
            elif job.finalizer.stopped_with is not None:
                job.stop()
            elif job.finalizer.moved:
                job.move_on()
            elif interruption is not None:
                job.restart_all(interruption)
        if job.state in WORKING:
            job.deploy_due()
            job.runs()
            job.splits.advance(job.state)
            job.checkpoints.start_due()
            job.pins.store_due()
            job.reweighting.advance()
        if job.state in CLOSING:
            job.close()
        elif job.state in ENDING:
            job.end_if_settled()
        self._resend()

    def _resend(self) -> None:
        """Give orders again that had no answer for too long."""
        now, job = self._context.now, self._job
        if now < self._resend_at or job.state in FINAL_JOB_STATES:
            return
        before = now - self._context.settings.resend
        self._resend_at = now + self._context.settings.resend
        if job.state in WORKING:
            job.deployment.resend(before, job.checkpoints.last_aborted)
            job.checkpoints.resend(before)
            job.splits.resend(before)
            job.reweighting.resend(before)
        job.commits.resend(before)

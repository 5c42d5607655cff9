"""The coordinator: facts in, orders out. All that decides about a job's life and its checkpoints.

Rules:

1. ``handle`` is the only way in. No clock, thread, file or network: time comes with the events, and ``next_deadline``
   says when to come back if nothing happens.
2. Every event is handled in two steps: what it says is noted, then whatever has become possible is done, in the fixed
   order of :meth:`Coordinator._advance`. So an order never depends on which event made it possible.
3. The log is the truth. The job is claimed in it before anything else; a checkpoint is complete when its manifest
   stands there; after an unclear answer the log is read before anything is decided.
4. A coordinator that finds a successor in the log ends with ``EndJob("superseded")`` and orders nothing more.
"""

from __future__ import annotations

from typing import assert_never

from .commands import Command
from .context import Context
from .events import (
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
    RoundProposed,
    TaskAcked,
    TaskCommitted,
    TaskDeclined,
    TaskDeployed,
    TaskFailed,
    TaskFinished,
    TaskLost,
)
from .execution_graph import ExecutionGraph
from .job import ENDING, WORKING, Job
from .job_states import FINAL_JOB_STATES, IllegalTransition, JobState, TaskStatus
from .log_answers import LogAnswers
from .manifest import Manifest
from .settings import Settings
from .statistics import JobStatus
from .status import describe
from .story import Story
from .takeover import TakeOverAttempt
from .tasks import TaskRecord

_TaskReport = TaskDeployed | RoundProposed | TaskAcked | TaskDeclined | TaskCommitted | DataEnded | TaskFinished


class Coordinator:
    """One job's coordinator, from its claim to its end.

    ``owner`` should differ between any two coordinators (a random text from the shell), so that two that start at the
    same moment do not take each other's claim for their own.
    """

    def __init__(
        self, job: str, fingerprint: str, description: str, graph: ExecutionGraph, settings: Settings, owner: str = ""
    ) -> None:
        self._context = Context(job, fingerprint, graph, settings)
        self._job = Job(self._context)
        self._log_answers = LogAnswers(self._job, TakeOverAttempt(self._context, description, owner))
        self._story = Story()
        #: When unanswered orders are looked through next.
        self._resend_at = float("-inf")

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
                self._note(event)
                self._advance()
        except IllegalTransition as error:
            self._story.add(event, context.out)
            machine, before, after = error.args[:3]
            raise IllegalTransition(machine, before, after, self._story.tell()) from error
        self._story.add(event, context.out)
        return context.out

    def next_deadline(self) -> float | None:
        """When ``DeadlinePassed`` is wanted if nothing else happens; None: never."""
        job = self._job
        if job.state in FINAL_JOB_STATES or job.state in (JobState.CREATED, JobState.CLAIMING):
            return None
        times: list[float | None] = [self._resend_at]
        if job.state in ENDING:
            times.append(job.give_up_at)
        elif job.state in WORKING:
            times.append(job.checkpoints.next_deadline())
            times.append(job.next_restart())
        return min(time for time in times if time is not None)

    def status(self) -> JobStatus:
        """A snapshot for people."""
        return describe(self._job)

    def story(self, word: str = "") -> str:
        """The last events and orders, as text; only those that mention ``word``."""
        return self._story.tell(word)

    def validate(self) -> None:
        """Every invariant that can be checked; raises AssertionError. For tests."""
        job, context = self._job, self._context
        context.tasks.validate()
        job.checkpoints.completed.validate()
        job.checkpoints.failures.validate()
        job.committing.ledger.validate()
        pending, latest = job.checkpoints.pending, job.checkpoints.completed.latest_id
        if pending is not None:
            pending.validate()
            if latest is not None and pending.id <= latest:
                raise AssertionError(f"checkpoint {pending.id} is pending after {latest} completed")
        storing = pending is not None and not pending.is_open
        if storing != isinstance(context.log.in_flight, Manifest) and job.state not in FINAL_JOB_STATES:
            raise AssertionError("a checkpoint is storing if and only if a manifest is in flight")
        if job.state is JobState.RUNNING and not context.tasks.all_started:
            raise AssertionError("the job runs, but some task does not")

    # --- what happened -------------------------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        match event:
            case LogRead() | LogFailed() | EntryStored() | EntryRefused() | EntryFailed():
                self._log_answers.note(event)
            case TaskFailed() | TaskLost():
                self._note_loss(event)
            case CancelRequested():
                self._job.cancel()
            case CheckpointRequested():
                self._job.checkpoints.decider.request()
            case DeadlinePassed():
                pass
            case (
                TaskDeployed()
                | RoundProposed()
                | TaskAcked()
                | TaskDeclined()
                | TaskCommitted()
                | DataEnded()
                | TaskFinished()
            ):
                self._note_report(event)
            case _:
                assert_never(event)

    def _note_report(self, event: _TaskReport) -> None:
        """What a task says of itself. A stale attempt's word only matters for what it left behind."""
        job = self._job
        record = self._context.tasks.current(event.task, event.attempt)
        if isinstance(event, TaskAcked):
            job.checkpoints.acked(event, record)
        elif isinstance(event, TaskCommitted):
            job.committing.confirm(event.task, event.attempt, event.checkpoint)
        if record is None:
            return
        if record.state is not TaskStatus.DATA_ENDED:  # an ended task may answer everything, and its end be lost
            record.touched = self._context.now
        if isinstance(event, TaskDeployed):
            job.deployment.deployed(record)
        elif isinstance(event, RoundProposed):
            job.checkpoints.proposed(event, record)
        elif isinstance(event, TaskDeclined):
            job.checkpoints.declined(event)
        elif isinstance(event, DataEnded) and record.is_started:
            job.checkpoints.data_ended(record)
        elif isinstance(event, TaskFinished) and record.is_started:
            self._task_finished(record)

    def _task_finished(self, record: TaskRecord) -> None:
        job = self._job
        if not record.covered:
            text = f"{record.id} has finished before a completed checkpoint held its end of data"
            job.fail(Failure(text, retry=False, kind="InternalError", detail=self._story.tell(str(record.id))))
            return
        self._context.tasks.move(record, TaskStatus.FINISHED)
        job.committing.finished(record.id)
        job.checkpoints.finished(record)

    def _note_loss(self, event: TaskFailed | TaskLost) -> None:
        job = self._job
        if isinstance(event, TaskFailed):
            failure = event.failure
        else:
            text = f"the process of task {event.task} is gone: {event.reason}"
            failure = Failure(text, retry=True, kind="TaskLostError")
        if event.attempt == job.committing.orphan_attempt:
            self._orphan_failed(event, failure)
            return
        record = self._context.tasks.get(event.task)
        over = (TaskStatus.CREATED, TaskStatus.STOPPED)
        if record is None or record.state in over or (event.attempt is not None and record.attempt != event.attempt):
            return
        if record.state is TaskStatus.FINISHED and not (isinstance(event, TaskLost) and self._feeds_somebody(record)):
            return
        if failure.retry:
            job.restart(record.region, failure)
        else:
            job.fail(failure)

    def _feeds_somebody(self, record: TaskRecord) -> bool:
        """Whether a consumer of a finished task has not finished: the end of their channel may be lost with the task's
        process, and the consumer would wait for it for ever."""
        tasks, graph = self._context.tasks, self._context.graph
        consumers = {edge.target for edge in graph.outputs[record.id.vertex]}
        region = tasks.region_of(record)
        return any(task.vertex in consumers and tasks[task].state is not TaskStatus.FINISHED for task in region.tasks)

    def _orphan_failed(self, event: TaskFailed | TaskLost, failure: Failure) -> None:
        """The shell could not commit for a task that is gone: again later, or never, as the failure says."""
        if self._job.state in ENDING:
            self._job.committing.ledger.give_up(event.task)
        elif failure.retry:
            self._job.commit_again(failure)
        else:
            self._job.fail(failure)

    # --- what has become possible --------------------------------------------------------------------------------

    def _advance(self) -> None:
        job = self._job
        if job.state in WORKING:
            job.checkpoints.time_out()
            job.checkpoints.store_due()
            failure = job.checkpoints.take_failure()
            if failure is not None:
                job.fail(failure)
        if job.state in WORKING:
            job.deploy_due()
            job.runs()
            job.checkpoints.start_due()
        if job.state is JobState.FINISHING:
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
        job.committing.resend(before)

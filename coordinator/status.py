"""Puts a coordinator's state into words: the snapshot for people, and the one sentence that says what it waits for."""

from __future__ import annotations

from collections.abc import Iterable

from ..engine.identity import TaskId
from .job import Job
from .job_states import JobState, TaskStatus
from .pending import Phase
from .statistics import JobStatus, PendingStatus


def describe(job: Job) -> JobStatus:
    """The job at this moment."""
    context, checkpoints = job.context, job.checkpoints
    return JobStatus(
        job=context.job,
        state=job.state.value,
        generation=context.generation,
        restarts=job.failover.total,
        checkpoints_completed=checkpoints.completed_count,
        checkpoints_failed=checkpoints.failed_count,
        latest_completed=checkpoints.completed.latest_id,
        pending=_pending(job),
        tasks={record.id: record.state.value for record in context.tasks},
        failure=job.failure,
        restored_from=job.restored_from,
        why=why(job),
    )


def _pending(job: Job) -> PendingStatus | None:
    pending = job.checkpoints.pending
    if pending is None:
        return None
    done = len(pending.acked) + len(pending.finished)
    return PendingStatus(pending.id, pending.phase.value, pending.started_at, done, done + len(pending.waiting))


def why(job: Job) -> str:
    """One sentence: what the job waits for, and for whom."""
    log, pending = job.context.log, job.checkpoints.pending
    match job.state:
        case JobState.CREATED:
            return "not started"
        case JobState.CLAIMING:
            return f"taking the job over: {log.waits_for()}"
        case JobState.FINISHED | JobState.FAILED | JobState.CANCELLED | JobState.SUPERSEDED:
            return job.failure.message if job.failure is not None else f"the job is over: {job.state.value}"
        case JobState.FINISHING | JobState.FAILING | JobState.CANCELLING:
            return f"ending: {_commits(job) or log.waits_for()}"
        case JobState.DEPLOYING | JobState.RESTARTING | JobState.RUNNING:
            pass
    if pending is not None and pending.phase is Phase.STORING:
        return f"checkpoint {pending.id} is being stored: {log.waits_for()}"
    if job.state is not JobState.RUNNING:
        return _deploying(job)
    if pending is not None and pending.phase is Phase.PROPOSING:
        return f"checkpoint {pending.id} waits for the rounds of {_names(pending.unproposed)}"
    if pending is not None:
        return f"checkpoint {pending.id} waits for the snapshots of {_names(pending.waiting)}"
    return _running(job)


def _deploying(job: Job) -> str:
    waiting = [record.id for record in job.context.tasks if record.state is TaskStatus.DEPLOYING]
    if waiting:
        return f"{_names(waiting)} being deployed"
    at = job.deployment.next_restart()
    return "deploying" if at is None else f"a region restarts in {max(0.0, at - job.context.now):.1f} s"


def _running(job: Job) -> str:
    commits = _commits(job)
    if commits:
        return commits
    ended = [record.id for record in job.context.tasks if record.state is TaskStatus.DATA_ENDED]
    running = [record.id for record in job.context.tasks if record.state is TaskStatus.RUNNING]
    if running:
        return f"{_names(running)} running"
    open_ends = [task for task in ended if not job.context.tasks[task].covered]
    if open_ends:
        return f"{_names(open_ends)} waiting for a final checkpoint"
    return f"{_names(ended)} waiting for consumers to have processed everything"


def _commits(job: Job) -> str:
    tasks = job.committing.ledger.tasks()
    return f"{_names(tasks)} still to confirm a commit" if tasks else ""


def _names(tasks: Iterable[TaskId]) -> str:
    names = [str(task) for task in sorted(tasks)]
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"

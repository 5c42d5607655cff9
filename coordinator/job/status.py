"""Puts a coordinator's state into words: the snapshot for people, and the one sentence that says what it waits for."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.core.identity import TaskId
from ..checkpoint.pending import PendingCheckpoint, Phase
from ..model.job_states import FINAL_JOB_STATES, JobState, TaskStatus
from ..model.statistics import JobStatus, PendingStatus
from .job import Job

_NAMED = 4
"""So many of the tasks that a checkpoint waits for are named."""


def describe(job: Job) -> JobStatus:
    """The job at this moment."""
    context, checkpoints, retained = job.context, job.checkpoints, job.context.retained
    in_flight = tuple(_pending(job, pending) for pending in checkpoints.pendings.values())
    return JobStatus(
        job=context.job,
        state=job.state.value,
        generation=context.generation,
        restarts=job.restarts.total,
        checkpoints_completed=checkpoints.completed_count,
        checkpoints_failed=checkpoints.failed_count,
        latest_completed=retained.latest_id,
        pending=in_flight[-1] if in_flight else None,
        tasks=context.tasks.shown(),
        failure=job.failure,
        restored_from=job.restored_from,
        why=why(job),
        in_flight=in_flight,
        savepoints=checkpoints.savepoint_results,
        pins=retained.pins,
        refused_pins=tuple(job.pins.refused),
        skipped=tuple(map(str, context.skipped)),
        reweights=tuple(job.reweighting.results),
        uuid=context.identity.uuid,
        latest_whole=retained.latest_whole,
        splits=job.splits.status(job.state),
    )


def _pending(job: Job, pending: PendingCheckpoint) -> PendingStatus:
    done = len(pending.acked) + len(pending.finished)
    total, kind = done + len(pending.waiting), pending.kind.value
    waits_for = tuple(pending.silent(_NAMED))
    carried = tuple(_carried(job, pending)[:_NAMED])
    return PendingStatus(pending.id, pending.phase.value, pending.started_at, done, total, kind, waits_for, carried)


def _carried(job: Job, pending: PendingCheckpoint) -> list[TaskId]:
    """The tasks that take no part in it."""
    regions = job.context.tasks.regions
    return [task for index in sorted(pending.carried) for task in regions[index].tasks]


def why(job: Job) -> str:
    """One sentence: what the job waits for, and for whom."""
    log, pendings = job.context.log, job.checkpoints.pendings.values()
    if job.state in FINAL_JOB_STATES:
        return job.failure.message if job.failure is not None else f"the job is over: {job.state.value}"
    match job.state:
        case JobState.CREATED:
            return "not started"
        case JobState.CLAIMING:
            return f"taking the job over: {log.waits_for()}"
        case JobState.FINISHING | JobState.STOPPING | JobState.FAILING | JobState.CANCELLING:
            return f"ending: {_commits(job) or log.waits_for()}"
        case _:
            pass
    stored = next((one.id for one in pendings if one.phase is Phase.STORING), None)
    if stored is not None:
        return f"checkpoint {stored} is being stored: {log.waits_for()}"
    if job.context.settings.moves and job.state is JobState.RUNNING:
        what = _in_flight(job, next(iter(pendings))) if pendings else "it starts soon"
        return f"the job goes on in another shape after one checkpoint with nothing in flight: {what}"
    if job.state is not JobState.RUNNING:
        return _deploying(job)
    oldest = next(iter(pendings), None)
    return _running(job) if oldest is None else _in_flight(job, oldest)


def _in_flight(job: Job, pending: PendingCheckpoint) -> str:
    without = _carried(job, pending)
    name = _names(without[:_NAMED], len(without))
    return _waits_for(pending) + (f", and goes on without {name}, which did not run" if without else "")


def _waits_for(pending: PendingCheckpoint) -> str:
    name = f"{'savepoint' if pending.kind.is_savepoint else 'checkpoint'} {pending.id}"
    if pending.phase is Phase.PROPOSING:
        return f"{name} waits for the rounds of {_names(pending.silent(_NAMED), len(pending.unproposed))}"
    if pending.waiting:
        return f"{name} waits for the snapshots of {_names(pending.silent(_NAMED), len(pending.waiting))}"
    return f"{name} is being copied to its folder"


def _deploying(job: Job) -> str:
    oldest = next(iter(job.checkpoints.pendings.values()), None)
    return _deployment(job) + (f"; meanwhile {_in_flight(job, oldest)}" if oldest is not None else "")


def _deployment(job: Job) -> str:
    waiting = _in_state(job, TaskStatus.DEPLOYING)
    if waiting:
        return f"{waiting} being deployed"
    at = job.deployment.next_restart()
    return "deploying" if at is None else f"a region restarts in {max(0.0, at - job.context.now):.1f} s"


def _running(job: Job) -> str:
    commits = _commits(job)
    if commits:
        return commits
    splits = job.context.splits
    if splits.begun and not splits.ended and splits.covered == splits.known:
        return f"all windows are complete: {splits.known.windows}; waiting for split sets (add_splits)"
    running = _in_state(job, TaskStatus.RUNNING)
    if running:
        return f"{running} running"
    tasks = job.context.tasks
    open_ends = sum(sum(region.uncovered.values()) for region in tasks.regions)
    if open_ends:
        found = [record.id for record in tasks if record.state is TaskStatus.DATA_ENDED and not record.covered]
        return f"{_names(found[:4], len(found))} waiting for a final checkpoint"
    return f"{_in_state(job, TaskStatus.DATA_ENDED)} waiting for consumers to have processed everything"


def _in_state(job: Job, state: TaskStatus) -> str:
    """The tasks in a state, in words; empty if there are none."""
    tasks = job.context.tasks
    return _names(tasks.first_in(state, 4), tasks.count(state)) if tasks.count(state) else ""


def _commits(job: Job) -> str:
    tasks = job.commits.unsettled()
    if not tasks:
        return ""
    return f"{_names(tasks[:4], len(tasks))} still to confirm a commit"


def _names(first: Sequence[TaskId], count: int) -> str:
    names = [str(task) for task in first]
    return ", ".join(names) if count <= 4 else f"{', '.join(names[:3])} and {count - 3} more"

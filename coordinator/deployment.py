"""Builds regions, starts them, and stops them.

Rules:

1. A region is deployed from the newest completed checkpoint, all of its tasks, also those that had finished: they
   reach their end again at once. Never while the log's answer about a checkpoint is open.
2. A region starts when all its tasks are deployed; each commits first what its predecessor may have left.
3. An order without an answer is given again; whoever is silent is told again to start, and what to forget.
"""

from __future__ import annotations

from ..engine.identity import Attempt, CheckpointId
from .commands import AbortCheckpoint, DeployTask, StartTask, StopTask
from .committing import Committing
from .completed import CompletedCheckpoints
from .context import Context
from .job_states import LIVE, TaskStatus
from .tasks import Region, TaskRecord


class Deployment:
    """Regions between their attempts."""

    def __init__(self, context: Context, completed: CompletedCheckpoints, committing: Committing) -> None:
        self._context = context
        self._completed = completed
        self._committing = committing

    def schedule_all(self) -> None:
        """The job is ours: deploy everything now."""
        for region in self._context.tasks.regions:
            region.restart_at = self._context.now

    def next_restart(self) -> float | None:
        """When the next region is due."""
        times = (region.restart_at for region in self._context.tasks.regions)
        return min((at for at in times if at is not None), default=None)

    def deploy_due(self) -> None:
        """Deploy every region whose time has come."""
        for region in self._context.tasks.regions:
            if region.restart_at is not None and region.restart_at <= self._context.now:
                self._deploy(region)

    def _deploy(self, region: Region) -> None:
        context = self._context
        region.restart_at = None
        region.deployments += 1
        attempt = Attempt(context.generation, region.deployments)
        attempts = tuple((task, attempt) for task in region.tasks)
        handles = {task.vertex: self._completed.vertex_handles(task.vertex) for task in region.tasks}
        for task in region.tasks:
            record = context.tasks[task]
            record.attempt, record.touched, record.covered = attempt, context.now, False
            record.unsaved.clear()
            context.tasks.move(record, TaskStatus.DEPLOYING)
            record.deploy = DeployTask(task, attempt, handles[task.vertex], attempts, self._completed.latest_id)
            context.order(record.deploy)

    def deployed(self, record: TaskRecord) -> None:
        """A task is built. The last one of its region starts them all."""
        if record.state is not TaskStatus.DEPLOYING:
            return
        tasks = self._context.tasks
        tasks.move(record, TaskStatus.DEPLOYED)
        self._committing.deployed(record.id)
        region = tasks.region_of(record)
        if region.counts[TaskStatus.DEPLOYED] == len(region.tasks):
            for task in region.tasks:
                tasks.move(tasks[task], TaskStatus.RUNNING)
                self._start(tasks[task])

    def _start(self, record: TaskRecord) -> None:
        if record.attempt is not None:
            record.touched = self._context.now
            self._context.order(StartTask(record.id, record.attempt))

    def stop(self, region: Region) -> None:
        """Stop every attempt of the region; finished ones are over, but will be needed again."""
        for task in region.tasks:
            record = self._context.tasks[task]
            if record.state in (TaskStatus.CREATED, TaskStatus.STOPPED) or record.attempt is None:
                continue
            if record.state in LIVE:
                self._context.order(StopTask(task, record.attempt))
            self._context.tasks.move(record, TaskStatus.STOPPED)
            self._committing.stopped(task)

    def resend(self, before: float, last_aborted: CheckpointId | None) -> None:
        """Repeat what silent tasks may have missed. ``last_aborted``: to be repeated too, unless one is in flight."""
        for record in self._context.tasks:
            if record.touched > before or record.attempt is None:
                continue
            if record.state is TaskStatus.DEPLOYING and record.deploy is not None:
                record.touched = self._context.now
                self._context.order(record.deploy)
            elif record.is_started:
                self._start(record)
                if last_aborted is not None:
                    latest = self._completed.latest_id
                    self._context.order(AbortCheckpoint(record.id, record.attempt, last_aborted, latest))

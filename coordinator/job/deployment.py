"""Builds regions, starts them, and stops them.

Rules:

1. A region is deployed from the newest completed checkpoint, all of its tasks, also those that had finished: their
   operators are not run again, they pass the end on at once. Never while the log's answer about a checkpoint is open.
2. A region starts when all its tasks are deployed; each commits first what its predecessor may have left.
3. A shell that names its processes has each order carried out by one: what an attempt was built by first is started.
4. An order without an answer is sent again; a silent task is told again to start, and what to forget.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...engine.core.identity import Attempt, CheckpointId
from ..checkpoint.finalizer import SinkCommits
from ..checkpoint.row_accounts import opening_failure
from ..model.commands import AbortCheckpoint, DeployTask, StartTask, StopTask
from ..model.events import Failure
from ..model.job_states import LIVE, TaskStatus
from ..model.manifest import Manifest
from ..restore.stored_state import StoredState, finished_vertices
from ..state.context import Context
from ..state.tasks import Region, TaskRecord

_NOWHERE = frozenset({TaskStatus.CREATED, TaskStatus.DEPLOYING, TaskStatus.STOPPED})


class Deployment:
    """Regions between their attempts."""

    def __init__(self, context: Context, commits: SinkCommits) -> None:
        self._context = context
        self._retained = context.retained
        self._commits = commits
        #: The newest manifest, its files by task, and the vertices that are deployed as finished; derived from it.
        self._stored: tuple[Manifest | None, StoredState, frozenset[str]] | None = None

    def schedule_all(self) -> None:
        """The job is ours: deploy everything now."""
        for region in self._context.tasks.regions:
            self._context.tasks.schedule(region, self._context.now)

    def next_restart(self) -> float | None:
        """When the next region is due."""
        tasks = self._context.tasks
        times = (tasks.regions[index].restart_at for index in tasks.restarting)
        return min((at for at in times if at is not None), default=None)

    def deploy_due(self) -> None:
        """Deploy every region whose time has come."""
        latest = self._retained.latest
        if self._stored is None or self._stored[0] is not latest:
            self._stored = (
                latest,
                StoredState(latest, self._context.graph),
                finished_vertices(latest, self._context.graph),
            )
        for region in self.due():
            self._deploy(region, self._stored[1], self._stored[2])

    def due(self) -> list[Region]:
        """The regions whose time has come."""
        tasks, now = self._context.tasks, self._context.now
        regions = [tasks.regions[index] for index in sorted(tasks.restarting)]
        return [region for region in regions if region.restart_at is not None and region.restart_at <= now]

    def _deploy(self, region: Region, stored: StoredState, finished: frozenset[str]) -> None:
        context, latest = self._context, self._retained.latest
        context.tasks.schedule(region, None)
        region.deployments += 1
        attempt = Attempt(context.generation, region.deployments)
        attempts = tuple((task, attempt) for task in region.tasks)
        for task in region.tasks:
            record = context.tasks[task]
            record.attempt, record.touched, record.covered_by = attempt, context.now, None
            record.unsaved, record.built_by = (), ""
            context.tasks.move(record, TaskStatus.DEPLOYING)
            record.deploy = DeployTask(
                task,
                attempt,
                stored.of(task),
                attempts,
                latest.checkpoint if latest is not None else None,
                record.process,
                latest.root if latest is not None else "",
                task.vertex in finished,
                context.skipped,
                context.identity.claim,
                stored.ended(task),
                context.reweights,
            )
            context.order(record.deploy)

    def process_ready(self, record: TaskRecord, incarnation: str) -> bool:
        """A process is there for the task; whether the one that holds the attempt is therefore gone."""
        record.process, deploy = incarnation, record.deploy
        if record.state is TaskStatus.DEPLOYING and deploy is not None and deploy.incarnation not in ("", incarnation):
            record.deploy = replace(deploy, incarnation=incarnation)
            self._context.order(record.deploy)
        return record.state not in _NOWHERE and record.built_by not in ("", incarnation)

    def is_built_twice(self, record: TaskRecord, incarnation: str) -> bool:
        """Whether another process has built the attempt already: they would write the same files."""
        return record.state is not TaskStatus.DEPLOYING and record.built_by not in ("", incarnation)

    def deployed(self, record: TaskRecord, incarnation: str, opening: int = 0) -> Failure | None:
        """A task is built, and the last one of its region starts them all. A failure ends the job: it was restored
        with other rows in flight than were stored."""
        if record.state is not TaskStatus.DEPLOYING:
            return None
        tasks, order = self._context.tasks, record.deploy
        if order is not None and not order.finished:  # of a task that had finished nothing is in flight any more
            unbalanced = opening_failure(record.id, order.state, opening)
            if unbalanced is not None:
                return unbalanced
        record.built_by, record.deploy = incarnation, None
        tasks.move(record, TaskStatus.DEPLOYED)
        self._commits.deployed(record.id)
        region = tasks.region_of(record)
        if region.counts[TaskStatus.DEPLOYED.code] == len(region.tasks):
            for task in region.tasks:
                tasks.move(tasks[task], TaskStatus.RUNNING)
                self._start(tasks[task])
        return None

    def _start(self, record: TaskRecord) -> None:
        if record.attempt is not None:
            record.touched = self._context.now
            self._context.order(StartTask(record.id, record.attempt, record.built_by))

    def stop(self, region: Region) -> None:
        """Stop every attempt of the region; finished ones are over, but will be needed again."""
        for task in region.tasks:
            record = self._context.tasks[task]
            if record.state in (TaskStatus.CREATED, TaskStatus.STOPPED) or record.attempt is None:
                continue
            if record.state in LIVE:
                self._context.order(StopTask(task, record.attempt))
            self._context.tasks.move(record, TaskStatus.STOPPED)
            self._commits.stopped(task)

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
                    latest = self._retained.latest_id
                    self._context.order(AbortCheckpoint(record.id, record.attempt, last_aborted, latest))

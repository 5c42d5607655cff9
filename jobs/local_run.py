"""``run_local``: the same engine and the same coordinator as on Ray, as threads of this process.

Nothing differs but the wires: a frame is handed to the consumer's task instead of travelling. So the embedded runner
is what to develop and test a flow with, and enough for a job that fits one machine's patience. Neither Ray nor Spark
is imported.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import cast

from ..actors.claims.deferred import hand_over
from ..actors.claims.inputs import plan_with_inputs
from ..actors.claims.place import Place, Resume, place_in, temporary_place
from ..actors.claims.restart import Given, start_over
from ..actors.claims.start import Claim, begin_in, check_first
from ..actors.client.backend import Ownership
from ..actors.client.job import Job
from ..actors.client.moving import Planned, start_in_shape
from ..actors.feed.job_feeds import JobFeeds
from ..actors.feed.link import LocalRoute, local_route
from ..actors.hosting.coordinator_host import CoordinatorFiles, CoordinatorHost, coordinator_of
from ..actors.hosting.task_host import TaskFiles, TaskHost, snapshots_of
from ..actors.hosting.waiting_chain import Standing
from ..actors.process.ending import print_interrupts_briefly
from ..actors.process.imported_script import refuse_while_importing
from ..actors.process.waiting import Deadline
from ..actors.protocol.messages import Deployment, Order, ProcessMessage, StatisticsAsked, Versioned
from ..actors.protocol.settings import Checkpoints
from ..actors.protocol.translate import peers_of
from ..actors.storage.memory_store import keep_log_in_memory, log_in_memory
from ..actors.storage.snapshots import SnapshotFiles
from ..actors.storage.stores import open_store
from ..actors.transport.protocol import BrokenLink
from ..coordinator.model.commands import Command, DeployTask
from ..coordinator.model.events import Event, TaskFailed, TaskLost
from ..coordinator.model.statistics import JobStatus, Overview, WindowReport
from ..coordinator.restore.stored_state import Snapshot
from ..engine.core.arguments import Parallelism, Rate, Threads, checked
from ..engine.core.errors import ConfigurationError, PenstockError
from ..engine.core.identity import Attempt, TaskId
from ..engine.core.traits import forget_traits
from ..engine.exchange.channels import Frame, Upstream
from ..engine.flow.flow import Flow
from ..engine.plan.plan import Audited, JobPlan
from ..engine.planner.pipelines import plan_job
from ..engine.runtime.key_meetings import KeyMeetings
from ..engine.scheduler.pool import shared_pool
from ..engine.scheduler.protocol import QueryOpener, Share
from ..engine.sinks.collect import COLLECTED, CollectSink
from ..engine.state.free_memory import give_back, keep_little
from ..engine.state.memory import DEFAULT_BUDGET

ANSWER_SECONDS = 60.0
"""How long a question may wait for the coordinator's thread."""
BUSY_SECONDS = 5.0
"""How long tasks may take to say what they do; after that they are busy."""


@checked(ConfigurationError)
def run_local(
    flow: Flow,
    *,
    parallelism: Parallelism = 1,
    threads: Threads | None = None,
    checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
    name: str | None = None,
    rate: Rate | None = None,
    memory_budget: int | None = DEFAULT_BUDGET,
    resume: Resume = "auto",
    from_snapshot: str | os.PathLike[str] | None = None,
    claim: Claim = "no_claim",
    allow_changes: bool = False,
    resume_model: str | None = None,
    take_over: bool = False,
    include_new: bool = False,
    audit: Audited = "counts",
) -> Job:
    """Start ``flow`` in this process and return its :class:`~penstock.actors.client.job.Job`.

    The arguments are those of ``run``, and ``threads``: how many threads of the process's pool run the drivers of all
    tasks (by default as many as there are cores; 0: each task has a thread of its own). The rows and their order depend
    on neither. More threads than ``parallelism`` pay, too: sources are read beside the operators then, two lanes at
    once, and no row passes an exchange. More ``parallelism`` pays where operators before a ``gather`` do most of the
    work; rows that are divided by key cost a third more processor time at two subtasks. Without ``checkpoints``
    nothing survives the process, and rows become visible when the job ends.
    """
    refuse_while_importing(flow.name)
    asked = None if checkpoints is None else place_in(checkpoints)
    planned = partial(
        plan_job,
        parallelism=parallelism,
        job=name,
        rate=rate,
        memory_budget=memory_budget,
        threads=threads,
        fused=asked is None and from_snapshot is None and threads != 0,
    )
    given = Given(from_snapshot, claim, allow_changes, resume_model, take_over)
    start_over(flow, asked, name or flow.name, resume, planned, given)
    check_first(flow, planned, asked, resume=resume, from_snapshot=from_snapshot, take_over=take_over)
    flow = hand_over(flow, asked, name=name, resume=resume, on_ray=False, from_snapshot=from_snapshot)
    place = asked or temporary_place()

    def plan_as(planned: Planned) -> JobPlan:
        job = name or flow.name
        plan = plan_with_inputs(flow, planned, asked, job, from_snapshot=from_snapshot, include_new=include_new)
        return replace(plan, audit=audit, access=plan.access.with_those_of([asked]))

    def begin(plan: JobPlan, place: Place, resume: Resume) -> Job:
        if asked is None and _only_collects(plan):
            keep_log_in_memory(place.folder)
        begun = begin_in(
            place.folder,
            plan,
            resume=resume,
            from_snapshot=from_snapshot,
            claim=claim,
            allow_changes=allow_changes,
            take_over=take_over,
            may_be_over=place.may_be_over,
        )
        if begun.start is not None:
            COLLECTED.inherit(begun.plan.uuid, begun.start.manifest.uuid, begun.start.manifest.checkpoint)
        print_interrupts_briefly()
        return start_job(begun.plan, place, threads, begun.start, take_over=take_over)

    try:
        return start_in_shape(plan_as, planned, begin, place, resume, from_snapshot, resume_model)
    except BaseException:
        place.release()
        raise


def _only_collects(plan: JobPlan) -> bool:
    """Whether all that comes of the job is rows in this process, so that its log means nothing to anybody else: who
    finds an output looks into the log of the job that owns it, and rows that are added lie beside theirs."""
    return not plan.fed and all(isinstance(config, CollectSink) for _, config in plan.sinks.values())


def start_job(
    plan: JobPlan,
    place: Place,
    threads: int | None = None,
    start: Snapshot | None = None,
    *,
    take_over: bool = False,
) -> Job:
    """A job whose tasks run here: on ``threads`` of the process's pool, or, if that is 0, each on one of its own."""
    keep_little()
    scheduler = None if threads == 0 else shared_pool().share(Share(degree=threads))
    return Job(plan, place, EmbeddedBackend(plan, place, scheduler, start, take_over))


class _Wires:
    """The transport of one task: hands messages to the others, in calls."""

    def __init__(self, hosts: Mapping[TaskId, TaskHost]) -> None:
        self._hosts = hosts

    def connect(self, peers: Mapping[TaskId, tuple[Attempt, object]]) -> None:
        """Everybody is connected: attempts are checked where messages arrive."""

    def send(self, frame: Frame) -> None:
        self._hosts[frame.channel.consumer].arrive(frame)

    def reply(self, message: Upstream) -> None:
        self._hosts[message.channel.producer].arrive(message)

    def close(self) -> None:
        """Nothing is queued here."""


class _LocalDrivers:
    """Hands orders to the mailboxes of the tasks. Threads do not get lost, so there is nothing to take note of."""

    def __init__(self, plan: JobPlan, hosts: Mapping[TaskId, TaskHost]) -> None:
        self._plan = plan
        self._hosts = hosts

    def perform(self, command: Command) -> None:
        if isinstance(command, DeployTask):
            peers = dict.fromkeys(peers_of(self._plan, command.task))
            self._hosts[command.task].post(Deployment(command, peers, None))
        else:
            order = cast(Order, command)
            self._hosts[order.task].post(order)

    def handle(self, message: ProcessMessage) -> list[Event]:
        return [message] if isinstance(message, TaskLost | TaskFailed) else []


class EmbeddedBackend:
    """The coordinator and the tasks of a job as threads of this process (see ``Backend``)."""

    ownership = Ownership.OWNER
    exit_seconds = 5.0
    processes = None

    def __init__(
        self, plan: JobPlan, place: Place, scheduler: QueryOpener | None, start: Snapshot | None, take_over: bool
    ) -> None:
        self._plan, self._folder, self._scheduler = plan, place.folder, scheduler
        self._local_copies = place.local_copies
        folder = place.folder
        core = coordinator_of(plan, place.settings, start)
        self._hosts: dict[TaskId, TaskHost] = {}
        snapshots = SnapshotFiles(folder, plan.name)
        self._coordinator = CoordinatorHost(
            core,
            lambda notify: CoordinatorFiles(
                plan, open_store(folder), snapshots, notify, take_over, at_once=log_in_memory(folder) is not None
            ),
            lambda _post: _LocalDrivers(plan, self._hosts),
            validate=os.environ.get("PENSTOCK_VALIDATE") == "1",
            on_status=self._status_changed,
        )
        self._meetings = KeyMeetings()
        self._feeds = JobFeeds(plan, folder, self._coordinator.post)
        self._files: list[TaskFiles] = []
        for task in plan.tasks():
            self._hosts[task] = self._host(task)
        for host in self._hosts.values():
            host.start()
        self._coordinator.start()

    def _host(self, task: TaskId) -> TaskHost:
        report: Callable[[Event], None] = self._coordinator.post
        snapshots = snapshots_of(self._plan, self._folder, local_copies=self._local_copies)
        files = TaskFiles(self._plan, snapshots, report)
        self._files.append(files)

        def wires(_broken: Callable[[BrokenLink], None]) -> _Wires:
            return _Wires(self._hosts)

        return TaskHost(
            self._plan,
            task,
            files,
            report,
            wires,
            self._scheduler,
            feeds=self._feeds.servers,
            meetings=self._meetings,
        )

    def _status_changed(self, status: JobStatus) -> None:
        self._feeds.on_status(status)

    def wait_status(self, version: tuple[str, int] | None, timeout: float) -> Versioned:
        """See ``Backend``, as the next ones."""
        return self._coordinator.wait_status(version, timeout)

    def peek_status(self) -> JobStatus | None:
        with suppress(PenstockError):
            return self._coordinator.wait_status(None, 0).status
        return None

    def request(self, event: Event) -> None:
        self._coordinator.post(event)

    def fetch_checkpoints(self) -> Overview:
        return self._coordinator.checkpoints(ANSWER_SECONDS)

    def fetch_windows(self) -> tuple[WindowReport, ...]:
        return self._coordinator.windows(ANSWER_SECONDS)

    def fetch_tasks(self) -> dict[TaskId, Standing]:
        asked = {task: StatisticsAsked(Future()) for task in self._hosts}
        for task, question in asked.items():
            self._hosts[task].post(question)
        deadline, found = Deadline(BUSY_SECONDS), {}
        for task, question in asked.items():
            try:
                found[task] = Standing(question.found.result(deadline.left()))
            except TimeoutError:
                found[task] = Standing(None, BUSY_SECONDS)
        return found

    def feed_route(self, job: str, feed: str) -> LocalRoute:
        return local_route(self._folder, self._plan.key, job, feed, self._feeds.servers[feed])

    def wait_ended(self, deadline: Deadline) -> None:
        """Threads can be asked as long as they are there."""

    def stop(self) -> None:
        """As ``wait_ended``."""

    def end(self) -> bool:
        status, name = self.peek_status(), self._plan.name
        self._feeds.on_job_over(ConfigurationError(f"job {name!r} was shut down", "run it again to go on reading"))
        self._feeds.close()
        self._coordinator.close()
        for host in self._hosts.values():
            host.close()
        for files in self._files:
            files.close()
        if self._scheduler is not None:
            shared_pool().settle(())
        forget_traits()
        give_back()
        if status is not None and status.state == "finished":  # nothing goes on from it: its rows go with the job
            weakref.finalize(self, COLLECTED.forget, self._plan.key).atexit = False
        return True

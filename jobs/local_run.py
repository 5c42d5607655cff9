"""``run_local``: the same engine and the same coordinator as on Ray, as threads of this process.

Nothing differs but the wires: a frame is handed to the consumer's mailbox instead of travelling. So the embedded runner
is what to develop and test a flow with, and enough for a job that fits one machine's patience. Neither Ray nor Spark
is imported.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self, cast

import pyarrow as pa

from ..actors.audit.audit import OVER, Audit, LastAudit, audit_job, check_what_is_left
from ..actors.claims.beginning import begin_in, check_first
from ..actors.claims.cleaning import at_the_end, clean_outputs
from ..actors.claims.handing_over import hand_over
from ..actors.claims.inputs import plan_with_inputs
from ..actors.claims.origin import Claim
from ..actors.claims.resuming import Place, Resume, place_in, temporary_place
from ..actors.feed.hosting import HostedFeeds, feed_handle
from ..actors.feed.link import local_route
from ..actors.feed.reader import FeedHandle
from ..actors.hosting.coordinator_files import CoordinatorFiles
from ..actors.hosting.coordinator_host import CoordinatorHost, coordinator_of
from ..actors.hosting.task_files import TaskFiles
from ..actors.hosting.task_host import TaskHost
from ..actors.hosting.waiting_chain import Standing, chain_of_waiting
from ..actors.job.job_face import JobFace, cannot_be_asked
from ..actors.process.ending import AtExit, print_interrupts_briefly
from ..actors.process.waiting import wait_for_status
from ..actors.protocol.messages import Arrived, Deployment, Order, Ordered, ProcessMessage, Versioned
from ..actors.protocol.settings import Checkpoints
from ..actors.protocol.translate import error_of, neighbours_of
from ..actors.storage.snapshots import SnapshotFiles
from ..actors.storage.stores import open_store
from ..actors.transport.protocol import BrokenLink
from ..coordinator.model.commands import Command, DeployTask
from ..coordinator.model.events import Event, TaskFailed, TaskLost
from ..coordinator.model.statistics import JobStatus, Overview, WindowReport
from ..coordinator.restore.stored_state import Snapshot
from ..engine.core.arguments import Parallelism, Rate, Seconds, Threads, checked
from ..engine.core.errors import ConfigurationError, PenstockError
from ..engine.core.identity import Attempt, TaskId
from ..engine.exchange.channels import Frame, Upstream
from ..engine.flow.flow import Flow
from ..engine.plan.plan import Audited, JobPlan
from ..engine.planner.overtaking import with_alignment
from ..engine.planner.pipelines import plan_job
from ..engine.runtime.statistics import JobStatistics, TaskStatistics
from ..engine.scheduler.pool import PoolScheduler
from ..engine.sinks.collect import COLLECTED
from ..engine.state.memory import DEFAULT_BUDGET

EXIT_SECONDS = 5.0
"""How long the end of a script waits for the threads of a job that it has not waited for."""


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
) -> LocalJob:
    """Start ``flow`` in this process and return its :class:`LocalJob`.

    The arguments are those of ``run``, and ``threads``: how many threads run the drivers of all tasks (by default as
    many as there are cores; 0: each task has a thread of its own). The rows and their order depend on neither. Without
    ``checkpoints`` nothing survives the process, and rows become visible when the job ends.
    """
    asked = None if checkpoints is None else place_in(checkpoints)
    planned = partial(
        plan_job, parallelism=parallelism, job=name, rate=rate, memory_budget=memory_budget, threads=threads or 0
    )
    check_first(flow, planned, asked, resume=resume, from_snapshot=from_snapshot, take_over=take_over)
    flow = hand_over(flow, asked, name=name, resume=resume, on_ray=False, from_snapshot=from_snapshot)
    plan = plan_with_inputs(
        flow,
        planned,
        asked,
        name or flow.name,
        from_snapshot=from_snapshot,
        include_new=include_new,
    )
    place = asked or temporary_place()
    plan = replace(with_alignment(plan, place.alignment_timeout), audit=audit)
    scheduler: PoolScheduler | None = None
    try:
        begun = begin_in(
            place.folder,
            plan,
            resume=resume,
            from_snapshot=from_snapshot,
            claim=claim,
            allow_changes=allow_changes,
            resume_model=resume_model,
            take_over=take_over,
        )
        if begun.start is not None:
            COLLECTED.inherit(begun.plan.uuid, begun.start.manifest.uuid, begun.start.manifest.checkpoint)
        print_interrupts_briefly()
        scheduler = None if threads == 0 else PoolScheduler(threads)
        return LocalJob(begun.plan, place, scheduler, begun.start, take_over=take_over)
    except BaseException:
        if scheduler is not None:
            scheduler.shutdown()
        place.release()
        raise


WHY_SECONDS = 1.0
"""How long a task may take to say what it waits for; after that it is busy."""


class _Wires:
    """The transport of one task: hands messages to the mailboxes of the others."""

    def __init__(self, hosts: Mapping[TaskId, TaskHost]) -> None:
        self._hosts = hosts

    def connect(self, peers: Mapping[TaskId, tuple[Attempt, object]]) -> None:
        """Everybody is connected: attempts are checked where messages arrive."""

    def send(self, frame: Frame) -> None:
        self._hosts[frame.channel.consumer].post(Arrived((frame,), ()))

    def reply(self, message: Upstream) -> None:
        self._hosts[message.channel.producer].post(Arrived((), (message,)))

    def close(self) -> None:
        """Nothing is queued here."""


class _LocalDrivers:
    """Hands orders to the mailboxes of the tasks. Threads do not get lost, so there is nothing to take note of."""

    def __init__(self, plan: JobPlan, hosts: Mapping[TaskId, TaskHost]) -> None:
        self._plan = plan
        self._hosts = hosts

    def perform(self, command: Command) -> None:
        if isinstance(command, DeployTask):
            neighbours = dict.fromkeys(neighbours_of(self._plan, command.task))
            self._hosts[command.task].post(Deployment(command, neighbours, None))
        else:
            order = cast(Order, command)
            self._hosts[order.task].post(Ordered(order))

    def handle(self, message: ProcessMessage) -> list[Event]:
        return [message] if isinstance(message, TaskLost | TaskFailed) else []


class LocalJob(JobFace):
    """A job that runs in this process; it offers what ``Job`` offers, and ``result``."""

    def __init__(
        self,
        plan: JobPlan,
        place: Place,
        scheduler: PoolScheduler | None = None,
        start: Snapshot | None = None,
        *,
        take_over: bool = False,
    ) -> None:
        self.plan = plan
        self._scheduler = scheduler
        self.folder = folder = place.folder
        self.folder_stays = place.stays
        self._release = place.release
        self._closed = False
        self._audit = LastAudit()
        self._statistics: dict[TaskId, TaskStatistics] = {}
        self._checkpoints = Overview()
        core = coordinator_of(plan, place.settings, start)
        self._hosts: dict[TaskId, TaskHost] = {}
        snapshots = SnapshotFiles(folder, plan.name)
        self._coordinator = CoordinatorHost(
            core,
            lambda tell: CoordinatorFiles(plan, open_store(folder), snapshots, tell, take_over),
            lambda _post: _LocalDrivers(plan, self._hosts),
            validate=os.environ.get("PENSTOCK_VALIDATE") == "1",
            told=self._told,
        )
        self._feeds = HostedFeeds(plan, folder, self._coordinator.post)
        self._files: list[TaskFiles] = []
        for task in plan.tasks():
            self._hosts[task] = self._host(task)
        for host in self._hosts.values():
            host.start()
        self._known: Versioned = self._coordinator.wait_status(None, 0)
        self._coordinator.start()
        self._at_exit = AtExit(self._leave, EXIT_SECONDS)

    def _host(self, task: TaskId) -> TaskHost:
        report: Callable[[Event], None] = self._coordinator.post
        files = TaskFiles(self.plan, SnapshotFiles(self.folder, self.plan.name), report)
        self._files.append(files)

        def wires(_broken: Callable[[BrokenLink], None]) -> _Wires:
            return _Wires(self._hosts)

        return TaskHost(self.plan, task, files, report, wires, self._scheduler)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.plan.name

    def tasks(self) -> list[TaskId]:
        """All tasks of the job."""
        return list(self._hosts)

    # ------------------------------------------------------------------ waiting

    @checked(ConfigurationError)
    def wait(self, timeout: Seconds | None = None) -> Self:
        """Wait until the job is over. Raises its error if it failed, AuditError if what it has left does not balance,
        TimeoutError after ``timeout`` seconds."""
        status = self.wait_until(lambda status: status.is_over, timeout)
        self.shutdown()
        if status.failure is not None:
            raise error_of(status.failure)
        if status.state in OVER:
            check_what_is_left(self.name, self.audit)
        return self

    @checked(ConfigurationError)
    def wait_until(self, condition: Callable[[JobStatus], bool], timeout: Seconds | None = None) -> JobStatus:
        """Wait for a status of which ``condition`` holds, or for the last one that there is."""
        return wait_for_status(self.status(), self._next_status, condition, timeout)

    def _next_status(self, timeout: float) -> JobStatus:
        if self._closed:
            raise cannot_be_asked(self.name, "it was shut down")
        self._known = self._coordinator.wait_status(self._known.version, timeout)
        status: JobStatus = self._known.status
        return status

    # ------------------------------------------------------------------ questions

    def status(self) -> JobStatus:
        """Where the job stands now."""
        if not self._closed:
            self._known = self._coordinator.wait_status(None, 0)
        status: JobStatus = self._known.status
        return status

    def why(self) -> list[str]:
        """What the job waits for; then the chain of waiting, from the consumers back to whoever holds them up, one
        sentence for each task."""
        status = self.status()
        if self._closed or status.is_over:
            return [status.why]
        return [status.why, *chain_of_waiting(self.tasks(), self._standings(), status.tasks)]

    def _standings(self) -> dict[TaskId, Standing]:
        found = {}
        for task, host in self._hosts.items():
            try:
                found[task] = Standing(host.ask(lambda task: task.statistics(), WHY_SECONDS))
            except TimeoutError:
                found[task] = Standing(None, WHY_SECONDS)
        return found

    def statistics(self) -> JobStatistics:
        """The counts of every task that is deployed; ``statistics().stages`` has them by stage."""
        if not self._closed:
            found = {task: host.ask(lambda task: task.statistics(), 60.0) for task, host in self._hosts.items()}
            self._statistics.update({task: counts for task, counts in found.items() if counts is not None})
        return JobStatistics(self._statistics)

    def checkpoints(self) -> Overview:
        """Counts, history and summary of the checkpoints."""
        if not self._closed:
            self._checkpoints = self._coordinator.ask(lambda core: core.checkpoint_statistics(), 60.0)
        return self._checkpoints

    def _fetch_windows(self) -> tuple[WindowReport, ...] | None:
        if self._closed:
            return None
        found: tuple[WindowReport, ...] = self._coordinator.ask(lambda core: core.windows(), 60.0)
        return found

    def audit(self) -> Audit:
        """Compare what was read with what is visible, as of the last checkpoint."""
        return self._audit.make(lambda: audit_job(self.plan, self.folder, self.status()), is_closed=self._closed)

    @checked(ConfigurationError)
    def feed(self, name: str = "feed") -> FeedHandle:
        """The feed that ``stream.feed(batch_size, name=name)`` ends in, for ranks in this process."""
        return feed_handle(self.plan, name, partial(local_route, self.folder, self.plan.key))

    def _told(self, status: JobStatus) -> None:
        self._feeds.told(status)

    @checked(ConfigurationError)
    def result(self, name: str) -> pa.Table:
        """The rows that ``stream.collect(name)`` has kept, once the job is over."""
        self.wait()
        return COLLECTED.read(self.plan.key, name, self.name)

    # ------------------------------------------------------------------ requests and the end

    def _tell(self, event: Event) -> None:
        if not self._closed:
            self._coordinator.post(event)

    def shutdown(self) -> None:
        """End the job's threads, whatever it is doing. Nothing half done becomes visible."""
        if self._closed:
            return
        with suppress(TimeoutError):
            self.statistics()
        with suppress(PenstockError, TimeoutError):
            self.checkpoints()
        self._remember_windows()
        with suppress(PenstockError):
            self.status()
        self._at_exit.call_off()
        self._end(audited=True)

    def _leave(self) -> None:
        """The script ends, and nobody asks any more."""
        try:
            with suppress(PenstockError):
                self.status()
            self._end(audited=False)
        finally:
            self._release()

    def _end(self, *, audited: bool) -> None:
        """Nothing but threads first: what the outputs have become must not keep them. What the job does not keep goes
        with them, so it is audited before."""
        if audited and self.status().is_over:
            with suppress(Exception):
                self.audit()
        self._closed = True
        self._feeds.over(ConfigurationError(f"job {self.name!r} was shut down", "run it again to go on reading"))
        self._feeds.close()
        self._coordinator.close()
        for host in self._hosts.values():
            host.close()
        if self._scheduler is not None:
            self._scheduler.shutdown()
        for files in self._files:
            files.close()
        if audited:
            with suppress(Exception):  # whoever asks for the audit is told
                self.audit()
        at_the_end(lambda: clean_outputs(self.plan, self.folder, self.status().generation))
        if self.status().state == "finished":  # nothing goes on from it: its rows go with this object
            weakref.finalize(self, COLLECTED.forget, self.plan.key).atexit = False
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

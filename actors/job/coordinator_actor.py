"""The named actor that hosts a job's coordinator: a door for calls, behind which a :class:`CoordinatorHost` works.

Rules:

1. The truth is in the log. Ray restarts the actor when its process dies and runs the constructor again; the new core
   reads the log, claims the job under a new generation, and deploys every task anew, in place where a process lives.
2. All methods may be repeated, so callers let Ray retry them: a restart is a pause to them.
3. One coordinator per job name: the actor's name is the lock.
4. An error in the coordinator's core ends the process as a crash does. ``coordinator_deaths`` counts that, so that an
   error that comes again fails the job instead.
5. The coordinator of a detached job ends its processes, and at last itself (``shutdown``).
6. A task's process imports this module: Ray loads an actor's class with its handle. So what only the coordinator needs
   is imported where it begins.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from ...coordinator.job.poison import PoisonPolicy
from ...coordinator.model.events import Event
from ...coordinator.model.manifest import Claimant
from ...coordinator.model.settings import Settings
from ...coordinator.model.statistics import JobStatus, Overview, WindowReport
from ...engine.core.errors import InternalError, PenstockError
from ...engine.core.identity import TaskId
from ...engine.core.shown import hides_credentials
from ..cluster.calls import unsealed
from ..hosting.logs import JobLog, write_json_lines
from ..hosting.measures import JobFigures, Sample
from ..hosting.supervisor import DEFAULT_POISON, Supervisor, seconds_left
from ..protocol.messages import (
    Address,
    CoordinatorMessage,
    Identity,
    JobDescriptor,
    NodesDraining,
    ProcessAppeared,
    Versioned,
    WorkerSlot,
)
from ..protocol.translate import failure_of, peers_of
from ..storage.snapshots import SnapshotFiles
from ..transport.control_wire import Content
from ..transport.conversation import Packet
from ..transport.dialling import Secrets
from .metrics import Reporter
from .options import SharedPlan
from .runtime import DEFAULT_REPORTING, Reporting
from .warm_up import PREPARATION

if TYPE_CHECKING:
    from ...coordinator.restore.stored_state import Snapshot
    from ..client.backend import FinalStatistics

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0
"""How long a question may wait for the coordinator's thread."""


@hides_credentials
@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """What a coordinator actor needs to know. ``folder``: where the job's checkpoints lie."""

    folder: str
    settings: Settings
    plan: SharedPlan
    drivers: Mapping[WorkerSlot, Address]
    """The driver actor of every task, and the spare ones."""
    validate: bool = False
    """Check the core's invariants after every event."""
    period: float | None = None
    """Seconds between two looks at the processes; None: nobody looks."""
    snapshot: Snapshot | None = None
    """What a job without a checkpoint of its own starts from."""
    detached: bool = False
    folder_stays: bool = True
    lease: float = 0.0
    """Seconds that the coordinator of a detached job stays after its end."""
    poison: PoisonPolicy = DEFAULT_POISON
    """When a split is poison, and what is done about it."""
    reporting: Reporting = DEFAULT_REPORTING
    """How often figures go to Ray's metrics, and what is logged."""
    notice: float | None = None
    """Seconds that a process has which is told to end; None: nobody asks Ray whether a node is drained."""
    take_over: bool = False
    """Whether outputs are taken over from jobs whose logs are open."""
    secrets: Secrets | None = field(default=None, repr=False)
    """What readers of the job's feeds must know."""
    claimant: Claimant | None = None
    """The script that owns the job; None: nobody owns it."""


class CoordinatorActor:
    """See the module's rules. Made with :func:`coordinator_actor_class` and sealed :class:`CoordinatorOptions`."""

    def __init__(self, sealed_options: bytes) -> None:
        from ..claims.presence import this_claimant
        from ..hosting.coordinator_host import CoordinatorFiles, CoordinatorHost, coordinator_of
        from ..storage.log import Deaths
        from ..storage.stores import open_store
        from .shutdown import Shutdown

        PREPARATION.begin_work()
        options: CoordinatorOptions = unsealed(sealed_options)
        plan, drivers = options.plan.load(), options.drivers
        self._options, self._plan = options, plan
        write_json_lines(options.reporting.log_level, job=plan.name)
        self._claimant = options.claimant or this_claimant()
        core = coordinator_of(plan, options.settings, options.snapshot, self._claimant)
        store = open_store(options.folder)
        self._deaths = Deaths(store, plan.name)
        if not ray.get_runtime_context().was_current_actor_reconstructed:
            self._deaths.forget()
        snapshots = SnapshotFiles(options.folder, plan.name)
        me = ray.get_runtime_context().current_actor

        self._host = CoordinatorHost(
            core,
            partial(
                CoordinatorFiles, plan, store, snapshots, take_over=options.take_over, refused=self._deaths.refusal()
            ),
            partial(self._supervise, me),
            options.validate,
            options.period,
            observer=JobLog(plan.name),
            on_status=self._status_changed if plan.feeds else None,
            on_death=self._died,
        )
        self._shutdown = Shutdown(
            self._host, plan, options.folder, options.plan, drivers, self.placement, me, options.lease
        )
        self._host.start()
        if options.detached:
            self._shutdown.start()
        self._draining = None if options.notice is None else DrainWatch(self._host.post)
        self._figures = JobFigures(plan.name)
        period = options.reporting.metrics
        self._reporter = None if period is None else Reporter(self._samples, period)

    def _supervise(self, me: Address, post: Callable[[CoordinatorMessage], None]) -> Supervisor:
        """Of the job's processes. ``me``: where they report to."""
        from .driver_calls import RayDriverCalls

        options, plan = self._options, self._plan
        self._calls = RayDriverCalls(options.drivers, partial(peers_of, plan), me, post, plan.uuid, options.secrets)
        tasks = plan.tasks()
        spares = [slot for slot in options.drivers if slot not in set(tasks)]
        notice = math.inf if options.notice is None else options.notice
        self._supervisor = Supervisor(tasks, self._calls, spares, options.period or 0.0, options.poison, notice)
        return self._supervisor

    def _samples(self) -> Iterable[Sample] | None:
        """What metrics tell of the job now; None if it cannot be told."""
        try:
            status, shown = self._host.wait_status(None, 0.0).status, self.checkpoints()
        except (PenstockError, TimeoutError):
            return None
        return self._figures.samples(status, shown, time.monotonic())

    def _died(self, error: InternalError, status: JobStatus) -> None:
        """The core has failed: end this process, so that Ray starts another one (rule 4). If that cannot be noted, the
        process stays, and who asks gets the error."""
        _log.error("the coordinator of job %r fails: %s", self._plan.name, error)
        try:
            self._deaths.note(failure_of(error), str(status.latest_completed))
        except OSError as unwritten:
            _log.warning("it stays, as that cannot be noted: %s", unwritten)
            return
        self.die()

    def _status_changed(self, status: JobStatus) -> None:
        """Tell the ranks of feeds that the job is over."""
        from ..feed.discovery import FeedDiscovery, how_it_ended, run_of

        if status.is_over and self._options.secrets is not None:
            run = run_of(self._options.secrets.token)
            FeedDiscovery(self._options.folder, self._plan.name, run).publish_end(how_it_ended(status, run))

    @ray.method(concurrency_group="events")
    def deliver(self, event: Event) -> None:
        """Tell the coordinator a fact."""
        self._host.post(event)

    @ray.method(concurrency_group="events")
    def say(self, slot: WorkerSlot, incarnation: str, generation: int, packets: Sequence[Packet[Content]]) -> int:
        """Take what a process says, in want of a connection. What has been taken of it."""
        return self._calls.said(slot, incarnation, generation, packets)

    @ray.method(concurrency_group="events")
    def announce(self, identity: Identity) -> None:
        """A driver's process is up again."""
        self._host.post(ProcessAppeared(identity))

    @ray.method(concurrency_group="users")
    def request(self, event: Event) -> None:
        """A user asks for something (``client``)."""
        self._shutdown.touch()
        self._host.post(event)

    @ray.method(concurrency_group="waiters")
    def wait_status(self, version: tuple[str, int] | None, timeout: float) -> Versioned:
        """The status, as soon as its version is another than the one given, or after ``timeout`` seconds."""
        self._shutdown.touch()
        return self._host.wait_status(version, timeout)

    @ray.method(concurrency_group="users")
    def placement(self) -> dict[TaskId, WorkerSlot]:
        """On which slot each task is; with spares that changes."""
        return self._supervisor.placement

    @ray.method(concurrency_group="users")
    def checkpoints(self) -> Overview:
        """The statistics of the checkpoints."""
        left = self._shutdown.wait(0.0)
        if left is not None:
            return left.checkpoints
        return self._host.checkpoints(ANSWER_SECONDS)

    @ray.method(concurrency_group="users")
    def windows(self) -> tuple[WindowReport, ...]:
        """The statistics of the newest windows between task barriers."""
        return self._host.windows(ANSWER_SECONDS)

    @ray.method(concurrency_group="users")
    def descriptor(self) -> JobDescriptor:
        """What somebody needs to attach to the job."""
        self._shutdown.touch()
        options = self._options
        return JobDescriptor(
            self._plan,
            options.folder,
            options.settings,
            options.drivers,
            options.detached,
            options.folder_stays,
            options.secrets,
        )

    @ray.method(concurrency_group="users")
    def claimant(self) -> Claimant:
        """Whose run it is."""
        return self._claimant

    @ray.method(concurrency_group="users")
    def is_detached(self) -> bool:
        """Whether the job outlives the script that started it."""
        return self._options.detached

    @ray.method(concurrency_group="waiters")
    def final_statistics(self, timeout: float) -> FinalStatistics | None:
        """What is left to tell once the processes of a detached job have ended; None: not within ``timeout``."""
        self._shutdown.touch()
        return self._shutdown.wait(timeout)

    @ray.method(concurrency_group="waiters")
    def dismiss(self) -> None:
        """End the processes of a detached job, whatever it does."""
        self._shutdown.dismiss()

    @ray.method(concurrency_group="users")
    def process(self) -> int:
        """The process id."""
        return os.getpid()

    @ray.method(concurrency_group="users")
    def die(self) -> None:
        """Kill this process at once, as a crash would."""
        os.kill(os.getpid(), signal.SIGKILL)

    @ray.method(concurrency_group="users")
    def shutdown(self) -> None:
        """End the thread and let what is being stored end."""
        if self._reporter is not None:
            self._reporter.close()
        if self._draining is not None:
            self._draining.close()
        self._calls.close()
        self._host.close()


def coordinator_actor_class() -> Any:
    """The actor class, with what Ray must know about it."""
    return ray.remote(
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        concurrency_groups={"events": 1, "users": 1, "waiters": 8},
    )(CoordinatorActor)


LOOK_SECONDS = 1.0


class DrainWatch:
    """A thread that asks Ray which nodes are drained, and posts what has changed."""

    def __init__(self, post: Callable[[NodesDraining], None]) -> None:
        self._post = post
        self._over = threading.Event()
        threading.Thread(target=self._run, name="penstock-draining", daemon=True).start()

    def close(self) -> None:
        """Ask no more."""
        self._over.set()

    def _run(self) -> None:
        known: dict[str, float] = {}
        while not self._over.wait(LOOK_SECONDS):
            try:
                found = drained_nodes()
            except Exception as error:  # whatever Ray raises while its control store is away
                _log.warning("Ray does not answer which nodes are drained: %s", error)
                continue
            if found or known:
                self._post(NodesDraining(found))
            known = found


def drained_nodes() -> dict[str, float]:
    """The seconds left for each node of the cluster that is being drained."""
    import ray
    from ray._private.state import state

    deadlines = state.get_draining_nodes()
    if not deadlines:
        return {}
    return seconds_left(deadlines, {node["NodeID"] for node in ray.nodes() if node["Alive"]}, time.time())

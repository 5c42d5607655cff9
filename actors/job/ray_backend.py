"""The backend of a job on Ray: its actors, as a ``Job`` asks them; and the jobs that other scripts have started.

Rules:

1. A restart of the coordinator is a pause: calls to it are repeated by Ray until it is back.
2. Actors are asked only over the connection to the cluster that the job was started or found with. Once that is gone
   (``ray.shutdown``), asking would make Ray start or join another cluster; an owned job's processes have ended with it.
3. A coordinator that cannot be made (mostly because workers lack the modules of a flow's functions) is not started
   again by Ray. The script learns it when it asks; readers of a feed ask nobody, so a notice is left for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util import list_named_actors

from ...coordinator.model.events import Event
from ...coordinator.model.statistics import JobStatus, Overview, WindowReport
from ...engine.core.errors import ConfigurationError, InternalError, PenstockError, SetupError, TaskLostError
from ...engine.core.identity import TaskId
from ..claims.place import Place
from ..client.backend import FinalStatistics, Ownership, cannot_be_asked
from ..client.job import Job
from ..cluster.calls import connection, end_for_good, short_reason, when_done
from ..cluster.environment import NAMESPACE
from ..feed.discovery import FeedDiscovery, run_of, shut_down
from ..feed.tcp_link import TcpRoute
from ..hosting.waiting_chain import Standing
from ..process.waiting import POLL_SECONDS, Deadline
from ..protocol.messages import Address, Identity, JobDescriptor, Versioned, WorkerSlot
from ..transport.dialling import Secrets
from .driver_actor import COORDINATOR, coordinator_name
from .shutdown import ask_tasks, end_actors
from .warm_roles import start_is_over

ANSWER_SECONDS = 10.0
"""How long a coordinator may take to answer somebody who only looks around: it may be on its way back."""
PEEK_SECONDS = 1.0
"""The same when a script ends."""
REMEDY = (
    "its workers must have the modules of the functions in its flow: install them on every machine, or send them along "
    'with ray job submit --working-dir=., or ray.init(runtime_env={"working_dir": "."})'
)


class RayBackend:
    """See the module's rules. ``descriptor``: where the job's actors are."""

    exit_seconds = 15.0

    def __init__(self, descriptor: JobDescriptor, coordinator: Address, ownership: Ownership) -> None:
        self.ownership = ownership
        self._job, self._folder = descriptor.plan.name, descriptor.folder
        self._plan, self._folder_stays = descriptor.plan, descriptor.folder_stays
        self._secrets: Secrets | None = descriptor.secrets
        self._address: Address = coordinator
        #: by worker slot: the driver actor of each task, and the spare ones
        self._actors: Mapping[WorkerSlot, Address] = descriptor.drivers
        #: rule 2
        self._connection = connection()

    @property
    def processes(self) -> RayBackend:
        """See :class:`Processes`."""
        return self

    @property
    def _is_connected(self) -> bool:
        return connection() == self._connection

    @property
    def _coordinator(self) -> Address:
        """The coordinator's actor, as long as it can be asked."""
        if not self._is_connected:
            raise self._left_cluster()
        return self._address

    @property
    def _drivers(self) -> Mapping[TaskId, Address]:
        """The actor that each task is on."""
        coordinator = self._coordinator
        if len(self._actors) == len(self._plan.tasks()):
            return self._actors
        placement: dict[TaskId, WorkerSlot] = self._ask(coordinator.placement.remote())
        return {task: self._actors[slot] for task, slot in placement.items()}

    def _left_cluster(self) -> TaskLostError:
        """The error for a question to a job over a connection that is gone."""
        why = "this script is not connected to its cluster any more"
        if self.ownership is not Ownership.DETACHED:
            return cannot_be_asked(self._job, why)
        way_on = f"it goes on: ps.attach({self._job!r}, address=…) finds it"
        return TaskLostError(f"job {self._job!r} cannot be asked: {why}", way_on)

    def _ask(self, ref: Any) -> Any:
        """The answer of the coordinator, whose own errors come back as they are."""
        try:
            return ray.get(ref)
        except RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, PenstockError) else error) from None
        except RayActorError as error:
            raise coordinator_died(self._job, error) from error

    # ------------------------------------------------------------------ questions and requests

    def wait_status(self, version: tuple[str, int] | None, timeout: float) -> Versioned:
        """See ``Backend``, as the next ones."""
        found: Versioned = self._ask(self._coordinator.wait_status.remote(version, timeout))
        return found

    def peek_status(self) -> JobStatus | None:
        if not self._is_connected:
            return None
        with suppress(RayError, GetTimeoutError):
            found: Versioned = ray.get(self._address.wait_status.remote(None, 0.0), timeout=PEEK_SECONDS)
            return found.status
        return None

    def request(self, event: Event) -> None:
        self._ask(self._coordinator.request.remote(event))

    def fetch_checkpoints(self) -> Overview:
        found: Overview = self._ask(self._coordinator.checkpoints.remote())
        return found

    def fetch_windows(self) -> tuple[WindowReport, ...]:
        found: tuple[WindowReport, ...] = self._ask(self._coordinator.windows.remote())
        return found

    def fetch_tasks(self) -> Mapping[TaskId, Standing]:
        return ask_tasks(self._drivers)

    def feed_route(self, job: str, feed: str) -> TcpRoute:
        if self._secrets is None:
            raise InternalError(f"job {job!r} has no secrets")
        return TcpRoute(self._folder, job, feed, self._secrets, self._plan.access)

    # ------------------------------------------------------------------ processes

    def identities(self) -> dict[TaskId, Identity]:
        """See ``Processes``, as the next ones."""
        refs = {task: driver.ready.options(max_task_retries=-1).remote() for task, driver in self._drivers.items()}
        return dict(zip(refs, ray.get(list(refs.values())), strict=True))

    def kill_task(self, task: TaskId) -> int:
        driver = self._drivers[task]
        identity: Identity = ray.get(driver.ready.options(max_task_retries=-1).remote())
        driver.die.remote()
        return identity.pid

    def cut_task(self, task: TaskId) -> None:
        ray.get(self._drivers[task].cut.options(max_task_retries=-1).remote())

    def coordinator_process(self) -> int:
        return int(self._ask(self._coordinator.process.remote()))

    def kill_coordinator(self) -> int:
        pid = self.coordinator_process()
        self._coordinator.die.options(max_task_retries=0).remote()
        return pid

    # ------------------------------------------------------------------ the end

    def wait_ended(self, deadline: Deadline) -> FinalStatistics | None:
        """Those of a detached job have ended when its coordinator says so."""
        if self.ownership is not Ownership.DETACHED:
            return None
        while True:
            left = deadline.left()
            found: FinalStatistics | None = self._ask(
                self._coordinator.final_statistics.remote(POLL_SECONDS if left is None else left)
            )
            if found is not None:
                return found
            if left == 0:
                raise TimeoutError(f"job {self._job!r} is over, but its processes have not ended yet")

    def stop(self) -> FinalStatistics | None:
        found: FinalStatistics | None = None
        if self.ownership is Ownership.DETACHED:
            if not self._is_connected:
                raise self._left_cluster()
            found = FinalStatistics()  # all that is known if its coordinator is gone
            with suppress(PenstockError):
                self._ask(self._coordinator.dismiss.remote())
                found = self._ask(self._coordinator.final_statistics.remote(0.0)) or found
                end_for_good(self._coordinator)
        if self._plan.feeds and self._notices is not None and self.ownership is not Ownership.GUEST:
            self._notices.publish_end(shut_down(self._job, self._notices.run))
        return found

    def end(self) -> bool:
        try:
            if not self._is_connected:
                return False
            if self.ownership is Ownership.OWNER:
                end_actors([self._address])
                end_actors(self._actors.values())
                start_is_over()
            return True
        finally:
            if not self._folder_stays and self._notices is not None:
                with suppress(PenstockError, OSError):
                    self._notices.remember(self._plan.feeds)

    @property
    def _notices(self) -> FeedDiscovery | None:
        if self._secrets is None:
            return None
        return FeedDiscovery(self._folder, self._job, run_of(self._secrets.token))


# ---------------------------------------------------------------------- a coordinator that is gone


def coordinator_died(job: str, error: RayActorError) -> PenstockError:
    """The error for a question to a coordinator that is gone."""
    if not (isinstance(error, ActorDiedError) and error.actor_init_failed):
        return cannot_be_asked(job, f"its coordinator is gone: {short_reason(error)}")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return SetupError(f"job {job!r} could not be started: {lines[-1]}", REMEDY, detail=str(error))


def watch_creation(job: str, coordinator: Address, failed: Callable[[PenstockError], None]) -> None:
    """Call ``failed``, on a thread of Ray's, if the coordinator cannot be made."""

    def ended(_: Any, error: BaseException | None) -> None:
        if isinstance(error, ActorDiedError) and error.actor_init_failed:
            failed(coordinator_died(job, error))

    when_done(coordinator.process.remote(), ended)


# ---------------------------------------------------------------------- jobs of other scripts


@dataclass(frozen=True, slots=True)
class JobEntry:
    """One job of the cluster. ``status`` None: its coordinator does not answer now."""

    name: str
    detached: bool
    status: JobStatus | None


def attach_job(name: str) -> Job:
    """The job of this name on the cluster that this process is connected to. Raises ConfigurationError."""
    try:
        coordinator = ray.get_actor(coordinator_name(name), namespace=NAMESPACE)
    except ValueError:
        running = ", ".join(job_names()) or "none"
        raise ConfigurationError(
            f"no job named {name!r} runs on this cluster", f"running here: {running}; or give another address"
        ) from None
    found: JobDescriptor = ray.get(coordinator.descriptor.remote())
    ownership = Ownership.DETACHED if found.detached else Ownership.GUEST
    place = Place(found.folder, found.settings, lambda: None, found.folder_stays)
    return Job(found.plan, place, RayBackend(found, coordinator, ownership))


def job_names() -> list[str]:
    """The names of all jobs on the cluster, in order."""
    found = [actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE]
    return sorted(name.removeprefix(COORDINATOR) for name in found if name.startswith(COORDINATOR))


def list_job_entries() -> list[JobEntry]:
    """All jobs on the cluster, by name; those that end meanwhile are left out."""
    entries = [_entry(name) for name in job_names()]
    return [entry for entry in entries if entry is not None]


def _entry(name: str) -> JobEntry | None:
    try:
        coordinator = ray.get_actor(coordinator_name(name), namespace=NAMESPACE)
        found, detached = ray.get(
            [coordinator.wait_status.remote(None, 0.0), coordinator.is_detached.remote()], timeout=ANSWER_SECONDS
        )
    except ValueError:
        return None
    except (RayError, GetTimeoutError):
        return JobEntry(name, False, None)
    return JobEntry(name, detached, found.status)

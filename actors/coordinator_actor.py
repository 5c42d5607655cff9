"""The named actor that hosts a job's coordinator: a door for calls, behind which a :class:`CoordinatorHost` works.

Rules:

1. The truth is in the log. Ray restarts the actor when its process dies and runs the constructor again; the new core
   reads the log, claims the job under a new generation, and deploys every task anew, in place where a process lives.
2. All methods may be repeated, so callers let Ray retry them: a restart is a pause to them.
3. One coordinator per job name: the actor's name is the lock.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray

from ..coordinator.events import CancelRequested, CheckpointRequested, Event
from ..coordinator.machine import Coordinator
from ..coordinator.settings import Settings
from ..engine.identity import TaskId
from ..engine.plan import JobPlan
from .calls import unsealed
from .coordinator_files import CoordinatorFiles
from .coordinator_host import CoordinatorHost
from .driver_calls import RayDriverCalls
from .messages import UNKNOWN_TIME, Address, Identity, ProcessAppeared, ProcessMessage, Versioned
from .snapshots import SnapshotFiles
from .storage.opening import open_store
from .supervisor import Supervisor
from .translate import execution_graph, neighbours_of


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """What a coordinator actor needs to know. ``folder``: where the job's checkpoints lie."""

    folder: str
    settings: Settings
    plan: Address
    """A reference to the plan, which lies in the object store as long as the job's owner lives."""
    drivers: Mapping[TaskId, Address]
    validate: bool = False
    """Check the core's invariants after every event."""


class CoordinatorActor:
    """See the module's rules. Made with :func:`coordinator_actor_class` and sealed :class:`CoordinatorOptions`."""

    def __init__(self, sealed_options: bytes) -> None:
        options: CoordinatorOptions = unsealed(sealed_options)
        plan: JobPlan = ray.get(options.plan)
        drivers = options.drivers
        owner, graph = uuid.uuid4().hex, execution_graph(plan)
        core = Coordinator(plan.name, plan.fingerprint, plan.description, graph, options.settings, owner)
        store = open_store(options.folder)
        snapshots = SnapshotFiles(options.folder, plan.name)
        me = ray.get_runtime_context().current_actor

        def supervise(post: Callable[[ProcessMessage], None]) -> Supervisor:
            return Supervisor(drivers, RayDriverCalls(drivers, partial(neighbours_of, plan), me, post))

        self._host = CoordinatorHost(
            core, partial(CoordinatorFiles, plan, store, snapshots), supervise, options.validate
        )
        self._host.start()

    @ray.method(concurrency_group="events")
    def deliver(self, event: Event) -> None:
        """Tell the coordinator a fact."""
        self._host.post(event)

    @ray.method(concurrency_group="events")
    def announce(self, identity: Identity) -> None:
        """A driver's process is up again."""
        self._host.post(ProcessAppeared(identity))

    @ray.method(concurrency_group="users")
    def cancel(self) -> None:
        """A user cancels the job."""
        self._host.post(CancelRequested(UNKNOWN_TIME))

    @ray.method(concurrency_group="users")
    def checkpoint(self) -> None:
        """A user asks for a checkpoint."""
        self._host.post(CheckpointRequested(UNKNOWN_TIME))

    @ray.method(concurrency_group="waiters")
    def wait_status(self, version: tuple[str, int] | None, timeout: float) -> Versioned:
        """The status, as soon as its version is another than the one given, or after ``timeout`` seconds."""
        return self._host.wait_status(version, timeout)

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
        self._host.close()


def coordinator_actor_class() -> Any:
    """The actor class, with what Ray must know about it."""
    return ray.remote(
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        concurrency_groups={"events": 1, "users": 1, "waiters": 8},
    )(CoordinatorActor)

"""The actor that hosts one task: a door for calls, behind which a :class:`TaskHost` does the work.

Rules:

1. No call does anything but post to the host, except the questions, which wait for its answer. Data do not come in
   through calls at all, but on streams from the other processes (``transport``), so control never waits behind them.
2. Ray restarts the actor when its process dies. The new process holds nothing and waits to be deployed to; it announces
   itself to the coordinator, which is the quickest sign that the old one is gone.
3. Every call may be repeated or come late: orders and frames are fenced by attempt, behind the door.
4. When the coordinator is gone for good, the task is stopped: nobody would ever commit what it does.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from ..coordinator.events import Event
from ..engine.edges import Frame, Upstream
from ..engine.identity import TaskId
from ..engine.plan import JobPlan
from ..engine.scheduler.pool import PoolScheduler
from ..engine.statistics import TaskStatistics
from .calls import gone_for_good, unsealed, when_done
from .environment import NAMESPACE
from .messages import Abandoned, Address, Arrived, Deployment, Identity, Order, Ordered
from .snapshots import SnapshotFiles
from .task_files import TaskFiles
from .task_host import TaskHost
from .transport.dialling import Resolved
from .transport.endpoint import Endpoint
from .transport.listener import Listener
from .transport.protocol import BrokenLink
from .transport.streams import StreamTransport

ANSWER_SECONDS = 5.0
"""How long a question waits for a task that is busy in one step (in a user's function, say)."""

_log = logging.getLogger(__name__)


def coordinator_name(job: str) -> str:
    """The name of a job's coordinator actor."""
    return f"coordinator:{job}"


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """What a driver actor needs to know. ``folder``: where the job's checkpoints lie."""

    task: TaskId
    folder: str
    plan: Address
    """A reference to the plan, which lies in the object store as long as the job's owner lives."""
    token: bytes
    """Known to the processes of this job alone: who does not know it is not let in."""


class DriverActor:
    """See the module's rules. Made with :func:`driver_actor_class` and sealed :class:`DriverOptions`."""

    def __init__(self, sealed_options: bytes) -> None:
        options: DriverOptions = unsealed(sealed_options)
        plan: JobPlan = ray.get(options.plan)
        incarnation = f"{time.time_ns()}-{os.getpid()}"
        self._identity = Identity(options.task, incarnation, os.getpid(), ray.util.get_node_ip_address())
        self._coordinator: Address = None
        self._over = threading.Event()
        snapshots = SnapshotFiles(options.folder, plan.name)
        self._files = TaskFiles(plan, snapshots, self._report)
        listener = Listener(options.token, incarnation, self._identity.node)
        self._endpoint = listener.endpoint

        def streams(broken: Callable[[BrokenLink], None]) -> StreamTransport:
            return StreamTransport(options.task, listener, options.token, _endpoint_of, self._arrived, broken)

        self._scheduler = PoolScheduler(plan.threads) if plan.threads else None
        self._host = TaskHost(plan, options.task, self._files, self._report, streams, self._scheduler, incarnation)
        self._host.start()
        if ray.get_runtime_context().was_current_actor_reconstructed:
            self._announce(plan.name)

    # ------------------------------------------------------------------ who is there

    @ray.method(concurrency_group="control")
    def ready(self) -> Identity:
        """Who this process is."""
        return self._identity

    @ray.method(concurrency_group="control")
    def endpoint(self) -> Endpoint:
        """Where this process takes the streams of others."""
        return self._endpoint

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Returns when the actor is told to end; fails when its process dies."""
        self._over.wait()

    @ray.method(concurrency_group="control")
    def die(self) -> None:
        """Kill this process at once, as a crash would."""
        os.kill(os.getpid(), signal.SIGKILL)

    @ray.method(concurrency_group="control")
    def shutdown(self) -> None:
        """Stop the task and release what it holds. The actor takes no more orders."""
        self._host.close()
        if self._scheduler is not None:
            self._scheduler.shutdown()
        self._files.close()
        self._over.set()

    # ------------------------------------------------------------------ orders

    @ray.method(concurrency_group="control")
    def deploy(self, deployment: Deployment) -> Identity:
        """Build an attempt in place of an older one."""
        self._coordinator = deployment.coordinator
        self._host.post(deployment)
        return self._identity

    @ray.method(concurrency_group="control")
    def order(self, command: Order) -> None:
        """Carry out an order for the attempt that it names."""
        self._host.post(Ordered(command))

    # ------------------------------------------------------------------ data

    def _arrived(self, frames: tuple[Frame, ...], upstream: tuple[Upstream, ...]) -> None:
        """Take what other tasks sent; called from the threads of their streams."""
        self._host.post(Arrived(frames, upstream))

    # ------------------------------------------------------------------ questions

    @ray.method(concurrency_group="questions")
    def why(self) -> list[str]:
        """One sentence for each driver that waits."""
        try:
            return self._host.ask(lambda task: task.why(), ANSWER_SECONDS) or []
        except TimeoutError:
            return [f"{self._identity.task} has been busy in one step for {ANSWER_SECONDS:g} s"]

    @ray.method(concurrency_group="questions")
    def statistics(self) -> TaskStatistics | None:
        """The task's counts; None if no task is deployed, or if it is too busy to say."""
        try:
            found: TaskStatistics | None = self._host.ask(lambda task: task.statistics(), ANSWER_SECONDS)
        except TimeoutError:
            return None
        return found

    # ------------------------------------------------------------------ to the coordinator

    def _report(self, event: Event) -> None:
        """Send an event; Ray repeats the call until a restarting coordinator has it."""
        if self._coordinator is not None:
            when_done(self._coordinator.deliver.remote(event), self._reported)

    def _reported(self, _: Any, error: BaseException | None) -> None:
        if error is not None and gone_for_good(error):
            self._host.post(Abandoned("the coordinator is gone"))

    def _announce(self, job: str) -> None:
        try:
            coordinator = ray.get_actor(coordinator_name(job), namespace=NAMESPACE)
        except ValueError:
            return  # none has been made yet, or the job is over
        coordinator.announce.remote(self._identity)


def _endpoint_of(driver: Address, resolved: Resolved) -> None:
    """Ask the process of a task where it listens. While it is being replaced, Ray waits for the next one."""
    try:
        ref = driver.endpoint.options(max_task_retries=-1).remote()
    except RayError as error:
        resolved(None, error)
        return
    when_done(ref, resolved)


def driver_actor_class() -> Any:
    """The actor class, with what Ray must know about it."""
    return ray.remote(
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        concurrency_groups={"control": 1, "watch": 1, "questions": 2},
    )(DriverActor)

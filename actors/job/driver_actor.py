"""The actor that hosts a task: a door for calls, behind which a :class:`TaskHost` does the work.

Rules:

1. No call does anything but post to the host, except the questions, which wait for its answer. Data do not come in
   through calls at all, but on streams from the other processes (``transport``), so control never waits behind them.
   Orders and reports go over one connection of the coordinator's (``transport.control_process``), and by calls while
   there is none.
2. Ray restarts the actor when its process dies. The new process holds nothing and waits to be deployed to; it announces
   itself to the coordinator, which is the quickest sign that the old one is gone.
3. Every call may be repeated or come late: orders and frames are fenced by attempt, behind the door.
4. When the coordinator is gone for good, the task is stopped: nobody would ever commit what it does. A process that
   nobody has asked for a sign of life, or given an order, during its lease ends itself; Ray starts another one if the
   actor is wanted.
5. The actor has a slot, and hosts the task that it is told to build: its own or, on a spare slot, any. A spare one has
   imported everything, knows the plan and listens, so that all that is left is to build the task.
6. What is imported here is waited for after each death: nothing of the coordinator's, and of feeds only where there are
   some.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from msgspec import structs
from ray.exceptions import GetTimeoutError, RayError

from ...coordinator.model.events import Event, NoticeGiven, TaskFailed
from ...coordinator.model.split_sets import SplitName
from ...engine.core.errors import unexpected
from ...engine.core.identity import Attempt, TaskId
from ...engine.exchange.channels import Frame, Upstream
from ...engine.runtime.statistics import TaskStatistics
from ...engine.scheduler.pool import shared_pool
from ...engine.scheduler.protocol import QueryOpener, Share
from ...engine.state.free_memory import keep_little
from ..cluster.calls import SHUTDOWN_SECONDS, end_for_good, gone_for_good, unsealed, when_done
from ..cluster.environment import NAMESPACE
from ..hosting.logs import TaskLog, write_json_lines
from ..hosting.measures import Sample, TaskFigures, feed_samples
from ..hosting.split_guard import SplitGuard
from ..hosting.task_host import TaskFiles, TaskHost, snapshots_of
from ..hosting.waiting_chain import Standing
from ..process.ending import watch_sigterm
from ..protocol.messages import (
    UNKNOWN_TIME,
    Address,
    Arrived,
    CoordinatorGone,
    Deployment,
    Identity,
    Order,
    SplitBegun,
)
from ..transport.control_process import ProcessEnd
from ..transport.control_wire import Content, Report
from ..transport.conversation import Packet
from ..transport.dialling import Endpoint
from ..transport.listener import Listener
from ..transport.protocol import BrokenLink
from ..transport.streams import StreamTransport
from .endpoint_resolver import EndpointResolver, Peer
from .metrics import Reporter
from .options import DriverOptions
from .warm_up import PREPARATION

ANSWER_SECONDS = 5.0
"""How long a question waits for a task that is busy in one step (in a user's function, say)."""

if TYPE_CHECKING:
    from ..feed.tcp_server import TcpFeedServer

_log = logging.getLogger(__name__)


COORDINATOR = "coordinator:"


def coordinator_name(job: str) -> str:
    """The name of a job's coordinator actor."""
    return f"{COORDINATOR}{job}"


class DriverActor:
    """See the module's rules. Made with :func:`driver_actor_class` and sealed :class:`DriverOptions`."""

    def __init__(self, sealed_options: bytes) -> None:
        PREPARATION.begin_work()
        keep_little()
        options: DriverOptions = unsealed(sealed_options)
        self._options = options
        self._guard = SplitGuard()
        self._plan = self._guard.guarded(options.plan.load())
        reporting = options.runtime.reporting
        write_json_lines(reporting.log_level, job=self._plan.name, task=str(options.slot))
        self._log = TaskLog(self._plan.name)
        incarnation = f"{time.time_ns()}-{os.getpid()}"
        where = ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id()
        self._identity = Identity(options.slot, incarnation, os.getpid(), *where)
        self._coordinator: Address = None
        self._over = threading.Event()
        #: when the coordinator last asked
        self._asked_at = time.monotonic()
        self._control = self._take_control()
        snapshots = snapshots_of(self._plan, options.folder, local_copies=options.local_copies)
        self._files = TaskFiles(self._plan, snapshots, self._report)
        self._listener = self._listen()
        self._resolver = EndpointResolver()
        #: of the newest host
        self._streams: StreamTransport | None = None
        #: serves the feeds of the newest host
        self._feeds: TcpFeedServer | None = None
        #: the task that is hosted, or was last
        self._hosted: tuple[TaskId, TaskHost] | None = None
        lease = options.runtime.lease_seconds
        if lease is not None:
            threading.Thread(target=self._keep_lease, args=(lease,), name="penstock-lease", daemon=True).start()
        self._figures = TaskFigures(self._plan)
        self._reporter = None if reporting.metrics is None else Reporter(self._samples, reporting.metrics)
        if options.runtime.notice_seconds is not None and not watch_sigterm(self._told_to_end):
            _log.warning("%s gets no notice of its end: it was not made on the main thread", options.slot)
        with warnings.catch_warnings(action="ignore"):  # of Ray's, about how it finds that out
            began_again = ray.get_runtime_context().was_current_actor_reconstructed
        if began_again:
            self._announce(self._plan.name)

    def __repr__(self) -> str:
        """What Ray writes in front of each line that a user's function prints."""
        return f"{self._plan.name} {self._options.slot}"

    # ------------------------------------------------------------------ the task

    def _take_control(self) -> ProcessEnd:
        return ProcessEnd(
            self._plan.uuid,
            self._identity.incarnation,
            self._listen(),
            self._report_by_calls,
            self._carry_out,
            self._give_sign,
            self._ask_for_coordinator,
        )

    def _listen(self) -> Listener:
        options, me = self._options, self._identity
        return Listener(options.token, me.incarnation, me.node, certificate=options.certificate)

    @property
    def _host(self) -> TaskHost | None:
        return None if self._hosted is None else self._hosted[1]

    def _host_of(self, task: TaskId) -> TaskHost:
        """The host of this task; that of another one makes room."""
        if self._hosted is None or self._hosted[0] != task:
            self._drop_host()
            self._hosted = (task, self._make_host(task))
        return self._hosted[1]

    def _make_host(self, task: TaskId) -> TaskHost:
        listener, options = self._listener, self._options

        def arrived(frames: tuple[Frame, ...], upstream: tuple[Upstream, ...]) -> None:
            host.post(Arrived(frames, upstream))

        def streams(broken: Callable[[BrokenLink], None]) -> StreamTransport:
            self._streams = StreamTransport(
                task,
                listener,
                options.token,
                self._resolver.resolve,
                arrived,
                broken,
                options.runtime.codecs(edge.id for edge in self._plan.exchanges),
                reconnect=options.runtime.reconnect_seconds,
                certificate=options.certificate,
            )
            return self._streams

        self._feeds = self._serve_feeds(task)
        host = TaskHost(
            self._plan,
            task,
            self._files,
            self._report,
            streams,
            self._threads_of(task),
            self._identity.incarnation,
            None if self._feeds is None else self._feeds.servers,
        )
        host.start()
        return host

    def _threads_of(self, task: TaskId) -> QueryOpener | None:
        """What runs the task's drivers: threads of this process's pool, as many as its slot has CPUs. None: the thread
        that takes its messages."""
        threads = self._plan.threads
        if threads is None:
            threads = max(1, int(self._plan.stages[task.vertex].resources.cpus))
        return shared_pool().share(Share(degree=threads)) if threads else None

    def _serve_feeds(self, task: TaskId) -> TcpFeedServer | None:
        """Serve the feeds that end in the task to their ranks (rule 6)."""
        options, me = self._options, self._identity
        if not self._plan.feeds:
            return None
        from ..feed.discovery import FeedDiscovery, run_of
        from ..feed.tcp_server import TcpFeedServer, feeds_of

        if not feeds_of(self._plan, task):
            return None
        discovery = FeedDiscovery(options.folder, self._plan.name, run_of(options.token))
        identity = (options.token, me.incarnation, me.node)
        return TcpFeedServer(self._plan, task, discovery, *identity, self._report, options.certificate)

    def _drop_host(self) -> None:
        host, self._hosted = self._host, None
        if self._feeds is not None:
            self._feeds.close()
        if host is not None:
            self._listener = self._listen()  # the old one goes with its host
            threading.Thread(target=host.close, name="penstock-close", daemon=True).start()

    # ------------------------------------------------------------------ who is there

    @ray.method(concurrency_group="control")
    def ready(self) -> Identity:
        """Who this process is. A process that is asked keeps its lease."""
        self._asked_at = time.monotonic()
        return self._identity

    def _give_sign(self, answer: Callable[[], None]) -> None:
        """As ``ready``, on the connection: the thread that takes a task's messages answers."""
        self._asked_at = time.monotonic()
        host = self._host
        if host is None:
            answer()
        else:
            host.give_sign(answer)

    @ray.method(concurrency_group="control")
    def endpoint(self) -> Endpoint:
        """Where this process takes the streams of others."""
        return self._listener.endpoint

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Returns when the actor is told to end; fails when its process dies."""
        self._over.wait()

    @ray.method(concurrency_group="control")
    def die(self) -> None:
        """Kill this process at once, as a crash would."""
        os.kill(os.getpid(), signal.SIGKILL)

    @ray.method(concurrency_group="control")
    def cut(self, streams: bool = True) -> None:
        """Lose all streams and the connection for orders at once, or that alone, as if the network had failed."""
        self._control.cut()
        if streams and self._streams is not None:
            self._streams.cut()

    @ray.method(concurrency_group="control")
    def shutdown(self) -> None:
        """Stop the task and release what it holds. The actor takes no more orders."""
        if self._reporter is not None:
            self._reporter.close()
        if self._feeds is not None:
            self._feeds.close()
        if self._host is None:
            self._listener.close()
        else:
            self._host.close()
        self._files.close()
        self._control.close()
        self._over.set()

    # ------------------------------------------------------------------ orders

    @ray.method(concurrency_group="control")
    def deploy(self, deployment: Deployment) -> tuple[Identity, Endpoint]:
        """Build an attempt in place of an older one. Who has taken it, and where it is dialled."""
        self._coordinator = deployment.coordinator
        self._control.hear(deployment.command.attempt.generation)
        task, known = deployment.command.task, self._host
        say = partial(self._say_split, task, deployment.command.attempt) if deployment.cautious else None
        self._guard.begin(say, frozenset(each.name for each in deployment.command.skipped))
        host = self._host_of(task)
        peers = {peer: Peer(peer, actor) for peer, actor in deployment.peers.items()}
        host.post(structs.replace(deployment, peers=peers))
        if host is not known:
            for peer, actor in deployment.peers.items():
                if peer < task:  # it dials, and may wait for Ray to tell it that there is a new process
                    actor.announce_endpoint.remote(task, self._listener.endpoint)
        return self._identity, self._control.endpoint

    @ray.method(concurrency_group="control")
    def announce_endpoint(self, task: TaskId, endpoint: Endpoint) -> None:
        """The process of a peer says where it listens."""
        self._resolver.announce(task, endpoint)

    @ray.method(concurrency_group="control")
    def clear(self) -> None:
        """This is a spare slot: drop the task, if any."""
        self._drop_host()

    @ray.method(concurrency_group="control")
    def order(self, command: Order) -> None:
        """Carry out an order for the attempt that it names."""
        self._carry_out(command)

    @ray.method(concurrency_group="control")
    def say(self, incarnation: str, generation: int, packets: Sequence[Packet[Content]]) -> int | None:
        """Take what the coordinator says, in want of a connection, to that incarnation. What has been taken, if it is
        listened to."""
        return self._control.called(generation, packets) if incarnation == self._identity.incarnation else None

    def _carry_out(self, command: Order) -> None:
        self._asked_at = time.monotonic()
        if self._hosted is not None and self._hosted[0] == command.task:
            self._hosted[1].post(command)

    # ------------------------------------------------------------------ questions

    @ray.method(concurrency_group="questions")
    def standing(self) -> Standing:
        """What the task waits for."""
        try:
            return Standing(self._statistics())
        except TimeoutError:
            return Standing(None, ANSWER_SECONDS)

    def _samples(self) -> Iterable[Sample] | None:
        """The metrics of the task now; nothing if there is none, None if it is too busy to say."""
        try:
            found = self._statistics()
        except TimeoutError:
            return None
        feeds = {} if self._feeds is None else self._feeds.servers
        told = [sample for server in feeds.values() for sample in feed_samples(self._plan.name, server.status())]
        return told if found is None else [*self._figures.samples(found), *told]

    def _statistics(self) -> TaskStatistics | None:
        host = self._host
        return None if host is None else host.statistics(ANSWER_SECONDS)

    # ------------------------------------------------------------------ to the coordinator

    def _report(self, event: Event) -> None:
        """Send an event; Ray repeats the call until a restarting coordinator has it."""
        self._log.on_event(event)
        if self._coordinator is None:
            return
        if isinstance(event, TaskFailed) and self._guard.raised is not None:
            self._control.put(SplitBegun(event.task, event.attempt, self._guard.raised, raised=True))
        if isinstance(event, Report):
            self._control.put(event)
        else:
            raise unexpected(TypeError(f"{type(event).__name__} is nothing that a process reports"))

    def _report_by_calls(self, generation: int, packets: Sequence[Packet[Content]]) -> None:
        """Ray repeats the call until a restarting coordinator has it."""

        def ended(seen: Any, error: BaseException | None) -> None:
            if error is None:
                self._control.acknowledged(generation, seen)
            else:
                self._reported(None, error)

        me = self._identity
        with suppress(RayError):  # the end of this process
            when_done(self._coordinator.say.remote(me.task, me.incarnation, generation, packets), ended)

    def _ask_for_coordinator(self) -> None:
        """The connection to it has ended: Ray knows whether it is gone."""
        with suppress(RayError):
            when_done(self._coordinator.process.remote(), self._reported)

    def _say_split(self, task: TaskId, attempt: Attempt, name: SplitName | None) -> None:
        """Tell the coordinator what is about to be read, and wait until it knows: reading it may be our end."""
        with suppress(GetTimeoutError, RayError):  # it is being restarted; then nobody counts anyhow
            ray.get(self._coordinator.deliver.remote(SplitBegun(task, attempt, name)), timeout=ANSWER_SECONDS)

    def _reported(self, _: Any, error: BaseException | None) -> None:
        host = self._host
        if error is not None and host is not None and gone_for_good(error):
            host.post(CoordinatorGone())

    def _announce(self, job: str) -> None:
        try:
            coordinator = ray.get_actor(coordinator_name(job), namespace=NAMESPACE)
        except ValueError:
            return  # none has been made yet, or the job is over
        coordinator.announce.remote(self._identity)

    def _told_to_end(self) -> None:
        """SIGTERM: say so, and stay until the task has gone elsewhere or the time is over."""
        budget = self._options.runtime.notice_seconds or 0.0
        if self._hosted is not None and self._coordinator is not None:
            notice = NoticeGiven(self._hosted[0], self._identity.incarnation, budget, UNKNOWN_TIME)
            self._coordinator.deliver.remote(notice)
            self._over.wait(budget)
        os._exit(1)

    def _keep_lease(self, lease: float) -> None:
        """End this process when nobody has asked for it during the lease; the actor, too, if nobody owns it."""
        me = ray.get_runtime_context().current_actor
        left = lease
        while not self._over.wait(left):
            left = self._asked_at + lease - time.monotonic()
            if left <= 0:
                _log.warning("nobody has asked for %s for %g s: it leaves", self._identity.task, lease)
                if self._options.detached:
                    end_for_good(me)
                    self._over.wait(SHUTDOWN_SECONDS)
                os._exit(1)


def driver_actor_class() -> Any:
    """The actor class, with what Ray must know about it."""
    return ray.remote(
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        concurrency_groups={"control": 1, "watch": 1, "questions": 2},
    )(DriverActor)

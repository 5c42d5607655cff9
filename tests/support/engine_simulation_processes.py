"""The processes of a simulated job: real hosts and real coordinators, without threads, Ray or a clock.

What is real: ``TaskHost`` with the ``Task`` in it, ``TaskFiles``, ``CoordinatorHost`` with the ``Coordinator`` in it,
``CoordinatorFiles``, ``Supervisor`` and the links of the transport. What is not: threads (work handed to them is done
at some later step), Ray (calls are entries of the simulated network) and time (the simulation's).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.actors.hosting.coordinator_host import CoordinatorFiles, CoordinatorHost
from penstock.actors.hosting.supervisor import Supervisor
from penstock.actors.hosting.task_host import TaskFiles, TaskHost
from penstock.actors.protocol.messages import (
    Arrived,
    AttemptAccepted,
    CallFailed,
    CoordinatorMessage,
    Deployment,
    Identity,
    Order,
    ProcessAppeared,
    ProcessGone,
    ProcessMessage,
    Sign,
    TaskMessage,
)
from penstock.actors.protocol.translate import execution_graph, peers_of
from penstock.actors.transport.protocol import BrokenLink
from penstock.coordinator.machine import Coordinator
from penstock.coordinator.model.commands import Command, DeployTask
from penstock.coordinator.model.events import DeadlinePassed, Event
from penstock.coordinator.model.settings import Settings
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.exchange.channels import Frame, Upstream
from penstock.engine.plan.plan import JobPlan
from penstock.engine.runtime.task import Task
from penstock.engine.scheduler.threads import InOrder
from support.engine_simulation_storage import SimulatedSnapshots
from support.packet_links import PacketLink

if TYPE_CHECKING:
    from support.engine_simulation import EngineSimulation


class Threads:
    """A pool whose work is done at some later step. A dead owner's work was done before, or never is, or is late."""

    def __init__(self, world: EngineSimulation, owner: Process | CoordinatorProcess, in_order: bool) -> None:
        self._world, self._owner = world, owner
        self._queue = self if in_order else None

    def submit(self, work: Callable[[], object]) -> None:
        def done() -> None:
            if self._owner.alive or self._world.choose(2):
                work()

        self._world.work(done, self._queue)


class Wires:
    """A transport over real links: a packet is an entry of the network, each link's packets keep their order."""

    def __init__(self, world: EngineSimulation, owner: Process, broken: Callable[[BrokenLink], None]) -> None:
        self._world, self._owner, self._broken = world, owner, broken
        self._processes = world.processes
        self.links: dict[TaskId, PacketLink] = {}
        #: links on which a packet was lost: nothing more arrives on them
        self._severed: set[PacketLink] = set()

    def connect(self, peers: Mapping[TaskId, tuple[Attempt, object]]) -> None:
        self.close()
        self.links = {task: PacketLink(task, attempt, address) for task, (attempt, address) in peers.items()}

    def send(self, frame: Frame) -> None:
        link = self.links.get(frame.channel.consumer)
        if link is not None and link.attempt == frame.attempts[1]:
            link.put_frame(frame)

    def reply(self, message: Upstream) -> None:
        link = self.links.get(message.channel.producer)
        if link is not None and link.attempt == message.attempts[0]:
            link.put_upstream(message)

    def close(self) -> None:
        for link in self.links.values():
            link.close()

    def sendable(self) -> list[PacketLink]:
        return [link for link in self.links.values() if link.sendable]

    def carry(self, link: PacketLink) -> None:
        """Send the link's next packet. It may not arrive, or arrive and look as if it had not."""
        packet = Arrived(*(tuple(part) for part in link.take()))
        target, lost = self._processes[link.task], self._world.fault("packet")
        arrives = not lost or self._world.choose(2) == 0

        def arrive() -> None:
            link.under_way -= 1
            if target.alive and arrives and link not in self._severed:
                target.host.post(packet)
            if lost:
                self._severed.add(link)
            if (lost or not target.alive) and self._owner.alive and not link.closed:
                link.close()
                self._broken(BrokenLink(link.task, link.attempt, "simulated"))

        self._world.post(arrive, link)


class Background:
    """The threads on which a task reads and writes: each piece of work is done at some later step."""

    def __init__(self, world: EngineSimulation) -> None:
        self._world = world
        self._waiting: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], None], *, is_extra: bool = False) -> None:
        self._waiting.append(work)
        self._world.work(lambda: self._do(work))

    def release(self) -> None:
        """What was submitted is done all the same, later."""

    def join(self, timeout: float | None = None) -> None:
        """The end of the task: nothing may be left under way."""
        while self._waiting:
            self._do(self._waiting[0])

    def _do(self, work: Callable[[], None]) -> None:
        if work in self._waiting:
            self._waiting.remove(work)
            work()


class Host(TaskHost):
    """A host whose messages are handled when they arrive and whose task is stepped by the simulation."""

    #: whether a step might do something
    awake = False
    wake_at: float | None = None
    credit = 1
    alive = True
    background: Background

    @property
    def task(self) -> Task | None:
        """The task that has been started."""
        return self._task if self._started else None

    def post(self, message: TaskMessage) -> None:
        if self.alive:
            before = self._task
            self._handle(message)
            if self._task is not None and self._task is not before:
                self._task._serial_scheduler._pool = self.background  # type: ignore[assignment]
                for driver in self._task.drivers:
                    for channel in (channel for outlet in driver.partitions for channel in outlet.channels):
                        channel._credit = self.credit
            self.awake = True

    def _release(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self.background.join()
        super()._release()

    def turn(self, now: float) -> bool:
        """One step of the task; whether it got anywhere."""
        self.awake = False
        if self.task is None:
            return False
        task, step = self.task, self.task.step(now)
        for driver in task.drivers:
            driver.checkpointing.handler.validate()
        self.awake, self.wake_at = step.progressed, step.wake_at
        return step.progressed


class Process:
    """One incarnation of a task's process."""

    def __init__(self, world: EngineSimulation, plan: JobPlan, task: TaskId, number: int) -> None:
        self._world = world
        self.identity = Identity(task, f"{task} process {number}", number, "here")
        self.alive = True
        #: knows its coordinator, as somebody has deployed to it
        self._is_known = False
        self._processes = world.processes
        self._watchers: list[Callable[[], None]] = []
        self._files = TaskFiles(plan, SimulatedSnapshots(world, world.storage), self._report)
        threads: Any = Threads(world, self, in_order=False)
        self._files._threads = threads
        self._files._commits, self._files._writes = InOrder(threads), InOrder(threads)
        self.wires: Wires

        def wires(broken: Callable[[BrokenLink], None]) -> Wires:
            self.wires = Wires(world, self, broken)
            return self.wires

        self.host = Host(plan, task, self._files, self._report, wires, incarnation=self.identity.incarnation)
        self.host.credit = world.sizes.credit
        self.host.background = Background(world)

    def deploy(self, deployment: Deployment) -> None:
        self._is_known = True
        self.host.post(deployment)

    def watch(self, ended: Callable[[], None]) -> None:
        self._watchers.append(ended)

    def die(self) -> None:
        self.alive = self.host.alive = False
        self.wires.close()
        for ended in self._watchers:
            self._world.post(ended)

    def _report(self, event: Event) -> None:
        """Tell the job's coordinator, whichever there is when the call arrives; it may arrive twice."""
        self._world.check_report(event)
        if not self._is_known:
            return

        def arrive() -> None:
            if (self.alive or self._world.choose(2)) and self._processes is self._world.processes:
                self._world.coordinator.post(event)

        self._world.post(arrive)
        if self._world.fault("double"):
            self._world.post(arrive)


class CoordinatorProcess(CoordinatorHost):
    """One coordinator, on the simulation's time."""

    def __init__(self, world: EngineSimulation, plan: JobPlan, settings: Settings, core: type[Coordinator]) -> None:
        self._world = world
        self.plan = plan
        self.alive = True
        graph = execution_graph(plan)
        made = core(plan.name, plan.fingerprint, plan.description, graph, settings, f"owner {world.next_number()}")
        super().__init__(made, self._make_files, lambda post: Supervisor(plan.tasks(), Calls(world, self)))
        self.core = made

    def _make_files(self, notify: Callable[[Event], None]) -> CoordinatorFiles:
        world = self._world
        files = CoordinatorFiles(self.plan, world.storage, SimulatedSnapshots(world, world.storage), notify)
        files._log_thread = Threads(world, self, in_order=True)  # type: ignore[assignment]
        files._file_thread = Threads(world, self, in_order=True)  # type: ignore[assignment]
        return files

    def begin(self) -> None:
        self._perform(self.core.start(self._world.now))

    def post(self, message: CoordinatorMessage) -> None:
        if self.alive:
            self._handle(message)
            self._world.watch_job(self)

    def look_at_clock(self) -> None:
        deadline = self.core.next_deadline()
        if deadline is not None and deadline <= self._world.now:
            self.post(DeadlinePassed(self._world.now))

    def _notify(self, event: Event) -> None:
        self._perform(self._world.handle(self.core, event))

    def _perform(self, orders: list[Command]) -> None:
        for order in orders:
            if isinstance(order, DeployTask):
                self._world.check_restore(order)
        super()._perform(orders)


class Calls:
    """The coordinator's calls to the tasks' processes, as Ray makes them."""

    def __init__(self, world: EngineSimulation, caller: CoordinatorProcess) -> None:
        self._world, self._caller = world, caller
        self._processes = world.processes  # of this job: a job that is started again has others

    def ready(self, task: TaskId) -> None:
        self._until_answered(task, lambda process: None, ProcessAppeared)

    def watch(self, task: TaskId, incarnation: str) -> None:
        gone = ProcessGone(task, incarnation, "simulated")

        def arrive() -> None:
            process = self._processes[task]
            if process.alive:
                process.watch(lambda: self._caller.post(gone))
            else:
                self._caller.post(gone)

        self._world.post(arrive)

    def sign(self, slot: TaskId) -> Sign:
        """Nobody hangs here."""
        return Sign.ALIVE

    def ask(self, slot: TaskId) -> None:
        """Nobody hangs here."""

    def replace(self, slot: TaskId) -> None:
        """Nobody hangs here."""

    def move(self, task: TaskId, slot: TaskId) -> None:
        """There are no spares."""

    def clear(self, slot: TaskId) -> None:
        """There are no spares."""

    def deploy(self, command: DeployTask, cautious: bool) -> None:
        peers = dict.fromkeys(peers_of(self._caller.plan, command.task))
        deployment = Deployment(command, peers, None)
        self._until_answered(
            command.task,
            lambda process: process.deploy(deployment),
            lambda identity: AttemptAccepted(command.attempt, identity),
        )

    def order(self, command: Order) -> None:
        def arrive() -> None:
            process = self._processes[command.task]
            if process.alive:
                process.host.post(command)
            if not process.alive:
                self._caller.post(CallFailed(command.task, command.attempt, "simulated"))

        self._world.post(arrive, self._queue(command.task))

    def _until_answered(
        self, task: TaskId, call: Callable[[Process], None], answer: Callable[[Identity], ProcessMessage]
    ) -> None:
        """Ray repeats the call until it has reached a process; an answer that has left arrives, even if that dies."""

        def arrive() -> None:
            process = self._processes[task]
            if process.alive:
                call(process)
                self._world.post(lambda: self._caller.post(answer(process.identity)), self._world.signs_of(task))
            elif self._caller.alive:
                self._world.post(arrive, self._queue(task))

        self._world.post(arrive, self._queue(task))

    def _queue(self, task: TaskId) -> Any:
        return (self, task)

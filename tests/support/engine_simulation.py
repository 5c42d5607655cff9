"""A whole job from one seed: the real engine, the real coordinator and their real hosts, in a world that misbehaves.

What may happen, at any step: processes of tasks and of the coordinator die; a new coordinator starts from the store
alone; a user restarts the job at another parallelism, cancels it and resumes it, or asks for a checkpoint; messages
are late (frames of a link and orders to a process keep their order, everything else overtakes), reports arrive twice,
packets get lost and break their link; snapshots, restores and commits fail; a write to the log fails, or succeeds
though it is said to have failed, at once or much later. Channels have a credit of one byte, rounds a few rows.

After ``patience`` faults the world behaves, so that every run ends: with the right rows, or with an error that names
the seed and says what everybody waits for. Nothing is ever given up because it took too long: what hangs is a failure.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed

from penstock.actors.protocol.messages import ProcessAppeared
from penstock.actors.storage.state_file import INLINE_BYTES
from penstock.coordinator.machine import Coordinator
from penstock.coordinator.model import events
from penstock.coordinator.model.commands import Command, DeployTask
from penstock.coordinator.model.events import Event, Failure
from penstock.coordinator.model.settings import Settings
from penstock.engine.core.elements import Element
from penstock.engine.core.identity import TaskId
from penstock.engine.plan import rounds
from penstock.engine.plan.plan import JobPlan
from penstock.engine.runtime.driver import Driver
from penstock.engine.scheduler import serial
from support.engine_simulation_flows import Disk
from support.engine_simulation_processes import CoordinatorProcess, Host, Process
from support.engine_simulation_shapes import plan_of
from support.engine_simulation_storage import Storage
from support.packet_links import PacketLink
from support.simulated_faults import SETTINGS as CLUSTER_SETTINGS

TICK = 0.002
STEPS = 30_000
STUCK_AFTER = 3.0
"""Seconds of the simulation without progress after which the job hangs; everything unanswered is repeated every 0.1."""

SETTINGS = replace(CLUSTER_SETTINGS, interval=0.06, timeout=1e9)


@dataclass(frozen=True)
class Sizes:
    """How much fits where. ``credit``: bytes that a channel may hold; ``chunk_rows``: rows of a source's batches;
    ``inline``: bytes of a task's new state that need no file."""

    credit: int = 1
    chunk_rows: int = 3
    inline: int = 0


TIGHT = Sizes()
INLINE = (0, 0, 1000, INLINE_BYTES)
"""Of which seeds draw. By the last one hardly any file is written."""


@dataclass(frozen=True)
class Faults:
    """Chances per message or step; ``patience`` faults at most."""

    patience: int = 25
    kill_task: float = 0.004
    kill_finished: float = 0.03
    kill_coordinator: float = 0.002
    restart_job: float = 0.001
    cancel: float = 0.0005
    ask: float = 0.003
    double: float = 0.03
    packet: float = 0.004
    snapshot: float = 0.02
    restore: float = 0.01
    commit: float = 0.02
    store: float = 0.04


FAULTS, NO_FAULTS = Faults(), Faults(patience=0)
OVER = ("finished", "failed", "cancelled", "superseded", "moved")


@contextmanager
def asked_in_the_middle(ask: Callable[[], None]) -> Iterator[None]:
    """``ask`` is called in the middle of drivers' steps: between two calls of operators, before whatever is sent."""
    expired, put_out = serial.SerialQuantum.expired, Driver._put_out

    def asked(quantum: serial.SerialQuantum) -> bool:
        ask()
        return expired(quantum)

    def put_out_later(driver: Driver, element: Element) -> bool:
        ask()
        return put_out(driver, element)

    serial.SerialQuantum.expired, Driver._put_out = asked, put_out_later  # type: ignore[method-assign]
    try:
        yield
    finally:
        serial.SerialQuantum.expired, Driver._put_out = expired, put_out  # type: ignore[method-assign]


class EngineSimulation:
    """``run`` returns when the job is over, or raises AssertionError."""

    def __init__(
        self,
        seed: int,
        shape: int,
        parallelism: tuple[int, ...],
        faults: Faults = FAULTS,
        settings: Settings = SETTINGS,
        sizes: Sizes = TIGHT,
        core: type[Coordinator] = Coordinator,
    ) -> None:
        """``parallelism``: every start of the job draws one of these."""
        self.seed, self._shape, self._parallelism = seed, shape, parallelism
        self.random = random.Random(seed)
        self.faults, self._settings, self.sizes, self._core = faults, settings, sizes, core
        self.now, self.steps = 0.0, 0
        self.disk = Disk(lambda: self.fault("commit"))
        self.storage = Storage(self, settings.retained, sizes.inline)
        self.processes: dict[TaskId, Process] = {}
        self.plan: JobPlan
        self.coordinator: CoordinatorProcess
        #: What is under way, by queue; a queue keeps its order.
        self._network: dict[Hashable, deque[Callable[[], None]]] = {}
        self._numbers = 0
        self._faults_left = faults.patience
        self._progress_at = 0.0
        #: whose turn it is
        self._at: Host | None = None
        self.finished = False
        #: The kinds of faults and outcomes that occurred.
        self.seen: set[str] = set()

    # --- running -------------------------------------------------------------------------------------------------

    def run(self) -> EngineSimulation:
        before = rounds.CHUNK_ROWS, serial.CALLS_PER_TURN
        rounds.CHUNK_ROWS = self.sizes.chunk_rows
        try:
            self._start_job()
            while not self.finished:
                self.steps += 1
                assert self.steps < STEPS, "no end in sight"
                self._step()
        except Exception as error:
            raise AssertionError(f"seed {self.seed}: {type(error).__name__}: {error}\n{self.why()}") from error
        finally:
            rounds.CHUNK_ROWS, serial.CALLS_PER_TURN = before
        return self

    def _step(self) -> None:
        self.now += TICK
        self._disturb()
        self.coordinator.look_at_clock()
        hosts = [process.host for process in self.processes.values() if process.alive]
        awake = [host for host in hosts if host.awake or (host.wake_at is not None and host.wake_at <= self.now)]
        links = [(process.wires, link) for process in self.processes.values() for link in process.wires.sendable()]
        choice = self.random.randrange(3)
        if links and (choice == 0 or not (self._network or awake)):
            wires, link = self.random.choice(links)
            wires.carry(link)
        elif self._network and (choice == 1 or not awake):
            for _ in range(1 + len(self._network) // 4):  # a network that is never overloaded for good
                self._deliver()
        elif awake:
            serial.CALLS_PER_TURN = self.random.choice((1, 1, 2, 16))
            with asked_in_the_middle(self._arrive_in_the_middle):
                if self._turn_of(self.random.choice(awake)):
                    self._progress_at = self.now
        else:
            self._wait([host.wake_at for host in hosts if host.wake_at is not None])

    def _turn_of(self, host: Host) -> bool:
        self._at = host
        return host.turn(self.now)

    def _arrive_in_the_middle(self) -> None:
        """Where a task is run by threads, what other tasks send comes while its drivers are in the middle of a step."""
        links = [each for each in self._network if isinstance(each, PacketLink) and self._is_of_turn(each.task)]
        if links and self.random.random() < 0.3:
            self._deliver_of(self.random.choice(links))

    def _is_of_turn(self, task: TaskId) -> bool:
        process = self.processes.get(task)  # packets may still be on their way to one of a wider plan
        return process is not None and process.host is self._at

    def _wait(self, times: list[float]) -> None:
        """Nothing is under way and nobody can work: only time can help."""
        deadline = self.coordinator.core.next_deadline()
        times += [] if deadline is None else [deadline]
        assert times, "nothing will ever happen again"
        assert self.now < self._progress_at + STUCK_AFTER, "nothing runs while work remains"
        self.now = max(self.now, min(times))

    def _deliver(self) -> None:
        if self._network:
            self._deliver_of(self.random.choice(list(self._network)))

    def _deliver_of(self, queue: Hashable) -> None:
        waiting = self._network[queue]
        action = waiting.popleft()
        if not waiting:
            del self._network[queue]
        action()

    def why(self) -> str:
        lines = [f"at step {self.steps}, time {self.now:.3f}, {len(self._network)} messages under way"]
        if hasattr(self, "coordinator"):
            lines += [str(self.coordinator.core.status()), self.coordinator.core.event_log()]
        for task, process in self.processes.items():
            found = process.host.task
            lines.append(f"{task} alive={process.alive} {found and (found.state, found.attempt, found.why())}")
            lines += [f"  {driver.name}: {driver.checkpointing.handler}" for driver in (found.drivers if found else ())]
        return "\n".join(lines)

    # --- what the parts ask of their world -----------------------------------------------------------------------

    def fault(self, kind: str) -> bool:
        if self._faults_left == 0 or self.random.random() >= getattr(self.faults, kind):
            return False
        self._faults_left -= 1
        self.seen.add(kind)
        return True

    def choose(self, number: int) -> int:
        return self.random.randrange(number)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def post(self, action: Callable[[], None], queue: Hashable | None = None) -> None:
        """Something that happens at some later step: after what is in the queue, or whenever."""
        self._network.setdefault(self.next_number() if queue is None else queue, deque()).append(action)

    def work(self, action: Callable[[], None], queue: Hashable | None = None) -> None:
        """As ``post``: a thread's work, on a disk mostly."""
        self.post(action, queue)

    def later(self, action: Callable[[], None]) -> None:
        """Something that happens much later."""
        self.post(lambda: self.post(lambda: self.post(action)))

    def signs_of(self, task: TaskId) -> Hashable:
        """The queue of what a task's processes say of themselves: starting a new one takes longer than an answer."""
        return ("signs", task)

    def handle(self, core: Coordinator, event: Event) -> list[Command]:
        completed = core.status().latest_completed
        orders = core.handle(changed(event, now=self.now))
        core.validate()
        if core.status().latest_completed != completed:
            self._progress_at = self.now
        return orders

    # --- oracles on the way --------------------------------------------------------------------------------------

    def check_report(self, event: Event) -> None:
        """Tasks fail for the faults that the simulation made, and for nothing else."""
        if isinstance(event, events.TaskFinished) and self.fault("kill_finished"):
            self._kill(event.task)
        if isinstance(event, events.TaskFailed) or (isinstance(event, events.TaskDeclined) and not event.closing):
            failure = event.failure
            assert "simulated" in failure.message, f"{event.task} failed: {failure.message}\n{failure.detail}"

    def check_restore(self, order: DeployTask) -> None:
        """A coordinator that holds the last claim goes on from the newest manifest that stands in the store, or, if the
        task is carried in that, from the one that its state there is of, or a later one."""
        if order.attempt.generation == self.storage.generation():
            newest = self.storage.newest()
            expected = None if newest is None else newest.checkpoint
            found = order.restored_from
            cut = None if newest is None else next((s.cut for s in newest.tasks if s.task == order.task), None)
            known = found == expected or (found is not None and cut is not None and cut <= found)
            assert known, f"{order.task} restarts from {found}, but the store's newest is {expected}"

    def watch_job(self, coordinator: CoordinatorProcess) -> None:
        """See whether the job is over; a user starts it again unless it has finished."""
        state = coordinator.core.status().state
        if coordinator is not self.coordinator or state not in OVER:
            return
        self.seen.add(state)
        failure = coordinator.core.status().failure
        if state == "finished" or self.storage.is_closed():  # whoever closed the log may have died before it said so
            self.finished = True
            return
        assert state != "failed" or (failure and self._is_excused(failure)), f"the job failed: {failure}"
        self._start_job()

    def _is_excused(self, failure: Failure) -> bool:
        return "simulated" in failure.message

    # --- faults --------------------------------------------------------------------------------------------------

    def _disturb(self) -> None:
        alive = [task for task, process in self.processes.items() if process.alive]
        if alive and self.fault("kill_task"):
            self._kill(self.random.choice(alive))
        if self.fault("kill_coordinator"):
            self.coordinator.alive = False
            self._start_coordinator()
        if self.fault("restart_job"):
            self._start_job()
        if self.fault("cancel"):
            self.coordinator.post(events.CancelRequested(self.now))
        if self.fault("ask"):
            self.coordinator.post(events.CheckpointRequested(self.now))

    def _kill(self, task: TaskId) -> None:
        processes = self.processes
        if not processes[task].alive:
            return
        processes[task].die()

        def restart() -> None:
            if processes is not self.processes:
                return  # the job has been started again meanwhile
            processes[task] = process = Process(self, self.plan, task, self.next_number())
            self.post(lambda: self._announce(process, processes), self.signs_of(task))

        self.post(restart)

    def _announce(self, process: Process, processes: dict[TaskId, Process]) -> None:
        if processes is self.processes:
            self.coordinator.post(ProcessAppeared(process.identity))

    def _start_job(self) -> None:
        """At a parallelism drawn anew."""
        self._start_processes(self._plan_for(self.random.choice(self._parallelism)))

    def _start_processes(self, plan: JobPlan) -> None:
        """All of them anew."""
        for process in self.processes.values():
            process.die()
        self.plan = plan
        self.processes = {}
        self.processes.update((task, Process(self, self.plan, task, self.next_number())) for task in self.plan.tasks())
        self._start_coordinator()

    def _plan_for(self, parallelism: int) -> JobPlan:
        return plan_of(self._shape, parallelism, self.disk)

    def _start_coordinator(self) -> None:
        if hasattr(self, "coordinator"):
            self.coordinator.alive = False
        self.coordinator = CoordinatorProcess(self, self.plan, self._settings, self._core)
        self._progress_at = self.now
        self.coordinator.begin()

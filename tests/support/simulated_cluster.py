"""A whole cluster from one seed: real coordinators, simulated tasks, a network and a store that misbehave.

What may happen, at any step: messages to and from tasks are delayed, overtake each other, double or get lost; tasks
and coordinators die; a second coordinator starts while the first lives on; a snapshot or a commit fails; the user
cancels and resumes; a write to the log fails, or succeeds though it is said to have failed, at once or much later.
What may not: a store command without its one answer, and a death that is never told (both are the shells' promises).

After ``patience`` faults the world behaves, so that every run ends: either with the right rows, or with an error that
names the seed and says what everybody waits for.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from penstock.coordinator import commands, events
from penstock.coordinator.commands import Command
from penstock.coordinator.events import Event, Failure
from penstock.coordinator.machine import Coordinator
from penstock.coordinator.manifest import Ended
from penstock.coordinator.settings import Settings
from penstock.engine.identity import Attempt, TaskId
from support.simulated_model import Channels, Flow
from support.simulated_shell import TaskShell
from support.simulated_storage import SimulatedStorage

TICK = 0.002
STEPS = 6_000
SETTINGS = Settings(
    interval=0.05,
    timeout=0.6,
    tolerable_failures=100_000,
    max_restarts=100_000,
    restart_delay=0.005,
    max_restart_delay=0.02,
    resend=0.1,
    retry_pause=0.005,
    ending_timeout=0.5,
)
MakeCoordinator = Callable[[Flow, Settings, str], Coordinator]


def make_coordinator(flow: Flow, settings: Settings, owner: str) -> Coordinator:
    """The real one."""
    return Coordinator("job", "fingerprint", "a flow", flow.graph, settings, owner)


@dataclass(eq=False)
class Incarnation:
    """One coordinator process. ``alive`` False: its messages fall on the floor."""

    core: Coordinator
    flow: Flow
    newest_attempts: dict[TaskId, Attempt] = field(default_factory=dict)
    alive: bool = True

    def wants(self, order: commands.DeployTask) -> bool:
        """Whether the order is the newest that it gave for the task."""
        return self.alive and self.newest_attempts.get(order.task) == order.attempt


@dataclass(frozen=True)
class Faults:
    """Chances per message or step; ``patience`` faults at most."""

    patience: int = 12
    drop: float = 0.03
    double: float = 0.03
    kill_task: float = 0.002
    kill_coordinator: float = 0.001
    second_coordinator: float = 0.0005
    cancel: float = 0.0003
    snapshot: float = 0.01
    commit: float = 0.01
    store: float = 0.06


NO_FAULTS = Faults(patience=0)


class SimulatedCluster:
    """``run`` returns when the job is over, or raises AssertionError."""

    def __init__(
        self,
        seed: int,
        flows: tuple[Flow, ...],
        faults: Faults = Faults(),
        settings: Settings = SETTINGS,
        make: MakeCoordinator = make_coordinator,
        fenced: bool = True,
        steps: int = STEPS,
    ) -> None:
        """``flows``: the same flow at several parallelisms; every new coordinator draws one."""
        self.random = random.Random(seed)
        self.seed, self._flows, self.faults, self._settings, self._make = seed, flows, faults, settings, make
        self.now = 0.0
        self.storage = SimulatedStorage(settings.retained, fenced)
        self.channels = Channels()
        self.tasks: dict[TaskId, TaskShell] = {}
        #: What is under way: to be done at some later step.
        self._network: list[Callable[[], None]] = []
        self._faults_left = faults.patience
        self._incarnations: list[Incarnation] = []
        self.finished = False
        self.steps, self._most_steps = 0, steps
        #: The kinds of faults and outcomes that occurred.
        self.seen: set[str] = set()

    # --- running -------------------------------------------------------------------------------------------------

    def run(self) -> SimulatedCluster:
        try:
            self._new_coordinator()
            while not self.finished:
                self.steps += 1
                assert self.steps < self._most_steps, "no end in sight"
                self._step()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}\n{self.why()}") from error
        return self

    def _step(self) -> None:
        self.now += TICK
        self._disturb()
        for incarnation in [one for one in self._incarnations if one.alive]:
            deadline = incarnation.core.next_deadline()
            if deadline is not None and deadline <= self.now:
                self._handle(incarnation, events.DeadlinePassed(self.now))
        runnable = [shell for shell in self.tasks.values() if shell.task.is_runnable()]
        if self._network and (not runnable or self.random.random() < 0.5):
            for _ in range(1 + len(self._network) // 8):  # a network that is never overloaded for good
                self._network.pop(self.random.randrange(len(self._network)))()
        elif runnable:
            self.random.choice(runnable).step(self.random.randrange(8))
        elif not self.finished:
            self._wait()

    def _wait(self) -> None:
        """Nothing is under way and nobody can work: only time can help."""
        deadlines = [one.core.next_deadline() for one in self._incarnations if one.alive]
        times = [deadline for deadline in deadlines if deadline is not None]
        assert times, "nothing will ever happen again"
        self.now = max(self.now, min(times))

    def why(self) -> str:
        lines = [f"at step {self.steps}, time {self.now:.3f}"]
        for one in self._incarnations:
            if one.alive:
                lines += [str(one.core.status()), one.core.story()]
        return "\n".join([*lines, *(str(shell) for shell in self.tasks.values())])

    # --- faults --------------------------------------------------------------------------------------------------

    def fault(self, kind: str) -> bool:
        """Whether something of this kind goes wrong now."""
        if self._faults_left == 0 or self.random.random() >= getattr(self.faults, kind):
            return False
        self._faults_left -= 1
        self.seen.add(kind)
        return True

    def _disturb(self) -> None:
        if self.tasks and self.fault("kill_task"):
            self.kill(self.random.choice(sorted(self.tasks)))
        if self.fault("kill_coordinator"):
            for incarnation in self._incarnations:
                incarnation.alive = False
            self._new_coordinator()
        if self.fault("second_coordinator"):
            self._new_coordinator()
        if self.fault("cancel"):
            self._handle(self._incarnations[-1], events.CancelRequested(self.now))

    def kill(self, task: TaskId) -> None:
        """The process dies; whoever deployed it is told, some time."""
        shell = self.tasks.pop(task)
        attempt = shell.task.attempt if self.random.random() < 0.5 else None
        self.post(lambda: self._handle(shell.home, events.TaskLost(task, attempt, "killed", self.now)))

    # --- messages ------------------------------------------------------------------------------------------------

    def post(self, action: Callable[[], None]) -> None:
        """A message that arrives, some time."""
        self._network.append(action)

    def post_unreliably(self, action: Callable[[], None]) -> None:
        """A message that may be lost or doubled."""
        if self.fault("drop"):
            return
        self.post(action)
        if self.fault("double"):
            self.post(action)

    def report(self, home: Incarnation, event: Event) -> None:
        """A task tells its coordinator something."""
        self.post_unreliably(lambda: self._handle(home, event))

    def fail(self, home: Incarnation, event: events.TaskFailed) -> None:
        """A task tells that it has failed; that is not lost, only late."""
        self.post(lambda: self._handle(home, event))

    # --- coordinators --------------------------------------------------------------------------------------------

    def _new_coordinator(self) -> None:
        flow = self.random.choice(self._flows)
        core = self._make(flow, self._settings, f"owner {len(self._incarnations)}")
        incarnation = Incarnation(core, flow)
        self._incarnations.append(incarnation)
        self._perform(incarnation, core.start(self.now))

    def _handle(self, incarnation: Incarnation, event: Event) -> None:
        if incarnation.alive:
            orders = incarnation.core.handle(replace(event, now=self.now))
            incarnation.core.validate()
            self._perform(incarnation, orders)

    def _perform(self, incarnation: Incarnation, orders: list[Command]) -> None:
        for order in orders:
            match order:
                case commands.ReadLog():
                    self.post(lambda: self._read_log(incarnation))
                case commands.StoreEntry():
                    self.post(lambda order=order: self._store(incarnation, order))  # type: ignore[misc]
                case commands.DiscardState(handles):
                    self.post_unreliably(lambda handles=handles: self.storage.discard(handles))  # type: ignore[misc]
                case commands.DiscardEntries(numbers):
                    self.post_unreliably(lambda n=numbers: self.storage.delete_entries(n))  # type: ignore[misc]
                case commands.CommitOrphans():
                    self.post_unreliably(lambda order=order: self._commit_orphans(incarnation, order))  # type: ignore[misc]
                case commands.DeployTask():
                    self._check_restore(incarnation, order)
                    incarnation.newest_attempts[order.task] = order.attempt
                    self.post_unreliably(lambda order=order: self._deploy(incarnation, order))  # type: ignore[misc]
                case commands.EndJob():
                    self._end(incarnation, order)
                case _:
                    self.post_unreliably(lambda order=order: self._to_task(order))  # type: ignore[misc]

    def _end(self, incarnation: Incarnation, order: commands.EndJob) -> None:
        incarnation.alive = False
        if order.status in ("finished", "superseded"):
            self.seen.add(order.status)
        closed = any(isinstance(entry, Ended) for entry in self.storage.entries())
        if order.status == "finished" or closed:
            self.finished = True
        elif incarnation is self._incarnations[-1] or not any(other.alive for other in self._incarnations):
            self._new_coordinator()

    def _check_restore(self, incarnation: Incarnation, order: commands.DeployTask) -> None:
        """A coordinator that holds the last claim goes on from the newest manifest that stands in the store."""
        claim, newest = self.storage.last_claim(), self.storage.newest()
        if claim is not None and claim.generation == order.attempt.generation:
            expected = newest.checkpoint if newest is not None else None
            assert order.restored_from == expected, (
                f"{order.task} restarts from {order.restored_from}, but the store's newest is {expected}"
            )

    # --- the shell's work ----------------------------------------------------------------------------------------

    def _read_log(self, incarnation: Incarnation) -> None:
        entries = tuple(self.storage.entries())
        answer: Event = events.LogRead(entries, self.now)
        if self.fault("store"):
            answer = events.LogFailed(Failure("reading failed", retry=True), self.now)
        self.post(lambda: self._handle(incarnation, answer))

    def _store(self, incarnation: Incarnation, order: commands.StoreEntry) -> None:
        entry = order.entry
        failed = events.EntryFailed(entry.number, Failure("the disk is full", retry=True), self.now)
        answer: Event = failed
        if not self.fault("store"):
            stands = self.storage.create(entry)
            answer = (events.EntryStored if stands else events.EntryRefused)(entry.number, self.now)
        elif self.random.random() < 0.4:
            self.storage.create(entry)
        elif self.random.random() < 0.6:
            self.post(lambda: self.post(lambda: self.post(lambda: self._late_write(order))))
        self.post(lambda: self._handle(incarnation, answer))

    def _late_write(self, order: commands.StoreEntry) -> None:
        """A write that was said to have failed lands after all, unless somebody has the number by now."""
        before = self.storage.newest()
        self.storage.create(order.entry)
        if self.storage.newest() != before:
            self.seen.add("late_write")

    def _commit_orphans(self, incarnation: Incarnation, order: commands.CommitOrphans) -> None:
        if self.fault("commit"):
            failure = Failure("no commit today", retry=True)
            self.fail(incarnation, events.TaskFailed(order.task, order.attempt, failure, self.now))
            return
        self.storage.commit(order.permit)
        committed = events.TaskCommitted(order.task, order.attempt, order.permit.checkpoint, self.now)
        self.report(incarnation, committed)

    def _deploy(self, incarnation: Incarnation, order: commands.DeployTask) -> None:
        """A process takes the newest attempt; an older one is answered by nobody."""
        current = self.tasks.get(order.task)
        if current is None or current.task.attempt < order.attempt:
            if not self.storage.has(order.state) and not incarnation.wants(order):
                return  # an old order: its files have gone meanwhile, and nobody waits for an answer
            self.tasks[order.task] = current = TaskShell(self, incarnation, order)
        if current.task.attempt == order.attempt:
            current.deployed_again()

    def _to_task(self, order: Command) -> None:
        shell = self.tasks.get(order.task)  # type: ignore[union-attr]
        if shell is not None and shell.task.attempt == order.attempt:  # type: ignore[union-attr]
            shell.perform(order)

"""A whole cluster from one seed: real coordinators, simulated tasks, a network and a store that misbehave.

What may happen, at any step: messages to and from tasks are delayed, overtake each other, double or get lost; tasks
and coordinators die; a process builds an attempt that another had built; a second coordinator starts while the first
lives on; a snapshot, a savepoint or a commit fails; the user cancels and resumes, asks for savepoints, pins checkpoints
and stops the job, which then goes on from its savepoint as another job at another parallelism; a write to the log
fails, or succeeds though it is said to have failed, at once or much later.
What may not: a store command without its one answer, and a death that is never told (both are the shells' promises).

After ``patience`` faults the world behaves, so that every run ends: either with the right rows, or with an error that
names the seed and says what everybody waits for.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from dataclasses import replace as replace_settings

from msgspec.structs import replace

from penstock.coordinator.machine import Coordinator
from penstock.coordinator.model import commands, events
from penstock.coordinator.model.commands import Command
from penstock.coordinator.model.events import Event
from penstock.coordinator.model.kinds import ClaimMode, StopMode
from penstock.coordinator.model.manifest import Claim, Ended, Manifest
from penstock.coordinator.model.settings import Settings
from penstock.coordinator.restore.stored_channels import fits
from penstock.coordinator.restore.stored_state import Snapshot, StoredState
from penstock.engine.core.identity import Attempt, TaskId
from support.simulated_faults import FAULTS, NO_FAULTS, SETTINGS, Faults
from support.simulated_feed import Trainers
from support.simulated_model import Channels, Flow
from support.simulated_shell import TaskShell
from support.simulated_storage import SimulatedStorage
from support.simulated_task import SimulatedTask
from support.simulated_waiting import chain_of_waiting
from support.simulated_wishes import Users
from support.simulated_work import ShellWork

TICK = 0.002
STEPS = 6_000
IDLE_STEPS = 1_500
"""Steps without anything done by a task: many times what a restart takes, or a checkpoint that times out."""
BAD_MOMENT = 0.02
"""The share of steps at which something may go wrong by itself, or somebody may wish for something."""
MakeCoordinator = Callable[[Flow, Settings, str, Snapshot | None], Coordinator]


def make_coordinator(flow: Flow, settings: Settings, owner: str, snapshot: Snapshot | None) -> Coordinator:
    """The real one."""
    return Coordinator("job", "fingerprint", "a flow", flow.graph, settings, owner, snapshot)


@dataclass(eq=False)
class Incarnation:
    """One coordinator process. ``alive`` False: its messages fall on the floor."""

    core: Coordinator
    flow: Flow
    owner: str
    newest_attempts: dict[TaskId, Attempt] = field(default_factory=dict)
    alive: bool = True
    #: When the core wants to be asked.
    deadline: float | None = None

    def wants(self, order: commands.DeployTask) -> bool:
        """Whether the order is the newest that it gave for the task."""
        return self.alive and self.newest_attempts.get(order.task) == order.attempt


class SimulatedCluster:
    """``run`` returns when the job is over, or raises AssertionError."""

    def __init__(
        self,
        seed: int,
        flows: tuple[Flow, ...],
        faults: Faults = FAULTS,
        settings: Settings = SETTINGS,
        make: MakeCoordinator = make_coordinator,
        fenced: bool = True,
        steps: int = STEPS,
        task_type: type[SimulatedTask] = SimulatedTask,
    ) -> None:
        """``flows``: the same flow at several parallelisms; every new coordinator draws one."""
        self.task_type = task_type
        self.users = Users(self)
        self._names = 0
        self._work = ShellWork(self)
        #: Whether the job was stopped for good: nobody goes on from its savepoint.
        self.drained = False
        #: What the job was started from, if it goes on from a savepoint.
        self.snapshot: Snapshot | None = None
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
        #: Readings of the log that take long.
        self._stalled = 0
        #: The last step at which a task did something.
        self._worked_at = 0
        #: Who reads the flow's feed, if it has one.
        self.trainers = Trainers(self, TaskId(flows[0].feed, 0), [], 0) if flows[0].feed else None
        #: The kinds of faults and outcomes that occurred.
        self.seen: set[str] = set()

    # --- running -------------------------------------------------------------------------------------------------

    def run(self) -> SimulatedCluster:
        try:
            self._new_coordinator()
            while not self.finished:
                self.go_on(1)
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}\n{self.why()}") from error
        return self

    def stall(self) -> None:
        """Somebody reads the log, and it takes long; what all others do meanwhile."""
        self._stalled += 1
        self.go_on(self.random.randrange(200))
        self._stalled -= 1
        self._worked_at = self.steps

    def go_on(self, steps: int) -> None:
        """What happens in so many steps, or until the job is over."""
        for _ in range(steps):
            if not self.finished:
                self.steps += 1
                assert self.steps < self._most_steps, "no end in sight"
                self._step()

    def _step(self) -> None:
        self.now += TICK
        self._disturb()
        for incarnation in self._living():
            if incarnation.deadline is not None and incarnation.deadline <= self.now:
                self.handle(incarnation, events.DeadlinePassed(self.now))
        if self.trainers is not None:
            self.trainers.step()
        shell = None if self._network and self.random.random() < 0.5 else self._runnable()
        assert self.steps - self._worked_at < IDLE_STEPS, "nothing is runnable while work remains"
        if shell is not None:
            self._worked_at = self.steps
            shell.step(self.random.randrange(8))
        elif self._network:
            for _ in range(1 + len(self._network) // 8):  # a network that is never overloaded for good
                if self._network:  # else what arrived was a long reading, and all has come meanwhile
                    self._network.pop(self.random.randrange(len(self._network)))()
        elif not self.finished:
            self._wait()

    def _living(self) -> list[Incarnation]:
        return [one for one in self._incarnations if one.alive]

    def _runnable(self) -> TaskShell | None:
        """Some task that can work."""
        shells = list(self.tasks.values())
        first = self.random.randrange(len(shells)) if shells else 0
        return next((shell for shell in (*shells[first:], *shells[:first]) if shell.task.is_runnable()), None)

    def _wait(self) -> None:
        """Nothing is under way and nobody can work: only time can help."""
        times = [one.deadline for one in self._living() if one.deadline is not None]
        times += [self.trainers.next_at()] if self.trainers is not None else []
        assert times or self._stalled, "nothing will ever happen again"
        self.now = max(self.now, min(times, default=self.now))

    def why(self) -> str:
        lines = [f"at step {self.steps}, time {self.now:.3f}", *chain_of_waiting(self.tasks.values())]
        for one in self._living():
            lines += [str(one.core.status()), one.core.event_log()]
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
        if self._faults_left == 0 or self.random.random() >= BAD_MOMENT:
            return
        if self.tasks and self.fault("kill_task"):
            self.kill(self.random.choice(sorted(self.tasks)))
        if self.fault("kill_coordinator"):
            for incarnation in self._incarnations:
                incarnation.alive = False
            self._new_coordinator()
        if self.fault("second_coordinator"):
            self._new_coordinator()
        if self.fault("cancel"):
            self.handle(self._incarnations[-1], events.CancelRequested(self.now))
        self.users.wish(self._incarnations[-1])
        if self.trainers is not None:
            self.trainers.disturb()

    def new_name(self) -> str:
        """Of a process."""
        self._names += 1
        return f"process {self._names}"

    def kill(self, task: TaskId) -> None:
        """The process dies; whoever deployed it is told, some time."""
        shell = self.tasks.pop(task)
        attempt = shell.task.attempt if self.random.random() < 0.5 else None
        self.post(lambda: self.handle(shell.home, events.TaskLost(task, attempt, "killed", self.now)))

    # --- messages ------------------------------------------------------------------------------------------------

    def post(self, action: Callable[[], None]) -> None:
        """A message that arrives, some time."""
        self._network.append(action)

    def post_later(self, action: Callable[[], None]) -> None:
        """A message that takes its time."""
        self.post(lambda: self.post(lambda: self.post(action)))

    def post_unreliably(self, action: Callable[[], None]) -> None:
        """A message that may be lost or doubled."""
        if self.fault("drop"):
            return
        self.post(action)
        if self.fault("double"):
            self.post(action)

    def report(self, home: Incarnation, event: Event) -> None:
        """A task tells its coordinator something."""
        self.post_unreliably(lambda: self.handle(home, event))

    def fail(self, home: Incarnation, event: events.TaskFailed) -> None:
        """A task tells that it has failed; that is not lost, only late."""
        self.post(lambda: self.handle(home, event))

    # --- coordinators --------------------------------------------------------------------------------------------

    def _new_coordinator(self) -> None:
        flow, moves = self._shape()
        owner = f"owner {len(self._incarnations)}"
        core = self._make(flow, replace_settings(self._settings, moves=moves), owner, self.snapshot)
        incarnation = Incarnation(core, flow, owner)
        self._incarnations.append(incarnation)
        self._perform(incarnation, core.start(self.now))
        incarnation.deadline = core.next_deadline()
        self.users.ask_again(incarnation)

    def _shape(self) -> tuple[Flow, bool]:
        """The flow as somebody wants it, or as it was if that does not fit what is in flight; whether it moves on."""
        wanted, newest = self.random.choice(self._flows), self.storage.newest()
        if newest is None and self.snapshot is not None:
            newest = self.snapshot.manifest
        if newest is None or fits(wanted.graph, newest):
            return wanted, False
        return next(flow for flow in self._flows if fits(flow.graph, newest)), True

    def handle(self, incarnation: Incarnation, event: Event) -> None:
        if incarnation.alive:
            orders = incarnation.core.handle(replace(event, now=self.now))
            incarnation.core.validate()
            incarnation.deadline = incarnation.core.next_deadline()
            self._perform(incarnation, orders)

    def _perform(self, incarnation: Incarnation, orders: list[Command]) -> None:
        for order in orders:
            match order:
                case commands.ReadLog():
                    self.post(lambda: self._work.read_log(incarnation))
                case commands.StoreEntry():
                    self.post(lambda order=order: self._work.store(incarnation, order))  # type: ignore[misc]
                case commands.DiscardState(handles):
                    self.post_unreliably(lambda handles=handles: self.storage.discard(handles))  # type: ignore[misc]
                case commands.DiscardEntries(numbers):
                    self.post_unreliably(lambda n=numbers: self.storage.delete_entries(n))  # type: ignore[misc]
                case commands.CopySavepoint():
                    self.post(lambda order=order: self._work.copy_savepoint(incarnation, order))  # type: ignore[misc]
                case commands.DiscardCopies():
                    self.post(lambda o=order: self.storage.discard_copies(o.checkpoint, o.location))  # type: ignore[misc]
                case commands.StoreSavepoint():
                    self.post(lambda order=order: self._work.store_savepoint(incarnation, order))  # type: ignore[misc]
                case commands.DiscardSnapshot(location):
                    self.post(lambda place=location: self.storage.discard_snapshot(place))  # type: ignore[misc]
                case commands.CommitOrphans():
                    self.post_unreliably(lambda order=order: self._work.commit_orphans(incarnation, order))  # type: ignore[misc]
                case commands.DeployTask():
                    self._check_restore(incarnation, order)
                    incarnation.newest_attempts[order.task] = order.attempt
                    self.post_unreliably(lambda order=order: self._work.deploy(incarnation, order))  # type: ignore[misc]
                case commands.EndJob():
                    self._end(incarnation, order)
                case _:
                    self.post_unreliably(lambda order=order: self._work.to_task(order))  # type: ignore[misc]

    def _end(self, incarnation: Incarnation, order: commands.EndJob) -> None:
        incarnation.alive = False
        failure = order.failure
        assert failure is None or failure.kind != "InternalError", f"the job failed: {failure.message}"
        if order.status in ("finished", "superseded", "stopped", "moved"):
            self.seen.add(order.status)
        self.users.look(incarnation.core.status())
        self.seen |= {"Dropped"} if self.storage.dropped else set()
        self.seen |= {"carried"} if self.storage.carried else set()
        ended = next((entry for entry in self.storage.entries() if isinstance(entry, Ended)), None)
        self._check_end(incarnation, order, ended)
        status = order.status if ended is None else ended.status
        if status == "stopped":
            self._stopped()
        elif status == "finished":
            self.finished = True
        elif self._is_newest(incarnation) or not any(other.alive for other in self._incarnations):
            self._new_coordinator()

    def _is_newest(self, incarnation: Incarnation) -> bool:
        """Whether somebody must take its place: those that are superseded get nowhere, and may not know it."""
        claim = self.storage.last_claim()
        return incarnation is self._incarnations[-1] or (claim is not None and claim.owner == incarnation.owner)

    def _stopped(self) -> None:
        """Go on from the savepoint as another job, unless the data were drained. Of this one nothing is left."""
        newest = self.storage.stopped_with
        assert newest is not None
        assert newest.savepoint in self.storage.savepoints, f"the job stopped with {newest.savepoint}, which is missing"
        standing = self.storage.saved(newest.savepoint)
        assert standing.checkpoint == newest.checkpoint, (
            f"the job stopped with {newest.checkpoint}, its savepoint is {standing.checkpoint}"
        )
        if self.users.modes.get(newest.request) is StopMode.DRAIN:
            self.drained = self.finished = True
        else:
            self.start_over(newest.savepoint)

    def _check_end(self, incarnation: Incarnation, order: commands.EndJob, ended: Ended | None) -> None:
        """A job that is over for good has a closed log; a coordinator that was superseded has a successor."""
        if order.status in ("finished", "stopped"):
            assert ended is not None, f"the job is said to be {order.status}, and its log is open"
        if order.status == "superseded":
            mine = incarnation.core.status().generation
            others = [
                entry.owner
                for entry in self.storage.entries()
                if isinstance(entry, Claim) and entry.owner != incarnation.owner and entry.generation > mine
            ]
            assert others, f"{incarnation.owner} of generation {mine} ends as superseded, and there is nobody else"

    def start_over(self, location: str) -> Manifest:
        """Another job begins with the savepoint."""
        for incarnation in self._incarnations:
            incarnation.alive = False
        self._network.clear()
        self.users.start_over()
        self.tasks.clear()
        self.channels = Channels()
        manifest, root = self.storage.start_over_from(location)
        mode = self.random.choice(list(ClaimMode))
        self.snapshot = Snapshot(manifest, root, mode)
        self.finished = False
        if self.steps:
            self._new_coordinator()
        return manifest

    def rows(self) -> dict[str, list[str]]:
        """All that came out of the flow: what sinks show, and what trainers have seen."""
        seen = {"feed": self.trainers.seen} if self.trainers is not None else {}
        return {**self.storage.visible_rows(), **seen}

    def fork(self, location: str) -> SimulatedCluster:
        """The run of another job that begins with a savepoint of this one, and with what was visible then."""
        other = SimulatedCluster(
            self.seed, self._flows, NO_FAULTS, self._settings, self._make, task_type=self.task_type
        )
        other.storage, other.random = self.storage, self.random
        manifest = other.start_over(location)
        other.storage.forget_rows_after(manifest.checkpoint)
        if self.trainers is not None:
            other.trainers = self.trainers.as_of(other, self.storage.feed_state(manifest, other.snapshot.root))
        return other.run()

    def _check_restore(self, incarnation: Incarnation, order: commands.DeployTask) -> None:
        """A coordinator that holds the last claim goes on from what the newest manifest in the store says of
        the task. One that was completed since the order was first given may carry just that."""
        claim, newest = self.storage.last_claim(), self.storage.newest()
        if claim is None or claim.generation != order.attempt.generation:
            return
        held = next((state for state in newest.tasks if state.task == order.task), None) if newest is not None else None
        expected = newest.checkpoint if newest is not None else None
        if held is not None and held.cut is not None and order.restored_from != expected:
            expected = held.cut if order.restored_from < held.cut else order.restored_from
        assert order.restored_from == expected, (
            f"{order.task} restarts from {order.restored_from}, but the store's newest is {expected}"
        )
        files = StoredState(newest, incarnation.flow.graph).of(order.task)
        assert order.state == files, f"{order.task} restarts from {order.state}, but the newest checkpoint has {files}"

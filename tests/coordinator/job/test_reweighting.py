"""Changes of weights: the mixture holds, the log gets it, the mixture goes on; whatever is lost, late or ended."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from penstock.coordinator.machine import Coordinator
from penstock.coordinator.model import events
from penstock.coordinator.model.commands import Command, DeployTask, ReadLog, SteerMixture, StoreEntry
from penstock.coordinator.model.events import (
    EntryFailed,
    MixtureSteered,
    ReweightRequested,
    TaskLost,
)
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from penstock.coordinator.model.manifest import LogEntry, Manifest, Reweighted, reweights_in
from penstock.coordinator.model.settings import Settings
from penstock.engine.core.identity import Attempt, Reweight, TaskId
from support.coordinator_driver import A1, A2, FULL_DISK, SINK, CoordinatorDriver

SETTINGS = Settings(interval=1e6, max_restarts=1_000_000, restart_delay=0.1, tolerable_failures=1_000_000)
CHANGE = Reweight("mix", 40, ((0, 2.0),), "first")
OTHER = Reweight("mix", 60, ((1, 0.0),), "second")


def graph() -> ExecutionGraph:
    edge = JobEdge("source", "sink", Pattern.ALL_TO_ALL)
    return ExecutionGraph((Vertex("source", 1), Vertex("sink", 1, operators=("mix", "feed"))), (edge,), True)


def running() -> CoordinatorDriver:
    driver = CoordinatorDriver(graph(), SETTINGS)
    driver.claim()
    driver.run()
    return driver


def steer(limit: int | None, *known: Reweight, attempt: Attempt = A1) -> SteerMixture:
    return SteerMixture(SINK, attempt, "mix", known, limit)


def steered(driver: CoordinatorDriver, order: SteerMixture, possible: int | None) -> list[Command]:
    known = len(order.reweights)
    return driver.tell(MixtureSteered(order.task, order.attempt, "mix", known, order.limit, possible, driver.now))


def storing(driver: CoordinatorDriver) -> StoreEntry:
    """Until the first change is on its way to the log."""
    assert driver.tell(ReweightRequested(CHANGE, A1, 0.0)) == [steer(40)]
    (order,) = steered(driver, steer(40), 40)
    assert isinstance(order, StoreEntry)
    return order


def test_mixture_holds_before_the_log_gets_the_change_and_then_goes_on() -> None:
    driver = running()
    order = storing(driver)
    assert isinstance(order.entry, Reweighted)
    assert order.entry.reweight == CHANGE
    assert driver.core.status().reweight("first") is None
    assert driver.stored(order) == [steer(None, CHANGE)]
    assert driver.core.status().reweight("first").refused == ""
    assert driver.tell(ReweightRequested(CHANGE, A1, 0.0)) == [], "asked twice it is one"
    assert driver.tell(ReweightRequested(OTHER, A1, 0.0)) == [], "one after the other"
    assert steered(driver, steer(None, CHANGE), 50) == [steer(60, CHANGE)]


@pytest.mark.parametrize("possible", [41, None])
def test_mixture_that_has_come_too_far_is_let_go_and_nothing_is_written(possible: int | None) -> None:
    driver = running()
    driver.tell(ReweightRequested(CHANGE, A1, 0.0))
    assert steered(driver, steer(40), possible) == [steer(None)]
    result = driver.core.status().reweight("first")
    assert (result.possible, bool(result.refused)) == (possible, True)
    assert steered(driver, steer(None), possible) == []
    assert driver.tell(ReweightRequested(OTHER, A1, 0.0)) == [steer(60)]


def test_orders_without_an_answer_come_again() -> None:
    driver = running()
    driver.tell(ReweightRequested(CHANGE, A1, 0.0))
    assert steer(40) in driver.pass_time(100.0)
    driver.stored(next(each for each in steered(driver, steer(40), 1) if isinstance(each, StoreEntry)))
    assert steer(None, CHANGE) in driver.pass_time(200.0)


def test_nothing_is_deployed_while_it_is_open_what_the_log_says() -> None:
    driver = running()
    order = storing(driver)
    driver.tell(TaskLost(SINK, A1, "killed", 1.0))
    assert driver.tell(EntryFailed(order.entry.number, FULL_DISK, 1.1)) == [ReadLog()]
    again = driver.read_log()
    assert again == [order], "it is tried again, and it may have been written"
    assert not any(isinstance(each, DeployTask) for each in driver.pass_time(50.0))
    deployed = [each for each in driver.stored(order) if isinstance(each, DeployTask)]
    assert [each.reweights for each in deployed] == [(CHANGE,)] * 2
    driver.run(2)
    assert steer(60, CHANGE, attempt=A2) in driver.tell(ReweightRequested(OTHER, A2, 60.0)), "the new one holds nowhere"


def test_mixture_whose_attempt_has_ended_is_not_asked_anew() -> None:
    """It may have been further: whoever asks has to look again at who has read what."""
    driver = running()
    driver.tell(ReweightRequested(CHANGE, A1, 0.0))
    driver.tell(TaskLost(SINK, A1, "killed", 1.0))
    driver.pass_time(50.0)
    assert not any(isinstance(each, SteerMixture) for each in driver.run(2))
    assert driver.core.status().reweight("first").again
    assert steered(driver, steer(40), 1) == [], "the word of an attempt that has ended"
    assert driver.tell(ReweightRequested(OTHER, A2, 50.0)) == [steer(60, attempt=A2)]


def test_successor_deploys_with_what_the_log_says_and_knows_what_was_asked() -> None:
    driver = running()
    driver.stored(storing(driver))
    successor = CoordinatorDriver(graph(), SETTINGS, driver.log, owner="successor")
    deployed = [each for each in successor.claim() if isinstance(each, DeployTask)]
    assert [each.reweights for each in deployed] == [(CHANGE,)] * 2
    successor.run()
    assert successor.tell(ReweightRequested(CHANGE, A1, 0.0)) == []
    assert successor.core.status().reweight("first").refused == ""


def test_change_of_what_no_single_task_has_is_refused() -> None:
    driver = running()
    assert driver.tell(ReweightRequested(Reweight("other", 1, (), "first"), A1, 0.0)) == []
    assert "no single task" in driver.core.status().reweight("first").refused
    assert driver.tell(ReweightRequested(OTHER, A1, 0.0)) == [steer(60)]


# --- simulation


@dataclass
class Mixture:
    """One attempt: what it was told, where it stands, and where it holds."""

    known: tuple[Reweight, ...]
    position: int
    limit: int | None = None
    started: bool = False


@dataclass
class World:
    """A coordinator and its successors, a log whose writes fail and land late, and a mixture whose attempts die. What
    is sent may be lost, come twice, and overtake anything but what goes from one to the same."""

    seed: int
    log: list[LogEntry] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        #: row by row, the changes that each attempt went by there
        self.left: list[tuple[int, frozenset[str]]] = []
        self.cut = 0
        self.late: list[LogEntry] = []
        self.attempts: dict[tuple[TaskId, Attempt], Mixture] = {}
        self.inbox: list[events.Event] = []
        self.orders: list[Command] = []
        self.asked: list[ReweightRequested] = []
        self.begin()

    def begin(self) -> None:
        """Another coordinator: what was on its way to the one before is lost, what that one has ordered is not."""
        owner = f"{self.random.random()}"
        self.core = Coordinator("job", "print", "a flow", graph(), SETTINGS, owner)
        self.inbox.clear()
        self.orders += self.core.start(self.now)

    def step(self) -> None:
        self.now += self.random.choice((0.0, 0.1, 1.0))
        chance = self.random.random()
        if self.orders and chance < 0.5:
            self.carry_out(self.orders.pop(0))
        elif self.inbox and chance < 0.9:
            self.handle(self.inbox.pop(0))
        elif chance < 0.93:
            self.move()
        elif chance < 0.95:
            self.handle(events.DeadlinePassed(self.now))
        elif chance < 0.97:
            self.ask()
        elif chance < 0.985:
            for event in self.asked[-3:]:
                self.handle(event)
        elif chance < 0.988:
            self.kill()
        elif chance < 0.99:
            self.begin()
        elif self.late:
            self.land(self.late.pop(0))

    def ask(self) -> None:
        """A user has looked how far the rows are that anybody has, and soon asks for a change behind them."""
        for (task, attempt), mixture in self.attempts.items():
            if task == SINK and mixture.started:
                position = self.seen + self.random.randrange(40)
                change = Reweight("mix", position, ((0, 1.0),), f"change {len(self.asked)}")
                self.asked.append(ReweightRequested(change, attempt, self.now))

    @property
    def seen(self) -> int:
        return max((position + 1 for position, _ in self.left), default=0)

    def handle(self, event: events.Event) -> None:
        self.orders += self.core.handle(event)
        self.core.validate()

    def kill(self) -> None:
        """All attempts end; the mixture goes on where its last checkpoint was."""
        for task, attempt in self.attempts:
            self.inbox.append(TaskLost(task, attempt, "killed", self.now))
        self.attempts.clear()

    def move(self) -> None:
        """Rows leave, and the checkpoint that a restart goes back to may move."""
        for (task, _), mixture in self.attempts.items():
            if task != SINK or not mixture.started:
                continue
            for _ in range(self.random.randrange(6)):
                if mixture.limit is not None and mixture.position >= mixture.limit:
                    break
                known = (each.request for each in mixture.known if each.position <= mixture.position)
                self.left.append((mixture.position, frozenset(known)))
                mixture.position += 1
            if self.random.random() < 0.2:
                self.cut = mixture.position

    def carry_out(self, order: Command) -> None:
        match order:
            case ReadLog():
                self.inbox.append(events.LogRead(tuple(self.log), self.now))
            case StoreEntry(entry):
                self.store(entry)
            case DeployTask(task, attempt):
                newest = max((each for one, each in self.attempts if one == task), default=attempt)
                if newest <= attempt and self.random.random() < 0.9:
                    self.attempts = {key: each for key, each in self.attempts.items() if key[0] != task}
                    self.attempts[task, attempt] = Mixture(order.reweights, self.cut)
                    self.inbox.append(events.TaskDeployed(task, attempt, self.now))
            case SteerMixture(task, attempt, _, reweights, limit):
                mixture = self.attempts.get((task, attempt))
                if mixture is not None and self.random.random() < 0.9:
                    mixture.known, mixture.limit = reweights, limit
                    self.answer(order, mixture)
            case _ if hasattr(order, "attempt") and type(order).__name__ == "StartTask":
                mixture = self.attempts.get((order.task, order.attempt))
                if mixture is not None:
                    mixture.started = True
            case _:
                pass

    def answer(self, order: SteerMixture, mixture: Mixture) -> None:
        known, possible = len(order.reweights), mixture.position + 1
        said = MixtureSteered(order.task, order.attempt, "mix", known, order.limit, possible, self.now)
        self.inbox += [said] * self.random.choice((0, 1, 1, 2))

    def store(self, entry: LogEntry) -> None:
        if any(each.number == entry.number for each in self.log):
            standing = next(each for each in self.log if each.number == entry.number)
            answer = events.EntryStored if standing == entry else events.EntryRefused
            self.inbox.append(answer(entry.number, self.now))
        elif self.random.random() < 0.75:
            self.log.append(entry)
            if self.random.random() < 0.9:
                self.inbox.append(events.EntryStored(entry.number, self.now))
            else:
                self.inbox.append(EntryFailed(entry.number, FULL_DISK, self.now))
        else:
            self.late.append(entry)
            self.inbox.append(EntryFailed(entry.number, FULL_DISK, self.now))

    def land(self, entry: LogEntry) -> None:
        """A write that had failed is there after all, unless its number is taken."""
        if entry.number == len(self.log):
            self.log.append(entry)

    def check(self) -> None:
        """Every row that has left went by what the log says in the end, whichever attempt gave it, and when."""
        stands = reweights_in(self.log)
        for position, known in self.left:
            assert known == {each.request for each in stands if each.position <= position}, f"row {position}"


def simulated(seeds: Sequence[int], steps: int) -> int:
    changed = 0
    for seed in seeds:
        world = World(seed)
        for _ in range(steps):
            world.step()
        world.check()
        changed += sum(isinstance(entry, Reweighted) for entry in world.log)
        assert not any(isinstance(entry, Manifest) for entry in world.log)
    return changed


def test_rows_go_by_what_the_log_says_whatever_is_lost() -> None:
    assert simulated(range(60), 700) > 15

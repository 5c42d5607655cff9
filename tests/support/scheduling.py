"""Runnables for the tests of the scheduler: each checks that the scheduler keeps its side of the contract.

``Probe`` counts who is inside and in which order it is called. ``Script`` plays outcomes. ``Producer``, ``Mover`` and
``Consumer`` move numbers over ``Belt``s, which hold a few of them and wake both ends: the smallest thing that hangs if
a wake-up is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident

from penstock.engine.scheduler.core import Core
from penstock.engine.scheduler.entries import Entry, QueryEntry
from penstock.engine.scheduler.protocol import Blocked, Failed, Finished, Outcome, Progress, Quantum, Wait, WaitReason

INPUT = (Wait(WaitReason.INPUT, "somebody"),)
PROGRESS = Progress()
FINISHED = Finished()
BLOCKED = Blocked(INPUT)


class Probe:
    """A runnable that fails loudly if it is called out of turn. Subclasses define ``turn``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened = self.closed = 0
        self.turns = 0
        self.inside: int | None = None
        self.threads: set[int] = set()
        self.broken: list[str] = []

    def open(self) -> None:
        self._check(self.opened == 0 and self.closed == 0, "opened twice, or after its end")
        self.opened += 1

    def run(self, quantum: Quantum) -> Outcome:
        self._check(self.inside is None, "run by two threads")
        self._check(self.opened == 1, "run before open")
        self._check(self.closed == 0, "run after close")
        self.inside = get_ident()
        self.threads.add(self.inside)
        self.turns += 1
        try:
            return self.turn(quantum)
        finally:
            self.inside = None

    def turn(self, quantum: Quantum) -> Outcome:
        raise NotImplementedError

    def close(self) -> None:
        self._check(self.inside is None, "closed while it ran")
        self._check(self.closed == 0, "closed twice")
        self.closed += 1

    def _check(self, holds: bool, text: str) -> None:
        if not holds:
            self.broken.append(text)
            raise AssertionError(f"{self.name}: {text}")


class Script(Probe):
    """Plays outcomes, one a turn; a callable is called for its outcome, an exception is raised. Then it is finished."""

    def __init__(self, name: str, *steps: Outcome | Exception | Callable[[], Outcome]) -> None:
        super().__init__(name)
        self.steps = deque(steps)

    def turn(self, quantum: Quantum) -> Outcome:
        if not self.steps:
            return FINISHED
        step = self.steps.popleft()
        if isinstance(step, Exception):
            raise step
        return step if isinstance(step, Progress | Blocked | Finished | Failed) else step()


class Endless(Probe):
    """Always has more to do."""

    def turn(self, quantum: Quantum) -> Outcome:
        return PROGRESS


class Belt:
    """A bounded queue between two runnables; who puts wakes the consumer, who takes wakes the producer."""

    def __init__(self, capacity: int = 2) -> None:
        self.items: deque[int | None] = deque()
        self.capacity = capacity
        self.producer: Entry | None = None
        self.consumer: Entry | None = None

    @property
    def full(self) -> bool:
        return len(self.items) >= self.capacity

    def put(self, item: int | None) -> None:
        assert not self.full
        self.items.append(item)
        if self.consumer is not None:
            self.consumer.wake()

    def take(self) -> int | None:
        item = self.items.popleft()
        if self.producer is not None:
            self.producer.wake()
        return item


class Producer(Probe):
    """Puts numbers, then None."""

    def __init__(self, name: str, numbers: Sequence[int], belt: Belt) -> None:
        super().__init__(name)
        self.left: deque[int | None] = deque([*numbers, None])
        self.belt = belt

    def turn(self, quantum: Quantum) -> Outcome:
        while self.left:
            if self.belt.full:
                return Blocked((Wait(WaitReason.OUTPUT, "its consumer"),))
            self.belt.put(self.left.popleft())
            if quantum.expired():
                return PROGRESS
        return FINISHED


class Consumer(Probe):
    """Takes numbers until None."""

    def __init__(self, name: str, belt: Belt) -> None:
        super().__init__(name)
        self.belt = belt
        self.got: list[int] = []

    def turn(self, quantum: Quantum) -> Outcome:
        while self.belt.items:
            item = self.belt.take()
            if item is None:
                return FINISHED
            self.got.append(item)
            if quantum.expired():
                return PROGRESS
        return Blocked((Wait(WaitReason.INPUT, "its producer"),))


class Mover(Probe):
    """Takes from one belt and puts on another."""

    def __init__(self, name: str, source: Belt, target: Belt) -> None:
        super().__init__(name)
        self.source, self.target = source, target

    def turn(self, quantum: Quantum) -> Outcome:
        while self.source.items:
            if self.target.full:
                return Blocked((Wait(WaitReason.OUTPUT, "what follows"),))
            item = self.source.take()
            self.target.put(item)
            if item is None:
                return FINISHED
            if quantum.expired():
                return PROGRESS
        return Blocked((Wait(WaitReason.INPUT, "what comes before"),))


def add_chain(query, numbers, length=1, capacity=2, rank=0) -> tuple[list[Probe], Consumer]:
    """A producer, ``length`` movers and a consumer, wired over belts and added to the query."""
    belts = [Belt(capacity) for _ in range(length + 1)]
    consumer = Consumer("consumer", belts[-1])
    movers = [Mover(f"mover {n}", belts[n], belts[n + 1]) for n in range(length)]
    probes: list[Probe] = [Producer("producer", numbers, belts[0]), *movers, consumer]
    handles = [query.add(probe, rank=rank + len(probes) - n) for n, probe in enumerate(probes)]
    for belt, producer, taker in zip(belts, handles, handles[1:], strict=False):
        belt.producer, belt.consumer = producer, taker
    return probes, consumer


class CoreDriver:
    """A core driven by hand: every call at a time that only the test moves."""

    def __init__(self, workers: int = 2) -> None:
        self.core = Core(workers)
        self.now = 0.0

    def open(self, name: str = "q", *, group: str = "default", weight: float = 1.0, timeout=None, limit=None):
        return self.core.open(name, self.core.open_share(group, weight, limit), timeout)

    def add(self, query: QueryEntry, probe: Probe | str, rank: int = 0) -> Entry:
        runnable = Endless(probe) if isinstance(probe, str) else probe
        wake = lambda entry: self.core.wake(entry, self.now)  # noqa: E731
        return self.core.add(query, runnable, rank, wake, self.now)

    def start(self, query: QueryEntry) -> None:
        self.core.start(query, self.now)

    def started(self, *names: str, workers: int = 2, **options) -> tuple[QueryEntry, list[Entry]]:
        """A started query with endless runnables of these names."""
        query = self.open(**options)
        entries = [self.add(query, name) for name in names]
        self.start(query)
        return query, entries

    def claim(self, worker: int = 0) -> Entry | None:
        return self.core.claim(worker, self.now)

    def complete(self, entry: Entry, outcome: Outcome = PROGRESS, cost: float = 0.001) -> None:
        self.core.complete(entry, outcome, cost, self.now)

    def run(self, outcome: Outcome = PROGRESS, worker: int = 0, cost: float = 0.001) -> Entry:
        """One whole turn."""
        entry = self.claim(worker)
        assert entry is not None
        self.complete(entry, outcome, cost)
        return entry

    def close_all(self) -> list[str]:
        """Close what is in the eager lane; the names in order."""
        names = []
        while (entry := self.core.endings.claim_closing(self.now)) is not None:
            names.append(entry.name)
            entry.runnable.close()
            self.core.endings.closed(entry, None, self.now)
        return names

"""Work that the tests give to the simulated scheduler: each run checks what must hold whatever the interleaving."""

from __future__ import annotations

from support.scheduling import BLOCKED, FINISHED, PROGRESS, Probe, add_chain
from support.simulated_scheduler import SimulatedScheduler

NUMBERS = range(12)


def run_chain(scheduler: SimulatedScheduler, length: int = 2) -> None:
    """A chain of runnables under the scheduler: all numbers arrive, each is closed once, nobody broke the contract."""
    query = scheduler.open("chain")
    probes, consumer = add_chain(query, NUMBERS, length)
    query.start()
    scheduler.run()
    assert consumer.got == list(NUMBERS)
    assert query.error is None
    assert query.closed.done()
    check_ends(probes)


def check_ends(probes: list[Probe]) -> None:
    assert [probe.broken for probe in probes] == [[]] * len(probes)
    assert [probe.closed for probe in probes] == [1] * len(probes)


class Asking(Probe):
    """Has work done in the background, some at a time, and finishes with work under way."""

    def __init__(self, name: str, query, pieces: int) -> None:
        super().__init__(name)
        self.query, self.left, self.answers = query, pieces, 0
        self.handle = None

    def turn(self, quantum):
        while self.left:
            self.left -= 1
            self.query.background(lambda: 1, self.done, self.handle)
            if quantum.expired():
                return PROGRESS
        return BLOCKED if self.answers == 0 else FINISHED

    def done(self, answer) -> None:
        assert self.closed == 0, "answered after its end"
        self.answers += 1


def run_asking(scheduler: SimulatedScheduler) -> None:
    query = scheduler.open("asking")
    probe = Asking("asking", query, 4)
    probe.handle = query.add(probe)
    query.start()
    scheduler.run()
    assert probe.answers == 4
    check_ends([probe])


def run_cancelled(scheduler: SimulatedScheduler) -> None:
    query = scheduler.open("chain")
    probes, _ = add_chain(query, range(500), length=2)
    query.start()
    scheduler.later(lambda: query.cancel() and None)
    scheduler.run()
    check_ends(probes)

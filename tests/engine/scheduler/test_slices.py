"""A serial turn that ends by time: who has a mailbox to look after comes back to it, and nothing is forgotten."""

from __future__ import annotations

from penstock.engine.scheduler.protocol import Outcome, Quantum
from penstock.engine.scheduler.serial import CALLS_PER_TURN, SerialScheduler, Turn
from support.scheduling import BLOCKED, FINISHED, PROGRESS, Probe, Script

SLICE = 1.0


class Clock:
    """A clock that somebody sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(Probe):
    """Takes ``seconds`` for each of ``elements``."""

    def __init__(self, name: str, clock: Clock, seconds: float, elements: int) -> None:
        super().__init__(name)
        self.clock, self.seconds, self.left = clock, seconds, elements

    def turn(self, quantum: Quantum) -> Outcome:
        while self.left:
            self.clock.now += self.seconds
            self.left -= 1
            if quantum.expired():
                return PROGRESS
        return FINISHED


def test_turn_ends_with_the_element_in_which_the_slice_does() -> None:
    clock = Clock()
    scheduler = SerialScheduler(clock)
    query = scheduler.open("q")
    probe = Slow("slow", clock, 0.4, 10)
    query.add(probe)
    query.start()
    assert scheduler.turn(now=0.0, slice=SLICE) == Turn(True, None, True)
    assert probe.left == 7


def test_one_runnable_gets_its_turn_however_short_the_slice_is_and_all_come_to_their_end() -> None:
    clock = Clock()
    scheduler = SerialScheduler(clock)
    query = scheduler.open("q")
    probes = [Slow(f"slow {number}", clock, 5.0, 3) for number in range(4)]
    for rank, probe in enumerate(probes):
        query.add(probe, rank=rank)
    query.start()
    turns = 0
    while (turn := scheduler.turn(slice=SLICE)).more:
        turns += 1
        assert turn.progressed
    assert [probe.left for probe in probes] == [0] * 4
    assert query.closed.done()
    assert turns >= 4 * 3 - 1


def test_who_is_ready_when_the_slice_ends_runs_in_the_next_turn_without_being_woken_again() -> None:
    clock = Clock()
    scheduler = SerialScheduler(clock)
    query = scheduler.open("q")
    sleeper = Script("sleeper", BLOCKED, FINISHED)
    handle = query.add(sleeper, rank=1)
    query.start()
    scheduler.turn()
    query.add(Slow("slow", clock, 5.0, 1))
    handle.wake()
    while scheduler.turn(slice=SLICE).more:
        pass
    assert query.closed.done()


def test_without_a_slice_time_ends_no_turn() -> None:
    clock = Clock()
    scheduler = SerialScheduler(clock)
    query = scheduler.open("q")
    probe = Slow("slow", clock, 100.0, CALLS_PER_TURN + 1)
    query.add(probe)
    query.start()
    assert scheduler.turn(quanta=1).more
    assert probe.left == 1

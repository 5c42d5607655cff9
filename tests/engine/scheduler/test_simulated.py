"""Thousands of interleavings by seed: what must hold in all of them, and wrong cores that must be found out."""

from __future__ import annotations

import pytest

from penstock.engine.scheduler.protocol import Blocked, Share
from support.scheduling import BLOCKED, INPUT, PROGRESS, Endless, Probe, Script, add_chain
from support.simulated_scheduler import SimulatedScheduler, StuckError
from support.simulated_scheduling import NUMBERS, check_ends, run_asking, run_chain

SEEDS = range(250)


@pytest.mark.parametrize("stray", [0.0, 0.2], ids=["no stray wake-ups", "stray wake-ups"])
def test_chain_delivers_everything_in_every_interleaving(stray: float) -> None:
    for seed in SEEDS:
        run_chain(SimulatedScheduler(seed, workers=1 + seed % 4, stray=stray))


def test_same_seed_takes_the_same_steps() -> None:
    def steps(seed: int) -> tuple[int, float]:
        scheduler = SimulatedScheduler(seed)
        run_chain(scheduler)
        return scheduler.steps, scheduler.now

    assert steps(7) == steps(7)
    assert len({steps(seed) for seed in range(20)}) > 15


def test_wakes_per_batch_are_bounded_in_every_interleaving() -> None:
    """The guard against polling: no runnable is woken or run more often than there were things to be woken for.

    Each number is put and taken once per belt: two wake-ups, each of which explains at most one turn; one turn more per
    yield, one to begin with, and the one that finds nothing and blocks after each wake-up.
    """
    for seed in SEEDS:
        scheduler = SimulatedScheduler(seed, stray=0.0)
        query = scheduler.open("chain")
        add_chain(query, NUMBERS, length=2)
        query.start()
        scheduler.run()
        for statistics in query.statistics().handles:
            assert statistics.wakeups <= 2 * 2 * (len(NUMBERS) + 1)
            assert statistics.turns <= 1 + statistics.wakeups + statistics.yields


class Failing(Script):
    """Fails after a few turns."""

    def __init__(self, name: str, turns: int) -> None:
        super().__init__(name, *[PROGRESS] * turns, ValueError(name))


def test_error_ends_the_query_and_closes_everything_once_in_every_interleaving() -> None:
    for seed in SEEDS:
        scheduler = SimulatedScheduler(seed)
        told: list[BaseException] = []
        query = scheduler.open("chain", on_failure=lambda handle, error, told=told: told.append(error))
        probes, _ = add_chain(query, range(500), length=2)
        failing = [Failing(f"failing {n}", n + seed % 3) for n in range(3)]
        for probe in failing:
            query.add(probe)
        query.start()
        scheduler.run()
        assert told == [query.error]
        assert str(query.error) in {"failing 0", "failing 1", "failing 2"}
        check_ends([*probes, *failing])


def test_cancel_at_any_time_closes_everything_once() -> None:
    for seed in SEEDS:
        scheduler = SimulatedScheduler(seed)
        query = scheduler.open("chain")
        probes, _ = add_chain(query, range(500), length=2)
        query.start()
        scheduler.later(lambda query=query: query.cancel() and None)
        scheduler.run()
        assert query.error is None
        check_ends(probes)


def pause_and_resume(scheduler: SimulatedScheduler, query, probes: list[Probe], steps: int) -> None:
    """After so many steps: pause, see that nothing moves, resume."""
    until = scheduler.steps + steps
    scheduler.run(lambda: scheduler.steps >= until or query.closed.done())
    paused = query.pause()
    scheduler.run(paused.done)
    assert all(probe.inside is None for probe in probes)
    before = [probe.turns for probe in probes]
    scheduler.step()
    assert [probe.turns for probe in probes] == before
    query.resume()


def test_pauses_at_any_time_halt_and_lose_nothing() -> None:
    for seed in SEEDS:
        scheduler = SimulatedScheduler(seed, stray=0.0)
        query = scheduler.open("chain")
        probes, consumer = add_chain(query, NUMBERS, length=2)
        query.start()
        for steps in range(5, 200, 40):
            pause_and_resume(scheduler, query, probes, steps)
        scheduler.run()
        assert consumer.got == list(NUMBERS)
        check_ends(probes)


def test_background_work_is_over_before_the_close_in_every_interleaving() -> None:
    for seed in SEEDS:
        run_asking(SimulatedScheduler(seed))


def test_timers_pass_in_virtual_time() -> None:
    for seed in range(50):
        scheduler = SimulatedScheduler(seed, stray=0.0)
        query = scheduler.open("sleeper")
        query.add(Script("sleeper", *(Blocked(INPUT, wake_at=3600.0 * n) for n in range(1, 25))))
        query.start()
        scheduler.run()
        assert 86400 <= scheduler.now < 86401


def test_query_beyond_its_time_limit_is_ended_in_every_interleaving() -> None:
    for seed in SEEDS:
        scheduler = SimulatedScheduler(seed)
        query = scheduler.share(Share(timeout=0.2)).open("slow")
        probes: list[Probe] = [Endless("a"), Script("b", *[BLOCKED] * 10**4)]
        for probe in probes:
            query.add(probe)
        query.start()
        scheduler.run()
        assert "was not done within 0.2 s" in str(query.error)
        check_ends(probes)


def test_what_hangs_is_told_with_the_chain_of_waiting() -> None:
    scheduler = SimulatedScheduler(3, stray=0.0)
    query = scheduler.open("deadlock")
    query.add(Script("left", BLOCKED))
    query.start()
    with pytest.raises(StuckError) as caught:
        scheduler.run()
    assert "seed 3" in caught.value.message
    assert "query deadlock: runs\n  left [waiting] left waits for input: somebody" in caught.value.detail

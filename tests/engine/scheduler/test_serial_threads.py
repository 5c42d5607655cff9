"""Degree 0 with other threads about: who cancels, pauses or adds while a turn is under way, and who closes then."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.engine.scheduler.serial import SerialScheduler
from support.scheduling import PROGRESS, Endless, Script, add_chain

LONG = 60.0


@pytest.fixture
def others():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_cancel_from_another_thread_during_a_turn_is_closed_by_the_turn(others) -> None:
    scheduler = SerialScheduler()
    query = scheduler.open("q")
    inside, cancelled = threading.Event(), threading.Event()

    def work():
        inside.set()
        assert cancelled.wait(LONG)
        return PROGRESS

    probe, other = Script("r", work), Script("other")
    query.add(probe)
    query.add(other, rank=1)
    query.start()
    turn = others.submit(scheduler.turn)
    assert inside.wait(LONG)
    closed = query.cancel()
    assert not closed.done()
    assert (probe.closed, other.closed) == (0, 0)
    cancelled.set()
    assert turn.result(LONG).progressed
    assert closed.done()
    assert (probe.closed, other.closed, other.turns) == (1, 1, 0)


def test_query_added_from_another_thread_during_a_turn_runs_in_it(others) -> None:
    scheduler = SerialScheduler()
    query = scheduler.open("q")
    inside, added = threading.Event(), threading.Event()

    def work():
        inside.set()
        assert added.wait(LONG)
        return PROGRESS

    query.add(Script("r", work))
    query.start()
    turn = others.submit(scheduler.turn)
    assert inside.wait(LONG)
    late = scheduler.open("late")
    _, consumer = add_chain(late, range(10))
    late.start()
    added.set()
    turn.result(LONG)
    assert consumer.got == list(range(10))
    assert late.closed.done()


@pytest.mark.parametrize("attempt", range(30))
def test_cancels_from_several_threads_at_any_time_close_everything_once(others, attempt: int) -> None:
    """Whether the turn has just found nothing to do, is inside, or has not begun: somebody closes, and only once."""
    scheduler = SerialScheduler()
    queries = [scheduler.open(f"q{n}") for n in range(4)]
    probes = [Endless(f"r{n}") for n in range(8)]
    for n, probe in enumerate(probes):
        queries[n % 4].add(probe)
    for query in queries:
        query.start()
    cancels = [others.submit(query.cancel) for query in queries[attempt % 3 :]]
    while not all(query.closed.done() for query in queries[attempt % 3 :]):
        scheduler.turn(quanta=3)
    for cancel in cancels:
        cancel.result(LONG).result(LONG)
    scheduler.shutdown()
    assert [(probe.closed, probe.broken) for probe in probes] == [(1, [])] * 8


def test_wakes_from_many_threads_are_not_lost(others) -> None:
    """Each of them puts and wakes; the reader takes what is there and blocks. In the end everything was taken."""
    arrived = threading.Event()
    scheduler = SerialScheduler(notify=arrived.set)
    query = scheduler.open("q")
    probes, consumer = add_chain(query, [], length=0, capacity=10**6)
    query.start()
    scheduler.turn()
    assert query.closed.done()
    query = scheduler.open("q")
    consumer = type(consumer)("consumer", consumer.belt)
    consumer.belt.producer, consumer.belt.consumer = None, query.add(consumer)
    query.start()
    for start in range(4):
        others.submit(lambda start=start: [consumer.belt.put(n) for n in range(start, 4000, 4)])
    while len(consumer.got) < 4000:
        assert arrived.wait(LONG)
        arrived.clear()
        scheduler.turn()
    assert sorted(consumer.got) == list(range(4000))
    assert probes[0].closed == 1
    query.cancel()

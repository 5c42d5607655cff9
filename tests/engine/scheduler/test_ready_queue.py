"""Which runnable of a query a worker takes: downstream first, its own first, stealing, nobody forgotten."""

import pytest

from penstock.engine.scheduler.entries import OLDEST_FIRST, OLDEST_SECONDS, RankQueue
from support.scheduling import BLOCKED, CoreDriver


def test_downstream_runs_before_upstream() -> None:
    driver = CoreDriver()
    query = driver.open()
    for name, rank in (("scan", 2), ("sink", 0), ("filter", 1)):
        driver.add(query, name, rank)
    driver.start(query)
    assert [driver.run(BLOCKED).name for _ in range(3)] == ["sink", "filter", "scan"]


def test_those_of_a_rank_run_in_the_order_in_which_they_became_ready() -> None:
    driver = CoreDriver()
    driver.started("a", "b", "c")
    assert [driver.run(BLOCKED).name for _ in range(3)] == ["a", "b", "c"]


def test_worker_prefers_what_it_ran_last() -> None:
    driver = CoreDriver()
    driver.started("a", "b")
    first, second = driver.claim(0), driver.claim(1)
    driver.complete(second)
    driver.complete(first)
    assert driver.claim(0) is first
    assert driver.claim(1) is second
    assert (first.steals, second.steals) == (0, 0)


def test_woken_runnable_goes_to_the_worker_that_woke_it() -> None:
    driver = CoreDriver()
    _, [consumer, other] = driver.started("consumer", "other")
    driver.run(BLOCKED, worker=1)
    driver.run(BLOCKED, worker=0)
    other.wake()
    driver.core.wake(consumer, 0.0, worker=0)
    assert driver.claim(0) is other
    assert driver.claim(0) is consumer


def test_worker_without_work_of_its_own_steals_what_has_waited_longest() -> None:
    driver = CoreDriver()
    driver.started("a", "b")
    first, second = driver.claim(0), driver.claim(0)
    driver.complete(first)
    driver.complete(second)
    stolen = driver.claim(1)
    assert stolen is first
    assert stolen.steals == 1


def test_others_get_their_turn_after_three_of_the_workers_own() -> None:
    driver = CoreDriver()
    _, [own, _] = driver.started("own", "waiting")
    assert driver.claim(0) is own
    driver.complete(own)
    names = [driver.run(worker=0).name for _ in range(8)]
    assert names == ["own", "own", "own", "waiting", "own", "waiting", "own", "waiting"]


@pytest.mark.parametrize("workers", [1, 4])
def test_upstream_is_not_starved_by_a_downstream_that_never_blocks(workers: int) -> None:
    driver = CoreDriver(workers)
    query = driver.open()
    driver.add(query, "endless sink", 0)
    driver.add(query, "scan", 5)
    driver.start(query)
    names = [driver.run(worker=n % workers).name for n in range(3 * OLDEST_FIRST)]
    assert names.count("scan") >= 3 - 1


def test_upstream_does_not_wait_for_many_long_turns() -> None:
    """As those of two sources that sleep in each of them, beside the second driver of a task behind these."""
    driver = CoreDriver(2)
    query = driver.open()
    for name, rank in (("source", 0), ("source", 0), ("gather", 1)):
        driver.add(query, name, rank)
    driver.start(query)
    names = []
    for turn in range(6):
        driver.now = turn * 2 * OLDEST_SECONDS
        names.append(driver.run(worker=turn % 2).name)
    assert names.count("gather") == 2, "each gets a turn when it has waited longest"


def test_one_that_left_the_queue_is_not_found_there_again() -> None:
    """Its place is void: it belongs to an older generation."""
    driver = CoreDriver()
    query, [first, second] = driver.started("a", "b")
    for _ in range(5):
        driver.core.endings.pause(query, "future", 0.0)
        driver.core.endings.resume(query, 0.0)
    assert [driver.claim(0), driver.claim(0), driver.claim(0)] == [first, second, None]


def test_ranks_in_which_nothing_is_ready_are_not_looked_at(monkeypatch) -> None:
    driver = CoreDriver()
    query = driver.open()
    for rank in range(100):
        driver.add(query, f"driver {rank}", rank)
    driver.start(query)
    for _ in range(100):
        last = driver.run(BLOCKED)
    taken: list[object] = []
    take = RankQueue.take
    monkeypatch.setattr(RankQueue, "take", lambda self, worker: taken.append(self) or take(self, worker))
    for _ in range(10):
        last.wake()
        assert driver.run(BLOCKED) is last
    assert len(taken) < 30

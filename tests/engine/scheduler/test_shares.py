"""Who gets how much: groups by weight, queries by weight, young before old, nobody starved, caps."""

from collections import Counter

import pytest

from penstock.engine.scheduler.shares import CAP_BURST, LEVEL_THRESHOLDS
from penstock.engine.scheduler.validation import validate
from support.scheduling import BLOCKED, FINISHED, CoreDriver


def serve(driver: CoreDriver, turns: int, cost: float = 0.01) -> Counter[str]:
    """Give turns one after the other; CPU seconds by query."""
    used: Counter[str] = Counter()
    for _ in range(turns):
        used[driver.run(cost=cost).query.name] += 1
        driver.now += cost
    validate(driver.core)
    return Counter({name: count / turns for name, count in used.items()})


def aged(driver: CoreDriver, **cpu: float) -> None:
    """Queries that have already used so many CPU seconds, each of them alone; all are ready now."""
    entries = []
    for name, used in cpu.items():
        query, [entry] = driver.started(f"{name} task", name=name)
        for _ in range(int(used / 0.02)):
            driver.run(cost=0.02)
        driver.run(BLOCKED, cost=0.001)
        assert query.share.level.number == sum(used >= threshold for threshold in LEVEL_THRESHOLDS[1:])
        entries.append(entry)
    for entry in entries:
        entry.wake()


@pytest.mark.parametrize("weight", [1.0, 3.0, 9.0])
def test_groups_share_by_weight_however_many_queries_they_have(weight: float) -> None:
    driver = CoreDriver()
    driver.core.shares.set_group("heavy", weight, None, 0.0)
    driver.started("a", name="a", group="heavy")
    for n in range(5):
        driver.started(f"b{n}", name=f"b{n}", group="light")
    used = serve(driver, 1000, cost=0.0001)
    assert used["a"] == pytest.approx(weight / (weight + 1), abs=0.01)


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_queries_of_a_group_share_by_weight(weight: float) -> None:
    driver = CoreDriver()
    driver.started("a", name="a", weight=weight)
    driver.started("b", name="b")
    assert serve(driver, 1000, cost=0.0001)["a"] == pytest.approx(weight / (weight + 1), abs=0.01)


def test_query_with_many_runnables_gets_no_more_than_one_with_a_single_one() -> None:
    driver = CoreDriver()
    driver.started(*(f"many {n}" for n in range(100)), name="many")
    driver.started("one", name="one")
    assert serve(driver, 1000, cost=0.0001)["one"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("queries", [2, 8])
def test_share_of_many_queries_gets_no_more_than_one_of_a_single_one_at_any_age(queries: int) -> None:
    """Levels count by share: one that is cut into many young queries is as old as all of them together."""
    driver = CoreDriver()
    driver.started("one", name="one")
    share = driver.core.open_share("default", 1.0, None)
    for number in range(queries):
        query = driver.core.open("many", share, None)
        driver.add(query, f"many {number}")
        driver.start(query)
    for _ in range(6):
        assert serve(driver, 1000, cost=0.01)["one"] == pytest.approx(0.5, abs=0.08)
    assert share.level.number == 2


def test_bound_on_a_share_counts_the_runnables_of_all_its_queries() -> None:
    driver = CoreDriver(workers=4)
    share = driver.core.open_share("default", 1.0, 2)
    for number in range(3):
        query = driver.core.open(f"q{number}", share, None)
        driver.add(query, f"task {number}")
        driver.start(query)
    first, second = driver.claim(0), driver.claim(1)
    assert driver.claim(2) is None
    validate(driver.core)
    driver.complete(first, BLOCKED)
    assert driver.claim(2) not in (None, first, second)


def test_nothing_is_kept_of_a_share_without_queries() -> None:
    """A long-lived scheduler would hold the operators of every plan that it ever ran."""
    driver = CoreDriver()
    query, [entry] = driver.started("r", name="old")
    driver.claim()
    driver.complete(entry, FINISHED, cost=0.5)
    driver.close_all()
    driver.core.forget(query)
    assert [level.heap for group in driver.core.shares.groups.values() for level in group.levels if level.heap] == []


def test_query_sinks_through_the_levels_as_it_uses_time() -> None:
    driver = CoreDriver()
    query, _ = driver.started("r")
    levels = []
    for _ in range(3100):
        driver.run(cost=0.1)
        levels.append((query.share.level.number, query.share.cpu))
    firsts = [next(cpu for level, cpu in levels if level == number) for number in range(1, 5)]
    assert firsts == [pytest.approx(threshold, abs=0.11) for threshold in LEVEL_THRESHOLDS[1:]]
    validate(driver.core)


def test_young_query_overtakes_old_ones_and_they_are_not_starved() -> None:
    """Ratio 2 from level to level: level 0 beside level 4 gets 16 of 17 parts, the old one at least one."""
    driver = CoreDriver()
    aged(driver, old=400.0)
    driver.started("young", name="young")
    used = serve(driver, 1700, cost=0.0001)
    assert used["young"] == pytest.approx(16 / 17, abs=0.02)


def test_share_of_the_oldest_is_bounded_below_beside_all_other_levels() -> None:
    driver = CoreDriver()
    aged(driver, **{f"level {number}": threshold for number, threshold in enumerate(LEVEL_THRESHOLDS)})
    serve(driver, 4000, cost=0.0001)  # what the turns before count for is served first
    used = serve(driver, 3100, cost=0.0001)
    shares = [used[f"level {number}"] * 31 for number in range(5)]
    assert shares == [pytest.approx(part, rel=0.05) for part in (16, 8, 4, 2, 1)]


def test_stream_of_young_queries_does_not_starve_an_old_one() -> None:
    driver = CoreDriver()
    aged(driver, old=400.0)
    turns: Counter[str] = Counter()
    for n in range(2000):
        if n % 10 == 0:
            driver.started(f"task {n}", name="young")
        turns[driver.run(cost=0.001).query.name] += 1
    assert turns["old"] / 2000 >= 1 / 17 - 0.01


def test_turn_of_minutes_counts_against_its_level_only_so_much() -> None:
    """A batch that took 900 s must not keep the other queries of its level from running for hours."""
    driver = CoreDriver()
    aged(driver, stuck=400.0, fellow=400.0)
    driver.started("young", name="young")
    while driver.run(cost=0.001).query.name != "stuck":
        pass
    driver.core.shares.charge(next(q.share for q in driver.core.queries.values() if q.name == "stuck"), 900.0)
    used = serve(driver, 2000, cost=0.002)
    assert used["fellow"] > 0
    assert used["stuck"] == 0


def test_idle_query_saves_nothing_up() -> None:
    driver = CoreDriver()
    _, [sleeper] = driver.started("sleeper", name="sleeper")
    driver.run(BLOCKED)
    driver.started("worker", name="worker")
    serve(driver, 5000, cost=0.0001)
    sleeper.wake()
    assert serve(driver, 20, cost=0.0001)["sleeper"] == pytest.approx(0.5, abs=0.06)


def test_new_group_is_lifted_to_the_others() -> None:
    driver = CoreDriver()
    driver.started("a", name="a", group="first")
    serve(driver, 5000, cost=0.0001)
    driver.started("b", name="b", group="second")
    assert serve(driver, 20, cost=0.0001)["b"] == pytest.approx(0.5, abs=0.06)


def test_capped_group_gets_its_cap_and_no_more_while_others_take_the_rest() -> None:
    driver = CoreDriver()
    driver.core.shares.set_group("capped", 1.0, 0.25, 0.0)
    driver.started("a", name="a", group="capped")
    driver.started("b", name="b")
    assert serve(driver, 2000)["a"] == pytest.approx(0.25, abs=0.02)


def test_capped_group_alone_leaves_the_worker_idle_until_its_time() -> None:
    driver = CoreDriver()
    driver.core.shares.set_group("capped", 1.0, 0.5, 0.0)
    driver.started("a", group="capped")
    driver.run(cost=1.0)
    assert driver.claim() is None
    at = driver.core.next_deadline()
    assert at == pytest.approx((1.0 - 0.5 * CAP_BURST) / 0.5, rel=1e-6)
    driver.now = at
    assert driver.claim() is not None


def test_worker_is_asked_to_yield_when_a_younger_query_gets_work_and_nobody_is_free() -> None:
    driver = CoreDriver(workers=1)
    aged(driver, old=20.0)
    running = driver.claim()
    driver.started("young", name="young")
    assert running.yield_asked


@pytest.mark.parametrize(("workers", "cpu"), [(2, 20.0), (1, 0.0)], ids=["a worker is free", "as young itself"])
def test_worker_is_not_asked_to_yield_in_vain(workers: int, cpu: float) -> None:
    driver = CoreDriver(workers)
    aged(driver, old=cpu)
    running = driver.claim()
    driver.started("young", name="young")
    assert not running.yield_asked

"""The core by hand: life of a runnable, wake-ups, start dependencies, peers, timers, background work."""

import pytest

from penstock.engine.core.errors import InternalError
from penstock.engine.scheduler.entries import Over, Report
from penstock.engine.scheduler.observation import why
from penstock.engine.scheduler.protocol import Blocked, Dependency, DriverState, QueryTimeoutError, Wait, WaitReason
from penstock.engine.scheduler.validation import validate
from support.scheduling import BLOCKED, FINISHED, INPUT, PROGRESS, CoreDriver, Script


@pytest.fixture
def driver():
    driver = CoreDriver()
    yield driver
    validate(driver.core)


def states(*entries) -> list[str]:
    return [entry.state.value for entry in entries]


def test_runnable_passes_its_states_from_created_to_released(driver) -> None:
    query = driver.open()
    entry = driver.add(query, "r")
    seen = states(entry)
    driver.start(query)
    seen += states(entry)
    driver.claim()
    seen += states(entry)
    driver.complete(entry, BLOCKED)
    seen += states(entry)
    driver.core.wake(entry, 0.0)
    driver.run(FINISHED)
    seen += states(entry)
    assert driver.close_all() == ["r"]
    assert [*seen, *states(entry)] == ["created", "ready", "running", "waiting", "finishing", "released"]
    assert driver.core.take_effects() == [Over(query)]


def test_waiting_runnable_is_not_claimed_before_it_is_woken(driver) -> None:
    _, [entry] = driver.started("r")
    driver.run(BLOCKED)
    assert driver.claim() is None
    assert entry.waits == INPUT
    entry.wake()
    assert driver.claim() is entry
    assert entry.waits == ()


def test_runnable_that_is_blocked_by_nobody_fails_its_query(driver) -> None:
    query, _ = driver.started("r")
    driver.run(Blocked(()))
    [report] = driver.core.take_effects()
    assert isinstance(report, Report)
    assert "r is blocked and does not say by whom" in str(query.error)


def test_outcome_that_is_none_fails_the_query(driver) -> None:
    query, _ = driver.started("r")
    driver.run("done?")
    assert "r returned 'done?'" in str(query.error)


def test_runnable_is_not_started_before_its_dependencies_are_ready(driver) -> None:
    build, lookup = Dependency("build of join 1"), Dependency("lookup table")
    query = driver.open()
    entry = driver.add(query, "probe", after=(build, lookup))
    driver.start(query)
    assert driver.claim() is None
    assert why(query) == [
        "probe has not begun: waits for dependency: build of join 1 and waits for dependency: lookup table",
    ]
    build.set_ready()
    assert entry.waits == (Wait(WaitReason.DEPENDENCY, "lookup table"),)
    lookup.set_ready()
    assert driver.claim() is entry


def test_dependency_that_is_ready_before_the_start_holds_nobody(driver) -> None:
    build = Dependency("build")
    query = driver.open()
    entry = driver.add(query, "probe", after=(build,))
    build.set_ready()
    assert states(entry) == ["created"]
    driver.start(query)
    assert states(entry) == ["ready"]


def test_dependency_that_was_ready_is_blocked_again(driver) -> None:
    dependency = Dependency("memory", ready=True)
    dependency.block()
    _, [entry] = driver.started("r")
    assert dependency.blocks(entry)


def test_runnable_added_to_a_running_query_runs(driver) -> None:
    query, _ = driver.started("first")
    added = driver.add(query, "second", rank=-1)
    assert driver.claim() is added


def test_nothing_can_be_added_to_a_query_that_is_over(driver) -> None:
    query, _ = driver.started("r")
    driver.run(FINISHED)
    driver.close_all()
    with pytest.raises(InternalError, match="query q, which is over"):
        driver.add(query, "late")


def test_timer_wakes_a_waiting_runnable_at_its_time_and_not_before(driver) -> None:
    _, [entry] = driver.started("r")
    driver.run(Blocked(INPUT, wake_at=2.0))
    assert driver.core.next_deadline() == 2.0
    driver.core.tick(1.9)
    assert states(entry) == ["waiting"]
    driver.core.tick(2.0)
    assert states(entry) == ["ready"]
    assert driver.core.next_deadline() is None


def test_timer_is_gone_when_the_runnable_was_woken_before(driver) -> None:
    _, [entry] = driver.started("r")
    driver.run(Blocked(INPUT, wake_at=2.0))
    entry.wake()
    assert driver.core.next_deadline() is None


def test_runnable_whose_time_has_come_already_does_not_wait(driver) -> None:
    _, [entry] = driver.started("r")
    driver.now = 3.0
    driver.run(Blocked(INPUT, wake_at=2.0))
    assert states(entry) == ["ready"]


def test_time_limit_ends_the_query_with_a_remedy(driver) -> None:
    query, [entry] = driver.started("r", timeout=5.0)
    driver.run(BLOCKED)
    driver.core.tick(5.0)
    assert isinstance(query.error, QueryTimeoutError)
    assert query.error.message == "query q was not done within 5.0 s"
    assert states(entry) == ["finishing"]


def test_time_limit_is_forgotten_with_the_query(driver) -> None:
    driver.started("r", timeout=5.0)
    driver.run(FINISHED)
    driver.close_all()
    assert driver.core.next_deadline() is None


def test_neighbours_never_run_together_and_the_second_names_the_first(driver) -> None:
    query = driver.open()
    first = driver.add(query, "first")
    second = driver.add(query, "second", excludes=(first,))
    third = driver.add(query, "third")
    driver.start(query)
    assert driver.claim(0) is first
    assert second.waits == (Wait(WaitReason.PEER, "first"),)
    assert driver.claim(1) is third
    driver.complete(first, BLOCKED)
    assert states(first, second) == ["waiting", "ready"]


def test_wake_up_does_not_release_who_waits_for_a_neighbour(driver) -> None:
    query = driver.open()
    first = driver.add(query, "first")
    second = driver.add(query, "second", excludes=(first,))
    driver.start(query)
    driver.claim()
    second.wake()
    driver.core.tick(100.0)
    assert states(first, second) == ["running", "waiting"]


def test_runnable_between_two_neighbours_waits_for_the_last_of_them(driver) -> None:
    query = driver.open()
    left, right = driver.add(query, "left"), driver.add(query, "right")
    middle = driver.add(query, "middle", rank=1, excludes=(left, right))
    driver.start(query)
    driver.claim(0), driver.claim(1)
    driver.complete(left)
    assert middle.waits == (Wait(WaitReason.PEER, "right"),)
    validate(driver.core)
    driver.complete(right, BLOCKED)
    assert states(left, middle, right) == ["ready", "ready", "waiting"]


def test_waiting_runnable_woken_beside_a_busy_neighbour_waits_on_for_that_one(driver) -> None:
    query = driver.open()
    first = driver.add(query, "first")
    second = driver.add(query, "second", rank=1, excludes=(first,))
    driver.start(query)
    driver.run(BLOCKED)
    driver.run(BLOCKED)
    second.wake()
    assert driver.claim() is second
    first.wake()
    assert first.waits == (Wait(WaitReason.PEER, "second"),)
    validate(driver.core)
    driver.complete(second, BLOCKED)
    assert driver.claim() is first


def test_completion_looks_at_the_neighbours_of_the_one_that_completed_only(driver) -> None:
    """Retrying all inhibited ones after each completion costs their number each time; here it is the peers'."""
    query = driver.open()
    hub = driver.add(query, "hub")
    others = [driver.add(query, f"other {n}", rank=1, excludes=(hub,)) for n in range(50)]
    lone = driver.add(query, "lone")
    driver.start(query)
    assert driver.claim(0) is hub
    assert driver.claim(1) is lone
    before = [entry.since for entry in others]
    driver.now = 1.0
    driver.complete(lone, BLOCKED)
    assert [entry.since for entry in others] == before
    assert {entry.state for entry in others} == {DriverState.WAITING}


def test_neighbour_must_be_of_the_same_query(driver) -> None:
    _, [stranger] = driver.started("stranger")
    with pytest.raises(InternalError, match="excludes stranger, which is not in query q2"):
        driver.add(driver.open("q2"), "r", excludes=(stranger,))


def test_finished_runnable_is_not_closed_while_background_work_is_under_way(driver) -> None:
    query, [entry] = driver.started("r")
    driver.claim()
    driver.core.background_started(entry)
    driver.core.background_started(entry)
    driver.complete(entry, FINISHED)
    driver.core.background_over(entry, None, 0.0)
    assert driver.close_all() == []
    assert why(query) == ["r is done; its end waits for dependency: background work"]
    driver.core.background_over(entry, None, 0.0)
    assert driver.close_all() == ["r"]


def test_background_work_that_is_over_wakes_the_runnable(driver) -> None:
    _, [entry] = driver.started("r")
    driver.claim()
    driver.core.background_started(entry)
    driver.complete(entry, BLOCKED)
    driver.core.background_over(entry, None, 0.0)
    assert driver.claim() is entry


def test_closed_runnable_cannot_have_work_in_the_background(driver) -> None:
    _, [entry] = driver.started("r")
    driver.run(FINISHED)
    driver.close_all()
    with pytest.raises(InternalError, match="r wants work in the background, but is closed"):
        driver.core.background_started(entry)


def test_query_without_runnables_stays_open_until_it_is_cancelled(driver) -> None:
    query = driver.open()
    driver.start(query)
    assert not query.over
    driver.core.endings.cancel(query, None, 0.0)
    assert query.over


def test_limit_of_parallelism_keeps_the_others_of_the_query_queued(driver) -> None:
    query, [first, _] = driver.started("a", "b", limit=1)
    other, [elsewhere] = driver.started("c", name="other")
    assert [driver.claim(0), driver.claim(1)] == [first, elsewhere]
    assert why(query) == ["b is ready, but 1 of its query run already"]
    validate(driver.core)
    driver.complete(first)
    assert driver.claim(0).query is query
    assert other.running == 1


def test_statistics_tell_what_became_of_the_time(driver) -> None:
    query, [entry] = driver.started("r")
    for at, change in (
        (1.0, driver.claim),
        (3.0, lambda: driver.complete(entry, BLOCKED)),
        (6.0, entry.wake),
        (10.0, driver.claim),
        (15.0, lambda: driver.complete(entry, PROGRESS)),
    ):
        driver.now = at
        change()
    statistics = query.statistics().handles[0]
    assert (statistics.queued, statistics.running, statistics.waiting) == (5.0, 7.0, {"input": 3.0})
    assert (statistics.turns, statistics.wakeups, statistics.yields) == (2, 1, 1)


def test_runnables_are_closed_upstream_first_when_a_query_is_cancelled_in_that_order(driver) -> None:
    query = driver.open()
    for name in ("scan", "filter", "sink"):
        driver.add(query, Script(name))
    driver.core.endings.cancel(query, None, 0.0)
    assert driver.close_all() == ["scan", "filter", "sink"]


def test_every_state_of_doris_is_expressible_and_says_for_whom_it_waits(driver) -> None:
    """NOT_READY, BLOCKED_FOR_DEPENDENCY, _SOURCE, _SINK, _RF, RUNNABLE, PENDING_FINISH, CANCELED."""
    query = driver.open()
    build, bloom = Dependency("build of join 1"), Dependency("runtime filter 2")
    waits = {
        "for source": Blocked((Wait(WaitReason.INPUT, "exchange 3"),)),
        "for sink": Blocked((Wait(WaitReason.OUTPUT, "result sink"),)),
        "for filter": Blocked((bloom.wait,)),
    }
    for name in waits:
        driver.add(query, name)
    pending = driver.add(query, "pending finish")
    driver.add(query, "not ready", after=(build,))
    driver.start(query)
    driver.core.background_started(pending)
    while (entry := driver.claim()) is not None:
        driver.complete(entry, waits.get(entry.name, FINISHED))
    driver.add(query, "runnable")
    assert why(query) == [
        "for source waits for input: exchange 3",
        "for sink waits for output: result sink",
        "for filter waits for dependency: runtime filter 2",
        "pending finish is done; its end waits for dependency: background work",
        "not ready has not begun: waits for dependency: build of join 1",
    ]
    driver.core.endings.cancel(query, None, 0.0)
    driver.core.background_over(pending, None, 0.0)
    assert len(driver.close_all()) == 6
    assert query.cancelled
    assert {entry.state for entry in query.entries} == {DriverState.RELEASED}

"""The core by hand: life of a runnable, wake-ups, timers, background work."""

import pytest

from penstock.engine.core.errors import InternalError
from penstock.engine.scheduler.entries import Over, Report
from penstock.engine.scheduler.observation import why
from penstock.engine.scheduler.protocol import Blocked, DriverState, QueryTimeoutError, Wait, WaitReason
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
    assert why(query) == ["b is ready, but 1 of its plan run already"]
    validate(driver.core)
    driver.complete(first)
    assert driver.claim(0).query is query
    assert other.share.running == 1


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
    statistics = query.statistics(16.0).handles[0]
    assert (statistics.queued, statistics.running, statistics.waiting) == (6.0, 7.0, {"input": 3.0})
    assert (statistics.turns, statistics.wakeups, statistics.yields) == (2, 1, 1)
    driver.run(BLOCKED)
    assert query.statistics(25.0).handles[0].waiting == {"input": 13.0}, "also of a wait that goes on"


def test_runnables_are_closed_upstream_first_when_a_query_is_cancelled_in_that_order(driver) -> None:
    query = driver.open()
    for name in ("scan", "filter", "sink"):
        driver.add(query, Script(name))
    driver.core.endings.cancel(query, None, 0.0)
    assert driver.close_all() == ["scan", "filter", "sink"]


def test_every_state_of_doris_is_expressible_and_says_for_whom_it_waits(driver) -> None:
    """NOT_READY, BLOCKED_FOR_DEPENDENCY, _SOURCE, _SINK, _RF, RUNNABLE, PENDING_FINISH, CANCELED."""
    query = driver.open()
    waits = {
        "for source": Blocked((Wait(WaitReason.INPUT, "exchange 3"),)),
        "for sink": Blocked((Wait(WaitReason.OUTPUT, "result sink"),)),
        "for filter": Blocked((Wait(WaitReason.DEPENDENCY, "runtime filter 2"),)),
    }
    for name in waits:
        driver.add(query, name)
    pending = driver.add(query, "pending finish")
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
    ]
    driver.core.endings.cancel(query, None, 0.0)
    driver.core.background_over(pending, None, 0.0)
    assert len(driver.close_all()) == 5
    assert query.cancelled
    assert {entry.state for entry in query.entries} == {DriverState.RELEASED}

"""The races that hurt other engines, one test each. Steps are numbered as they happen.

What they have in common: two threads, one of them not yet out of something. The core is entered by one thread at a
time, so a race is an order of calls; ``test_simulated.py`` tries thousands of such orders, these are the known ones.
"""

import pytest

from penstock.engine.core.errors import InternalError
from penstock.engine.scheduler.entries import Halted, Over, Report
from penstock.engine.scheduler.protocol import Blocked, DriverState, Failed
from penstock.engine.scheduler.validation import validate
from support.scheduling import BLOCKED, FINISHED, INPUT, PROGRESS, CoreDriver, Script


@pytest.fixture
def driver():
    driver = CoreDriver()
    yield driver
    validate(driver.core)


def test_double_run_when_a_wake_arrives_before_the_blocked_thread_has_left(driver) -> None:
    """Doris 41743, 67031.

    1. Worker 0 runs the task, which finds its input empty and is about to return Blocked.
    2. The producer puts a batch and wakes it: worker 1 must not get the task, worker 0 is still inside.
    3. Worker 0 leaves. What it saw is out of date: the task must run again, once.
    """
    _, [entry] = driver.started("task")
    assert driver.claim(0) is entry
    entry.wake()
    assert driver.claim(1) is None
    driver.complete(entry, BLOCKED)
    assert driver.claim(1) is entry
    assert driver.claim(0) is None


@pytest.mark.parametrize("wakes", [2, 5])
def test_several_wakes_during_a_turn_make_one_more_turn(driver, wakes: int) -> None:
    _, [entry] = driver.started("task")
    driver.claim()
    for _ in range(wakes):
        entry.wake()
    driver.complete(entry, BLOCKED)
    driver.run(BLOCKED)
    assert driver.claim() is None
    assert entry.wakeups == 1


def test_wake_during_a_turn_that_makes_progress_does_not_count_twice(driver) -> None:
    _, [entry] = driver.started("task")
    driver.claim()
    entry.wake()
    driver.complete(entry, PROGRESS)
    driver.run(BLOCKED)
    assert driver.claim() is None


def test_late_wake_after_the_finish_does_not_revive(driver) -> None:
    """Doris 62891, 66385, 49753: a dependency becomes ready when its waiter is finished, closed, or forgotten."""
    _, [entry, _] = driver.started("task", "other")
    driver.claim()
    driver.complete(entry, FINISHED)
    entry.wake()
    assert entry.state is DriverState.FINISHING
    driver.close_all()
    entry.wake()
    assert entry.state is DriverState.CLOSED
    driver.run(FINISHED)
    driver.close_all()
    entry.wake()
    assert entry.state is DriverState.RELEASED
    assert driver.claim() is None


def test_late_timer_after_the_end_does_nothing(driver) -> None:
    query, [entry] = driver.started("task")
    driver.run(Blocked(INPUT, wake_at=1.0))
    driver.core.endings.cancel(query, None, 0.0)
    driver.core.tick(2.0)
    assert entry.state is DriverState.FINISHING
    assert driver.core.next_deadline() is None


def test_hang_when_a_limit_ends_the_consumer_while_its_producer_waits_for_it(driver) -> None:
    """Doris 35513, 33525, 24740: 1690 s on a broadcast. The owner cancels what nobody needs any more.

    1. The producer is blocked by its full output.
    2. The consumer has its ten rows and finishes; the owner of the query ends the rest.
    3. The waiting producer is closed without being run, and the query is over.
    """
    query, [producer, consumer] = driver.started("producer", "limit")
    driver.run(BLOCKED)
    assert driver.claim() is consumer
    driver.complete(consumer, FINISHED)
    driver.core.endings.cancel(query, None, 0.0)
    assert driver.close_all() == ["limit", "producer"]
    assert query.over
    assert producer.turns == 1


def test_cancelled_ones_do_not_queue_behind_a_long_run_queue(driver) -> None:
    """Doris 45614: memory is freed only when the cancelled tasks come up in the queue. Here: before all others."""
    driver.started(*(f"busy {n}" for n in range(1000)), name="long")
    victim, _ = driver.started("victim", name="cancelled")
    driver.core.endings.cancel(victim, None, 0.0)
    assert driver.core.endings.claim_closing(0.0).name == "victim"
    driver.core.endings.closed(victim.entries[0], None, 0.0)


def test_cancel_asks_a_worker_to_make_room_when_all_are_busy(driver) -> None:
    _, running = driver.started("a", "b", name="long")
    driver.claim(0), driver.claim(1)
    victim, _ = driver.started("victim", name="cancelled")
    driver.core.endings.cancel(victim, None, 0.0)
    assert sum(entry.yield_asked for entry in running) == 1
    assert driver.close_all() == ["victim"]


def test_cancelled_before_it_was_opened_is_closed_without_running(driver) -> None:
    """Doris 38206: blocked until its time limit, because only a task that was opened looked for the cancel."""
    query = driver.open()
    entry = driver.add(query, Script("task"))
    driver.core.endings.cancel(query, None, 0.0)
    driver.start(query)
    assert driver.claim() is None
    assert driver.close_all() == ["task"]
    assert (entry.turns, entry.opened, query.over) == (0, False, True)


def test_pending_finish_counts_each_piece_of_work_once(driver) -> None:
    """Doris 21843: work that ends before the task finishes, after it, and in between a cancel."""
    query, [entry] = driver.started("task")
    driver.claim()
    for _ in range(3):
        driver.core.background_started(entry)
    driver.core.background_over(entry, None, 0.0)
    driver.complete(entry, FINISHED)
    driver.core.background_over(entry, None, 0.0)
    driver.core.endings.cancel(query, None, 0.0)
    assert driver.close_all() == []
    driver.core.background_over(entry, None, 0.0)
    assert driver.close_all() == ["task"]
    assert query.over


def test_stray_wakes_change_nothing_in_any_state(driver) -> None:
    query = driver.open()
    entry = driver.add(query, "task")
    entry.wake()
    assert entry.state is DriverState.CREATED
    driver.start(query)
    entry.wake()
    driver.run(FINISHED)
    entry.wake()
    driver.close_all()
    entry.wake()
    assert (entry.turns, entry.wakeups, entry.state) == (1, 0, DriverState.RELEASED)


def test_second_error_is_attached_to_the_first(driver) -> None:
    """Two tasks fail at once; the one that leaves first decides, the other's error is not lost."""
    query, [first, second] = driver.started("a", "b")
    driver.claim(0), driver.claim(1)
    error, later = ValueError("first"), OSError("second")
    driver.complete(second, Failed(error))
    driver.complete(first, Failed(later))
    assert query.error is error
    assert error.__notes__ == ["another error followed: OSError: second"]
    assert [type(effect) for effect in driver.core.take_effects()] == [Report]


def test_error_after_a_cancel_does_not_become_the_outcome(driver) -> None:
    query, [entry] = driver.started("task")
    driver.claim()
    driver.core.endings.cancel(query, None, 0.0)
    error = OSError("connection closed by the cancel")
    driver.complete(entry, Failed(error))
    assert query.error is None
    assert query.statistics(0.0).suppressed == (error,)


def test_nothing_is_closed_before_the_owner_knows_of_the_error(driver) -> None:
    """The owner may still want to look at the others, or to tell them why."""
    query, [entry, _] = driver.started("a", "b")
    driver.claim()
    driver.complete(entry, Failed(ValueError()))
    assert driver.close_all() == []
    validate(driver.core)
    driver.core.endings.reported(query, 0.0)
    assert driver.close_all() == ["a", "b"]


def test_cancel_while_the_error_is_being_told_does_not_close_early(driver) -> None:
    query, [entry] = driver.started("a")
    driver.claim()
    driver.complete(entry, Failed(ValueError()))
    driver.core.endings.cancel(query, None, 0.0)
    assert driver.close_all() == []
    driver.core.endings.reported(query, 0.0)
    assert driver.close_all() == ["a"]


def test_cancel_during_a_turn_ends_it_whatever_it_returns(driver) -> None:
    query, [entry] = driver.started("task")
    driver.claim()
    driver.core.endings.cancel(query, None, 0.0)
    assert entry.yield_asked
    assert driver.close_all() == []
    driver.complete(entry, BLOCKED)
    assert driver.close_all() == ["task"]


def test_query_is_over_once_however_often_it_is_cancelled(driver) -> None:
    query, _ = driver.started("task")
    for _ in range(3):
        driver.core.endings.cancel(query, None, 0.0)
    driver.close_all()
    driver.core.endings.cancel(query, ValueError("late"), 0.0)
    assert driver.core.take_effects() == [Over(query)]
    assert query.error is None


def test_pause_waits_for_the_thread_inside_and_loses_no_wake(driver) -> None:
    """1. It runs. 2. Pause: not yet halted. 3. A wake arrives. 4. It leaves, blocked: halted. 5. Resumed: it is ready,
    because what it waited for has happened."""
    query, [entry] = driver.started("task")
    driver.claim()
    driver.core.endings.pause(query, "future", 0.0)
    assert driver.core.take_effects() == []
    entry.wake()
    driver.complete(entry, BLOCKED)
    assert driver.core.take_effects() == [Halted(query, ("future",))]
    assert entry.state is DriverState.PAUSED
    driver.core.endings.resume(query, 0.0)
    assert driver.claim() is entry


def test_resumed_runnable_that_nobody_woke_waits_on_as_before(driver) -> None:
    query, [entry] = driver.started("task")
    driver.run(Blocked(INPUT, wake_at=3.0))
    driver.core.endings.pause(query, "future", 0.0)
    driver.core.endings.resume(query, 0.0)
    assert (entry.state, entry.waits, driver.core.next_deadline()) == (DriverState.WAITING, INPUT, 3.0)


def test_timer_that_comes_while_paused_makes_it_ready_when_resumed(driver) -> None:
    query, [entry] = driver.started("task")
    driver.run(Blocked(INPUT, wake_at=3.0))
    driver.core.endings.pause(query, "future", 0.0)
    driver.core.tick(3.0)
    assert driver.claim() is None
    driver.core.endings.resume(query, 3.0)
    assert driver.claim() is entry


def test_timer_of_a_runnable_that_was_woken_while_paused_is_gone_when_it_is_resumed(driver) -> None:
    query, [entry] = driver.started("task")
    driver.run(Blocked(INPUT, wake_at=3.0))
    driver.core.endings.pause(query, "future", 0.0)
    entry.wake()
    driver.core.endings.resume(query, 0.0)
    assert driver.core.next_deadline() is None


def test_future_of_an_old_pause_does_not_resolve_a_new_one(driver) -> None:
    """1. Paused and halted; the thread that is to say so is delayed. 2. Resumed, running, paused anew: not halted.
    3. The delayed thread resolves: the first future only."""
    query, [entry] = driver.started("task")
    driver.core.endings.pause(query, "first", 0.0)
    [delayed] = driver.core.take_effects()
    driver.core.endings.resume(query, 0.0)
    driver.claim()
    driver.core.endings.pause(query, "second", 0.0)
    assert delayed.futures == ("first",)
    assert driver.core.take_effects() == []
    driver.complete(entry)
    assert driver.core.take_effects() == [Halted(query, ("second",))]


def test_cancelled_query_that_is_paused_is_closed_when_it_is_resumed(driver) -> None:
    """Who paused it may be inside its operators (to take their memory, say)."""
    query, _ = driver.started("task")
    driver.core.endings.pause(query, "future", 0.0)
    driver.core.endings.cancel(query, None, 0.0)
    assert driver.close_all() == []
    driver.core.endings.resume(query, 0.0)
    assert driver.close_all() == ["task"]


def test_resume_of_a_query_that_is_over_is_harmless(driver) -> None:
    query, _ = driver.started("task")
    driver.run(FINISHED)
    driver.close_all()
    driver.core.endings.pause(query, "future", 0.0)
    driver.core.endings.resume(query, 0.0)
    assert driver.core.take_effects() == [Over(query), Halted(query, ("future",))]


def test_illegal_move_is_a_bug_and_says_so(driver) -> None:
    query, [entry] = driver.started("task")
    with pytest.raises(InternalError, match="driver task may not go from ready to released"):
        driver.core.moves.move(entry, DriverState.RELEASED, 0.0)
    assert not query.over

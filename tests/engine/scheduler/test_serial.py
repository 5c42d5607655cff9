"""Degree 0: on the caller's thread, re-entrant from callbacks, wakes from anywhere, the same steps every time."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from penstock.engine.core.errors import ConfigurationError, InternalError
from penstock.engine.scheduler.protocol import Blocked, DriverState, Share
from penstock.engine.scheduler.serial import CALLS_PER_TURN, SerialScheduler, Turn
from support.scheduling import BLOCKED, FINISHED, INPUT, PROGRESS, Endless, Probe, Script, add_chain


def test_turn_runs_until_nothing_is_ready() -> None:
    scheduler = SerialScheduler()
    query = scheduler.open("chain")
    probes, consumer = add_chain(query, range(100))
    query.start()
    assert scheduler.turn() == Turn(True, None, False)
    assert consumer.got == list(range(100))
    assert query.closed.done()
    assert {thread for probe in probes for thread in probe.threads} == {threading.get_ident()}


def test_turn_stops_after_the_quanta_it_was_given_and_says_that_there_is_more() -> None:
    scheduler = SerialScheduler()
    query = scheduler.open("q")
    probe = Endless("r")
    query.add(probe)
    query.start()
    assert scheduler.turn(quanta=3) == Turn(True, None, True)
    assert probe.turns == 3
    query.cancel()
    assert scheduler.turn() == Turn(False, None, False)


def test_turn_with_nothing_to_do_says_when_to_come_again() -> None:
    scheduler = SerialScheduler()
    query = scheduler.open("q")
    query.add(Script("r", Blocked(INPUT, wake_at=5.0)))
    query.start()
    assert scheduler.turn(now=1.0) == Turn(True, 5.0)
    assert scheduler.turn(now=4.9) == Turn(False, 5.0)
    assert scheduler.turn(now=5.0) == Turn(True, None)


def test_quantum_is_over_after_so_many_questions() -> None:
    class Counting(Probe):
        asked = 0

        def turn(self, quantum):
            while not quantum.expired():
                self.asked += 1
            return FINISHED

    scheduler = SerialScheduler()
    query = scheduler.open("q")
    probe = Counting("r")
    query.add(probe)
    query.start()
    scheduler.turn(now=7.0)
    assert probe.asked == CALLS_PER_TURN - 1


def test_quantum_knows_the_time_that_the_turn_was_given() -> None:
    class Looking(Probe):
        def turn(self, quantum):
            self.seen = quantum.now
            return FINISHED

    scheduler = SerialScheduler()
    query = scheduler.open("q")
    probe = Looking("r")
    query.add(probe)
    query.start()
    scheduler.turn(now=7.0)
    assert probe.seen == 7.0


def test_cancel_outside_of_a_turn_closes_at_once() -> None:
    scheduler = SerialScheduler()
    query = scheduler.open("q")
    probe = Script("r", BLOCKED)
    query.add(probe)
    query.start()
    scheduler.turn()
    assert query.cancel().done()
    assert probe.closed == 1


def test_cancel_from_inside_a_runnable_closes_all_after_its_turn() -> None:
    scheduler = SerialScheduler()
    query = scheduler.open("q")
    other = Script("other", BLOCKED)

    def cancel():
        future = query.cancel(ValueError("enough"))
        assert not future.done()
        assert (canceller.closed, other.closed) == (0, 0)
        return PROGRESS

    canceller = Script("canceller", cancel)
    query.add(other)
    query.add(canceller)
    query.start()
    scheduler.turn()
    assert query.closed.done()
    assert (canceller.closed, other.closed, canceller.turns) == (1, 1, 1)
    assert str(query.error) == "enough"


def test_wake_of_another_one_from_inside_a_runnable_runs_it_in_the_same_turn() -> None:
    scheduler = SerialScheduler()
    query = scheduler.open("q")
    sleeper = Script("sleeper", BLOCKED)
    handle = query.add(sleeper)
    query.start()
    scheduler.turn()
    query.add(Script("waker", lambda: handle.wake() or PROGRESS))
    scheduler.turn()
    assert sleeper.turns == 2


def test_runnable_that_wakes_itself_while_it_blocks_runs_again() -> None:
    scheduler = SerialScheduler()
    query = scheduler.open("q")
    probe = Script("r", lambda: handle.wake() or BLOCKED)
    handle = query.add(probe)
    query.start()
    scheduler.turn()
    assert probe.turns == 2


def test_turn_inside_of_a_turn_is_refused() -> None:
    scheduler = SerialScheduler()
    query = scheduler.open("q")
    query.add(Script("r", lambda: scheduler.turn() and PROGRESS))
    query.start()
    scheduler.turn()
    assert isinstance(query.error, InternalError)
    assert "inside of a turn" in str(query.error)


def test_failure_is_told_before_the_others_are_closed_and_the_end_after() -> None:
    scheduler = SerialScheduler()
    dump: list = []
    query = scheduler.open(
        "q",
        on_failure=lambda handle, error: dump.append((handle.name, str(error), other.closed)),
        on_closed=lambda: dump.append(("closed", other.closed, query.closed.done())),
    )
    other = Script("other", BLOCKED)
    query.add(other)
    query.add(Script("bad", ValueError("broken")))
    query.start()
    scheduler.turn()
    assert dump == [("bad", "broken", 0), ("closed", 1, False)]
    assert query.closed.done()


def test_callback_that_fails_is_noted_on_the_error() -> None:
    def fail(handle, error) -> None:
        raise OSError("no one listens")

    scheduler = SerialScheduler()
    query = scheduler.open("q", on_failure=fail)
    query.add(Script("bad", ValueError("broken")))
    query.start()
    scheduler.turn()
    assert query.error.__notes__ == ["telling of it failed: OSError: no one listens"]


def test_error_of_open_and_of_close_are_errors_of_the_query() -> None:
    class BadOpen(Script):
        def open(self) -> None:
            super().open()
            raise ValueError("cannot open")

    class BadClose(Script):
        def close(self) -> None:
            super().close()
            raise ValueError("cannot close")

    scheduler = SerialScheduler()
    for probe, text in ((BadOpen("r"), "cannot open"), (BadClose("r"), "cannot close")):
        query = scheduler.open("q")
        query.add(probe)
        query.start()
        scheduler.turn()
        assert str(query.error) == text
        assert query.closed.done()
        assert probe.closed == 1


def test_interrupt_inside_a_runnable_reaches_the_caller_and_ends_the_query() -> None:
    def interrupt():
        raise KeyboardInterrupt

    scheduler = SerialScheduler()
    query = scheduler.open("q")
    probe = Script("r", interrupt)
    query.add(probe)
    query.start()
    with pytest.raises(KeyboardInterrupt):
        scheduler.turn()
    scheduler.turn()
    assert query.closed.done()
    assert probe.closed == 1


def test_wake_from_another_thread_notifies_the_owner_and_counts_at_the_next_turn() -> None:
    notified = threading.Event()
    scheduler = SerialScheduler(notify=notified.set)
    query = scheduler.open("q")
    handle = query.add(Script("r", BLOCKED))
    query.start()
    scheduler.turn()
    assert not notified.is_set()
    thread = threading.Thread(target=handle.wake)
    thread.start()
    thread.join()
    assert notified.is_set()
    assert handle.state is DriverState.WAITING
    assert scheduler.turn().progressed
    assert query.closed.done()


def test_background_work_runs_elsewhere_and_its_answer_wakes_the_runnable() -> None:
    notified = threading.Event()
    scheduler = SerialScheduler(notify=notified.set)
    query = scheduler.open("q")
    answers: list = []

    def ask():
        query.background(threading.get_ident, answers.append, handle)
        return BLOCKED

    handle = query.add(Script("r", ask))
    query.start()
    scheduler.turn()
    assert notified.wait(30)
    scheduler.turn()
    assert query.closed.done()
    assert answers != [threading.get_ident()]
    scheduler.shutdown()


def test_background_work_of_a_cancelled_query_that_has_not_begun_is_answered_with_a_cancel() -> None:
    scheduler = SerialScheduler()
    scheduler._pool._threads = 1
    query = scheduler.open("q")
    begun, gate, answers = threading.Event(), threading.Event(), []

    def ask():
        query.background(lambda: begun.set() or gate.wait(30), answers.append, handle)
        query.background(lambda: "not wanted", answers.append, handle)
        return BLOCKED

    handle = query.add(Script("r", ask))
    query.start()
    scheduler.turn()
    assert begun.wait(30)
    query.cancel()
    assert query.why() == ["r is done; its end waits for dependency: 2 pieces of background work"]
    gate.set()
    scheduler.shutdown()
    assert answers[0] is True
    assert isinstance(answers[1], CancelledError)
    assert query.closed.done()


def test_error_of_background_work_is_an_answer_and_one_of_its_callback_an_error() -> None:
    notified = threading.Event()
    scheduler = SerialScheduler(notify=notified.set)
    query = scheduler.open("q")
    answers: list = []

    def refuse(answer) -> None:
        answers.append(answer)
        raise OSError("the callback is wrong")

    def ask():
        query.background(lambda: 1 // 0, refuse, handle)
        return BLOCKED

    handle = query.add(Script("r", ask))
    query.start()
    scheduler.turn()
    assert notified.wait(30)
    scheduler.turn()
    assert isinstance(answers[0], ZeroDivisionError)
    assert str(query.error) == "the callback is wrong"
    scheduler.shutdown()


def test_shutdown_ends_every_query_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    scheduler = SerialScheduler()
    probes = [Script(f"r{n}", BLOCKED) for n in range(3)]
    queries = [scheduler.open(f"q{n}") for n in range(3)]
    for query, probe in zip(queries, probes, strict=True):
        handle = query.add(probe)
        query.background(lambda: None, lambda answer: None, handle)
        query.start()
    queries[1].pause()
    scheduler.turn()
    scheduler.shutdown()
    assert [probe.closed for probe in probes] == [1, 1, 1]
    assert set(threading.enumerate()) <= before
    with pytest.raises(InternalError, match="shut down"):
        scheduler.open("late")


def test_serial_runs_of_the_same_wakes_take_the_same_steps() -> None:
    def steps() -> list[str]:
        order: list[str] = []
        scheduler = SerialScheduler()
        for name in "abc":
            query = scheduler.share(Share(weight=ord(name))).open(name)
            query.add(Script(name, *[lambda name=name: order.append(name) or PROGRESS] * 9))
            query.start()
        scheduler.turn()
        return order

    assert steps() == steps()


@pytest.mark.parametrize("options", [{"weight": 0.0}, {"weight": -1.0}, {"timeout": 0.0}, {"degree": 0}])
def test_share_that_makes_no_sense_is_refused(options) -> None:
    [(name, value)] = options.items()
    with pytest.raises(ConfigurationError, match=f"a {name} of {value}"):
        Share(**options)

"""A serial scheduler that is asked to bring something to its end while work of it is under way elsewhere."""

from __future__ import annotations

import threading
from typing import Any

from penstock.engine.scheduler.protocol import Query
from penstock.engine.scheduler.serial import SerialScheduler
from support.scheduling import BLOCKED, Script

PATIENCE = 60.0


def at_work(scheduler: SerialScheduler, gate: threading.Event, begun: threading.Event) -> Query:
    """A query with a piece of background work that waits for the gate."""
    query = scheduler.open("q")

    def work() -> None:
        begun.set()
        assert gate.wait(PATIENCE)

    def ask() -> Any:
        query.background(work, lambda answer: None, handle)
        return BLOCKED

    handle = query.add(Script("r", ask))
    query.start()
    scheduler.turn()
    assert begun.wait(PATIENCE)
    return query


def test_finish_takes_the_turn_that_follows_background_work() -> None:
    scheduler, gate = SerialScheduler(), threading.Event()
    query = at_work(scheduler, gate, threading.Event())
    closed = query.cancel()
    assert not closed.done()
    threading.Timer(0.01, gate.set).start()
    assert scheduler.finish(closed, PATIENCE)
    assert query.closed.done()
    scheduler.shutdown()


def test_finish_gives_up_after_its_time_and_may_be_asked_again() -> None:
    scheduler, gate = SerialScheduler(), threading.Event()
    query = at_work(scheduler, gate, threading.Event())
    closed = query.cancel()
    assert not scheduler.finish(closed, 0.01)
    gate.set()
    assert scheduler.finish(closed, PATIENCE)
    scheduler.shutdown()


def test_finish_of_what_is_closed_needs_no_turn() -> None:
    scheduler = SerialScheduler()
    query = scheduler.open("q")
    query.add(Script("r", lambda: BLOCKED))
    query.start()
    assert scheduler.finish(query.cancel(), 0.0)

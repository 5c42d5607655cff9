"""What ``next`` gives, what errors do to a barrier, and what an operator may do while it drains.

Each docstring begins with the scenario's id.
"""

from __future__ import annotations

import threading

import pytest

from penstock.engine.core.errors import ConfigurationError, UserCodeError
from penstock.engine.flow.flow import Flow
from support.scenario_tasks import (
    MODES,
    WAIT,
    Buffering,
    Passing,
    Sluggish,
    finish,
    own,
    raising,
    read,
    read_to_error,
    rows_read,
    scan,
    split,
    table,
    values,
    window,
)


@MODES
def test_error_while_draining_comes_behind_the_batches_before_it(degree, make_task, one_row_batches):
    """tb.operatorErrorDuringBarrier: five of ten batches have been released when the operator raises. They are
    delivered, then the error is; the future carries it, and so does every later call."""

    def releasing(left: int) -> None:
        if left == 5:
            raise RuntimeError("injected")

    task = make_task(own(scan(Flow("plan")), lambda _: Buffering(releasing)).project("c0"), degree)
    task.add_split("rows", split(c0=range(10)))
    reached = task.request_barrier()
    batches, error = read_to_error(task)
    assert (type(error), error.operator) == (UserCodeError, "own")
    assert values(batches) == [0, 1, 2, 3, 4]
    assert str(reached.exception(0)) == str(task.error)
    assert rows_read(task) == {"rows": 10}
    with pytest.raises(UserCodeError, match="injected"):
        task.next()
    with pytest.raises(UserCodeError, match="injected"):
        task.add_split("rows", split(c0=[1]))


class Content(Buffering):
    """Needs no more input once it has released half of what it held."""

    def __init__(self) -> None:
        super().__init__(self._releasing_one)
        self._content = False

    def _releasing_one(self, left: int) -> None:
        self._content = self._content or left == 5

    def needs_no_more(self, port: int) -> bool:
        return self._content


@MODES
def test_operator_that_needs_no_input_while_it_drains_keeps_what_it_holds(degree, make_task, one_row_batches):
    """tb.dropOutputDuringBarrier: all ten batches come out. What is upstream of it may drop its rows from then on."""
    task = make_task(own(scan(Flow("plan")), lambda _: Content()).project("c0"), degree)
    assert values(window(task, rows=split(c0=range(10)))) == list(range(10))
    assert values(window(task, rows=split(c0=range(10)))) == []
    assert finish(task) == []
    assert rows_read(task) == {"rows": 10}, "the second split is needed by nobody"
    with pytest.raises(ConfigurationError, match="finished"):
        task.next()


def test_next_without_a_barrier_or_the_end_says_what_is_missing(make_task):
    """tb.dropOutputDuringBarrier: a serial task that was given nothing to do says what it needs."""
    task = make_task(scan(Flow("plan")))
    assert values(window(task, rows=split(c0=[1]))) == [1]
    with pytest.raises(ConfigurationError, match=r"sources rows get splits[^$]*request a barrier"):
        task.next()
    assert finish(task) == []


def test_cancel_ends_a_window_of_several_pipelines(make_task, one_row_batches):
    """tb.terminateDuringBarrierWithUnion: 15 of 30 batches from three gathered scans are read, then the task ends."""
    flow = Flow("plan")
    first, *others = (scan(flow, name).gather() for name in "abc")
    task = make_task(first.union(*others).project("c0"))
    for name in "abc":
        task.add_split(name, split(c0=range(10)))
    reached = task.request_barrier()
    assert len([batch for _ in range(15) if (batch := task.read(WAIT)) is not None]) == 15
    task.cancel()
    with pytest.raises(ConfigurationError, match="cancelled"):
        task.next()
    assert reached.done()


@MODES
def test_statistics_of_windows_and_of_the_whole_are_both_there(degree, make_task):
    """tb.expressionStatsInBetweenBarriers: Velox counts rows per expression. Here each operator's are counted: per
    window in the barrier's future, and over the task."""
    task = make_task(scan(Flow("plan")).project(c0="coalesce(c0 + 1, 0)", name="plus"), degree)
    task.add_split("rows", split(c0=range(10)))
    reached = task.request_barrier()
    read(task)
    [plus, output] = reached.result().operators
    assert (plus.operator, plus.rows_in, plus.rows_out) == ("plus", 10, 10)
    assert plus.bytes_out >= 80
    assert (output.operator, output.rows_in) == ("output", 10)
    assert rows_read(task) == {"rows": 10}
    task.add_split("rows", split(c0=range(10)))
    finish(task)
    [total] = [each for found in task.statistics() for each in found.operators if each.operator == "plus"]
    assert (total.rows_in, total.rows_out) == (20, 20)
    assert rows_read(task) == {"rows": 20}


def test_barrier_names_who_delayed_it(make_task):
    """tb.expressionStatsInBetweenBarriers: beyond Velox, the window says which operator took longest to drain."""
    ticks = iter(range(100))
    stream = own(scan(Flow("plan")), lambda _: Buffering(lambda left: next(ticks)), name="slow")
    task = make_task(stream)
    for _ in range(3):
        task.add_split("rows", split(c0=[1]))
    reached = task.request_barrier()
    read(task)
    assert reached.result().slowest.drain_seconds == max(each.drain_seconds for each in reached.result().operators)
    assert reached.result().seconds >= reached.result().slowest.drain_seconds
    assert next(ticks) == 3


@pytest.mark.parametrize("degree", [0, 3], ids=["serial", "parallel"])
def test_first_of_several_errors_wins(degree, make_task):
    """tb.derived.errorWins: two drivers raise while they drain; in parallel mode each waits for the other before. One
    error is the task's, the same everywhere; the state is failed."""
    meeting = threading.Barrier(2 if degree else 1, timeout=WAIT)

    def releasing(side: str) -> None:
        meeting.wait()
        raise RuntimeError(side)

    flow = Flow("plan")
    left, right = (
        own(scan(flow, side), lambda _, side=side: Buffering(lambda left: releasing(side)), name=f"buffer-{side}")
        for side in ("left", "right")
    )
    task = make_task(left.union(right), degree)
    task.add_split("left", split(c0=[1]))
    task.add_split("right", split(c0=[2]))
    reached = task.request_barrier()
    _, error = read_to_error(task)
    assert str(error) == str(task.error) == str(reached.exception(0))
    assert error.operator in {"buffer-left", "buffer-right"}
    assert task.state == "failed"
    assert not task.under_barrier
    if degree:
        other = "right" if error.operator == "buffer-left" else "left"
        assert any(other in note for note in error.__notes__), "the later error is attached to the first"


def test_every_outcome_of_next_can_be_told_from_the_others(make_task):
    """tb.derived.explicitOutcome: a batch, blocked, barrier, finished, error: five different answers."""
    gate = threading.Event()

    class Held(Sluggish):
        def _go(self) -> None:
            self._back = False
            self._background(lambda: gate.wait(WAIT), self._came_back)

    task = make_task(own(scan(Flow("plan")), lambda context: Held(context, 1)))
    task.add_split("rows", split(c0=[1]))
    task.request_barrier()
    nothing, future = task.next()
    assert nothing is None
    assert not future.done()
    assert task.state == "running"
    gate.set()
    future.result(WAIT)
    assert values([task.read(WAIT)]) == [1]
    assert task.next() == (None, None)
    assert task.state == "barrier"
    task.no_more_splits("rows")
    assert task.next() == (None, None)
    assert task.state == "finished"
    failing = make_task(scan(Flow("plan")).map_batches(raising("no"), table(c0=[]).schema))
    failing.add_split("rows", split(c0=[1]))
    with pytest.raises(UserCodeError):
        failing.next()
    assert failing.state == "failed"


@MODES
def test_memory_threads_and_futures_are_settled_after_an_error_in_a_drain(degree, make_task):
    """tb.operatorErrorDuringBarrier: of several barriers queued ahead none stays open, and no reader waits for ever;
    the fixture finds that no thread, memory or file is left."""
    stream = scan(Flow("plan")).sort("c0").map_batches(raising("in the drain"), table(c0=[]).schema)
    task = make_task(stream, degree)
    futures = []
    for number in range(3):
        task.add_split("rows", split(c0=[number]))
        futures.append(task.request_barrier())
    _, error = read_to_error(task)
    assert [str(future.exception(0)) for future in futures] == [str(error)] * 3
    assert not task.under_barrier
    assert str(task.request_barrier().exception(0)) == str(error)


@MODES
def test_seen_rows_are_those_of_the_window(degree, make_task):
    """tb.derived.dataBeforeBarrier: what an operator sees before it drains is what the window was fed."""
    seen: list[int] = []
    task = make_task(own(scan(Flow("plan")), lambda _: Passing(lambda records: seen.append(records.num_rows))), degree)
    window(task, rows=split(c0=range(5)))
    assert seen == [5]
    window(task, rows=split(c0=range(2)))
    assert seen == [5, 2]

"""Cancelling a plan from wherever a user's code may stand, interrupts, and calls that would wait for themselves."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.core.errors import ConfigurationError, PenstockError, UserCodeError
from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.scheduler.pool import PoolScheduler

SCHEMA = pa.schema([("k", pa.int64())])
ROWS = pa.table([[1, 2, 3]], schema=SCHEMA)
WAIT = 30.0
WAYS = ["on the caller's thread", "on threads of its own", "on a shared pool"]


@contextmanager
def made(way: str, function: Callable[[Any], Any]) -> Iterator[PlanTask]:
    """A plan of two stages that hands its batches to ``function``."""
    stream = Flow("plan").from_split_sets(SCHEMA, name="rows").map_batches(function, SCHEMA).gather()
    stream = stream.map_batches(lambda batch: batch, SCHEMA)
    with PoolScheduler(1) as pool:
        task = PlanTask(stream, scheduler=pool) if way == WAYS[2] else PlanTask(stream, degree=2 * (way == WAYS[1]))
        yield task
        task.cancel()
        other = PlanTask(Flow("other").from_split_sets(SCHEMA, name="rows").filter("k > 0"), scheduler=pool)
        assert [len(batch) for batch in other.run({"rows": ROWS})] == [3], "its pool works on"


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """What the function returns or raises, on a thread of its own: it may wait for itself."""
    answer: Future[Any] = Future()

    def call() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return answer.result(seconds)


@pytest.mark.parametrize("way", WAYS)
def test_cancel_in_a_users_function_ends_the_task_and_returns(way):
    def cancel(batch):
        task.cancel()
        returned.append(True)
        return batch

    returned: list[bool] = []
    with made(way, cancel) as task:
        task.add_split("rows", ROWS)
        drained = task.request_barrier()
        with pytest.raises(ConfigurationError, match="cancelled"):
            within(WAIT, task.read)
        assert returned == [True]
        assert isinstance(drained.exception(WAIT), ConfigurationError)


@pytest.mark.parametrize("way", WAYS)
def test_cancel_in_the_callback_of_a_barrier_ends_the_task(way):
    with made(way, lambda batch: batch) as task:
        task.add_split("rows", ROWS)
        task.request_barrier().add_done_callback(lambda _: task.cancel())
        with pytest.raises(ConfigurationError, match="cancelled"):
            within(WAIT, lambda: [task.read() for _ in range(3)])
        assert task.state == "cancelled"


@pytest.mark.parametrize("way", WAYS)
def test_cancel_in_the_callback_of_a_barrier_that_failed_returns(way):
    def refuse(batch):
        raise ValueError("no")

    with made(way, refuse) as task:
        task.add_split("rows", ROWS)
        drained = task.request_barrier()
        drained.add_done_callback(lambda _: task.cancel())
        with pytest.raises(UserCodeError, match="no"):
            within(WAIT, task.read)
        assert isinstance(drained.exception(WAIT), UserCodeError)


@pytest.mark.parametrize("way", WAYS)
def test_cancel_from_another_thread_returns_when_the_call_that_is_under_way_has(way):
    entered, left = threading.Event(), threading.Event()

    def long(batch):
        entered.set()
        assert left.wait(WAIT)
        order.append("the call")
        return batch

    def cancel():
        task.cancel()
        order.append("cancel")

    def read():
        with pytest.raises(ConfigurationError, match="cancelled"):
            task.read()

    order: list[str] = []
    with made(way, long) as task:
        task.add_split("rows", ROWS)
        task.request_barrier()
        reader, canceller = threading.Thread(target=read), threading.Thread(target=cancel)
        reader.start()
        assert entered.wait(WAIT)
        canceller.start()
        left.set()
        canceller.join(WAIT)
        reader.join(WAIT)
        assert order == ["the call", "cancel"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", ["next", "read", "run"])
def test_batches_are_refused_to_the_tasks_own_functions(way, call):
    def pull(batch):
        if call == "run":
            list(task.run({"rows": ROWS}))
        getattr(task, call)()
        return batch

    with made(way, pull) as task:
        task.add_split("rows", ROWS)
        task.request_barrier()
        with pytest.raises(ConfigurationError, match="read on the thread that drives the task"):
            within(WAIT, task.read)


def test_function_may_drive_another_task():
    inner = PlanTask(Flow("inner").from_split_sets(SCHEMA, name="rows").filter("k > 1"))

    def other(batch):
        [found] = inner.run({"rows": batch})
        return found

    with made(WAYS[0], other) as task:
        assert [batch["k"].to_pylist() for batch in task.run({"rows": ROWS})] == [[2, 3]]


@pytest.mark.parametrize("inner", [0, 2])
@pytest.mark.parametrize("outer", [0, 2])
@pytest.mark.parametrize("ring", [2, 3])
def test_tasks_that_read_each_other_in_their_own_functions_are_refused(outer, inner, ring):
    def reads(number):
        def read_the_next(batch):
            return tasks[(number + 1) % ring].read()

        return read_the_next

    def task(number):
        stream = Flow("ring").from_split_sets(SCHEMA, name="rows").map_batches(reads(number), SCHEMA)
        return PlanTask(stream, degree=inner if number else outer)

    tasks = [task(number) for number in range(ring)]
    for each in tasks:
        each.add_split("rows", ROWS)
        each.request_barrier()
    with pytest.raises(PenstockError, match=r"read each other|asked for its next batch by one of its own"):
        within(WAIT, tasks[0].read)
    for each in tasks:
        each.cancel()


@pytest.mark.parametrize("on_main_thread", [True, False])
def test_interrupt_of_a_function_on_the_callers_thread_is_the_callers_and_closes_the_task(on_main_thread):
    def interrupt(batch):
        raise KeyboardInterrupt

    with made(WAYS[0], interrupt) as task:
        task.add_split("rows", ROWS)
        drained = task.request_barrier()
        with pytest.raises(KeyboardInterrupt):
            task.read() if on_main_thread else within(WAIT, task.read)
        assert task.state == "cancelled"
        assert isinstance(drained.exception(WAIT), ConfigurationError)
        with pytest.raises(ConfigurationError, match="cancelled"):
            task.read()


def test_interrupt_of_a_function_on_a_thread_of_the_task_is_an_error_of_the_function():
    def interrupt(batch):
        raise KeyboardInterrupt

    with made(WAYS[1], interrupt) as task:
        task.add_split("rows", ROWS)
        task.request_barrier()
        with pytest.raises(UserCodeError, match="KeyboardInterrupt"):
            task.read(WAIT)

"""Tasks that several threads use, windows queued ahead, cancels and errors from elsewhere, eager and lazy start."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from penstock.engine.core.errors import ConfigurationError, PenstockError, UserCodeError
from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_output import OUTPUT_BATCHES
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.scheduler.pool import PoolScheduler
from support.scenario_tasks import (
    MODES,
    WAIT,
    Buffering,
    Passing,
    finish,
    own,
    read,
    read_to_error,
    rows,
    rows_read,
    scan,
    split,
    table,
    values,
    window,
)

ALL_MODES = pytest.mark.parametrize("degree", [0, 1, 2, 3])


class Doors:
    """A user's function that waits until it is let through; tells when somebody stands before it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, records):
        self.reached.set()
        assert self.open.wait(WAIT)
        return records


@ALL_MODES
def test_windows_queued_ahead_come_one_after_the_other(degree, make_task):
    """Twenty windows are asked for before the first row is read: each has its rows, its barrier and its statistics."""
    like = table(k=[], v=[])
    task = make_task(scan(Flow("plan"), like=like).aggregate(by=["k"], v=("v", "sum")), degree)
    futures = []
    for number in range(20):
        task.add_split("rows", split(k=[number, number], v=[1, 2]))
        futures.append(task.request_barrier())
    for number, future in enumerate(futures):
        assert rows(read(task)) == [(number, 3)]
        assert task.state == "barrier"
        assert future.result(0).barrier == number + 1
        assert future.result(0).rows["output"] == 0
    assert finish(task) == []


@MODES
def test_windows_may_be_added_while_others_are_read(degree, make_task):
    """One thread feeds, another one reads: no window is lost, and none gets a row of another one."""
    task = make_task(scan(Flow("plan")).sort("c0"), degree)
    count = 200
    futures: list[Future] = []

    def feed() -> None:
        for number in range(count):
            task.add_split("rows", split(c0=[number + 1, number]))
            futures.append(task.request_barrier())

    feeder = threading.Thread(target=feed)
    feeder.start()
    found: list[list[int]] = []
    while len(found) < count:
        try:
            found.append(values(read(task)))
        except ConfigurationError:
            assert degree == 0, "only a serial task can have nothing to do"
    feeder.join()
    assert found == [[number, number + 1] for number in range(count)]
    assert [future.result(0).barrier for future in futures] == list(range(1, count + 1))


@pytest.mark.parametrize("degree", [0, 2, 3])
def test_each_batch_goes_to_one_of_several_readers(degree, make_task, one_row_batches):
    """Four threads read one window of 300 batches: together they have every row once; one of them sees the barrier."""
    task = make_task(scan(Flow("plan")).project("c0"), degree)
    task.add_split("rows", split(c0=range(300)))
    reached = task.request_barrier()
    barriers: list[int] = []

    def take() -> list[int]:
        found: list[int] = []
        while not (reached.done() and barriers):
            try:
                batch, future = task.next()
            except ConfigurationError:
                return found  # a serial task has nothing to do behind its barrier
            if batch is not None:
                found += values([batch])
            elif future is None:
                barriers.append(1)
            else:
                wait([future], 0.05)
        return found

    with ThreadPoolExecutor(4) as readers:
        parts = [each.result(WAIT) for each in [readers.submit(take) for _ in range(4)]]
    assert Counter(value for part in parts for value in part) == Counter(range(300))
    assert barriers == [1]
    assert all(part == sorted(part) for part in parts)


@pytest.mark.parametrize("degree", [0, 2])
def test_cancel_from_another_thread_ends_a_drain(degree, make_task, one_row_batches):
    """While an operator drains, somebody else cancels. The operator finishes the step it is in; the reader is told, the
    barrier is settled, and nothing is left."""
    doors = Doors()
    drained: list[int] = []

    def releasing(left: int) -> None:
        drained.append(left)
        if left == 50:
            doors(None)

    task = make_task(own(scan(Flow("plan")), lambda _: Buffering(releasing)), degree)
    task.add_split("rows", split(c0=range(100)))
    reached = task.request_barrier()
    with ThreadPoolExecutor(2) as others:
        reader = others.submit(read_to_error, task)
        assert doors.reached.wait(WAIT)
        canceller = others.submit(task.cancel)
        while task.state != "cancelled":
            threading.Event().wait(0.001)
        doors.open.set()
        canceller.result(WAIT)
        _, error = reader.result(WAIT)
    assert isinstance(error, ConfigurationError)
    assert "cancelled" in error.message
    assert isinstance(reached.exception(0), PenstockError)
    assert min(drained) > 1, "the drain has not gone on to its end"


@pytest.mark.parametrize("degree", [1, 3])
def test_error_reaches_a_reader_that_waits(degree, make_task):
    """The reader waits in a future when the plan fails on a thread of its own."""
    doors = Doors()

    def fail(records):
        doors(records)
        raise ValueError("behind the door")

    task = make_task(scan(Flow("plan")).map_batches(fail, table(c0=[]).schema), degree)
    task.add_split("rows", split(c0=[1]))
    nothing, future = task.next()
    assert nothing is None
    assert doors.reached.wait(WAIT)
    assert not future.done()
    doors.open.set()
    future.result(WAIT)
    _, error = read_to_error(task)
    assert isinstance(error, UserCodeError)


@ALL_MODES
def test_barrier_of_an_idle_plan_is_reached_at_once_and_again(degree, make_task):
    """Nothing was fed, before or between."""
    flow = Flow("plan")
    like = table(k=[], v=[])
    left, right = scan(flow, "left", like), scan(flow, "right", like)
    task = make_task(left.merge_join(right, on=["k"]).gather().sort("k"), degree)
    for _ in range(5):
        assert window(task) == []
    assert finish(task) == []


@MODES
def test_nothing_runs_before_the_first_pull(degree, make_task):
    """A task is lazy: splits and barriers may be queued, and neither a source nor an operator is touched."""
    seen: list[int] = []
    task = make_task(own(scan(Flow("plan")), lambda _: Passing(lambda records: seen.append(records.num_rows))), degree)
    task.add_split("rows", split(c0=[1]))
    task.request_barrier()
    assert rows_read(task) == {"rows": 0}
    assert seen == []
    assert task.next()[0] is not None or degree
    read(task)
    assert seen == [1]


def test_eager_task_runs_ahead_of_its_reader_and_no_further_than_it_may(make_task, one_row_batches):
    """Without a pull an eager task fills its output, and stops there until the reader takes something."""
    many = 4 * OUTPUT_BATCHES
    task = make_task(scan(Flow("plan")).project("c0"), 2, eager=True)
    full = threading.Event()
    reports = iter(range(10_000))
    task.add_split("rows", split(c0=range(many)))
    while not any("waits for consumer" in each for each in task.why()):
        assert next(reports) < 9_999
        full.wait(0.001)
    assert OUTPUT_BATCHES <= rows_read(task)["rows"] <= OUTPUT_BATCHES + 2
    assert values(finish(task)) == list(range(many))


def test_function_that_blocks_holds_one_worker_only(make_task):
    """Two branches on two threads: while the function of one waits, the rows of the other come."""
    doors = Doors()
    flow = Flow("plan")
    schema = table(c0=[]).schema
    seen = threading.Event()
    blocked = scan(flow, "blocked").map_batches(doors, schema).gather()
    free = own(scan(flow, "free"), lambda _: Passing(lambda records: seen.set())).gather()
    task = make_task(blocked.union(free), 2, eager=True)
    task.add_split("blocked", split(c0=[1]))
    assert doors.reached.wait(WAIT)
    task.add_split("free", split(c0=[2]))
    reached = task.request_barrier()
    assert seen.wait(WAIT), "the other branch runs"
    assert not reached.done()
    doors.open.set()
    assert values(read(task)) == [1, 2]


def test_many_tasks_share_the_threads_of_one_scheduler():
    """Twenty tasks on five threads, windows in turns: all rows arrive, each in its task, and in order."""
    with PoolScheduler(5) as scheduler:
        tasks = [PlanTask(scan(Flow("plan")).sort("c0"), scheduler=scheduler) for _ in range(20)]
        for cycle in range(3):
            for number, task in enumerate(tasks):
                task.add_split("rows", split(c0=range(number + 100, cycle, -1)))
                task.request_barrier()
        for cycle in range(3):
            for number, task in enumerate(tasks):
                assert values(read(task)) == list(range(cycle + 1, number + 101))
        for task in tasks:
            task.cancel()


def test_future_that_its_holder_has_cancelled_disturbs_nobody(make_task):
    """A caller may lose interest in a barrier, or in a pull."""
    task = make_task(scan(Flow("plan")), 2)
    task.add_split("rows", split(c0=[1]))
    assert task.request_barrier().cancel()
    pulled = task.next()[1]
    assert pulled is None or pulled.cancel() or pulled.done()
    assert values(read(task)) == [1] or pulled is None
    assert task.request_barrier().cancel()
    task.cancel()


@pytest.mark.parametrize("degree", [0, 2], ids=["serial", "parallel"])
def test_drain_stops_where_the_reader_has_no_room(degree, make_task, one_row_batches):
    """An operator that emits a thousand batches at a barrier emits no more than may wait for the reader."""
    left: list[int] = []
    task = make_task(own(scan(Flow("plan")), lambda _: Buffering(left.append)), degree)
    task.add_split("rows", split(c0=range(1000)))
    reached = task.request_barrier()
    assert values([task.read(WAIT)]) == [0]
    if degree:
        wait([reached], 1)
    assert min(left) > 1000 - 4 * OUTPUT_BATCHES
    assert values(read(task)) == list(range(1, 1000))

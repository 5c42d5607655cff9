"""What is left of a plan when it is over, however it ended: nothing, and at once, without the garbage collector."""

import gc
import multiprocessing
import threading
import time
import weakref
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.engine.core.errors import ConfigurationError, UserCodeError
from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.plan.rounds import CHUNK_ROWS
from penstock.engine.scheduler.pool import PoolScheduler

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
WAIT = 30.0
ENDINGS = ["finished", "failed", "cancelled", "dropped", "dropped while it waits"]
PLACES = ["on the caller's thread", "on threads of its own", "on a shared pool"]


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def rows(count: int = CHUNK_ROWS + 5_000) -> pa.Table:
    return pa.table([list(range(count)), [1] * count], schema=SCHEMA)


def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError("no")


def made(function, place: str, pool: PoolScheduler) -> PlanTask:
    flow = Flow("plan")
    left, right = flow.from_split_sets(SCHEMA, name="left"), flow.from_split_sets(SCHEMA, name="right")
    joined = left.map_batches(function, SCHEMA).gather().merge_join(right.gather(), on=["k"], suffix="_r")
    stream = joined.aggregate(["k"], n=("v", "sum")).sort("k")
    return PlanTask(stream, scheduler=pool) if place == PLACES[2] else PlanTask(stream, degree=2 * (place == PLACES[1]))


def parts_of(task: PlanTask) -> list[weakref.ref]:
    """The task, what it is made of, down to the operators."""
    found = [task, *task.tasks]
    for each in task.tasks:
        for driver in each.drivers:
            found += [operator.running for operator in driver.operators]
    return [weakref.ref(each) for each in found if hasattr(type(each), "__weakref__")]


def end(task: PlanTask, ending: str) -> None:
    for source in ("left", "right"):
        task.add_split(source, rows())
    if ending == "finished":
        for source in ("left", "right"):
            task.no_more_splits(source)
        while task.read(WAIT) is not None:
            pass
        return
    task.request_barrier()
    if ending == "failed":
        with pytest.raises(UserCodeError, match="no"):
            task.read(WAIT)
    elif ending in ("cancelled", "dropped while it waits"):
        task.read(WAIT)
    if ending == "cancelled":
        task.cancel()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ending", ENDINGS)
def test_task_leaves_no_operator_no_memory_and_no_thread(ending, place):
    with PoolScheduler(1) as pool:
        threads, held = threading.active_count(), pa.total_allocated_bytes()
        task = made(refuse if ending == "failed" else lambda batch: batch, place, pool)
        parts = parts_of(task)
        assert len(parts) > 6
        end(task, ending)
        del task
        until = time.monotonic() + WAIT
        while time.monotonic() < until:
            left = [part() for part in parts if part() is not None]
            if not left and threading.active_count() <= threads and pa.total_allocated_bytes() <= held:
                break
            del left
            time.sleep(0.001)
        assert [part() for part in parts if part() is not None] == []
        assert threading.active_count() <= threads
        assert pa.total_allocated_bytes() <= held


@pytest.mark.parametrize("place", PLACES)
def test_task_is_a_context_manager_that_cancels(place):
    with PoolScheduler(1) as pool:
        with made(lambda batch: batch, place, pool) as task:
            batches = task.run({"left": rows(), "right": rows()})
            assert len(next(batches)) > 0
        assert task.state == "cancelled"
        with made(lambda batch: batch, place, pool) as task:
            end(task, "finished")
        assert task.state == "finished"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ending", ["finished", "failed", "cancelled"])
def test_statistics_outlive_the_end(ending, place):
    with PoolScheduler(1) as pool:
        task = made(refuse if ending == "failed" else lambda batch: batch, place, pool)
        end(task, ending)
        operators = {each.operator: each for task in task.statistics() for each in task.operators}
        assert operators["map-batches-1"].rows_in >= CHUNK_ROWS
        assert {each.state for task in task.statistics() for each in task.drivers} == {"released"}
        assert task.why() == []


def use_in_fork(task: PlanTask) -> None:
    with task, pytest.raises(ConfigurationError, match="a fork of the one that made the task"):
        next(task.run({"left": rows(1), "right": rows(1)}))


def test_fork_of_the_process_is_told_and_does_not_wait_for_threads_that_it_has_not():
    """Its reader, its cancel and the end of its with block waited for ever."""
    with made(lambda batch: batch, PLACES[1], PoolScheduler(1)) as task:
        for source in ("left", "right"):
            task.add_split(source, rows())
        task.request_barrier()
        assert task.read(WAIT) is not None
        fork = multiprocessing.get_context("fork").Process(target=use_in_fork, args=(task,))
        fork.start()
        fork.join(WAIT)
        waits = fork.is_alive()
        fork.kill()
        assert not waits
        assert fork.exitcode == 0

"""``PlanTask.run``: the window of exactly that split set, whatever became of the calls before it."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.core.errors import ConfigurationError, PenstockError, UserCodeError
from penstock.engine.flow.flow import Flow, Stream
from penstock.engine.local.plan_output import PlanOutput
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.operators.rowwise.map_batches import CALL_ROWS
from penstock.engine.plan.rounds import CHUNK_ROWS
from penstock.engine.scheduler.pool import PoolScheduler

SCHEMA = pa.schema([("day", pa.int64())])


def days(*values: int) -> pa.Table:
    return pa.table([list(values)], schema=SCHEMA)


def long(day: int, batches: int) -> pa.Table:
    return pa.table([np.repeat(day, (batches - 1) * CHUNK_ROWS + 1)], schema=SCHEMA)


def source(flow: Flow, name: str = "rows") -> Stream:
    return flow.from_split_sets(SCHEMA, name=name)


def copied(degree: int = 0) -> PlanTask:
    return PlanTask(source(Flow("days")).map_batches(lambda batch: batch, SCHEMA), degree=degree)


def union() -> PlanTask:
    flow = Flow("union")
    return PlanTask(source(flow, "a").union(source(flow, "b")))


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [day for batch in batches for day in batch["day"].to_pylist()]


@pytest.mark.parametrize("degree", [0, 1, 2])
@pytest.mark.parametrize("taken", [0, 1, 3, 14])
def test_window_that_is_left_early_is_dropped_before_the_next_one(degree, taken):
    """The rest of day 0 came as day 1, that of day 1 as day 2, and so for ever."""
    task = copied(degree)
    for day in range(5):
        batches = task.run({"rows": long(day, 16)})
        for _ in range(taken):
            assert set(next(batches)["day"].to_pylist()) == {day}
        if day % 2:
            batches.close()
        del batches
    assert rows_of(task.run({"rows": days(7, 8)})) == [7, 8]
    assert task.state == "barrier"
    task.cancel()


@pytest.mark.parametrize("degree", [0, 2])
def test_window_that_nobody_reads_is_drained_and_its_future_done(degree):
    task = copied(degree)
    task.add_split("rows", long(1, 16))
    drained = task.request_barrier()
    assert rows_of(task.run({"rows": days(2)})) == [2]
    assert drained.result().barrier == 1
    task.cancel()


@pytest.mark.parametrize("degree", [0, 2])
def test_split_sets_may_be_queued_ahead_and_are_read_in_their_order(degree):
    task = copied(degree)
    runs = [task.run({"rows": long(day, 3)}) for day in range(3)]
    assert [rows_of(each) for each in runs] == [[day] * (2 * CHUNK_ROWS + 1) for day in range(3)]
    task.cancel()


def test_window_whose_reading_goes_on_after_a_later_one_has_begun_is_refused():
    task = copied()
    first = task.run({"rows": long(1, 16)})
    next(first)
    later = task.run({"rows": long(2, 2)})
    assert len(next(later)) == CALL_ROWS
    with pytest.raises(ConfigurationError, match="one after the other"):
        next(first)
    assert rows_of(later) == [2] * (CHUNK_ROWS + 1 - CALL_ROWS), "the refused one has taken nothing"


@pytest.mark.parametrize("degree", [0, 2])
def test_reader_whose_window_another_thread_has_dropped_is_told_and_takes_nothing_of_the_next_one(degree):
    """He took the next window's rows for his own, or waited for ever."""
    begun, go_on = threading.Event(), threading.Event()

    def wait(batch: pa.RecordBatch) -> pa.RecordBatch:
        begun.set()
        assert go_on.wait(30)
        return batch

    with (
        PlanTask(source(Flow("days")).map_batches(wait, SCHEMA), degree=degree) as task,
        ThreadPoolExecutor() as threads,
    ):
        first, second = task.run({"rows": days(1)}), task.run({"rows": days(2)})
        told = threads.submit(rows_of, first)
        assert begun.wait(30)
        read = threads.submit(rows_of, second)
        if degree:  # at once, whatever the function does
            assert isinstance(told.exception(30), ConfigurationError)
        go_on.set()
        assert "read the windows of several split sets one after the other" in str(told.exception(30))
        assert read.result(30) == [2]


@pytest.mark.parametrize("degree", [0, 2])
def test_window_that_somebody_else_has_read_gives_nothing(degree):
    with copied(degree) as task:
        first = task.run({"rows": days(1)})
        assert [task.read(30) for _ in range(2)][1] is None
        with pytest.raises(ConfigurationError, match="was read elsewhere"):
            next(first)
        assert rows_of(task.run({"rows": days(2)})) == [2]


@pytest.mark.parametrize("degree", [0, 2])
def test_run_in_a_callback_is_refused_and_adds_nothing(degree):
    """It dropped the window of which the callback was told."""
    refused: list[BaseException] = []

    def run(_: object) -> None:
        try:
            rows_of(task.run({"rows": days(2)}))
        except ConfigurationError as error:
            refused.append(error)

    with copied(degree) as task:
        task.add_split("rows", days(1))
        task.request_barrier().add_done_callback(run)
        assert rows_of(iter(lambda: task.read(30), None)) == [1]
        assert "one of its own functions or callbacks" in str(refused)
        assert rows_of(task.run({"rows": days(3)})) == [3]


REFUSED = {
    "an unknown source": ({"a": days(1), "c": days(2)}, "the sources are: a, b"),
    "other columns": ({"a": days(1), "b": pa.table({"night": [1]})}, "the source takes day"),
    "another type": ({"a": days(1), "b": pa.table({"day": ["x"]})}, "the source takes day"),
    "no split": ({"a": days(1), "b": 7}, "a split is a int"),
    "no file": ({"a": days(1), "b": "nowhere.parquet"}, "nowhere.parquet"),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_split_set_that_is_refused_adds_nothing(refused):
    given, message = REFUSED[refused]
    task = union()
    with pytest.raises(PenstockError, match=message):
        task.run(given)
    assert task.state == "running"
    assert rows_of(task.run({"a": days(3), "b": days(4)})) == [3, 4]


def test_split_set_behind_the_last_split_of_a_source_adds_nothing():
    task = union()
    task.no_more_splits("b")
    with pytest.raises(ConfigurationError, match="last split of b"):
        task.run({"a": days(1)})
    task.add_split("a", days(2))
    task.no_more_splits("a")
    assert task.read()["day"].to_pylist() == [2]
    assert task.read() is None


@pytest.mark.parametrize("degree", [0, 2])
def test_end_of_splits_of_a_task_that_is_over_is_refused_unless_it_is_known(degree):
    task = copied(degree)
    task.cancel()
    with pytest.raises(ConfigurationError, match="the task is cancelled"):
        task.no_more_splits("rows")
    task = copied(degree)
    task.no_more_splits("rows")
    assert task.read() is None
    task.no_more_splits("rows")
    assert task.state == "finished"


def test_split_that_does_not_fit_names_its_source():
    with pytest.raises(PenstockError) as refused:
        union().add_split("b", pa.table({"night": [1]}))
    assert refused.value.operator == "b"


def test_what_has_happened_since_a_reader_looked_wakes_him_at_once():
    """1. He looks: there is nothing. 2. A batch is put, and nobody waits. 3. He waits, and nothing else comes."""
    output = PlanOutput(room=1)
    seen = output.seen
    assert not output.waits(seen).done()
    output.put(days(1).to_batches()[0])
    assert output.waits(seen).done()
    assert not output.waits(output.seen).done()


class NoModel:
    def __init__(self) -> None:
        raise ValueError("model file not found")

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


@pytest.mark.parametrize("degree", [None, 0, 2])
def test_constructor_that_raises_is_the_error_of_the_task(degree):
    """None: on a scheduler of others."""
    stream = source(Flow("model")).map_batches(NoModel, SCHEMA)
    with PoolScheduler(1) as pool, pytest.raises(UserCodeError, match="model file not found"):
        PlanTask(stream, scheduler=pool) if degree is None else PlanTask(stream, degree=degree)

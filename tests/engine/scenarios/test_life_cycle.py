"""The life of a task: how it begins, goes wrong and ends, and that nothing of it stays.

After the lists of Velox's driver and task tests (pause and resume belong to the scheduler's tests).
"""

from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest

from penstock.engine.core.errors import ConfigurationError, FlowError, UserCodeError
from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.operators import HashAggregate
from penstock.engine.operators.aggregate.aggregates import Aggregate
from penstock.engine.state.memory import TaskMemory
from support.scenario_tasks import (
    MODES,
    WAIT,
    Buffering,
    In,
    Passing,
    finish,
    own,
    raising,
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

# ---------------------------------------------------------------------- beginnings


@MODES
def test_filter_projection_and_groups_give_the_known_sums(degree, make_task):
    """serialExecution: rows below 100 plus 5; sums and means of 0…999 and on by the remainder of 5."""
    task = make_task(scan(Flow("plan")).filter("c0 < 100").project(c0="c0 + 5"), degree)
    assert values(window(task, rows=split(c0=range(1000)))) == list(range(5, 105))
    sums = scan(Flow("plan")).project("c0", k="c0 % 5").aggregate(by=["k"], s=("c0", "sum"), m=("c0", "mean"))
    grouped = make_task(sums, degree)
    for _ in range(2):
        grouped.add_split("rows", split(c0=range(1000)))
    expected = [(k, 2 * s, m) for k, s, m in zip(range(5), range(99500, 100500, 200), _means(), strict=True)]
    assert rows(finish(grouped)) == expected


def _means() -> list[float]:
    return [497.5, 498.5, 499.5, 500.5, 501.5]


@MODES
def test_hash_join_gives_the_known_pairs(degree, make_task):
    """serialHashJoin: (1, 10, 1) and (3, 30, 3), window after window."""
    flow = Flow("plan")
    left, right = table(k=[], v=[]), table(k=[], w=[])
    task = make_task(scan(flow, "left", left).hash_join(scan(flow, "right", right), on=["k"]), degree)
    for _ in range(3):
        found = window(task, left=split(k=[1, 2, 3], v=[10, 20, 30]), right=split(k=[3, 1, 5], w=[3, 1, 5]))
        assert rows(found) == [(1, 10, 1), (3, 30, 3)]


def test_operator_that_cannot_be_built_leaves_no_task():
    """driverCreationThrow: the error names the operator; no thread stays, and the parts that were built are closed."""

    def refuse(context):
        raise ValueError("too many drivers")

    before = threading.active_count()
    for degree in (0, 2):
        with pytest.raises(UserCodeError, match=r"own: its code raised ValueError: too many drivers"):
            PlanTask(own(scan(Flow("plan")).gather(), refuse), degree=degree)
    assert threading.active_count() == before


def test_split_for_what_is_no_source_is_refused(make_task):
    """wrongPlanNodeForSplit: an operator, or nothing at all; the error lists the sources."""
    task = make_task(scan(Flow("plan")).project("c0", name="kept"))
    for name in ("kept", "other"):
        with pytest.raises(ConfigurationError, match="the sources are: rows"):
            task.add_split(name, split(c0=[1]))
        with pytest.raises(ConfigurationError, match="the sources are: rows"):
            task.no_more_splits(name)


def test_two_operators_of_one_name_are_refused():
    """duplicatePlanNodeIds: when the flow is built."""
    flow = Flow("plan")
    scan(flow)
    with pytest.raises(FlowError, match="two operators are named 'rows'"):
        scan(flow)


# ---------------------------------------------------------------------- ends


@MODES
def test_cancel_while_reading_stops_all_drivers(degree, make_task, one_row_batches):
    """cancel, terminate: some rows were read; then no driver runs, and a second cancel does nothing."""
    task = make_task(scan(Flow("plan")).gather().project("c0"), degree)
    task.add_split("rows", split(c0=range(10_000)))
    assert [values([task.read(WAIT)]) for _ in range(10)] == [[number] for number in range(10)]
    task.cancel()
    assert {each.state for task in task.statistics() for each in task.drivers} == {"released"}
    assert rows_read(task)["rows"] < 10_000
    task.cancel()
    assert task.state == "cancelled"


@MODES
def test_cancel_of_a_finished_or_failed_task_changes_nothing(degree, make_task):
    """ResumeAfterTaskFinish and the like: what has ended has ended."""
    task = make_task(scan(Flow("plan")), degree)
    finish(task)
    task.cancel()
    assert task.state == "finished"
    failed = make_task(scan(Flow("plan")).map_batches(raising("no"), table(c0=[]).schema), degree)
    failed.add_split("rows", split(c0=[1]))
    read_to_error(failed)
    failed.cancel()
    assert failed.state == "failed"


class Closing(Buffering):
    """Counts how often it was closed."""

    def __init__(self, closed: list[int]) -> None:
        super().__init__()
        self._closed = closed

    def close(self) -> None:
        self._closed.append(1)


@MODES
@pytest.mark.parametrize("ending", ["finished", "failed", "cancelled", "cancelled before it began"])
def test_every_operator_is_closed_once_however_the_task_ends(ending, degree, make_task):
    """terminate: on-thread, off-thread, never on a thread."""
    closed: list[int] = []
    stream = own(scan(Flow("plan")), lambda _: Closing(closed)).gather()
    if ending == "failed":
        stream = stream.map_batches(raising("no"), table(c0=[]).schema)
    task = make_task(own(stream, lambda _: Closing(closed), name="second"), degree)
    task.add_split("rows", split(c0=[1]))
    if ending == "finished":
        finish(task)
    elif ending == "failed":
        task.request_barrier()
        read_to_error(task)
    elif ending == "cancelled":
        task.request_barrier()
        read(task)
    task.cancel()
    assert closed == [1, 1]
    assert task.state == ending.split()[0]


@MODES
def test_slow_reader_shows_as_the_reason_why_nothing_runs(degree, make_task, one_row_batches):
    """slow: the end of the plan waits for its consumer, and says so."""
    task = make_task(scan(Flow("plan")).project("c0"), degree)
    task.add_split("rows", split(c0=range(100)))
    assert values([task.read(WAIT)]) == [0]
    pause, looks = threading.Event(), iter(range(10_000))
    while not any("waits for consumer: the reader of its output" in each for each in task.why()):
        assert next(looks) < 9_999
        pause.wait(0.001)
    assert values(finish(task)) == list(range(1, 100))


@MODES
def test_spill_folder_is_made_when_needed_and_removed_at_the_end(degree, make_task, tmp_path):
    """Spill directory: none without spilling; one, once; gone with the task."""
    folder = tmp_path / "spill"
    memory = TaskMemory(budget=100_000, folder=str(folder))
    config = In(HashAggregate(("c0",), (Aggregate("n", None, "count"),)), {"memory": memory.account("groups")})
    flow = Flow("plan")
    task = make_task(flow.apply(config, [scan(flow)]), degree)
    assert len(values(window(task, rows=split(c0=range(10))))) == 10
    assert not folder.exists()
    task.add_split("rows", split(c0=range(100_000)))
    reached = task.request_barrier()
    assert task.read(WAIT).num_rows
    assert os.listdir(folder) or reached.done()
    task.cancel()
    assert memory.statistics().spilled_files > 0
    assert (memory.statistics().held, memory.statistics().files) == (0, 0)
    memory.release()
    assert not folder.exists()


@MODES
@pytest.mark.parametrize("ending", ["finished", "cancelled"])
def test_nothing_of_a_task_stays_when_its_owner_lets_go(ending, degree):
    """taskDeletionPromise: task, drivers and operators are gone; the flow holds none of them."""
    made: list[weakref.ref] = []

    def make(context):
        running = Buffering()
        made.append(weakref.ref(running))
        return running

    stream = own(own(scan(Flow("plan")), make).gather(), make, name="second")
    task = PlanTask(stream, degree=degree)
    window(task, rows=split(c0=[1]))
    if ending == "finished":
        finish(task)
    task.cancel()
    made += [weakref.ref(task), *(weakref.ref(each) for each in task.tasks)]
    del task
    gc.collect()
    assert [each() for each in made] == [None] * len(made)


@MODES
def test_split_sets_leave_threads_files_and_memory_as_they_were(degree, make_task):
    """liveStats: two hundred windows on one task, with an exchange, a sort and a join in it."""
    flow = Flow("plan")
    like = table(k=[], v=[])
    left, right = scan(flow, "left", like), scan(flow, "right", like)
    task = make_task(left.merge_join(right, on=["k"]).gather().sort("k"), degree)
    given = {name: split(k=range(100), v=range(100)) for name in ("left", "right")}
    measured = []
    for number in range(200):
        assert len(values(window(task, **given))) == 100
        if number in {75, 199}:
            gc.collect()
            objects = len(gc.get_objects())
            measured.append((threading.active_count(), len(os.listdir("/proc/self/fd")), objects))
    assert measured[0][:2] == measured[1][:2]
    assert measured[1][2] - measured[0][2] < 100, "objects are left behind"


@MODES
def test_statistics_of_a_running_task_grow_with_it(degree, make_task):
    """liveStats: rows in and out of each operator, window by window, and its task's state."""
    seen = own(scan(Flow("plan")).filter("c0 > 4", name="kept"), lambda _: Passing())
    task = make_task(seen, degree)
    for cycle in (1, 2):
        window(task, rows=split(c0=range(10)))
        [found] = task.statistics()
        assert [(each.operator, each.rows_in, each.rows_out) for each in found.operators] == [
            ("kept", 10 * cycle, 5 * cycle),
            ("own", 5 * cycle, 5 * cycle),
            ("output", 5 * cycle, 0),
        ]
        assert found.state == "running"

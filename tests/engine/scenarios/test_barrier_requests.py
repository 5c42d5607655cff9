"""When a barrier may be requested, what becomes of splits around it, and how it ends with its task.

Each docstring begins with the scenario's id.
"""

from __future__ import annotations

import pytest

from penstock.engine.core.errors import ConfigurationError, PenstockError
from penstock.engine.flow.flow import Flow, Stream
from support.scenario_tasks import MODES, WAIT, finish, read, rows_read, scan, split, table, values, window


def filtered(name: str = "plan") -> Stream:
    return scan(Flow(name)).filter("c0 < 100").project(c0="c0 + 5")


def projected() -> Stream:
    return scan(Flow("plan")).project("c0")


@MODES
def test_no_plan_refuses_a_barrier_and_rows_built_into_the_flow_are_not_read(degree, make_task):
    """tb.invalidPlanNode: Velox refuses a plan over values. Here every plan takes barriers, and a task gets its rows
    from ``add_split`` alone: what the flow's source lists is not read."""
    built_in = Flow("values").from_tables([table(c0=range(1000)), table(c0=range(1000))], name="rows")
    task = make_task(built_in.filter("c0 < 100").project(c0="c0 + 5"), degree)
    assert not task.under_barrier
    assert values(window(task, rows=split(c0=range(1000)))) == list(range(5, 105))
    assert finish(task) == []
    assert rows_read(task) == {"rows": 1000}


@MODES
def test_barrier_after_the_last_split_is_refused_and_the_task_goes_on(degree, make_task):
    """tb.afterNoMoreSplits: the error names the source; the task is as usable as before."""
    task = make_task(filtered(), degree)
    task.add_split("rows", split(c0=range(1000)))
    task.no_more_splits("rows")
    with pytest.raises(ConfigurationError, match="no barrier can follow the last split of rows"):
        task.request_barrier()
    assert not task.under_barrier
    assert len(values(read(task))) == 100
    assert task.state == "finished"


@MODES
def test_task_with_a_refused_barrier_can_be_cancelled(degree, make_task):
    """tb.afterNoMoreSplits: the same, ended by cancel as in the source."""
    task = make_task(filtered(), degree)
    task.add_split("rows", split(c0=range(1000)))
    task.no_more_splits("rows")
    with pytest.raises(ConfigurationError):
        task.request_barrier()
    task.cancel()
    assert task.state == "cancelled"


@MODES
def test_split_added_under_a_barrier_belongs_to_the_next_window(degree, make_task):
    """tb.addSplitAfterBarrier.serial: Velox refuses the second split. Here it waits for its turn, so that windows can
    be queued ahead. Without ``next`` nothing happens; cancel settles the future."""
    task = make_task(filtered(), degree)
    task.add_split("rows", split(c0=[1]))
    first = task.request_barrier()
    assert task.under_barrier
    task.add_split("rows", split(c0=[2]))
    assert not first.done()
    assert task.state == "running"
    assert values(read(task)) == [6]
    second = task.request_barrier()
    assert values(read(task)) == [7]
    assert (first.result().barrier, second.result().barrier) == (1, 2)
    task.add_split("rows", split(c0=[3]))
    third = task.request_barrier()
    task.cancel()
    assert isinstance(third.exception(), ConfigurationError)


@MODES
def test_barrier_waits_for_next_and_cancel_settles_it(degree, make_task):
    """tb.addSplitAfterBarrier.serial: nobody called ``next``, so the barrier is not reached; after a cancel it never
    will be, and its future says so."""
    task = make_task(filtered(), degree)
    task.add_split("rows", split(c0=[1]))
    reached = task.request_barrier()
    assert (task.under_barrier, reached.done(), task.state) == (True, False, "running")
    task.cancel()
    with pytest.raises(ConfigurationError, match="cancelled"):
        reached.result(0)
    assert not task.under_barrier


def test_barrier_is_reached_without_a_reader_once_the_task_has_begun(make_task):
    """tb.addSplitAfterBarrier.parallel: threads of the task's own take it to the barrier by themselves, as long as
    their output has room."""
    task = make_task(filtered(), 2, eager=True)
    task.add_split("rows", split(c0=[1]))
    reached = task.request_barrier()
    assert reached.result(WAIT).barrier == 1
    assert not task.under_barrier
    assert values(read(task)) == [6]
    task.cancel()
    assert task.state == "cancelled"


def test_cancel_in_the_middle_of_a_window_ends_the_task_at_once(make_task, one_row_batches):
    """tb.terminateDuringBarrier.serial: of 100 batches 50 are read, then the task is cancelled: no more come, and the
    split has not been read to its end."""
    task = make_task(projected())
    task.add_split("rows", split(c0=range(100)))
    reached = task.request_barrier()
    for expected in range(50):
        batch, future = task.next()
        assert future is None
        assert values([batch]) == [expected]
    task.cancel()
    with pytest.raises(ConfigurationError, match="cancelled"):
        task.next()
    assert isinstance(reached.exception(0), PenstockError)
    assert 50 <= rows_read(task)["rows"] < 100


def test_cancel_while_threads_are_at_work_settles_the_barrier(make_task, one_row_batches):
    """tb.terminateDuringBarrier.parallel: when cancel comes back nothing runs any more."""
    task = make_task(projected(), 2, eager=True)
    task.add_split("rows", split(c0=range(100)))
    reached = task.request_barrier()
    task.cancel()
    assert reached.done()
    assert not task.under_barrier
    assert [each.state for found in task.statistics() for each in found.drivers] == ["released"]


@MODES
def test_barrier_is_cleared_when_its_task_is_cancelled(degree, make_task):
    """tb.clearedOnTerminate: no barrier is outstanding afterwards."""
    task = make_task(projected(), degree)
    task.add_split("rows", split(c0=range(100)))
    reached = task.request_barrier()
    task.cancel()
    assert (task.under_barrier, reached.done(), task.state) == (False, True, "cancelled")


@MODES
def test_each_request_is_a_barrier_of_its_own(degree, make_task):
    """tb.derived.coalescedRequests: Velox lets a second request join the first. Here it closes a second, empty window,
    so that callers who count windows count the same as the task does."""
    task = make_task(scan(Flow("plan")).project("c0"), degree)
    task.add_split("rows", split(c0=[1]))
    first, second = task.request_barrier(), task.request_barrier()
    assert values(read(task)) == [1]
    assert values(read(task)) == []
    assert (first.result().barrier, second.result().barrier) == (1, 2)
    assert (first.result().rows["project-1"], second.result().rows["project-1"]) == (1, 0)


@MODES
def test_barrier_of_a_task_that_is_over_is_settled_at_once(degree, make_task):
    """tb.derived.notRunning: Velox gives a future that is ready; here it also says why nothing will come."""
    task = make_task(projected(), degree)
    task.cancel()
    reached = task.request_barrier()
    with pytest.raises(ConfigurationError, match="cancelled"):
        reached.result(0)
    done = make_task(projected(), degree)
    finish(done)
    with pytest.raises(ConfigurationError, match="finished"):
        done.request_barrier().result(0)


@MODES
def test_barrier_without_splits_is_reached_and_the_next_one_too(degree, make_task):
    """tb.derived.barrierWithoutSplits: an idle plan drains at once, and is none the worse for it."""
    task = make_task(scan(Flow("plan")).stream_aggregate(by=["c0"], n="count"), degree)
    assert window(task) == []
    assert values(window(task, rows=split(c0=[7, 7]))) == [7]
    assert task.request_barrier() is not None
    assert read(task) == []
    assert finish(task) == []


@MODES
def test_all_splits_before_the_barrier_come_out_before_it(degree, make_task):
    """tb.derived.dataBeforeBarrier: both splits are delivered before the barrier is reported."""
    task = make_task(projected(), degree)
    task.add_split("rows", split(c0=[1]))
    task.add_split("rows", split(c0=[2]))
    task.request_barrier()
    assert values(read(task)) == [1, 2]
    assert task.state == "barrier"


@MODES
def test_source_without_a_split_in_a_window_contributes_nothing(degree, make_task):
    """tb.derived.unevenSources: A has two splits, B none. The barrier is reached, and in the next window the splits of
    both are partners again."""
    left, right = table(k=[], v=[]), table(k=[], w=[])
    flow = Flow("uneven")
    join = scan(flow, "a", left).merge_join(scan(flow, "b", right), on=["k"], how="left")
    task = make_task(join, degree)
    task.add_split("a", split(k=[1], v=[1]))
    task.add_split("a", split(k=[2], v=[2]))
    task.request_barrier()
    assert [row["w"] for batch in read(task) for row in batch.to_pylist()] == [None, None]
    again = window(task, a=split(k=[3], v=[3]), b=split(k=[3], w=[30]))
    assert [row["w"] for batch in again for row in batch.to_pylist()] == [30]


@MODES
def test_uneven_windows_of_a_union_lose_nothing(degree, make_task):
    """tb.testProtocolUnevenSplits: Velox's harness refuses unequal numbers of splits. Here they are allowed, in every
    window anew."""
    flow = Flow("uneven")
    task = make_task(scan(flow, "a").union(scan(flow, "b")), degree)
    for counts in ((2, 1), (0, 3), (1, 0)):
        expected = []
        for source, count in zip("ab", counts, strict=True):
            for number in range(count):
                task.add_split(source, split(c0=[number]))
                expected.append(number)
        task.request_barrier()
        assert sorted(values(read(task))) == sorted(expected)
    assert finish(task) == []

"""The task barrier: split sets, drained windows, and those of Velox's barrier scenarios that apply in serial mode."""

import gc
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.engine.core.errors import ConfigurationError, FlowError, UserCodeError
from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.sources.memory import MemorySource
from support.sweeps import swept

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def table(*pairs) -> pa.Table:
    return pa.table([[k for k, _ in pairs], [v for _, v in pairs]], schema=SCHEMA)


def split(*pairs):
    [found] = MemorySource((table(*pairs),)).splits()
    return found


def source(flow, name="rows"):
    return flow.from_tables([table()], name=name)


def pull(task) -> list:
    """All rows up to the next barrier or the end."""
    rows = []
    while (batch := task.next()[0]) is not None:
        rows += [tuple(row.values()) for row in batch.to_pylist()]
    return rows


def sums() -> PlanTask:
    return PlanTask(source(Flow("sums")).stream_aggregate(by=["k"], total=("v", "sum"), name="sum"))


def test_barrier_emits_every_group_and_forgets_it():
    task = sums()
    assert [tuple(r.values()) for b in task.run({"rows": split((1, 1), (2, 2))}) for r in b.to_pylist()] == [
        (1, 1),
        (2, 2),
    ]
    assert task.state == "barrier"
    task.add_split("rows", split((2, 5), (3, 3)))
    task.request_barrier()
    assert pull(task) == [(2, 5), (3, 3)], "a group on both sides of a barrier appears twice"


def test_end_is_told_from_a_barrier():
    task = sums()
    task.add_split("rows", split((1, 1)))
    task.request_barrier()
    assert pull(task) == [(1, 1)]
    assert task.state == "barrier"
    task.no_more_splits("rows")
    assert pull(task) == []
    assert task.state == "finished"
    with pytest.raises(ConfigurationError, match="finished"):
        task.next()


def test_windows_can_be_queued_ahead():
    task = sums()
    futures = []
    for window in range(3):
        task.add_split("rows", split((window, 1), (window, 2)))
        futures.append(task.request_barrier())
    assert [pull(task) for _ in range(3)] == [[(0, 3)], [(1, 3)], [(2, 3)]]
    assert [future.result().barrier for future in futures] == [1, 2, 3]


def test_barrier_without_splits_is_reached_at_once():
    task = sums()
    future = task.request_barrier()
    assert pull(task) == []
    assert future.done()


def test_future_of_a_barrier_tells_the_rows_of_its_window():
    task = sums()
    for pairs in (((1, 1), (1, 2), (2, 3)), ((4, 4),)):
        task.add_split("rows", split(*pairs))
        future = task.request_barrier()
        pull(task)
        assert future.result().rows == {"sum": len({k for k, _ in pairs}), "output": 0}
        assert future.result().seconds >= 0


def test_several_splits_make_one_window():
    task = PlanTask(source(Flow("sums")).aggregate(by=["k"], total=("v", "sum")))
    for pairs in (((1, 1),), ((1, 2),), ((2, 2),)):
        task.add_split("rows", split(*pairs))
    task.request_barrier()
    assert pull(task) == [(1, 3), (2, 2)]


def test_both_sides_of_a_merge_join_drain_and_the_next_split_set_starts_afresh():
    flow = Flow("join")
    task = PlanTask(source(flow, "left").merge_join(source(flow, "right"), on=["k"], how="left"))
    windows = []
    for number in range(3):
        left, right = split((number, 1), (number + 1, 2)), split((number, 10))
        windows.append([row for b in task.run({"left": left, "right": right}) for row in b.to_pylist()])
    assert [[(r["k"], r["v"], r["v_right"]) for r in rows] for rows in windows] == [
        [(n, 1, 10), (n + 1, 2, None)] for n in range(3)
    ]


def test_barrier_passes_an_exchange():
    stream = source(Flow("two-stages")).filter(pc.field("v") > 1).gather().stream_aggregate(by=["k"], n="count")
    task = PlanTask(stream)
    assert pull_run(task, split((1, 1), (1, 2), (2, 2))) == [(1, 1), (2, 1)]
    assert pull_run(task, split((2, 2))) == [(2, 1)]


def pull_run(task, found) -> list:
    task.add_split("rows", found)
    task.request_barrier()
    return pull(task)


def test_next_without_splits_or_barrier_says_what_to_do():
    with pytest.raises(ConfigurationError, match="request a barrier"):
        sums().next()


def test_split_for_an_unknown_source_is_refused_and_the_sources_are_named():
    with pytest.raises(ConfigurationError, match="the sources are: rows"):
        sums().add_split("lines", split())


def test_no_split_and_no_barrier_follow_the_last_split():
    task = sums()
    task.no_more_splits("rows")
    with pytest.raises(ConfigurationError):
        task.add_split("rows", split())
    with pytest.raises(ConfigurationError):
        task.request_barrier()


def test_error_while_draining_reaches_the_caller_and_the_future():
    def explode(batch):
        raise ValueError("in the drain")

    stream = source(Flow("broken")).stream_aggregate(by=["k"], n="count")
    task = PlanTask(stream.map_batches(explode, stream.schema, name="explode"))
    task.add_split("rows", split((1, 1)))
    future = task.request_barrier()
    with pytest.raises(UserCodeError, match="in the drain"):
        task.next()
    assert isinstance(future.exception(), UserCodeError)
    assert task.state == "failed"
    with pytest.raises(UserCodeError):
        task.next()


def test_cancel_fulfils_the_barriers_and_ends_the_task():
    task = sums()
    future = task.request_barrier()
    task.cancel()
    assert future.done()
    with pytest.raises(ConfigurationError, match="cancelled"):
        task.next()


def test_flow_with_a_sink_is_refused():
    flow = Flow("sunk")
    stream = source(flow)
    stream.collect("out")
    with pytest.raises(FlowError):
        PlanTask(stream)


def measured() -> tuple[int, ...]:
    """Arrow's memory, threads, open files and objects of this process."""
    gc.collect()
    return (
        pa.total_allocated_bytes(),
        threading.active_count(),
        len(os.listdir("/proc/self/fd")),
        len(gc.get_objects()),
    )


@pytest.mark.slow
@pytest.mark.parametrize("sets", [1_500, swept(9_000)])
def test_split_sets_leave_nothing_behind_however_many(sets):
    task = sums()
    found = split((1, 1), (2, 2))
    for _ in range(300):
        assert pull_run(task, found) == [(1, 1), (2, 2)]
    before = measured()
    for _ in range(sets):
        assert pull_run(task, found) == [(1, 1), (2, 2)]
    after = measured()
    assert all(
        now <= then for now, then in zip(after[:3], before[:3], strict=True)
    )  # less: of what ran before this test
    assert after[3] - before[3] < sets / 10, "objects are left behind"


def test_files_are_read_beside_a_task_that_has_no_threads(tmp_path: Path) -> None:
    """Reading them is work under way elsewhere, for which the reader waits."""
    pq.write_table(pa.table({"n": range(1000)}), tmp_path / "one.parquet")
    with PlanTask(Flow("plan").from_split_sets(pa.schema({"n": pa.int64()}), name="in")) as task:
        for _ in range(20):
            found = task.run({"in": tmp_path / "one.parquet"})
            assert sum(batch.num_rows for batch in found) == 1000

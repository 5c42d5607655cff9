"""Plans on the pool that all tasks of a process share: few threads, none left over, none that waits for itself."""

from __future__ import annotations

import threading

import pyarrow as pa

import penstock as ps
from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.scheduler.pool import default_degree

SCHEMA = pa.schema([("k", pa.int64())])
ROWS = pa.table({"k": [1, 2, 3]})


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("penstock")}


def source(name: str = "plan"):
    return Flow(name).from_split_sets(SCHEMA, name="rows")


def read(task: PlanTask) -> list[int]:
    return [k for batch in task.run({"rows": ROWS}) for k in batch.column("k").to_pylist()]


def test_many_plans_with_threads_have_no_more_of_them_than_one() -> None:
    before = workers()
    seen: set[threading.Thread] = set()

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.add(threading.current_thread())
        return batch

    tasks = [PlanTask(source().map_batches(note, SCHEMA), degree=2) for _ in range(20)]
    for task in tasks:
        assert read(task) == [1, 2, 3]
    assert len(workers() - before) <= max(2, default_degree())
    assert threading.main_thread() not in seen
    for task in tasks:
        task.cancel()
    assert workers() <= before


def test_function_that_reads_another_plan_does_not_wait_for_its_own_thread() -> None:
    """As many at once as there are threads: each waits inside of a turn for what only a further thread can do."""
    degree = default_degree()

    def nested(batch: pa.RecordBatch) -> pa.RecordBatch:
        inner = PlanTask(source("inner").filter("k > 1"), degree=1)
        try:
            assert read(inner) == [2, 3]
        finally:
            inner.cancel()
        return batch

    tasks = [PlanTask(source().map_batches(nested, SCHEMA), degree=degree, eager=True) for _ in range(degree)]
    assert [read(task) for task in tasks] == [[1, 2, 3]] * degree
    for task in tasks:
        task.cancel()


def test_bound_of_a_plan_holds_in_a_pool_with_more_threads() -> None:
    inside, most, lock = [0], [0], threading.Lock()

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            inside[0] += 1
            most[0] = max(inside[0], most[0])
        with lock:
            inside[0] -= 1
        return batch

    wide = PlanTask(source("wide"), degree=4, eager=True)  # the pool has four threads as long as it is there
    task = PlanTask(source().map_batches(count, SCHEMA), degree=1, parallelism=4)
    for _ in range(50):
        assert read(task) == [1, 2, 3]
    assert most == [1]
    task.cancel()
    wide.cancel()


def test_job_whose_tasks_have_threads_of_their_own_leaves_none(tmp_path) -> None:
    """Those for reading in the background stayed for half a minute."""
    before = workers()
    flow = ps.Flow("own")
    flow.from_tables([ROWS], name="rows").write_parquet(str(tmp_path / "out"))
    with ps.run_local(flow, threads=0) as job:
        job.wait(60)
    assert workers() <= before

"""Plans of several subtasks and threads in one process: the same rows in the same order as in serial mode."""

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.core.errors import UserCodeError
from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.scheduler.serial import SerialScheduler
from support.plan_simulation import rows_of, run_serially, split_of

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def table(*pairs) -> pa.Table:
    return pa.table([[k for k, _ in pairs], [v for _, v in pairs]], schema=SCHEMA)


def source(flow, name):
    return flow.from_tables([table()], name=name)


def chain():
    return source(Flow("f"), "a").filter(pc.field("v") > 1)


def joined():
    flow = Flow("f")
    return source(flow, "a").merge_join(source(flow, "b"), on=["k"], how="left")


def partitioned():
    by_key = source(Flow("f"), "a").partition_by("k").aggregate(by=["k"], total=("v", "sum"))
    return by_key.gather().sort("k")


def sharded_join():
    flow = Flow("f")
    left, right = (source(flow, name).partition_by("k") for name in ("a", "b"))
    return left.hash_join(right, on=["k"], how="inner").gather()


PAIRS = [(key, key % 7) for key in range(40)]
SETS = [
    {"a": table(*PAIRS), "b": table(*PAIRS[::3])},
    {"a": table((1, 1), (2, 2)), "b": table((2, 5))},
    {"a": table(), "b": table()},
    {"a": table(*PAIRS[5:9]), "b": table(*PAIRS[6:8])},
]
LAST = {"a": table((3, 9)), "b": table((3, 8))}


@pytest.mark.parametrize("degree", [0, 2, 4])
@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize("build", [chain, joined, partitioned, sharded_join])
def test_windows_are_the_same_with_several_subtasks(build, parallelism, degree):
    names = {node.id for node in build().flow.nodes}
    sets = [{name: found for name, found in each.items() if name in names} for each in SETS]
    last = {name: found for name, found in LAST.items() if name in names}
    expected = run_serially(build, sets, last)
    task = PlanTask(build(), parallelism=parallelism, degree=degree)
    windows = [
        [row for batch in task.run({name: split_of(found) for name, found in each.items()}) for row in rows_of(batch)]
        for each in sets
    ]
    for name, found in last.items():
        task.add_split(name, split_of(found))
        task.no_more_splits(name)
    end = []
    while (batch := task.read(30)) is not None:
        end += rows_of(batch)
    assert [*windows, end] == expected


def test_error_is_told_after_a_barrier_that_was_reached_before_it_and_read_behind_it():
    def work(batch):
        if batch.column("v")[0].as_py() < 0:
            raise ValueError("no")
        return batch

    rows = source(Flow("f"), "a")
    task = PlanTask(rows.map_batches(work, rows.schema), degree=2, eager=True)
    task.add_split("a", split_of(table((1, 1))))
    task.request_barrier()
    task.add_split("a", split_of(table((1, -1))))
    assert isinstance(task.request_barrier().exception(30), UserCodeError)
    assert task.read(30).num_rows == 1
    assert task.read(30) is None
    assert task.state == "failed"
    with pytest.raises(UserCodeError):
        task.read(30)


class HastyScheduler(SerialScheduler):
    """Runs what has been started before anything else is, as threads may do."""

    def open_in(self, *where):
        query = super().open_in(*where)
        start = query.start

        def start_and_run() -> None:
            start()
            self.turn()

        query.start = start_and_run
        return query


def test_what_a_task_sends_before_the_last_one_is_started_is_not_lost():
    scheduler = HastyScheduler()
    task = PlanTask(partitioned(), parallelism=2, scheduler=scheduler)
    task.add_split("a", split_of(table((2, 1), (1, 2))))
    drained = task.request_barrier()
    found, _ = task.next()
    assert drained.done()
    assert found.to_pydict() == {"k": [1, 2], "total": [2, 1]}
    task.cancel()
    scheduler.shutdown()


@pytest.mark.parametrize("how", ["right", "full"])
def test_right_rows_that_come_last_do_so_in_every_part_whoever_owns_it(how):
    """They came before the left rows of a window's last round, except in the first part of a subtask."""
    draw = random.Random(0)
    keys = [draw.choice([None, *range(9)]) for _ in range(180)]

    def rows(parallelism: int) -> list[dict[str, object]]:
        flow = Flow("f", lanes=4)
        a = source(flow, "a")
        right = a.filter("v % 3 = 0")
        task = PlanTask(a.hash_join(right, on=["k"], how=how, exchange="key").gather(), parallelism=parallelism)
        for start in range(0, 180, 30):
            task.add_split("a", table(*((keys[place], place) for place in range(start, start + 30))))
        task.request_barrier()
        found = []
        while (batch := task.read(30)) is not None:
            found += rows_of(batch)
        task.cancel()
        return found

    expected = rows(1)
    assert expected
    assert [rows(parallelism) for parallelism in (2, 4)] == [expected, expected]


def full_join(left, right):
    """The rows of both sides by key, with the value of the right one where there is one."""
    return left.hash_join(right, on=["k"], how="full", suffix="_r", exchange="key").project("k", v="coalesce(v_r, v)")


def chain_of_full_joins(a, b):
    return full_join(full_join(a.filter("k < 0"), b), a)


def merge_behind_a_full_join(a, b):
    both = a.sort("k").hash_join(b, on=["k"], how="full", suffix="_r").project("k", v="coalesce(v_r, v)")
    return both.merge_join(b.sort("k"), on=["k"], suffix="_m").project("k", v="v + v_m")


@pytest.mark.parametrize(
    ("build", "expected"),
    [(chain_of_full_joins, [(6, 12), (5, 48)]), (merge_behind_a_full_join, [(6, 24)])],
    ids=["chain of full joins", "merge join behind"],
)
@pytest.mark.parametrize("closed_by", ["barrier", "end"])
def test_right_rows_that_come_last_have_the_place_of_the_left_ones(build, expected, closed_by):
    """At the end they came before left rows that come then, in all parts but a subtask's first. At a barrier they
    missed what a merge join behind them has in the lane of the left rows."""
    for parallelism in (1, 2, 3):
        flow = Flow("f", lanes=3)
        task = PlanTask(build(source(flow, "a"), source(flow, "b")), parallelism=parallelism)
        task.add_split("a", table((5, 48)))
        task.add_split("b", table((6, 12)))
        if closed_by == "barrier":
            task.request_barrier()
        else:
            task.no_more_splits("a")
            task.no_more_splits("b")
        found = []
        while (batch := task.read(30)) is not None:
            found += rows_of(batch)
        task.cancel()
        assert found == expected, parallelism

"""Joins of two scans in windows, and what becomes of a join whose other side fails.

Each docstring begins with the scenario's id.
"""

from __future__ import annotations

import gc
import weakref

import pyarrow as pa
import pytest

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import DataError, UserCodeError
from penstock.engine.core.operator import exhaust
from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.operators import MergeJoin
from support.operator_harness import Collected, context
from support.oracle import query
from support.scenario_tasks import (
    MODES,
    feed,
    finish,
    raising,
    read_to_error,
    rows,
    run,
    scan,
    split,
    table,
    window,
)

LEFT = pa.table(
    {
        "t0": [
            7854252584298216695, 5874550437257860379, 6694700278390749883, 6952978413716179087, 2785313305792069690,
            5306984336093303849, 2249699434807719017, None, None, None, 8814597374860168988,
        ],
        "t1": [1, 2, 3, 4, 5, 6, 7, None, 8, 9, 10],
        "t2": [False, True, False, False, False, True, True, False, True, False, False],
        "t3": [58, 112, 125, 52, 69, 39, 73, 29, 101, None, 51],
    }
)  # fmt: skip
RIGHT = pa.table({"u0": pa.array([None], pa.int64()), "u1": [11], "u2": [False], "u3": [77]})
KEYS = ["t0", "t1", "t2", "t3"]


def full(join: str, **options):
    flow = Flow("plan")
    sides = scan(flow, "left", LEFT), scan(flow, "right", RIGHT)
    options |= {"how": "full", "right_on": ("u0", "u1", "u2", "u3")}
    return getattr(sides[0], join)(sides[1], on=KEYS, **options).project("t0", "t1")


@MODES
def test_full_merge_join_of_unsorted_rows_is_refused(degree, make_task):
    """mj.fullOuterJoinNoFilter.fourKeys: Velox gives the twelve rows, as nothing matches. A merge join of unsorted
    input is wrong as soon as something does, so it is an error here, which names the side."""
    task = make_task(full("merge_join"), degree)
    task.add_split("left", split(LEFT))
    task.add_split("right", split(RIGHT))
    task.request_barrier()
    _, error = read_to_error(task)
    assert isinstance(error, DataError)
    assert "sorted" in error.message


@MODES
@pytest.mark.parametrize("join", ["merge_join", "hash_join"])
def test_full_join_without_any_match_gives_every_row_once(join, degree, make_task):
    """mj.fullOuterJoinNoFilter.fourKeys: twelve rows of sorted input by either join, of the unsorted one by hashing."""
    task = make_task(full(join), degree)
    left = LEFT if join == "hash_join" else LEFT.sort_by([(key, "ascending") for key in KEYS])
    expected = [*zip(LEFT["t0"].to_pylist(), LEFT["t1"].to_pylist(), strict=True), (None, None)]
    for _ in range(2):
        found = rows(window(task, left=split(left), right=split(RIGHT)))
        assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert finish(task) == []


@MODES
def test_failure_of_one_side_ends_the_join_and_frees_everything(degree, make_task, one_row_batches):
    """mj.failureOnRightSide: the right side raises with its first batch, while the join waits for it. The error is the
    task's, and of the task nothing stays."""
    flow = Flow("plan")
    left = pa.table({"c0": range(1234), "c1": range(0, 12340, 10)})
    right = pa.table({"u_c0": range(1234), "u_c1": range(0, 24680, 20)})
    failing = scan(flow, "right", right).map_batches(raising("Expected"), right.schema, name="fails")
    join = scan(flow, "left", left).merge_join(failing, on=["c0"], right_on=["u_c0"])
    task = make_task(join, degree)
    task.add_split("left", split(left))
    task.add_split("right", split(right))
    _, error = read_to_error(task)
    assert isinstance(error, UserCodeError)
    assert error.operator == "fails"
    assert "Expected" in error.message
    assert "right split-" in error.message, "the error names the split"
    assert {each.state for found in task.statistics() for each in found.drivers} == {"released"}
    assert str(task.request_barrier().exception(0)) == str(error)


def test_of_a_task_that_has_failed_nothing_stays_in_memory():
    """mj.failureOnRightSide: nobody but its owner holds a task; the flow that it was made of does not."""
    flow = Flow("plan")
    given = pa.table({"c0": range(10)})
    stream = scan(flow, "rows", given).map_batches(raising("Expected"), given.schema)
    task = PlanTask(stream)
    task.add_split("rows", split(given))
    read_to_error(task)
    left = [weakref.ref(each) for each in (task, *task.tasks, *(d.chain for t in task.tasks for d in t.drivers))]
    del task
    gc.collect()
    assert [each() for each in left] == [None] * len(left)


@MODES
def test_sides_join_within_their_window_only(degree, make_task):
    """mj.failureOnRightSide: the counterpart that does not fail: equal keys on both sides of a barrier do not meet."""
    flow = Flow("plan")
    left, right = (pa.table({"k": pa.array([], pa.int64()), name: pa.array([], pa.int64())}) for name in "vw")
    task = make_task(scan(flow, "left", left).merge_join(scan(flow, "right", right), on=["k"]), degree)
    sets = [
        {"left": split(k=[1, 2], v=[1, 2]), "right": split(k=[2, 3], w=[20, 30])},
        {"left": split(k=[3], v=[3]), "right": split(k=[1, 3], w=[10, 31])},
    ]
    assert [rows(each) for each in run(task, sets, barriers=True)] == [[(2, 2, 20)], [(3, 3, 31)], []]


@pytest.mark.parametrize("first", [0, 1], ids=["left first", "right first"])
def test_rows_that_both_sides_drain_meet_in_the_join_whichever_comes_first(first):
    """What operators before a join (a sort, an aggregate) emit at a barrier comes behind the end of
    the round on both sides. These rows belong to one window, and join in it."""
    sides = [pa.table({"k": [1, 2], name: [10, 20]}).to_batches()[0] for name in "vw"]
    config = MergeJoin(("k",))
    out = Collected(config.output_schema([side.schema for side in sides]))
    running = config.build(context(lanes=1), [side.schema for side in sides], None)
    for port in (0, 1):
        exhaust(running.end_round(port, 0, out))
    for port in (first, 1 - first):
        exhaust(running.process(port, Batch(sides[port], Tag(0, 0, 0)), out))
    exhaust(running.drain(out))
    assert rows([batch.records for batch in out.batches]) == [(1, 10, 10), (2, 20, 20)]


HOWS = {
    "inner": "select k, v, w from a join b using (k)",
    "left": "select k, v, w from a left join b using (k)",
    "right": "select k, v, w from a right join b using (k)",
    "full": "select k, v, w from a full join b using (k)",
    "left semi": "select * from a where k in (select k from b)",
    "right semi": "select * from b where k in (select k from a)",
    "anti": "select * from a where not exists (select 1 from b where a.k = b.k)",
}
WINDOWS = [
    {"a": table(k=[5, 1, None, 3, 1], v=range(5)), "b": table(k=[3, 4, 1, None], w=range(4))},
    {"a": table(k=[], v=[]), "b": table(k=[7], w=[7])},
    {"a": table(k=[9, 8, 7, 5], v=range(4)), "b": table(k=[5, 5, 9, 9, 2], w=range(5))},
    {"a": table(k=[2], v=[6]), "b": table(k=[], w=[])},
]


def of_both(build, how: str):
    flow = Flow("plan")
    return build(scan(flow, "a", WINDOWS[0]["a"]), scan(flow, "b", WINDOWS[0]["b"]), how)


def sorted_sides(a, b, how):
    return a.sort("k").merge_join(b.sort("k"), on=["k"], how=how)


def sides_in_parts(a, b, how):
    """Each subtask sorts and joins its parts of both sides; functions of the window are dropped again."""
    names = ("k", "v"), ("k", "w")
    one, two = (
        side.window(["k"], [last], exchange="key", n="row_number").project("k", last)
        for side, (_, last) in zip((a, b), names, strict=True)
    )
    return one.merge_join(two, on=["k"], how=how)


@MODES
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("build", [sorted_sides, sides_in_parts])
def test_windows_that_are_sorted_on_both_sides_are_joined_whole(build, how, parallelism, degree, make_task):
    """What a sort emits at a barrier comes behind the end of the round on both sides, and at the end in a round of its
    own. Every window joins, and none with another one."""
    task = make_task(of_both(build, how), degree, parallelism=parallelism)
    found = [rows(window(task, **{name: split(rows) for name, rows in each.items()})) for each in WINDOWS[:-1]]
    feed(task, {name: split(rows) for name, rows in WINDOWS[-1].items()})
    found.append(rows(finish(task)))
    for each, given in zip(found, WINDOWS, strict=True):
        assert sorted(each, key=repr) == sorted(query(HOWS[how], **given), key=repr)

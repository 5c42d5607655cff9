"""What may fail on a side of a join is read to its end even where the join needs no more of it: errors are seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.planner.pipelines import plan_job

ROWS = pa.table({"k": range(2_000), "v": range(2_000)})
NONE = pa.table({"k": pa.array([], pa.int64()), "w": pa.array([], pa.int64())})

Side = Callable[[ps.Stream], ps.Stream]
Joined = Callable[[ps.Stream, ps.Stream], ps.Stream]

FAILING: dict[str, Side] = {
    "directly behind the source": lambda rows: rows.filter("10 // (v - 1999) < 5"),
    "behind an exchange": lambda rows: rows.rebalance().filter("10 // (v - 1999) < 5").gather(),
    "a column": lambda rows: rows.with_columns(q="10 // (v - 1999)"),
    "a sum": lambda rows: rows.with_columns(v="v + 9223372036854773808").aggregate(["k"], v=("v", "sum"))
    .aggregate([], v=("v", "sum"), k=("k", "min")),
    "in another join": lambda rows: rows.hash_join(
        rows.flow.from_tables(ROWS.rename_columns(["k", "u"])), ["k"], filter="10 // (v - 1999) < u"
    ),
}  # fmt: skip
JOINS: dict[str, Joined] = {
    "hash": lambda rows, none: rows.hash_join(none, ["k"]),
    "hash, exchanged": lambda rows, none: none.hash_join(rows, ["k"]),
    "left semi": lambda rows, none: rows.hash_join(none, ["k"], how="left semi"),
    "left": lambda rows, none: none.hash_join(rows, ["k"], how="left"),
    "a join behind": lambda rows, none: rows.hash_join(
        rows.flow.from_tables(pa.table({"k": range(9)})), ["k"]
    ).hash_join(none, ["k"]),
}  # fmt: skip


def flow_of(side: Side, joined: Joined) -> ps.Flow:
    flow = ps.Flow("whole", lanes=2)
    rows = flow.from_tables([ROWS.slice(at, 50) for at in range(0, 2_000, 50)], name="many")
    joined(side(rows).gather(), flow.from_tables(NONE, name="no").gather()).collect("rows")
    return flow


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("where", FAILING)
def test_error_of_a_side_of_which_a_join_needs_nothing_is_seen(where: str, join: str, parallelism: int) -> None:
    with pytest.raises(ps.errors.PenstockError, match=r"divide by zero|fit"):
        ps.run_local(flow_of(FAILING[where], JOINS[join]), parallelism=parallelism).result("rows")


@pytest.mark.parametrize("how", ["inner", "left semi"])
def test_error_of_a_side_of_which_a_merge_join_needs_nothing_is_seen(how: Literal["inner", "left semi"]) -> None:
    flow = ps.Flow("whole", lanes=1)
    rows = flow.from_tables([ROWS.slice(at, 500) for at in range(0, 2_000, 500)], name="many")
    none = flow.from_tables([NONE] * 4, name="no")
    rows.filter("10 // (v - 1999) < 5").merge_join(none, ["k"], how=how).collect("rows")
    with pytest.raises(ps.errors.PenstockError, match="divide by zero"):
        ps.run_local(flow).result("rows")


def test_side_in_which_nothing_can_fail_is_read_no_further() -> None:
    operators = [
        each
        for stage in plan_job(flow_of(lambda rows: rows.filter("v > 3"), JOINS["hash"])).stages.values()
        for pipeline in stage.pipelines
        for each in pipeline.operators
    ]
    assert [each.reads_whole for each in operators if each.id == "hash-join-1"] == [()]

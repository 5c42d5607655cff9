"""Streams that group, order and cut: whole flows in this process, the same at any parallelism, against DuckDB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import FlowError
from support.operator_harness import rows_of
from support.oracle import numbered, query

SPLITS = [
    pa.table(
        {
            "k": pa.array([(start * 7 + row * row) % 5 if row % 11 else None for row in range(40)], pa.int64()),
            "v": pa.array([(start + row * 13) % 23 if row % 7 else None for row in range(40)], pa.int64()),
            "p": pa.array(range(start * 40, start * 40 + 40), pa.int64()),
        }
    )
    for start in range(9)
]
LANES = 4
IN_ORDER = pa.concat_tables(SPLITS)
"""Tables that are split sets of one round each come in the order of the splits."""


def result(build: Callable[[ps.Stream], ps.Stream], parallelism: int) -> pa.Table:
    flow = ps.Flow("relations", lanes=LANES)
    stream = build(flow.from_tables(SPLITS, name="rows"))
    (stream if stream.is_gathered else stream.gather()).collect("out")
    return ps.run_local(flow, parallelism=parallelism).result("out")


def results(build: Callable[[ps.Stream], ps.Stream]) -> pa.Table:
    """The result, which must be the same sequence at any parallelism."""
    found = [result(build, parallelism) for parallelism in (1, 2, 3)]
    assert found[1].equals(found[0])
    assert found[2].equals(found[0])
    return found[0]


def as_read(splits: list[pa.Table] = SPLITS) -> pa.Table:
    """The rows in the order in which the flow has them."""
    return result(lambda rows: rows, 1)


def test_an_aggregate_is_computed_per_lane_and_then_in_all() -> None:
    def build(rows: ps.Stream) -> ps.Stream:
        return rows.aggregate(["k"], n="count", s=("v", "sum"), d=("v", "count_distinct"), m=("v", "mean"))

    sql = "select k, count(*), sum(v)::bigint, count(distinct v), avg(v) from t group by k order by k"
    assert sorted(rows_of(results(build)), key=str) == sorted(query(sql, t=IN_ORDER), key=str)


def test_an_aggregate_that_depends_on_the_order_sees_all_rows_in_theirs() -> None:
    def build(rows: ps.Stream) -> ps.Stream:
        best = ps.Aggregate("", "p", "collect_list", order_by=(ps.SortKey("v", descending=True), "p"))
        return rows.aggregate(["k"], first=("p", "first"), last=("p", "last"), best=best)

    sql = """select k, first(p order by q), last(p order by q), list(p order by v desc nulls last, p)
             from (select *, row_number() over () as q from t) group by k order by min(q)"""
    assert rows_of(results(build)) == query(sql, t=as_read())


def test_an_aggregate_of_all_rows_is_one_row_even_of_none() -> None:
    assert rows_of(results(lambda rows: rows.aggregate(n="count"))) == [(360,)]
    none = results(lambda rows: rows.filter(ps.field("p") < 0).aggregate(n="count", s=("v", "sum")))
    assert rows_of(none) == [(0, None)]


def test_masks_and_null_keys_reach_the_operator() -> None:
    def build(rows: ps.Stream) -> ps.Stream:
        late = ps.Aggregate("", "v", "count", where="late")
        return rows.with_columns(late=ps.field("v") > 11).aggregate(["k"], ignore_null_keys=True, late=late)

    sql = "select k, count(v) filter (where v > 11) from t where k is not null group by k"
    assert sorted(rows_of(results(build))) == sorted(query(sql, t=IN_ORDER))


def test_sort_top_n_and_limit_are_of_all_rows() -> None:
    in_order = "select * from t order by v desc nulls last, p"
    key = ps.SortKey("v", descending=True)
    assert rows_of(results(lambda rows: rows.sort(key, "p"))) == query(in_order, t=IN_ORDER)
    assert rows_of(results(lambda rows: rows.top_n(7, key, "p"))) == query(f"{in_order} limit 7", t=IN_ORDER)
    cut = results(lambda rows: rows.sort(key, "p").limit(5, offset=3))
    assert rows_of(cut) == query(f"{in_order} limit 5 offset 3", t=IN_ORDER)
    assert rows_of(results(lambda rows: rows.limit(50, offset=30))) == rows_of(as_read())[30:80]


def test_distinct_keeps_the_first_row_of_all() -> None:
    seen: dict[Any, tuple[Any, ...]] = {}
    for row in rows_of(as_read()):
        seen.setdefault(row[0], row)
    assert rows_of(results(lambda rows: rows.distinct("k"))) == list(seen.values())
    assert results(lambda rows: rows.project("k").distinct()).column("k").to_pylist() == list(seen)


def test_window_sorts_first_unless_the_rows_are_sorted() -> None:
    def build(rows: ps.Stream) -> ps.Stream:
        after = ps.WindowFunction("", "lead", "p", offset=2)
        return rows.window(["k"], ["v", "p"], place="row_number", so_far=("v", "sum"), after=after)

    sql = """select *, row_number() over w, sum(v) over (w rows unbounded preceding)::bigint, lead(p, 2) over w from t
             window w as (partition by k order by v nulls last, p) order by k nulls last, v nulls last, p"""
    assert rows_of(results(build)) == query(sql, t=IN_ORDER)
    counted = results(lambda rows: rows.window([], ["p"], is_sorted=True, n=("p", "count")))
    assert counted.num_rows == 360
    assert counted.schema.names == ["k", "v", "p", "n"]


def test_union_interleaves_streams_by_round_and_lane() -> None:
    def build(rows: ps.Stream) -> ps.Stream:
        small = rows.filter(ps.field("p") < 40)
        return rows.union(small, rows.filter(ps.field("p") >= 320)).gather()

    found = results(build).column("p").to_pylist()
    assert sorted(found) == sorted([*range(360), *range(40), *range(320, 360)])


def test_the_plan_does_not_gather_twice() -> None:
    flow = ps.Flow("once", lanes=LANES)
    rows = flow.from_tables(SPLITS, name="rows")
    rows.sort("p").window(["k"], is_sorted=True, n="row_number").aggregate(["k"], n="count").limit(2).collect("out")
    kinds = [node.config.kind for node in flow.nodes]
    assert kinds.count("gather") == 1
    assert [node.config.kind for node in flow.nodes][1:] == [
        "gather", "sort", "window", "hash aggregate", "limit", "collect sink"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda rows: rows.aggregate(["z"], n="count"), "has no column 'z'"),
        (lambda rows: rows.aggregate(["k"], n=("k", "mode")), "unknown function 'mode'"),
        (lambda rows: rows.sort("z"), "has no column 'z'"),
        (lambda rows: rows.top_n(0, "k"), "cannot keep 0 rows"),
        (lambda rows: rows.limit(-1), "count -1 is impossible"),
        (lambda rows: rows.window(["k"], x=("z", "sum")), "has no column 'z'"),
        (lambda rows: rows.distinct("z"), "has no column 'z'"),
        (lambda rows: rows.union(rows.project("k")), "stream 2 has columns"),
    ],
)
def test_a_wrong_stream_is_refused_where_it_is_built(build: Callable[[ps.Stream], Any], message: str) -> None:
    flow = ps.Flow("wrong", lanes=LANES)
    with pytest.raises(FlowError, match=message):
        build(flow.from_tables([numbered(pa.table({"k": [1]}))], name="rows"))

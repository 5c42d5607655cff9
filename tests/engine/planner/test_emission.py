"""In which rounds the rows of a stream come; which merge joins are let in, and that these lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import FlowError
from penstock.engine.core.traits import Emission, Traits
from penstock.engine.exchange.channels import OutputChannel
from penstock.engine.flow import index
from penstock.engine.kernels.pieces import Bound
from penstock.engine.kernels.sorting import as_sort_keys
from penstock.engine.operators import MergeJoin, Sort
from penstock.engine.operators.sequence import sort
from penstock.engine.plan import rounds
from penstock.engine.planner.emission import emission_properties
from penstock.engine.planner.pipelines import plan_job
from support.oracle import query
from support.plan_simulation import Simulation, run_serially
from support.scenario_tasks import In
from support.sweeps import swept

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
HOLD: Any = {"at_barrier": "hold"}
LISTS = pa.schema([("l", pa.list_(pa.int64()))])
HOWS = {
    "inner": "select k, v, w from a join b using (k)",
    "left": "select k, v, w from a left join b using (k)",
    "right": "select k, v, w from a right join b using (k)",
    "full": "select k, v, w from a full join b using (k)",
    "left semi": "select * from a where k in (select k from b)",
    "right semi": "select * from b where k in (select k from a)",
    "anti": "select * from a where not exists (select 1 from b where a.k = b.k)",
}
Build = Callable[[ps.Stream, ps.Stream], ps.Stream]


def table(*pairs: tuple[int | None, int]) -> pa.Table:
    return pa.table([[k for k, _ in pairs], [v for _, v in pairs]], schema=SCHEMA)


def flow_of(left: int = 2, right: int = 2, **options: Any) -> tuple[ps.Flow, ps.Stream, ps.Stream]:
    flow = ps.Flow("rounds", **options)
    rows = table((1, 1), (2, 2))
    return flow, flow.from_tables([rows] * left, name="a"), flow.from_tables([rows] * right, name="b")


def when(stream: ps.Stream, *, ordered: bool = True) -> str:
    return emission_properties(stream.flow.nodes, ordered=ordered)[stream.id].when


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda a, b: a, "by round"),
        (lambda a, b: a.filter("v > 1").with_columns(w="v + 1").map_batches(lambda rows: rows, a.schema), "by round"),
        (lambda a, b: a.map_batches(lambda rows: rows, LISTS).unnest("l").gather().limit(3), "by round"),
        (lambda a, b: a.lookup_join(index.memory(table((1, 1)), key="k"), on="k"), "by round"),
        (lambda a, b: a.gather().distinct("k").mark_distinct("v", marker="m"), "by round"),
        (lambda a, b: a.partition_by("k").union(b.partition_by("k")), "by round"),
        (lambda a, b: a.merge_join(b, on=["k"], how="full"), "by round"),
        (lambda a, b: a.sort("k"), "at barriers"),
        (lambda a, b: a.sort("k").filter("v > 1").distinct("k").union(b.sort("k")), "at barriers"),
        (lambda a, b: a.top_n(3, "k"), "at barriers"),
        (lambda a, b: a.aggregate(["k"], n="count"), "at barriers"),
        (lambda a, b: a.aggregate(["k"], n="count", exchange="key"), "at barriers"),
        (lambda a, b: a.window(["k"], ["v"], n="row_number"), "at barriers"),
        (lambda a, b: a.sort("k").stream_aggregate(["k"], n="count"), "at barriers"),
        (lambda a, b: a.sort("k").hash_join(b, ["k"]), "at barriers"),
        (lambda a, b: a.sort("k").merge_join(b.sort("k"), on=["k"]), "at barriers"),
        (lambda a, b: a.stream_aggregate(["k"], n="count").sort("k"), "at barriers"),
        (lambda a, b: a.sort("k", **HOLD), "at the end"),
        (lambda a, b: a.sort("k", **HOLD).distinct("k", **HOLD).top_n(3, "k"), "at the end"),
        (lambda a, b: a.aggregate(["k"], n="count", **HOLD), "at the end"),
        (lambda a, b: a.sort("k", **HOLD).hash_join(b.top_n(9, "k", **HOLD), ["k"]), "at the end"),
        (lambda a, b: a.stream_aggregate(["k"], n="count"), "mixed"),
        (lambda a, b: a.stream_aggregate(["k"], n="count").filter("n > 1").gather().distinct("k"), "mixed"),
        (lambda a, b: a.window(["k"], ["v"], is_sorted=True, n="row_number"), "mixed"),
        (lambda a, b: a.sort("k").shuffle(3), "at barriers"),
        (lambda a, b: a.shuffle(3), "mixed"),
        (lambda a, b: a.map_batches(lambda rows: rows, LISTS).pack(3, tokens="l"), "mixed"),
        (lambda a, b: a.flow.mix({a.sort("k"): 1, b.sort("k"): 1}), "mixed"),
        (lambda a, b: a.hash_join(b, ["k"]), "mixed"),
        (lambda a, b: a.hash_join(b.sort("k"), ["k"]), "mixed"),
        (lambda a, b: a.rebalance().hash_join(b.broadcast(), ["k"]), "mixed"),
        (lambda a, b: a.sort("k").union(b.gather()), "mixed"),
        (lambda a, b: a.sort("k").distinct("k", **HOLD), "mixed"),
        (lambda a, b: a.sort("k").stream_aggregate(["k"], n="count", **HOLD), "mixed"),
        (lambda a, b: a.sort("k").hash_join(b, ["k"], **HOLD), "mixed"),
    ],
)  # fmt: skip
def test_rows_come_by_round_at_barriers_at_the_end_or_mixed(build: Build, expected: str) -> None:
    _, a, b = flow_of()
    assert when(build(a, b)) == expected


def test_exchanges_mix_rounds_where_the_order_is_that_of_arrival() -> None:
    _, a, _ = flow_of()
    assert [when(each, ordered=False) for each in (a, a.gather(), a.partition_by("k"))] == [
        "by round",
        "mixed",
        "mixed",
    ]
    assert when(a.sort("k"), ordered=False) == "at barriers"


def test_operator_of_ones_own_is_trusted_if_its_config_says_so() -> None:
    class Known(In):
        traits = Traits(emission=Emission.PER_ROUND)

    _, a, _ = flow_of()
    config = Sort(as_sort_keys(["k"])), {}
    assert when(a.flow.apply(In(*config), [a])) == "mixed"
    assert when(a.flow.apply(Known(*config), [a])) == "by round"


@pytest.mark.parametrize(
    ("build", "words", "remedy"),
    [
        (
            lambda a, b: a.stream_aggregate(["k"], v=("v", "sum")).merge_join(b, on=["k"]),
            "rows of its left input do not stay in their rounds: stream-aggregate-1 gives a group",
            "sort both inputs, use hash_join, or do this after the join",
        ),
        (
            lambda a, b: a.gather().merge_join(b.hash_join(a, ["k"], suffix="_a"), on=["k"]),
            "its right input do not stay in their rounds: hash-join-1 gives rows that have waited",
            "sort both inputs",
        ),
        (
            lambda a, b: a.sort("k").merge_join(b.gather(), on=["k"]),
            r"left input come together.* right input come round by round \(sort-1 .* never meet",
            "sort both inputs, or use hash_join",
        ),
        (
            lambda a, b: a.sort("k").merge_join(b.sort("k", **HOLD), on=["k"]),
            r"\(sort-1 .*; sort-2 .* never meet",
            "the same at_barrier",
        ),
        (
            lambda a, b: a.flow.apply(MergeJoin(("k",)), [a.sort("k"), b.sort("k")], **HOLD),
            "it holds at barriers, but rows join within their window only",
            "leave out at_barrier",
        ),
        (
            lambda a, b: a.merge_join(b.flow.apply(In(Sort(as_sort_keys(["k"])), {}), [b], name="mine"), on=["k"]),
            "right input .* it is not known in which rounds mine gives them",
            "Emission.PER_ROUND",
        ),
        (
            lambda a, b: a.partition_by("v").merge_join(b.partition_by("k"), on=["k"]),
            "not partitioned alike by its keys",
            "partition_by",
        ),
        (
            lambda a, b: a.rebalance().merge_join(b.rebalance(), on=["k"]),
            "not partitioned alike by its keys",
            "partition_by",
        ),
    ],
)
def test_merge_join_of_inputs_that_could_miss_each_other_is_refused(build: Build, words: str, remedy: str) -> None:
    flow, a, b = flow_of()
    build(a, b).collect("out")
    with pytest.raises(FlowError, match=words) as caught:
        plan_job(flow, 1)
    assert caught.value.operator == "merge-join-1"
    assert remedy in caught.value.remedy


def test_merge_join_behind_exchanges_is_refused_where_the_order_is_that_of_arrival() -> None:
    flow, a, b = flow_of()
    a.gather().merge_join(b.gather(), on=["k"]).collect("out")
    plan_job(flow, 1)
    with pytest.raises(FlowError, match="gather-1 brings them in the order of their arrival"):
        plan_job(flow, 1, order="arrival")


def test_sides_that_come_at_the_end_need_no_equal_numbers_of_splits_if_they_are_in_one_place() -> None:
    flow, a, b = flow_of(left=3, right=5)
    a.sort("k").merge_join(b.sort("k"), on=["k"]).collect("out")
    plan_job(flow, 2)
    flow, a, b = flow_of(left=3, right=5)
    keys = as_sort_keys(["k"])
    a, b = (flow.apply(Sort(keys), [side]) for side in (a, b))
    a.merge_join(b, on=["k"]).collect("out")
    with pytest.raises(FlowError, match="a has 3, b has 5 splits"):
        plan_job(flow, 2)


# ---------------------------------------------------------------------- what is let in loses nothing

A = [table((5, 1), (1, 2), (None, 3)), table(), table((3, 4), (1, 5), (9, 6)), table((7, 7))]
B = [table((3, 1)), table((4, 2), (1, 3), (None, 4)), table((9, 5), (9, 6), (5, 7)), table(), table((8, 8), (7, 9))]
ALL_A, ALL_B = pa.concat_tables(A), pa.concat_tables(B).rename_columns(["k", "w"])


def sorted_sides(a: ps.Stream, b: ps.Stream, how: str) -> ps.Stream:
    return a.sort("k").merge_join(b.sort("k"), on=["k"], how=how)


def grouped_sides(a: ps.Stream, b: ps.Stream, how: str) -> ps.Stream:
    """Groups of one row each, some of them behind a sort and one before."""
    one = a.aggregate(["k", "v"], n="count").sort("k", "v").project("k", "v")
    return one.merge_join(b.sort("k", "w").stream_aggregate(["k", "w"]), on=["k"], how=how)


def parts(a: ps.Stream, b: ps.Stream, how: str) -> ps.Stream:
    one, two = (
        side.window(["k"], [last], exchange="key", n="row_number").project("k", last)
        for side, last in ((a, "v"), (b, "w"))
    )
    return one.merge_join(two, on=["k"], how=how)


BUILDS = (sorted_sides, grouped_sides, parts)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("lanes", [1, 3])
def test_jobs_join_what_comes_at_the_end_of_both_sides(build: Callable[..., ps.Stream], how: str, lanes: int) -> None:
    def found(parallelism: int) -> list[tuple[Any, ...]]:
        flow = ps.Flow("rounds", lanes=lanes, parts=4)
        a = flow.from_tables(A, name="a")
        b = flow.from_tables(B, name="b").project("k", w="v")
        build(a, b, how).collect("out")
        rows = ps.run_local(flow, parallelism=parallelism).result("out")
        return [tuple(row.values()) for row in rows.to_pylist()]

    rows = found(1)
    assert sorted(rows, key=repr) == sorted(query(HOWS[how], a=ALL_A, b=ALL_B), key=repr)
    assert found(lanes) == rows


WINDOWS = [
    {"a": table((5, 1), (1, 2), (None, 3), (3, 4), (1, 5)), "b": table((3, 1), (4, 2), (1, 3), (None, 4))},
    {"a": table(), "b": table((7, 7))},
    {"a": table((9, 8), (8, 8), (7, 8), (5, 8)), "b": table((5, 1), (5, 2), (9, 3), (9, 4), (2, 5))},
]
LAST = {"a": table((2, 6), (7, 9)), "b": table((7, 1))}


@pytest.fixture
def in_tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of two rows, also from sorts, and credit for one of them; joins that hold and step by one row."""
    monkeypatch.setattr(OutputChannel.__init__, "__defaults__", (1,))
    monkeypatch.setattr(rounds, "CHUNK_ROWS", 2)
    monkeypatch.setattr(sort, "Bound", lambda rows, bytes: Bound(2, bytes))
    monkeypatch.setattr("penstock.engine.operators.join.merge_join.HELD_ROWS", 1)
    monkeypatch.setattr("penstock.engine.operators.join.merge_sides.STEP_ROWS", 1)


@pytest.mark.parametrize("seeds", [range(2), swept(range(2, 40))], ids=["few", "many"])
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.usefixtures("in_tiny_steps")
def test_windows_of_sorted_sides_are_joined_alike_in_every_interleaving(
    build: Callable[..., ps.Stream], how: str, seeds: range
) -> None:

    def built() -> ps.Stream:
        flow = ps.Flow("rounds", parts=4)
        a, b = (flow.from_tables([table()], name=name) for name in "ab")
        return build(a, b.project("k", w="v"), how)

    expected = run_serially(built, WINDOWS, LAST)
    for found, window in zip(expected, [*WINDOWS, LAST], strict=True):
        wanted = query(HOWS[how], a=window["a"], b=window["b"].rename_columns(["k", "w"]))
        assert sorted(found, key=repr) == sorted(wanted, key=repr)
    for seed in seeds:
        assert Simulation(built, WINDOWS, LAST, seed).run() == expected, f"seed {seed}"

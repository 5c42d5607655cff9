"""Exchanges in flows and plans: what runs without one, what the stages behind them are, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.engine.core.errors import FlowError
from penstock.engine.flow.flow import Flow, Stream
from penstock.engine.plan.partitioning import PART, HashPartitioning
from penstock.engine.planner.memory_bound import memory_bound
from penstock.engine.planner.pipelines import plan_job

ROWS = pa.table({"k": pa.array([1, 2], pa.int64()), "g": ["a", "b"], "v": [1.0, 2.0], "tags": [["x"], []]})
Build = Callable[[Stream, Stream], Stream]


def streams(parts: int = 16, lanes: int = 4) -> tuple[Stream, Stream]:
    flow = Flow("exchanges", parts=parts, lanes=lanes)
    return flow.from_tables([ROWS], name="a"), flow.from_tables([ROWS], name="b")


def kinds(build: Build) -> list[str]:
    """The kinds of the nodes behind the sources."""
    stream = build(*streams())
    return [node.config.kind for node in stream.flow.nodes][2:]


def plan(build: Build, parallelism: int = 3, **options):
    stream = build(*streams(**options))
    stream.collect("out")
    return plan_job(stream.flow, parallelism)


# --- forward edges ------------------------------------------------------------------------------------------------


def test_stage_behind_a_forward_edge_is_like_the_one_before_it() -> None:
    found = plan(lambda a, b: a.forward().partition_by("k").forward(), lanes=4, parts=16)
    assert [(each.name, each.parallelism, each.lanes) for each in found.stages.values()] == [
        ("a", 3, 4), ("forward-1", 3, 4), ("partition-by-1", 3, 16), ("forward-2", 3, 16)
    ]  # fmt: skip
    assert [each.pattern for each in found.exchanges] == ["pointwise", "all_to_all", "pointwise"]
    assert [each.channels for each in memory_bound(found).edges] == [3, 9, 3]


def test_forward_edge_changes_no_row_and_no_place() -> None:
    stream, _ = streams()
    assert stream.partition_by("k").forward().partitioned_by == ("k",)
    assert stream.gather().forward().is_gathered
    assert kinds(lambda a, b: a.partition_by("k").forward().aggregate(["k"], n="count")) == [
        "partition by", "forward", "hash aggregate", "regroup"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda a, b: a.broadcast().forward(), "forward: its input is broadcast"),
        (lambda a, b: a.rebalance().forward().union(b.rebalance()), "which stay in their subtasks, meet those of"),
        (lambda a, b: a.forward().union(b), "source b meets the output of forward-1"),
        (
            lambda a, b: a.rebalance().forward().union(b.forward()),
            "stages of 3 subtasks of 4 lanes and 3 sub",
        ),
    ],
)
def test_rows_that_cannot_meet_behind_a_forward_edge_are_refused(build: Build, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        plan(build)


# --- where rows are ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "keys"),
    [
        (lambda a, b: a, ()),
        (lambda a, b: a.partition_by("k"), ("k",)),
        (lambda a, b: a.partition_by(["k", "g"]), ("k", "g")),
        (lambda a, b: a.partition_by_range("v", [1.5]), ("v",)),
        (lambda a, b: a.rebalance(), ()),
        (lambda a, b: a.partition_by("k").gather(), ()),
        (lambda a, b: a.partition_by("k").partition_by("g"), ("g",)),
        (lambda a, b: a.partition_by("k").filter("v > 1").with_columns(w="v * 2"), ("k",)),
        (lambda a, b: a.partition_by("k").with_columns(k="k + 1"), ()),
        (lambda a, b: a.partition_by("k").project("g", key="k"), ("key",)),
        (lambda a, b: a.partition_by("k", "g").project("k"), ()),
        (lambda a, b: a.partition_by("k").unnest("tags"), ("k",)),
        (lambda a, b: a.partition_by("k").map_batches(lambda records: records, ROWS.schema), ()),
        (lambda a, b: a.partition_by("k").aggregate(["g", "k"], n="count"), ("k",)),
        (lambda a, b: a.partition_by("k").stream_aggregate(["g"], n="count"), ()),
        (lambda a, b: a.partition_by("k").union(b.partition_by("k")), ("k",)),
        (lambda a, b: a.partition_by("k").union(b.partition_by("g")), ()),
        (lambda a, b: a.partition_by("k").hash_join(b.partition_by("k"), ["k"], how="full"), ("k",)),
        (lambda a, b: a.rebalance().hash_join(b.broadcast(), ["k"]), ()),
        (lambda a, b: a.partition_by("g").hash_join(b.broadcast(), ["k"]), ("g",)),
    ],
)
def test_a_stream_knows_by_which_of_its_columns_it_is_partitioned(build: Build, keys: tuple[str, ...]) -> None:
    assert build(*streams()).partitioned_by == keys


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda a, b: a.aggregate(["k"], n="count"), ["hash aggregate", "gather", "hash aggregate"]),
        (
            lambda a, b: a.aggregate(["k"], exchange="key", n="count"),
            ["hash aggregate", "partition by", "hash aggregate", "regroup"],
        ),
        (
            lambda a, b: a.partition_by("k").aggregate(["g", "k"], n="count"),
            ["partition by", "hash aggregate", "regroup"],
        ),
        (
            lambda a, b: a.partition_by("k", "g").aggregate(["k"], n="count"),
            ["partition by", "hash aggregate", "gather", "hash aggregate"],
        ),
        (
            lambda a, b: a.aggregate(["k"], exchange="key", first=("v", "first")),
            ["partition by", "hash aggregate", "regroup"],
        ),
        (lambda a, b: a.gather().aggregate(["k"], exchange="key", n="count"), ["gather", "hash aggregate"]),
        (lambda a, b: a.distinct("k", exchange="key"), ["distinct", "partition by", "distinct"]),
        (lambda a, b: a.partition_by("k").distinct("k", "g"), ["partition by", "distinct"]),
        (lambda a, b: a.partition_by("k").mark_distinct("k", marker="new"), ["partition by", "mark distinct"]),
        (lambda a, b: a.mark_distinct("k", marker="new"), ["gather", "mark distinct"]),
        (
            lambda a, b: a.window(["k"], ["v"], exchange="key", n="row_number"),
            ["partition by", "sort", "regroup", "window"],
        ),
        (lambda a, b: a.partition_by("k").sort("k"), ["partition by", "gather", "sort"]),
        (lambda a, b: a.partition_by("k").limit(1), ["partition by", "gather", "limit"]),
        (
            lambda a, b: a.partition_by("k").hash_join(b.partition_by("k"), ["k", "g"]),
            ["partition by", "partition by", "hash join", "regroup"],
        ),
        (
            lambda a, b: a.hash_join(b, ["k"], exchange="key"),
            ["partition by", "partition by", "hash join", "regroup"],
        ),
        (
            lambda a, b: a.partition_by("k").hash_join(b, ["k"], exchange="key", how="right semi"),
            ["partition by", "partition by", "hash join", "regroup"],
        ),
        (
            lambda a, b: a.partition_by("k").hash_join(b.partition_by("g"), ["k"]),
            ["partition by", "partition by", "gather", "gather", "hash join"],
        ),
        (
            lambda a, b: a.partition_by("k").hash_join(b.partition_by("k"), ["k"], how="full", right_on=("k",)),
            ["partition by", "partition by", "gather", "gather", "hash join"],
        ),
        (
            lambda a, b: a.rebalance().hash_join(b.broadcast(), ["k"]),
            ["rebalance", "broadcast", "mark part", "hash join", "regroup"],
        ),
    ],
)
def test_a_stream_is_exchanged_only_where_it_must_be(build: Build, expected: list[str]) -> None:
    assert kinds(build) == expected


def test_keys_of_a_join_are_compared_pair_by_pair() -> None:
    def keyed(first: str, second: str) -> list[str]:
        def build(a: Stream, b: Stream) -> Stream:
            other = b.project(x="k", y="k", z="v")
            return a.project("k", "v", w="k").partition_by("k", "w").hash_join(
                other.partition_by(first, second), ["k", "w"], right_on=("x", "y")
            )  # fmt: skip

        return kinds(build)

    assert "gather" not in keyed("x", "y")
    assert "gather" in keyed("y", "x"), "k = x and w = y, but the parts are those of (k, w) and (y, x)"


# --- plans -------------------------------------------------------------------------------------------------------


def test_a_stage_behind_a_partitioned_exchange_has_its_parts_as_lanes() -> None:
    found = plan(lambda a, b: a.partition_by("k").filter("v > 1"))
    stage = found.stages["partition-by-1"]
    assert (stage.parallelism, stage.lanes) == (3, 16)
    assert [stage.lanes_of(subtask) for subtask in range(3)] == [range(5), range(5, 10), range(10, 16)]
    assert (found.stages["a"].parallelism, found.stages["a"].lanes) == (3, 4)
    [pipeline] = stage.pipelines
    assert [operator.id for operator in pipeline.operators] == ["partition-by-1", "filter-1", "out"]
    assert pipeline.ports[0].schema.names == [*ROWS.schema.names, PART]
    [exchange] = found.exchanges
    assert (exchange.pattern, exchange.config) == ("all_to_all", HashPartitioning(("k",), 16))
    assert exchange.is_partitioned


def test_a_stage_has_no_more_subtasks_than_parts_and_a_gather_has_one() -> None:
    found = plan(lambda a, b: a.partition_by_range("v", [1.5]).gather().filter("v > 1"), 4)
    assert found.parallelism == {"a": 4, "partition-by-range-1": 2, "gather-1": 1}
    assert found.stages["gather-1"].lanes == 2
    assert not found.exchanges[1].is_partitioned


def test_two_exchanges_of_as_many_parts_feed_one_stage() -> None:
    found = plan(lambda a, b: a.partition_by("k").union(b.rebalance()))
    assert {each.target for each in found.exchanges} == {"partition-by-1"}
    assert [stage.lanes for stage in found.stages.values()] == [4, 4, 16]


def test_the_fingerprint_depends_on_keys_parts_and_order_but_not_on_parallelism() -> None:
    one = plan(lambda a, b: a.partition_by("k"))
    assert one.fingerprint == plan(lambda a, b: a.partition_by("k"), 1).fingerprint
    assert one.fingerprint != plan(lambda a, b: a.partition_by("g")).fingerprint
    assert one.fingerprint != plan(lambda a, b: a.partition_by("k"), parts=32).fingerprint
    flow = one_sink(Flow("exchanges", parts=16, lanes=4, order="arrival"))
    assert not plan_job(flow).deterministic
    assert plan_job(flow, order="deterministic").deterministic
    assert plan_job(flow).fingerprint != plan_job(flow, order="deterministic").fingerprint


def one_sink(flow: Flow) -> Flow:
    flow.from_tables([ROWS], name="a").partition_by("k").collect("out")
    return flow


def test_order_reaches_the_operators_that_keep_it() -> None:
    for order in ("deterministic", "arrival"):
        found = plan_job(one_sink(Flow("f", order=order)))
        operator = found.stages["partition-by-1"].pipelines[0].operators[0]
        assert operator.config.ordered is (order == "deterministic")


def test_lanes_may_be_replaced_for_a_run() -> None:
    found = plan_job(one_sink(Flow("f")), 1, lanes=1)
    assert [stage.lanes for stage in found.stages.values()] == [1, 16]
    assert found.lanes == 1


def test_operators_that_hold_at_barriers_are_planned_and_described_so() -> None:
    found = plan(lambda a, b: a.aggregate(["k"], n="count", at_barrier="hold").sort("k"))
    holds = {operator.id: operator.hold for stage in found.stages.values() for pipe in stage.pipelines
             for operator in pipe.operators}  # fmt: skip
    assert [id for id, hold in holds.items() if hold] == ["hash-aggregate-1", "hash-aggregate-2"]
    assert "(holds at barriers)" in found.description
    assert found.fingerprint != plan(lambda a, b: a.aggregate(["k"], n="count").sort("k")).fingerprint


def test_branches_of_a_fork_that_meet_again_are_spooled() -> None:
    found = plan(lambda a, b: a.filter("v > 1").gather().union(a.aggregate(["k"], n="count").project("k").hash_join(
        b, ["k"]).project("k", "g", "v", "tags")))  # fmt: skip
    ports = {
        port.id: port.spooled for stage in found.stages.values() for pipe in stage.pipelines for port in pipe.ports
    }
    assert {id for id, spooled in ports.items() if spooled} == {"gather-1->union-1:0", "project-2->union-1:1"}


def test_explain_shows_exchanges_parts_order_and_what_holds() -> None:
    stream = streams()[0].aggregate(["k"], exchange="key", n="count", at_barrier="hold")
    stream.collect("out")
    text = stream.flow.explain(3)
    for words in (
        "order: deterministic, 4 lanes",
        "stage partition-by-1: 3 subtasks, 5.33 parts each",
        "partition-by-1: a → partition-by-1, all to all; partition by k (hash 1) into 16 parts",
        "holds at task barriers",
    ):
        assert words in text
    assert "order: arrival" in one_sink(Flow("f", order="arrival")).explain()


# --- refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message", "remedy"),
    [
        (lambda a, b: a.partition_by("z"), "no column 'z'", ""),
        (lambda a, b: a.partition_by(), "no key is given", r"rebalance\(\)"),
        (lambda a, b: a.aggregate(exchange="key", n="count"), "no key to partition by", "name a key"),
        (
            lambda a, b: a.aggregate(["k"], exchange="keys", n="count"),
            "exchange='keys' does not fit",
            "'gather' or 'key'",
        ),
        (lambda a, b: a.sort("k", at_barrier="keep"), "at_barrier='keep' does not fit", "'flush' or 'hold'"),
        (lambda a, b: a.broadcast().aggregate(["k"], n="count"), "its input is broadcast", "before broadcast"),
        (lambda a, b: a.broadcast().gather(), "its input is broadcast", "right side"),
        (lambda a, b: a.broadcast().union(b.rebalance()), "its input is broadcast", ""),
        (lambda a, b: a.broadcast().hash_join(b.broadcast(), ["k"]), "mark part: its input is broadcast", ""),
        (lambda a, b: a.hash_join(b.broadcast(), ["k"]), "without an exchange", r"\.rebalance\(\)"),
        (lambda a, b: a.rebalance().hash_join(b.broadcast(), ["k"], how="right"), "once per subtask", "inner"),
        (lambda a, b: a.rebalance().merge_join(b.broadcast(), ["k"]), "its input is broadcast", ""),
        (lambda a, b: a.partition_by("k").union(b), "source b meets the output of partition-by-1", "same exchange"),
        (lambda a, b: a.partition_by("k").union(b.partition_by_range("v", [1])), "different numbers of parts", ""),
        (lambda a, b: a.partition_by("k").union(b.gather()), "meet those of partition-by-1", "gather both"),
        (
            lambda a, b: (p := a.partition_by("k")).union(p.filter("v > 1").rebalance()),
            "come back to the stage partition-by-1",
            "an exchange of its own",
        ),
    ],
)
def test_what_cannot_be_exchanged_is_refused_with_a_remedy(build: Build, message: str, remedy: str) -> None:
    with pytest.raises(FlowError, match=message) as caught:
        plan(build)
    assert caught.match(remedy)


def test_a_sink_behind_a_broadcast_is_refused() -> None:
    with pytest.raises(FlowError, match="every subtask would do the same") as caught:
        streams()[0].broadcast().write_parquet("nowhere", name="out")
    assert caught.value.operator == "out"


def test_what_is_broadcast_may_be_prepared() -> None:
    stream, other = streams()
    small = other.broadcast().filter("v > 1").with_columns(w="v * 2").unnest("tags")
    assert stream.rebalance().hash_join(small, ["k"]).placement.place == "parts"


@pytest.mark.parametrize("options", [{"parts": 0}, {"parts": 40_000}, {"order": "random"}])
def test_impossible_flows_are_refused(options: dict) -> None:
    with pytest.raises(FlowError):
        Flow("f", **options)


def test_what_users_make_of_the_rows_of_a_part_stays_in_it() -> None:
    stream = streams()[0].partition_by("k")
    mapped = stream.map_batches(lambda records: records, stream.schema)
    assert (mapped.placement.place, mapped.partitioned_by) == ("parts", ())

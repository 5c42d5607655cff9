"""The planner: stages, pipelines, ports, what it refuses, and the fingerprint."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.core.errors import ConfigurationError, FlowError
from penstock.engine.flow.flow import Flow
from penstock.engine.planner.explain import explain
from penstock.engine.planner.pipelines import ROUND_QUOTA, plan_job

ROWS = pa.table({"k": pa.array([1, 2], pa.int64()), "v": pa.array([1.0, 2.0])})


def two_sided(left=2, right=2, lanes=2) -> Flow:
    flow = Flow("two-sided", lanes=lanes)
    weather = flow.from_tables([ROWS] * right, name="weather")
    flights = flow.from_tables([ROWS] * left, name="flights")
    joined = flights.filter(pc.field("v") > 0).merge_join(weather, on=["k"], how="left", name="join")
    joined.collect("rows")
    joined.stream_aggregate(by=["k"], n="count", name="daily").gather(name="all").collect("days")
    return flow


def stage_shapes(plan) -> dict:
    return {
        name: [
            (
                [f"{port.kind} {port.id}" for port in pipeline.ports],
                [operator.id for operator in pipeline.operators],
                [f"{output.kind} {output.id}" for output in pipeline.outputs],
            )
            for pipeline in stage.pipelines
        ]
        for name, stage in plan.stages.items()
    }


def test_pipelines_are_cut_at_joins_exchanges_and_forks():
    plan = plan_job(two_sided(), 2)
    assert stage_shapes(plan) == {
        "weather": [
            (["source flights"], ["filter-1"], ["local filter-1->join:0"]),
            (["local filter-1->join:0", "source weather"], ["join"], ["local join->rows:0", "local join->daily:0"]),
            (["local join->rows:0"], ["rows"], []),
            (["local join->daily:0"], ["daily"], ["exchange all"]),
        ],
        "all": [(["exchange all"], ["days"], [])],
    }


def test_pipelines_are_cut_behind_operators_that_block():
    flow = Flow("blocking")
    rows = flow.from_tables([ROWS], name="rows").gather(name="all")
    sorted_rows = rows.sort("v", name="sort").filter(pc.field("k") > 0, name="filter")
    sorted_rows.top_n(3, "k", name="top").collect("out")
    shapes = stage_shapes(plan_job(flow, 1))["all"]
    assert [operators for _, operators, _ in shapes] == [["sort"], ["filter", "top"], ["out"]]
    grouped = Flow("groups")
    grouped.from_tables([ROWS], name="rows").gather(name="all").aggregate(by=["k"], n="count", name="n").collect("out")
    shapes = stage_shapes(plan_job(grouped, 1))["all"]
    assert [operators for _, operators, _ in shapes] == [["n"], ["out"]]


def test_stage_behind_a_gather_has_one_subtask():
    assert plan_job(two_sided(), 2).parallelism == {"weather": 2, "all": 1}


def test_sources_of_a_merge_join_are_read_in_whole_splits_and_others_by_quota():
    assert {source.quota for source in plan_job(two_sided(), 1).sources.values()} == {None}
    flow = Flow("plain")
    flow.from_tables([ROWS]).collect("out")
    assert [source.quota for source in plan_job(flow, 1).sources.values()] == [ROUND_QUOTA]


def test_sides_of_a_merge_join_with_unequal_numbers_of_splits_are_refused():
    with pytest.raises(FlowError, match="flights has 3, weather has 2 splits") as caught:
        plan_job(two_sided(left=3), 1)
    assert caught.value.operator == "join"


def test_parallelism_above_the_lanes_is_refused():
    with pytest.raises(FlowError, match="2 lanes"):
        plan_job(two_sided(lanes=2), 3)


def test_flow_without_a_sink_is_refused():
    flow = Flow("endless")
    flow.from_tables([ROWS])
    with pytest.raises(FlowError, match="no sink"):
        plan_job(flow, 1)


def test_what_leads_to_no_sink_is_left_out():
    flow = Flow("pruned")
    flow.from_tables([ROWS], name="unused").filter(pc.field("v") > 1)
    flow.from_tables([ROWS], name="used").collect("out")
    assert list(plan_job(flow, 1).sources) == ["used"]


def test_source_that_meets_an_exchange_without_one_of_its_own_is_refused():
    flow = Flow("mixed")
    left = flow.from_tables([ROWS], name="left").gather()
    left.merge_join(flow.from_tables([ROWS], name="right"), on=["k"]).collect("out")
    with pytest.raises(FlowError, match="source right"):
        plan_job(flow, 1)


def test_fingerprint_depends_on_the_flow_and_the_data_but_not_on_parallelism():
    one = plan_job(two_sided(), 1)
    assert one.fingerprint == plan_job(two_sided(), 2).fingerprint
    assert one.fingerprint != plan_job(two_sided(lanes=4), 1).fingerprint
    assert one.fingerprint != plan_job(two_sided(left=4, right=4), 1).fingerprint


def test_two_sinks_in_one_folder_are_refused(tmp_path):
    flow = Flow("clash")
    stream = flow.from_tables([ROWS])
    stream.write_parquet(tmp_path / "out", name="first")
    stream.write_parquet(tmp_path / "out", name="second")
    with pytest.raises(ConfigurationError, match="and so does first"):
        plan_job(flow, 1).check()


def test_rate_of_a_run_paces_all_sources_where_none_has_a_rate():
    flow = Flow("rates")
    flow.from_tables([ROWS], name="one").union(flow.from_tables([ROWS], name="two")).collect("out")
    assert {id: source.rate for id, source in plan_job(flow, 1, rate=9.0).sources.items()} == {"one": 9.0, "two": 9.0}


def test_rate_of_a_run_replaces_that_of_paced_sources_only():
    flow = Flow("paced")
    flow.from_tables([ROWS], name="paced", rate=5.0).collect("one")
    flow.from_tables([ROWS], name="free").collect("two")
    rates = [
        {id: source.rate for id, source in plan_job(flow, 1, rate=rate).sources.items()} for rate in (None, 0.0, 9.0)
    ]
    assert rates == [{"paced": 5.0, "free": 0.0}, {"paced": 0.0, "free": 0.0}, {"paced": 9.0, "free": 0.0}]


def test_flow_explains_itself():
    assert two_sided().explain() == explain(plan_job(two_sided(), 2))


def test_explain_names_stages_edges_lanes_and_guarantees():
    text = explain(plan_job(two_sided(), 2))
    for words in ("stage weather: 2 subtasks", "all: weather → all", "2 lanes", "exactly once", "merge join"):
        assert words in text


def test_streams_that_meet_themselves_again_and_again_are_planned_as_quickly_as_others():
    """Walked anew from each node, the ways from 40 forks back to their source were 2**40."""
    flow = Flow("ladder")
    rows = flow.from_tables([ROWS], name="rows")
    for _ in range(40):
        rows = rows.union(rows.filter(pc.field("k") > 0))
    rows.collect("out")
    assert len(plan_job(flow, 1).stages) == 1


def test_stages_that_may_be_one_are_one_task():
    flow = Flow("fused")
    left, right = (flow.from_tables([ROWS], name=name) for name in ("left", "right"))
    joined = left.gather().hash_join(right.filter(pc.field("v") > 0).gather(), on=["k"], name="join")
    joined.gather().collect("rows")
    assert stage_shapes(plan_job(flow, 1, fused=True)) == {
        "left": [
            (["source right"], ["filter-1"], ["local filter-1->join:1"]),
            (["source left", "local filter-1->join:1"], ["join", "rows"], []),
        ]
    }
    assert plan_job(flow, 1, fused=True).fingerprint == plan_job(flow, 1).fingerprint
    for parallelism, fused in ((1, False), (2, True)):
        plan = plan_job(flow, parallelism, fused=fused)
        assert {each.id for each in plan.exchanges} == {"gather-1", "gather-2", "gather-3"}


def test_exchanges_by_key_and_what_is_behind_them_stay_when_stages_are_fused():
    flow = Flow("fused")
    rows = flow.from_tables([ROWS], name="rows").gather()
    rows.partition_by("k").aggregate(["k"], n="count").gather().collect("counted")
    rows.gather().collect("all")
    plan = plan_job(flow, 1, fused=True)
    assert [(each.source, each.target) for each in plan.exchanges] == [
        ("rows", "partition-by-1"),
        ("partition-by-1", "gather-2"),
    ]


def test_stages_of_a_feed_stay_apart():
    flow = Flow("feeding")
    flow.from_tables([ROWS], name="rows").feed(1)
    assert len(plan_job(flow, 1, fused=True).stages) == 2


def test_flow_that_is_refused_elsewhere_is_refused_when_stages_are_fused():
    flow = Flow("refused")
    left, right = (flow.from_tables([ROWS], name=name) for name in ("left", "right"))
    left.gather().union(right).collect("rows")
    with pytest.raises(FlowError, match="without an exchange of its own"):
        plan_job(flow, 1, fused=True)


@pytest.mark.parametrize("size", [200])
def test_planning_of_a_chain_asks_each_node_a_few_times(size, monkeypatch):
    flow = Flow("chain")
    stream = flow.from_tables([ROWS])
    for _ in range(size):
        stream = stream.filter(pc.field("v") > 0)
    stream.collect("rows")
    copies = []
    copied = Flow.copy
    monkeypatch.setattr(Flow, "copy", lambda self: copies.append(self) or copied(self))
    plan_job(flow, 1)
    assert len(copies) < 10

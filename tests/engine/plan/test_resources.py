"""What operators ask of a cluster: checked where it is said, joined by stage, and of no other effect."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import FlowError
from penstock.engine.plan.resources import NOTHING, Resources, joined, resources_of
from penstock.engine.planner.pipelines import plan_job

SCHEMA = pa.schema({"n": pa.int64()})


def model(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def two_stages(**asked: Any) -> ps.Flow:
    """A map and a filter in the first stage, a sink in the second; ``asked`` is asked for by the map."""
    flow = ps.Flow("models", lanes=4)
    scored = flow.from_tables([pa.table({"n": [1]})], name="rows").map_batches(model, SCHEMA, name="score")
    if asked:
        scored = scored.resources(**asked)
    scored.filter(ps.field("n") > 0, name="kept").gather(name="all").collect("found")
    return flow


def test_stage_gets_what_its_operator_asks_for() -> None:
    plan = plan_job(two_stages(num_gpus=1, num_cpus=0.5, resources={"licence": 2}), 2)
    assert plan.stages["rows"].resources == Resources((("CPU", 0.5), ("GPU", 1.0), ("licence", 2.0)))
    assert (plan.stages["rows"].resources.cpus, plan.stages["rows"].resources.gpus) == (0.5, 1.0)
    assert plan.stages["rows"].resources.custom == {"licence": 2.0}
    assert plan.stages["all"].resources == NOTHING
    assert plan.stages["rows"].resources.times(2).gpus == 2.0


def test_explain_tells_it() -> None:
    lines = two_stages(num_gpus=0.5).explain(2).splitlines()
    assert "stage rows: 2 subtasks, 2 lanes each; each asks for 0.5 GPU" in lines
    assert "stage all: 1 subtask, 4 lanes each" in lines


def test_a_checkpoint_does_not_depend_on_it() -> None:
    assert plan_job(two_stages()).fingerprint == plan_job(two_stages(num_gpus=1)).fingerprint


def test_behind_an_exchange_it_is_the_next_stage_that_gets_it() -> None:
    flow = ps.Flow("behind")
    flow.from_tables([pa.table({"n": [1]})], name="rows").gather(name="all").resources(num_cpus=1).collect("found")
    plan = plan_job(flow, 2)
    assert [stage.resources.cpus for stage in plan.stages.values()] == [0.0, 1.0]


def test_operators_of_a_stage_share_what_both_ask_for_and_add_what_one_does() -> None:
    one, other = resources_of(num_gpus=1, num_cpus=1), resources_of(num_gpus=1, custom={"licence": 1})
    found = joined([("a", one), ("b", NOTHING), ("c", other)])
    assert found == resources_of(1, 1, custom={"licence": 1})


def test_different_amounts_in_one_stage_are_refused() -> None:
    flow = ps.Flow("models")
    rows = flow.from_tables([pa.table({"n": [1]})], name="rows")
    first = rows.map_batches(model, SCHEMA, name="first").resources(num_gpus=1)
    first.map_batches(model, SCHEMA, name="second").resources(num_gpus=2).collect("found")
    with pytest.raises(
        FlowError, match=r"asks for 2 GPU, and first, in the same process, for 1[\s\S]*exchange"
    ) as found:
        plan_job(flow)
    assert found.value.operator == "second"


def test_a_stream_is_not_asked_for_twice_in_different_ways() -> None:
    stream = ps.Flow("models").from_tables([pa.table({"n": [1]})], name="rows").resources(num_cpus=1)
    stream.resources(num_cpus=1)
    with pytest.raises(FlowError, match=r"asks for 2 CPU, and has asked for 1 CPU before"):
        stream.resources(num_cpus=2)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"num_cpus": -1}, r"-1 is no amount of CPU"),
        ({"num_gpus": "1"}, r"num_gpus='1' does not fit"),
        ({"num_gpus": 1.5}, r"1\.5 GPU cannot be given out"),
        ({"num_cpus": float("nan")}, r"num_cpus=nan does not fit"),
        ({"num_cpus": True}, r"num_cpus=True does not fit"),
        ({"resources": {"GPU": 1}}, r"'GPU' is no resource of its own"),
        ({"resources": {"": 1}}, r"'' is no resource"),
    ],
)
def test_what_no_cluster_can_give_is_refused_where_it_is_asked_for(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(FlowError, match=says):
        two_stages(**asked)

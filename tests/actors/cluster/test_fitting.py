"""Whether a job is let into a cluster: by node, in sum, by what is free; and what it is warned of."""

from __future__ import annotations

import pyarrow as pa
import pytest

import penstock as ps
from penstock.actors.cluster.fitting import NotFreeError, check_fits, check_spares
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.plan.plan import JobPlan
from penstock.engine.planner.pipelines import plan_job


def plan(reading: dict[str, float], gathered: dict[str, float] | None = None, parallelism: int = 2) -> JobPlan:
    """Stages ``rows`` (parallel) and ``all`` (one subtask), asking for this; "cpu" and "gpu" are Ray's own."""

    def ask(stream: ps.Stream, wanted: dict[str, float]) -> ps.Stream:
        rest = {name: amount for name, amount in wanted.items() if name not in ("cpu", "gpu")}
        return stream.resources(num_cpus=wanted.get("cpu", 0), num_gpus=wanted.get("gpu", 0), resources=rest)

    flow = ps.Flow("asking", lanes=8)
    rows = ask(flow.from_tables([pa.table({"n": [1]})], name="rows"), reading)
    ask(rows.gather(name="all"), gathered or {}).collect("found")
    return plan_job(flow, parallelism)


SMALL = {"CPU": 4.0, "memory": 1e9}
LARGE = {"CPU": 4.0, "GPU": 2.0}


def test_job_that_asks_for_nothing_fits_everywhere() -> None:
    assert check_fits(plan({}), [{}], {}) == []


def test_what_fits_is_let_in_without_a_word() -> None:
    assert check_fits(plan({"gpu": 1}), [SMALL, LARGE], {"CPU": 8.0, "GPU": 2.0}) == []


def test_what_no_node_has_is_refused_with_stage_wish_and_nodes() -> None:
    says = r"stage rows asks for 3 GPU for each of its 2 subtasks; nodes have 0 GPU; 2 GPU"
    with pytest.raises(ConfigurationError, match=says) as found:
        check_fits(plan({"gpu": 3}), [SMALL, LARGE], {"CPU": 8.0, "GPU": 2.0})
    assert found.value.operator == "rows"
    assert "wait_for_resources" in str(found.value)
    assert not isinstance(found.value, NotFreeError)


def test_one_node_must_have_everything_that_a_subtask_asks_for() -> None:
    nodes = [{"licence": 1.0}, {"GPU": 1.0}]
    with pytest.raises(ConfigurationError, match=r"1 GPU, 1 licence for each"):
        check_fits(plan({"gpu": 1, "licence": 1}, parallelism=1), nodes, {"licence": 1.0, "GPU": 1.0})


def test_what_the_cluster_has_not_together_is_refused_by_stage() -> None:
    says = r"asks for 7 CPU \(stage rows 6, stage all 1\); the cluster has 4"
    with pytest.raises(ConfigurationError, match=says):
        check_fits(plan({"cpu": 3}, {"cpu": 1}), [SMALL], {"CPU": 4.0})


def test_what_others_hold_now_is_told_apart() -> None:
    with pytest.raises(NotFreeError, match=r"asks for 2 CPU \(stage rows 2\); free in the cluster are now 1"):
        check_fits(plan({"cpu": 1}), [SMALL], {"CPU": 1.0})
    with pytest.raises(NotFreeError, match=r"free in the cluster are now 0"):
        check_fits(plan({"gpu": 1}), [LARGE], {"CPU": 4.0})  # Ray leaves out what is used up


def test_shares_are_added_without_a_rest() -> None:
    assert check_fits(plan({"gpu": 0.1}, parallelism=8), [{"GPU": 0.8}], {"GPU": 0.8}) == []


def test_sum_that_fits_while_the_nodes_do_not_is_a_warning() -> None:
    nodes = [{"GPU": 3.0}, {"GPU": 3.0}]
    (warning,) = check_fits(plan({"gpu": 2}, parallelism=3), nodes, {"GPU": 6.0})
    assert "stage rows may not fit" in warning


def test_taking_the_last_cpu_is_a_warning_for_spark() -> None:
    assert check_fits(plan({"cpu": 1}), [SMALL], {"CPU": 3.0}) == []
    (warning,) = check_fits(plan({"cpu": 1}), [SMALL], {"CPU": 2.5})
    assert "2 of 2.5 free CPUs" in warning
    assert "Spark" in warning


def test_spares_and_resources_do_not_go_together() -> None:
    check_spares(plan({}), 2)
    check_spares(plan({"gpu": 1}), 0)
    with pytest.raises(ConfigurationError, match=r"stage rows asks for 1 GPU, which a spare process does not have"):
        check_spares(plan({"gpu": 1}), 1)

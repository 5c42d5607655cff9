"""Errors travel as failures and come back the same; plans become graphs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.actors.protocol.translate import error_of, execution_graph, failure_of, peers_of
from penstock.coordinator.model.events import Failure
from penstock.coordinator.model.execution_graph import JobEdge, Pattern
from penstock.engine.core import errors
from penstock.engine.core.identity import TaskId
from penstock.engine.flow.flow import Flow
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.runtime.driver_shape import DriverShape, shapes_of
from support.ray_jobs import gather_flow

KINDS = [
    errors.FlowError,
    errors.DataError,
    errors.UserCodeError,
    errors.ConfigurationError,
    errors.SetupError,
    errors.StorageError,
    errors.TaskLostError,
    errors.InternalError,
]


@pytest.mark.parametrize("kind", KINDS)
def test_error_comes_back_as_the_same_class_with_all_it_said(kind: type[errors.PenstockError]) -> None:
    error = kind("it broke", "mend it", "filter-1", "at line 3")
    back = error_of(failure_of(error))
    assert type(back) is kind
    assert back.args == error.args


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_users_mistake_is_not_retried(kind: type[errors.PenstockError]) -> None:
    assert failure_of(kind("it broke")).retry is (kind.domain is not errors.Domain.USER)


def test_unexpected_error_keeps_its_traceback() -> None:
    try:
        [].pop()
    except IndexError as error:
        failure = failure_of(error)
    assert failure.kind == "InternalError"
    assert "pop from empty list" in failure.message
    assert "[].pop()" in failure.detail


@pytest.mark.parametrize("kind", ["Domain", "annotations", "NoSuchError"])
def test_failure_of_an_unknown_kind_is_still_an_error_of_ours(kind: str) -> None:
    assert type(error_of(Failure("it broke", retry=True, kind=kind))) is errors.PenstockError


def test_plan_becomes_a_graph_of_stages(tmp_path: Path) -> None:
    graph = execution_graph(plan_job(gather_flow(tmp_path), 2))
    assert [(vertex.name, vertex.parallelism) for vertex in graph.vertices] == [("memory-1", 2), ("gather-1", 1)]
    assert graph.vertices[0].operators == ("memory-1", "project-1", "filter-1")
    edge = JobEdge("memory-1", "gather-1", Pattern.ALL_TO_ALL)
    assert graph.edges == (edge,)
    assert graph.deterministic


def test_other_drivers_are_another_shape_and_another_parallelism_is_not(tmp_path: Path) -> None:
    plans = [
        plan_job(gather_flow(tmp_path), parallelism, threads=threads) for parallelism in (1, 2) for threads in (1, 4)
    ]
    assert len({execution_graph(plan).shape for plan in plans}) == 1, "how many tasks there are is said beside it"
    flow = Flow("other")
    flow.from_tables([pa.table({"x": [1]})], name="rows").collect("found")
    assert execution_graph(plan_job(flow, 2)).shape != execution_graph(plans[-1]).shape


def test_other_keys_are_another_shape_wherever_rows_are_still_divided_by_them() -> None:
    def drivers(key: str) -> dict[str, list[DriverShape]]:
        flow = Flow("divided", lanes=4)
        table = pa.table({"x": [1], "y": [1]})
        apart = flow.from_tables([table], name="rows").partition_by(key, name="apart").forward(name="next")
        apart.filter("x > 0").collect("one")
        apart.filter("x > 1").gather(name="together").collect("other")
        plan = plan_job(flow, 2)
        return {name: list(shapes_of(plan, stage).values()) for name, stage in plan.stages.items()}

    by_x, by_y = drivers("x"), drivers("y")
    alike = {
        name: [one.reads_and_runs_as(other) for one, other in zip(by_x[name], by_y[name], strict=True)] for name in by_x
    }
    assert not any(alike["apart"] + alike["next"])
    assert all(alike["rows"] + alike["together"])
    assert by_x["rows"] != by_y["rows"]


def test_only_a_stage_without_an_exchange_that_holds_nothing_is_moved_in_the_middle(tmp_path: Path) -> None:
    assert not execution_graph(plan_job(gather_flow(tmp_path), 2)).movable
    flow = Flow("apart")
    rows = flow.from_tables([pa.table({"x": [1]})], name="rows")
    rows.filter("x > 0").write_parquet(tmp_path / "out", name="written")
    other = flow.from_tables([pa.table({"x": [1]})], name="other")
    other.stream_aggregate(by=["x"], n="count").collect("groups")
    assert execution_graph(plan_job(flow, 2)).movable == {"rows"}


def test_tasks_of_one_number_are_a_region_where_all_edges_are_forward() -> None:
    flow = Flow("forward")
    flow.from_tables([pa.table({"x": [1]})], name="rows").forward(name="next").collect("found")
    plan = plan_job(flow, 3)
    graph = execution_graph(plan)
    assert graph.edges == (JobEdge("rows", "next", Pattern.POINTWISE),)
    assert graph.regions == tuple((TaskId("rows", number), TaskId("next", number)) for number in range(3))
    assert peers_of(plan, TaskId("next", 1)) == [TaskId("rows", 1)]


def test_peers_are_the_tasks_of_adjacent_stages(tmp_path: Path) -> None:
    plan = plan_job(gather_flow(tmp_path), 2)
    assert peers_of(plan, TaskId("gather-1", 0)) == [TaskId("memory-1", 0), TaskId("memory-1", 1)]
    assert peers_of(plan, TaskId("memory-1", 1)) == [TaskId("gather-1", 0)]

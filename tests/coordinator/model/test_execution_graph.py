"""Graphs: what is refused, the order of vertices, who feeds whom, and regions."""

from __future__ import annotations

import random

import pytest

from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex, pointwise_upstreams
from penstock.engine.core.identity import TaskId

WIDE, NARROW = Pattern.ALL_TO_ALL, Pattern.POINTWISE


def graph(parallelism: dict[str, int], *edges: tuple[str, str, Pattern]) -> ExecutionGraph:
    vertices = tuple(Vertex(name, number) for name, number in parallelism.items())
    return ExecutionGraph(vertices, tuple(JobEdge(*edge) for edge in edges))


@pytest.mark.parametrize(
    ("parallelism", "edges", "said"),
    [
        ({}, (), "at least one vertex"),
        ({"a": 0}, (), "parallelism of at least 1"),
        ({"a": 1}, (("a", "b", WIDE),), "'b', which is no vertex"),
        ({"a": 1, "b": 1, "c": 1}, (("a", "b", WIDE), ("b", "c", WIDE), ("c", "b", WIDE)), r"\['b', 'c'\]"),
    ],
)
def test_graph_says_what_is_wrong_with_it(
    parallelism: dict[str, int], edges: tuple[tuple[str, str, Pattern], ...], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        graph(parallelism, *edges)


def test_graph_refuses_two_vertices_of_one_name() -> None:
    with pytest.raises(ValueError, match="unique"):
        ExecutionGraph((Vertex("a", 1), Vertex("a", 2)))


def test_order_puts_every_vertex_after_those_that_feed_it() -> None:
    found = graph({"d": 1, "c": 1, "b": 1, "a": 1}, ("a", "c", WIDE), ("b", "d", WIDE), ("c", "d", WIDE)).order
    assert sorted(found) == ["a", "b", "c", "d"]
    assert found.index("a") < found.index("c") < found.index("d")
    assert found.index("b") < found.index("d")


def test_regions_of_pointwise_chains_are_slices() -> None:
    regions = graph({"a": 2, "b": 4}, ("a", "b", NARROW)).regions
    assert regions == (
        (TaskId("a", 0), TaskId("b", 0), TaskId("b", 1)),
        (TaskId("a", 1), TaskId("b", 2), TaskId("b", 3)),
    )


def test_an_all_to_all_edge_makes_one_region() -> None:
    assert len(graph({"a": 3, "b": 2, "c": 2}, ("a", "b", WIDE), ("b", "c", NARROW)).regions) == 1


def test_regions_equal_those_of_a_walk_over_task_pairs() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        names = "abcde"[: chance.randint(1, 5)]
        edges = [
            (first, second, chance.choice((WIDE, NARROW)))
            for number, second in enumerate(names)
            for first in names[:number]
            if chance.random() < 0.4
        ]
        found = graph({name: chance.randint(1, 6) for name in names}, *edges)
        assert {frozenset(region) for region in found.regions} == walked_regions(found)


def walked_regions(found: ExecutionGraph) -> set[frozenset[TaskId]]:
    regions = {task: {task} for task in found.tasks}
    for edge in found.edges:
        up, down = found.parallelism[edge.source], found.parallelism[edge.target]
        for consumer in range(down):
            for feeder in range(up) if edge.pattern is WIDE else pointwise_upstreams(up, down, consumer):
                joined = regions[TaskId(edge.source, feeder)] | regions[TaskId(edge.target, consumer)]
                for task in joined:
                    regions[task] = joined
    return {frozenset(region) for region in regions.values()}

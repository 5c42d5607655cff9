"""The flows that simulated clusters run: each at the parallelisms between which it may be rescaled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from support.simulated_model import LANES, Flow

WIDE, NARROW = Pattern.ALL_TO_ALL, Pattern.POINTWISE
EVEN = (5, 6, 4, 5, 6, 5, 4, 5)
UNEVEN = (9, 0, 1, 3, 2, 2, 12, 1)
SHORT = (1, 0, 2, 1, 0, 0, 1, 1)
Edge = tuple[str, str, Pattern]


def _flow(
    name: str, parallelism: dict[str, int], edges: tuple[Edge, ...], rows: dict[str, tuple[int, ...]], ordered: bool
) -> Flow:
    vertices = tuple(
        Vertex(vertex, number, (vertex,), aligned_sources=ordered and vertex in rows)
        for vertex, number in parallelism.items()
    )
    graph = ExecutionGraph(vertices, tuple(JobEdge(*edge) for edge in edges), deterministic=ordered, lanes=LANES)
    return Flow(name, graph, rows)


def one_stage(p: int, ordered: bool) -> Flow:
    """Sources that are their own sinks: no edges, a region per task."""
    return _flow("one stage", {"all": p}, (), {"all": UNEVEN}, ordered)


def chain(p: int, ordered: bool) -> Flow:
    edges: tuple[Edge, ...] = (("source", "map", NARROW), ("map", "sink", NARROW))
    return _flow("chain", {"source": p, "map": p, "sink": p}, edges, {"source": UNEVEN}, ordered)


def shuffle(p: int, ordered: bool) -> Flow:
    edges: tuple[Edge, ...] = (("source", "group", WIDE), ("group", "sink", NARROW))
    return _flow("shuffle", {"source": p, "group": 2, "sink": 2}, edges, {"source": EVEN}, ordered)


def join(p: int, ordered: bool) -> Flow:
    """A short branch and a long one."""
    edges: tuple[Edge, ...] = (("long", "join", WIDE), ("short", "join", NARROW))
    rows = {"long": EVEN, "short": SHORT}
    return _flow("join", {"long": 2, "short": p, "join": p}, edges, rows, ordered)


def diamond(p: int, ordered: bool) -> Flow:
    edges: tuple[Edge, ...] = (
        ("source", "left", NARROW),
        ("source", "right", WIDE),
        ("left", "sink", WIDE),
        ("right", "sink", NARROW),
    )
    return _flow("diamond", {"source": p, "left": p, "right": 2, "sink": 2}, edges, {"source": UNEVEN}, ordered)


def two_sinks(p: int, ordered: bool) -> Flow:
    """Unequal POINTWISE parallelism, and a sink that ends long before the other."""
    edges: tuple[Edge, ...] = (("source", "wide", NARROW), ("source", "sink", WIDE))
    parallelism = {"source": 2, "wide": 4, "sink": 1, "other": p}
    return _flow("two sinks", parallelism, edges, {"source": EVEN, "other": SHORT}, ordered)


def fed(p: int, ordered: bool) -> Flow:
    """Ends in a feed that the ranks of a training job read."""
    source = Vertex("source", p, ("source",), aligned_sources=ordered)
    vertices = (source, Vertex("map", p, ("map",)), Vertex("feed", 1, ("feed",), paced=True))
    edges = (
        JobEdge("source", "map", NARROW),
        JobEdge("map", "feed", WIDE),
    )
    graph = ExecutionGraph(vertices, edges, deterministic=ordered, lanes=LANES)
    return Flow("fed", graph, {"source": UNEVEN}, "feed")


SHAPES: tuple[Callable[[int, bool], Flow], ...] = (one_stage, chain, shuffle, join, diamond, two_sinks, fed)


def flows_for(seed: int) -> tuple[Flow, ...]:
    """The flow of a seed, at three parallelisms."""
    shape, ordered = SHAPES[seed % len(SHAPES)], (seed // len(SHAPES)) % 2 == 0
    return tuple(shape(p, ordered) for p in (1, 2, 4))


def that_cut(flows: tuple[Flow, ...]) -> tuple[Flow, ...]:
    """The flows, whose tasks cut as a whole if they are told to: no two of them have the same shape."""
    return tuple(
        replace(flow, graph=replace(flow.graph, cuts=True, shape=str(dict(flow.graph.parallelism)))) for flow in flows
    )

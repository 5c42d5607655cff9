"""The shapes of graphs that Fennel's parallel suite runs, over small arrays: what to build and what must come out.

Every shape is a function of the kind of its edges to a graph, together with the expected output: a list of numbers, or
their multiset where the order is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.engine.scheduler.stream_edges import EdgeKind
from penstock.engine.scheduler.stream_graph import StreamGraph
from penstock.engine.scheduler.streams import (
    Append,
    Barrier,
    Fold,
    Merge,
    Product,
    Segment,
    Source,
    Spool,
    Transform,
    Writer,
)

BATCH = 500


@dataclass(frozen=True, slots=True)
class Shape:
    """A graph and what it puts out; ``ordered``: in that order."""

    name: str
    build: Callable[[EdgeKind], StreamGraph]
    expected: np.ndarray
    ordered: bool = True


def ramp(rows: int, start: int = 0) -> Callable[[], Source]:
    """Numbers from ``start`` on, in batches."""

    def batches() -> list[np.ndarray]:
        return [np.arange(low, min(low + BATCH, rows)) + start for low in range(0, rows, BATCH)]

    return lambda: Source(batches)


def count(total: int, batch: Any) -> int:
    return total + len(batch)


def chain(rows: int, length: int) -> Callable[[EdgeKind], StreamGraph]:
    """The bucket brigade."""

    def build(kind: EdgeKind) -> StreamGraph:
        graph = StreamGraph("bucket brigade")
        last = graph.add("ramp", ramp(rows))
        for number in range(length):
            last = graph.add(f"bucket {number}", Transform, [last], kind=kind)
        graph.pull(last)
        return graph

    return build


def merge(kind: EdgeKind) -> StreamGraph:
    graph = StreamGraph("merge")
    sides = [graph.add(f"ramp {n}", ramp(10_000, start=n * 10_000)) for n in range(2)]
    graph.pull(graph.add("merge", Merge, sides, kind=kind))
    return graph


def split_and_barrier(kind: EdgeKind) -> StreamGraph:
    """A splitter, ten counts, a barrier that lets one row through."""
    graph = StreamGraph("splitter and barrier")
    graph.add("ramp", ramp(10_000))
    graph.add("splitter", Transform, ["ramp"], kind=kind)
    counts = [graph.add(f"count {n}", lambda: Fold(count, 0), ["splitter"], kind=kind) for n in range(10)]
    graph.add("barrier", Barrier, counts, kind=kind)
    graph.pull(graph.add("row", lambda: Transform(lambda total: np.array([total])), ["barrier"], kind=kind))
    return graph


def split_and_append(kind: EdgeKind) -> StreamGraph:
    """Merge with implicit pull: a splitter feeds five filters, and the merge reads one branch after the other; the
    branches that must wait are spooled."""
    graph = StreamGraph("merge with implicit pull")
    graph.add("ramp", ramp(20_000))
    graph.add("spool", Spool, ["ramp"], kind=kind)

    def part(number: int) -> Callable[[], Transform]:
        return lambda: Transform(lambda batch: batch[batch % 5 == number])

    filters = [graph.add(f"filter {n}", part(n), ["spool"], kind=kind) for n in range(5)]
    graph.pull(graph.add("append", Append, filters, kind=kind))
    return graph


def product(outer: int, inner: int) -> Callable[[EdgeKind], StreamGraph]:
    """The cartesian join."""

    def build(kind: EdgeKind) -> StreamGraph:
        graph = StreamGraph("product")
        graph.add("outer", ramp(outer))
        graph.add("inner", ramp(inner))
        multiply = lambda left, right: (left[:, None] * 100_000 + right[None, :]).ravel()  # noqa: E731
        graph.pull(graph.add("product", lambda: Product(multiply), ["outer", "inner"], kind=kind))
        return graph

    return build


def segments(readers: int) -> Callable[[EdgeKind], StreamGraph]:
    """A segment that is written whole, then read by several at their own speed."""

    def build(kind: EdgeKind) -> StreamGraph:
        graph = StreamGraph("segment")
        held: list[Segment] = []

        def writer() -> Writer:
            held[:] = [Segment()]
            return Writer(held[0])

        graph.add("ramp", ramp(4_000))
        graph.add("writer", writer, ["ramp"], kind=kind)
        read = [
            graph.add(f"reader {n}", lambda: Source(lambda: held[0].items), after=["writer"]) for n in range(readers)
        ]
        slowed = [read[0], *(graph.add(f"slow {n}", Transform, [name], kind=kind) for n, name in enumerate(read[1:]))]
        graph.pull(graph.add("merge", Merge, slowed, kind=kind))
        return graph

    return build


def aggregate(function: Callable[[int, Any], int]) -> Callable[[EdgeKind], StreamGraph]:
    def build(kind: EdgeKind) -> StreamGraph:
        graph = StreamGraph("aggregate")
        graph.add("ramp", ramp(10_000))
        graph.add("fold", lambda: Fold(function, 0), ["ramp"], kind=kind)
        graph.pull(graph.add("row", lambda: Transform(lambda total: np.array([total])), ["fold"], kind=kind))
        return graph

    return build


def pairs(outer: int, inner: int) -> np.ndarray:
    return np.sort((np.arange(outer)[:, None] * 100_000 + np.arange(inner)[None, :]).ravel())


SHAPES = (
    Shape("scratch buffer", chain(5_000, 1), np.arange(5_000)),
    Shape("double buffer", chain(25_000, 2), np.arange(25_000)),
    Shape("bucket brigade", chain(4_000, 12), np.arange(4_000)),
    Shape("merge", merge, np.arange(20_000), ordered=False),
    Shape("splitter and barrier", split_and_barrier, np.array([10_000])),
    Shape(
        "merge with implicit pull",
        split_and_append,
        np.concatenate([np.arange(start, 20_000, 5) for start in range(5)]),
    ),
    Shape("cartesian join, many outer", product(10_000, 5), pairs(10_000, 5), ordered=False),
    Shape("cartesian join, many inner", product(5, 10_000), pairs(5, 10_000), ordered=False),
    *(
        Shape(f"segment with {n} readers", segments(n), np.sort(np.tile(np.arange(4_000), n)), ordered=n == 1)
        for n in (1, 2, 3, 4)
    ),
    Shape("count", aggregate(count), np.array([10_000])),
    Shape("sum", aggregate(lambda total, batch: total + int(batch.sum())), np.array([49_995_000])),
)

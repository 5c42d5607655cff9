"""Which joins by key get their right side broadcast, so that the left one stays where it is. Pure.

Rules:

1. Only by sizes that the inputs tell (``estimates``), never by parallelism: the order of rows is another one, and must
   be the same at any parallelism. The choice is part of the plan. Claims and manifests say it, and a job that goes on
   keeps it; one of a version that did not say it keeps its exchanges.
2. The right side must be small, and small beside the left one: each subtask holds all of it.
3. An inner, left, left semi or anti join of two streams that an exchange by its keys has brought together, of which no
   node is common: what reads one side first must not hold up the other one.
4. Nobody may count on the parts behind the join: up to the next exchange there are operators that take each row for
   itself, or each lane (partial aggregates), and joins whose right side is broadcast, too.
5. Not where somebody outside gives the splits or sets the pace, and not with the order of arrival.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import cast

import pyarrow as pa

from ..core.traits import traits_of
from ..operators.join.hash_join import HashJoin
from ..operators.join.join_shape import LEFT, LEFT_ALONE, RIGHT
from ..operators.join.replicated_join import MarkPart, ReplicatedJoin
from ..operators.sequence.regroup import Regroup
from ..plan.partitioning import Broadcast, Forward, HashPartitioning, wire_schema
from .estimates import Estimates
from .graph import Graph, Node
from .stages import LiveGraph

MOST_ROWS = 256 * 1024
"""Of a right side that is broadcast."""
TIMES = 4
"""The left side has at least so many times as many rows."""
WORTH = 64 * 1024
"""Fewer rows on the left side cost little, wherever they go."""


def broadcast_joins(flow: Graph, sizes: Estimates) -> tuple[str, ...]:
    """Those that a job begins with, or goes on with if the flow says which (rule 1)."""
    graph = sizes.graph
    if flow.broadcasts is not None:
        wanted: Collection[str] = set(flow.broadcasts)
    else:
        wanted = _worthwhile(sizes)
    behind = _Behind(graph)
    for node in reversed(graph.nodes.values()):
        if node.id in wanted and _is_keyed_join(node) and _may(flow, graph, node, behind):
            behind.chosen.add(node.id)
    return tuple(id for id in graph.nodes if id in behind.chosen)


def _worthwhile(sizes: Estimates) -> set[str]:
    graph, found = sizes.graph, set[str]()
    if not sizes.are_known or any(traits_of(node.config).throttled for node in graph.nodes.values()):
        return found
    for node in filter(_is_keyed_join, graph.nodes.values()):
        left, right = (sizes.of(source) for source in node.inputs)
        if left >= WORTH and right <= MOST_ROWS and left >= TIMES * right:
            found.add(node.id)
    return found


def _is_keyed_join(node: Node) -> bool:
    return isinstance(node.config, HashJoin) and node.config.how in LEFT_ALONE and not node.hold


def _may(flow: Graph, graph: LiveGraph, join: Node, behind: _Behind) -> bool:
    """Rules 3 and 4."""
    left, right = (graph.nodes[source] for source in join.inputs)
    if not _is_own(graph, right):
        return False
    if left.is_exchange:
        if not _is_own(graph, left) or flow.placement(left.inputs[0]).place not in ("lanes", "parts"):
            return False
    elif flow.placement(left.id).place != "parts":
        return False
    readers = [graph.nodes[id] for id, _ in graph.consumers[join.id]]
    if len(readers) != 1 or not _puts_back(readers[0]) or behind.counts_on_parts(readers[0].id):
        return False
    if left.id not in graph.forked or right.id not in graph.forked:
        return True
    return not graph.upstream(left.id) & graph.upstream(right.id)


def _is_own(graph: LiveGraph, node: Node) -> bool:
    """Whether it is an exchange by key, for one reader."""
    return isinstance(node.config, HashPartitioning) and len(graph.consumers[node.id]) == 1


def _puts_back(node: Node) -> bool:
    return isinstance(node.config, Regroup) and node.config.partitioning is not None


class _Behind:
    """Who stands behind a node. ``chosen``: the joins that get their right side broadcast, from the end of the flow on:
    all behind a node are known before the node is asked about."""

    def __init__(self, graph: LiveGraph) -> None:
        self.chosen: set[str] = set()
        self._graph = graph
        self._known: dict[str, bool] = {}

    def counts_on_parts(self, id: str) -> bool:
        """Whether somebody counts on equal keys being in one part of what a node gives."""
        if id not in self._known:
            self._known[id] = any(self._counts(reader, port) for reader, port in self._graph.consumers[id])
        return self._known[id]

    def _counts(self, id: str, port: int) -> bool:
        node, readers = self._graph.nodes[id], self._graph.consumers[id]
        if node.is_exchange:
            stays = isinstance(node.config, Forward) or any(
                reader in self.chosen and where == LEFT for reader, where in readers
            )
            return stays and self.counts_on_parts(id)
        traits = traits_of(node.config)
        takes_any = len(node.inputs) == 1 and (traits.is_row_wise() or traits.lane_wise)
        takes_any |= id in self.chosen and port == LEFT
        takes_any |= _puts_back(node) and node.inputs[0] in self.chosen
        return not takes_any or self.counts_on_parts(id)


def with_broadcasts(flow: Graph, graph: LiveGraph, joins: Collection[str]) -> Graph:
    """The part of the flow that leads to sinks, with the right sides of these ``joins`` broadcast."""
    lefts, rights = ({graph.nodes[id].inputs[port] for id in joins} for port in (LEFT, RIGHT))
    made, gone = flow.emptied(), dict[str, str]()
    for before in graph.nodes.values():
        node = replace(before, inputs=tuple(gone.get(source, source) for source in before.inputs))
        if node.is_exchange and node.id in lefts:
            if _may_stand_in_stage(made, graph, node):
                gone[node.id] = node.inputs[0]
            else:
                made.put(replace(node, config=Forward()))
        elif node.id in rights:
            made.put(replace(node, config=Broadcast()))
        elif node.id in joins:
            for each in _replicated(made, node):
                made.put(each)
        elif _puts_back(node) and node.inputs[0] in joins:
            made.put(replace(node, config=Regroup()))
        else:
            made.put(node)
    return made


def _may_stand_in_stage(made: Graph, graph: LiveGraph, exchange: Node) -> bool:
    """Whether the join behind an exchange may stand in the stage in front of it: that has no source, and what either
    side is made of goes nowhere else, from where it might come back."""
    before = made.placement(exchange.inputs[0])
    if before.place == "lanes" and not before.crossed:
        return False
    ((join, _),) = graph.consumers[exchange.id]
    return graph.forked.isdisjoint(graph.nodes[join].inputs)


def _replicated(flow: Graph, join: Node) -> tuple[Node, Node]:
    """What marks the left rows with their parts, and the join."""
    config = cast(HashJoin, join.config)
    left, right = (cast(pa.Schema, flow.node(source).schema) for source in join.inputs)
    mark = Node(flow.free(f"{join.id}.part"), MarkPart(), join.inputs[:1], wire_schema(left))
    made = ReplicatedJoin(config)
    schema = made.output_schema([wire_schema(left), right])
    return mark, replace(join, config=made, inputs=(mark.id, join.inputs[1]), schema=schema)

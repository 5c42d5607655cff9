"""Cuts a graph into stages: the connected parts between exchanges. What each has for subtasks and lanes. Pure.

Rules:

1. A stage has either sources, or inputs from exchanges: with both, its tasks would take part in a checkpoint twice, as
   those who begin it and as those who wait for it. A broadcast joins what another exchange brings.
2. Sources: the parallelism asked for, and the flow's lanes. Behind a gather: one subtask, with the lanes of the stage
   that feeds it. Behind partitioned exchanges, all of as many parts: the parallelism asked for, but not more subtasks
   than there are parts, which are the lanes. Behind a forward edge: subtasks and lanes of the stage that feeds it.
3. No stage feeds itself, however far around.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa

from ..core.errors import FlowError
from ..core.traits import traits_of
from ..plan.partitioning import Broadcast, Forward, Gather, Partitioning
from .graph import Graph, Node


@dataclass(slots=True, eq=False)
class Stage:
    """Node ids in topological order; named after the first one. ``exchanges`` bring its rows."""

    name: str
    nodes: list[str]
    sources: list[str] = field(default_factory=list)
    exchanges: list[Node] = field(default_factory=list)
    parallelism: int = 0
    lanes: int = 0


class LiveGraph:
    """The part of a flow that leads to sinks, with its edges in both directions, and its stages."""

    def __init__(self, flow: Graph, parallelism: int, lanes: int) -> None:
        everything = {node.id: node for node in flow.nodes}
        wanted = {node.id for node in flow.nodes if node.schema is None}
        if not wanted:
            raise FlowError(f"flow {flow.name!r} has no sink", "end a stream in write_parquet(…) or collect(…)")
        for node in reversed(flow.nodes):
            if node.id in wanted:
                wanted.update(node.inputs)
        self.nodes = {id: node for id, node in everything.items() if id in wanted}
        self.consumers: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for node in self.nodes.values():
            for port, source in enumerate(node.inputs):
                self.consumers[source].append((node.id, port))
        self._sources: dict[str, frozenset[str]] = {}
        for node in self.nodes.values():
            fed = frozenset[str]().union(*(self._sources[source] for source in node.inputs))
            self._sources[node.id] = fed or frozenset({node.id})
        self.stages = {stage.name: stage for stage in self._stages()}
        self.stage_of = {id: stage for stage in self.stages.values() for id in stage.nodes}
        for stage in self.stages.values():
            self._measure(stage, parallelism, lanes, ())

    def schema(self, id: str) -> pa.Schema:
        """The schema of a node that is no sink."""
        schema = self.nodes[id].schema
        assert schema is not None, "a sink feeds nobody"
        return schema

    def exchanges(self) -> Iterator[Node]:
        """All exchanges."""
        yield from (node for node in self.nodes.values() if node.is_exchange)

    def sources_of(self, id: str) -> frozenset[str]:
        """All sources upstream of a node."""
        return self._sources[id]

    def meets_itself(self, node: Node, port: int) -> bool:
        """Whether rows of one forked stream come on this port of the node and on another one, however far around."""
        mine = self.upstream(node.inputs[port])
        others = (source for number, source in enumerate(node.inputs) if number != port)
        return any(mine & self.upstream(source) for source in others)

    def upstream(self, id: str) -> set[str]:
        """A node and all that it comes of."""
        found, waiting = {id}, [id]
        while waiting:
            new = set(self.nodes[waiting.pop()].inputs) - found
            found |= new
            waiting += new
        return found

    def begins_pipeline(self, node: Node) -> bool:
        """Whether a driver of its own begins at the node, or a port, if it is a source with one consumer."""
        if not node.inputs:
            return len(self.consumers[node.id]) != 1 or self.nodes[self.consumers[node.id][0][0]].is_exchange
        if node.is_exchange or len(node.inputs) > 1:
            return True
        upstream = self.nodes[node.inputs[0]]
        if len(self.consumers[upstream.id]) > 1 or not upstream.inputs:
            return True
        if traits_of(upstream.config).blocking:
            return True
        # work under way elsewhere: only the first operator of a pipeline may have any
        behind_exchange = upstream.is_exchange and not upstream.is_partitioned
        return traits_of(node.config).asynchronous and not behind_exchange

    # ------------------------------------------------------------------ stages

    def _stages(self) -> list[Stage]:
        stage_of: dict[str, int] = {}
        members: dict[int, list[str]] = {}
        for number, node in enumerate(self.nodes.values()):
            joined = set() if node.is_exchange else {stage_of[source] for source in node.inputs}
            target = min(joined, default=number)
            group = sorted({id for stage in joined for id in members.pop(stage)}, key=list(self.nodes).index)
            members[target] = [*group, node.id]
            stage_of.update(dict.fromkeys(members[target], target))
        return [self._stage(members[number]) for number in sorted(members)]

    def _stage(self, ids: list[str]) -> Stage:
        nodes = [self.nodes[id] for id in ids]
        sources = [node.id for node in nodes if not node.inputs]
        exchanges = [node for node in nodes if node.is_exchange]
        if exchanges and sources:
            message = f"source {sources[0]} meets the output of {exchanges[0].id} without an exchange of its own"
            like = ".gather()" if isinstance(exchanges[0].config, Gather) else "the same exchange"
            raise FlowError(message, f"call {like} on the stream of {sources[0]} as well")
        return Stage(ids[0], ids, sources, exchanges)

    def _measure(self, stage: Stage, parallelism: int, lanes: int, below: tuple[Stage, ...]) -> None:
        """Find parallelism and lanes; those of a gather follow from the stage above."""
        if stage.lanes:
            return
        for exchange in stage.exchanges:
            upstream = self.stage_of[exchange.inputs[0]]
            if upstream in (stage, *below):
                message = f"the rows of {exchange.id} come back to the stage {upstream.name} that they come from"
                raise FlowError(message, "let what they meet there pass through an exchange of its own first")
            self._measure(upstream, parallelism, lanes, (stage, *below))
        if stage.sources:
            stage.parallelism, stage.lanes = parallelism, lanes
            return
        forwards = [each for each in stage.exchanges if isinstance(each.config, Forward)]
        if forwards:
            self._measure_behind(stage, forwards)
            return
        gathers = [each for each in stage.exchanges if isinstance(each.config, Gather)]
        parts = {each.id: cast(Partitioning, each.config).parts for each in stage.exchanges if each.is_partitioned}
        if gathers and parts:
            message = f"the gathered rows of {gathers[0].id} meet those of {next(iter(parts))}, which are divided"
            raise FlowError(message, "gather both streams, or partition both by the same keys")
        if len(set(parts.values())) > 1:
            found = ", ".join(f"{id} has {count}" for id, count in parts.items())
            raise FlowError(f"streams of different numbers of parts meet: {found}", "divide them into as many parts")
        if gathers:
            stage.parallelism = 1
            stage.lanes = max(self.stage_of[each.inputs[0]].lanes for each in gathers)
        else:
            stage.lanes = next(iter(parts.values()))
            stage.parallelism = min(parallelism, stage.lanes)

    def _measure_behind(self, stage: Stage, forwards: list[Node]) -> None:
        """A stage behind forward edges, and perhaps broadcasts."""
        others = [each for each in stage.exchanges if not isinstance(each.config, Forward | Broadcast)]
        if others:
            message = f"the rows of {forwards[0].id}, which stay in their subtasks, meet those of {others[0].id}"
            raise FlowError(message, "put forward() behind the operator at which they meet, or leave it out")
        found = {(above.parallelism, above.lanes) for above in (self.stage_of[each.inputs[0]] for each in forwards)}
        if len(found) > 1:
            what = " and ".join(f"{parallelism} subtasks of {lanes} lanes" for parallelism, lanes in sorted(found))
            raise FlowError(f"forward edges from stages of {what} meet", "rebalance both streams")
        ((stage.parallelism, stage.lanes),) = found

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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import pyarrow as pa

from ..core.errors import FlowError
from ..core.traits import Emission, traits_of
from ..core.user_code import is_users_object
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
        self._flow, self._lanes = flow, lanes
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

    def fused(self) -> LiveGraph:
        """The same, of one subtask a stage, without the exchanges between stages that may be one: with one producer and
        one consumer they change nothing, unless they put rows of parts in order. Not in front of a user's operator: it
        may need the place in a driver that it has there. Not of a flow with a feed: it pauses the rounds of its
        producers, and stalls if one of these is a source in its own driver."""
        if any(traits_of(node.config).throttled for node in self.nodes.values()):
            return self
        whole = {stage.name for stage in self.stages.values() if stage.sources}
        waiting = [stage for stage in self.stages.values() if not stage.sources]
        while ready := [stage for stage in waiting if self._may_join(stage, whole)]:
            whole |= {stage.name for stage in ready}
            waiting = [stage for stage in waiting if stage.name not in whole]
        between = {each.id for name in whole for each in self.stages[name].exchanges}
        return LiveGraph(self._flow.without(between), 1, self._lanes) if between else self

    def _may_join(self, stage: Stage, whole: Collection[str]) -> bool:
        readers = (self.nodes[id] for each in stage.exchanges for id, _ in self.consumers[each.id])
        return not any(is_users_object(reader.config) for reader in readers) and all(
            not each.is_partitioned and self.stage_of[each.inputs[0]].name in whole for each in stage.exchanges
        )

    def schema(self, id: str) -> pa.Schema:
        """The schema of a node that is no sink."""
        schema = self.nodes[id].schema
        assert schema is not None, "a sink feeds nobody"
        return schema

    @cached_property
    def mixtures(self) -> list[tuple[Node, Sequence[float]]]:
        """The operators whose inputs are read in a ratio, with it."""
        found = ((node, traits_of(node.config).read_in_ratio) for node in self.nodes.values())
        return [(node, ratio) for node, ratio in found if ratio]

    @cached_property
    def picked(self) -> frozenset[str]:
        """The filters that readers of sources apply: those that stand directly behind one (``sources.picking``)."""
        found = set[str]()
        for node in self.nodes.values():
            if not node.is_exchange and node.inputs and traits_of(node.config).picks:
                (source,) = node.inputs
                is_first = source in found or not self.nodes[source].inputs
                is_alone = len(self.consumers[source]) == 1
                if is_first and is_alone and traits_of(node.config).columns_of([self.schema(source)])[0].reads:
                    found.add(node.id)
        return frozenset(found)

    @cached_property
    def cuts_are_seen(self) -> frozenset[str]:
        """What cuts its output anew, and so elsewhere where rows are left out of its input, if somebody behind it sees
        how batches are cut: a function of a user, or an operator that says nothing of itself."""
        seen = set[str]()  # nodes behind which there is one
        for node in reversed(self.nodes.values()):
            if any(reader in seen or self._sees_cuts(self.nodes[reader]) for reader, _ in self.consumers[node.id]):
                seen.add(node.id)
        return frozenset(id for id in seen if not self._keeps_cuts(self.nodes[id]))

    def _sees_cuts(self, node: Node) -> bool:
        if node.schema is None:
            return is_users_object(node.config)
        return not node.is_exchange and not traits_of(node.config).deterministic

    def _keeps_cuts(self, node: Node) -> bool:
        return node.is_exchange or traits_of(node.config).emission is Emission.PER_BATCH

    @cached_property
    def may_fail(self) -> Mapping[str, bool]:
        """For each node whether what stands in rows may make it fail, or one above it: a condition or a column without
        an answer for every row, a sum that may not fit. Reading does not count, nor do functions of users."""
        found: dict[str, bool] = {}
        for node in self.nodes.values():
            found[node.id] = any(found[source] for source in node.inputs) or self._may_fail(node)
        return found

    def _may_fail(self, node: Node) -> bool:
        if not node.inputs or node.is_exchange or node.schema is None or not traits_of(node.config).deterministic:
            return False
        traits, schemas = traits_of(node.config), [self.schema(source) for source in node.inputs]
        if traits.may_miss_rows is not None and any(traits.may_miss_rows(schemas)):
            return False
        return traits.early is None or not any(traits.early(schemas, set(node.schema.names)))

    def exchanges(self) -> Iterator[Node]:
        """All exchanges."""
        yield from (node for node in self.nodes.values() if node.is_exchange)

    def sources_of(self, id: str) -> frozenset[str]:
        """All sources upstream of a node."""
        return self._sources[id]

    def meets_itself(self, node: Node, port: int) -> bool:
        """Whether rows of one forked stream come on this port of the node and on another one, however far around."""
        if node.inputs[port] not in self.forked:
            return False
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

    @cached_property
    def forked(self) -> frozenset[str]:
        """The nodes that have several readers, or are made of what has."""
        found = set[str]()
        for node in self.nodes.values():
            if len(self.consumers[node.id]) > 1 or not found.isdisjoint(node.inputs):
                found.add(node.id)
        return frozenset(found)

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
        first: dict[str, str] = {}  # towards the first node of the stage that a node belongs to

        def stage_of(id: str) -> str:
            while (above := first[id]) != id:
                first[id] = id = first[above]
            return id

        places = {id: place for place, id in enumerate(self.nodes)}
        for node in self.nodes.values():
            joined = [] if node.is_exchange else [stage_of(source) for source in node.inputs]
            target = min(joined, key=places.__getitem__, default=node.id)
            first.update(dict.fromkeys((*joined, node.id), target))
        members: dict[str, list[str]] = {}
        for id in self.nodes:
            members.setdefault(stage_of(id), []).append(id)
        return [self._stage(ids) for ids in members.values()]

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

"""The planner: cuts a flow into stages and pipelines. Pure, but for listing the sources' splits.

Rules:

1. A stage is a connected part of the graph between exchanges. A stage behind a gather has one subtask; every other one
   has the parallelism asked for, which the number of lanes bounds.
2. A pipeline begins at a node with several inputs, at an exchange, and wherever a stream has several consumers; a
   source is a port of the pipeline of its only consumer. It ends at a sink, an exchange, or where another one begins.
3. Sources that feed a merge join are read in whole splits, and must have equally many: round ``r`` of lane ``l`` is the
   same split set on both sides.
4. What leads to no sink is left out.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from typing import cast

import pyarrow as pa

from .errors import FlowError, PenstockError
from .graph import Gather, Graph, Node
from .operators import MergeJoin
from .operators.protocol import OperatorConfig
from .plan import Exchange, JobPlan, OperatorPlan, OutputPlan, PipelinePlan, PortPlan, SourcePlan, StagePlan
from .rounds import CHUNK_ROWS
from .sources.protocol import SourceConfig

ROUND_QUOTA = 4 * CHUNK_ROWS
"""Rows of a lane's round where no merge join asks for whole splits: a checkpoint waits for the rest of one round."""


def plan_job(flow: Graph, parallelism: int = 2, *, job: str | None = None, rate: float | None = None) -> JobPlan:
    """Plan ``flow`` for ``parallelism`` subtasks a stage. ``job``: the job's name, by default the flow's.

    ``rate`` replaces the rate of all sources that have one. Raises FlowError.
    """
    graph = _Graph(flow)
    if not 1 <= parallelism <= flow.lanes:
        message = f"parallelism {parallelism} is not between 1 and the flow's {flow.lanes} lanes"
        raise FlowError(message, f"run with parallelism ≤ {flow.lanes}, or build the flow with more lanes")
    sources = {node.id: _plan_source(graph, node, rate) for node in graph.nodes.values() if graph.is_source(node)}
    _check_co_partitioned(graph, sources)
    stages = {stage[0]: _plan_stage(graph, stage, parallelism) for stage in graph.stages()}
    description, data = _describe(flow, sources)
    return JobPlan(
        name=job or flow.name,
        fingerprint=f"{flow.fingerprint()}-{data}",
        description=description,
        lanes=flow.lanes,
        stages=stages,
        exchanges=tuple(graph.exchanges()),
        sources=sources,
    )


class _Graph:
    """The part of a flow that leads to sinks, with its edges in both directions."""

    def __init__(self, flow: Graph) -> None:
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
        self.stage_of: dict[str, str] = {}

    def is_source(self, node: Node) -> bool:
        return not node.inputs

    def is_exchange(self, node: Node) -> bool:
        return isinstance(node.config, Gather)

    def stages(self) -> list[list[str]]:
        """Node ids by stage, each in topological order; a stage is named after its first node."""
        stage_of: dict[str, int] = {}
        members: dict[int, list[str]] = {}
        for number, node in enumerate(self.nodes.values()):
            joined = set() if self.is_exchange(node) else {stage_of[source] for source in node.inputs}
            target = min(joined, default=number)
            group = sorted({id for stage in joined for id in members.pop(stage)}, key=list(self.nodes).index)
            members[target] = [*group, node.id]
            stage_of.update(dict.fromkeys(members[target], target))
        found = [members[stage] for stage in sorted(members)]
        self.stage_of = {id: stage[0] for stage in found for id in stage}
        for stage in found:
            self._check_stage(stage)
        return found

    def _check_stage(self, stage: list[str]) -> None:
        exchanges = [id for id in stage if self.is_exchange(self.nodes[id])]
        sources = [id for id in stage if self.is_source(self.nodes[id])]
        if exchanges and sources:
            message = f"source {sources[0]} meets the output of {exchanges[0]} without an exchange of its own"
            raise FlowError(message, f"call .gather() on the stream of {sources[0]} as well")

    def exchanges(self) -> Iterable[Exchange]:
        for node in self.nodes.values():
            if self.is_exchange(node):
                yield Exchange(node.id, self.stage_of[node.inputs[0]], self.stage_of[node.id], "all_to_all")

    def sources_of(self, id: str) -> set[str]:
        """All sources upstream of a node."""
        node = self.nodes[id]
        return {id} if self.is_source(node) else set().union(*(self.sources_of(source) for source in node.inputs))

    def begins_pipeline(self, node: Node) -> bool:
        if self.is_source(node):
            return len(self.consumers[node.id]) != 1 or self.is_exchange(self.nodes[self.consumers[node.id][0][0]])
        if self.is_exchange(node) or len(node.inputs) > 1:
            return True
        upstream = self.nodes[node.inputs[0]]
        if len(self.consumers[upstream.id]) > 1:
            return True
        return self.is_source(upstream)


def _plan_source(graph: _Graph, node: Node, rate: float | None) -> SourcePlan:
    config = cast(SourceConfig, node.config)
    joined = any(
        isinstance(other.config, MergeJoin) and node.id in graph.sources_of(other.id) for other in graph.nodes.values()
    )
    try:
        splits = tuple(config.splits())
    except PenstockError as error:
        raise error.at(node.id) from error
    pace = rate if rate is not None and node.rate else node.rate
    return SourcePlan(node.id, config, config.schema, splits, None if joined else ROUND_QUOTA, pace)


def _check_co_partitioned(graph: _Graph, sources: dict[str, SourcePlan]) -> None:
    for node in graph.nodes.values():
        if not isinstance(node.config, MergeJoin):
            continue
        counts = {source: len(sources[source].splits) for source in sorted(graph.sources_of(node.id))}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{source} has {count}" for source, count in counts.items())
            message = f"the two sides are not co-partitioned: {found} splits"
            raise FlowError(message, "partition both sides by the same key into the same number of partitions", node.id)


def _plan_stage(graph: _Graph, stage: list[str], parallelism: int) -> StagePlan:
    nodes = [graph.nodes[id] for id in stage]
    gathered = any(graph.is_exchange(node) for node in nodes)
    heads = [node for node in nodes if graph.begins_pipeline(node)]
    pipelines = tuple(_plan_pipeline(graph, head) for head in heads)
    return StagePlan(stage[0], 1 if gathered else parallelism, pipelines)


def _plan_pipeline(graph: _Graph, head: Node) -> PipelinePlan:
    operators: list[OperatorPlan] = []
    node = head
    while True:
        if not graph.is_source(node) and not graph.is_exchange(node):
            operators.append(_plan_operator(graph, node))
        consumers = [graph.nodes[id] for id, _ in graph.consumers[node.id]]
        if len(consumers) != 1 or graph.is_exchange(consumers[0]) or graph.begins_pipeline(consumers[0]):
            break
        node = consumers[0]
    outputs = tuple(_plan_output(graph, node, consumer, port) for consumer, port in graph.consumers[node.id])
    return PipelinePlan(head.id, _plan_ports(graph, head), tuple(operators), outputs)


def _plan_operator(graph: _Graph, node: Node) -> OperatorPlan:
    schemas = tuple(_schema(graph, source) for source in node.inputs)
    return OperatorPlan(node.id, cast(OperatorConfig, node.config), schemas, node.schema is None)


def _plan_ports(graph: _Graph, head: Node) -> tuple[PortPlan, ...]:
    if graph.is_source(head):
        return (PortPlan("source", head.id, _schema(graph, head.id)),)
    if graph.is_exchange(head):
        return (PortPlan("exchange", head.id, _schema(graph, head.id)),)
    return tuple(
        PortPlan("local", _local_edge(source, head.id, port), _schema(graph, source))
        if graph.begins_pipeline(graph.nodes[source]) or not graph.is_source(graph.nodes[source])
        else PortPlan("source", source, _schema(graph, source))
        for port, source in enumerate(head.inputs)
    )


def _plan_output(graph: _Graph, node: Node, consumer: str, port: int) -> OutputPlan:
    if graph.is_exchange(graph.nodes[consumer]):
        return OutputPlan("exchange", consumer)
    return OutputPlan("local", _local_edge(node.id, consumer, port))


def _local_edge(source: str, consumer: str, port: int) -> str:
    return f"{source}->{consumer}:{port}"


def _schema(graph: _Graph, id: str) -> pa.Schema:
    schema = graph.nodes[id].schema
    assert schema is not None, "a sink feeds nobody"
    return schema


def _describe(flow: Graph, sources: dict[str, SourcePlan]) -> tuple[str, str]:
    """The job in words, and a hash of its data: splits, their sizes, and fingerprints where the source has one."""
    lines = [f"flow {flow.name!r}, {flow.lanes} lanes", flow.describe()]
    digest = hashlib.sha256()
    for source in sources.values():
        rows = "unknown" if source.rows is None else f"{source.rows:,}"
        content = str(getattr(source.config, "fingerprint", ""))
        lines.append(f"{source.id}: {len(source.splits)} splits, {rows} rows {content}".rstrip())
        digest.update(f"{source.id} {content}".encode())
        for split in source.splits:
            digest.update(f"{split.id} {split.rows}".encode())
    return "\n".join(lines), digest.hexdigest()[:16]

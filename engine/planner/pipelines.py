"""The planner: cuts a flow into stages (``stages``) and these into pipelines. Pure, but for listing the splits.

Rules:

1. A pipeline begins at a node with several inputs, at an exchange, wherever a stream has several consumers, behind an
   operator that blocks (a sort, an aggregation), and at one that may have work under way elsewhere; a source is a port
   of the pipeline of its only consumer. It ends at a sink, an exchange, or where another one begins.
2. Behind a partitioned exchange a pipeline begins with ``Regroup``, under the exchange's id.
3. Sources that feed a merge join are read in whole splits, and must have equally many: round ``r`` of lane ``l`` is the
   same split set on both sides. Not so if all rows of both sides come at the end (``emission``).
4. Sources of a mixture are read in the ratio of its weights: their rounds are as long.
5. Where the branches of a fork meet again, ports are spooled: the fork can then always send to the other branch.
6. What leads to no sink is left out.
7. Where feeds have several epochs, their sources are read again and again (``epoch_planning``).
8. Joins by key may get their right side broadcast instead (``broadcasting``).
9. Where a shuffle asks for it, splits are read in a drawn order (``split_draws``).
10. Of the sources only the columns that are needed are read (``pruning``), and of the rows, as far as that is known in
   time, those that joins do not drop (``key_filters``), nor filters further down (``early_filters``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast

from ..arrow.plain_types import plain_schema
from ..core.errors import ConfigurationError, FlowError, PenstockError
from ..core.operator import OperatorConfig
from ..core.source import SourceConfig
from ..core.traits import traits_of
from ..files.store_options import StoreAccess
from ..operators.sequence.regroup import Regroup
from ..plan.partitioning import Exchanging, Forward, wire_schema
from ..plan.plan import Exchange, JobPlan, OperatorPlan, OutputPlan, PipelinePlan, PortPlan, SourcePlan, StagePlan
from ..plan.resources import joined
from ..plan.rounds import CHUNK_ROWS
from ..state.memory import DEFAULT_BUDGET
from .broadcasting import broadcast_joins, with_broadcasts
from .early_filters import plan_early_filters
from .emission import check_co_partitioned
from .epoch_planning import plan_epochs
from .estimates import Estimates
from .graph import Graph, Node, Order
from .key_filters import plan_key_filters
from .pruning import narrowed_source, pruned
from .reading_order import read_first
from .split_draws import with_drawn_splits
from .stages import LiveGraph, Stage

ROUND_QUOTA = CHUNK_ROWS
"""Rows of a lane's round where nothing else is asked for: fewer cost more, more keep the lanes behind waiting."""
PACED_SECONDS, LEAST_PACED = 0.5, 1024
"""So long takes a round of a source with a rate, of so many rows at least: those of the lanes behind wait for it."""


def plan_job(
    flow: Graph,
    parallelism: int = 2,
    *,
    job: str | None = None,
    rate: float | None = None,
    lanes: int | None = None,
    order: Order | None = None,
    memory_budget: int | None = DEFAULT_BUDGET,
    threads: int | None = None,
    prune: bool = True,
    fused: bool = False,
) -> JobPlan:
    """Plan ``flow`` for ``parallelism`` subtasks a stage. ``job``: the job's name, by default the flow's.

    ``rate`` replaces the rate of all sources that have one, or paces all if none has; ``lanes`` replaces the flow's
    number of lanes, ``order`` its order.
    ``memory_budget``: bytes that the operators of a task may hold before they spill; ``threads``: of each process.
    ``prune``: read only the columns that are needed; not if others give the splits: operators then hand on only those.
    ``fused``: with one subtask a stage, make one task of stages between which exchanges change nothing; not if others
    may go on from its checkpoints, as these name the tasks. Raises FlowError.
    """
    _check_options(memory_budget, threads)
    lanes, order = lanes or flow.lanes, order or flow.order
    if not 1 <= parallelism <= lanes:
        message = f"parallelism {parallelism} is not between 1 and the flow's {lanes} lanes"
        raise FlowError(message, f"run with parallelism ≤ {lanes}, or build the flow with more lanes")
    whole = pruned(flow, sources=prune)
    graph = LiveGraph(whole, parallelism, lanes)
    ordered = order == "deterministic"
    heads = [node for node in graph.nodes.values() if not node.inputs]
    paced = {node.id for node in heads if node.rate} or {node.id for node in heads}
    joined = _joined_by_split(graph)
    rows = _round_rows(flow, heads, lanes)
    found = {node.id: _plan_source(graph, node, rate if node.id in paced else None, joined, rows) for node in heads}
    if ordered:
        found = with_drawn_splits(graph, found, lanes)
    epochs, sources = plan_epochs(graph, found, lanes, ordered=ordered)
    sizes = Estimates(graph, sources)
    broadcasts = broadcast_joins(whole, sizes) if prune and ordered and epochs is None else ()
    if broadcasts:
        whole = with_broadcasts(whole, graph, broadcasts)
        graph = LiveGraph(whole, parallelism, lanes)
    by_split = check_co_partitioned(tuple(graph.nodes.values()), whole.placement, ordered=ordered)
    _check_splits(graph, sources, by_split)
    graph = graph.fused() if fused and parallelism == 1 else graph
    early = plan_early_filters(graph)
    sizes = sizes.over(graph, early)
    first = read_first(sizes) if ordered and epochs is None else {}
    description, data = _describe(flow, graph, sources, lanes, order)
    return JobPlan(
        name=job or flow.name,
        fingerprint=f"{flow.fingerprint(lanes, order)}-{data}",
        description=description,
        lanes=lanes,
        stages=_with_reading_order(
            {stage.name: _plan_stage(flow, graph, stage, ordered) for stage in graph.stages.values()}, first
        ),
        exchanges=tuple(_plan_exchange(graph, node) for node in graph.exchanges()),
        sources=sources,
        parts=flow.parts,
        broadcasts=broadcasts,
        round_rows=rows,
        guesses=sizes.of_joins(),
        deterministic=ordered,
        memory_budget=memory_budget,
        threads=threads,
        key_filters=() if epochs is not None else plan_key_filters(graph, first),
        early_filters=early,
        epochs=epochs,
        access=StoreAccess().with_those_of(node.config for node in flow.nodes),
    )


def _check_options(memory_budget: int | None, threads: int | None) -> None:
    if memory_budget is not None and memory_budget < 0:
        raise ConfigurationError(f"a memory budget of {memory_budget} bytes", "give bytes, or None for no bound")
    if threads is not None and threads < 0:
        raise ConfigurationError(f"{threads} threads", "give a number from 0 on")


def _joined_by_split(graph: LiveGraph) -> frozenset[str]:
    """The sources of operators that put splits of equal number together."""
    joins = (node.id for node in graph.nodes.values() if traits_of(node.config).co_partitioned_by)
    return frozenset[str]().union(*map(graph.sources_of, joins))


def _round_rows(flow: Graph, heads: Sequence[Node], lanes: int) -> int:
    """Rows of a lane's round where no merge join asks for whole splits. Of the rates only those of the flow count, not
    the ones of this run: the order depends on it."""
    rates = [node.rate for node in heads if node.rate]
    if flow.round_rows is not None or not rates:
        return flow.round_rows or ROUND_QUOTA
    return min(ROUND_QUOTA, max(LEAST_PACED, round(PACED_SECONDS * min(rates) / lanes)))


def _plan_source(
    graph: LiveGraph, node: Node, rate: float | None, joined: frozenset[str], round_rows: int
) -> SourcePlan:
    config = cast(SourceConfig, node.config)
    try:
        splits = tuple(config.splits())
    except PenstockError as error:
        raise error.at(node.id) from error
    fed = getattr(config, "fed", False)
    pace = node.rate if rate is None else rate
    quota = None if node.id in joined or fed else _quota(graph, node, round_rows)
    return narrowed_source(
        SourcePlan(node.id, config, plain_schema(config.schema), splits, quota, pace), graph.schema(node.id)
    )


def _quota(graph: LiveGraph, source: Node, round_rows: int) -> int:
    """Rows of a lane's round. Where the source goes into mixtures, in the ratio of the weights: so what comes in one
    round is about what leaves in it."""
    quota = float(round_rows)
    for node, ratio in graph.mixtures:
        ports = zip(node.inputs, ratio, strict=True)
        weights = [weight for stream, weight in ports if source.id in graph.sources_of(stream)]
        quota *= max(weights) / max(ratio) if weights else 1
    return max(1, round(quota))


def _check_splits(graph: LiveGraph, sources: dict[str, SourcePlan], joins: set[str]) -> None:
    for join in sorted(joins):
        counts = {source: len(sources[source].splits) for source in sorted(graph.sources_of(join))}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{source} has {count}" for source, count in counts.items())
            message = f"the two sides are not co-partitioned: {found} splits"
            raise FlowError(message, "partition both sides by the same key into the same number of partitions", join)


def _plan_exchange(graph: LiveGraph, node: Node) -> Exchange:
    source, target = graph.stage_of[node.inputs[0]].name, graph.stage_of[node.id].name
    config = cast(Exchanging, node.config)
    pattern: Literal["all_to_all", "pointwise"] = "pointwise" if isinstance(config, Forward) else "all_to_all"
    return Exchange(node.id, source, target, pattern, config, graph.schema(node.id))


def _plan_stage(flow: Graph, graph: LiveGraph, stage: Stage, ordered: bool) -> StagePlan:
    heads = [graph.nodes[id] for id in stage.nodes if graph.begins_pipeline(graph.nodes[id])]
    pipelines = tuple(_plan_pipeline(graph, head, ordered) for head in heads)
    resources = joined((id, flow.asked(id)) for id in stage.nodes)
    return StagePlan(stage.name, stage.parallelism, pipelines, stage.lanes, resources)


def _with_reading_order(stages: dict[str, StagePlan], first: dict[str, int]) -> dict[str, StagePlan]:
    """The stages, with joins that know which port they read first."""

    def told(pipeline: PipelinePlan) -> PipelinePlan:
        operators = tuple(replace(each, read_first=first.get(each.id)) for each in pipeline.operators)
        return replace(pipeline, operators=operators)

    return {name: replace(stage, pipelines=tuple(map(told, stage.pipelines))) for name, stage in stages.items()}


def _plan_pipeline(graph: LiveGraph, head: Node, ordered: bool) -> PipelinePlan:
    operators: list[OperatorPlan] = []
    if head.is_partitioned:
        operators.append(OperatorPlan(head.id, Regroup(None, ordered), (wire_schema(graph.schema(head.id)),), False))
    node = head
    while True:
        if node.inputs and not node.is_exchange:
            operators.append(_plan_operator(graph, node, ordered))
        consumers = [graph.nodes[id] for id, _ in graph.consumers[node.id]]
        if len(consumers) != 1 or consumers[0].is_exchange or graph.begins_pipeline(consumers[0]):
            break
        node = consumers[0]
    outputs = tuple(_plan_output(graph, node, consumer, port) for consumer, port in graph.consumers[node.id])
    return PipelinePlan(head.id, _plan_ports(graph, head), tuple(operators), outputs)


def _plan_operator(graph: LiveGraph, node: Node, ordered: bool) -> OperatorPlan:
    schemas = tuple(graph.schema(source) for source in node.inputs)
    config = cast(OperatorConfig, node.config)
    unordered = traits_of(config).unordered
    if unordered is not None and not ordered:
        config = unordered()
    whole = tuple(port for port, source in enumerate(node.inputs) if len(schemas) > 1 and graph.may_fail[source])
    return OperatorPlan(node.id, config, schemas, node.schema is None, node.hold, reads_whole=whole)


def _plan_ports(graph: LiveGraph, head: Node) -> tuple[PortPlan, ...]:
    if not head.inputs:
        return (PortPlan("source", head.id, graph.schema(head.id)),)
    if head.is_exchange:
        schema = graph.schema(head.id)
        return (PortPlan("exchange", head.id, wire_schema(schema) if head.is_partitioned else schema),)
    return tuple(
        PortPlan("local", _local_edge(source, head.id, port), graph.schema(source), graph.meets_itself(head, port))
        if graph.begins_pipeline(graph.nodes[source]) or graph.nodes[source].inputs
        else PortPlan("source", source, graph.schema(source))
        for port, source in enumerate(head.inputs)
    )


def _plan_output(graph: LiveGraph, node: Node, consumer: str, port: int) -> OutputPlan:
    if graph.nodes[consumer].is_exchange:
        return OutputPlan("exchange", consumer)
    return OutputPlan("local", _local_edge(node.id, consumer, port))


def _local_edge(source: str, consumer: str, port: int) -> str:
    return f"{source}->{consumer}:{port}"


def fingerprint_of(config: SourceConfig) -> str | None:
    """What the source says of its data (``sources.protocol``, rule 4); None: nothing."""
    told = getattr(config, "fingerprint", None)
    return None if told is None else str(told() if callable(told) else told)


def _describe(
    flow: Graph, graph: LiveGraph, sources: dict[str, SourcePlan], lanes: int, order: Order
) -> tuple[str, str]:
    """The job in words, and a hash of its data: splits, their sizes, and fingerprints of sources and indexes."""
    lines = [f"flow {flow.name!r}, {lanes} lanes, {order} order", flow.describe()]
    digest = hashlib.sha256()
    for source in sources.values():
        rows = "unknown" if source.rows is None else f"{source.rows:,}"
        content = fingerprint_of(source.config) or ""
        lines.append(f"{source.id}: {len(source.own_splits)} splits, {rows} rows {content}".rstrip())
        digest.update(f"{source.id} {content}".encode())
        for split in source.own_splits:
            digest.update(f"{split.id} {split.rows}".encode())
    for node in graph.nodes.values():
        if node.inputs and hasattr(node.config, "fingerprint"):
            digest.update(f"{node.id} {node.config.fingerprint}".encode())
    return "\n".join(lines), digest.hexdigest()[:16]

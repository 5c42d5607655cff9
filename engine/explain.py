"""What ``explain`` prints: stages, pipelines, exchanges, lanes and parts, and each sink's guarantee."""

from __future__ import annotations

from .plan import JobPlan, PipelinePlan, StagePlan


def explain(plan: JobPlan) -> str:
    """The plan in words."""
    order = "deterministic" if plan.deterministic else "arrival"
    meaning = "the same rows in the same order" if plan.deterministic else "the same rows, in another order each time"
    where = "at any parallelism" if plan.deterministic else ""
    lines = [
        f"job {plan.name}",
        f"  order: {order}, {plan.lanes} lanes; {meaning} {where}".rstrip(),
        "",
        "sources",
        *(_source(plan, id) for id in plan.sources),
        "",
    ]
    for stage in plan.stages.values():
        lines += [*_stage(plan, stage), ""]
    lines += ["edges", *(_exchanges(plan) or ["  none between stages"]), "", "sinks"]
    lines += [
        f"  {id}: {config.kind}, {config.guarantee}, {config.describe()}" for id, (_, config) in plan.sinks.items()
    ]
    return "\n".join(lines)


def _source(plan: JobPlan, id: str) -> str:
    source = plan.sources[id]
    rows = "rows unknown" if source.rows is None else f"{source.rows:,} rows"
    rounds = (
        "a round reads one whole split a lane"
        if source.quota is None
        else f"a round reads {source.quota:,} rows a lane"
    )
    pace = f", {source.rate:,.0f} rows/s" if source.rate else ""
    return f"  {id}: {source.config.kind}, {len(source.splits)} splits, {rows}{pace}; {rounds}"


def _stage(plan: JobPlan, stage: StagePlan) -> list[str]:
    behind = any(edge.target == stage.name and edge.is_partitioned for edge in plan.exchanges)
    share = f"{stage.lanes / stage.parallelism:.3g} {'parts' if behind else 'lanes'} each"
    pace = ", paced by its readers" if stage.paced else ""
    lines = [f"stage {stage.name}: {stage.parallelism} subtask{'s' if stage.parallelism > 1 else ''}, {share}{pace}"]
    for pipeline in stage.pipelines:
        lines += _pipeline(pipeline)
    return lines


def _pipeline(pipeline: PipelinePlan) -> list[str]:
    ports = " + ".join(f"{port.kind} {port.id}" for port in pipeline.ports)
    outputs = ", ".join(f"{output.kind} {output.id}" for output in pipeline.outputs)
    lines = [f"  pipeline {pipeline.name}: {ports}"]
    lines += [
        f"    → {operator.id}: {operator.config.kind} {operator.config.describe()}"
        f"{'; holds at task barriers' if operator.hold else ''}"
        for operator in pipeline.operators
    ]
    return [*lines, f"    ⇒ {outputs}"] if outputs else lines


def _exchanges(plan: JobPlan) -> list[str]:
    return [
        f"  {edge.id}: {edge.source} → {edge.target}, {edge.pattern.replace('_', ' ')}; "
        f"{edge.config.kind} {edge.config.describe()}"
        for edge in plan.exchanges
    ]

"""What ``explain`` prints: stages, pipelines, exchanges, lanes and parts, each sink's guarantee, the memory bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Protocol

from ..core.source import SourceConfig
from ..core.traits import traits_of
from ..core.user_code import is_users_object
from ..kernels.page_library import page_library
from ..operators.join.equi_join import NAMES
from ..plan.plan import JobPlan, OperatorPlan, PipelinePlan, StagePlan
from .memory_bound import lanes_at_once, memory_bound

MOST_CHARACTERS = 200
"""Of a condition that is shown."""


class RunsOn(Protocol):
    """What is said about the processes of a run (``penstock.Runtime``), as far as it shows in the plan."""

    def codecs(self, edges: Iterable[str]) -> Mapping[str, str | None]:
        """How the batches of each edge are compressed between machines, of those that are. Raises ConfigurationError
        if others are named."""


def explain(plan: JobPlan, runtime: RunsOn | None = None) -> str:
    """The plan in words."""
    codecs = {} if runtime is None else runtime.codecs([edge.id for edge in plan.exchanges])
    order = "deterministic" if plan.deterministic else "arrival"
    meaning = "the same rows in the same order" if plan.deterministic else "the same rows, in another order each time"
    where = "at any parallelism" if plan.deterministic else ""
    lines = [
        f"job {plan.name}",
        f"  order: {order}, {plan.lanes} lanes; {meaning} {where}".rstrip(),
        *(("  checkpoints: between windows, with nothing in flight",) if plan.fed else ()),
        *(() if page_library() is not None else ("  compiled kernels are missing here: numpy does the same, slower",)),
        "",
        "sources",
        *(_source(plan, id) for id in plan.sources),
        "",
    ]
    for stage in plan.stages.values():
        lines += [*_stage(plan, stage), ""]
    lines += ["edges", *(_exchanges(plan, codecs) or ["  none between stages"]), "", "sinks"]
    lines += [
        f"  {id}: {config.kind}, {config.guarantee}, {config.describe()}" for id, (_, config) in plan.sinks.items()
    ]
    lines += ["", "memory, at most", *memory_bound(plan).lines()]
    return "\n".join(lines)


def _source(plan: JobPlan, id: str) -> str:
    source = plan.sources[id]
    rows = "rows unknown" if source.rows is None else f"{source.rows:,} rows"
    rounds = (
        "a round reads one whole split a lane"
        if source.quota is None
        else f"a round reads {source.quota:,} rows a lane"
    )
    if plan.epochs is not None:
        often = f"{plan.epochs.count} times, each in {plan.epochs.rounds} rounds" if source.repeats else "once"
        rounds += f"; it is read {often}"
    pace = f", {source.rate:,.0f} rows/s" if source.rate else ""
    names, there = source.schema.names, len(source.config.schema)
    read = f", {', '.join(names)} of {there} columns" if len(names) < there else ""
    if lanes_at_once(source) > 1:
        rounds += f"; {lanes_at_once(source)} lanes are read at once where there are threads for it"
    rounds += "".join(f"; {each}" for each in _picked(plan, id))
    blind = "" if notices_changes(source.config) else "; nobody notices if its data change: it has no fingerprint()"
    drawn = ", read in a drawn order" if source.given else ""
    return f"  {id}: {source.config.kind}, {len(source.own_splits)} splits{drawn}, {rows}{read}{pace}; {rounds}{blind}"


def _picked(plan: JobPlan, source: str) -> Iterator[str]:
    """What the reader of a source leaves out, and by what."""
    filters = [operator.id for operator in _filters(plan, source)]
    if filters:
        yield f"{' and '.join(filters)} {'is' if len(filters) == 1 else 'are'} applied as it is read"
    told = [each for each in plan.key_filters if each.source == source]
    yield from (f"{each.join} tells which {', '.join(each.columns)} it needs" for each in told)
    early = [each for each in plan.early_filters if each.source == source]
    yield from (f"early for {' and '.join(each.by)}: {_short(each.condition)}" for each in early)
    if (filters or told or early) and any(
        getattr(each, "has_statistics", False) for each in plan.sources[source].splits
    ):
        yield f"row groups may be left out by statistics{' or bloom filters' if filters or early else ''}"


def _filters(plan: JobPlan, source: str) -> Iterator[OperatorPlan]:
    """The operators directly behind a source that its reader applies (``TaskBuilder``)."""
    for stage in plan.stages.values():
        for pipeline in stage.pipelines:
            port = pipeline.ports[0]
            if len(pipeline.ports) == 1 and (port.kind, port.id, port.spooled) == ("source", source, False):
                yield from takewhile(_is_picked, pipeline.operators)


def _is_picked(operator: OperatorPlan) -> bool:
    traits = traits_of(operator.config)
    return traits.picks and not is_users_object(operator.config) and bool(traits.columns_of(operator.inputs)[0].reads)


def _short(condition: object) -> str:
    text = " ".join(str(condition).split())
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def notices_changes(config: SourceConfig) -> bool:
    """Whether a job that goes on finds out that the source's data are others now: by its files, its rows in memory or
    what it says of them, or because they are handed over to it."""
    return any(hasattr(config, each) for each in ("listed", "content", "fingerprint", "fed", "handed_over"))


def _stage(plan: JobPlan, stage: StagePlan) -> list[str]:
    behind = any(edge.target == stage.name and edge.is_partitioned for edge in plan.exchanges)
    share = f"{stage.lanes / stage.parallelism:.3g} {'parts' if behind else 'lanes'} each"
    pace = ", paced by its readers" if stage.paced else ""
    asks = f"; each asks for {stage.resources}" if stage.resources else ""
    count = f"{stage.parallelism} subtask{'s' if stage.parallelism > 1 else ''}"
    lines = [f"stage {stage.name}: {count}, {share}{pace}{asks}"]
    for pipeline in stage.pipelines:
        lines += _pipeline(plan, pipeline)
    return lines


def _pipeline(plan: JobPlan, pipeline: PipelinePlan) -> list[str]:
    ports = " + ".join(f"{port.kind} {port.id}" for port in pipeline.ports)
    outputs = ", ".join(f"{output.kind} {output.id}" for output in pipeline.outputs)
    lines = [f"  pipeline {pipeline.name}: {ports}"]
    lines += [
        f"    → {operator.id}: {operator.config.kind} {operator.config.describe()}"
        f"{'; holds at task barriers' if operator.hold else ''}"
        f"{'' if operator.read_first is None else f'; reads its {NAMES[operator.read_first]} side first'}"
        f"{'; the right side is broadcast by its size' if operator.id in plan.broadcasts else ''}"
        f"{_guessed(plan.guesses.get(operator.id))}"
        for operator in pipeline.operators
    ]
    return [*lines, f"    ⇒ {outputs}"] if outputs else lines


def _guessed(rows: Sequence[int] | None) -> str:
    """How large the sides of a join may be: what was chosen goes by that."""
    if rows is None:
        return ""
    return "; about " + " and ".join(f"{count:,} {side}" for count, side in zip(rows, NAMES, strict=True)) + " rows"


def _exchanges(plan: JobPlan, codecs: Mapping[str, str | None]) -> list[str]:
    return [
        f"  {edge.id}: {edge.source} → {edge.target}, {edge.pattern.replace('_', ' ')}; "
        f"{edge.config.kind} {edge.config.describe()}"
        f"{f'; {codecs[edge.id]} between machines' if codecs.get(edge.id) else ''}"
        for edge in plan.exchanges
    ]

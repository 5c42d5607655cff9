"""The ways of rows from the sources to an operator, and whether a sink took what its sources handed on. Pure.

Rules:

1. Operators that only change the order or the place of rows (``Rows.SAME``) are left out, as are exchanges; those that
   work row by row (``Traits.is_row_wise``) are named. Behind any other operator (a join, an aggregation, a function of
   the user) it is not known which rows should come, and behind a broadcast not how often.
2. Where nothing changes rows, the sum of the digests that the sources handed on must be the digest that the sink took;
   a source that leads there by two ways counts twice. Both are of the schema in which the sink stores its rows: where
   that has other types, those of the source are taken of its splits, which then must have been read again.
3. It is compared when the job has finished, for before that rows are on their way.
4. A job that goes on from a snapshot may be of another flow than that, and its sinks may hold rows of that one. If the
   digests agree that is as good; if not, it is not known whether anything is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...engine.core.traits import Multiplicity, traits_of
from ...engine.integrity.row_digests import MODULUS, ContentSink, RowDigest
from ...engine.plan.partitioning import Broadcast
from ...engine.plan.plan import JobPlan, OperatorPlan, PipelinePlan, PortPlan
from .reading_again import Reading


class UnknownRoute(Exception):
    """Why it is not known what should come."""


def pipelines_of(plan: JobPlan) -> Iterator[PipelinePlan]:
    """All pipelines."""
    for stage in plan.stages.values():
        yield from stage.pipelines


def routes(plan: JobPlan, pipeline: PipelinePlan, end: int) -> Iterator[tuple[str, tuple[OperatorPlan, ...]]]:
    """Every source that leads to the first ``end`` operators of the pipeline, and what its rows pass row by row. Raises
    UnknownRoute."""
    passed: tuple[OperatorPlan, ...] = ()
    for operator in pipeline.operators[:end]:
        traits = traits_of(operator.config)
        if traits.rows is Multiplicity.SAME:
            continue
        if traits.is_row_wise():
            passed = (*passed, operator)
        else:
            raise UnknownRoute(f"{operator.id} makes other rows of its input")
    for port in pipeline.ports:
        if port.kind == "source":
            yield port.id, passed
        else:
            before = _producer(plan, port)
            for source, operators in routes(plan, before, len(before.operators)):
                yield source, (*operators, *passed)


def unchanged(plan: JobPlan, sink: str) -> list[str]:
    """The sources whose rows come to a sink as they are; one that leads there twice is there twice. Raises
    UnknownRoute."""
    operator = operator_of(plan, sink)
    pipeline = next(each for each in pipelines_of(plan) if operator in each.operators)
    found = list(routes(plan, pipeline, pipeline.operators.index(operator)))
    for _, passed in found:
        if passed:
            raise UnknownRoute(f"{passed[0].id} makes other rows of its input")
    return [source for source, _ in found]


def operator_of(plan: JobPlan, id: str) -> OperatorPlan:
    """The operator of that name."""
    return next(each for pipeline in pipelines_of(plan) for each in pipeline.operators if each.id == id)


def pipelines_behind(plan: JobPlan, pipeline: PipelinePlan) -> Iterator[PipelinePlan]:
    """The pipeline and all whose rows come to it, each once for each way."""
    yield pipeline
    for port in pipeline.ports:
        if port.kind != "source":
            yield from pipelines_behind(plan, producer_of(plan, port))


def sources_of(plan: JobPlan, port: PortPlan) -> list[str]:
    """The sources whose rows come to a port, by name."""
    if port.kind == "source":
        return [port.id]
    before = pipelines_behind(plan, producer_of(plan, port))
    return sorted({each.id for pipeline in before for each in pipeline.ports if each.kind == "source"})


def _producer(plan: JobPlan, port: PortPlan) -> PipelinePlan:
    exchange = next((each for each in plan.exchanges if each.id == port.id), None)
    if exchange is not None and isinstance(exchange.config, Broadcast):
        raise UnknownRoute(f"{exchange.id} copies its rows")
    return producer_of(plan, port)


def producer_of(plan: JobPlan, port: PortPlan) -> PipelinePlan:
    """The pipeline that feeds a port."""
    return next(
        pipeline
        for pipeline in pipelines_of(plan)
        for output in pipeline.outputs
        if (output.kind, output.id) == (port.kind, port.id)
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the rows of a sink come from, as they are: the digest of each source, as the sink would take it, once for
    each way. ``unknown``: why that is not known."""

    sources: tuple[tuple[str, RowDigest], ...] = ()
    unknown: str = ""


def origins(plan: JobPlan) -> dict[str, Origin]:
    """By sink, of those whose content can be read back."""
    found = {}
    for id, (_, config) in plan.sinks.items():
        if isinstance(config, ContentSink):
            try:
                ways = unchanged(plan, id)
            except UnknownRoute as unknown:
                found[id] = Origin(unknown=str(unknown))
                continue
            stored = config.stored(operator_of(plan, id).inputs[0])
            found[id] = Origin(tuple((way, RowDigest(plan.sources[way].schema, stored)) for way in ways))
    return found


def wanted(found: Mapping[str, Origin], source: str) -> list[RowDigest]:
    """The digests of a source that its sinks are compared by."""
    by_salt = {digest.salt: digest for origin in found.values() for id, digest in origin.sources if id == source}
    return list(by_salt.values())


def compare(
    origin: Origin, taken: int, readings: Mapping[str, Reading], state: str, descends: bool
) -> tuple[bool | None, str]:
    """Whether a sink took what its sources handed on; None: not known, and why. ``taken``: its digest; ``state``: the
    job's; ``descends``: rule 3."""
    if origin.unknown:
        return None, origin.unknown
    if state != "finished":
        return None, f"the job is {state}: rows may be on their way"
    expected = 0
    for source, digest in origin.sources:
        known = readings[source].digests.get(digest.salt)
        if known is None:
            return None, f"the content that {source} handed on is not known"
        expected += known
    if expected % MODULUS == taken:
        return True, ""
    if descends:
        return None, "the job goes on from a snapshot, which may be of another flow"
    return False, ""

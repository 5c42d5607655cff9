"""The ways of rows from the sources to an operator, as a plan says them, for those who compare both ends. Pure.

Rules:

1. Operators that only change the order or the place of rows (``Rows.SAME``) are left out, as are exchanges; those that
   work row by row (``Traits.is_row_wise``) are named.
2. Behind any other operator (a join, an aggregation, a function of the user) it is not known which rows should come,
   and behind a broadcast not how often.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...engine.core.traits import Rows, traits_of
from ...engine.plan.partitioning import Broadcast
from ...engine.plan.plan import JobPlan, OperatorPlan, PipelinePlan, PortPlan


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
        if traits.is_row_wise():
            passed = (*passed, operator)
        elif traits.rows is not Rows.SAME:
            raise UnknownRoute(f"{operator.id} makes other rows of its input")
    for port in pipeline.ports:
        if port.kind == "source":
            yield port.id, passed
        else:
            before = _producer(plan, port)
            for source, operators in routes(plan, before, len(before.operators)):
                yield source, (*operators, *passed)


def unchanged(plan: JobPlan, sink: str) -> list[str]:
    """The sources whose rows come to a sink as they are; one that leads there twice stands there twice. Raises
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


def _producer(plan: JobPlan, port: PortPlan) -> PipelinePlan:
    exchange = next((each for each in plan.exchanges if each.id == port.id), None)
    if exchange is not None and isinstance(exchange.config, Broadcast):
        raise UnknownRoute(f"{exchange.id} copies its rows")
    return next(
        pipeline
        for pipeline in pipelines_of(plan)
        for output in pipeline.outputs
        if (output.kind, output.id) == (port.kind, port.id)
    )

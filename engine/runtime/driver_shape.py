"""What a driver is made of, so that the plan of a flow that has changed can be compared with a cut. Pure.

Two parts are one if their names are, and what rows in flight there depend on: a port's producers and schema, by which
keys its rows were divided, an operator's kind and inputs. What an operator computes is no part of that, as it is none
of its state; it counts only in the middle of a call that is made again, of which as many rows are left out as had left.
How many tasks there are is said beside it, by stage.
"""

from __future__ import annotations

import hashlib

import msgspec

from ..plan.plan import JobPlan, OutputPlan, PipelinePlan, PortPlan, StagePlan
from ..planner.exact import exact_text


class PartShape(msgspec.Struct, frozen=True, array_like=True):
    """``name``: for people, too; ``kind``: a digest of what else must be alike."""

    name: str
    kind: str


class DriverShape(msgspec.Struct, frozen=True):
    """A pipeline of a plan. ``made``: digests of all that operators compute."""

    ports: tuple[PartShape, ...] = ()
    operators: tuple[PartShape, ...] = ()
    outputs: tuple[PartShape, ...] = ()
    made: tuple[str, ...] = ()

    def reads_and_runs_as(self, other: DriverShape) -> bool:
        """Whether only the outputs may differ."""
        return (self.ports, self.operators) == (other.ports, other.operators)


def shapes_of(plan: JobPlan, stage: StagePlan) -> dict[str, DriverShape]:
    """By driver."""
    return {pipeline.name: _shape(plan, stage, pipeline) for pipeline in stage.pipelines}


def divided_by(plan: JobPlan, stage: StagePlan, pipeline: PipelinePlan) -> list[str]:
    """By what the rows that come to a pipeline were divided."""
    return sorted({route for port in pipeline.ports for route in _routes(plan, stage, port)})


def _shape(plan: JobPlan, stage: StagePlan, pipeline: PipelinePlan) -> DriverShape:
    return DriverShape(
        tuple(_port(plan, stage, port) for port in pipeline.ports),
        tuple(
            PartShape(f"operator {each.id!r}", _digest(type(each.config).__name__, each.inputs))
            for each in pipeline.operators
        ),
        tuple(_output(plan, stage, output) for output in pipeline.outputs),
        tuple(_digest(exact_text(each.config)) for each in pipeline.operators),
    )


def _port(plan: JobPlan, stage: StagePlan, port: PortPlan) -> PartShape:
    # rows of a source are not in flight at its port: its state says which come
    schema = None if port.kind == "source" else port.schema
    routes = sorted(_routes(plan, stage, port))
    whole = _digest(stage.lanes, schema, port.spooled, _from(plan, port.id), routes)
    return PartShape(_name(port.kind, port.id), whole)


def _output(plan: JobPlan, stage: StagePlan, output: OutputPlan) -> PartShape:
    ports = (port for pipeline in stage.pipelines for port in pipeline.ports)
    schema = next((port.schema for port in ports if port.kind == output.kind == "local" and port.id == output.id), None)
    return PartShape(_name(output.kind, output.id), _digest(schema, _from(plan, output.id)))


def _from(plan: JobPlan, exchange: str) -> object:
    found = next((each for each in plan.exchanges if each.id == exchange), None)
    if found is None:
        return None
    return (found.source, found.target, str(found.pattern), found.config.describe(), str(found.schema))


def _routes(plan: JobPlan, stage: StagePlan, port: PortPlan) -> set[str]:
    """By what the rows that come to a port were divided. Behind a local edge and a forward exchange they still are."""
    exchange = next((each for each in plan.exchanges if port.kind == "exchange" and each.id == port.id), None)
    if exchange is not None and exchange.pattern != "pointwise":
        return {exchange.config.describe()} if exchange.is_partitioned else set()
    if port.kind == "source":
        return set()
    before = stage if exchange is None else plan.stages[exchange.source]
    return {
        route
        for pipeline in before.pipelines
        if any((output.kind, output.id) == (port.kind, port.id) for output in pipeline.outputs)
        for each in pipeline.ports
        for route in _routes(plan, before, each)
    }


def _name(kind: str, id: str) -> str:
    return f"{kind} {id!r}" if kind != "local" else f"the way {id!r} within a task"


def _digest(*said: object) -> str:
    whole = "\n".join(str(each) for each in said)
    return hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()

"""What a driver is made of, so that the plan of a flow that has changed can be compared with a cut. Pure.

Two parts are one if their names are, and what rows in flight there depend on: a port's producers and schema, by which
keys its rows were divided, an operator's kind and inputs. What an operator computes is no part of that, as it is none
of its state; it counts only in the middle of a call that is made again, of which as many rows are left out as had left.
How many tasks there are is said beside it, by stage.
"""

from __future__ import annotations

import hashlib
from functools import cached_property

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


class Shapes:
    """The shapes of a stage's drivers, by name: made when they are first asked for, as only a cut needs them."""

    def __init__(self, plan: JobPlan, stage: StagePlan) -> None:
        self._plan, self._stage = plan, stage

    @cached_property
    def found(self) -> dict[str, DriverShape]:
        """By driver."""
        return shapes_of(self._plan, self._stage)

    def of(self, driver: str) -> DriverShape:
        """That of one driver."""
        return self.found[driver]


def shapes_of(
    plan: JobPlan, stage: StagePlan, ways: Ways | None = None, *, made: bool = True
) -> dict[str, DriverShape]:
    """By driver. ``ways``: those of the plan, if they are known already. ``made``: with what operators compute."""
    ways = ways or Ways(plan)
    return {pipeline.name: _shape(ways, stage, pipeline, made) for pipeline in stage.pipelines}


class Ways:
    """By what rows were divided, wherever they come to in a plan."""

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        self._exchanges = {each.id: each for each in plan.exchanges}
        self._known: dict[tuple[str, str, str], frozenset[str]] = {}
        self._before: dict[tuple[str, str, str], list[PipelinePlan]] = {}
        for stage in plan.stages.values():
            for pipeline in stage.pipelines:
                for output in pipeline.outputs:
                    self._before.setdefault((stage.name, output.kind, output.id), []).append(pipeline)

    def divided_by(self, stage: StagePlan, pipeline: PipelinePlan) -> list[str]:
        """By what the rows that come to a pipeline were divided."""
        return sorted({route for port in pipeline.ports for route in self.routes(stage, port)})

    def routes(self, stage: StagePlan, port: PortPlan) -> frozenset[str]:
        """By what the rows that come to a port were divided. Behind a local edge and a forward exchange they still
        are."""
        key = stage.name, port.kind, port.id
        if key not in self._known:
            self._known[key] = self._routes(stage, port)
        return self._known[key]

    def _routes(self, stage: StagePlan, port: PortPlan) -> frozenset[str]:
        exchange = self._exchanges.get(port.id) if port.kind == "exchange" else None
        if exchange is not None and exchange.pattern != "pointwise":
            return frozenset({exchange.config.describe()} if exchange.is_partitioned else ())
        if port.kind == "source":
            return frozenset()
        before = stage if exchange is None else self._plan.stages[exchange.source]
        found = self._before.get((before.name, port.kind, port.id), ())
        return frozenset(route for pipeline in found for route in self.divided_by(before, pipeline))

    def origin(self, exchange: str) -> object:
        """Where what an exchange brings comes from, and how."""
        found = self._exchanges.get(exchange)
        if found is None:
            return None
        return (found.source, found.target, str(found.pattern), found.config.describe(), str(found.schema))


def _shape(ways: Ways, stage: StagePlan, pipeline: PipelinePlan, made: bool) -> DriverShape:
    return DriverShape(
        tuple(_port(ways, stage, port) for port in pipeline.ports),
        tuple(
            PartShape(f"operator {each.id!r}", _digest(type(each.config).__name__, each.inputs))
            for each in pipeline.operators
        ),
        tuple(_output(ways, stage, output) for output in pipeline.outputs),
        tuple(_digest(exact_text(each.config)) for each in pipeline.operators) if made else (),
    )


def _port(ways: Ways, stage: StagePlan, port: PortPlan) -> PartShape:
    # rows of a source are not in flight at its port: its state says which come
    schema = None if port.kind == "source" else port.schema
    routes = sorted(ways.routes(stage, port))
    whole = _digest(stage.lanes, schema, port.spooled, ways.origin(port.id), routes)
    return PartShape(_name(port.kind, port.id), whole)


def _output(ways: Ways, stage: StagePlan, output: OutputPlan) -> PartShape:
    ports = (port for pipeline in stage.pipelines for port in pipeline.ports)
    schema = next((port.schema for port in ports if port.kind == output.kind == "local" and port.id == output.id), None)
    return PartShape(_name(output.kind, output.id), _digest(schema, ways.origin(output.id)))


def _name(kind: str, id: str) -> str:
    return f"{kind} {id!r}" if kind != "local" else f"the way {id!r} within a task"


def _digest(*said: object) -> str:
    whole = "\n".join(str(each) for each in said)
    return hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()

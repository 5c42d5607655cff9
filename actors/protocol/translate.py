"""Between the engine's words and the coordinator's: errors and failures, plans and graphs. Pure: no Ray.

Both shells use it, the actors and the embedded runner.
"""

from __future__ import annotations

import hashlib

from ...coordinator.model.events import Failure
from ...coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from ...engine.core import errors
from ...engine.core.errors import Domain, PenstockError, unexpected
from ...engine.core.identity import TaskId
from ...engine.core.traits import traits_of
from ...engine.plan.plan import JobPlan, StagePlan
from ...engine.runtime.driver_shape import Ways, shapes_of
from ...engine.runtime.moved_flight import why_not_moved

_PATTERNS = {"all_to_all": Pattern.ALL_TO_ALL, "pointwise": Pattern.POINTWISE}


def execution_graph(plan: JobPlan) -> ExecutionGraph:
    """The plan as the coordinator sees it: stages and the exchanges between them."""
    ways = Ways(plan)
    return ExecutionGraph(
        vertices=tuple(
            Vertex(
                stage.name,
                stage.parallelism,
                _stateful(stage),
                stage.lanes,
                stage.paced,
                _is_fed(plan, stage),
                aligned_sources=_goes_in_step(plan) and len(_sources(stage)) == 1,
                is_movable=not why_not_moved(plan, stage),
                state_of=_state_of(ways, stage),
            )
            for stage in plan.stages.values()
        ),
        edges=tuple(JobEdge(each.source, each.target, _PATTERNS[each.pattern]) for each in plan.exchanges),
        deterministic=True,  # sources agree on a round in every flow
        lanes=plan.lanes,
        parts=plan.parts,
        broadcasts=plan.broadcasts,
        cuts=not plan.fed,  # where split sets are fed, checkpoints stand between windows, and nothing is in flight
        shape=_shape(plan, ways),
        former_shape=plan.former_shape,
        round_rows=plan.round_rows,
        epochs=1 if plan.epochs is None else plan.epochs.count,
    )


def _shape(plan: JobPlan, ways: Ways) -> str:
    """Of the drivers and what joins them: only in the same shape a task goes on in the middle of what it was doing.
    How many tasks there are a manifest says beside it."""
    drivers = [
        (stage.name, stage.lanes, not why_not_moved(plan, stage), name, shape.ports, shape.operators, shape.outputs)
        for stage in plan.stages.values()
        for name, shape in shapes_of(plan, stage, ways, made=False).items()
    ]
    exchanges = [(each.id, each.source, each.target, each.pattern) for each in plan.exchanges]
    return hashlib.blake2b(repr((drivers, exchanges)).encode(), digest_size=8).hexdigest()


def _goes_in_step(plan: JobPlan) -> bool:
    """Whether no source is meant to be rounds ahead of another one: a join that reads one of its sides first takes no
    row of the other one before that side is at its end, or at a barrier."""
    operators = (
        operator for stage in plan.stages.values() for pipeline in stage.pipelines for operator in pipeline.operators
    )
    return plan.deterministic and not plan.fed and all(operator.read_first is None for operator in operators)


def _is_fed(plan: JobPlan, stage: StagePlan) -> bool:
    """Whether the stage has sources that the caller feeds."""
    ports = (port for pipeline in stage.pipelines for port in pipeline.ports)
    return any(port.kind == "source" and port.id in plan.fed for port in ports)


def _stateful(stage: StagePlan) -> tuple[str, ...]:
    """The ids under which the tasks of a stage store state: its sources' and its operators'."""
    return (*_sources(stage), *(operator.id for pipeline in stage.pipelines for operator in pipeline.operators))


def _state_of(ways: Ways, stage: StagePlan) -> tuple[str, ...]:
    """What the states of these are of. Sources tell splits that are not theirs themselves. Which subtask has the state
    of a key depends on how rows were divided."""
    found = [""] * len(_sources(stage))
    for pipeline in stage.pipelines:
        divided = " and ".join(ways.divided_by(stage, pipeline))
        for operator in pipeline.operators:
            traits = traits_of(operator.config)
            words = "" if traits.state_of is None else traits.state_of(operator.inputs)
            joins = traits.build_side is not None or bool(traits.co_partitioned_by)
            by_key = bool(words) or traits.grouped_by is not None or joins
            found.append(f"{words or 'rows'}, divided by {divided}" if by_key and divided else words)
    return tuple(found)


def _sources(stage: StagePlan) -> list[str]:
    return [port.id for pipeline in stage.pipelines for port in pipeline.ports if port.kind == "source"]


def peers_of(plan: JobPlan, task: TaskId) -> list[TaskId]:
    """The tasks with which ``task`` may exchange messages: those of the stages next to its own."""
    ends = [(each.source, each) for each in plan.exchanges if each.target == task.vertex]
    ends += [(each.target, each) for each in plan.exchanges if each.source == task.vertex]
    found = {
        TaskId(stage, subtask)
        for stage, each in ends
        for subtask in each.peers_of(task.subtask, plan.stages[stage].parallelism)
    }
    return [other for other in plan.tasks() if other in found]


def failure_of(error: BaseException) -> Failure:
    """The error as plain data. A user's mistake would be made again, so it is not retried."""
    if not isinstance(error, PenstockError):
        error = unexpected(error)
    return Failure(
        message=error.message,
        retry=error.domain is not Domain.USER,
        operator=error.operator,
        remedy=error.remedy,
        detail=error.detail,
        kind=type(error).__name__,
    )


def error_of(failure: Failure) -> PenstockError:
    """The failure as the error that it was made of; an unknown kind becomes the nearest one that exists."""
    kind = getattr(errors, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, PenstockError)):
        kind = PenstockError
    return kind(failure.message, failure.remedy, failure.operator, failure.detail)

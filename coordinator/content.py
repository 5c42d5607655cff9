"""What a checkpoint holds once every task that was waited for has answered, some tasks having finished before.

Rules, in this order:

1. A vertex is *fully finished* if all its tasks have finished, or if one of them says that it was deployed as finished:
   then all of them were. Its operators are stored as :class:`FullyFinished`, without state of any subtask; what a
   coordinator of the operator reported is replaced by that.
2. A vertex is *partly finished* if some of its tasks have finished. It may hold no UNION state: every subtask restores
   all of it, and the finished ones' part is missing.
3. A vertex with UNION state whose operators have finished in some of the tasks but not in all must wait: were this
   checkpoint to let the fast ones end, the slow ones could never complete another (rule 2).
4. Each operator of a partly finished vertex gets the marker :data:`FINISHED` at the finished subtasks.

Rules 2 and 3 give :class:`Rejected`: the checkpoint is given up quietly and the next one tries again. A subtask of a
fully finished vertex that reported state is a bug of ours: :class:`ContentError`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from ..engine.identity import StateHandle, TaskId
from .execution_graph import ExecutionGraph
from .plan_calculator import CheckpointPlan, task_ids
from .reasons import FailureReason
from .redistribution import StateMode


@dataclass(frozen=True)
class SubtaskSnapshot:
    """What one subtask acknowledged for one operator: its named states' modes, and the files."""

    modes: Mapping[str, StateMode] = field(default_factory=dict)
    handles: tuple[StateHandle, ...] = ()

    @property
    def uses_union(self) -> bool:
        """Whether every subtask will need it."""
        return StateMode.UNION in self.modes.values()


@dataclass(frozen=True)
class OperatorReport:
    """All that was acknowledged for one operator."""

    subtasks: Mapping[int, SubtaskSnapshot] = field(default_factory=dict)
    coordinator_state: tuple[StateHandle, ...] = ()


class Finished(Enum):
    """The marker of a finished subtask."""

    FINISHED = "finished"


FINISHED = Finished.FINISHED


@dataclass(frozen=True)
class FullyFinished:
    """Every subtask of the operator has finished; at any parallelism a restore deploys all of them as finished."""

    parallelism: int


@dataclass(frozen=True)
class OperatorContent:
    """An operator with subtasks that run. A subtask that is missing had no state."""

    parallelism: int
    subtasks: Mapping[int, SubtaskSnapshot | Finished]
    coordinator_state: tuple[StateHandle, ...] = ()


Content: TypeAlias = Mapping[str, FullyFinished | OperatorContent]
"""By operator."""


@dataclass(frozen=True)
class Rejected:
    """The checkpoint cannot be completed as it is; nobody is to blame."""

    message: str
    reason: FailureReason = FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING


class ContentError(AssertionError):
    """What was acknowledged contradicts the plan."""


@dataclass(frozen=True)
class Acknowledged:
    """What the tasks of a plan said. ``operators``: the operators of every vertex, by their id."""

    graph: ExecutionGraph
    operators: Mapping[str, Sequence[str]]
    reports: Mapping[str, OperatorReport]
    operators_finished: AbstractSet[TaskId] = frozenset()
    """Tasks whose operators had finished before the snapshot."""
    finished_on_restore: AbstractSet[TaskId] = frozenset()
    """Tasks that were deployed as finished."""

    def union_user(self, vertex: str) -> str | None:
        """The first operator of the vertex that reported UNION state."""
        for operator in self.operators[vertex]:
            report = self.reports.get(operator, _NOTHING)
            if any(snapshot.uses_union for snapshot in report.subtasks.values()):
                return operator
        return None


_NOTHING = OperatorReport()


def complete_content(said: Acknowledged, plan: CheckpointPlan, after_finish: bool = True) -> Content | Rejected:
    """The content of the checkpoint. ``after_finish`` False: no task can have finished, reports stand as they are."""
    parallelism = {op: said.graph.parallelism[vertex] for vertex, ops in said.operators.items() for op in ops}
    content: dict[str, FullyFinished | OperatorContent] = {
        operator: OperatorContent(parallelism[operator], report.subtasks, report.coordinator_state)
        for operator, report in said.reports.items()
    }
    if not after_finish:
        return content
    fully = {*plan.fully_finished, *(task.vertex for task in said.finished_on_restore)}
    partly = {vertex for vertex in plan.ended if vertex not in fully}
    refusal = next(_union_conflicts(said, partly), None)
    if refusal is not None:
        return refusal
    for vertex in fully:
        for operator in said.operators[vertex]:
            _refuse_leftovers(operator, said.reports.get(operator, _NOTHING))
            content[operator] = FullyFinished(parallelism[operator])
    for vertex in partly:
        finished = [task.subtask for task in task_ids({vertex: plan.finished[vertex]})]
        for operator in said.operators[vertex]:
            report = said.reports.get(operator, _NOTHING)
            subtasks: dict[int, SubtaskSnapshot | Finished] = dict(report.subtasks)
            subtasks.update(dict.fromkeys(finished, FINISHED))
            content[operator] = OperatorContent(parallelism[operator], subtasks, report.coordinator_state)
    return content


def _union_conflicts(said: Acknowledged, partly: AbstractSet[str]) -> Iterator[Rejected]:
    """Rules 2 and 3."""
    for vertex in sorted(partly):
        operator = said.union_user(vertex)
        if operator is not None:
            yield Rejected(
                f"{operator!r} of {vertex!r} keeps state that every subtask needs, and some of its tasks have finished"
            )
    done = Counter(task.vertex for task in said.operators_finished)
    for vertex in sorted(done):
        operator = said.union_user(vertex)
        if vertex not in partly and done[vertex] != said.graph.parallelism[vertex] and operator is not None:
            yield Rejected(
                f"{operator!r} of {vertex!r} keeps state that every subtask needs, and its data have ended in some of "
                "its tasks but not yet in all"
            )


def _refuse_leftovers(operator: str, report: OperatorReport) -> None:
    if report.subtasks:
        raise ContentError(
            f"operator {operator!r} has finished in all of its tasks, yet subtasks {sorted(report.subtasks)} reported "
            "state for it"
        )

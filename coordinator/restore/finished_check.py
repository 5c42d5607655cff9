"""Whether a checkpoint with finished tasks may be restored into this graph.

The check is for starting from a snapshot, where the graph may have changed; a region that restarts inside a run needs
none. The state of a vertex follows from its operators', as stored. Rules:

1. All operators of one vertex agree: a finished operator cannot be chained with one that runs.
2. What feeds a fully finished vertex is fully finished.
3. What feeds a partly finished vertex over ALL_TO_ALL is fully finished; over POINTWISE it has begun to finish. Of two
   edges between the same vertices ALL_TO_ALL counts.
4. An operator that the checkpoint does not know counts as running. So operators may be appended behind finished ones,
   never inserted before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum

from ..model.events import Failure
from ..model.execution_graph import ExecutionGraph, JobEdge, Pattern


class FinishedState(Enum):
    """How much of an operator, or of a vertex, had finished."""

    ALL_RUNNING = "all running"
    PARTIALLY_FINISHED = "partly finished"
    FULLY_FINISHED = "fully finished"


@dataclass(frozen=True, slots=True)
class OperatorName:
    """An operator's id as derived from the graph, and the one that the user gave it, if any."""

    derived: str
    given: str | None = None

    def find(self, stored: Mapping[str, FinishedState]) -> FinishedState:
        """Its stored state: under the user's id if it is there, else under the derived one."""
        key = self.given if self.given is not None and self.given in stored else self.derived
        return stored.get(key, FinishedState.ALL_RUNNING)


Operators = Mapping[str, Sequence[OperatorName]]
"""By vertex."""


def check_restore(graph: ExecutionGraph, operators: Operators, stored: Mapping[str, FinishedState]) -> Failure | None:
    """Why the checkpoint cannot be restored into this graph; None if it can."""
    states: dict[str, FinishedState] = {}
    for vertex in graph.order:
        found = {name.find(stored) for name in operators[vertex]} or {FinishedState.ALL_RUNNING}
        if len(found) > 1:
            words = " and ".join(state.value for state in FinishedState if state in found)
            return _refused(f"the operators of {vertex!r} do not agree: the checkpoint says {words}")
        states[vertex] = found.pop()
    for vertex in graph.order:
        for edge in graph.inputs[vertex]:
            if not _allowed(edge.pattern, states[edge.source], states[vertex]):
                return _refused(_describe(edge, states))
    return None


def _allowed(pattern: Pattern, source: FinishedState, target: FinishedState) -> bool:
    """Rules 2 to 4, for one edge. Of parallel edges the stricter one, ALL_TO_ALL, is looked at as well."""
    match target:
        case FinishedState.ALL_RUNNING:
            return True
        case FinishedState.PARTIALLY_FINISHED if pattern is Pattern.POINTWISE:
            return source is not FinishedState.ALL_RUNNING
        case FinishedState.PARTIALLY_FINISHED | FinishedState.FULLY_FINISHED:
            return source is FinishedState.FULLY_FINISHED


def _describe(edge: JobEdge, states: Mapping[str, FinishedState]) -> str:
    return (
        f"{edge.target!r} is {states[edge.target].value} in the checkpoint, but {edge.source!r}, which feeds it "
        f"({edge.pattern.name}), is {states[edge.source].value}"
    )


def _refused(message: str) -> Failure:
    remedy = (
        "append new operators behind finished ones instead of inserting them before or between, "
        "or begin without this checkpoint"
    )
    return Failure(message=message, retry=False, remedy=remedy, kind="ConfigurationError")


def find_dropped_state(
    operators: Operators, stored: AbstractSet[str], allow_left_behind: bool = False
) -> Failure | None:
    """Refuses to restore if some stored operator is not in the job any more and the user has not allowed that."""
    known = {key for names in operators.values() for name in names for key in (name.derived, name.given)}
    left = sorted(stored - known)
    if not left or allow_left_behind:
        return None
    return Failure(
        message=f"the checkpoint holds state of operators that the flow does not have: {', '.join(map(repr, left))}",
        retry=False,
        remedy="give them back their names, or say allow_changes=True: that state is left behind then",
        kind="ConfigurationError",
    )


def find_other_state(stored: Mapping[str, str], wanted: Mapping[str, str]) -> Failure | None:
    """Refuses to restore a state of something else than the operator of its name wants now; "": it does not say."""
    for operator, had in sorted(stored.items()):
        wants = wanted.get(operator, had)
        if had != wants:
            return Failure(
                message=f"the checkpoint holds for {operator!r} {had or 'state of another kind'}, and the flow has "
                f"{wants or 'an operator of another kind'} there now",
                retry=False,
                remedy="leave it as it was, or give it another name: it begins anew then, without that state",
                kind="ConfigurationError",
            )
    return None

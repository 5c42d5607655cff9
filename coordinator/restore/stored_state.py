"""From a manifest to the state of each task, and whether another job's snapshot may be started from.

Rules:

1. At the parallelism of the checkpoint a task gets the files of its own subtask; at another, those of the subtasks
   whose lanes meet its own. Where lanes are not known, all files of the vertex.
2. Files are found by operator where the graph names operators, so that a stage may be named or cut anew between a
   snapshot and the job that starts from it, or by another version of Penstock. Within a plan the vertex is enough.
3. A snapshot is checked before anything of it is used: it must be of as many lanes, its finished operators must fit the
   graph (``finished_check.py``), and every stored operator must be there, unless the user lets state be left behind.
4. A vertex that is fully finished is deployed as finished, but not at another parallelism, nor from a snapshot outside
   the job's folder or of another plan: the tasks then write their state again, so that each file is its own subtask's,
   and that the job's first own checkpoint needs nothing of the snapshot. Not so a feed: it has finished when its ranks
   say so.
5. Operators that had finished in a task are not run again there, nor, at another parallelism, for that task's lanes.
   They are found as files are.
6. What a task was in the middle of goes to that task, or, at another parallelism, to those that have its lanes
   (``stored_channels.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...engine.core.identity import EndedLanes, StateHandle, TaskId
from ..model.events import Failure
from ..model.execution_graph import ExecutionGraph, former_lane_owners
from ..model.kinds import ClaimMode
from ..model.manifest import Manifest
from .finished_check import FinishedState, OperatorName, check_restore, find_dropped_state, find_other_state
from .stored_channels import check_channels


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a job starts from: a savepoint, or a checkpoint in another job's folder. ``root``: the folder of its files.

    A job whose own log has a checkpoint already goes on from that instead.
    """

    manifest: Manifest
    root: str
    mode: ClaimMode = ClaimMode.NO_CLAIM
    allow_left_behind: bool = False
    """Whether state of operators that the flow does not have is simply not restored."""


def check_snapshot(graph: ExecutionGraph, snapshot: Snapshot) -> Failure | None:
    """Why the job cannot start from the snapshot; None if it can (rule 3)."""
    manifest = snapshot.manifest
    if graph.lanes and manifest.lanes and graph.lanes != manifest.lanes:
        return Failure(
            message=f"the snapshot in {snapshot.root} is divided into {manifest.lanes} lanes, the flow into "
            f"{graph.lanes}",
            retry=False,
            remedy=f"give the flow {manifest.lanes} lanes",
            kind="ConfigurationError",
        )
    stuck = check_channels(graph, manifest)
    if stuck is not None:
        return stuck
    names = {vertex: [OperatorName(each) for each in operators] for vertex, operators in graph.operators.items()}
    if not all(names.values()):
        return None
    refused = find_dropped_state(names, held_by(manifest), snapshot.allow_left_behind)
    return (
        refused
        or find_other_state(stated(manifest), graph.state_of)
        or check_restore(graph, names, finished_states(manifest))
    )


def held_by(manifest: Manifest) -> set[str]:
    """The operators and sources whose state it holds."""
    return {handle.operator for state in manifest.tasks for handle in state.state if not handle.is_flight}


def stated(manifest: Manifest) -> dict[str, str]:
    """What the state is of that it holds, by operator; those that do not say are left out."""
    held = held_by(manifest)
    known = [entry for entry in manifest.operators if entry.operator in held]
    return {entry.operator: entry.state_of for entry in known if entry.state_of is not None}


def finished_states(manifest: Manifest) -> dict[str, FinishedState]:
    """How far each operator had finished."""
    return {entry.operator: FinishedState(entry.finished) for entry in manifest.operators}


def finished_vertices(manifest: Manifest | None, graph: ExecutionGraph) -> frozenset[str]:
    """The vertices whose tasks are deployed as finished (rule 4)."""
    if manifest is None or _is_elses(manifest, graph):
        return frozenset()
    known = {entry.vertex for entry in manifest.operators}
    over = known - {
        entry.vertex for entry in manifest.operators if entry.finished != FinishedState.FULLY_FINISHED.value
    }
    unfinished = {state.task.vertex for state in manifest.tasks if not state.finished} - over
    same = {name for name, size in graph.parallelism.items() if manifest.parallelism.get(name) == size}
    same -= set(graph.paced)
    return frozenset(state.task.vertex for state in manifest.tasks if state.task.vertex in same) - unfinished


def _is_elses(manifest: Manifest, graph: ExecutionGraph) -> bool:
    """Whether it is another job's, or of another plan: vertices may have other names and operators there."""
    return bool(manifest.root) or manifest.shape != graph.shape


class StoredState:
    """The files of a manifest, found by task."""

    def __init__(self, manifest: Manifest | None, graph: ExecutionGraph) -> None:
        self._graph = graph
        self._old = dict(manifest.parallelism) if manifest is not None else {}
        self._by_operator = manifest is not None and _is_elses(manifest, graph) and all(graph.operators.values())
        self._flights: dict[TaskId, list[StateHandle]] = {}
        #: By old vertex, or by operator, then by old subtask. The vertex that an operator was in.
        self._files: dict[str, dict[int, list[StateHandle]]] = {}
        self._vertex: dict[str, str] = {}
        #: The same, for the lanes for which operators had finished.
        self._ended: dict[str, dict[int, list[EndedLanes]]] = {}
        for state in manifest.tasks if manifest is not None else ():
            for each in state.ended:
                key = each.operator if self._by_operator else state.task.vertex
                self._vertex[key] = state.task.vertex
                self._ended.setdefault(key, {}).setdefault(state.task.subtask, []).append(each)
            for handle in state.state:
                if handle.is_flight:
                    self._flights.setdefault(state.task, []).append(handle)
                    continue
                key = handle.operator if self._by_operator else state.task.vertex
                self._vertex[key] = state.task.vertex
                self._files.setdefault(key, {}).setdefault(state.task.subtask, []).append(handle)

    def ended(self, task: TaskId) -> tuple[EndedLanes, ...]:
        """For which lanes which operators of the task had finished, those of others among them."""
        found: list[EndedLanes] = []
        for key in self._keys(task):
            known = self._ended.get(key, {})
            mine = self._former(task, self._old.get(self._vertex.get(key, ""), len(known)))
            found += [each for subtask in sorted(known) if mine is None or subtask in mine for each in known[subtask]]
        return tuple(found)

    def _keys(self, task: TaskId) -> Sequence[str]:
        return self._graph.operators[task.vertex] if self._by_operator else (task.vertex,)

    def of(self, task: TaskId) -> tuple[StateHandle, ...]:
        """The files that the task is restored from."""
        found: list[StateHandle] = []
        for key in self._keys(task):
            files = self._files.get(key)
            if files is not None:
                found += self._chosen(files, task, self._old.get(self._vertex[key], len(files)))
        return (*found, *self._in_flight(task))

    def _in_flight(self, task: TaskId) -> Iterator[StateHandle]:
        old = self._old.get(task.vertex, 0)
        mine = self._former(task, old) if old and task.vertex in self._graph.movable else None
        for subtask in (task.subtask,) if mine is None else mine:
            yield from self._flights.get(TaskId(task.vertex, subtask), ())

    def _chosen(self, files: Mapping[int, list[StateHandle]], task: TaskId, old: int) -> list[StateHandle]:
        mine = self._former(task, old)
        chosen = sorted(files) if mine is None else [subtask for subtask in mine if subtask in files]
        return [handle for subtask in chosen for handle in files[subtask]]

    def _former(self, task: TaskId, old: int) -> range | None:
        """The old subtasks that hold something of the task; None: any may (rule 1)."""
        new, lanes = self._graph.parallelism[task.vertex], self._graph.lanes_of[task.vertex]
        if old == new:
            return range(task.subtask, task.subtask + 1)
        if not lanes:
            return None
        return former_lane_owners(task.subtask, old, new, lanes)

"""Who reads the channel files of an unaligned checkpoint: the batches that were in flight at the snapshot.

Rules:

1. A channel file belongs to one side of one exchange. Files are found by the exchange's name, so a stage may have been
   cut anew. At an unchanged parallelism every task gets its own.
2. At another parallelism: what producers had not sent goes by their lanes, as their state does, because rows keep the
   lane and the part that they had. What consumers had not processed goes as the exchange's mapper says.
3. Several tasks may get one file: each keeps the rows of its own lanes.
4. A remainder that nobody can read is refused before anything is deployed: :func:`check_channels`.
5. A flight (``Holds.FLIGHT``) is what one subtask was in the middle of when it cut as a whole. It goes to that subtask,
   and only in a plan of that shape: :func:`fits`. Another shape is reached by way of an aligned checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...engine.core.identity import Holds, StateHandle, TaskId
from ..model.events import Failure
from ..model.execution_graph import ExecutionGraph, JobEdge, former_lane_owners
from ..model.manifest import Manifest
from ..model.rescaling import ChannelMapper

Files = dict[int, list[StateHandle]]
"""By old subtask."""


def check_channels(graph: ExecutionGraph, manifest: Manifest, allow_left_behind: bool = False) -> Failure | None:
    """Why the batches in flight cannot be restored; None if they can (rule 4)."""
    edges = {edge.name: edge for edge in graph.edges}
    if not fits(graph, manifest):
        held = [handle for handle in flights(manifest) if handle.operator not in graph.parallelism]
        names = ", ".join(sorted({repr(handle.operator) for handle in held}))
        message = f"the flow has no stage {names}" if held else "the plan has another shape now"
        return _refused(message, "run the flow as it was until it has made an aligned savepoint")
    for state in manifest.tasks:
        for handle in state.state:
            if not handle.is_channel_file or handle.holds is Holds.FLIGHT:
                continue
            edge, old = edges.get(handle.operator), manifest.parallelism[state.task.vertex]
            if edge is None and not allow_left_behind:
                return _refused(f"the flow has no exchange {handle.operator!r}", "give the flow its exchange back")
            if edge is not None and _is_stuck(graph, edge, handle, old):
                message = f"every consumer of {handle.operator!r} has a remainder of its own"
                return _refused(message, f"restore with {old} subtasks")
    return None


def _is_stuck(graph: ExecutionGraph, edge: JobEdge, handle: StateHandle, old: int) -> bool:
    unsupported = handle.holds is Holds.INPUT and edge.mapper is ChannelMapper.UNSUPPORTED
    return unsupported and graph.parallelism[edge.target] != old


def _refused(message: str, remedy: str) -> Failure:
    return Failure(
        message=f"the checkpoint holds batches that were in flight and that nobody can read: {message}",
        retry=False,
        remedy=f"{remedy}, or start from one that was taken with aligned=True, which holds none",
        kind="ConfigurationError",
    )


def flights(manifest: Manifest) -> list[StateHandle]:
    """What tasks were in the middle of."""
    return [handle for state in manifest.tasks for handle in state.state if handle.holds is Holds.FLIGHT]


def fits(graph: ExecutionGraph, manifest: Manifest) -> bool:
    """Whether tasks of the graph can go on in the middle of what the manifest's were doing (rule 5)."""
    same = manifest.shape == graph.shape and manifest.parallelism == dict(graph.parallelism)
    return same or not flights(manifest)


class StoredChannels:
    """The channel files of a manifest, found by task."""

    def __init__(self, manifest: Manifest | None, graph: ExecutionGraph) -> None:
        self._graph = graph
        #: By exchange and side: how many subtasks had it, and their files.
        self._files: dict[tuple[str, Holds], tuple[int, Files]] = {}
        for state in manifest.tasks if manifest is not None else ():
            for handle in state.state:
                if handle.is_channel_file and manifest is not None:
                    old = manifest.parallelism[state.task.vertex]
                    _, files = self._files.setdefault((handle.operator, handle.holds), (old, {}))
                    files.setdefault(state.task.subtask, []).append(handle)

    def of(self, task: TaskId) -> tuple[StateHandle, ...]:
        """The channel files that the task reads."""
        if not self._files:
            return ()
        _, flying = self._files.get((task.vertex, Holds.FLIGHT), (0, {}))
        found = list(flying.get(task.subtask, ()))
        for edge in self._graph.inputs[task.vertex]:
            found += self._chosen(task, edge.name, Holds.INPUT, edge.mapper)
        for edge in self._graph.outputs[task.vertex]:
            found += self._chosen(task, edge.name, Holds.OUTPUT, ChannelMapper.RANGE)
        return tuple(found)

    def of_region(self, region: Iterable[TaskId]) -> tuple[StateHandle, ...]:
        """The channel files of which the region's tasks, and no others, read all rows: those of vertices that lie in it
        as a whole, and of others at an unchanged parallelism."""
        if not self._files:
            return ()
        tasks = frozenset(region)
        sizes = Counter(task.vertex for task in tasks)
        whole = {vertex for vertex, size in sizes.items() if size == self._graph.parallelism[vertex]}
        found: list[StateHandle] = []
        for edge in self._graph.edges:
            for vertex, side in ((edge.target, Holds.INPUT), (edge.source, Holds.OUTPUT)):
                old, files = self._files.get((edge.name, side), (0, {}))
                same = old == self._graph.parallelism[vertex]
                for subtask, handles in files.items():
                    if vertex in whole or (same and TaskId(vertex, subtask) in tasks):
                        found += handles
        return tuple(found)

    def _chosen(self, task: TaskId, exchange: str, side: Holds, mapper: ChannelMapper) -> list[StateHandle]:
        old, files = self._files.get((exchange, side), (0, {}))
        if not files:
            return []
        new, lanes = self._graph.parallelism[task.vertex], self._graph.lanes_of[task.vertex]
        if old == new:
            subtasks = range(task.subtask, task.subtask + 1)
        elif mapper is ChannelMapper.RANGE:
            subtasks = former_lane_owners(task.subtask, old, new, lanes) if lanes else range(old)
        else:
            subtasks = mapper.old_subtasks(task.subtask, old, new)
        return [handle for subtask in subtasks for handle in files.get(subtask, ())]

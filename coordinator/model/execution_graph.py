"""The job as the coordinator sees it: vertices, their subtasks, and who feeds whom.

Rules:

1. Immutable and checked when built: names unique, parallelism at least 1, edges between known vertices, no cycle.
2. ALL_TO_ALL edges are never expanded into pairs of tasks; POINTWISE ones are ranges (:func:`pointwise_upstreams`).
3. A *region* is a connected component of tasks: what one lost task takes with it. Every edge is pipelined today; a
   blocking edge, once there is one, would not connect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from ...engine.core.identity import TaskId


class Pattern(Enum):
    """Which upstream subtasks feed which downstream subtasks."""

    ALL_TO_ALL = "ALL_TO_ALL"
    POINTWISE = "POINTWISE"
    """Contiguous ranges, as even as they come; one to one at equal parallelism."""


@dataclass(frozen=True, slots=True)
class Vertex:
    """A stage: ``parallelism`` equal tasks. ``operators``: the ids under which its state is stored; empty: unknown.
    ``lanes``: into how many lanes it is divided; 0: as the graph's. ``paced``: it takes no more rows than somebody
    outside the job reads (a feed). ``takes_splits``: it has sources that the caller adds split sets to.
    ``aligned_sources``: each of its tasks reads one source, by whole rounds, so it can be held for others.
    ``is_movable``: what its tasks are in the middle of can be handed, by lane, to any other number of them.
    ``state_of``: for each of the operators in words what its state is of; "": any such state is of use."""

    name: str
    parallelism: int
    operators: tuple[str, ...] = ()
    lanes: int = 0
    paced: bool = False
    takes_splits: bool = False
    aligned_sources: bool = False
    is_movable: bool = False
    state_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobEdge:
    """Data flow from one vertex to another: an exchange."""

    source: str
    target: str
    pattern: Pattern


def pointwise_upstreams(upstream: int, downstream: int, subtask: int) -> range:
    """The upstream subtasks that feed downstream ``subtask`` at these parallelisms; never empty."""
    first = subtask * upstream // downstream
    return range(first, max((subtask + 1) * upstream // downstream, first + 1))


def owned_lanes(subtask: int, parallelism: int, lanes: int) -> range:
    """The lanes of a subtask; empty for some if there are more subtasks than lanes."""
    return range(subtask * lanes // parallelism, (subtask + 1) * lanes // parallelism)


def lane_owner(lane: int, parallelism: int, lanes: int) -> int:
    """The subtask that owns a lane."""
    return ((lane + 1) * parallelism - 1) // lanes


def former_lane_owners(subtask: int, old: int, new: int, lanes: int) -> range:
    """Of ``old`` subtasks those whose lanes meet the lanes of ``subtask`` of ``new`` ones."""
    mine = owned_lanes(subtask, new, lanes)
    return range(lane_owner(mine[0], old, lanes), lane_owner(mine[-1], old, lanes) + 1) if mine else range(0)


@dataclass(frozen=True)
class ExecutionGraph:
    """Vertices and edges.

    ``deterministic``: barriers lie at round ends, so a checkpoint begins with proposals. ``lanes``: into how many
    order lanes state is divided, subtasks owning contiguous ranges of them (:func:`owned_lanes`); 0: not said.
    ``parts``: into how many the flow divides rows by key, or in turn; 0: not said. ``broadcasts``: the joins by key
    whose right side is broadcast instead. ``cuts``: its tasks cut as a whole, wherever they stand, if they are told to.
    ``shape``: unlike that of any other plan whose tasks could not go on in the middle of what these were doing, at the
    same parallelism. ``former_shape``: of another plan and its newest checkpoint, with which these tasks can go on
    (``restore.stored_channels.former_of``); empty: of none.
    ``round_rows``: rows of a lane's round; 0: not said. ``epochs``: how often the sources are read; 0: not said.
    """

    vertices: tuple[Vertex, ...]
    edges: tuple[JobEdge, ...] = ()
    deterministic: bool = False
    lanes: int = 0
    parts: int = 0
    broadcasts: tuple[str, ...] = ()
    cuts: bool = False
    shape: str = ""
    former_shape: str = ""
    round_rows: int = 0
    epochs: int = 0

    def __post_init__(self) -> None:
        names = [vertex.name for vertex in self.vertices]
        if len(set(names)) != len(names):
            raise ValueError(f"vertex names must be unique: {names}")
        if not names:
            raise ValueError("a job needs at least one vertex")
        for vertex in self.vertices:
            if vertex.parallelism < 1:
                raise ValueError(f"vertex {vertex.name!r} needs a parallelism of at least 1, not {vertex.parallelism}")
        for edge in self.edges:
            for name in (edge.source, edge.target):
                if name not in self.parallelism:
                    raise ValueError(f"edge {edge.source!r} → {edge.target!r} names {name!r}, which is no vertex")
        if len(self.order) != len(names):
            stuck = sorted(set(names) - set(self.order))
            raise ValueError(f"the vertices {stuck} feed each other in a circle")

    @cached_property
    def parallelism(self) -> Mapping[str, int]:
        """Vertex name to number of subtasks."""
        return {vertex.name: vertex.parallelism for vertex in self.vertices}

    @cached_property
    def lanes_of(self) -> Mapping[str, int]:
        """Vertex name to the number of lanes that its state is divided into; 0: not said."""
        return {vertex.name: vertex.lanes or self.lanes for vertex in self.vertices}

    @cached_property
    def operators(self) -> Mapping[str, tuple[str, ...]]:
        """Vertex name to its operators."""
        return {vertex.name: vertex.operators for vertex in self.vertices}

    @cached_property
    def state_of(self) -> Mapping[str, str]:
        """Operator to what its state is of, where that is said."""
        known = [pair for each in self.vertices for pair in zip(each.operators, each.state_of, strict=False)]
        return dict(known)

    @cached_property
    def movable(self) -> frozenset[str]:
        """The vertices whose tasks can go on, in another number, in the middle of what they were doing."""
        return frozenset(vertex.name for vertex in self.vertices if vertex.is_movable)

    @cached_property
    def paced(self) -> tuple[str, ...]:
        """The vertices that somebody outside the job sets the pace of."""
        return tuple(vertex.name for vertex in self.vertices if vertex.paced)

    @cached_property
    def split_tasks(self) -> tuple[TaskId, ...]:
        """The tasks with sources that the caller adds split sets to."""
        taking = (vertex for vertex in self.vertices if vertex.takes_splits)
        return tuple(TaskId(vertex.name, subtask) for vertex in taking for subtask in range(vertex.parallelism))

    @cached_property
    def aligned_sources(self) -> frozenset[str]:
        """The vertices whose tasks can be kept near each other by their rounds."""
        return frozenset(vertex.name for vertex in self.vertices if vertex.aligned_sources)

    @cached_property
    def inputs(self) -> Mapping[str, tuple[JobEdge, ...]]:
        """Vertex name to the edges that end there."""
        return {v.name: tuple(e for e in self.edges if e.target == v.name) for v in self.vertices}

    @cached_property
    def outputs(self) -> Mapping[str, tuple[JobEdge, ...]]:
        """Vertex name to the edges that begin there."""
        return {v.name: tuple(e for e in self.edges if e.source == v.name) for v in self.vertices}

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Vertex names, every vertex after those that feed it; shorter than ``vertices`` if there is a circle."""
        missing = {name: len(edges) for name, edges in self.inputs.items()}
        ready = [name for name, count in missing.items() if count == 0]
        for name in ready:
            for edge in self.outputs[name]:
                missing[edge.target] -= 1
                if missing[edge.target] == 0:
                    ready.append(edge.target)
        return tuple(ready)

    @cached_property
    def tasks(self) -> tuple[TaskId, ...]:
        """Every task, by vertex and subtask."""
        return tuple(TaskId(v.name, subtask) for v in self.vertices for subtask in range(v.parallelism))

    @cached_property
    def sources(self) -> frozenset[str]:
        """Vertices without inputs."""
        return frozenset(name for name, edges in self.inputs.items() if not edges)

    @cached_property
    def regions(self) -> tuple[tuple[TaskId, ...], ...]:
        """The connected components of tasks, each in the order of ``tasks``, ordered by their first task."""
        numbers = {task: number for number, task in enumerate(self.tasks)}
        sets = _DisjointSets(len(numbers))
        for first, second in self._links():
            sets.join(numbers[first], numbers[second])
        members: dict[int, list[TaskId]] = {}
        for task, number in numbers.items():
            members.setdefault(sets.root(number), []).append(task)
        return tuple(tuple(tasks) for tasks in members.values())

    def _links(self) -> Iterator[tuple[TaskId, TaskId]]:
        """Pairs that connect exactly what the edges connect; linear in tasks and edges."""
        for edge in self.edges:
            upstream, downstream = self.parallelism[edge.source], self.parallelism[edge.target]
            if edge.pattern is Pattern.ALL_TO_ALL:
                for subtask in range(upstream):
                    yield TaskId(edge.source, subtask), TaskId(edge.target, 0)
                for subtask in range(downstream):
                    yield TaskId(edge.source, 0), TaskId(edge.target, subtask)
            else:
                for subtask in range(downstream):
                    for feeder in pointwise_upstreams(upstream, downstream, subtask):
                        yield TaskId(edge.source, feeder), TaskId(edge.target, subtask)


class _DisjointSets:
    """Union-find with path halving; the smaller number is the root, so regions keep the order of tasks."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def root(self, item: int) -> int:
        parent = self._parent
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def join(self, first: int, second: int) -> None:
        a, b = self.root(first), self.root(second)
        self._parent[max(a, b)] = min(a, b)

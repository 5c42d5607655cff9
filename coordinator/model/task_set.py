"""A set of tasks as one byte per task, for jobs with very many of them.

Rules:

1. It behaves as a set of :class:`TaskId` and is iterated in their order.
2. Making it, counting and copying cost what copying an array costs; no object is made per task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Self

from ...engine.core.identity import TaskId


class TaskSet(AbstractSet[TaskId]):
    """See the module's rules. ``flags``: by vertex one byte per subtask, 1 for a member; taken over, not copied."""

    def __init__(self, flags: Mapping[str, bytearray] | None = None) -> None:
        self._flags = dict(flags or {})
        #: How many bytes are 1.
        self._count = sum(part.count(1) for part in self._flags.values())

    @classmethod
    def of(cls, tasks: Iterable[TaskId]) -> Self:
        """From single tasks."""
        made = cls()
        for task in tasks:
            made.add(task)
        return made

    def __contains__(self, task: object) -> bool:
        if not isinstance(task, TaskId):
            return False
        part = self._flags.get(task.vertex)
        return part is not None and task.subtask < len(part) and part[task.subtask] == 1

    def __iter__(self) -> Iterator[TaskId]:
        for vertex in sorted(self._flags):
            part = self._flags[vertex]
            at = part.find(1)
            while at >= 0:
                yield TaskId(vertex, at)
                at = part.find(1, at + 1)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"TaskSet({[str(task) for task in self.first(5)]}, {self._count} in all)"

    def add(self, task: TaskId) -> None:
        """Make the task a member."""
        part = self._flags.setdefault(task.vertex, bytearray())
        if task.subtask >= len(part):
            part.extend(bytes(task.subtask + 1 - len(part)))
        self._count += part[task.subtask] == 0
        part[task.subtask] = 1

    def discard(self, task: TaskId) -> bool:
        """Whether the task was a member; it is none any more."""
        part = self._flags.get(task.vertex)
        if part is None or task.subtask >= len(part) or not part[task.subtask]:
            return False
        part[task.subtask] = 0
        self._count -= 1
        return True

    def first(self, count: int) -> list[TaskId]:
        """The first members, in order."""
        return list(islice(self, count))

    def by_vertex(self) -> dict[str, int]:
        """How many members each vertex has; vertices without any are left out."""
        counts = {vertex: part.count(1) for vertex, part in self._flags.items()}
        return {vertex: count for vertex, count in counts.items() if count}

    @classmethod
    def _from_iterable(cls, tasks: Iterable[TaskId]) -> frozenset[TaskId]:  # type: ignore[override]
        """What ``|``, ``&`` and ``-`` give."""
        return frozenset(tasks)

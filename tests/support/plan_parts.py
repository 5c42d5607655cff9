"""Parts of a checkpoint's plan as ids of tasks."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.coordinator.checkpoint.pending import Subtasks
from penstock.engine.core.identity import TaskId


def task_ids(subtasks: Mapping[str, Subtasks]) -> tuple[TaskId, ...]:
    """The tasks of all vertices."""
    return tuple(TaskId(vertex, int(subtask)) for vertex, numbers in subtasks.items() for subtask in numbers)

"""Events that the shells find out about processes and what they read, beside their ends."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.core.identity import TaskId
from .splits import Skipped


@dataclass(frozen=True, slots=True)
class NoticeGiven:
    """The process of a task was told that it will be ended, in no less than ``budget`` seconds."""

    task: TaskId
    incarnation: str
    budget: float
    now: float


@dataclass(frozen=True, slots=True)
class SplitSkipped:
    """A split has ended its task too often, and is not to be read any more; told before the loss that it is for."""

    skipped: Skipped
    now: float

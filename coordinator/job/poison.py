"""Poison: a split of the input that ends its task again and again, while it is read. A pure count and a decision.

Rules:

1. A split is blamed when its reading raised the error that ended an attempt, or when the attempt's process died and the
   split was the last one whose reading had begun. Each attempt blames one split at most, once.
2. What a process reads is only known where it said so beforehand, which costs a call per split. So the attempts after
   a loss are *cautious*, and the first death blames nobody.
3. Blamed ``limit`` times without another split of the task in between, it is poison. An error that would be made again
   anyway needs no repetition. Then the job stops with the split's name, or, if the user said so, skips it from now on.
4. That it is skipped is said once, to be written down (``take_skipped``): checkpoints say what was skipped up to them,
   so that it is known after any death.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from ...engine.core.identity import Attempt, TaskId
from ..model.events import Failure
from ..model.split_sets import Skipped, SplitName


@dataclass(frozen=True, slots=True)
class PoisonPolicy:
    """``limit``: so many ends of attempts make a split poison. ``skip``: it is then skipped; else the job stops."""

    limit: int = 3
    skip: bool = False


@dataclass(slots=True)
class _Suspicion:
    """What is held against the splits of one task."""

    #: the last split whose reading has begun, and in which attempt
    reading: tuple[Attempt, SplitName] | None = None
    #: the split that was blamed last, how often in a row, and by which attempt
    blamed: SplitName | None = None
    times: int = 0
    last: Attempt | None = None


class PoisonWatch:
    """See the module's rules."""

    def __init__(self, policy: PoisonPolicy) -> None:
        self._policy = policy
        self._tasks: dict[TaskId, _Suspicion] = {}
        #: decided since it was last asked for
        self._skipped: list[Skipped] = []

    def take_skipped(self) -> list[Skipped]:
        """What is not read any more from now on."""
        taken, self._skipped = self._skipped, []
        return taken

    def is_cautious(self, task: TaskId) -> bool:
        """Whether the task must say what it reads before it does."""
        return task in self._tasks

    def begun(self, task: TaskId, attempt: Attempt, name: SplitName | None) -> None:
        """The attempt is about to read a split; None: one that is never to blame."""
        self._suspicion(task).reading = None if name is None else (attempt, name)

    def raised(self, task: TaskId, attempt: Attempt, name: SplitName, failure: Failure) -> Failure:
        """Reading a split has ended the attempt with an error; that error, or what to do instead."""
        return self._blame(task, attempt, name, failure)

    def died(self, task: TaskId, attempt: Attempt, reason: str) -> Failure | None:
        """The process of the attempt is gone; None unless more follows from it than from any death."""
        reading = self._suspicion(task).reading
        if reading is None or reading[0] != attempt:
            return None
        failure = Failure(reason, retry=True, kind="TaskLostError")
        decided = self._blame(task, attempt, reading[1], failure)
        return None if decided is failure else decided

    def _suspicion(self, task: TaskId) -> _Suspicion:
        return self._tasks.setdefault(task, _Suspicion())

    def _blame(self, task: TaskId, attempt: Attempt, name: SplitName, failure: Failure) -> Failure:
        held = self._suspicion(task)
        if held.last is not None and attempt <= held.last:
            return failure
        held.times = held.times + 1 if held.blamed == name else 1
        held.blamed, held.last = name, attempt
        if failure.retry and held.times < self._policy.limit:
            return failure
        times = "" if held.times == 1 else f" {held.times} times"
        if self._policy.skip:
            self._skipped.append(Skipped(name, f"it has ended {task}{times}: {failure.message}"))
            held.blamed, held.times = None, 0
            return replace(failure, retry=True)
        remedy = f"correct or remove the split, or skip it: ps.Runtime(skip_poison=True); {failure.remedy}"
        return replace(
            failure,
            message=f"{name} has ended {task}{times}: {failure.message}",
            retry=False,
            operator=failure.operator or name.source,
            remedy=remedy.rstrip("; "),
        )

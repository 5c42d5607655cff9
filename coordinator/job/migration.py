"""Task migration: processes that were told to end (preemption). A checkpoint first, then their tasks go elsewhere.

Rules:

1. A notice asks for a checkpoint at once. As soon as one that began after the notice is complete, the task's region
   restarts from it, if it took part: only what was read since that checkpoint is done again, and no row is committed
   twice.
2. Then the task gets another process (``ReplaceProcess``), after its attempt was told to stop.
3. When the budget is over the task goes without that checkpoint: a loss like any other. So it does if it does not run,
   as there is nothing to save.
4. Several notices for one region (a whole machine goes) are one restart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...engine.core.identity import CheckpointId, TaskId
from ..checkpoint.checkpoints import Checkpoints
from ..model.commands import ReplaceProcess
from ..model.events import Failure, NoticeGiven
from ..state.context import Context


@dataclass(frozen=True, slots=True)
class _Leaving:
    """``after``: the newest checkpoint at the time of the notice. ``until``: the budget ends then."""

    after: CheckpointId | None
    until: float


class TaskMigrations:
    """See the module's rules. ``restart`` is the job's own, by the region's index."""

    def __init__(
        self,
        context: Context,
        checkpoints: Checkpoints,
        restart: Callable[[int, Failure], None],
    ) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._restart = restart
        self._leaving: dict[TaskId, _Leaving] = {}

    def noticed(self, event: NoticeGiven) -> None:
        """A process is about to end. Told again, the first notice counts."""
        record = self._context.tasks.get(event.task)
        if record is None or event.task in self._leaving or record.process not in ("", event.incarnation):
            return
        known = [*self._checkpoints.pendings, *filter(None, [self._context.retained.latest_id])]
        self._leaving[event.task] = _Leaving(max(known, default=None), self._context.now + event.budget)
        self._checkpoints.request()

    def next_deadline(self) -> float | None:
        """When the first budget ends."""
        return min((leaving.until for leaving in self._leaving.values()), default=None)

    def advance(self) -> None:
        """Migrate the tasks that can be."""
        for task, leaving in list(self._leaving.items()):
            record = self._context.tasks[task]
            latest = self._context.retained.cut_of(task)
            saved = latest is not None and (leaving.after is None or latest > leaving.after)
            if record.is_started and not saved and self._context.now < leaving.until:
                continue
            del self._leaving[task]
            if record.is_started:
                how = f"its task goes on from checkpoint {latest}" if saved else "no checkpoint was complete in time"
                text = f"the process of task {task} was told to end: {how}"
                self._restart(record.region, Failure(text, retry=True, kind="TaskLostError"))
            self._context.order(ReplaceProcess(task))

"""The orders that bring a checkpoint's barriers on their way: who is asked for a round, told to cut, told to expect it.

Rules:

1. Deterministic flows: sources are asked for their round first, and told where to cut when all have answered.
2. A *paced* vertex takes no more than somebody outside reads. Its tasks are told when a checkpoint begins, so that they
   take what stands before its barriers: else whoever reads slowly would hold the checkpoint up.
3. Sources that are far ahead of others of their region get their trigger when those have cut (``keeping_step.py``).
   Not so if the job stops with the checkpoint.
4. What has had no answer is ordered again.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...engine.core.identity import TaskId
from ..model.commands import ExpectBarrier, ProposeRound, TriggerCheckpoint
from ..state.context import Context
from ..state.tasks import TaskRecord
from .keeping_step import who_waits
from .pending import PendingCheckpoint, Phase


class BarrierOrders:
    """See the module's rules."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def begin(self, pending: PendingCheckpoint) -> None:
        """The checkpoint is planned."""
        self._announce(pending)
        self.tell(pending, pending.triggers)

    def trigger(self, pending: PendingCheckpoint) -> None:
        """Every round is known: order the barriers, but of those who wait (rule 3)."""
        pending.move(Phase.TRIGGERED)
        context = self._context
        if pending.request.stop is None:
            regions = {task: context.tasks[task].region for task in pending.proposals}
            pending.held = who_waits(pending.proposals, regions, context.graph.in_step, context.settings.lead)
        self.tell(pending, [task for task in pending.triggers if not pending.is_held(task)])

    def left(self, pending: PendingCheckpoint, record: TaskRecord) -> None:
        """The task has cut, or finished: others may have waited for that."""
        if pending.held and pending.is_open:
            self.tell(pending, pending.left(record.id, record.region))

    def tell(self, pending: PendingCheckpoint, tasks: Iterable[TaskId]) -> None:
        """Ask for a round, or order the barrier, whatever the phase wants."""
        context, triggers, now = self._context, pending.triggers, self._context.now
        deterministic, proposing = context.graph.deterministic, pending.phase is Phase.PROPOSING
        id, barrier, started, stop = pending.id, pending.barrier, pending.started_at, pending.request.stop
        fed = pending.fed
        for task in tasks:
            record = context.tasks[task]
            attempt = record.attempt
            if attempt is None:
                continue
            if now > started:  # else that is when it was told already
                triggers[task] = now
            if proposing:
                context.out.append(ProposeRound(task, attempt, id))
            else:
                at = pending.at_round(record.region, True) if deterministic else None
                context.out.append(TriggerCheckpoint(task, attempt, id, barrier, at, started, stop, fed))

    def _announce(self, pending: PendingCheckpoint) -> None:
        context = self._context
        for vertex in context.graph.paced:
            for subtask in range(context.graph.parallelism[vertex]):
                record = context.tasks[TaskId(vertex, subtask)]
                if record.id in pending.waiting and record.attempt is not None:
                    context.order(ExpectBarrier(record.id, record.attempt, pending.id))

    def resend(self, pendings: Iterable[PendingCheckpoint], before: float) -> None:
        """Order again what was ordered at or before that time and has had no answer."""
        for pending in pendings:
            if not pending.is_open:
                continue
            if pending.started_at <= before:
                self._announce(pending)
            proposing = pending.phase is Phase.PROPOSING
            uncut = [task for task in pending.triggers if task in pending.waiting and not pending.is_held(task)]
            silent = pending.unproposed if proposing else uncut
            self.tell(pending, [task for task in sorted(silent) if pending.triggers[task] <= before])

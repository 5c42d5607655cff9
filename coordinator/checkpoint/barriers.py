"""The orders that bring a checkpoint's barriers on their way: rounds, triggers, and what paced tasks expect.

Rules:

1. Deterministic flows: sources are asked for their round first, and get the barrier's round when all have answered.
2. A *paced* vertex takes no more than somebody outside reads. Its tasks are told when a checkpoint begins, so that they
   take what comes before its barriers: else a slow reader would hold the checkpoint up.
3. Source alignment. A barrier of a deterministic flow stands at the largest round that a source of the region has
   proposed, and nothing but the credits of channels keeps sources together: rounds of which all rows are filtered away
   need none. So sources that stand at the barrier's round already are *held* if another one is ``max_drift`` rounds
   behind: they get their trigger, and go on, when those behind have taken their snapshot. Then all stand behind the
   same round. Not so if the job stops with the checkpoint.
4. Only sources that stand there are held. They have sent everything up to that round, and nobody who is behind needs
   more: tasks go through the rounds of their inputs in order, and what comes behind an aligned barrier is not read
   before all barriers have come. So a source behind reaches the round, or its end, which aborts the checkpoint.
5. Only tasks that read one source, whose rounds are not cut short, are aligned (``Vertex.aligned_sources``): of others
   the proposal does not say where each of their sources stands. Nobody waits for a source that has ended, nor for
   another region.
6. What has had no answer is ordered again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ...engine.core.identity import FINAL_ROUND, TaskId
from ..model.commands import ExpectBarrier, ProposeRound, TriggerCheckpoint
from ..state.context import Context
from ..state.tasks import TaskRecord
from .pending import HeldSources, PendingCheckpoint, Phase


def align_sources(
    proposals: Mapping[TaskId, int], regions: Mapping[TaskId, int], aligned_sources: Collection[str], max_drift: int
) -> dict[int, HeldSources]:
    """Who is held for whom, by region. ``regions``: of every task that proposed; ``aligned_sources``: see rule 5."""
    live = [(task, round) for task, round in proposals.items() if round < FINAL_ROUND]
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for task, round in live:
        region = regions[task]
        first[region] = min(round, first.get(region, round))
        last[region] = max(round, last.get(region, round))
    apart = {region for region, round in last.items() if max_drift and round - first[region] >= max_drift}
    waiting = {region: HeldSources(set(), set()) for region in apart}
    for task, round in live:
        region = regions[task]
        if region not in waiting:
            continue
        if round < last[region]:
            waiting[region].behind.add(task)
        elif task.vertex in aligned_sources:
            waiting[region].tasks.add(task)
    return {region: each for region, each in waiting.items() if each.tasks}


class BarrierOrders:
    """See the module's rules."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def begin(self, pending: PendingCheckpoint) -> None:
        """The checkpoint is planned."""
        self._announce(pending)
        self.send(pending, pending.triggers)

    def trigger(self, pending: PendingCheckpoint) -> None:
        """Every round is known: order the barriers, but of those who wait (rule 3)."""
        pending.move(Phase.TRIGGERED)
        context = self._context
        if pending.request.stop is None:
            regions = {task: context.tasks[task].region for task in pending.proposals}
            pending.held = align_sources(
                pending.proposals, regions, context.graph.aligned_sources, context.settings.max_drift
            )
        self.send(pending, [task for task in pending.triggers if not pending.is_held(task)])

    def left(self, pending: PendingCheckpoint, record: TaskRecord) -> None:
        """The task has taken its snapshot, or finished: others may have waited for that."""
        if pending.held and pending.is_open:
            self.send(pending, pending.left(record.id, record.region))

    def send(self, pending: PendingCheckpoint, tasks: Iterable[TaskId]) -> None:
        """Ask for a round, or order the barrier, whatever the phase wants."""
        context, triggers, now = self._context, pending.triggers, self._context.now
        deterministic, proposing = context.graph.deterministic, pending.phase is Phase.PROPOSING
        id, barrier, started, stop = pending.id, pending.barrier, pending.started_at, pending.request.stop
        assigned = pending.assigned
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
                context.out.append(TriggerCheckpoint(task, attempt, id, barrier, at, started, stop, assigned))

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
            without = [task for task in pending.triggers if task in pending.waiting and not pending.is_held(task)]
            silent = pending.unproposed if proposing else without
            self.send(pending, [task for task in sorted(silent) if pending.triggers[task] <= before])

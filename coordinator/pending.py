"""One checkpoint on its way: PROPOSING → TRIGGERED → STORING → COMPLETED, or ABORTED before it is stored.

Rules:

1. ``waiting`` and ``acked`` are disjoint and, with the tasks that finished on the way, are the plan's wait-for set.
2. STORING begins when nobody is waited for any more, and may not be left but by the store's answer: the entry may
   stand in the log already.
3. A task that finishes before it acknowledged is repaired inside the checkpoint (:meth:`drop_finished`): its state is
   the one that let it end. Only a report of the current attempt says so, never a failed call.
4. Every region has its own round: regions share no channel, so a slow one need not catch up with a fast one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from ..engine.identity import FINAL_ROUND, BarrierKind, CheckpointId, StateHandle, TaskId
from .job_states import check_move
from .manifest import TaskState


class Phase(Enum):
    """Where a pending checkpoint stands."""

    PROPOSING = "proposing"
    """Sources hold at the end of their round and propose it. Deterministic flows only."""
    TRIGGERED = "triggered"
    """Barriers travel; snapshots are taken."""
    STORING = "storing"
    """Its manifest has been ordered into the log."""
    COMPLETED = "completed"
    ABORTED = "aborted"


LEGAL_PHASE_MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.PROPOSING: frozenset({Phase.TRIGGERED, Phase.ABORTED}),
    Phase.TRIGGERED: frozenset({Phase.STORING, Phase.ABORTED}),
    Phase.STORING: frozenset({Phase.COMPLETED, Phase.ABORTED}),
    Phase.COMPLETED: frozenset(),
    Phase.ABORTED: frozenset(),
}


class AckResult(Enum):
    """What became of an acknowledgement."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """Heard before: nothing changes."""
    LATE = "late"
    """Of a checkpoint or attempt that is over: its files can go."""


class PendingCheckpoint:
    """Who was asked, who answered what."""

    def __init__(
        self, id: CheckpointId, triggers: Iterable[TaskId], wait_for: Iterable[TaskId], proposing: bool, now: float
    ) -> None:
        self.id = id
        self.kind = BarrierKind.CHECKPOINT
        self.started_at = now
        self.phase = Phase.PROPOSING if proposing else Phase.TRIGGERED
        #: Tasks that get the trigger, with when they were last told something.
        self.triggers: dict[TaskId, float] = dict.fromkeys(triggers, now)
        #: All and only the triggers whose round is not known yet.
        self.unproposed: set[TaskId] = set(self.triggers) if proposing else set()
        #: The largest round proposed, by region.
        self.rounds: dict[int, int] = {}
        #: All and only the tasks that still have to acknowledge.
        self.waiting: set[TaskId] = set(wait_for)
        #: What was acknowledged, and the last state of the tasks that had finished.
        self.acked: dict[TaskId, TaskState] = {}
        self.finished: dict[TaskId, TaskState] = {}

    @property
    def is_open(self) -> bool:
        """Whether it may still be aborted."""
        return self.phase in (Phase.PROPOSING, Phase.TRIGGERED)

    @property
    def is_acknowledged(self) -> bool:
        """Whether it can be stored."""
        return self.phase is Phase.TRIGGERED and not self.waiting

    @property
    def participants(self) -> tuple[TaskId, ...]:
        """Who must hear of an abort, sorted."""
        return tuple(sorted(self.waiting | set(self.acked)))

    def move(self, to: Phase) -> None:
        self.phase = check_move(f"checkpoint {self.id}", LEGAL_PHASE_MOVES, self.phase, to)

    def propose(self, task: TaskId, region: int, round: int) -> bool:
        """Note a proposal; whether it was new. When the last one is in, every region's round is known."""
        if self.phase is not Phase.PROPOSING or task not in self.unproposed:
            return False
        self.unproposed.discard(task)
        self.rounds[region] = max(self.rounds.get(region, -1), round)
        return True

    @property
    def waits_for_the_end(self) -> bool:
        """Whether some region's barriers can stand behind the end of all its data only."""
        return any(round >= FINAL_ROUND for round in self.rounds.values())

    def at_round(self, region: int, deterministic: bool) -> int | None:
        """Where the region's barriers stand: -1 if none of its sources is left."""
        return self.rounds.get(region, -1) if deterministic else None

    def acknowledge(self, state: TaskState) -> AckResult:
        """Take a snapshot's report (of a current attempt)."""
        if state.task in self.acked:
            return AckResult.DUPLICATE
        if self.phase is not Phase.TRIGGERED or state.task not in self.waiting:
            return AckResult.LATE
        self.waiting.discard(state.task)
        self.acked[state.task] = state
        return AckResult.ACCEPTED

    def drop_finished(self, carried: TaskState) -> bool:
        """The task has finished; whether it still was waited for."""
        task = carried.task
        if not self.is_open or task not in self.waiting:
            return False
        self.waiting.discard(task)
        self.unproposed.discard(task)
        self.triggers.pop(task, None)
        self.finished[task] = carried
        return True

    def add_triggers(self, tasks: Iterable[TaskId], now: float) -> tuple[TaskId, ...]:
        """Tasks that lost their last running upstream on the way; those of them that are new here."""
        added = tuple(task for task in tasks if task not in self.triggers and task in self.waiting)
        for task in added:
            self.triggers[task] = now
            if self.phase is Phase.PROPOSING:
                self.unproposed.add(task)
        return added

    def handles(self) -> tuple[StateHandle, ...]:
        """The files acknowledged so far."""
        return tuple(handle for state in self.acked.values() for handle in state.state)

    def task_states(self) -> tuple[TaskState, ...]:
        """What the manifest will hold."""
        return tuple(sorted((*self.acked.values(), *self.finished.values()), key=lambda state: state.task))

    def validate(self) -> None:
        """Rules 1 and 2."""
        if set(self.acked) & self.waiting or set(self.finished) & (self.waiting | set(self.acked)):
            raise AssertionError(f"checkpoint {self.id}: a task is in two of waiting, acknowledged, finished")
        if self.phase is Phase.STORING and self.waiting:
            raise AssertionError(f"checkpoint {self.id} is stored, but waits for {sorted(self.waiting)}")
        awaited = self.unproposed if self.phase is not Phase.ABORTED else set()
        if not awaited <= set(self.triggers) or (awaited and self.phase is not Phase.PROPOSING):
            raise AssertionError(f"checkpoint {self.id}: a proposal is awaited from a task that was not asked")

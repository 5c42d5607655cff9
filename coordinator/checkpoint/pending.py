"""One checkpoint on its way: PROPOSING → TRIGGERED → STORING → COMPLETED, or ABORTED before it is stored.

Rules:

1. ``waiting`` and ``acked`` are disjoint and, with the tasks that finished on the way, are the plan's wait-for set.
2. STORING begins when nobody is waited for any more, and may not be left but by the store's answer: the entry may
   be in the log already. A savepoint is COPYING before that, and complete after it unless the job stops with it.
3. A task that finishes before it acknowledged is repaired inside the checkpoint (:meth:`drop_finished`): its state is
   the one that let it end. Only a report of the current attempt says so, never a failed call.
4. Every region has its own round: regions share no channel, so a slow one need not catch up with a fast one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from ...engine.core.identity import (
    FINAL_ROUND,
    UNDECIDED_ROUND,
    BarrierKind,
    CheckpointId,
    StateHandle,
    TaskId,
    later_round,
)
from ..model.events import Failure
from ..model.job_states import check_move
from ..model.kinds import PERIODIC, CheckpointKind, Request
from ..model.manifest import Manifest, TaskState
from ..model.split_sets import SetPosition
from ..model.task_set import TaskSet


class Phase(Enum):
    """Where a pending checkpoint is."""

    __hash__ = object.__hash__  # as in ``job_states``

    PROPOSING = "proposing"
    """Sources hold at the end of their round and propose it. Deterministic flows only."""
    TRIGGERED = "triggered"
    """Barriers travel; snapshots are taken."""
    COPYING = "copying"
    """A savepoint's files are copied to where the user wants them."""
    STORING = "storing"
    """Its manifest has been ordered into the log."""
    COMPLETED = "completed"
    ABORTED = "aborted"


LEGAL_PHASE_MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.PROPOSING: frozenset({Phase.TRIGGERED, Phase.ABORTED}),
    Phase.TRIGGERED: frozenset({Phase.COPYING, Phase.STORING, Phase.ABORTED}),
    Phase.COPYING: frozenset({Phase.STORING, Phase.COMPLETED, Phase.ABORTED}),
    Phase.STORING: frozenset({Phase.COMPLETED, Phase.ABORTED}),
    Phase.COMPLETED: frozenset(),
    Phase.ABORTED: frozenset(),
}

OPEN = frozenset({Phase.PROPOSING, Phase.TRIGGERED})
"""Tasks still take part."""


class AckResult(Enum):
    """What became of an acknowledgement."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """Heard before: nothing changes."""
    LATE = "late"
    """Of a checkpoint or attempt that is over: its files can go."""


class PendingCheckpoint:
    """Who was asked, who answered what. ``finished``: the tasks that had finished when it was planned."""

    def __init__(
        self,
        id: CheckpointId,
        triggers: Iterable[TaskId],
        wait_for: Iterable[TaskId],
        proposing: bool,
        now: float,
        request: Request = PERIODIC,
        finished: TaskSet | None = None,
    ) -> None:
        self.id = id
        self.request = request
        self.started_at = now
        self.phase = Phase.PROPOSING if proposing else Phase.TRIGGERED
        #: Tasks that get the trigger, with when they were last told something.
        self.triggers: dict[TaskId, float] = dict.fromkeys(triggers, now)
        #: All and only the triggers whose round is not known yet.
        self.unproposed: set[TaskId] = set(self.triggers) if proposing else set()
        #: How many triggers have not acknowledged.
        self._without_snapshot = len(self.triggers)
        #: The largest round proposed, by region, and what each task proposed.
        self.rounds: dict[int, int] = {}
        self.proposals: dict[TaskId, int] = {}
        #: By region, tasks that get their trigger when others have taken their snapshot.
        self.held: dict[int, HeldSources] = {}
        #: All and only the tasks that still have to acknowledge.
        self.waiting = wait_for if isinstance(wait_for, TaskSet) else TaskSet.of(wait_for)
        #: What was acknowledged.
        self.acked: dict[TaskId, TaskState] = {}
        #: Tasks that had finished, or did on the way: their last state is carried on.
        self.finished = TaskSet() if finished is None else finished
        #: Of the tasks that acknowledged: those deployed as finished.
        self.finished_on_restore: set[TaskId] = set()
        #: Why it may never be stored: the books of a task do not balance.
        self.unbalanced: Failure | None = None
        #: The files that its manifest names, once it is made: those of tasks that had finished are among them.
        self.named: Mapping[str, StateHandle] = {}
        #: If the job takes split sets: what is covered of the log of split sets, and how many entries sources have got.
        self.splits: SetPosition | None = None
        self.assigned: int | None = None
        #: Of a savepoint: what it holds, once its files are being copied, and where they lie, once they do.
        self.manifest: Manifest | None = None
        self.location = ""

    @property
    def kind(self) -> CheckpointKind:
        return self.request.kind

    @property
    def barrier(self) -> BarrierKind:
        return BarrierKind.SAVEPOINT if self.kind.is_savepoint else BarrierKind.CHECKPOINT

    @property
    def is_open(self) -> bool:
        """Whether tasks still take part, so that they must hear of its end."""
        return self.phase in OPEN

    @property
    def is_being_stored(self) -> bool:
        """Whether its manifest may be in the log already."""
        return self.phase is Phase.STORING

    @property
    def is_acknowledged(self) -> bool:
        """Whether it can be stored."""
        return self.phase is Phase.TRIGGERED and not self.waiting

    @property
    def sources_are_done(self) -> bool:
        """Whether every task that was triggered has taken its snapshot: what it does now is behind this barrier."""
        return self.phase is not Phase.PROPOSING and not self._without_snapshot

    @property
    def participants(self) -> tuple[TaskId, ...]:
        """Who must hear of an abort, sorted."""
        return tuple(sorted((*self.waiting, *self.acked)))

    def move(self, to: Phase) -> None:
        self.phase = check_move(f"checkpoint {self.id}", LEGAL_PHASE_MOVES, self.phase, to)

    def propose(self, task: TaskId, region: int, round: int) -> bool:
        """Note a proposal; whether it was new. When the last one is in, every region's round is known."""
        if self.phase is not Phase.PROPOSING or task not in self.unproposed:
            return False
        self.unproposed.discard(task)
        self.proposals[task] = round
        self.rounds[region] = later_round(round, self.rounds.get(region, FINAL_ROUND))
        return True

    def is_held(self, task: TaskId) -> bool:
        """Whether the task gets its trigger only when others have taken their snapshot."""
        return any(task in waiting.tasks for waiting in self.held.values())

    def left(self, task: TaskId, region: int) -> tuple[TaskId, ...]:
        """The task has taken its snapshot, or finished; those that waited for it, if it was the last."""
        waiting = self.held.get(region)
        if waiting is None:
            return ()
        waiting.tasks.discard(task)
        waiting.behind.discard(task)
        if waiting.behind:
            return ()
        del self.held[region]
        return tuple(sorted(waiting.tasks))

    @property
    def is_undecided(self) -> bool:
        """Whether no place can be found for some region's barriers."""
        return UNDECIDED_ROUND in self.rounds.values()

    @property
    def waits_for_the_end(self) -> bool:
        """Whether some region's barriers stand behind the end of all its data: no source of it has rows left."""
        return any(round >= FINAL_ROUND for round in self.rounds.values())

    def at_round(self, region: int, deterministic: bool) -> int | None:
        """Where the region's barriers stand: -1 if none of its sources is left."""
        return self.rounds.get(region, -1) if deterministic else None

    def acknowledge(self, state: TaskState) -> AckResult:
        """Take a snapshot's report (of a current attempt)."""
        task = state.task
        if self.phase is Phase.TRIGGERED and self.waiting.discard(task):
            self.acked[task] = state
            if self._without_snapshot and task in self.triggers:
                self._without_snapshot -= 1
            return AckResult.ACCEPTED
        return AckResult.DUPLICATE if task in self.acked else AckResult.LATE

    def drop_finished(self, task: TaskId) -> bool:
        """The task has finished; whether it still was waited for."""
        if not self.is_open or not self.waiting.discard(task):
            return False
        self.unproposed.discard(task)
        self.proposals.pop(task, None)
        self._without_snapshot -= self.triggers.pop(task, None) is not None
        self.finished.add(task)
        return True

    def add_triggers(self, tasks: Iterable[TaskId], now: float) -> tuple[TaskId, ...]:
        """Tasks that lost their last running upstream on the way; those of them that are new here."""
        added = tuple(task for task in tasks if task not in self.triggers and task in self.waiting)
        for task in added:
            self.triggers[task] = now
            self._without_snapshot += 1
            if self.phase is Phase.PROPOSING:
                self.unproposed.add(task)
        return added

    def handles(self) -> tuple[StateHandle, ...]:
        """The files acknowledged so far, and those that stayed because its manifest names them."""
        return (*(handle for state in self.acked.values() for handle in state.state), *self.named.values())

    def task_states(self, carried: Callable[[TaskId], TaskState]) -> tuple[TaskState, ...]:
        """What the manifest will hold. ``carried``: the last state of a task that has finished."""
        states = [*self.acked.values(), *map(carried, self.finished)]
        return tuple(sorted(states, key=lambda state: (state.task.vertex, state.task.subtask)))

    def validate(self) -> None:
        """Rules 1 and 2."""
        waiting, finished = set(self.waiting), set(self.finished)
        if set(self.acked) & waiting or finished & (waiting | set(self.acked)):
            raise AssertionError(f"checkpoint {self.id}: a task is in two of waiting, acknowledged, finished")
        if self.phase in (Phase.COPYING, Phase.STORING) and waiting:
            raise AssertionError(f"checkpoint {self.id} is stored, but waits for {sorted(waiting)}")
        awaited = self.unproposed if self.phase is not Phase.ABORTED else set()
        if not awaited <= set(self.triggers) or (awaited and self.phase is not Phase.PROPOSING):
            raise AssertionError(f"checkpoint {self.id}: a proposal is awaited from a task that was not asked")
        for each in self.held.values():
            if self.phase is Phase.TRIGGERED and not (each.behind and each.tasks | each.behind <= waiting):
                raise AssertionError(f"checkpoint {self.id}: {sorted(each.tasks)} wait for no snapshot")
        if self._without_snapshot != len(set(self.triggers) - set(self.acked)):
            raise AssertionError(f"checkpoint {self.id}: the count of triggers without a snapshot is wrong")


@dataclass(slots=True)
class HeldSources:
    """Of one region: the tasks that wait, and those that they wait for."""

    tasks: set[TaskId]
    behind: set[TaskId]

"""A pending checkpoint while proposals, acknowledgements and finished reports come in any order.

The model says of every task what it was asked and what it answered; from that follows what each call must answer and
what the manifest will hold.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.coordinator.checkpoint.pending import LEGAL_PHASE_MOVES, AckResult, PendingCheckpoint, Phase
from penstock.coordinator.model.kinds import PERIODIC, Cause, Request
from penstock.coordinator.model.manifest import TaskState
from penstock.engine.core.identity import CheckpointId, StateHandle, TaskId
from penstock.engine.core.state_machine import IllegalTransition

TASKS = [TaskId(vertex, subtask) for vertex in "ab" for subtask in range(3)]
STRANGER = TaskId("c", 0)
TASK = st.sampled_from([*TASKS, STRANGER])


def region(task: TaskId) -> int:
    return task.subtask % 2


def answer(task: TaskId, finished: bool = False) -> TaskState:
    return TaskState(task=task, state=(StateHandle("op", f"{task}", 1, 1),), finished=finished)


class PendingMachine(RuleBasedStateMachine):
    """Moves as the coordinator makes them: triggered when all have proposed, stored when all have acknowledged."""

    @initialize(
        absent=st.sets(st.sampled_from(TASKS), max_size=2),
        triggers=st.sets(st.sampled_from(TASKS)),
        proposing=st.booleans(),
        request=st.sampled_from([PERIODIC, Request(Cause.SAVEPOINT, "mine"), Request(Cause.STOP, "end")]),
    )
    def begin(self, absent: set[TaskId], triggers: set[TaskId], proposing: bool, request: Request) -> None:
        self.wait_for = wait_for = set(TASKS) - absent
        self.triggers = triggers & wait_for
        self.proposing = proposing
        self.pending = PendingCheckpoint(CheckpointId(1, 1), self.triggers, wait_for, proposing, 0.0, request)
        self.proposed: dict[TaskId, int] = {}
        self.acked: set[TaskId] = set()
        self.finished: set[TaskId] = set()
        self.go_on()

    def go_on(self) -> None:
        """What the coordinator does after every event."""
        if self.pending.phase is Phase.PROPOSING and not self.pending.unproposed:
            assert self.triggers <= set(self.proposed)
            self.pending.move(Phase.TRIGGERED)
        if self.pending.is_acknowledged:
            self.pending.move(Phase.COPYING if self.pending.kind.is_savepoint else Phase.STORING)

    @rule(task=TASK, round=st.integers(-1, 5))
    def source_proposes(self, task: TaskId, round: int) -> None:
        asked = self.pending.phase is Phase.PROPOSING and task in self.triggers - set(self.proposed)
        assert self.pending.propose(task, region(task), round) == asked
        if asked:
            self.proposed[task] = round
        self.go_on()

    @rule(task=TASK)
    def task_acknowledges(self, task: TaskId) -> None:
        expected = AckResult.LATE
        if task in self.acked:
            expected = AckResult.DUPLICATE
        elif self.pending.phase is Phase.TRIGGERED and task in self.wait_for - self.finished:
            expected = AckResult.ACCEPTED
            self.acked.add(task)
        assert self.pending.acknowledge(answer(task)) is expected
        self.go_on()

    @rule(task=TASK, consumers=st.sets(st.sampled_from(TASKS)))
    def task_finishes_and_leaves_consumers_without_upstream(self, task: TaskId, consumers: set[TaskId]) -> None:
        repaired = self.pending.is_open and task in self.wait_for - self.acked - self.finished
        assert self.pending.drop_finished(task) == repaired
        if not repaired:
            return
        self.finished.add(task)
        self.triggers.discard(task)
        new = (consumers & self.wait_for) - self.acked - self.finished - self.triggers
        assert set(self.pending.add_triggers(sorted(consumers), now=1.0)) == new
        self.triggers |= new
        self.go_on()

    @precondition(lambda self: self.pending.is_open)
    @rule()
    def checkpoint_is_given_up(self) -> None:
        self.pending.move(Phase.ABORTED)

    @precondition(lambda self: self.pending.phase is Phase.COPYING)
    @rule(stands=st.booleans())
    def savepoint_is_copied(self, stands: bool) -> None:
        done = Phase.STORING if self.pending.kind.commits else Phase.COMPLETED
        self.pending.move(done if stands else Phase.ABORTED)

    @precondition(lambda self: self.pending.phase is Phase.STORING)
    @rule(stands=st.booleans())
    def log_answers(self, stands: bool) -> None:
        self.pending.move(Phase.COMPLETED if stands else Phase.ABORTED)

    @rule(to=st.sampled_from(Phase))
    def illegal_move_is_refused(self, to: Phase) -> None:
        if to not in LEGAL_PHASE_MOVES[self.pending.phase]:
            with pytest.raises(IllegalTransition):
                self.pending.move(to)

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "pending"):
            return
        pending = self.pending
        pending.validate()
        assert pending.waiting == self.wait_for - self.acked - self.finished
        assert set(pending.triggers) == self.triggers
        states = pending.task_states(lambda task: answer(task, finished=True))
        assert [state.task for state in states] == sorted(self.acked | self.finished)
        assert {state.task for state in states if state.finished} == self.finished
        assert {handle.location for handle in pending.handles()} == {str(task) for task in self.acked}
        assert set(pending.participants) == self.wait_for - self.finished

    @invariant()
    def every_region_stands_at_its_largest_proposal(self) -> None:
        if not hasattr(self, "pending"):
            return
        for index in (0, 1):
            rounds = [round for task, round in self.proposed.items() if region(task) == index]
            assert self.pending.at_round(index, deterministic=True) == max(rounds, default=-1)
            assert self.pending.at_round(index, deterministic=False) is None


TestPending = PendingMachine.TestCase
TestPending.settings = settings(max_examples=400, stateful_step_count=25, deadline=None)

"""Who is reported lost, and that it is reported once, whatever sign of a death comes first."""

from __future__ import annotations

from penstock.actors.hosting.supervisor import MISSES, Supervisor
from penstock.actors.protocol.messages import (
    AttemptAccepted,
    CallFailed,
    HeartbeatDue,
    Identity,
    ProcessAppeared,
    ProcessGone,
    Sign,
    SplitBegun,
    WorkerSlot,
    spare_slot,
)
from penstock.coordinator.job.poison import PoisonPolicy
from penstock.coordinator.model.commands import DeployTask, StartTask
from penstock.coordinator.model.events import Event, Failure, ProcessReady, SplitSkipped, TaskFailed, TaskLost
from penstock.coordinator.model.split_sets import SplitName
from penstock.engine.core.identity import Attempt, TaskId
from support.recorded_calls import RecordedCalls

TASK = TaskId("source", 0)
SPARE = spare_slot(0)
FIRST, SECOND = Attempt(1, 1), Attempt(1, 2)


def process(incarnation: str, slot: WorkerSlot = TASK) -> Identity:
    return Identity(slot, incarnation, 4711, "127.0.0.1")


def ready(incarnation: str) -> ProcessReady:
    return ProcessReady(TASK, incarnation, 0.0)


def supervisor() -> tuple[Supervisor, RecordedCalls]:
    """A supervisor whose task has a process, "old", that has accepted the first attempt."""
    calls = RecordedCalls()
    made = Supervisor([TASK], calls)
    assert made.handle(ProcessAppeared(process("old"))) == [ready("old")]
    assert made.handle(AttemptAccepted(FIRST, process("old"))) == []
    assert calls.made == [("ready", TASK), ("watch", TASK, "old")]
    calls.made.clear()
    return made, calls


def with_spare() -> tuple[Supervisor, RecordedCalls]:
    """As ``supervisor``, and a spare slot with a process."""
    calls = RecordedCalls()
    made = Supervisor([TASK], calls, [SPARE])
    made.handle(ProcessAppeared(process("old")))
    made.handle(AttemptAccepted(FIRST, process("old")))
    assert made.handle(ProcessAppeared(process("spare", SPARE))) == []
    assert calls.made[-2:] == [("watch", SPARE, "spare"), ("clear", SPARE)]
    calls.made.clear()
    return made, calls


def beat(made: Supervisor, times: int, *, answers: tuple[Identity, ...] = ()) -> list[Event]:
    """So many beats, after each of which these processes answer."""
    events = []
    for _ in range(times):
        events += made.handle(HeartbeatDue())
        for each in answers:
            assert made.handle(ProcessAppeared(each)) == []
    return events


def lost(attempt: Attempt, reason: str) -> list[TaskLost]:
    return [TaskLost(TASK, attempt, reason, 0.0)]


def test_attempt_is_lost_once_when_the_watch_ends_before_the_new_process_appears() -> None:
    made, calls = supervisor()
    assert made.handle(ProcessGone(TASK, "old", "killed")) == []
    assert calls.made == [("ready", TASK)]
    assert made.handle(ProcessAppeared(process("new"))) == [*lost(FIRST, "it died and was restarted"), ready("new")]
    assert made.handle(ProcessGone(TASK, "old", "killed")) == []


def test_attempt_is_lost_once_when_the_new_process_appears_before_the_watch_ends() -> None:
    made, calls = supervisor()
    assert made.handle(ProcessAppeared(process("new"))) == [*lost(FIRST, "it died and was restarted"), ready("new")]
    assert calls.made == [("watch", TASK, "new")]
    assert made.handle(ProcessGone(TASK, "old", "killed")) == []
    assert calls.made == [("watch", TASK, "new")]


def test_process_whose_watch_failed_is_watched_again_when_it_answers() -> None:
    made, calls = supervisor()
    made.handle(ProcessGone(TASK, "old", "connection reset"))
    assert made.handle(ProcessAppeared(process("old"))) == []
    assert calls.made == [("ready", TASK), ("watch", TASK, "old")]
    assert made.handle(ProcessAppeared(process("new"))) == [*lost(FIRST, "it died and was restarted"), ready("new")]


def test_attempt_is_lost_when_its_process_will_not_come_back() -> None:
    made, _ = supervisor()
    assert made.handle(ProcessGone(TASK, "old", "killed")) == []
    assert made.handle(ProcessGone(TASK, None, "cannot be started")) == lost(FIRST, "cannot be started")


def test_late_end_of_an_old_watch_does_not_lose_what_the_new_process_runs() -> None:
    made, _ = supervisor()
    made.handle(ProcessAppeared(process("new")))
    assert made.handle(AttemptAccepted(SECOND, process("new"))) == []
    assert made.handle(ProcessGone(TASK, "old", "killed")) == []
    assert made.handle(ProcessAppeared(process("newest"))) == [
        *lost(SECOND, "it died and was restarted"),
        ready("newest"),
    ]


def test_new_process_is_known_by_the_deployment_that_it_accepts() -> None:
    made, calls = supervisor()
    assert made.handle(AttemptAccepted(SECOND, process("new"))) == [
        *lost(FIRST, "it died and was restarted"),
        ready("new"),
    ]
    assert calls.made == [("watch", TASK, "new")]


def test_attempt_accepted_by_a_process_that_died_meanwhile_is_lost() -> None:
    made, _ = supervisor()
    made.handle(ProcessAppeared(process("new")))
    assert made.handle(AttemptAccepted(SECOND, process("old"))) == lost(SECOND, "it died right after deployment")


def test_process_that_accepted_nothing_dies_unnoticed() -> None:
    calls = RecordedCalls()
    made = Supervisor([TASK], calls)
    made.handle(ProcessAppeared(process("old")))
    assert made.handle(ProcessGone(TASK, "old", "killed")) == []
    assert calls.made[-1] == ("ready", TASK)
    assert made.handle(ProcessAppeared(process("new"))) == [ready("new")]


def test_order_that_does_not_arrive_is_a_loss_of_the_attempt_that_it_names() -> None:
    made, _ = supervisor()
    assert made.handle(CallFailed(TASK, SECOND, "no answer")) == lost(SECOND, "no answer")


def test_late_announcement_of_a_dead_process_is_ignored() -> None:
    made, calls = supervisor()
    made.handle(ProcessAppeared(process("new")))
    calls.made.clear()
    assert made.handle(ProcessAppeared(process("old"))) == []
    assert calls.made == []


def test_deployments_and_orders_go_their_own_ways() -> None:
    made, calls = supervisor()
    deploy = DeployTask(TASK, SECOND, (), ((TASK, SECOND),), None)
    made.perform(deploy)
    made.perform(StartTask(TASK, SECOND))
    assert calls.made == [("deploy", deploy, False), ("order", StartTask(TASK, SECOND))]


def test_process_that_answers_is_never_taken_for_hung() -> None:
    made, calls = supervisor()
    assert beat(made, 10 * MISSES, answers=(process("old"),)) == []
    assert calls.made == [("ask", TASK)] * 10 * MISSES


def test_process_that_is_silent_is_lost_with_a_reason_and_replaced_once() -> None:
    calls = RecordedCalls()
    made = Supervisor([TASK], calls, heartbeat=2.0)
    made.handle(AttemptAccepted(FIRST, process("old")))
    calls.made.clear()
    assert beat(made, MISSES) == []
    reason = "process 4711 on 127.0.0.1 has not answered for 6 s: it hangs, or is stopped or cut off"
    assert beat(made, 3 * MISSES) == lost(FIRST, reason)
    assert calls.made == [*[("ask", TASK)] * MISSES, ("replace", TASK)]


def test_process_whose_answer_came_over_the_connection_is_asked_again() -> None:
    made, calls = supervisor()
    for _ in range(3 * MISSES):
        calls.signs[TASK] = Sign.ALIVE
        assert beat(made, 1) == []
    assert calls.made == [("ask", TASK)] * 3 * MISSES
    beat(made, MISSES)
    assert calls.made[-1] == ("replace", TASK)


def test_process_that_has_answered_an_order_is_not_asked_at_the_next_heartbeat() -> None:
    """
    Beats     1     2  3  4  5
    answers  A  H
    asked           2  3  4
    """
    made, calls = supervisor()
    calls.signs[TASK] = Sign.ANSWER
    assert beat(made, 1) == []
    assert calls.made == []
    assert beat(made, MISSES) == []
    assert calls.made == [("ask", TASK)] * MISSES
    assert [type(event) for event in beat(made, 1)] == [TaskLost], "it hangs since then"


def test_answer_in_the_last_moment_saves_the_process() -> None:
    made, _ = supervisor()
    assert beat(made, MISSES) == []
    assert made.handle(ProcessAppeared(process("old"))) == []
    assert beat(made, MISSES) == []


def test_hung_process_that_wakes_is_not_listened_to() -> None:
    made, calls = supervisor()
    beat(made, MISSES + 1)
    calls.made.clear()
    assert made.handle(ProcessAppeared(process("old"))) == []
    assert made.handle(AttemptAccepted(SECOND, process("old"))) == lost(SECOND, "it died right after deployment")
    assert made.handle(ProcessGone(TASK, "old", "killed")) == []
    assert made.handle(ProcessAppeared(process("new"))) == [ready("new")]
    assert calls.made == [("ready", TASK), ("watch", TASK, "new")]


def test_process_that_is_being_restarted_is_not_asked() -> None:
    made, calls = supervisor()
    made.handle(ProcessGone(TASK, "old", "killed"))
    calls.made.clear()
    assert beat(made, 2 * MISSES) == []
    assert calls.made == []


def test_task_whose_peer_loses_the_connection_moves_to_the_spare_at_once() -> None:
    made, calls = with_spare()
    assert made.handle(TaskLost(TASK, FIRST, "closed unexpectedly", 0.0)) == [
        *lost(FIRST, "closed unexpectedly"),
        ready("spare"),
    ]
    assert calls.made == [("move", TASK, SPARE), ("ready", TASK)]
    assert made.placement == {TASK: SPARE}


def test_second_report_of_the_same_loss_moves_nothing() -> None:
    made, _ = with_spare()
    made.handle(TaskLost(TASK, FIRST, "closed unexpectedly", 0.0))
    made.handle(ProcessAppeared(process("new")))
    assert made.handle(TaskLost(TASK, FIRST, "closed unexpectedly", 0.0)) == lost(FIRST, "closed unexpectedly")
    assert made.placement == {TASK: SPARE}


def test_slot_that_was_left_becomes_spare_when_it_has_a_process_again() -> None:
    made, calls = with_spare()
    made.handle(TaskLost(TASK, FIRST, "closed unexpectedly", 0.0))
    calls.made.clear()
    assert made.handle(ProcessAppeared(process("new"))) == []
    assert calls.made == [("watch", TASK, "new"), ("clear", TASK)]
    made.handle(AttemptAccepted(SECOND, process("spare", SPARE)))
    assert made.handle(TaskLost(TASK, SECOND, "closed unexpectedly", 0.0)) == [
        *lost(SECOND, "closed unexpectedly"),
        ready("new"),
    ]
    assert made.placement == {TASK: TASK}


def test_loss_without_a_spare_that_is_ready_waits_for_the_restart() -> None:
    calls = RecordedCalls()
    made = Supervisor([TASK], calls, [SPARE])
    made.handle(AttemptAccepted(FIRST, process("old")))
    assert made.handle(TaskLost(TASK, FIRST, "closed unexpectedly", 0.0)) == lost(FIRST, "closed unexpectedly")
    assert made.placement == {TASK: TASK}


def test_task_of_a_hung_process_moves_to_the_spare() -> None:
    made, calls = with_spare()
    events = beat(made, MISSES + 1, answers=(process("spare", SPARE),))
    assert [type(event) for event in events] == [TaskLost, ProcessReady]
    assert made.placement == {TASK: SPARE}
    assert ("replace", TASK) in calls.made


def test_task_keeps_its_slot_when_another_process_is_on_it_already() -> None:
    made, calls = with_spare()
    made.handle(ProcessAppeared(process("new")))
    assert made.placement == {TASK: TASK}
    assert not [call for call in calls.made if call[0] == "move"]


def test_death_of_a_spare_process_is_nobodys_loss() -> None:
    made, _ = with_spare()
    assert made.handle(ProcessGone(SPARE, "spare", "killed")) == []
    assert made.handle(ProcessAppeared(process("spare 2", SPARE))) == []


def test_death_while_a_poisonous_split_is_read_becomes_an_error_with_its_name() -> None:
    calls = RecordedCalls()
    made = Supervisor([TASK], calls, poison=PoisonPolicy(limit=1))
    made.handle(AttemptAccepted(FIRST, process("old")))
    made.handle(SplitBegun(TASK, FIRST, SplitName("source", "7")))
    (event, _) = made.handle(ProcessAppeared(process("new")))
    assert isinstance(event, TaskFailed)
    assert (event.attempt, event.failure.retry) == (FIRST, False)
    assert event.failure.message.startswith("split 7 of source has ended source[0]")


def test_death_while_rows_are_waited_for_that_others_make_blames_no_split_that_was_opened_before() -> None:
    made = Supervisor([TASK], RecordedCalls(), poison=PoisonPolicy(limit=1, skip=True))
    made.handle(AttemptAccepted(FIRST, process("old")))
    made.handle(SplitBegun(TASK, FIRST, SplitName("source", "7")))
    made.handle(SplitBegun(TASK, FIRST, None))
    (event, *_) = made.handle(ProcessAppeared(process("new")))
    assert isinstance(event, TaskLost)


def test_split_whose_reading_fails_is_skipped_in_the_next_attempt_on_request() -> None:
    calls, name = RecordedCalls(), SplitName("source", "7")
    made = Supervisor([TASK], calls, poison=PoisonPolicy(skip=True))
    made.handle(SplitBegun(TASK, FIRST, name, raised=True))
    skipped, event = made.handle(TaskFailed(TASK, FIRST, Failure("no Parquet file", retry=False), 0.0))
    assert isinstance(skipped, SplitSkipped)
    assert skipped.skipped.name == name
    assert isinstance(event, TaskFailed)
    assert event.failure.retry
    deploy = DeployTask(TASK, SECOND, (), ((TASK, SECOND),), None)
    made.perform(deploy)
    assert calls.made[-1] == ("deploy", deploy, True)


def test_error_that_is_no_splits_fault_is_passed_on_as_it_is() -> None:
    made, _ = supervisor()
    made.handle(SplitBegun(TASK, FIRST, SplitName("source", "7")))
    failed = TaskFailed(TASK, FIRST, Failure("no room", retry=True), 0.0)
    assert made.handle(failed) == [failed]

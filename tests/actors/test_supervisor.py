"""Who is reported lost, and that it is reported once, whatever sign of a death comes first."""

from __future__ import annotations

from penstock.actors.messages import AttemptAccepted, CallFailed, Identity, ProcessAppeared, ProcessGone
from penstock.actors.supervisor import Supervisor
from penstock.coordinator.commands import DeployTask, StartTask
from penstock.coordinator.events import TaskLost
from penstock.engine.identity import Attempt, TaskId

TASK = TaskId("source", 0)
FIRST, SECOND = Attempt(1, 1), Attempt(1, 2)


class RecordedCalls:
    """Calls that go nowhere; the test tells the supervisor what came of them."""

    def __init__(self) -> None:
        self.made: list[tuple[object, ...]] = []

    def ready(self, task: TaskId) -> None:
        self.made.append(("ready", task))

    def watch(self, task: TaskId, incarnation: str) -> None:
        self.made.append(("watch", task, incarnation))

    def deploy(self, command: DeployTask) -> None:
        self.made.append(("deploy", command))

    def order(self, command: object) -> None:
        self.made.append(("order", command))


def process(incarnation: str) -> Identity:
    return Identity(TASK, incarnation, 4711, "127.0.0.1")


def supervisor() -> tuple[Supervisor, RecordedCalls]:
    """A supervisor whose task has a process, "old", that has accepted the first attempt."""
    calls = RecordedCalls()
    made = Supervisor([TASK], calls)
    assert made.handle(ProcessAppeared(process("old"))) == []
    assert made.handle(AttemptAccepted(FIRST, process("old"))) == []
    assert calls.made == [("ready", TASK), ("watch", TASK, "old")]
    calls.made.clear()
    return made, calls


def lost(attempt: Attempt, reason: str) -> list[TaskLost]:
    return [TaskLost(TASK, attempt, reason, 0.0)]


def test_attempt_is_lost_once_when_the_watch_ends_before_the_new_process_appears() -> None:
    made, calls = supervisor()
    assert made.handle(ProcessGone(TASK, "old", "killed")) == []
    assert calls.made == [("ready", TASK)]
    assert made.handle(ProcessAppeared(process("new"))) == lost(FIRST, "it died and was restarted")
    assert made.handle(ProcessGone(TASK, "old", "killed")) == []


def test_attempt_is_lost_once_when_the_new_process_appears_before_the_watch_ends() -> None:
    made, calls = supervisor()
    assert made.handle(ProcessAppeared(process("new"))) == lost(FIRST, "it died and was restarted")
    assert calls.made == [("watch", TASK, "new")]
    assert made.handle(ProcessGone(TASK, "old", "killed")) == []
    assert calls.made == [("watch", TASK, "new")]


def test_process_whose_watch_failed_is_watched_again_when_it_answers() -> None:
    made, calls = supervisor()
    made.handle(ProcessGone(TASK, "old", "connection reset"))
    assert made.handle(ProcessAppeared(process("old"))) == []
    assert calls.made == [("ready", TASK), ("watch", TASK, "old")]
    assert made.handle(ProcessAppeared(process("new"))) == lost(FIRST, "it died and was restarted")


def test_attempt_is_lost_when_its_process_will_not_come_back() -> None:
    made, _ = supervisor()
    assert made.handle(ProcessGone(TASK, "old", "killed")) == []
    assert made.handle(ProcessGone(TASK, None, "cannot be started")) == lost(FIRST, "cannot be started")


def test_late_end_of_an_old_watch_does_not_lose_what_the_new_process_runs() -> None:
    made, _ = supervisor()
    made.handle(ProcessAppeared(process("new")))
    assert made.handle(AttemptAccepted(SECOND, process("new"))) == []
    assert made.handle(ProcessGone(TASK, "old", "killed")) == []
    assert made.handle(ProcessAppeared(process("newest"))) == lost(SECOND, "it died and was restarted")


def test_new_process_is_known_by_the_deployment_that_it_accepts() -> None:
    made, calls = supervisor()
    assert made.handle(AttemptAccepted(SECOND, process("new"))) == lost(FIRST, "it died and was restarted")
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
    assert made.handle(ProcessAppeared(process("new"))) == []


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
    assert calls.made == [("deploy", deploy), ("order", StartTask(TASK, SECOND))]

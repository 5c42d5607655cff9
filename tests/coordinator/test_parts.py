"""The coordinator's parts, each alone."""

from __future__ import annotations

import pytest

from penstock.coordinator.checkpoint.finalizer import SinkCommits
from penstock.coordinator.checkpoint.pending import AckResult, PendingCheckpoint
from penstock.coordinator.checkpoint.requests import RequestDecider
from penstock.coordinator.log.retained import RetainedCheckpoints
from penstock.coordinator.model.commands import CommitCheckpoint
from penstock.coordinator.model.execution_graph import ExecutionGraph, Vertex
from penstock.coordinator.model.job_states import LEGAL_JOB_MOVES, JobState, TaskStatus
from penstock.coordinator.model.kinds import PERIODIC, USER
from penstock.coordinator.model.manifest import Manifest, TaskState, decode, encode
from penstock.coordinator.model.restarts import RestartBudget
from penstock.coordinator.model.settings import Settings
from penstock.coordinator.state.context import Context
from penstock.engine.core.identity import Attempt, CheckpointId, CommitPermit, JobIdentity, StateHandle, TaskId
from penstock.engine.core.state_machine import IllegalTransition, check_move
from support.coordinator_driver import committable
from support.protocol_pictures import PAGE, TABLES, drawn, picture

TASKS = (TaskId("a", 0), TaskId("a", 1))
A = Attempt(1, 1)


def manifest(number: int, *locations: str) -> Manifest:
    handles = tuple(StateHandle("operator", location, 1, 1) for location in locations)
    tasks = (TaskState(task=TASKS[0], state=handles),)
    return Manifest(
        number=number, checkpoint=CheckpointId(1, number), fingerprint="f", parallelism={"a": 1}, tasks=tasks
    )


# --- request decider -------------------------------------------------------------------------------------------------


def test_periodic_checkpoints_are_an_interval_apart_from_start_to_start() -> None:
    decider = RequestDecider(Settings(interval=1.0))
    assert decider.next_at() is None
    decider.job_runs(10.0)
    assert decider.next_at() == 11.0
    decider.started(PERIODIC, 11.0)
    assert decider.next_at() is None
    decider.completed(11.4)
    assert decider.next_at() == 12.0


def test_minimum_pause_holds_back_periodic_and_final_checkpoints_but_not_a_users() -> None:
    decider = RequestDecider(Settings(interval=1.0, min_pause=5.0))
    decider.job_runs(0.0)
    decider.started(PERIODIC, 1.0)
    decider.completed(2.0)
    decider.want_final(True)
    assert decider.next_at() == 7.0
    decider.request()
    assert decider.choose(2.0) is USER


def test_request_is_open_again_when_its_checkpoint_fails() -> None:
    decider = RequestDecider(Settings(interval=None, retry_pause=0.5))
    decider.job_runs(0.0)
    decider.request()
    decider.started(USER, 1.0)
    decider.aborted(USER, 2.0)
    assert decider.next_at() == 2.5
    decider.started(USER, 2.5)
    decider.completed(3.0)
    assert decider.next_at() is None


# --- failover --------------------------------------------------------------------------------------------------------


def test_each_restart_waits_longer_up_to_a_limit() -> None:
    budget = RestartBudget(Settings(restart_delay=1.0, restart_factor=2.0, max_restart_delay=5.0).restart_policy)
    now, delays = 0.0, []
    for _ in range(5):
        at = budget.next_restart(now)
        assert at is not None
        delays.append(at - now)
        now = at
    assert delays == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_failures_before_a_scheduled_restart_belong_to_it() -> None:
    budget = RestartBudget(Settings(max_restarts=1, restart_delay=1.0).restart_policy)
    assert [budget.next_restart(now) for now in (0.0, 0.5, 0.9)] == [1.0, 1.0, 1.0]
    assert budget.next_restart(1.5) is None


def test_quiet_period_forgives_all_restarts() -> None:
    budget = RestartBudget(Settings(max_restarts=1, restart_delay=1.0, quiet_period=60.0).restart_policy)
    assert budget.next_restart(0.0) == 1.0
    assert budget.next_restart(61.0) == 62.0
    assert budget.total == 2


# --- completed -------------------------------------------------------------------------------------------------------


def test_file_shared_with_a_kept_manifest_stays_when_an_older_one_goes() -> None:
    completed = RetainedCheckpoints(retained=1)
    completed.add(manifest(1, "shared", "old"))
    gone = completed.add(manifest(2, "shared", "new"))
    assert (gone.numbers, [handle.location for handle in gone.handles]) == ((1,), ["old"])


def test_files_of_a_doubtful_manifest_stay_until_its_number_is_taken() -> None:
    completed = RetainedCheckpoints(retained=1)
    completed.doubt(manifest(1, "doubtful"))
    doubtful = StateHandle("operator", "doubtful", 1, 1)
    assert completed.unreferenced((doubtful,)) == ()
    assert completed.settle() == (doubtful,)


def test_checkpoint_may_not_complete_after_a_newer_one() -> None:
    completed = RetainedCheckpoints(retained=1)
    completed.add(manifest(2))
    with pytest.raises(AssertionError, match=r"1\.1 completed after 1\.2"):
        completed.add(manifest(1))


def test_manifest_survives_json() -> None:
    entry = manifest(3, "a", "b")
    assert decode(encode(entry)) == entry


# --- pending and commits ---------------------------------------------------------------------------------------------


def test_pending_checkpoint_tells_new_from_known_from_late() -> None:
    pending = PendingCheckpoint(CheckpointId(1, 1), TASKS[:1], TASKS, proposing=False, now=0.0)
    assert pending.acknowledge(TaskState(task=TASKS[0])) is AckResult.ACCEPTED
    assert pending.acknowledge(TaskState(task=TASKS[0])) is AckResult.DUPLICATE
    assert not pending.is_acknowledged
    assert pending.drop_finished(TASKS[1])
    assert pending.is_acknowledged
    assert pending.acknowledge(TaskState(task=TASKS[1])) is AckResult.LATE


def running_task() -> tuple[Context, SinkCommits]:
    """The commits of a job whose only task runs, as attempt ``A``."""
    graph = ExecutionGraph((Vertex("a", 1),))
    context = Context("job", "print", graph, Settings(), JobIdentity(""))
    record = context.tasks[TASKS[0]]
    record.attempt = A
    for state in (TaskStatus.DEPLOYING, TaskStatus.DEPLOYED, TaskStatus.RUNNING):
        context.tasks.move(record, state)
    return context, SinkCommits(context)


def test_permit_lists_everything_up_to_its_checkpoint_and_one_answer_settles_it() -> None:
    context, commits = running_task()
    commits.add(CheckpointId(1, 1), TASKS[0], (committable(1),))
    commits.completed(CheckpointId(1, 2), TASKS[0], (committable(2),))
    permit = CommitPermit(CheckpointId(1, 2), (committable(1), committable(2)))
    assert context.out == [CommitCheckpoint(TASKS[0], A, permit)]
    commits.add(CheckpointId(1, 3), TASKS[0], (committable(3),))
    commits.confirm(TASKS[0], A, CheckpointId(1, 2))
    commits.validate()
    assert commits.uncommitted() == ((TASKS[0], committable(3)),)


def test_answer_of_another_attempt_settles_nothing() -> None:
    _, commits = running_task()
    commits.completed(CheckpointId(1, 1), TASKS[0], (committable(1),))
    commits.confirm(TASKS[0], Attempt(1, 2), CheckpointId(1, 1))
    assert commits.uncommitted() == ((TASKS[0], committable(1)),)
    commits.confirm(TASKS[0], A, CheckpointId(1, 1))
    assert commits.unsettled() == ()


# --- tables ----------------------------------------------------------------------------------------------------------


def test_illegal_move_names_both_states() -> None:
    with pytest.raises(IllegalTransition, match="may not go from finished to running"):
        check_move("job 'j'", LEGAL_JOB_MOVES, JobState.FINISHED, JobState.RUNNING)


@pytest.mark.parametrize("title", TABLES)
def test_pictures_in_the_design_are_those_of_the_tables(title: str) -> None:
    legal = TABLES[title]
    assert set(legal) == set(type(next(iter(legal))))
    assert drawn(PAGE.read_text(encoding="utf-8"), title) == picture(legal)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"interval": 0.0}, "interval must be above 0"),
        ({"timeout": -1.0}, "timeout must be above 0"),
        ({"min_pause": -1.0}, "min_pause must not be negative"),
        ({"retained": 0}, "retained must be at least 1"),
    ],
)
def test_settings_refuse_what_cannot_work(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings(**wrong)  # type: ignore[arg-type]

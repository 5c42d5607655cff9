"""The coordinator, event by event: tasks and writes that are lost, and how a job ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.coordinator.model.commands import (
    AbortCheckpoint,
    CommitCheckpoint,
    CommitOrphans,
    DeployTask,
    EndJob,
    ProposeRound,
    ReadLog,
    StopTask,
    StoreEntry,
    TriggerCheckpoint,
)
from penstock.coordinator.model.events import (
    CancelRequested,
    DataEnded,
    EntryFailed,
    EntryRefused,
    Failure,
    RoundProposed,
    TaskCommitted,
    TaskDeployed,
    TaskFailed,
    TaskFinished,
    TaskLost,
)
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from penstock.coordinator.model.manifest import Claim, Ended, Manifest, TaskState
from penstock.coordinator.model.settings import Settings
from penstock.engine.core.identity import FINAL_ROUND, Attempt, BarrierKind, CommitPermit, TaskId
from support.coordinator_driver import (
    A1,
    A2,
    FIRST,
    FULL_DISK,
    SECOND,
    SINK,
    SOURCE,
    TOLERANT,
    CoordinatorDriver,
    committable,
    handle,
    in_checkpoint,
    running,
    trigger,
    two_stages,
)

# --- losses --------------------------------------------------------------------------------------------------------


def test_lost_task_takes_its_region_back_to_the_newest_checkpoint() -> None:
    driver = in_checkpoint()
    driver.complete()
    lost = driver.tell(TaskLost(SINK, None, "killed", 1.5))
    assert lost == [StopTask(SOURCE, A1), StopTask(SINK, A1)]
    assert driver.core.next_deadline() == pytest.approx(1.55)
    attempts = ((SOURCE, A2), (SINK, A2))
    assert driver.pass_time(1.55) == [
        DeployTask(task, A2, (handle(task, FIRST, A1),), attempts, FIRST) for task in (SOURCE, SINK)
    ]


def test_first_checkpoint_after_a_restart_does_not_wait_for_the_interval() -> None:
    driver = running(Settings(interval=10.0))
    driver.tell(TaskLost(SINK, A1, "killed", 1.0))
    driver.pass_time(1.2)
    driver.run(number=2)
    assert driver.core.next_deadline() == pytest.approx(1.3)
    assert driver.pass_time(1.3) == [trigger(FIRST, 1.3, A2)]
    driver.complete(number=2)
    assert driver.pass_time(6.0) == []
    assert trigger(SECOND, 11.3, A2) in driver.pass_time(11.3)


def test_coordinator_that_follows_another_takes_its_first_checkpoint_at_once() -> None:
    old = in_checkpoint()
    old.complete()
    heir = CoordinatorDriver(settings=Settings(interval=10.0), log=old.log, owner="heir", now=20.0)
    heir.claim()
    heir.run()
    assert heir.core.next_deadline() == pytest.approx(20.1)


def test_task_lost_while_a_manifest_is_stored_waits_for_the_log() -> None:
    """The manifest may stand already: restarting from the one before would forget what it may commit."""
    driver = in_checkpoint()
    driver.ack(SOURCE, FIRST)
    (order,) = driver.ack(SINK, FIRST, committable(1))
    assert driver.tell(TaskLost(SINK, A1, "killed", 1.1)) == [StopTask(SOURCE, A1), StopTask(SINK, A1)]
    assert driver.pass_time(3.0) == []
    deployed = driver.stored(order)
    assert [o.restored_from for o in deployed if isinstance(o, DeployTask)] == [FIRST, FIRST]
    permit = CommitPermit(FIRST, (committable(1),))
    assert driver.tell(TaskDeployed(SINK, A2, 3.0)) == [CommitCheckpoint(SINK, A2, permit)]


def test_failed_write_is_looked_up_before_anything_is_decided() -> None:
    driver = in_checkpoint(TOLERANT)
    driver.ack(SOURCE, FIRST)
    (order,) = driver.ack(SINK, FIRST)
    assert isinstance(order, StoreEntry)
    assert driver.tell(EntryFailed(1, FULL_DISK, 1.2)) == [ReadLog()]
    driver.log.append(order.entry)
    assert [type(o) for o in driver.read_log()] == [CommitCheckpoint, CommitCheckpoint]
    assert driver.core.status().checkpoints_completed == 1


def test_no_region_is_deployed_while_a_failed_manifest_may_still_appear() -> None:
    """Its number is claimed again first; the manifest turns up, and is what the region restarts from."""
    driver = in_checkpoint(TOLERANT)
    driver.ack(SOURCE, FIRST)
    (order,) = driver.ack(SINK, FIRST, committable(1))
    assert isinstance(order, StoreEntry)
    driver.tell(EntryFailed(1, FULL_DISK, 1.2))
    assert driver.read_log() == [AbortCheckpoint(SINK, A1, FIRST, None), AbortCheckpoint(SOURCE, A1, FIRST, None)]
    driver.tell(TaskLost(SINK, A1, "killed", 1.3))
    (settle,) = driver.pass_time(1.6)
    assert isinstance(settle, StoreEntry)
    assert (type(settle.entry), settle.entry.number) == (Claim, 1)
    driver.log.append(order.entry)
    assert driver.tell(EntryRefused(1, 1.7)) == [ReadLog()]
    assert [o.restored_from for o in driver.read_log() if isinstance(o, DeployTask)] == [FIRST, FIRST]


def test_stale_coordinator_orders_nothing_once_it_has_seen_its_successor() -> None:
    driver = in_checkpoint()
    driver.ack(SOURCE, FIRST)
    driver.ack(SINK, FIRST)
    driver.log.append(Claim(number=1, generation=2, job="job", fingerprint="print", owner="heir"))
    assert driver.tell(EntryRefused(1, 1.2)) == [ReadLog()]
    (order,) = driver.read_log()
    assert isinstance(order, EndJob)
    assert order.status == "superseded"
    assert driver.tell(TaskLost(SINK, A1, "killed", 1.3)) == []
    assert driver.core.next_deadline() is None


def test_restart_budget_spent_fails_the_job_and_names_the_last_failure() -> None:
    driver = running(TOLERANT)
    driver.tell(TaskLost(SINK, A1, "killed", 0.1))
    driver.pass_time(0.5)
    order = driver.tell(TaskLost(SINK, A2, "killed again", 0.6))[-1]
    assert isinstance(order, EndJob)
    assert order.failure is not None
    assert order.failure.message.startswith("gave up after 1 restarts")
    assert "killed again" in order.failure.message


def test_error_of_the_user_fails_the_job_but_commits_what_was_complete() -> None:
    driver = in_checkpoint()
    driver.complete(committable(1))
    failure = Failure("division by zero", retry=False, operator="map", kind="UserCodeError")
    orphans = Attempt(1, 0)
    permit = CommitPermit(FIRST, (committable(1),))
    assert driver.tell(TaskFailed(SOURCE, A1, failure, 1.5)) == [
        StopTask(SOURCE, A1),
        StopTask(SINK, A1),
        CommitOrphans(SINK, orphans, permit),
    ]
    assert driver.tell(TaskCommitted(SINK, orphans, FIRST, 1.6)) == [EndJob("failed", failure)]


def test_cancelled_job_leaves_its_log_open() -> None:
    driver = running()
    assert driver.tell(CancelRequested(0.5)) == [
        StopTask(SOURCE, A1),
        StopTask(SINK, A1),
        EndJob("cancelled", None),
    ]


def test_order_without_an_answer_is_given_again() -> None:
    driver = CoordinatorDriver(settings=Settings(interval=None))
    (first, second) = driver.claim()
    assert driver.core.next_deadline() == 5.0
    assert driver.pass_time(5.0) == [first, second]


def test_finished_task_whose_process_dies_takes_its_region_back_while_a_consumer_may_miss_its_last_word() -> None:
    """The end of the channel is sent just before the task says that it has finished, and is lost with the process."""
    driver = running(Settings(interval=None))
    ended(driver)
    driver.complete(ended=True)
    driver.tell(TaskFinished(SOURCE, A1, 0.5))
    assert driver.tell(TaskFailed(SOURCE, A1, FULL_DISK, 0.6)) == []
    assert driver.tell(TaskLost(SOURCE, A1, "killed", 0.6)) == [StopTask(SINK, A1)]
    assert driver.core.status().tasks[SOURCE] == "stopped"


def test_finished_task_whose_process_dies_is_not_missed_when_its_consumers_have_finished() -> None:
    driver = running(Settings(interval=None))
    ended(driver)
    driver.complete(ended=True)
    driver.tell(TaskFinished(SINK, A1, 0.5))
    assert driver.tell(TaskLost(SINK, A1, "killed", 0.6)) == []


# --- the end -------------------------------------------------------------------------------------------------------


def ended(driver: CoordinatorDriver) -> list[TriggerCheckpoint]:
    assert driver.tell(DataEnded(SOURCE, A1, 0.3)) == []
    return [o for o in driver.tell(DataEnded(SINK, A1, 0.4)) if isinstance(o, TriggerCheckpoint)]


def test_job_whose_data_have_ended_takes_its_final_checkpoint_at_once_and_closes_its_log() -> None:
    driver = running(Settings(interval=None))
    assert ended(driver) == [trigger(FIRST, 0.4)]
    driver.complete(committable(1), ended=True)
    driver.tell(TaskCommitted(SOURCE, A1, FIRST, 0.5))
    driver.tell(TaskCommitted(SINK, A1, FIRST, 0.5))
    assert driver.tell(TaskFinished(SINK, A1, 0.6)) == []
    (order,) = driver.tell(TaskFinished(SOURCE, A1, 0.6))
    assert order == StoreEntry(Ended(number=2, generation=1, status="finished"))
    assert driver.stored(order) == [EndJob("finished", None)]


def test_task_that_finishes_before_it_acknowledges_is_repaired_inside_the_checkpoint() -> None:
    """The source got its commit late and finishes in the middle of the next checkpoint: the sink is triggered."""
    driver = running(Settings(interval=1.0))
    ended(driver)
    driver.complete(ended=True)
    assert driver.pass_time(1.5) == [trigger(SECOND, 1.5)]
    assert driver.tell(TaskFinished(SOURCE, A1, 1.6)) == [
        TriggerCheckpoint(SINK, A1, SECOND, BarrierKind.CHECKPOINT, None, 1.5)
    ]
    order = driver.ack(SINK, SECOND, ended=True)[-1]
    assert isinstance(order, StoreEntry)
    assert isinstance(order.entry, Manifest)
    source = TaskState(task=SOURCE, state=(handle(SOURCE, FIRST, A1),), finished=True, data_ended=True)
    assert source in order.entry.tasks


def test_thousand_tasks_that_end_one_by_one_make_few_checkpoints() -> None:
    graph = ExecutionGraph((Vertex("source", 1000), Vertex("sink", 1)), (_wide("source", "sink"),))
    driver = CoordinatorDriver(graph, Settings(interval=None), validate=False)
    driver.claim()
    driver.run()
    triggered = 0
    for task in graph.tasks:
        orders = driver.core.handle(DataEnded(task, A1, 0.5))
        triggered += sum(isinstance(order, TriggerCheckpoint) for order in orders)
    assert triggered == 1000
    assert driver.core.status().pending is not None


def test_branch_that_ends_early_is_checkpointed_though_the_rest_goes_on() -> None:
    edges = (_wide("short", "join"), _wide("long", "join"))
    graph = ExecutionGraph((Vertex("short", 1), Vertex("long", 1), Vertex("join", 1)), edges)
    driver = CoordinatorDriver(graph, Settings(interval=None))
    driver.claim()
    driver.run()
    short, long = TaskId("short", 0), TaskId("long", 0)
    orders = driver.tell(DataEnded(short, A1, 0.5))
    assert [order.task for order in orders if isinstance(order, TriggerCheckpoint)] == [short, long]


def test_job_that_keeps_nothing_is_checkpointed_once_when_all_has_ended() -> None:
    edges = (_wide("short", "join"), _wide("long", "join"))
    graph = ExecutionGraph((Vertex("short", 1), Vertex("long", 1), Vertex("join", 1), Vertex("alone", 1)), edges)
    driver = CoordinatorDriver(graph, Settings(interval=None, ended_branches=False))
    driver.claim()
    driver.run()
    tasks = [TaskId(vertex, 0) for vertex in ("alone", "short", "long", "join")]
    before = [order for task in tasks[:-1] for order in driver.tell(DataEnded(task, A1, 0.5))]
    assert not [order for order in before if isinstance(order, TriggerCheckpoint)]
    orders = driver.tell(DataEnded(tasks[-1], A1, 0.6))
    assert {order.task for order in orders if isinstance(order, TriggerCheckpoint)} == set(tasks[:-1])


def test_task_that_finishes_without_a_final_checkpoint_is_a_bug_and_said_to_be_one() -> None:
    driver = running()
    order = driver.tell(TaskFinished(SOURCE, A1, 0.5))[-1]
    assert isinstance(order, EndJob)
    assert order.failure is not None
    assert order.failure.kind == "InternalError"


@pytest.mark.parametrize("cuts", [False, True])
def test_end_of_a_task_that_overtakes_its_acknowledgement_loses_no_row_that_a_barrier_has_passed(cuts: bool) -> None:
    """The second cut of the source holds rows that it had not sent. It sends them, the sink reads them behind its own
    cut, and the source is over while its files are still being written."""
    driver = CoordinatorDriver(replace(two_stages(), cuts=cuts), Settings(unaligned=cuts, tolerable_failures=0))
    driver.claim()
    driver.run()
    driver.pass_time(1.0)
    driver.ack(SOURCE, FIRST, ended=True)
    driver.stored(driver.ack(SINK, FIRST)[-1])
    assert driver.pass_time(2.5)[0].checkpoint == SECOND
    driver.ack(SINK, SECOND)
    orders = driver.tell(TaskFinished(SOURCE, A1, 2.6, cut=SECOND if cuts else None))
    assert any(isinstance(order, StoreEntry) for order in orders) is not cuts
    late = driver.ack(SOURCE, SECOND, ended=True)
    assert any(isinstance(order, StoreEntry) for order in late) is cuts


def _wide(source: str, target: str) -> JobEdge:
    return JobEdge(source, target, Pattern.ALL_TO_ALL)


def test_checkpoint_that_waits_behind_the_end_of_the_data_times_out_and_nobody_is_blamed() -> None:
    """What is left of the data may take long; the next checkpoint tries again."""
    driver = running(Settings(timeout=10.0, tolerable_failures=0), deterministic=True)
    driver.pass_time(1.0)
    driver.tell(RoundProposed(SOURCE, A1, FIRST, FINAL_ROUND, 1.1))
    orders = driver.pass_time(11.5)
    assert AbortCheckpoint(SINK, A1, FIRST, None) in orders
    assert driver.core.status().state == "running"
    assert driver.core.status().failure is None
    assert ProposeRound(SOURCE, A1, SECOND) in [*orders, *driver.pass_time(13.0)]


def test_region_beside_one_that_works_behind_its_end_goes_on_and_keeps_what_it_has_prepared() -> None:
    """Its rows are not visible before a checkpoint completes: checkpoints are global."""
    driver = CoordinatorDriver(
        ExecutionGraph((Vertex("short", 1), Vertex("long", 1)), (), True), Settings(timeout=10.0, tolerable_failures=0)
    )
    driver.claim()
    driver.run()
    short, long = TaskId("short", 0), TaskId("long", 0)
    driver.pass_time(1.0)
    driver.tell(RoundProposed(short, A1, FIRST, FINAL_ROUND, 1.1))
    told = driver.tell(RoundProposed(long, A1, FIRST, 7, 1.1))
    assert [(each.task, each.at_round) for each in told if isinstance(each, TriggerCheckpoint)] == [
        (short, FINAL_ROUND),
        (long, 7),
    ]
    assert driver.ack(long, FIRST, committable(1)) == []
    orders = driver.pass_time(11.5)
    assert AbortCheckpoint(long, A1, FIRST, None) in orders
    driver.pass_time(13.0)
    driver.tell(RoundProposed(short, A1, SECOND, FINAL_ROUND, 13.1))
    driver.tell(RoundProposed(long, A1, SECOND, 9, 13.1))
    driver.ack(long, SECOND, committable(2))
    (order,) = driver.ack(short, SECOND, ended=True)
    assert isinstance(order, StoreEntry)
    assert isinstance(order.entry, Manifest)
    stored = {state.task: state.committables for state in order.entry.tasks}
    assert stored[long] == (committable(1), committable(2))

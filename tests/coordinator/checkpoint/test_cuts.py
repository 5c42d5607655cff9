"""A checkpoint that waits for no round: tasks cut where they stand, and what is in flight is state of that shape."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from penstock.coordinator.checkpoint.row_accounts import imbalance
from penstock.coordinator.model.commands import (
    AbortCheckpoint,
    CopySavepoint,
    DiscardState,
    EndJob,
    ProposeRound,
    StopTask,
    TriggerCheckpoint,
)
from penstock.coordinator.model.events import (
    DataEnded,
    RoundProposed,
    SavepointRequested,
    StopRequested,
    TaskAcked,
    TaskCommitted,
    TaskFinished,
    TaskLost,
)
from penstock.coordinator.model.execution_graph import ExecutionGraph
from penstock.coordinator.model.kinds import StopMode
from penstock.coordinator.model.manifest import Manifest
from penstock.coordinator.model.settings import Settings
from penstock.coordinator.restore.stored_channels import check_channels
from penstock.coordinator.restore.stored_state import StoredState
from penstock.engine.core.identity import Account, BarrierKind, CheckpointId, Holds, StateHandle, Tally, TaskId
from support.coordinator_driver import A1, FIRST, SECOND, SINK, SOURCE, CoordinatorDriver, handle, two_stages

CUTS = Settings(unaligned=True)
FLYING = StateHandle("source", "flight", 10, 3, Holds.FLIGHT)


def cutting(settings: Settings = CUTS) -> CoordinatorDriver:
    """A job at work whose tasks cut as a whole."""
    driver = CoordinatorDriver(replace(two_stages(deterministic=True), cuts=True, shape="one thread"), settings)
    driver.claim()
    driver.run()
    return driver


def cut(driver: CoordinatorDriver) -> Manifest:
    """A checkpoint with something in flight."""
    driver.pass_time(1.0)
    driver.tell(TaskAcked(SOURCE, A1, FIRST, (FLYING,), (), False, 1.0))
    driver.stored(driver.ack(SINK, FIRST)[-1])
    manifest = driver.log[-1]
    assert isinstance(manifest, Manifest)
    return manifest


def test_nothing_is_proposed_and_the_trigger_names_no_round() -> None:
    (order,) = cutting().pass_time(1.0)
    assert order == TriggerCheckpoint(SOURCE, A1, FIRST, BarrierKind.CHECKPOINT, None, 1.0, unaligned=True)


@pytest.mark.parametrize("event", [SavepointRequested("a", "", 0.5), StopRequested("a", "", StopMode.SUSPEND, 0.5)])
def test_savepoint_is_a_cut_and_ends_no_data(event: SavepointRequested | StopRequested) -> None:
    (order,) = cutting().tell(event)
    assert isinstance(order, TriggerCheckpoint)
    assert (order.unaligned, order.stop, order.at_round) == (True, None, None)


@pytest.mark.parametrize(
    "event",
    [
        SavepointRequested("a", "", 0.5, aligned=True),
        StopRequested("a", "", StopMode.SUSPEND, 0.5, aligned=True),
        StopRequested("a", "", StopMode.DRAIN, 0.5),
    ],
)
def test_aligned_savepoint_and_the_end_for_good_are_placed_by_agreement(
    event: SavepointRequested | StopRequested,
) -> None:
    assert cutting().tell(event) == [ProposeRound(SOURCE, A1, FIRST)]


def test_cut_takes_the_place_of_a_checkpoint_whose_barriers_do_not_align_in_time() -> None:
    driver = cutting(Settings(unaligned=True, alignment_timeout=0.25))
    assert driver.pass_time(1.0) == [ProposeRound(SOURCE, A1, FIRST)]
    assert driver.core.next_deadline() == 1.25
    orders = driver.pass_time(1.25)
    assert [type(order) for order in orders] == [AbortCheckpoint, AbortCheckpoint, TriggerCheckpoint]
    assert isinstance(orders[-1], TriggerCheckpoint)
    assert (orders[-1].checkpoint, orders[-1].unaligned) == (SECOND, True)
    assert driver.core.status().checkpoints_failed == 0


def test_stop_that_fails_behind_its_cut_restarts_nobody() -> None:
    driver = cutting(replace(CUTS, timeout=5.0, tolerable_failures=3))
    driver.tell(StopRequested("a", "", StopMode.SUSPEND, 0.5))
    driver.pass_time(9.0)
    status = driver.core.status()
    assert (status.state, status.restarts) == ("running", 0)


def test_savepoint_keeps_what_is_in_flight() -> None:
    driver = cutting()
    driver.tell(SavepointRequested("a", "", 0.5))
    driver.tell(TaskAcked(SOURCE, A1, FIRST, (FLYING,), (), False, 1.0))
    (order,) = driver.ack(SINK, FIRST)
    assert isinstance(order, CopySavepoint)
    assert "flight" in [source for source, _ in order.copies]
    assert order.manifest.shape == "one thread"


# --- what it is restored to --------------------------------------------------------------------------------------


def test_flight_goes_to_its_own_subtask() -> None:
    driver = cutting()
    stored = StoredState(cut(driver), driver.graph)
    assert FLYING in stored.of(SOURCE)
    assert FLYING not in stored.of(SINK)
    assert FLYING not in stored.of(TaskId("source", 1))


def test_finished_task_hands_its_state_on_but_not_what_it_had_in_flight() -> None:
    """It has finished, so all that it sent was processed: restored again, it would be repeated."""
    driver = cutting(replace(CUTS, interval=1.0, retained=1))
    driver.tell(DataEnded(SOURCE, A1, 0.5))
    driver.pass_time(1.0)
    driver.tell(TaskAcked(SOURCE, A1, FIRST, (handle(SOURCE, FIRST, A1), FLYING), (), True, 1.0))
    driver.stored(driver.ack(SINK, FIRST)[-1])
    assert FLYING in StoredState(newest(driver), driver.graph).of(SOURCE)
    driver.tell(TaskCommitted(SOURCE, A1, FIRST, 1.1))
    driver.tell(TaskFinished(SOURCE, A1, 1.2))
    driver.pass_time(2.0)
    orders = driver.stored(driver.ack(SINK, SECOND)[-1])
    assert newest(driver).checkpoint == SECOND
    (source,) = [state for state in newest(driver).tasks if state.task == SOURCE]
    assert source.state == (handle(SOURCE, FIRST, A1),)
    assert FLYING in [each for order in orders if isinstance(order, DiscardState) for each in order.handles]


def newest(driver: CoordinatorDriver) -> Manifest:
    return [entry for entry in driver.log if isinstance(entry, Manifest)][-1]


def test_another_shape_is_refused_only_if_something_is_in_flight() -> None:
    driver = cutting()
    manifest, other = cut(driver), replace(driver.graph, shape="two threads")
    assert check_channels(driver.graph, manifest) is None
    assert "another shape" in str(check_channels(other, manifest))
    assert "aligned" in str(check_channels(other, manifest))
    renamed = ExecutionGraph(other.vertices[1:])
    assert "no stage 'source'" in str(check_channels(renamed, manifest))
    landed = tuple(changed(state, state=()) for state in manifest.tasks)
    assert check_channels(other, changed(manifest, tasks=landed)) is None


def test_books_of_a_cut_balance_by_themselves() -> None:
    flying = Account("exchange", "gather", Tally(5), Tally(2), in_flight=Tally(3))
    assert imbalance(FIRST, SINK, [flying], [FLYING]) is None
    assert imbalance(FIRST, SINK, [flying], []) is not None
    assert imbalance(FIRST, SINK, [changed(flying, taken=Tally(1))], [FLYING]) is not None


# --- a job that is to run in another shape -----------------------------------------------------------------------


def test_job_that_moves_takes_one_checkpoint_by_agreement_and_leaves_the_log_open() -> None:
    driver = cutting(replace(CUTS, moves=True))
    assert "another shape" in driver.core.status().why
    driver.tell(RoundProposed(SOURCE, A1, FIRST, 3, 0.5))
    driver.ack(SOURCE, FIRST)
    orders = driver.stored(driver.ack(SINK, FIRST)[-1])
    assert orders[-3:] == [StopTask(SOURCE, A1), StopTask(SINK, A1), EndJob("moved", None)]
    manifest = driver.log[-1]
    assert isinstance(manifest, Manifest)
    assert manifest.shape == ""


def test_job_that_has_nothing_in_flight_moves_at_once() -> None:
    driver = cutting(replace(CUTS, moves=True))
    driver.tell(RoundProposed(SOURCE, A1, FIRST, 3, 0.5))
    driver.ack(SOURCE, FIRST)
    driver.stored(driver.ack(SINK, FIRST)[-1])
    again = CoordinatorDriver(driver.graph, driver.settings, driver.log, "another")
    assert again.claim()[-1] == EndJob("moved", None)


@pytest.mark.parametrize("last", [FIRST, SECOND])
def test_finished_task_is_waited_for_where_it_was_cut_and_repaired_where_it_was_not(last: CheckpointId) -> None:
    """Its answer may come behind the news of its end; nothing is given up."""
    driver = cutting(replace(CUTS, tolerable_failures=0))
    driver.pass_time(1.0)
    driver.ack(SOURCE, FIRST, ended=True)
    driver.stored(driver.ack(SINK, FIRST)[-1])
    assert driver.pass_time(2.5)[0].checkpoint == SECOND  # type: ignore[union-attr]
    driver.ack(SINK, SECOND)
    orders = driver.tell(TaskFinished(SOURCE, A1, 2.6, last))
    if last == SECOND:
        assert orders == []
        orders = driver.ack(SOURCE, SECOND, ended=True)
    driver.stored(orders[-1])
    statistics = driver.core.checkpoint_statistics()
    assert (statistics.counts.completed, statistics.counts.failed) == (2, 0)


def test_nobody_waits_for_the_answer_of_a_finished_task_whose_process_is_gone() -> None:
    driver = cutting(replace(CUTS, tolerable_failures=0))
    driver.pass_time(1.0)
    driver.ack(SOURCE, FIRST, ended=True)
    driver.stored(driver.ack(SINK, FIRST, ended=True)[-1])
    for task in (SOURCE, SINK):
        driver.tell(TaskCommitted(task, A1, FIRST, 1.1))
    assert driver.pass_time(2.5)[0].checkpoint == SECOND  # type: ignore[union-attr]
    assert driver.tell(TaskFinished(SINK, A1, 2.6, FIRST)) == []
    assert driver.tell(TaskFinished(SOURCE, A1, 2.6, SECOND)) == []
    assert driver.core.status().state == "running"
    driver.tell(TaskLost(SOURCE, A1, "simulated", 2.7))
    assert driver.core.status().in_flight == ()
    assert driver.core.status().state == "finishing"

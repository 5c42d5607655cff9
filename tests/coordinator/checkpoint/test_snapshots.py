"""Starting a job from a savepoint, or from another job's checkpoint: what is read, by whom, and who owns it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from penstock.coordinator.checkpoint.finalizer import make_savepoint
from penstock.coordinator.model.commands import (
    DeployTask,
    DiscardSnapshot,
    DiscardState,
    EndJob,
    StopTask,
    StoreEntry,
    StoreSavepoint,
)
from penstock.coordinator.model.events import EntryFailed, SavepointCopied, SavepointRequested, TaskDeployed
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from penstock.coordinator.model.kinds import ClaimMode
from penstock.coordinator.model.manifest import Manifest, TaskState, decode, encode
from penstock.coordinator.model.settings import Settings
from penstock.coordinator.restore.stored_state import Snapshot
from penstock.engine.core.identity import CheckpointId, StateHandle, TaskId
from support.coordinator_driver import (
    A1,
    A2,
    FIRST,
    FULL_DISK,
    SINK,
    SOURCE,
    CoordinatorDriver,
    committable,
    running,
    two_stages,
)

QUIET = Settings(interval=None, tolerable_failures=5)


def snapshot(mode: ClaimMode = ClaimMode.NO_CLAIM, **changes: object) -> Snapshot:
    driver = running(QUIET)
    driver.tell(SavepointRequested("mine", "", 0.0))
    driver.ack(SOURCE, FIRST)
    driver.ack(SINK, FIRST, committable(1))
    (order,) = driver.tell(SavepointCopied(FIRST, "there", 0.0))
    assert isinstance(order, StoreSavepoint)
    read = decode(encode(changed(order.manifest, **changes)))
    assert isinstance(read, Manifest)
    return Snapshot(read, "moved/here", mode)


def test_job_puts_the_snapshot_into_its_log_before_it_deploys_anything_from_it() -> None:
    found, imported = snapshot(), CheckpointId(2, 1)  # generations count on
    driver = CoordinatorDriver(settings=QUIET, snapshot=found)
    (claim,) = driver.read_log()
    (order,) = driver.stored(claim)
    assert isinstance(order, StoreEntry)
    assert isinstance(order.entry, Manifest)
    assert (order.entry.root, order.entry.claimed, order.entry.kind) == ("moved/here", False, "savepoint")
    deployed = [one for one in driver.stored(order) if isinstance(one, DeployTask)]
    files = {state.task: state.state for state in found.manifest.tasks}
    assert {one.task: one.state for one in deployed} == files
    assert {(one.root, one.restored_from) for one in deployed} == {("moved/here", imported)}
    assert driver.core.status().restored_from == imported


def test_import_that_cannot_be_written_is_tried_again_and_nothing_is_deployed_without_it() -> None:
    driver = CoordinatorDriver(settings=QUIET, snapshot=snapshot())
    (order,) = driver.stored(driver.read_log()[0])
    driver.tell(EntryFailed(1, FULL_DISK, 0.1))
    assert driver.read_log() == [order]


def test_next_coordinator_finds_the_snapshot_in_the_log() -> None:
    driver = CoordinatorDriver(settings=QUIET, snapshot=snapshot())
    driver.stored(driver.stored(driver.read_log()[0])[0])
    heir = CoordinatorDriver(log=driver.log, owner="heir", settings=QUIET)
    assert {order.root for order in heir.claim() if isinstance(order, DeployTask)} == {"moved/here"}


@pytest.mark.parametrize("mode", ClaimMode)
def test_only_a_claimed_snapshot_is_deleted_when_the_job_has_checkpoints_of_its_own(mode: ClaimMode) -> None:
    driver = CoordinatorDriver(settings=Settings(retained=1), snapshot=snapshot(mode))
    driver.stored(driver.stored(driver.read_log()[0])[0])
    driver.run()
    driver.pass_time(1.0)
    orders = driver.complete()
    assert [order.location for order in orders if isinstance(order, DiscardSnapshot)] == (
        ["moved/here"] if mode is ClaimMode.CLAIM else []
    )
    assert not any(isinstance(order, DiscardState) for order in orders), "files outside the job's folder"


def test_snapshot_with_state_that_the_flow_does_not_know_is_refused_unless_that_is_allowed() -> None:
    named = ExecutionGraph((Vertex("source", 1, ("reader",)), Vertex("sink", 1, ("writer",))), two_stages().edges)
    driver = CoordinatorDriver(named, QUIET, snapshot=snapshot())
    (order,) = driver.read_log()
    assert isinstance(order, EndJob)
    assert order.failure is not None
    assert "does not have: 'operator'" in order.failure.message
    assert driver.log == []
    driver = CoordinatorDriver(named, QUIET, snapshot=replace(snapshot(), allow_left_behind=True))
    assert isinstance(driver.read_log()[0], StoreEntry)


def test_snapshot_of_another_number_of_lanes_is_refused() -> None:
    graph = ExecutionGraph(two_stages().vertices, two_stages().edges, lanes=8)
    driver = CoordinatorDriver(graph, QUIET, snapshot=snapshot(lanes=4))
    (order,) = driver.read_log()
    assert isinstance(order, EndJob)
    assert order.failure is not None
    assert "divided into 4 lanes" in order.failure.message


def test_savepoint_of_tasks_that_share_a_file_copies_it_once() -> None:
    shared = StateHandle("op", "state/shared", 1, 1)
    tasks = tuple(TaskState(task=TaskId("a", number), state=(shared,)) for number in (0, 1))
    manifest = Manifest(number=3, checkpoint=FIRST, fingerprint="f", parallelism={"a": 2}, tasks=tasks)
    saved, copies = make_savepoint(manifest)
    assert len(copies) == 1
    assert {one.location for state in saved.tasks for one in state.state} == {copies[0][1]}


def test_restore_at_another_parallelism_reads_only_files_whose_lanes_the_task_owns() -> None:
    graph = ExecutionGraph((Vertex("a", 4, ("op",)),), (), lanes=8)
    tasks = tuple(TaskState(task=TaskId("a", n), state=(StateHandle("op", f"old {n}", 1, 1),)) for n in (0, 1))
    manifest = Manifest(number=0, checkpoint=FIRST, fingerprint="f", parallelism={"a": 2}, tasks=tasks, lanes=8)
    driver = CoordinatorDriver(graph, QUIET, snapshot=Snapshot(manifest, "there"))
    orders = driver.stored(driver.stored(driver.read_log()[0])[0])
    read = {one.task.subtask: [file.location for file in one.state] for one in orders if isinstance(one, DeployTask)}
    assert read == {0: ["old 0"], 1: ["old 0"], 2: ["old 1"], 3: ["old 1"]}


def test_operators_may_move_to_other_stages_between_a_snapshot_and_the_job_that_starts_from_it() -> None:
    edge = JobEdge("all", "last", Pattern.POINTWISE)
    graph = ExecutionGraph((Vertex("all", 1, ("read", "write")), Vertex("last", 1, ("new",))), (edge,))
    files = {name: StateHandle(name, f"old {name}", 1, 1) for name in ("read", "write")}
    tasks = (
        TaskState(task=TaskId("source", 0), state=(files["read"],)),
        TaskState(task=TaskId("sink", 0), state=(files["write"],)),
    )
    manifest = Manifest(number=0, checkpoint=FIRST, fingerprint="f", parallelism={"source": 1, "sink": 1}, tasks=tasks)
    driver = CoordinatorDriver(graph, QUIET, snapshot=Snapshot(manifest, "there"))
    orders = driver.stored(driver.stored(driver.read_log()[0])[0])
    read = {one.task.vertex: one.state for one in orders if isinstance(one, DeployTask)}
    assert read == {"all": (files["read"], files["write"]), "last": ()}


def test_attempt_that_two_processes_have_built_is_restarted() -> None:
    driver = CoordinatorDriver(settings=QUIET)
    driver.claim()
    driver.tell(TaskDeployed(SOURCE, A1, 0.1, "one"))
    assert driver.tell(TaskDeployed(SOURCE, A1, 0.1, "one")) == []
    assert driver.tell(TaskDeployed(SOURCE, A1, 0.2, "two")) == [StopTask(SOURCE, A1), StopTask(SINK, A1)]
    assert driver.core.status().state == "restarting"
    assert [o.attempt for o in driver.pass_time(1.0) if isinstance(o, DeployTask)] == [A2, A2]

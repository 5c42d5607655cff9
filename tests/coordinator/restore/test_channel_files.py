"""Batches in flight in a checkpoint: which files of them a restored task reads, and when they are not carried on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.coordinator.checkpoint.finalizer import make_savepoint
from penstock.coordinator.model.commands import DeployTask, DiscardState, EndJob
from penstock.coordinator.model.events import DataEnded, TaskAcked, TaskCommitted, TaskFinished, TaskLost
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from penstock.coordinator.model.manifest import Manifest, TaskState, decode, encode
from penstock.coordinator.model.rescaling import ChannelMapper
from penstock.coordinator.model.settings import Settings
from penstock.coordinator.restore.stored_channels import check_channels
from penstock.coordinator.restore.stored_state import Snapshot, StoredState, check_snapshot
from penstock.engine.core.identity import Holds, StateHandle, TaskId
from support.coordinator_driver import A1, FIRST, SECOND, SINK, SOURCE, CoordinatorDriver, handle, running

LANES = 8
EXCHANGE = "partition-1"


def graph(up: int, down: int, mapper: ChannelMapper = ChannelMapper.RANGE, name: str = EXCHANGE) -> ExecutionGraph:
    edge = JobEdge("source", "sink", Pattern.ALL_TO_ALL, name, mapper)
    return ExecutionGraph((Vertex("source", up), Vertex("sink", down)), (edge,), lanes=LANES)


def file(task: TaskId, holds: Holds) -> StateHandle:
    operator = "operator" if holds is Holds.STATE else EXCHANGE
    return StateHandle(operator, f"{task} {holds.value}", 1, 1, holds)


def checkpoint_of(up: int, down: int) -> Manifest:
    """Every task has state; producers have unsent batches, consumers unread ones."""
    sides = {"source": (up, Holds.OUTPUT), "sink": (down, Holds.INPUT)}
    tasks = tuple(
        TaskState(task=TaskId(vertex, n), state=tuple(file(TaskId(vertex, n), one) for one in (Holds.STATE, side)))
        for vertex, (size, side) in sides.items()
        for n in range(size)
    )
    read = decode(
        encode(
            Manifest(number=1, checkpoint=FIRST, fingerprint="f", parallelism={"source": up, "sink": down}, tasks=tasks)
        )
    )
    assert isinstance(read, Manifest)
    return read


def read_by(stored: StoredState, task: TaskId, holds: Holds) -> list[int]:
    """The old subtasks whose files of this kind the task reads."""
    return [int(each.location.split("[")[1].split("]")[0]) for each in stored.of(task) if each.holds is holds]


def test_at_the_same_parallelism_every_task_gets_the_batches_that_were_in_flight_to_it_and_from_it() -> None:
    stored = StoredState(checkpoint_of(2, 3), graph(2, 3, ChannelMapper.UNSUPPORTED))
    assert stored.of(TaskId("source", 1)) == tuple(
        file(TaskId("source", 1), holds) for holds in (Holds.STATE, Holds.OUTPUT)
    )
    assert stored.of(TaskId("sink", 2)) == tuple(file(TaskId("sink", 2), holds) for holds in (Holds.STATE, Holds.INPUT))


@pytest.mark.parametrize(
    ("mapper", "read"),
    [
        (ChannelMapper.RANGE, [[0, 1], [1, 2]]),
        (ChannelMapper.FIRST, [[0, 1, 2], []]),
        (ChannelMapper.ROUND_ROBIN, [[0, 2], [1]]),
        (ChannelMapper.ARBITRARY, [[0, 2], [1]]),
        (ChannelMapper.FULL, [[0, 1, 2], [0, 1, 2]]),
    ],
)
def test_at_another_parallelism_consumers_read_what_the_exchange_says(
    mapper: ChannelMapper, read: list[list[int]]
) -> None:
    stored = StoredState(checkpoint_of(1, 3), graph(1, 2, mapper))
    assert [read_by(stored, TaskId("sink", n), Holds.INPUT) for n in range(2)] == read


@pytest.mark.parametrize("mapper", ChannelMapper)
def test_what_producers_had_not_sent_goes_by_their_lanes_whatever_the_exchange(mapper: ChannelMapper) -> None:
    stored = StoredState(checkpoint_of(2, 1), graph(4, 1, mapper))
    assert [read_by(stored, TaskId("source", n), Holds.OUTPUT) for n in range(4)] == [[0], [0], [1], [1]]


def test_every_old_file_is_read_by_somebody_at_any_parallelism() -> None:
    for old in range(1, LANES + 1):
        for new in range(1, LANES + 1):
            stored = StoredState(checkpoint_of(old, old), graph(new, new))
            for vertex, holds in (("source", Holds.OUTPUT), ("sink", Holds.INPUT)):
                read = {each for n in range(new) for each in read_by(stored, TaskId(vertex, n), holds)}
                assert read == set(range(old))


def test_at_the_same_parallelism_nobody_reads_files_of_another_subtask() -> None:
    stored = StoredState(checkpoint_of(3, 3), graph(3, 3))
    for subtask in range(3):
        task = TaskId("sink", subtask)
        assert stored.of(task) == tuple(file(task, holds) for holds in (Holds.STATE, Holds.INPUT))


def test_region_owns_the_channel_files_of_whole_vertices_and_of_its_tasks_at_an_unchanged_parallelism() -> None:
    def owned(up: int, down: int, *region: TaskId) -> set[str]:
        stored = StoredState(checkpoint_of(2, 2), graph(up, down))
        return {each.location for each in stored.in_flight(region)}

    sinks = [TaskId("sink", subtask) for subtask in range(2)]
    unread = {file(task, Holds.INPUT).location for task in sinks}
    unsent = {file(TaskId("source", 0), Holds.OUTPUT).location}
    assert owned(2, 2, TaskId("source", 0), *sinks) == unread | unsent
    assert owned(2, 2, sinks[1]) == {file(sinks[1], Holds.INPUT).location}
    assert owned(3, 2, TaskId("source", 0), *sinks) == unread, "others may read what the source had not sent"
    assert owned(2, 3, *sinks) == set()
    assert owned(2, 3, *sinks, TaskId("sink", 2)) == unread


def test_remainder_of_a_broadcast_is_refused_at_another_parallelism_before_anything_is_claimed() -> None:
    old, new = graph(1, 2, ChannelMapper.UNSUPPORTED), graph(1, 3, ChannelMapper.UNSUPPORTED)
    assert check_channels(old, checkpoint_of(1, 2)) is None
    driver = CoordinatorDriver(new, Settings(), log=[replace(checkpoint_of(1, 2), fingerprint="print")])
    (order,) = driver.read_log()
    assert isinstance(order, EndJob)
    assert order.failure is not None
    assert "remainder of its own" in order.failure.message
    assert "restore with 2 subtasks" in order.failure.remedy


def test_batches_of_an_exchange_that_the_flow_does_not_have_are_refused_unless_they_may_be_left_behind() -> None:
    other = graph(1, 1, name="another")
    refused = check_snapshot(other, Snapshot(checkpoint_of(1, 1), "there"))
    assert refused is not None
    assert f"no exchange '{EXCHANGE}'" in refused.message
    allowed = Snapshot(checkpoint_of(1, 1), "there", allow_left_behind=True)
    assert check_snapshot(other, allowed) is None
    assert read_by(StoredState(checkpoint_of(1, 1), other), TaskId("sink", 0), Holds.INPUT) == []


def test_savepoint_keeps_what_a_file_holds() -> None:
    saved, copies = make_savepoint(checkpoint_of(1, 1))
    assert [each.holds for state in saved.tasks for each in state.state] == [
        *(Holds.STATE, Holds.OUTPUT, Holds.STATE, Holds.INPUT)
    ]
    assert len(copies) == 4


def acked(driver: CoordinatorDriver, task: TaskId, ended: bool, *files: StateHandle) -> list[object]:
    pending = driver.core.status().pending
    assert pending is not None
    said = (handle(task, pending.checkpoint, A1), *files)
    return list(driver.tell(TaskAcked(task, A1, pending.checkpoint, said, (), ended, driver.now)))


def test_finished_task_hands_its_state_on_but_not_what_it_had_in_flight() -> None:
    """It has finished, so all that it sent was processed: restored again, it would be repeated."""
    driver = running(Settings(interval=1.0, retained=1))
    unsent = StateHandle(EXCHANGE, "unsent", 1, 1, Holds.OUTPUT)
    driver.tell(DataEnded(SOURCE, A1, 0.5))
    driver.pass_time(1.0)
    acked(driver, SOURCE, True, unsent)
    driver.stored(acked(driver, SINK, False)[-1])  # type: ignore[arg-type]
    assert unsent in next(state.state for state in _newest(driver).tasks if state.task == SOURCE)
    driver.tell(TaskCommitted(SOURCE, A1, FIRST, 1.1))
    driver.tell(TaskFinished(SOURCE, A1, 1.2))
    driver.pass_time(2.0)
    orders = driver.stored(acked(driver, SINK, False)[-1])  # type: ignore[arg-type]
    assert _newest(driver).checkpoint == SECOND
    (source,) = [state for state in _newest(driver).tasks if state.task == SOURCE]
    assert source.state == (handle(SOURCE, FIRST, A1),)
    assert unsent in [each for order in orders if isinstance(order, DiscardState) for each in order.handles]


def test_restarted_region_gets_its_channel_files_with_its_state() -> None:
    driver = CoordinatorDriver(graph(1, 1), Settings(interval=1.0))
    driver.claim()
    driver.run()
    driver.pass_time(1.0)
    acked(driver, SOURCE, False, file(SOURCE, Holds.OUTPUT))
    driver.stored(acked(driver, SINK, False, file(SINK, Holds.INPUT))[-1])  # type: ignore[arg-type]
    driver.tell(TaskLost(SINK, A1, "killed", 1.5))
    deployed = {order.task: order.state for order in driver.pass_time(3.0) if isinstance(order, DeployTask)}
    assert deployed[SOURCE] == (handle(SOURCE, FIRST, A1), file(SOURCE, Holds.OUTPUT))
    assert deployed[SINK] == (handle(SINK, FIRST, A1), file(SINK, Holds.INPUT))


def _newest(driver: CoordinatorDriver) -> Manifest:
    return [entry for entry in driver.log if isinstance(entry, Manifest)][-1]

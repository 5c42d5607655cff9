"""What manifests say of finished tasks and operators, and what is kept of them: content, pins, retention, recovery."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from penstock.coordinator.log.retained import RetainedCheckpoints
from penstock.coordinator.model.commands import (
    DeployTask,
    DiscardEntries,
    DiscardState,
    EndJob,
    StoreEntry,
    TriggerCheckpoint,
)
from penstock.coordinator.model.events import (
    DataEnded,
    EntryFailed,
    PinRequested,
    TaskAcked,
    TaskCommitted,
    TaskFinished,
    TaskLost,
    UnpinRequested,
)
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from penstock.coordinator.model.manifest import (
    FORMAT,
    OLDEST,
    Claim,
    Ended,
    Manifest,
    OperatorEntry,
    Pinned,
    TaskState,
    Unpinned,
    decode,
    encode,
)
from penstock.coordinator.model.records import FormatError
from penstock.coordinator.model.retention import RetentionPolicy
from penstock.coordinator.model.settings import Settings
from penstock.coordinator.restore.finished_check import FinishedState, OperatorName, check_restore
from penstock.coordinator.restore.stored_state import StoredState, finished_vertices
from penstock.engine.core.identity import CheckpointId, EndedLanes, TaskId
from penstock.engine.integrity.checksums import sealed, unsealed
from support.coordinator_driver import (
    A1,
    FIRST,
    FULL_DISK,
    SECOND,
    SINK,
    SOURCE,
    CoordinatorDriver,
    handle,
    in_checkpoint,
    running,
)

GRAPH = ExecutionGraph(
    (Vertex("source", 2, ("reader",)), Vertex("sink", 1, ("group", "writer"))),
    (JobEdge("source", "sink", Pattern.ALL_TO_ALL),),
)
LEFT, RIGHT, LAST = TaskId("source", 0), TaskId("source", 1), TaskId("sink", 0)
ON_DEMAND = Settings(interval=None, retry_pause=0.5)


def stored(driver: CoordinatorDriver) -> Manifest:
    """The manifest stored last."""
    found = [entry for entry in driver.log if isinstance(entry, Manifest)]
    return found[-1]


def ack(driver: CoordinatorDriver, task: TaskId, checkpoint: CheckpointId, **changes: object) -> list[object]:
    event = TaskAcked(task, A1, checkpoint, (handle(task, checkpoint, A1),), (), False, driver.now)
    return list(driver.tell(replace(event, **changes)))


def with_left_finished() -> CoordinatorDriver:
    """One of the two sources has finished; the second checkpoint, with it, stands in the log."""
    driver = CoordinatorDriver(GRAPH, Settings(interval=1.0))
    driver.claim()
    driver.run()
    driver.tell(DataEnded(LEFT, A1, 0.5))
    driver.pass_time(1.0)
    ack(driver, LEFT, FIRST, data_ended=True)
    ack(driver, RIGHT, FIRST)
    driver.stored(ack(driver, LAST, FIRST)[-1])  # type: ignore[arg-type]
    driver.tell(TaskFinished(LEFT, A1, 1.5))
    driver.pass_time(2.0)
    ack(driver, RIGHT, SECOND)
    driver.stored(ack(driver, LAST, SECOND)[-1])  # type: ignore[arg-type]
    return driver


# --- content ---------------------------------------------------------------------------------------------------------


def test_manifest_says_of_every_operator_how_much_of_it_has_finished() -> None:
    said = {entry.operator: (entry.vertex, entry.finished) for entry in stored(with_left_finished()).operators}
    assert said == {
        "reader": ("source", "partly finished"),
        "group": ("sink", "all running"),
        "writer": ("sink", "all running"),
    }


def test_last_state_of_a_finished_task_is_carried_on_without_being_written_again() -> None:
    (left,) = [state for state in stored(with_left_finished()).tasks if state.task == LEFT]
    assert left.finished
    assert left.state == (handle(LEFT, FIRST, A1),)


def test_restart_deploys_a_finished_task_with_its_state_and_not_as_finished_while_others_of_its_vertex_run() -> None:
    driver = with_left_finished()
    driver.tell(TaskLost(RIGHT, A1, "killed", 2.5))
    orders = [order for order in driver.pass_time(3.0) if isinstance(order, DeployTask)]
    assert {order.task: order.finished for order in orders} == {LEFT: False, RIGHT: False, LAST: False}
    assert next(order.state for order in orders if order.task == LEFT)


def test_vertex_that_had_finished_is_deployed_as_finished_and_keeps_its_files_if_it_reports_none() -> None:
    driver = CoordinatorDriver(GRAPH, Settings(interval=1.0, resend=100.0))
    driver.claim()
    driver.run()
    for source in (LEFT, RIGHT):
        driver.tell(DataEnded(source, A1, 0.1))
    driver.pass_time(1.0)
    for source in (LEFT, RIGHT):
        ack(driver, source, FIRST, data_ended=True, ended=(ends("reader", source.subtask, source.subtask + 1),))
    driver.stored(ack(driver, LAST, FIRST)[-1])  # type: ignore[arg-type]
    for source in (LEFT, RIGHT):
        driver.tell(TaskFinished(source, A1, 1.5))
    driver.pass_time(2.0)
    driver.stored(ack(driver, LAST, SECOND)[-1])  # type: ignore[arg-type]
    before = {s.task: (s.state, s.ended) for s in stored(driver).tasks if s.task.vertex == "source"}
    driver.tell(TaskLost(LAST, A1, "killed", 2.5))
    orders = [order for order in driver.pass_time(3.0) if isinstance(order, DeployTask)]
    assert {order.task: order.finished for order in orders} == {LEFT: True, RIGHT: True, LAST: False}
    assert {order.task: len(order.ended) for order in orders} == {LEFT: 1, RIGHT: 1, LAST: 0}
    driver.run(number=2)
    driver.pass_time(5.0)
    third, attempt = CheckpointId(1, 3), orders[0].attempt
    for task in GRAPH.tasks:
        over = task.vertex == "source"
        state = () if over else (handle(task, third, attempt),)
        event = TaskAcked(task, attempt, third, state, (), over, 5.0, finished_on_restore=over)
        orders = driver.tell(event)  # type: ignore[assignment]
    driver.stored(orders[-1])
    after = {s.task: (s.state, s.ended) for s in stored(driver).tasks if s.task.vertex == "source"}
    assert after == before
    assert finished_vertices(stored(driver), GRAPH) == {"source"}, "though they have not finished again by then"
    assert {e.operator: e.finished for e in stored(driver).operators}["reader"] == "fully finished"


def test_what_feeds_a_vertex_that_is_deployed_as_finished_counts_as_finished_at_another_parallelism() -> None:
    """Else a savepoint of that moment could not be started from."""
    names = ("source", "middle", "last")
    edges = tuple(JobEdge(up, down, Pattern.ALL_TO_ALL) for up, down in pairwise(names))
    former, graph = (
        ExecutionGraph(
            tuple(Vertex(name, size if name == "source" else 1, (f"in {name}",)) for name in names), edges, lanes=6
        )
        for size in (2, 3)
    )
    finished = replace(
        checkpoint_with(dict.fromkeys(former.tasks, ())),
        fingerprint="print",
        operators=tuple(
            OperatorEntry(
                operator=f"in {name}",
                vertex=name,
                parallelism=former.parallelism[name],
                finished="all running" if name == "last" else "fully finished",
            )
            for name in names
        ),
    )
    claim = Claim(number=0, generation=1, job="job", fingerprint="print")
    driver = CoordinatorDriver(graph, Settings(interval=1.0, resend=100.0), [claim, finished], owner="heir")
    deployed = {order.task: order.finished for order in driver.claim() if isinstance(order, DeployTask)}
    assert {task.vertex for task, over in deployed.items() if over} == {"middle"}
    driver.run()
    orders = driver.pass_time(driver.now + 1.0)
    checkpoint = next(order.checkpoint for order in orders if isinstance(order, TriggerCheckpoint))
    for task in graph.tasks:
        files = () if deployed[task] else (handle(task, checkpoint, driver.attempt()),)
        event = TaskAcked(task, driver.attempt(), checkpoint, files, (), deployed[task], driver.now)
        acked = driver.tell(replace(event, finished_on_restore=deployed[task]))
    driver.stored(acked[-1])
    states = {entry.operator: FinishedState(entry.finished) for entry in stored(driver).operators}
    assert [states[f"in {name}"].value for name in names] == ["fully finished", "fully finished", "all running"]
    operators = {vertex: [OperatorName(each) for each in found] for vertex, found in graph.operators.items()}
    assert check_restore(graph, operators, states) is None
    assert finished_vertices(stored(driver), graph) == {"source", "middle"}


# --- operators that have finished -------------------------------------------------------------------------------------


def ends(operator: str, start: int, stop: int) -> EndedLanes:
    return EndedLanes(operator, start, stop)


def checkpoint_with(tasks: dict[TaskId, tuple[EndedLanes, ...]], root: str = "") -> Manifest:
    states = tuple(TaskState(task=task, ended=ended) for task, ended in tasks.items())
    parallelism = {vertex: sum(task.vertex == vertex for task in tasks) for vertex in {each.vertex for each in tasks}}
    made = Manifest(number=1, checkpoint=FIRST, fingerprint="f", parallelism=parallelism, tasks=states, root=root)
    read = decode(encode(made))
    assert isinstance(read, Manifest)
    return read


def wide(parallelism: int) -> ExecutionGraph:
    return ExecutionGraph((Vertex("v", parallelism, ("read", "end")),), lanes=6)


def test_at_the_same_parallelism_each_task_is_told_what_had_finished_in_it() -> None:
    stored = StoredState(checkpoint_with({TaskId("v", 0): (ends("end", 0, 3),), TaskId("v", 1): ()}), wide(2))
    assert [stored.ended(TaskId("v", n)) for n in range(2)] == [(ends("end", 0, 3),), ()]


def test_at_another_parallelism_a_task_is_told_what_had_finished_for_lanes_that_are_its_own_now() -> None:
    ended = {TaskId("v", 0): (ends("end", 0, 2),), TaskId("v", 1): (), TaskId("v", 2): (ends("end", 4, 6),)}
    stored = StoredState(checkpoint_with(ended), wide(2))
    assert [stored.ended(TaskId("v", n)) for n in range(2)] == [(ends("end", 0, 2),), (ends("end", 4, 6),)]
    assert StoredState(checkpoint_with(ended), wide(1)).ended(TaskId("v", 0)) == (ends("end", 0, 2), ends("end", 4, 6))


def test_from_a_snapshot_they_are_found_by_operator_whatever_its_stage_was_called() -> None:
    stored = StoredState(
        checkpoint_with({TaskId("before", 0): (ends("end", 0, 6), ends("gone", 0, 6))}, "there"), wide(1)
    )
    assert stored.ended(TaskId("v", 0)) == (ends("end", 0, 6),)


def test_feed_that_has_finished_is_deployed_as_usual() -> None:
    """Whether its ranks have read everything only itself can say."""
    state = TaskState(task=TaskId("v", 0), finished=True)
    manifest = replace(checkpoint_with({TaskId("v", 0): ()}), tasks=(state,))
    for paced in (False, True):
        graph = ExecutionGraph((Vertex("v", 1, ("feed",), paced=paced),), lanes=6)
        assert finished_vertices(manifest, graph) == (frozenset() if paced else {"v"})


# --- coalescing ------------------------------------------------------------------------------------------------------


def test_thousand_subtasks_that_end_one_by_one_make_few_checkpoints_though_each_of_them_completes() -> None:
    graph = ExecutionGraph((Vertex("lonely", 1000, ("reader",)),))
    driver = CoordinatorDriver(graph, Settings(interval=None, min_pause=0.1), validate=False)
    driver.claim()
    driver.run()
    taken = 0
    for number, task in enumerate(graph.tasks):
        driver.now = number * 0.001
        orders = list(driver.core.handle(DataEnded(task, A1, driver.now)))
        orders += driver.pass_time(driver.now)
        triggers = [order for order in orders if isinstance(order, TriggerCheckpoint)]
        if triggers:
            taken += 1
            ended = set(graph.tasks[: number + 1])
            for waited in graph.tasks:
                orders = driver.ack(waited, triggers[0].checkpoint, ended=waited in ended)
            driver.stored(orders[-1])
    assert 5 <= taken <= 12


# --- pins ------------------------------------------------------------------------------------------------------------


def pinned() -> CoordinatorDriver:
    driver = in_checkpoint(Settings(retained=1))
    driver.complete()
    (order,) = driver.tell(PinRequested(FIRST, "model", 1.5))
    assert order == StoreEntry(Pinned(number=2, generation=1, checkpoint=FIRST, name="model"))
    assert driver.core.status().pins == {}
    driver.stored(order)
    assert driver.core.status().pins == {"model": FIRST}
    return driver


def test_pinned_checkpoint_stays_whatever_comes_after_it() -> None:
    driver = pinned()
    driver.pass_time(2.0)
    assert not any(isinstance(order, DiscardEntries | DiscardState) for order in driver.complete())


def test_next_coordinator_keeps_what_is_pinned() -> None:
    driver = pinned()
    driver.pass_time(2.0)
    driver.complete()
    heir = CoordinatorDriver(log=driver.log, owner="heir", settings=Settings(retained=1))
    assert not any(isinstance(order, DiscardEntries | DiscardState) for order in heir.claim())
    assert heir.core.status().pins == {"model": FIRST}


def test_checkpoint_that_is_unpinned_goes_and_the_entries_about_it_with_the_next_one() -> None:
    driver = pinned()
    driver.pass_time(2.0)
    driver.complete()
    (order,) = driver.tell(UnpinRequested("model", 2.5))
    assert order == StoreEntry(Unpinned(number=4, generation=1, name="model"))
    gone = driver.stored(order)
    assert [type(one) for one in gone] == [DiscardEntries, DiscardState]
    assert gone[0] == DiscardEntries((1,))
    driver.pass_time(3.0)
    assert DiscardEntries((3, 2, 4)) in driver.complete()


def test_pin_of_what_is_not_kept_is_refused() -> None:
    driver = running()
    assert driver.tell(PinRequested(FIRST, "late", 0.5)) == []
    assert driver.core.status().refused_pins == ("late",)


def test_pin_that_cannot_be_written_is_tried_again() -> None:
    driver = in_checkpoint(Settings(retained=1))
    driver.complete()
    (order,) = driver.tell(PinRequested(FIRST, "model", 1.5))
    driver.tell(EntryFailed(2, FULL_DISK, 1.6))
    assert driver.read_log() == [order]


# --- retention and recovery ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [RetentionPolicy.NEVER, RetentionPolicy.ALWAYS])
def test_finished_job_deletes_its_checkpoints_if_its_policy_says_so(policy: RetentionPolicy) -> None:
    driver = running(Settings(interval=None, retention=policy))
    for task in (SOURCE, SINK):
        driver.tell(DataEnded(task, A1, 0.1))
    driver.complete(ended=True)
    for task in (SOURCE, SINK):
        driver.tell(TaskCommitted(task, A1, FIRST, 0.2))
        orders = driver.tell(TaskFinished(task, A1, 0.3))
    last = driver.stored(orders[-1])
    deleted = [DiscardEntries, DiscardState] if policy is RetentionPolicy.NEVER else []
    assert [type(order) for order in last] == [*deleted, EndJob]


def test_coordinator_that_finds_its_own_log_closed_says_that_the_job_has_finished() -> None:
    claim = Claim(number=0, generation=1, job="job", fingerprint="print")
    driver = CoordinatorDriver(log=[claim, Ended(number=1, generation=1, status="finished")])
    assert driver.read_log() == [EndJob("finished", None)]
    assert (driver.core.status().state, driver.core.status().generation) == ("finished", 1)


@pytest.mark.parametrize("off", [-1, 1])
def test_entry_of_another_format_is_refused_by_its_number(off: int) -> None:
    entry = Claim(number=0, generation=1, job="job", fingerprint="print")
    assert decode(encode(entry)) == entry
    with pytest.raises(ValueError, match=f"this version knows {OLDEST} to {FORMAT}"):
        decode(encode(replace(entry, format=FORMAT + 1)))


@pytest.mark.parametrize("format", [1, 2, 3])
def test_entry_of_a_format_without_digests_is_refused_by_its_number(format: int) -> None:
    old = b'{"type":"checkpoint","format":%d,"number":1,"checkpoint":{"generation":1,"number":1},"fingerprint":"f",'
    old += b'"parallelism":{"a":1},"tasks":[{"task":{"vertex":"a","subtask":0}}]}'
    with pytest.raises(FormatError, match=f"it has format {format}, and this version knows {OLDEST} to {FORMAT}"):
        decode(old % format)


def test_entry_with_a_field_that_is_not_known_is_refused() -> None:
    entry = unsealed(encode(Claim(number=0, generation=1, job="job", fingerprint="print")))
    with pytest.raises(ValueError, match="unknown field `later`"):
        decode(sealed(entry[:-1] + b',"later":1}'))


def test_pins_of_unknown_checkpoints_in_the_log_are_obsolete() -> None:
    completed = RetainedCheckpoints(retained=1)
    completed.restore((), [Pinned(number=7, generation=1, checkpoint=FIRST, name="gone")])
    manifest = Manifest(number=9, checkpoint=SECOND, fingerprint="f", parallelism={}, tasks=())
    assert completed.add(manifest).numbers == (7,)

"""The thread that owns a task: what it reports, what it drops, and what failing storage does to it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from penstock.actors.hosting.task_host import SLICE, TaskFiles, TaskHost
from penstock.actors.protocol.messages import Arrived, Deployment, StatisticsAsked
from penstock.actors.storage.snapshots import SnapshotFiles
from penstock.coordinator.model.commands import CommitCheckpoint, DeployTask, StartTask, StopTask
from penstock.coordinator.model.events import (
    DataEnded,
    TaskAcked,
    TaskCommitted,
    TaskDeclined,
    TaskDeployed,
    TaskFailed,
)
from penstock.engine.core.elements import Barrier, Batch, EndOfData, EndOfRound, Tag
from penstock.engine.core.identity import (
    Attempt,
    BarrierKind,
    CheckpointId,
    CommitPermit,
    Committable,
    EndedLanes,
    StateHandle,
    TaskId,
)
from penstock.engine.exchange.channels import ChannelId, Frame
from penstock.engine.flow.flow import Flow
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.runtime.checkpointing import TaskSnapshot
from penstock.engine.runtime.statistics import TaskStatistics
from penstock.engine.runtime.task import Task
from penstock.engine.scheduler.pool import PoolScheduler
from penstock.engine.state.change_log import ChangeLog, StatePart
from support.feeds import wait_for
from support.ray_jobs import expected, gather_flow

SINK, SOURCES = TaskId("gather-1", 0), (TaskId("memory-1", 0), TaskId("memory-1", 1))
FIRST, SECOND = Attempt(1, 1), Attempt(1, 2)
CHECKPOINT = CheckpointId(1, 1)


class Recorder:
    """Keeps what a host reports and sends; ``next_of`` waits for an event of a kind."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def next_of(self, kind: type) -> Any:
        while not isinstance(event := self.events.get(timeout=20), kind):
            pass
        return event

    def connect(self, peers: Any) -> None: ...

    def send(self, frame: Any) -> None: ...

    def reply(self, message: Any) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def host(recorder: Recorder, tmp_path: Path) -> Iterator[TaskHost]:
    """A host of the sink's task, whose checkpoint folder is ``state``."""
    plan = plan_job(gather_flow(tmp_path / "out"), 2)
    files = TaskFiles(plan, SnapshotFiles(str(tmp_path / "state"), plan.name, inline=0), recorder.events.put)
    made = TaskHost(plan, SINK, files, recorder.events.put, lambda broken: recorder, incarnation="this one")
    made.start()
    yield made
    made.close()
    files.close()


def counted(host: TaskHost) -> TaskStatistics:
    found = host.statistics(20)
    assert found is not None
    return found


def deployment(attempt: Attempt, state: tuple[StateHandle, ...] = ()) -> Deployment:
    attempts = tuple((task, attempt) for task in (SINK, *SOURCES))
    return Deployment(DeployTask(SINK, attempt, state, attempts, None), {}, None)


def frame(source: int, attempt: Attempt, sequence: int, element: object) -> Arrived:
    channel = ChannelId("gather-1", SOURCES[source], SINK)
    return Arrived((Frame(channel, (attempt, attempt), sequence, element),), ())  # type: ignore[arg-type]


def end_data(host: TaskHost, attempt: Attempt) -> None:
    for source in range(2):
        host.post(frame(source, attempt, 0, EndOfRound(0)))
        host.post(frame(source, attempt, 1, EndOfData()))


def test_frames_that_come_before_the_start_are_kept(host: TaskHost, recorder: Recorder) -> None:
    host.post(deployment(FIRST))
    assert recorder.next_of(TaskDeployed).attempt == FIRST
    end_data(host, FIRST)
    host.post(StartTask(SINK, FIRST))
    assert recorder.next_of(DataEnded).attempt == FIRST


@pytest.fixture
def busy(recorder: Recorder, tmp_path: Path) -> Iterator[TaskHost]:
    """The same host with its task on threads of a pool, started; its own thread is stuck, as the frames come."""
    plan = plan_job(gather_flow(tmp_path / "out"), 2)
    files = TaskFiles(plan, SnapshotFiles(str(tmp_path / "state"), plan.name, inline=0), recorder.events.put)
    pool = PoolScheduler(2)
    made = TaskHost(plan, SINK, files, recorder.events.put, lambda broken: recorder, pool)
    made.start()
    made.post(deployment(FIRST))
    recorder.next_of(TaskDeployed)
    yield made
    made.close()
    files.close()
    pool.shutdown()


class _Stuck:
    """The thread of a host, as long as the block lasts, from this message on."""

    def __init__(self, host: TaskHost) -> None:
        self._there, self._go_on = threading.Event(), threading.Event()
        asked: Future[TaskStatistics | None] = Future()
        asked.add_done_callback(lambda _: (self._there.set(), self._go_on.wait(60)))
        host.post(StatisticsAsked(asked))

    def __enter__(self) -> None:
        assert self._there.wait(20)

    def __exit__(self, *_: object) -> None:
        self._go_on.set()


def sent(source: int, attempt: Attempt, sequence: int, element: object) -> Frame:
    (found,) = frame(source, attempt, sequence, element).frames
    return found


def test_frames_of_the_same_process_wake_no_thread_that_only_hands_them_on(busy: TaskHost, recorder: Recorder) -> None:
    busy.post(StartTask(SINK, FIRST))
    wait_for(lambda: busy._reached is not None)
    with _Stuck(busy):
        for source in range(2):
            busy.arrive(sent(source, FIRST, 0, EndOfRound(0)))
            busy.arrive(sent(source, FIRST, 1, EndOfData()))
        assert recorder.next_of(DataEnded).attempt == FIRST


def test_frames_of_the_same_process_pass_none_that_came_before_the_start(busy: TaskHost, recorder: Recorder) -> None:
    busy.arrive(sent(0, FIRST, 0, EndOfRound(0)))
    with _Stuck(busy):
        busy.arrive(sent(0, FIRST, 1, EndOfRound(1)))
        busy.post(StartTask(SINK, FIRST))
        behind = _Stuck(busy)
    with behind:  # it has started, and these are still in the mailbox
        busy.arrive(sent(0, FIRST, 2, EndOfRound(2)))
        between = _Stuck(busy)
        busy.arrive(sent(0, FIRST, 3, EndOfRound(3)))
    with between:
        busy.arrive(sent(0, FIRST, 4, EndOfRound(4)))
    rounds = 5
    wait_for(lambda: busy._reached is not None)
    busy.arrive(sent(0, FIRST, rounds, EndOfData()))
    for round in range(rounds):
        busy.arrive(sent(1, FIRST, round, EndOfRound(round)))
    busy.arrive(sent(1, FIRST, rounds, EndOfData()))
    assert recorder.next_of(DataEnded).attempt == FIRST


def test_frames_of_the_same_process_for_an_older_attempt_are_dropped(busy: TaskHost, recorder: Recorder) -> None:
    busy.post(StartTask(SINK, FIRST))
    wait_for(lambda: busy._reached is not None)
    busy.post(deployment(SECOND))
    assert recorder.next_of(TaskDeployed).attempt == SECOND
    assert busy._reached is None
    busy.post(StartTask(SINK, SECOND))
    for attempt in (FIRST, SECOND):
        for source in range(2):
            busy.arrive(sent(source, attempt, 0, EndOfRound(0)))
            busy.arrive(sent(source, attempt, 1, EndOfData()))
    assert recorder.next_of(DataEnded).attempt == SECOND


def test_sign_of_life_is_given_by_the_thread_that_takes_messages(busy: TaskHost) -> None:
    given: queue.SimpleQueue[str] = queue.SimpleQueue()
    with _Stuck(busy):
        busy.give_sign(lambda: given.put(threading.current_thread().name))
        assert given.empty()
    assert given.get(timeout=20) == f"penstock-task-{SINK}"


def test_sign_of_life_is_given_for_a_thread_that_runs_the_task_itself(host: TaskHost) -> None:
    given: list[str] = []
    with _Stuck(host):
        host.give_sign(lambda: given.append(threading.current_thread().name))
        assert given == [threading.current_thread().name]


def test_sign_of_life_is_given_for_a_thread_that_closes_a_users_operators(
    busy: TaskHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, go_on, given = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(Task, "stop", lambda task, timeout: (closing.set(), go_on.wait(60)))
    busy.post(StopTask(SINK, FIRST))
    assert closing.wait(20)
    busy.give_sign(given.set)
    assert given.is_set()
    go_on.set()


def test_frames_and_orders_of_an_older_attempt_are_dropped(host: TaskHost, recorder: Recorder) -> None:
    for attempt in (FIRST, SECOND):
        host.post(deployment(attempt))
        assert recorder.next_of(TaskDeployed).attempt == attempt
    host.post(StopTask(SINK, FIRST))
    host.post(StartTask(SINK, SECOND))
    end_data(host, FIRST)
    end_data(host, SECOND)
    assert recorder.next_of(DataEnded).attempt == SECOND


def test_order_to_build_or_start_that_names_another_process_is_dropped(host: TaskHost, recorder: Recorder) -> None:
    """It was carried out by a process that has died since, and repeated on the way."""
    meant = deployment(FIRST)
    host.post(replace(meant, command=replace(meant.command, incarnation="the one before")))
    assert host.statistics(20) is None
    host.post(replace(meant, command=replace(meant.command, incarnation="this one")))
    assert recorder.next_of(TaskDeployed).incarnation == "this one"
    end_data(host, FIRST)
    host.post(StartTask(SINK, FIRST, "the one before"))
    assert counted(host).state == "created"
    host.post(StartTask(SINK, FIRST, "this one"))
    assert recorder.next_of(DataEnded).attempt == FIRST


def test_repeated_deployment_is_confirmed_again_and_an_older_one_is_not(host: TaskHost, recorder: Recorder) -> None:
    for _ in range(2):
        host.post(deployment(SECOND))
        assert recorder.next_of(TaskDeployed).attempt == SECOND
    host.post(deployment(FIRST))
    assert counted(host).attempt == SECOND
    assert recorder.events.empty()


def test_lost_frame_fails_the_attempt_with_a_retry(host: TaskHost, recorder: Recorder) -> None:
    host.post(deployment(FIRST))
    recorder.next_of(TaskDeployed)
    host.post(StartTask(SINK, FIRST))
    host.post(frame(0, FIRST, 5, EndOfRound(5)))
    failed = recorder.next_of(TaskFailed)
    assert failed.attempt == FIRST
    assert failed.failure.retry
    assert "element 5 came where 0 was expected" in failed.failure.message


def test_state_that_cannot_be_read_fails_the_attempt(host: TaskHost, recorder: Recorder, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    host.post(deployment(FIRST, (StateHandle("parquet-sink-1", "gather/state/none.arrow", 1, 1),)))
    failed = recorder.next_of(TaskFailed)
    assert (failed.failure.kind, failed.failure.retry) == ("DamagedFileError", False)
    host.post(deployment(SECOND))
    assert recorder.next_of(TaskDeployed).attempt == SECOND


def reach_a_barrier(host: TaskHost, recorder: Recorder) -> None:
    """Let the task write a few rows, end its data, and meet a barrier."""
    host.post(deployment(FIRST))
    recorder.next_of(TaskDeployed)
    host.post(StartTask(SINK, FIRST))
    barrier = Barrier(CHECKPOINT, BarrierKind.CHECKPOINT, 0.0)
    rows = Batch(expected().to_batches()[0].slice(0, 9), Tag(0, 0, 0))
    for source, elements in enumerate(
        [[rows, EndOfRound(0), EndOfData(), barrier], [EndOfRound(0), EndOfData(), barrier]]
    ):
        for sequence, element in enumerate(elements):
            host.post(frame(source, FIRST, sequence, element))


def test_snapshot_is_acknowledged_once_it_is_on_storage(host: TaskHost, recorder: Recorder, tmp_path: Path) -> None:
    reach_a_barrier(host, recorder)
    acked = recorder.next_of(TaskAcked)
    assert (acked.checkpoint, acked.attempt, acked.data_ended) == (CHECKPOINT, FIRST, True)
    assert acked.state
    assert all((tmp_path / "state" / handle.location).exists() for handle in acked.state)
    assert [committable.rows for committable in acked.committables] == [9]


def test_task_that_is_deployed_as_finished_says_so_and_writes_nothing(
    host: TaskHost, recorder: Recorder, tmp_path: Path
) -> None:
    """Its state is carried on by the coordinator, so it need not be read either."""
    made = deployment(FIRST, (StateHandle("parquet-sink-1", "gather/state/none.arrow", 1, 1),))
    host.post(replace(made, command=replace(made.command, finished=True)))
    recorder.next_of(TaskDeployed)
    host.post(StartTask(SINK, FIRST))
    end_data(host, FIRST)
    for source in range(2):
        host.post(frame(source, FIRST, 2, Barrier(CHECKPOINT, BarrierKind.CHECKPOINT, 0.0)))
    acked = recorder.next_of(TaskAcked)
    assert (acked.finished_on_restore, acked.data_ended, acked.state) == (True, True, ())
    assert acked.ended == (EndedLanes("parquet-sink-1", 0, 4),)
    assert not (tmp_path / "state").exists()


def test_storage_that_fails_declines_the_checkpoint_and_the_task_goes_on(
    host: TaskHost, recorder: Recorder, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "gather").write_text("a file where a folder must be")
    reach_a_barrier(host, recorder)
    declined = recorder.next_of(TaskDeclined)
    assert declined.failure.kind == "StorageError"
    assert counted(host).state == "running"


def test_commit_that_fails_fails_the_attempt(host: TaskHost, recorder: Recorder) -> None:
    host.post(deployment(FIRST))
    recorder.next_of(TaskDeployed)
    lost = Committable("parquet-sink-1", 3, {"no": "such file"})
    host.post(CommitCheckpoint(SINK, FIRST, CommitPermit(CHECKPOINT, (lost,))))
    failed = recorder.next_of(TaskFailed)
    assert failed.failure.operator == "parquet-sink-1"


def test_commit_without_committables_is_confirmed(host: TaskHost, recorder: Recorder) -> None:
    host.post(deployment(FIRST))
    recorder.next_of(TaskDeployed)
    host.post(CommitCheckpoint(SINK, FIRST, CommitPermit(CHECKPOINT, ())))
    assert recorder.next_of(TaskCommitted).checkpoint == CHECKPOINT


def test_commits_of_a_task_never_run_at_once(tmp_path: Path) -> None:
    inside, overlaps, order = threading.Semaphore(1), list[CommitPermit](), list[int]()

    class Plan:
        name = "gather"

        def commit(self, permit: CommitPermit) -> None:
            if not inside.acquire(blocking=False):
                overlaps.append(permit)
                return
            time.sleep(0.02)
            order.append(permit.checkpoint.number)
            inside.release()

    done: queue.Queue[object] = queue.Queue()
    files = TaskFiles(Plan(), SnapshotFiles(str(tmp_path / "state"), "gather"), lambda event: None)  # type: ignore[arg-type]
    for number in range(1, 5):
        files.commit(CommitCheckpoint(SINK, FIRST, CommitPermit(CheckpointId(1, number), ())), done.put)
    for _ in range(4):
        done.get(timeout=10)
    files.close()
    assert not overlaps
    assert order == [1, 2, 3, 4]


def test_state_in_parts_that_is_being_written_is_counted(tmp_path: Path) -> None:
    files: TaskFiles
    seen: queue.Queue[int] = queue.Queue()

    class Watched(SnapshotFiles):
        def write(self, *held: Any) -> tuple[StateHandle, ...]:
            seen.put(files.writing)
            handles = super().write(*held)
            seen.put(files.writing)
            return handles

    table, log = pa.table({"n": range(100)}), ChangeLog()
    log.add(StatePart(lambda: table, 100))
    log.cut().whole()
    files = TaskFiles(None, Watched(str(tmp_path), "job", 0), lambda event: None)  # type: ignore[arg-type]
    files.write(SINK, FIRST, CheckpointId(1, 1), TaskSnapshot({"sums": log.cut()}, (), data_ended=False))
    assert [seen.get(timeout=10), seen.get(timeout=10)] == [table.nbytes, 0]
    files.close()


class Slow:
    """A user's function that takes a slice for each batch; the first one waits until it may go on."""

    def __init__(self) -> None:
        self.calls = 0
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.calls += 1
        self.begun.set()
        assert self.may_go_on.wait(20)
        time.sleep(SLICE)
        return batch


def test_what_is_posted_waits_for_one_slice_of_slow_work(recorder: Recorder, tmp_path: Path) -> None:
    slow = Slow()
    flow = Flow("slow", lanes=1)
    table = pa.table({"n": [1]})
    flow.from_tables([table] * 12).map_batches(slow, table.schema).write_parquet(tmp_path / "out")
    plan = plan_job(flow, 1)
    (task,) = (TaskId(stage, 0) for stage in plan.stages)
    files = TaskFiles(plan, SnapshotFiles(str(tmp_path / "state"), plan.name, inline=0), recorder.events.put)
    host = TaskHost(plan, task, files, recorder.events.put, lambda broken: recorder)
    host.start()
    host.post(Deployment(DeployTask(task, FIRST, (), ((task, FIRST),), None), {}, None))
    recorder.next_of(TaskDeployed)
    host.post(StartTask(task, FIRST))
    assert slow.begun.wait(20)
    found: Future[TaskStatistics | None] = Future()
    calls: list[int] = []
    found.add_done_callback(lambda _: calls.append(slow.calls))
    host.post(StatisticsAsked(found))
    slow.may_go_on.set()
    found.result(20)
    assert calls == [1]
    host.close()
    files.close()

"""A whole plan driven by its caller: splits in, batches out, task barriers in between. Velox's task contract.

``add_split``, ``request_barrier``, ``no_more_splits`` and ``next`` mean what they mean in Velox's serial mode. What
differs, on purpose:

1. ``next`` gives neither a batch nor a future exactly when a barrier is reached or the task has finished; ``state``
   tells which. Velox cannot tell the two apart.
2. Splits may be added after a barrier was requested: they belong to the next window. So windows can be queued ahead.
3. Every operator drains; none refuses a barrier.
4. A barrier's future resolves to statistics: rows per operator within the window, and how long it took. If the task
   fails or is cancelled the future carries the error.

Everything runs on the caller's thread; no thread is started and nothing is left behind by ``cancel``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

import pyarrow as pa

from .edges import Frame, Upstream
from .elements import Barrier
from .errors import ConfigurationError, FlowError, InternalError, PenstockError
from .flow import Stream
from .identity import Attempt, BarrierKind, CheckpointId, TaskId
from .pipelines import plan_job
from .sinks.output import OutputSink
from .sources.protocol import Split
from .sources.reader import SplitReader
from .statistics import TaskStatistics
from .task import Task
from .task_listener import TaskSnapshot

_ATTEMPT = Attempt(0, 0)


@dataclass(frozen=True, slots=True)
class BarrierStatistics:
    """One window. ``rows``: operator to rows emitted; ``seconds``: from the request to the barrier."""

    barrier: int
    rows: Mapping[str, int]
    seconds: float


class SerialTask:
    """Runs the flow that ends in ``stream``. Its sources get their splits from ``add_split`` alone."""

    def __init__(self, stream: Stream) -> None:
        flow = stream.flow
        if any(node.schema is None for node in flow.nodes):
            raise FlowError("a serial task gives out its rows itself", "build it from a flow without sinks")
        self.schema = stream.schema
        #: batches and the ids of barriers, in the order in which they leave the plan
        self._output: deque[pa.RecordBatch | CheckpointId] = deque()
        flow.attach(OutputSink(self._output.append), stream, name="output")
        # one lane: the n-th split of every source is round n, so a split set is a round
        plan = replace(plan_job(flow, 1), lanes=1)
        self._exit = plan.sinks["output"][0]
        attempts = dict.fromkeys(plan.tasks(), _ATTEMPT)
        self._tasks = {
            task: Task(plan, task, _ATTEMPT, attempts, {}, self, _Listener(self, task), more_splits=True)
            for task in plan.tasks()
        }
        self._readers: dict[str, SplitReader] = {
            reader.operator: reader for task in self._tasks.values() for reader in task.readers
        }
        #: sources whose splits are complete
        self._complete: set[str] = set()
        #: barriers requested and not reached, oldest first
        self._barriers: deque[tuple[CheckpointId, Future[BarrierStatistics], float]] = deque()
        self._count = 0
        self._rows_before: dict[str, int] = {}
        #: running, barrier, finished, failed or cancelled
        self.state = "running"
        self.error: PenstockError | None = None
        for task in self._tasks.values():
            task.start()

    # ------------------------------------------------------------------ input

    def add_split(self, source: str, split: Split) -> None:
        """Queue one more split for a source."""
        if source not in self._readers:
            raise ConfigurationError(f"there is no source {source!r}", f"the sources are: {', '.join(self._readers)}")
        if source in self._complete:
            raise ConfigurationError(f"source {source!r} was told that no more splits come", "add splits before that")
        self._readers[source].add_split(split)

    def no_more_splits(self, source: str) -> None:
        """The splits of the source are complete."""
        self._complete.add(source)
        self._readers[source].no_more_splits()

    def request_barrier(self) -> Future[BarrierStatistics]:
        """Ask for a barrier behind the splits queued so far; the future resolves when the plan has drained."""
        if self._complete:
            ended = ", ".join(sorted(self._complete))
            raise ConfigurationError(f"no barrier can follow the last split of {ended}", "request it before")
        self._count += 1
        barrier, future = CheckpointId(0, self._count), Future[BarrierStatistics]()
        self._barriers.append((barrier, future, time.perf_counter()))
        for task in self._tasks.values():
            for reader in task.readers:
                reader.trigger(Barrier(barrier, BarrierKind.DRAIN, 0.0), reader.split_count - 1)
        return future

    # ------------------------------------------------------------------ output

    def next(self) -> tuple[pa.RecordBatch | None, Future[None] | None]:
        """The next batch; (None, None) when a barrier is reached or the task has finished (see ``state``).

        Raises the task's error once it failed, and ConfigurationError if nothing can happen before splits are added.
        """
        if self.state in ("finished", "cancelled"):
            raise ConfigurationError(f"the task is {self.state}", "make a new one")
        if self.error is not None:
            raise self.error
        self.state = "running"
        while not self._output:
            if not self._step():
                return self._idle()
        found = self._output.popleft()
        if isinstance(found, CheckpointId):
            self._reach(found)
            return None, None
        return found, None

    def run(self, split_set: Mapping[str, Split]) -> Iterator[pa.RecordBatch]:
        """Feed one split to each source and give all that depends on them: the task is warm and empty afterwards."""
        for source, split in split_set.items():
            self.add_split(source, split)
        self.request_barrier()
        while (batch := self.next()[0]) is not None:
            yield batch

    def _step(self) -> bool:
        progressed = False
        for task in reversed(self._tasks.values()):
            progressed = task.step(0.0).progressed or progressed
        if self.error is not None:
            raise self.error
        return progressed

    def _idle(self) -> tuple[None, None]:
        if all(driver.data_ended for task in self._tasks.values() for driver in task.drivers):
            self.state = "finished"
            self._close()
            return None, None
        missing = sorted(set(self._readers) - self._complete)
        if missing and not self._barriers:
            raise ConfigurationError(
                f"nothing can happen before sources {', '.join(missing)} get splits",
                "add a split, request a barrier, or say no_more_splits",
            )
        why = "; ".join(sentence for task in self._tasks.values() for sentence in task.why())
        raise InternalError(f"nothing can run while work remains: {why}")

    def _reach(self, reached: CheckpointId) -> None:
        barrier, future, requested = self._barriers.popleft()
        if barrier != reached:
            raise InternalError(f"barrier {reached} was reached before {barrier}")
        self.state = "barrier"
        rows = {each.operator: each.rows_out for found in self.statistics() for each in found.operators}
        window = {operator: count - self._rows_before.get(operator, 0) for operator, count in rows.items()}
        self._rows_before = rows
        future.set_result(BarrierStatistics(barrier.number, window, time.perf_counter() - requested))

    # ------------------------------------------------------------------ the rest

    def statistics(self) -> list[TaskStatistics]:
        """The counts of the plan's tasks."""
        return [task.statistics() for task in self._tasks.values()]

    def cancel(self) -> None:
        """Stop and release everything; futures of barriers get the error."""
        if self.state not in ("finished", "failed"):
            self.state = "cancelled"
        self._close()

    def _close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        while self._barriers:
            _, future, _ = self._barriers.popleft()
            future.set_exception(self.error or ConfigurationError(f"the task is {self.state}", "make a new one"))

    # ------------------------------------------------------------------ what the tasks say

    def send(self, frame: Frame) -> None:
        """A frame for another task of the plan (called by the tasks)."""
        self._tasks[frame.channel.consumer].receive(frame)

    def reply(self, message: Upstream) -> None:
        """A message for the producer of a channel (called by the tasks)."""
        self._tasks[message.channel.producer].deliver(message)

    def drained(self, task: TaskId, barrier: CheckpointId) -> None:
        """A task has drained; behind the last one nothing of the window is left."""
        if task.vertex == self._exit:
            self._output.append(barrier)

    def failed(self, error: PenstockError) -> None:
        """A task has failed: so has the plan."""
        if self.error is None:
            self.error, self.state = error, "failed"
            self._close()


class _Listener:
    """Passes on what matters here of what a task says; there are no checkpoints."""

    def __init__(self, owner: SerialTask, task: TaskId) -> None:
        self._owner, self._task = owner, task

    def round_proposed(self, checkpoint: CheckpointId, round: int) -> None: ...

    def snapshot_taken(self, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None: ...

    def data_ended(self) -> None: ...

    def finished(self) -> None: ...

    def drained(self, barrier: CheckpointId) -> None:
        self._owner.drained(self._task, barrier)

    def failed(self, error: PenstockError) -> None:
        self._owner.failed(error)

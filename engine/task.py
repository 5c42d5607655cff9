"""One subtask of a stage: its drivers, sources and channels, and its part of the checkpoint protocol.

Rules:

1. A task belongs to one thread: all methods are called on it, none blocks. The thread's owner calls ``step`` as long
   as it makes progress, then waits for a message or for ``wake_at``.
2. A checkpoint of the task is complete when each driver has snapshotted at its barrier. What sinks prepared for a
   checkpoint that was given up is handed over again with the next one.
3. The task is at the end of its data when all drivers are; its *final* checkpoint is the first one that it snapshots
   after that. It closes its channels only when that checkpoint (or a later one) has been committed, every consumer has
   processed everything, and all its inputs are closed: so a finished task leaves nothing in a channel.
4. The first error ends the task; the operators are closed once, whatever happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa

from .driver import Driver
from .edges import ChannelId, Frame, Upstream
from .elements import Barrier
from .errors import PenstockError, UserCodeError
from .identity import Attempt, BarrierKind, CheckpointId, Committable, TaskId
from .operator_instance import blame
from .operators.protocol import RunningSink
from .plan import JobPlan
from .scheduler.states import DriverState
from .sources.reader import SplitReader
from .statistics import OperatorStatistics, SourceStatistics, TaskStatistics
from .task_listener import Step, TaskListener, TaskSnapshot
from .task_parts import TaskParts, Wiring, build_parts

STEPS_PER_TURN = 16
"""Elements that one driver may handle before the task looks at its other drivers and its owner at its messages."""


@dataclass(slots=True)
class _Pending:
    """A checkpoint that some drivers have reached."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    data_ended: bool = True
    #: names of the drivers that have snapshotted
    drivers: set[str] = field(default_factory=set)


class Task:
    """See the module's rules. ``attempts``: of all tasks of the region; ``restored``: state of the whole vertex."""

    def __init__(
        self,
        plan: JobPlan,
        task: TaskId,
        attempt: Attempt,
        attempts: Mapping[TaskId, Attempt],
        restored: Mapping[str, pa.Table],
        wiring: Wiring,
        listener: TaskListener,
        *,
        more_splits: bool = False,
    ) -> None:
        self.id = task
        self.attempt = attempt
        self._listener = listener
        self._parts: TaskParts = build_parts(plan, task, attempts, restored, wiring, self, more_splits)
        #: running, finished, failed or cancelled
        self.state = "created"
        self.error: PenstockError | None = None
        self._pending: dict[CheckpointId, _Pending] = {}
        #: what sinks prepared, by checkpoint, and no commit has covered yet
        self._prepared: dict[CheckpointId, list[Committable]] = {}
        #: the newest checkpoint triggered, proposed or given up: older orders are late
        self._newest: CheckpointId | None = None
        self._given_up: CheckpointId | None = None
        self._told_data_ended = False
        #: the first checkpoint that was snapshotted after the end of the data
        self._final: CheckpointId | None = None
        self._final_committed = False

    @property
    def drivers(self) -> list[Driver]:
        """The drivers, downstream first."""
        return self._parts.drivers

    @property
    def readers(self) -> list[SplitReader]:
        """The sources."""
        return [reader for reader, _ in self._parts.readers]

    # ------------------------------------------------------------------ running

    def start(self) -> None:
        """Make all drivers runnable."""
        self.state = "running"
        for driver in self.drivers:
            driver.start()

    def step(self, now: float) -> Step:
        """Let the drivers run for a turn. Errors end the task and go to the listener."""
        if self.state != "running":
            return Step(False)
        for reader, driver in self._parts.readers:
            reader.now = now
            driver.wake()
        try:
            progressed = self._run_drivers()
            self._advance_end()
        except PenstockError as error:
            self._fail(error)
            return Step(False)
        waiting = [reader.due for reader, _ in self._parts.readers if not reader.data_ended and reader.due > now]
        return Step(progressed, min(waiting, default=None))

    def _run_drivers(self) -> bool:
        progressed = False
        for driver in self.drivers:
            for _ in range(STEPS_PER_TURN):
                if driver.state is not DriverState.READY or not driver.step():
                    break
                progressed = True
        return progressed

    def _advance_end(self) -> None:
        """Go on with the end of the task (rule 3), as far as it has come."""
        if not self._told_data_ended and all(driver.data_ended for driver in self.drivers):
            self._told_data_ended = True
            self._listener.data_ended()
        if not (self._final_committed and self._consumers_done() and self._inputs_closed()):
            return
        for reader, _ in self._parts.readers:
            reader.close()
        for driver in self.drivers:
            driver.closing = True
            driver.wake()
        while self._run_drivers():
            pass
        if all(driver.state is DriverState.FINISHING for driver in self.drivers):
            self._close_drivers()
            self.state = "finished"
            self._listener.finished()

    def _consumers_done(self) -> bool:
        return all(output.all_processed for output, _ in self._parts.outputs.values())

    def _inputs_closed(self) -> bool:
        return all(channel.closed for channel, _ in self._parts.inputs.values())

    def report_again(self) -> None:
        """Tell the listener once more how far the end of the task has come: the first report may have been lost."""
        if self._told_data_ended:
            self._listener.data_ended()
        if self.state == "finished":
            self._listener.finished()

    # ------------------------------------------------------------------ messages of other tasks

    def receive(self, frame: Frame) -> None:
        """An element came from a producer."""
        found = self._parts.inputs.get(frame.channel)
        if found is None or self.state != "running":
            return
        try:
            if found[0].receive(frame):
                found[1].wake()
        except PenstockError as error:
            self._fail(error)

    def deliver(self, message: Upstream) -> None:
        """Credit, or the news that all has been processed, came from a consumer."""
        found = self._parts.outputs.get(message.channel)
        if found is not None:
            found[0].deliver(message)
            found[1].wake()

    # ------------------------------------------------------------------ checkpoints

    def propose_round(self, checkpoint: CheckpointId) -> None:
        """Hold the sources at the end of their round and tell the listener which it is."""
        if self._is_late(checkpoint) or checkpoint == self._newest:
            return
        rounds = [reader.propose(checkpoint) for reader, _ in self._parts.readers]
        self._listener.round_proposed(checkpoint, max(rounds, default=-1))

    def trigger(self, checkpoint: CheckpointId, kind: BarrierKind, at_round: int | None, timestamp: float) -> None:
        """Inject the barrier: into the sources, and into inputs from other tasks (they have all finished then)."""
        if self._is_late(checkpoint) or checkpoint == self._newest:
            return
        self._newest = checkpoint
        barrier = Barrier(checkpoint, kind, timestamp)
        for reader, driver in self._parts.readers:
            reader.trigger(barrier, at_round)
            driver.wake()
        try:
            for driver, feeds in self._parts.entries.items():
                driver.inject(barrier, feeds)
                driver.wake()
        except PenstockError as error:
            self._fail(error)

    def abort(self, checkpoint: CheckpointId) -> None:
        """The checkpoint was given up: stop holding and aligning for it."""
        if self._given_up is None or checkpoint > self._given_up:
            self._given_up = checkpoint
        self._pending = {known: pending for known, pending in self._pending.items() if known > checkpoint}
        for reader, _ in self._parts.readers:
            reader.abort(checkpoint)
        if self.state == "running":
            for driver in self.drivers:
                driver.abort(checkpoint)
                driver.wake()

    def notify_committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint stands in the log and its committables are visible."""
        self._prepared = {known: found for known, found in self._prepared.items() if known > checkpoint}
        if self._final is not None and checkpoint >= self._final:
            self._final_committed = True

    def aligned(self, driver: Driver, barrier: Barrier) -> None:
        """A driver stands at the cut (called by the driver)."""
        checkpoint = barrier.checkpoint
        if barrier.kind is BarrierKind.DRAIN:
            self._drained(driver, checkpoint)
            return
        pending = self._pending.setdefault(checkpoint, _Pending())
        prepared = self._prepared.setdefault(checkpoint, [])
        for operator in driver.operators:
            if operator.id in self._parts.sinks:
                with blame(operator):
                    prepared += cast(RunningSink, operator.running).prepare(checkpoint)
        pending.tables.update(driver.snapshot())
        for reader, owner in self._parts.readers:
            if owner is driver:
                pending.tables[reader.operator] = reader.snapshot()
        pending.data_ended = pending.data_ended and driver.data_ended
        pending.drivers.add(driver.name)
        if len(pending.drivers) == len(self.drivers):
            self._complete(checkpoint, pending)

    def _drained(self, driver: Driver, barrier: CheckpointId) -> None:
        pending = self._pending.setdefault(barrier, _Pending())
        pending.drivers.add(driver.name)
        if len(pending.drivers) == len(self.drivers):
            del self._pending[barrier]
            self._listener.drained(barrier)

    def abandoned(self, driver: Driver, checkpoint: CheckpointId) -> None:
        """A driver gave a checkpoint up (called by the driver)."""
        self._pending.pop(checkpoint, None)

    def _complete(self, checkpoint: CheckpointId, pending: _Pending) -> None:
        self._pending = {known: other for known, other in self._pending.items() if known > checkpoint}
        if pending.data_ended and self._final is None:
            self._final = checkpoint
        committables = tuple(
            committable
            for known in sorted(self._prepared)
            if known <= checkpoint
            for committable in self._prepared[known]
        )
        self._listener.snapshot_taken(checkpoint, TaskSnapshot(pending.tables, committables, pending.data_ended))

    def _is_late(self, checkpoint: CheckpointId) -> bool:
        if self._given_up is not None and checkpoint <= self._given_up:
            return True
        return self._newest is not None and checkpoint < self._newest

    # ------------------------------------------------------------------ ends and queries

    def cancel(self) -> None:
        """Stop and release everything; nothing is told to the listener."""
        if self.state in ("created", "running"):
            self.state = "cancelled"
            self._close_drivers()

    def why(self) -> list[str]:
        """One sentence for each driver that waits."""
        sentences = [f"{driver.name} {driver.wait}" for driver in self.drivers if driver.wait is not None]
        held = [reader.operator for reader, _ in self._parts.readers if reader.held]
        return sentences + [f"{operator} waits for commit: the coordinator's choice of a round" for operator in held]

    def statistics(self) -> TaskStatistics:
        """Counts since this attempt began."""
        operators = tuple(
            OperatorStatistics(operator.id, operator.rows_in, operator.rows_out, operator.batches_out)
            for driver in reversed(self.drivers)
            for operator in driver.operators
        )
        sources = tuple(
            SourceStatistics(reader.operator, reader.rows, reader.batches, reader.current_split)
            for reader, _ in self._parts.readers
        )
        return TaskStatistics(self.id, self.attempt, self.state, operators, sources, tuple(self.why()))

    def _fail(self, error: PenstockError) -> None:
        self.error = self._with_split(error)
        self.state = "failed"
        self._close_drivers()
        self._listener.failed(self.error)

    def _with_split(self, error: PenstockError) -> PenstockError:
        """A user's error, with the split whose rows it was given."""
        found = error.batch
        if found is None or not isinstance(error, UserCodeError):
            return error
        splits = [
            f"{reader.operator} {split}" for reader, _ in self._parts.readers if (split := reader.split_at(*found))
        ]
        if not splits:
            return error
        return type(error)(f"{error.message} (split {', '.join(splits)})", error.remedy, error.operator, error.detail)

    def _close_drivers(self) -> None:
        for driver in reversed(self.drivers):
            try:
                driver.close()
            except PenstockError as later:
                if self.error is not None:
                    self.error.add_note(f"while closing {driver.name}: {later}")
        self._parts.release()

    def channel_ids(self) -> tuple[list[ChannelId], list[ChannelId]]:
        """The channels to other tasks: (inputs, outputs)."""
        return list(self._parts.inputs), list(self._parts.outputs)

"""A simulated task's process: takes orders for its attempt, writes its files, prepares and commits its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.coordinator.model import commands, events
from penstock.coordinator.model.commands import Command, DeployTask
from penstock.coordinator.model.events import Failure
from penstock.engine.core.identity import CheckpointId, Committable, Holds, StateHandle
from support.simulated_model import Row, TaskState

if TYPE_CHECKING:
    from support.simulated_cluster import Incarnation, SimulatedCluster


class TaskShell:
    """One attempt's process. ``home``: the coordinator that it reports to."""

    def __init__(self, cluster: SimulatedCluster, home: Incarnation, order: DeployTask) -> None:
        self._cluster = cluster
        self.home = home
        #: The process; another one that builds the attempt once more has another name.
        self.incarnation = cluster.new_name()
        restored = cluster.storage.restore(order.state, order.root)
        is_over = order.finished and cluster.random.random() < 0.5
        self.task = cluster.task_type(home.flow, order, cluster.channels, restored, is_over)
        self._opening = sum(state.flight.rows for state in restored if state.flight is not None)
        self._told_data_ended = False
        self._told_finished = False
        #: Prepared and not told to be committed, oldest first: every acknowledgement lists them all.
        self._prepared: list[Committable] = []
        #: The last snapshot: its checkpoint, its content, its file; for acknowledging an unchanged one again.
        self._last: tuple[CheckpointId, TaskState, StateHandle] | None = None
        self._last_is_complete = False

    def __str__(self) -> str:
        task = self.task
        ends = f"data_ended={task.data_ended} final={task.final} committed={task.final_committed} done={task.finished}"
        inputs = [(str(c.producer), len(c.elements), c.barrier, c.round, c.data_ended, c.closed) for c in task.inputs]
        return f"{task.id} {task.attempt} started={task.started} holds={task.holds_for} {ends} inputs={inputs}"

    def deployed_again(self) -> None:
        task = self.task
        deployed = events.TaskDeployed(task.id, task.attempt, self._cluster.now, self.incarnation, self._opening)
        self._cluster.report(self.home, deployed)

    def step(self, choice: int) -> None:
        """Let the task do one thing, and report what came of it."""
        self.task.step(choice)
        self._after()

    def perform(self, order: Command) -> None:
        """Carry out an order to this attempt."""
        task, cluster = self.task, self._cluster
        match order:
            case commands.StartTask(incarnation=incarnation):
                if incarnation != self.incarnation:
                    return  # another process holds the attempt; this one is a second copy
                task.started = True
                self._told_data_ended = self._told_finished = False
            case commands.StopTask():
                cluster.tasks.pop(task.id, None)
                return
            case commands.ProposeRound(checkpoint=checkpoint):
                round = task.propose(checkpoint)
                if round is not None:
                    proposed = events.RoundProposed(task.id, task.attempt, checkpoint, round, cluster.now)
                    cluster.report(self.home, proposed)
            case commands.TriggerCheckpoint():
                task.order_barrier(order)
            case commands.ExpectBarrier(checkpoint=checkpoint):
                task.expect(checkpoint)
            case commands.AbortCheckpoint(checkpoint=checkpoint):
                task.abort(checkpoint)
            case commands.CommitCheckpoint():
                self._commit(order)
        self._after()

    def _commit(self, order: commands.CommitCheckpoint) -> None:
        task, cluster = self.task, self._cluster
        if cluster.fault("commit"):
            cluster.tasks.pop(task.id, None)
            failed = events.TaskFailed(task.id, task.attempt, Failure("no commit", retry=True), cluster.now)
            cluster.fail(self.home, failed)
            return
        cluster.storage.commit(order.permit)
        self._prepared = [one for one in self._prepared if one not in order.permit.committables]
        checkpoint = order.permit.checkpoint
        self._last_is_complete = self._last is not None and self._last[0] == checkpoint
        task.committed(checkpoint)
        cluster.report(self.home, events.TaskCommitted(task.id, task.attempt, checkpoint, cluster.now))

    def _after(self) -> None:
        task, cluster = self.task, self._cluster
        if cluster.tasks.get(task.id) is not self:
            return
        snapshots, task.snapshots = task.snapshots, []
        for snapshot in snapshots:
            self._acknowledge(*snapshot)
        if task.data_ended and task.started and not self._told_data_ended:
            self._told_data_ended = True
            cluster.report(self.home, events.DataEnded(task.id, task.attempt, cluster.now))
        if task.finished and not self._told_finished:
            self._told_finished = True
            cluster.report(self.home, events.TaskFinished(task.id, task.attempt, cluster.now, task.passed))

    def _acknowledge(self, checkpoint: CheckpointId, state: TaskState, data_ended: bool, rows: list[Row]) -> None:
        task, cluster = self.task, self._cluster
        self._prepare(checkpoint, rows)
        if cluster.fault("snapshot"):
            failure = Failure("the snapshot could not be written", retry=True)
            cluster.report(self.home, events.TaskDeclined(task.id, task.attempt, checkpoint, failure, cluster.now))
            return
        flying = self._write_flight(checkpoint, state)
        handles = () if task.is_over else (self._write(checkpoint, state), *flying)
        made, now = tuple(self._prepared), cluster.now
        acked = events.TaskAcked(task.id, task.attempt, checkpoint, handles, made, data_ended, now)
        cluster.report(self.home, replace(acked, finished_on_restore=task.is_over))

    def _prepare(self, checkpoint: CheckpointId, rows: list[Row]) -> None:
        if rows:
            vertex, name = self.task.id.vertex, f"rows/{self.task.id}/{self.task.attempt}/{checkpoint}"
            place = self._cluster.storage.prepare(name, checkpoint, vertex, rows)
            self._prepared.append(Committable(vertex, len(rows), {"location": place}))

    def _write_flight(self, checkpoint: CheckpointId, state: TaskState) -> tuple[StateHandle, ...]:
        """What the task was in the middle of, if it cut as a whole."""
        flight, state.flight = state.flight, None
        if flight is None or self.task.is_over:
            return ()
        place = f"flight/{self.task.id}/{self.task.attempt}/{checkpoint}"
        self._cluster.storage.files[place] = TaskState(flight=flight)
        self._cluster.seen.add("rows of a cut" if flight.rows else "cut")
        return (StateHandle(self.task.id.vertex, place, 1, flight.rows, Holds.FLIGHT),)

    def _write(self, checkpoint: CheckpointId, state: TaskState) -> StateHandle:
        """A new file, or the last one again if nothing has changed since and a checkpoint is known to hold it."""
        if self._last is not None and self._last_is_complete and self._last[1] == state:
            handle = self._last[2]
        else:
            handle = StateHandle(self.task.id.vertex, f"state/{self.task.id}/{self.task.attempt}/{checkpoint}", 1, 1)
            self._cluster.storage.files[handle.location] = state
        self._last, self._last_is_complete = (checkpoint, state, handle), False
        return handle

"""A whole plan whose tasks are cut as a whole, at moments drawn from a seed: cut, crash, restored, to the end.

There is no coordinator here: ``CutRuns`` triggers checkpoints, one at a time, gives some of them up, gathers what the
tasks say, commits, and builds everything anew from the newest complete checkpoint after a crash. Messages of a channel
keep their order, all others overtake; a channel holds ``credit`` bytes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import pyarrow as pa

from penstock.engine.core.identity import Attempt, BarrierKind, CheckpointId, CommitPermit, TaskId
from penstock.engine.exchange import channels
from penstock.engine.plan import rounds
from penstock.engine.plan.plan import JobPlan
from penstock.engine.runtime.checkpointing import TaskSnapshot
from penstock.engine.runtime.restored import Restored
from penstock.engine.runtime.task import Task
from penstock.engine.scheduler import serial

STEPS = 60_000
PATIENCE = 60.0


class Owner:
    """What one task says."""

    def __init__(self, run: CutRuns, task: TaskId) -> None:
        self._run, self._task = run, task

    def send(self, frame: channels.Frame) -> None:
        consumer = frame.channel.consumer
        self._run.post(("down", frame.channel), lambda: self._run.tasks[consumer].receive(frame))

    def reply(self, message: channels.Upstream) -> None:
        producer = message.channel.producer
        self._run.post(("up", message.channel), lambda: self._run.tasks[producer].deliver(message))

    def round_proposed(self, checkpoint: CheckpointId, round: int) -> None: ...

    def snapshot_taken(self, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None:
        self._run.acknowledged(self._task, checkpoint, snapshot)

    def declined(self, checkpoint: CheckpointId) -> None: ...

    def data_ended(self) -> None: ...

    def finished(self, cut: CheckpointId | None) -> None:
        self._run.finished(self._task)

    def failed(self, error: Exception) -> None:
        self._run.errors.append(error)


class CutRuns:
    """See the module. ``crashes``: the chance of one, per step; ``cuts``: of a checkpoint, while none is open and data
    are left."""

    def __init__(
        self,
        plan: JobPlan,
        seed: int,
        commit: Callable[[CommitPermit], None],
        *,
        crashes: float,
        cuts: float,
        credit: int,
    ) -> None:
        self.plan, self.commit, self.random = plan, commit, random.Random(seed)
        self._crashes, self._cuts, self._credit = crashes, cuts, credit
        self._left, self._now = 12, 0.0
        self.errors: list[Exception] = []
        self.tasks: dict[TaskId, Task] = {}
        self._network: dict[Hashable, deque[Callable[[], None]]] = {}
        self._number = self._attempt = 0
        self._open: CheckpointId | None = None
        self._acked: dict[TaskId, TaskSnapshot] = {}
        #: the newest complete checkpoint, and which tasks had finished when it was complete
        self._complete: dict[TaskId, TaskSnapshot] = {}
        self._finished: set[TaskId] = set()
        self._finished_then: frozenset[TaskId] = frozenset()
        #: rows in flight at complete checkpoints, and crashes behind one
        self.in_flight = self.restores = 0

    def run(self) -> CutRuns:
        before = rounds.CHUNK_ROWS, serial.CALLS_PER_TURN, channels.InputChannel.__init__.__defaults__
        rounds.CHUNK_ROWS = 3
        channels.InputChannel.__init__.__defaults__ = (self._credit,)
        channels.OutputChannel.__init__.__defaults__ = (self._credit,)
        try:
            self._build()
            for _ in range(STEPS):
                if len(self._finished) == len(self.tasks):
                    return self
                self._step()
                assert not self.errors, self.errors[0]
            raise AssertionError(self.why())
        finally:
            rounds.CHUNK_ROWS, serial.CALLS_PER_TURN = before[:2]
            channels.InputChannel.__init__.__defaults__ = before[2]
            channels.OutputChannel.__init__.__defaults__ = before[2]
            for task in self.tasks.values():
                task.stop(PATIENCE)

    def why(self) -> str:
        told = [f"{task}: {found.state} {found.why()}" for task, found in self.tasks.items()]
        answered, finished = sorted(map(str, self._acked)), sorted(map(str, self._finished))
        acked = f"open {self._open}, answered by {answered}, finished {finished}"
        return "\n".join([acked, *told, *(str(each) for each in self._network)])

    def post(self, queue: Hashable, action: Callable[[], None]) -> None:
        self._network.setdefault(queue, deque()).append(action)

    def _step(self) -> None:
        self._now += 0.002
        draw = self.random.random()
        over = all(task.data_ended for task in self.tasks.values())
        if self._open is None and draw < (0.1 if over else self._cuts):
            self._trigger()
        elif self._open is not None and draw > 1 - self._cuts / 4 and self._number % 4:
            self._give_up(self._open)  # not each: what sinks write takes time, whatever the steps
        elif self._left and self.random.random() < self._crashes:
            self._left -= 1
            self._crash()
        elif self._network and self.random.random() < 0.6:
            queue = self.random.choice(list(self._network))
            waiting = self._network[queue]
            action = waiting.popleft()
            if not waiting:
                del self._network[queue]
            action()
        else:
            self.let_run()

    def let_run(self) -> None:
        """Some task goes on a little."""
        serial.CALLS_PER_TURN = self.random.choice((1, 1, 2, 16))
        self.random.choice(list(self.tasks.values())).step(self._now)

    # ------------------------------------------------------------------ checkpoints

    def _upstream(self, task: TaskId) -> list[TaskId]:
        return [
            TaskId(exchange.source, peer)
            for exchange in self.plan.exchanges
            if exchange.target == task.vertex
            for peer in exchange.peers_of(task.subtask, self.plan.stages[exchange.source].parallelism)
        ]

    def _trigger(self) -> None:
        self._number += 1
        self._open, self._acked = CheckpointId(1, self._number), {}
        self._order()

    def _give_up(self, checkpoint: CheckpointId) -> None:
        self._open = None
        for task in self.tasks:
            self.post(("orders", task), lambda task=task: self.tasks[task].abort(checkpoint))

    def _order(self) -> None:
        assert self._open is not None
        for task, found in self.tasks.items():
            if task not in self._finished and all(each in self._finished for each in self._upstream(task)):
                found.trigger(self._open, BarrierKind.CHECKPOINT, None, 0.0, None, True)

    def acknowledged(self, task: TaskId, checkpoint: CheckpointId, snapshot: TaskSnapshot) -> None:
        for account in snapshot.ledger:
            assert account.balances, f"{task} at {checkpoint}: {account}"
        if checkpoint == self._open:
            self._acked[task] = snapshot
            self._look()

    def finished(self, task: TaskId) -> None:
        self._finished.add(task)
        if self._open is not None:
            self._order()
            self._look()

    def _look(self) -> None:
        """Whether the checkpoint is complete."""
        if self._open is None or not self.tasks.keys() <= self._acked.keys() | self._finished:
            return
        checkpoint, self._open = self._open, None
        for task in self._finished:
            self._acked.setdefault(task, self._complete[task])
        over = {task for task, each in self._acked.items() if each.finished_on_restore}
        self._acked |= {task: self._complete[task] for task in over}
        self._complete, self._finished_then = self._acked, frozenset(self._finished | over)
        self.in_flight += sum(each.flight.rows for each in self._acked.values() if each.flight is not None)
        told = [
            each for task, found in self._acked.items() if task not in self._finished for each in found.committables
        ]
        self.commit(CommitPermit(checkpoint, tuple(told)))
        for task in self.tasks:
            if task not in self._finished:
                self.post(("orders", task), lambda task=task: self.tasks[task].notify_committed(checkpoint))

    # ------------------------------------------------------------------ attempts

    def _crash(self) -> None:
        self.restores += bool(self._complete)
        for task in self.tasks.values():
            assert task.stop(PATIENCE), f"{task.id} does not stop"
        self._network.clear()
        self._open, self._acked = None, {}
        self._finished = set()
        self._build()

    def _build(self) -> None:
        self._attempt += 1
        attempt = Attempt(1, self._attempt)
        attempts = dict.fromkeys(self.plan.tasks(), attempt)
        self.tasks = {}
        for task in self.plan.tasks():
            self.tasks[task] = self.make(task, attempts)
        for task in self.tasks.values():
            task.start()

    def make(self, task: TaskId, attempts: dict[TaskId, Attempt]) -> Task:
        """A task of the newest attempt."""
        owner = Owner(self, task)
        return Task(self.plan, task, attempts[task], attempts, self._restored(task), owner, owner)

    def _restored(self, task: TaskId) -> Restored:
        of_vertex = {each: found for each, found in self._complete.items() if each.vertex == task.vertex}
        tables: dict[str, list[pa.Table]] = {}
        for each in of_vertex.values():
            for operator, table in each.tables.items():
                tables.setdefault(operator, []).append(stored(table))
        mine = of_vertex.get(task)
        is_over = task in self._finished_then
        return Restored(
            {operator: pa.concat_tables(found, promote_options="default") for operator, found in tables.items()},
            ended=tuple(lanes for each in of_vertex.values() for lanes in each.ended),
            finished=bool(of_vertex) and all(each in self._finished_then for each in of_vertex),
            flights=() if mine is None or is_over or mine.flight is None else (mine.flight,),
        )


def stored(table: pa.Table) -> pa.Table:
    """As it comes back from a file."""
    sink: Any = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return pa.ipc.open_stream(sink.getvalue()).read_all()

"""Who is alive: the coordinator's view of the processes that host its tasks. Pure: no Ray, no threads, no clock.

A process sits on a *slot*: a driver actor, which Ray gives another process when one dies. What was in it is gone, and
that is what the supervisor finds out, from whichever sign comes first:

- the new process announces itself, or accepts an order to deploy, under another incarnation;
- the ``watch`` call, which ends only with the process, fails (Ray takes a second or two to say so); as it also fails
  when a connection does, the process is asked who it is;
- the connection of a peer ends, or an order does not reach the process;
- it does not answer: at every heartbeat each process is asked for a sign of life, and one that has missed ``MISSES``
  heartbeats in a row is hung, or stopped, or behind a network that is gone. It is replaced.

A process on a node that Ray drains has to leave (:class:`Draining`), as one that gets SIGTERM reports of itself.

Rules:

1. An attempt is lost when the incarnation that accepted it is gone, and is reported lost once for that.
2. Nothing is reported about a process that had accepted nothing: the order to deploy waits for the next process.
3. Heartbeats are counted, not timed: a coordinator that was stopped itself takes nobody for dead when it wakes.
4. Each task has a slot of its own. Slots beyond those are *spare*: a task whose process is lost moves to a spare that
   has a process, and its old slot is a spare once that has one. So nobody waits for a process to start.
5. A process that has answered an order since the last heartbeat is not asked at this one. Answers of a thousand tasks
   cost as much as a checkpoint otherwise.
6. No policy: what a loss means is for the coordinator to decide. It hears of every process that a task gets. Only
   which split is poison is found out here (``coordinator.job.poison``), since losses are noticed here; the loss is then
   an error that is not tried again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace as changed

from ...coordinator.job.poison import PoisonPolicy, PoisonWatch
from ...coordinator.model.commands import DeployTask, ReplaceProcess
from ...coordinator.model.events import Event, NoticeGiven, ProcessReady, SplitSkipped, TaskFailed, TaskLost
from ...coordinator.model.split_sets import SplitName
from ...engine.core.identity import Attempt, TaskId
from ..protocol.messages import (
    UNKNOWN_TIME,
    AttemptAccepted,
    CallFailed,
    HeartbeatDue,
    Identity,
    NodesDraining,
    Order,
    ProcessAppeared,
    ProcessGone,
    ProcessMessage,
    Sign,
    SplitBegun,
    WorkerSlot,
)


class Draining:
    """Which processes are to leave, as Ray drains their nodes. ``most``: seconds that moving a task may take.

    A node is drained by ``ray drain-node``, by the autoscaler, by what watches for spot notices, or by a node's own
    ``ray start`` when it has to end: all of them inform Ray's control store. Ray puts no process on such a node any
    more, and leaves those alone that are there. Rules:

    1. A process is reported once.
    2. If every node is drained, nobody leaves: there is nowhere to go.
    3. A node that has no deadline has as much time as the job's ``preemption`` says, and no node has more.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        self._left: Mapping[str, float] = {}
        self._notified: set[str] = set()

    def update(self, nodes: Mapping[str, float]) -> None:
        """Take note of the seconds left for each node that is being drained."""
        self._left = nodes

    def is_drained(self, node: str) -> bool:
        """Whether nothing should go there."""
        return node in self._left

    def must_leave(self, node: str, incarnation: str) -> float | None:
        """The seconds that a process has for leaving its node; None: it may stay, or knows."""
        if node not in self._left or incarnation in self._notified:
            return None
        self._notified.add(incarnation)
        return max(0.0, min(self._most, self._left[node]))


def seconds_left(deadlines: Mapping[str, int], alive: set[str], now: float) -> dict[str, float]:
    """By node, for nodes that are being drained. ``deadlines``: milliseconds since 1970, 0 for none; ``now``: seconds.
    Empty if no other node is alive (rule 2)."""
    if alive <= set(deadlines):
        return {}
    return {node: at / 1000 - now if at else math.inf for node, at in deadlines.items() if node in alive}


DEFAULT_POISON = PoisonPolicy()
MISSES = 3
"""A process that has left so many questions in a row unanswered is taken for hung."""


class DriverCalls(Protocol):
    """Calls to the processes; what comes of them goes to :meth:`Supervisor.handle`. None of them blocks."""

    def ready(self, slot: WorkerSlot) -> None:
        """Send ``ProcessAppeared`` as soon as the slot has a process, ``ProcessGone`` if it never will."""

    def watch(self, slot: WorkerSlot, incarnation: str) -> None:
        """Send ``ProcessGone`` when the process, or the connection to it, ends."""

    def sign(self, slot: WorkerSlot) -> Sign:
        """The strongest sign of life that the process has given, since this was last asked."""

    def ask(self, slot: WorkerSlot) -> None:
        """Send ``ProcessAppeared`` if the process answers, or have ``sign`` say so; nothing if it does not."""

    def replace(self, slot: WorkerSlot) -> None:
        """End the process of the slot, whatever it does; another one follows."""

    def move(self, task: TaskId, slot: WorkerSlot) -> None:
        """From now on orders for the task go to this slot."""

    def clear(self, slot: WorkerSlot) -> None:
        """Have the process of a spare slot drop what it holds: it is nobody's any more."""

    def deploy(self, command: DeployTask, cautious: bool) -> None:
        """Send ``AttemptAccepted`` when a process has taken the order, ``CallFailed`` if none ever will."""

    def order(self, command: Order) -> None:
        """Send ``CallFailed`` if the order does not arrive."""


@dataclass(slots=True)
class _SlotState:
    """What is known of a slot."""

    #: the task that it hosts; None: it is spare
    task: TaskId | None
    #: the newest process
    identity: Identity | None = None
    #: that process is being watched; otherwise it is being asked for
    watched: bool = False
    #: the newest attempt that this process has taken
    accepted: Attempt | None = None
    #: questions in a row that it has not answered
    unanswered: int = 0

    @property
    def incarnation(self) -> str | None:
        return None if self.identity is None else self.identity.incarnation


class Supervisor:
    """See the module's rules. ``heartbeat``: seconds between two; it is only mentioned here."""

    def __init__(
        self,
        tasks: Iterable[TaskId],
        calls: DriverCalls,
        spares: Iterable[WorkerSlot] = (),
        heartbeat: float = 0.0,
        poison: PoisonPolicy = DEFAULT_POISON,
        notice: float = math.inf,
    ) -> None:
        self._calls = calls
        self._draining = Draining(notice)
        self._poison = PoisonWatch(poison)
        self._heartbeat = heartbeat
        self._slots: dict[WorkerSlot, _SlotState] = {task: _SlotState(task) for task in tasks}
        #: where each task is
        self._slot_of: dict[TaskId, WorkerSlot] = {task: task for task in self._slots}
        self._slots |= {slot: _SlotState(None) for slot in spares}
        #: the split whose reading has raised the error that an attempt is about to report
        self._raised: dict[TaskId, tuple[Attempt | None, SplitName | None]] = {}
        #: incarnations known to have ended
        self._gone: set[str] = set()
        for slot in self._slots:
            calls.ready(slot)

    @property
    def placement(self) -> dict[TaskId, WorkerSlot]:
        """The slot of every task."""
        return dict(self._slot_of)

    def perform(self, command: DeployTask | ReplaceProcess | Order) -> None:
        """Hand an order to the process of its task."""
        if isinstance(command, ReplaceProcess):
            self._calls.replace(self._slot_of[command.task])
        elif isinstance(command, DeployTask):
            self._calls.deploy(command, self._poison.is_cautious(command.task))
        else:
            self._calls.order(command)

    def handle(self, message: ProcessMessage) -> list[Event]:
        """Take note of what became of a process; the events that follow from it."""
        events = self._noted(message)
        return [*(SplitSkipped(each, UNKNOWN_TIME) for each in self._poison.take_skipped()), *events]

    def _noted(self, message: ProcessMessage) -> list[Event]:
        match message:
            case ProcessAppeared(identity):
                return self._appeared(identity)
            case AttemptAccepted(attempt, identity):
                return self._taken(attempt, identity)
            case ProcessGone(slot, incarnation, reason):
                return self._ended(slot, incarnation, reason)
            case CallFailed(task, attempt, reason):
                return self._missed(TaskLost(task, attempt, reason, UNKNOWN_TIME))
            case TaskLost():
                return self._missed(message)
            case SplitBegun(task, attempt, name, raised):
                self._begun(task, attempt, name, raised)
                return []
            case TaskFailed():
                return [self._failed(message)]
            case HeartbeatDue():
                return self._ask_all()
            case NodesDraining(left):
                return self._leave(left)

    # ------------------------------------------------------------------ signs

    def _appeared(self, identity: Identity) -> list[Event]:
        slot, state = identity.task, self._slots[identity.task]
        if identity.incarnation in self._gone:
            return []
        state.unanswered = 0
        if identity.incarnation == state.incarnation and state.watched:
            return []
        known = state.incarnation
        if known is not None and known != identity.incarnation:
            events = self._lose(slot, "it died and was restarted", replaced=True)
        else:
            events = []
        state.identity, state.watched = identity, True
        self._calls.watch(slot, identity.incarnation)
        if state.task is None:
            self._calls.clear(slot)
        elif known != identity.incarnation:
            events.append(ProcessReady(state.task, identity.incarnation, UNKNOWN_TIME))
        return events

    def _taken(self, attempt: Attempt, identity: Identity) -> list[Event]:
        state = self._slots[identity.task]
        if identity.incarnation in self._gone:
            return [] if state.task is None else [_lost(state.task, attempt, "it died right after deployment")]
        events = self._appeared(identity)
        if state.task is not None and (state.accepted is None or attempt > state.accepted):
            state.accepted = attempt
        return events

    def _ended(self, slot: WorkerSlot, incarnation: str | None, reason: str) -> list[Event]:
        state = self._slots[slot]
        if incarnation is None:
            return [] if state.identity is None else self._lose(slot, reason)
        if incarnation == state.incarnation and state.watched:
            state.watched = False
            self._calls.ready(slot)
        return []

    def _missed(self, lost: TaskLost) -> list[Event]:
        """Somebody has lost touch with the process of a task: move that to a spare, dead or not."""
        slot = self._slot_of.get(lost.task)
        if slot is None or self._slots[slot].accepted is None or self._slots[slot].accepted != lost.attempt:
            return [lost]
        return [self._blamed(lost), *self._move(lost.task)]

    def _ask_all(self) -> list[Event]:
        events: list[Event] = []
        for slot, state in self._slots.items():
            if not state.watched or state.incarnation in self._gone:
                continue  # it is being asked for, or replaced
            sign = self._calls.sign(slot)
            if sign is not Sign.NONE:
                state.unanswered = 0
            if state.unanswered >= MISSES:
                events += self._hung(slot, state)
            elif sign is not Sign.ANSWER:
                state.unanswered += 1
                self._calls.ask(slot)
        return events

    def _hung(self, slot: WorkerSlot, state: _SlotState) -> list[Event]:
        assert state.identity is not None
        where = f"process {state.identity.pid} on {state.identity.node}"
        reason = f"{where} has not answered for {self._heartbeat * MISSES:g} s: it hangs, or is stopped or cut off"
        events = self._lose(slot, reason)
        self._calls.replace(slot)
        return events

    def _leave(self, left: Mapping[str, float]) -> list[Event]:
        """Nodes are being drained: tasks are migrated, spare processes start anew elsewhere."""
        self._draining.update(left)
        events: list[Event] = []
        for slot, state in self._slots.items():
            identity = state.identity
            if identity is None or not state.watched or identity.incarnation in self._gone:
                continue
            budget = self._draining.must_leave(identity.node_id, identity.incarnation)
            if budget is None:
                continue
            if state.task is None:
                self._calls.replace(slot)
            else:
                events.append(NoticeGiven(state.task, identity.incarnation, budget, UNKNOWN_TIME))
        return events

    # ------------------------------------------------------------------ what follows

    def _lose(self, slot: WorkerSlot, reason: str, *, replaced: bool = False) -> list[Event]:
        """The process of a slot is gone; ``replaced``: there is another one on it already."""
        state = self._slots[slot]
        if state.incarnation is not None:
            self._gone.add(state.incarnation)
        task, attempt = state.task, state.accepted
        state.accepted, state.unanswered = None, 0
        if task is None or attempt is None:
            return []
        moved = [] if replaced else self._move(task)
        return [self._blamed(_lost(task, attempt, reason)), *moved]

    def _blamed(self, lost: TaskLost) -> TaskLost | TaskFailed:
        """The loss, or what follows if it is a split's fault."""
        if lost.attempt is None:
            return lost
        failure = self._poison.died(lost.task, lost.attempt, lost.reason)
        return lost if failure is None else TaskFailed(lost.task, lost.attempt, failure, UNKNOWN_TIME)

    def _begun(self, task: TaskId, attempt: Attempt, name: SplitName | None, raised: bool) -> None:
        self._poison.begun(task, attempt, name)
        if raised and name is not None:
            self._raised[task] = (attempt, name)

    def _failed(self, failed: TaskFailed) -> TaskFailed:
        """An error, or what follows if it is a split's fault."""
        attempt, name = self._raised.pop(failed.task, (None, None))
        if attempt != failed.attempt or name is None:
            return failed
        return changed(failed, failure=self._poison.raised(failed.task, failed.attempt, name, failed.failure))

    def _move(self, task: TaskId) -> list[Event]:
        """Put a task on a spare slot, if there is one with a process; its own becomes spare."""
        old = self._slot_of[task]
        for slot, state in self._slots.items():
            if state.task is not None or state.identity is None or self._draining.is_drained(state.identity.node_id):
                continue
            if state.watched and state.unanswered <= 1:
                before = self._slots[old]
                before.task, before.accepted = None, None
                state.task, self._slot_of[task] = task, slot
                self._calls.move(task, slot)
                if before.watched:
                    # not a spare before it has answered again
                    before.watched = False
                    self._calls.ready(old)
                return [ProcessReady(task, state.identity.incarnation, UNKNOWN_TIME)]
        return []


def _lost(task: TaskId, attempt: Attempt, reason: str) -> TaskLost:
    return TaskLost(task, attempt, reason, UNKNOWN_TIME)

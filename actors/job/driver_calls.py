"""The coordinator's orders to the driver actors: over a connection to each process that has been deployed to, over Ray
until there is one. What comes of them is posted, never waited for.

``actors`` are the slots (see ``supervisor``). Which of them a task is on changes here, with ``move``, and nowhere else.

Rules:

1. Orders reach a process once (``transport.control_coordinator``). One that a call could not bring is reported, and
   fenced by its attempt should it arrive late.
2. ``ready`` and ``deploy`` wait while Ray restarts the process, and are repeated by Ray if it dies meanwhile.
3. ``watch`` is sent once, and fails with the process or the connection; it is silent when the actor is told to end.
4. A connection that ends says nothing about its process: Ray does. ``ask`` is sent once and never repeated. ``replace``
   kills: Ray does that with a process that is stopped, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from ...coordinator.model.commands import DeployTask
from ...engine.core.identity import Attempt, TaskId
from ..cluster.calls import gone_for_good, short_reason, when_done
from ..protocol.messages import (
    Address,
    AttemptAccepted,
    CallFailed,
    CoordinatorMessage,
    Deployment,
    Order,
    ProcessAppeared,
    ProcessGone,
    Sign,
    WorkerSlot,
)
from ..transport.control_coordinator import CoordinatorEnd
from ..transport.control_wire import Content
from ..transport.conversation import Packet
from ..transport.dialling import Secrets


class RayDriverCalls:
    """See the module's rules. ``peers``: with whom a task exchanges batches. ``coordinator``: our own address."""

    def __init__(
        self,
        actors: Mapping[WorkerSlot, Address],
        peers: Callable[[TaskId], list[TaskId]],
        coordinator: Address,
        post: Callable[[CoordinatorMessage], None],
        job: str,
        secrets: Secrets | None,
    ) -> None:
        self._actors = dict(actors)
        #: the actor of each task (a spare one is in no entry that is asked for)
        self._drivers = dict(actors)
        self._peers = peers
        self._coordinator = coordinator
        self._post = post
        #: where each task is
        self._slot_of = {slot: slot for slot in actors}
        self._control = CoordinatorEnd(job, secrets or Secrets(b""), self._say, post)

    def said(self, slot: WorkerSlot, incarnation: str, generation: int, packets: Sequence[Packet[Content]]) -> int:
        """A process has told us this by a call. What has been taken of it."""
        return self._control.called(slot, incarnation, generation, packets)

    def close(self) -> None:
        """End the connections."""
        self._control.close()

    def ready(self, slot: WorkerSlot) -> None:
        """Post ``ProcessAppeared`` as soon as the slot has a process."""

        def ended(identity: Any, error: BaseException | None) -> None:
            lost = None if error is None else ProcessGone(slot, None, short_reason(error))
            self._post(lost or ProcessAppeared(identity))

        when_done(self._actors[slot].ready.options(max_task_retries=-1).remote(), ended)

    def watch(self, slot: WorkerSlot, incarnation: str) -> None:
        """Post ``ProcessGone`` when the process, or the connection to it, ends."""

        def ended(_: Any, error: BaseException | None) -> None:
            if error is not None:
                self._post(ProcessGone(slot, incarnation, short_reason(error)))

        when_done(self._actors[slot].watch.remote(), ended)

    def sign(self, slot: WorkerSlot) -> Sign:
        """What has come over the connection since this was last asked."""
        return self._control.sign(slot)

    def ask(self, slot: WorkerSlot) -> None:
        """Post ``ProcessAppeared`` if the process answers a call; an answer on the connection is a sign."""
        if self._control.ask(slot):
            return

        def ended(identity: Any, error: BaseException | None) -> None:
            if error is None:
                self._post(ProcessAppeared(identity))

        when_done(self._actors[slot].ready.remote(), ended)

    def replace(self, slot: WorkerSlot) -> None:
        """Kill the process of the slot; Ray starts another one."""
        ray.kill(self._actors[slot], no_restart=False)

    def move(self, task: TaskId, slot: WorkerSlot) -> None:
        """Send what is for the task to this slot."""
        self._drivers[task] = self._actors[slot]
        self._slot_of[task] = slot

    def clear(self, slot: WorkerSlot) -> None:
        """Have the process of the slot drop what it holds."""
        self._actors[slot].clear.remote()

    def deploy(self, command: DeployTask, cautious: bool) -> None:
        """Post ``AttemptAccepted`` when a process has taken the order, ``CallFailed`` if none ever will."""
        peers = {task: self._drivers[task] for task in (command.task, *self._peers(command.task))}
        deployment = Deployment(command, peers, self._coordinator, cautious)

        def ended(answer: Any, error: BaseException | None) -> None:
            if error is not None:
                self._post(_call_failed(command.task, command.attempt, error))
                return
            identity, endpoint = answer
            self._control.accepted(identity, endpoint, command.attempt)
            self._post(AttemptAccepted(command.attempt, identity))

        when_done(self._drivers[command.task].deploy.options(max_task_retries=-1).remote(deployment), ended)

    def order(self, command: Order) -> None:
        """Post ``CallFailed`` if the order does not arrive."""
        if self._control.put(self._slot_of[command.task], command):
            return

        def ended(_: Any, error: BaseException | None) -> None:
            if error is not None:
                self._post(_call_failed(command.task, command.attempt, error))

        when_done(self._drivers[command.task].order.remote(command), ended)

    def _say(self, slot: WorkerSlot, incarnation: str, generation: int, packets: Sequence[Packet[Content]]) -> None:
        """Have a call carry orders, in want of a connection."""

        def ended(seen: int | None, error: BaseException | None) -> None:
            if error is not None:
                for content in (packet.content for packet in packets):
                    if isinstance(content, Order):
                        self._post(_call_failed(content.task, content.attempt, error))
            elif seen is not None:
                self._control.acknowledged(slot, incarnation, generation, seen)

        when_done(self._actors[slot].say.remote(incarnation, generation, packets), ended)


def _call_failed(task: TaskId, attempt: Attempt, error: BaseException) -> CallFailed:
    hint = "cannot be started again" if gone_for_good(error) else "did not answer"
    return CallFailed(task, attempt, f"it {hint}: {short_reason(error)}")

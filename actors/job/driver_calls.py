"""The coordinator's calls to the driver actors, over Ray. What comes of them is posted, never waited for.

``actors`` are the slots (see ``supervisor``). Which of them a task is on changes here, with ``move``, and nowhere else.

Rules:

1. Orders are sent once: one that does not arrive is reported, and fenced by its attempt should it arrive late.
2. ``ready`` and ``deploy`` wait while Ray restarts the process, and are repeated by Ray if it dies meanwhile.
3. ``watch`` is sent once, and fails with the process or the connection; it is silent when the actor is told to end.
4. ``ask`` is sent once and never repeated. ``replace`` kills: Ray does that with a process that is stopped, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ray

from ...coordinator.model.commands import DeployTask
from ...engine.core.identity import Attempt, TaskId
from ..cluster.calls import gone_for_good, short_reason, when_done
from ..protocol.messages import (
    Address,
    AttemptAccepted,
    CallFailed,
    Deployment,
    Order,
    ProcessAppeared,
    ProcessGone,
    ProcessMessage,
    WorkerSlot,
)


class RayDriverCalls:
    """See the module's rules. ``peers``: with whom a task exchanges batches. ``coordinator``: our own address."""

    def __init__(
        self,
        actors: Mapping[WorkerSlot, Address],
        peers: Callable[[TaskId], list[TaskId]],
        coordinator: Address,
        post: Callable[[ProcessMessage], None],
    ) -> None:
        self._actors = dict(actors)
        #: the actor of each task (a spare one is in no entry that is asked for)
        self._drivers = dict(actors)
        self._peers = peers
        self._coordinator = coordinator
        self._post = post

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

    def ask(self, slot: WorkerSlot) -> None:
        """Post ``ProcessAppeared`` if the process answers."""

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

    def clear(self, slot: WorkerSlot) -> None:
        """Have the process of the slot drop what it holds."""
        self._actors[slot].clear.remote()

    def deploy(self, command: DeployTask, cautious: bool) -> None:
        """Post ``AttemptAccepted`` when a process has taken the order, ``CallFailed`` if none ever will."""
        peers = {task: self._drivers[task] for task in (command.task, *self._peers(command.task))}
        deployment = Deployment(command, peers, self._coordinator, cautious)

        def ended(identity: Any, error: BaseException | None) -> None:
            failed = None if error is None else _call_failed(command.task, command.attempt, error)
            self._post(failed or AttemptAccepted(command.attempt, identity))

        when_done(self._drivers[command.task].deploy.options(max_task_retries=-1).remote(deployment), ended)

    def order(self, command: Order) -> None:
        """Post ``CallFailed`` if the order does not arrive."""

        def ended(_: Any, error: BaseException | None) -> None:
            if error is not None:
                self._post(_call_failed(command.task, command.attempt, error))

        when_done(self._drivers[command.task].order.remote(command), ended)


def _call_failed(task: TaskId, attempt: Attempt, error: BaseException) -> CallFailed:
    hint = "cannot be started again" if gone_for_good(error) else "did not answer"
    return CallFailed(task, attempt, f"it {hint}: {short_reason(error)}")

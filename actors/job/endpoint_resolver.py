"""Where the processes of peers listen: asked over Ray, or announced by themselves, whichever comes first.

Rules:

1. A handle outlives processes, and Ray lets a question wait while the process is being replaced. But it takes a second
   or two until Ray notices here that there is a new one. So a new process tells those that will dial it where it is.
2. What was announced is used once: should it be out of date, the dialler finds out, and asks.
3. Each question is answered once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from ...engine.core.identity import TaskId
from ..cluster.calls import when_done
from ..protocol.messages import Address
from ..transport.dialling import Endpoint, Resolved


@dataclass(frozen=True, slots=True)
class Peer:
    """The address of a task as the streams know it."""

    task: TaskId
    actor: Address


class EndpointResolver:
    """See the module's rules. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._announced: dict[TaskId, Endpoint] = {}
        #: questions that Ray has not answered yet, by task
        self._waiting: dict[TaskId, list[_Question]] = {}

    def resolve(self, peer: Peer, resolved: Resolved) -> None:
        """Ask where the process of a peer listens."""
        question = _Question(resolved)
        with self._lock:
            announced = self._announced.pop(peer.task, None)
            if announced is None:
                self._waiting.setdefault(peer.task, []).append(question)
        if announced is not None:
            question.answer(announced, None)
            return

        def ended(endpoint: Endpoint | None, error: BaseException | None) -> None:
            with self._lock:
                waiting = self._waiting.get(peer.task, [])
                if question in waiting:
                    waiting.remove(question)
            question.answer(endpoint, error)

        try:
            when_done(peer.actor.endpoint.options(max_task_retries=-1).remote(), ended)
        except RayError as error:
            ended(None, error)

    def announce(self, task: TaskId, endpoint: Endpoint) -> None:
        """A peer's process says where it listens."""
        with self._lock:
            waiting = self._waiting.pop(task, [])
            if not waiting:
                self._announced[task] = endpoint
        for question in waiting:
            question.answer(endpoint, None)


class _Question:
    """Passes the first answer on."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved: Callable[[Any, BaseException | None], None] | None = resolved
        self._lock = threading.Lock()

    def answer(self, endpoint: Endpoint | None, error: BaseException | None) -> None:
        with self._lock:
            resolved, self._resolved = self._resolved, None
        if resolved is not None:
            resolved(endpoint, error)

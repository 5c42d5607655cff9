"""A coordinator's end and a process's, over real sockets of this process; calls go through a queue of the test's."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from penstock.actors.protocol.messages import Identity, Order, Sign, WorkerSlot
from penstock.actors.transport.control_coordinator import CoordinatorEnd
from penstock.actors.transport.control_process import ProcessEnd
from penstock.actors.transport.control_wire import Content
from penstock.actors.transport.conversation import Packet
from penstock.actors.transport.dialling import Secrets
from penstock.actors.transport.listener import Listener
from penstock.actors.transport.tls import Certificate
from penstock.coordinator.model.commands import StopTask
from penstock.coordinator.model.events import DataEnded
from penstock.engine.core.identity import Attempt, TaskId

PATIENCE = 30.0
POLL = 0.01
JOB = "uuid"
TOKEN = bytes(range(32))
SLOT = TaskId("source", 0)


def order(number: int) -> StopTask:
    """An order that is known by its number."""
    return StopTask(SLOT, Attempt(1, number))


def report(number: int) -> DataEnded:
    """A report that is known by its number."""
    return DataEnded(SLOT, Attempt(1, number), 0.0)


class Watched:
    """Things that happen, for tests that wait for them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()

    def note(self, change: Callable[[], object]) -> None:
        with self.changed:
            change()
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE)


class Process(Watched):
    """A process: it notes its orders."""

    def __init__(
        self, incarnation: str = "first", *, unix: bool = True, certificate: Certificate | None = None, job: str = JOB
    ) -> None:
        super().__init__()
        self.incarnation = incarnation
        self.orders: list[int] = []
        self.lost = 0
        #: None: signs of life are given at once
        self.asked: list[Callable[[], None]] | None = None
        #: where calls go
        self.coordinators: dict[int, Coordinator] = {}
        listener = Listener(TOKEN, incarnation, "127.0.0.1", unix, certificate)
        self.end = ProcessEnd(job, incarnation, listener, self._by_calls, self._order, self._alive, self._lose)

    def _by_calls(self, generation: int, packets: Sequence[Packet[Content]]) -> None:
        coordinator = self.coordinators.get(generation)
        if coordinator is not None:
            coordinator.calls.append((self, packets))

    def _order(self, command: Order) -> None:
        self.note(lambda: self.orders.append(command.attempt.number))

    def _alive(self, answer: Callable[[], None]) -> None:
        if self.asked is None:
            answer()
        else:
            self.note(lambda: self.asked.append(answer))

    def _lose(self) -> None:
        def lose() -> None:
            self.lost += 1

        self.note(lose)


class Coordinator(Watched):
    """A coordinator of one generation: it notes reports. Calls wait until ``carry``."""

    def __init__(self, process: Process, generation: int = 1, certificate: Certificate | None = None) -> None:
        super().__init__()
        self.generation, self.process = generation, process
        self.reports: list[int] = []
        #: what processes have called, and what it has called them
        self.calls: deque[tuple[Process, Sequence[Packet[Content]]]] = deque()
        self.called: deque[Sequence[Packet[Content]]] = deque()
        self.end = CoordinatorEnd(JOB, Secrets(TOKEN, certificate), self._by_calls, self._report)
        process.coordinators[generation] = self

    def accepted(self, number: int = 0) -> None:
        """The process has taken an order to deploy."""
        process = self.process
        identity = Identity(SLOT, process.incarnation, 4711, "127.0.0.1")
        process.end.hear(self.generation)
        self.end.accepted(identity, process.end.endpoint, Attempt(self.generation, number))

    def carry(self) -> None:
        """Let all calls come, in both directions."""
        while self.calls:
            process, packets = self.calls.popleft()
            seen = self.end.called(SLOT, process.incarnation, self.generation, packets)
            process.end.acknowledged(self.generation, seen)
        while self.called:
            packets = self.called.popleft()
            taken = self.process.end.called(self.generation, packets)
            if taken is not None:
                self.end.acknowledged(SLOT, self.process.incarnation, self.generation, taken)

    def wait_connected(self) -> None:
        """Until a sign of life can be had over the connection."""
        self.end.sign(SLOT)
        for _ in range(int(PATIENCE / POLL)):
            self.end.ask(SLOT)  # again: a connection that has just been cut swallows the question
            time.sleep(POLL)
            if self.end.sign(SLOT) is Sign.ALIVE:
                return
        raise AssertionError("no connection was made")

    def cut(self) -> None:
        """Lose the connection, as if the network had failed."""
        self.process.end.cut()

    def _by_calls(
        self, _slot: WorkerSlot, _incarnation: str, _generation: int, packets: Sequence[Packet[Content]]
    ) -> None:
        self.called.append(packets)

    def _report(self, event: Any) -> None:
        self.note(lambda: self.reports.append(event.attempt.number))

"""A supervisor's calls to processes, written down."""

from __future__ import annotations

from penstock.actors.protocol.messages import Seat
from penstock.coordinator.model.commands import DeployTask
from penstock.engine.core.identity import TaskId


class RecordedCalls:
    """Calls that go nowhere; the test tells the supervisor what came of them."""

    def __init__(self) -> None:
        self.made: list[tuple[object, ...]] = []

    def ready(self, seat: Seat) -> None:
        self.made.append(("ready", seat))

    def watch(self, seat: Seat, incarnation: str) -> None:
        self.made.append(("watch", seat, incarnation))

    def ask(self, seat: Seat) -> None:
        self.made.append(("ask", seat))

    def replace(self, seat: Seat) -> None:
        self.made.append(("replace", seat))

    def move(self, task: TaskId, seat: Seat) -> None:
        self.made.append(("move", task, seat))

    def clear(self, seat: Seat) -> None:
        self.made.append(("clear", seat))

    def deploy(self, command: DeployTask, cautious: bool) -> None:
        self.made.append(("deploy", command, cautious))

    def order(self, command: object) -> None:
        self.made.append(("order", command))

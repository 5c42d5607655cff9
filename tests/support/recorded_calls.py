"""A supervisor's calls to processes, written down."""

from __future__ import annotations

from penstock.actors.protocol.messages import Sign, WorkerSlot
from penstock.coordinator.model.commands import DeployTask
from penstock.engine.core.identity import TaskId


class RecordedCalls:
    """Calls that go nowhere; the test tells the supervisor what came of them."""

    def __init__(self) -> None:
        self.made: list[tuple[object, ...]] = []
        #: what processes show until somebody looks
        self.signs: dict[WorkerSlot, Sign] = {}

    def ready(self, slot: WorkerSlot) -> None:
        self.made.append(("ready", slot))

    def watch(self, slot: WorkerSlot, incarnation: str) -> None:
        self.made.append(("watch", slot, incarnation))

    def sign(self, slot: WorkerSlot) -> Sign:
        return self.signs.pop(slot, Sign.NONE)

    def ask(self, slot: WorkerSlot) -> None:
        self.made.append(("ask", slot))

    def replace(self, slot: WorkerSlot) -> None:
        self.made.append(("replace", slot))

    def move(self, task: TaskId, slot: WorkerSlot) -> None:
        self.made.append(("move", task, slot))

    def clear(self, slot: WorkerSlot) -> None:
        self.made.append(("clear", slot))

    def deploy(self, command: DeployTask, cautious: bool) -> None:
        self.made.append(("deploy", command, cautious))

    def order(self, command: object) -> None:
        self.made.append(("order", command))

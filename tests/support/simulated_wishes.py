"""What users of a simulated job want of it: checkpoints, savepoints, pins, and that it stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.coordinator.model import events
from penstock.coordinator.model.events import Event
from penstock.coordinator.model.kinds import StopMode
from penstock.coordinator.model.statistics import JobStatus

if TYPE_CHECKING:
    from support.simulated_cluster import Incarnation, SimulatedCluster


class Users:
    """They ask, by chance, and check that they get what they were promised."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._count = 0
        #: How the job is to be stopped, by the name of the wish.
        self.modes: dict[str, StopMode] = {}
        #: Wishes for savepoints that nobody has answered, as they were asked.
        self._open: dict[str, Event] = {}
        #: Names whose savepoint was seen in the status, with its place.
        self.savepoints: dict[str, str] = {}
        #: Names that need their pin no more.
        self._given_up: set[str] = set()
        #: Names whose pin was seen in the status, and not given up since.
        self.pins: set[str] = set()

    def wish(self, home: Incarnation) -> None:
        """Perhaps ask the coordinator for something."""
        cluster, now = self._cluster, self._cluster.now
        if cluster.fault("ask_checkpoint"):
            cluster.handle(home, events.CheckpointRequested(now))
        if cluster.fault("ask_savepoint"):
            name = self._name()
            self._ask(home, name, events.SavepointRequested(name, self._folder(name), now))
        if cluster.fault("ask_stop"):
            mode = StopMode.DRAIN if cluster.random.random() < 0.25 else StopMode.SUSPEND
            name = self._name()
            self.modes[name] = mode
            self._ask(home, name, events.StopRequested(name, self._folder(name), mode, now))
        if cluster.fault("ask_pin"):
            self.look(home.core.status())
            latest = home.core.status().latest_completed
            if latest is not None:
                cluster.handle(home, events.PinRequested(latest, self._name(), now))
        if self.pins and cluster.fault("ask_pin"):
            name = min(self.pins)
            self.pins.discard(name)
            self._given_up.add(name)
            cluster.handle(home, events.UnpinRequested(name, now))

    def _folder(self, name: str) -> str:
        """Where the savepoint is wanted."""
        return f"folder of {name}" if self._cluster.random.random() < 0.5 else ""

    def _ask(self, home: Incarnation, name: str, wish: Event) -> None:
        self._open[name] = wish
        self._cluster.handle(home, wish)

    def ask_again(self, home: Incarnation) -> None:
        """There is another coordinator: what the one before has not answered is asked again, under the same name."""
        cluster = self._cluster
        for wish in self._open.values():
            cluster.post_later(lambda wish=wish: cluster.handle(home, wish))  # type: ignore[misc]

    def start_over(self) -> None:
        """Another job: who asked this one is not there any more."""
        self._open.clear()

    def _name(self) -> str:
        self._count += 1
        return f"wish {self._count}"

    def look(self, status: JobStatus) -> None:
        """What the status promises."""
        for result in status.savepoints:
            self._open.pop(result.request, None)
            if result.location is not None and result.kind == "savepoint":
                self.savepoints[result.request] = result.location
        self.pins |= set(status.pins) - self._given_up
        standing = self._cluster.storage.pinned()
        for name, checkpoint in status.pins.items():
            kept = name in self._given_up or standing.get(name) == checkpoint
            assert kept, f"the status shows the pin {name}, but the log has {standing}"

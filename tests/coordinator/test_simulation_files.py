"""No file is left that nobody names: what a living coordinator heard of is in a manifest of the log, or was deleted.

What it cannot hear of (the message was lost, its process died, the job was over) a clean-up of the folder finds, which
deletes what no manifest names. So here messages are late, doubled and out of order, snapshots, savepoints, commits and
writes to the log fail, but nothing dies and nothing is lost.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.coordinator.model.events import Event, TaskAcked
from support.simulated_cluster import Incarnation, SimulatedCluster
from support.simulated_faults import FAULTS
from support.simulated_runs import cluster_for

NOTHING_DIES = replace(
    FAULTS,
    patience=25,
    drop=0,
    kill_task=0,
    kill_coordinator=0,
    second_coordinator=0,
    cancel=0,
    ask_stop=0,
    full_disk=0,
)


class Listening(SimulatedCluster):
    """Remembers the files that a coordinator at work has heard of."""

    def __init__(self, seed: int) -> None:
        usual = cluster_for(seed)
        super().__init__(seed, usual._flows, NOTHING_DIES, usual._settings, task_type=usual.task_type)
        self.heard_of: set[str] = set()

    def handle(self, incarnation: Incarnation, event: Event) -> None:
        if isinstance(event, TaskAcked) and incarnation.alive:
            self.heard_of |= {handle.location for handle in event.state}
        super().handle(incarnation, event)

    def left(self) -> set[str]:
        """After everything that was under way has arrived."""
        while self._network:
            self._network.pop()()
        return self.heard_of & set(self.storage.orphans())


def test_no_file_is_left_that_no_manifest_names() -> None:
    seen: set[str] = set()
    for seed in range(120):
        cluster = Listening(seed)
        cluster.run()
        seen |= cluster.seen
        assert not cluster.left(), f"seed {seed}"
    assert {"snapshot", "commit", "store", "late_write", "savepoint", "ask_pin", "rows of a cut"} <= seen

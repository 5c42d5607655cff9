"""Simulated clusters, by seed: whatever goes wrong, the visible rows are those of a run without failures.

The second half breaks the protocol on purpose, one rule a test, and wants the oracles to notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.coordinator.commands import Command, TriggerCheckpoint
from penstock.coordinator.committing import Committing
from penstock.coordinator.completed import CompletedCheckpoints
from penstock.coordinator.events import Event
from penstock.coordinator.machine import Coordinator
from penstock.coordinator.manifest import Manifest
from penstock.coordinator.settings import Settings
from penstock.coordinator.tasks import TaskRecord, TaskTable
from penstock.engine.identity import Attempt, TaskId
from support.simulated_cluster import NO_FAULTS, SETTINGS, Faults, MakeCoordinator, SimulatedCluster, make_coordinator
from support.simulated_flows import SHAPES, flows_for
from support.simulated_model import Flow
from support.simulated_runs import check, simulate

SEEDS = 600
USUAL = Faults()
PER_TEST = 50


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_committed_rows_equal_those_of_a_run_without_failures(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        simulate(seed)


def test_a_seed_gives_the_same_run_every_time() -> None:
    runs = [simulate(7) for _ in range(2)]
    assert runs[0].steps == runs[1].steps
    assert runs[0].storage.visible_rows() == runs[1].storage.visible_rows()


def test_faults_of_every_kind_happen() -> None:
    """Else the other tests show little."""
    kinds: set[str] = set()
    for seed in range(200):
        kinds |= simulate(seed).seen
    assert kinds == {
        *("drop", "double", "kill_task", "kill_coordinator", "second_coordinator", "cancel", "snapshot", "commit"),
        *("store", "superseded", "late_write", "finished"),
    }


# --- broken on purpose -------------------------------------------------------------------------------------------


class TrustingTable(TaskTable):
    """Takes the word of every attempt for that of the current one."""

    def current(self, task: TaskId, attempt: Attempt) -> TaskRecord | None:
        return self.get(task)


def with_trusting_table(flow: Flow, settings: Settings, owner: str) -> Coordinator:
    coordinator = make_coordinator(flow, settings, owner)
    coordinator._context.tasks = TrustingTable(flow.graph)
    return coordinator


class NoRounds(Coordinator):
    """Puts barriers of deterministic flows wherever sources stand."""

    def handle(self, event: Event) -> list[Command]:
        orders = super().handle(event)
        return [self._loosen(order) if isinstance(order, TriggerCheckpoint) else order for order in orders]

    @staticmethod
    def _loosen(order: TriggerCheckpoint) -> TriggerCheckpoint:
        return TriggerCheckpoint(order.task, order.attempt, order.checkpoint, order.kind, None, order.timestamp)


class Hasty(Coordinator):
    """Gives a checkpoint up when a task is lost, also while its manifest is being stored."""

    def handle(self, event: Event) -> list[Command]:
        pending = self._job.checkpoints.pending
        restarts = self._job.failover.total
        orders = super().handle(event)
        if self._job.failover.total > restarts and pending is not None and not pending.is_open:
            self._job.checkpoints.pending = None
            self._job.checkpoints.decider.aborted(event.now)
            self._context.log.dropped()
        return orders


class Forgetful(Committing):
    """Commits nothing that was completed before this coordinator came."""

    def restore(self, manifest: Manifest) -> None:
        pass


def with_forgetful_committing(flow: Flow, settings: Settings, owner: str) -> Coordinator:
    coordinator = make_coordinator(flow, settings, owner)
    coordinator._job.committing.__class__ = Forgetful
    return coordinator


def without_settling(flow: Flow, settings: Settings, owner: str) -> Coordinator:
    """Deploys regions while it is open whether a failed manifest will still appear."""
    coordinator = make_coordinator(flow, settings, owner)
    coordinator._job.checkpoints.completed.__class__ = Careless
    return coordinator


class Careless(CompletedCheckpoints):
    """Takes a write that failed and is not in the log for one that never happened."""

    def doubt(self, manifest: Manifest) -> None:
        pass


def built(kind: type[Coordinator]) -> MakeCoordinator:
    def make(flow: Flow, settings: Settings, owner: str) -> Coordinator:
        return kind("job", "fingerprint", "a flow", flow.graph, settings, owner)

    return make


def first_caught(run: Callable[[int], None], seeds: int = 400) -> str:
    """What the oracles say about the first seed that they refuse; empty if they refuse none."""
    for seed in range(seeds):
        try:
            run(seed)
        except (AssertionError, KeyError) as error:
            return str(error)
    return ""


def runner(make: MakeCoordinator, faults: Faults = USUAL, fenced: bool = True) -> Callable[[int], None]:
    def run(seed: int) -> None:
        check(SimulatedCluster(seed, flows_for(seed), faults, make=make, fenced=fenced, steps=2500).run(), seed)

    return run


def patient_runner(make: MakeCoordinator) -> Callable[[int], None]:
    """No faults and no timeout that would end a deadlock."""

    def run(seed: int) -> None:
        settings = replace(SETTINGS, timeout=1e9)
        SimulatedCluster(seed, flows_for(seed), NO_FAULTS, settings, make, steps=2500).run()

    return run


def test_acknowledgements_without_attempts_are_caught() -> None:
    assert "lane" in first_caught(runner(with_trusting_table))


def test_a_stale_coordinator_that_can_still_write_is_caught() -> None:
    faults = Faults(second_coordinator=0.02)
    assert first_caught(runner(make_coordinator, faults), seeds=40) == ""
    assert "lane" in first_caught(runner(make_coordinator, faults, fenced=False))


def test_barriers_that_do_not_stand_at_round_ends_are_caught() -> None:
    """The ordered merge waits for one channel and the barrier's alignment for another, for ever."""
    assert first_caught(patient_runner(make_coordinator), seeds=100) == ""
    assert "no end in sight" in first_caught(patient_runner(built(NoRounds)))


def test_giving_up_a_checkpoint_whose_manifest_is_being_stored_is_caught() -> None:
    assert "but the store's newest is" in first_caught(runner(built(Hasty)))


def test_forgetting_what_was_not_committed_is_caught() -> None:
    assert "missing ['" in first_caught(runner(with_forgetful_committing))


def test_taking_a_failed_write_for_one_that_never_happened_is_caught() -> None:
    faults = Faults(patience=30, store=0.3)
    assert first_caught(runner(make_coordinator, faults), seeds=40) == ""
    assert first_caught(runner(without_settling, faults))


def test_every_shape_of_flow_is_among_the_seeds() -> None:
    names = {(flow.name, flow.graph.deterministic) for seed in range(2 * len(SHAPES)) for flow in flows_for(seed)}
    assert len(names) == 2 * len(SHAPES)

"""Simulated clusters, by seed: whatever goes wrong, the visible rows are those of a run without failures.

The second half breaks the protocol on purpose, one rule a test, and wants the oracles to notice.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from penstock.coordinator.checkpoint.checkpoints import Checkpoints
from penstock.coordinator.checkpoint.finalizer import CheckpointFinalizer, SinkCommits
from penstock.coordinator.job.job import Job
from penstock.coordinator.log.recovery import TakeOver
from penstock.coordinator.log.retained import RetainedCheckpoints
from penstock.coordinator.machine import Coordinator
from penstock.coordinator.model.commands import Command, TriggerCheckpoint
from penstock.coordinator.model.events import Event
from penstock.coordinator.model.manifest import Manifest
from penstock.coordinator.model.settings import Settings
from penstock.coordinator.restore.stored_state import Snapshot, StoredState
from penstock.coordinator.state.tasks import Region, TaskRecord, TaskTable
from penstock.engine.core.identity import Attempt, TaskId
from support.simulated_cluster import MakeCoordinator, SimulatedCluster, make_coordinator
from support.simulated_cuts import CutTask
from support.simulated_faults import NO_FAULTS, SETTINGS, Faults
from support.simulated_flows import SHAPES, flows_for, that_cut
from support.simulated_model import Flow
from support.simulated_runs import check, simulate

SEEDS = 400
"""``make simulate`` runs 2,000 and more."""
USUAL = Faults(ask_checkpoint=0, ask_savepoint=0, ask_stop=0, ask_pin=0)
SCRIPT = Path(__file__).parent / "simulate.py"


def test_committed_rows_equal_those_of_a_run_without_failures() -> None:
    """On all cores at once: by the script that runs more of them."""
    found = subprocess.run([sys.executable, SCRIPT, "--seeds", str(SEEDS)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, f"{found.stdout}\n{found.stderr}"
    assert f"{SEEDS} seeds" in found.stdout


def test_a_seed_gives_the_same_run_every_time() -> None:
    runs = [simulate(7) for _ in range(2)]
    assert runs[0].steps == runs[1].steps
    assert runs[0].storage.visible_rows() == runs[1].storage.visible_rows()


def test_faults_of_every_kind_happen() -> None:
    """Else the other tests show little."""
    kinds: set[str] = set()
    for seed in range(500):
        kinds |= simulate(seed).seen
    assert kinds == {
        *("drop", "double", "kill_task", "kill_coordinator", "second_coordinator", "cancel", "snapshot", "commit"),
        *("store", "superseded", "late_write", "finished", "savepoint", "stopped", "fork"),
        *("stall", "full_disk", "late entry", "Dropped", "asked again"),
        *("ask_checkpoint", "ask_savepoint", "ask_stop", "ask_pin"),
        *("kill_rank", "slow_rank", "cut", "rows of a cut", "moved"),
        "carried",
    }


# --- broken on purpose -------------------------------------------------------------------------------------------


class TrustingTable(TaskTable):
    """Takes the word of every attempt for that of the current one."""

    def current(self, task: TaskId, attempt: Attempt) -> TaskRecord | None:
        return self.get(task)


def with_trusting_table(flow: Flow, settings: Settings, owner: str, snapshot: Snapshot | None) -> Coordinator:
    coordinator = make_coordinator(flow, settings, owner, snapshot)
    coordinator._context.tasks.__class__ = TrustingTable
    return coordinator


class NoRounds(Coordinator):
    """Puts barriers of deterministic flows wherever sources stand."""

    def handle(self, event: Event) -> list[Command]:
        orders = super().handle(event)
        return [self._loosen(order) if isinstance(order, TriggerCheckpoint) else order for order in orders]

    @staticmethod
    def _loosen(order: TriggerCheckpoint) -> TriggerCheckpoint:
        return changed(order, at_round=None)


class Hasty(Coordinator):
    """Gives a checkpoint up when a task is lost, also while its manifest is being stored."""

    def handle(self, event: Event) -> list[Command]:
        pending = next((one for one in self._job.checkpoints.pendings.values() if one.is_being_stored), None)
        restarts = self._job.restarts.total
        orders = super().handle(event)
        still = pending is not None and pending.id in self._job.checkpoints.pendings
        if self._job.restarts.total > restarts and pending is not None and still:
            del self._job.checkpoints.pendings[pending.id]
            self._job.checkpoints._requests.aborted(pending.request, event.now)
            self._context.log.dropped()
            self._deadline = self._find_deadline()
        return orders


class Forgetful(SinkCommits):
    """Commits nothing that was completed before this coordinator came."""

    def restore(self, manifest: Manifest) -> None:
        pass


def with_forgetful_committing(flow: Flow, settings: Settings, owner: str, snapshot: Snapshot | None) -> Coordinator:
    coordinator = make_coordinator(flow, settings, owner, snapshot)
    coordinator._job.commits.__class__ = Forgetful
    return coordinator


def without_settling(flow: Flow, settings: Settings, owner: str, snapshot: Snapshot | None) -> Coordinator:
    """Deploys regions while it is open whether a failed manifest will still appear."""
    coordinator = make_coordinator(flow, settings, owner, snapshot)
    coordinator._context.retained.__class__ = Careless
    return coordinator


class Careless(RetainedCheckpoints):
    """Takes a write that failed and is not in the log for one that never happened."""

    def doubt(self, manifest: Manifest) -> None:
        pass


class Finished(CutTask):
    """Ends when its final checkpoint is committed, whether or not anybody has read what it sent."""

    def _may_finish(self) -> bool:
        return self.data_ended and self.final_committed and all(channel.closed for channel in self.inputs)


def without_flights(patch: pytest.MonkeyPatch) -> None:
    """Restored tasks do not get what was in flight."""
    of = StoredState.of
    patch.setattr(StoredState, "of", lambda self, task: tuple(each for each in of(self, task) if not each.is_flight))


class Recounting(Job):
    """Draws checkpoint ids and attempts as the first coordinator did, whatever came before."""

    def begin(self, decision: TakeOver) -> None:
        super().begin(decision)
        self.context.generation, self.checkpoints.next_number = 1, 1


def with_recounting_job(flow: Flow, settings: Settings, owner: str, snapshot: Snapshot | None) -> Coordinator:
    coordinator = make_coordinator(flow, settings, owner, snapshot)
    coordinator._job.__class__ = Recounting
    return coordinator


def built(kind: type[Coordinator]) -> MakeCoordinator:
    def make(flow: Flow, settings: Settings, owner: str, snapshot: Snapshot | None) -> Coordinator:
        return kind("job", "fingerprint", "a flow", flow.graph, settings, owner, snapshot)

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
    faults = replace(USUAL, second_coordinator=1.0)
    assert first_caught(runner(make_coordinator, faults), seeds=40) == ""
    said = first_caught(runner(make_coordinator, faults, fenced=False))
    assert any(word in said for word in ("lane", "but the store's newest is", "is deleted"))


def test_barriers_that_do_not_stand_at_round_ends_are_caught() -> None:
    """The ordered merge waits for one channel and the barrier's alignment for another, for ever."""
    assert first_caught(patient_runner(make_coordinator), seeds=100) == ""
    said = first_caught(patient_runner(built(NoRounds)))
    assert "nothing is runnable while work remains" in said
    chain = next(line for line in said.splitlines() if " ← " in line)
    assert "waits for barrier" in chain or "waits for the end of round" in chain


def test_giving_up_a_checkpoint_whose_manifest_is_being_stored_is_caught() -> None:
    assert "but the store's newest is" in first_caught(runner(built(Hasty)))


def test_forgetting_what_was_not_committed_is_caught() -> None:
    assert "missing ['" in first_caught(runner(with_forgetful_committing))


def test_taking_a_failed_write_for_one_that_never_happened_is_caught() -> None:
    faults = replace(USUAL, patience=30, store=0.3)
    assert first_caught(runner(make_coordinator, faults), seeds=40) == ""
    assert first_caught(runner(without_settling, faults))


def test_ids_that_are_used_again_after_a_take_over_are_caught() -> None:
    faults = replace(USUAL, kill_coordinator=0.5)
    assert first_caught(runner(make_coordinator, faults), seeds=40) == ""
    assert first_caught(runner(with_recounting_job, faults), seeds=40)


def test_every_shape_of_flow_is_among_the_seeds() -> None:
    names = {(flow.name, flow.graph.deterministic) for seed in range(2 * len(SHAPES)) for flow in flows_for(seed)}
    assert len(names) == 2 * len(SHAPES)


# --- tasks that cut as a whole -----------------------------------------------------------------------------------


def cut_run(seed: int, kind: type[CutTask] = CutTask) -> None:
    settings, faults = replace(SETTINGS, unaligned=True), replace(USUAL, patience=25, kill_task=0.8, drop=0.005)
    check(SimulatedCluster(seed, that_cut(flows_for(seed))[:1], faults, settings, task_type=kind).run(), seed)


def test_flights_that_are_not_restored_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_caught(cut_run, seeds=40) == ""
    without_flights(monkeypatch)
    assert "lane" in first_caught(cut_run)


def test_end_of_partition_before_everything_is_processed_is_caught() -> None:
    """A finished producer is not asked for the next cut, and nobody saves what it left."""
    caught = first_caught(partial(cut_run, kind=Finished))
    assert "still feeds it" in caught or "rows instead of" in caught


# --- regions that are carried ------------------------------------------------------------------------------------


class Keeping(Checkpoints):
    """A region that is deployed again keeps its cut for a checkpoint that is not in the log yet."""

    def region_restarts(self, region: Region) -> None:
        pass


class Repeating(CheckpointFinalizer):
    """A manifest is not made again when another one has become the newest."""

    def made_again(self, manifest: Manifest) -> Manifest:
        return changed(manifest, number=self._context.log.next_number)


def with_part(part: str, kind: type) -> MakeCoordinator:
    def make(flow: Flow, settings: Settings, owner: str, snapshot: Snapshot | None) -> Coordinator:
        coordinator = make_coordinator(flow, settings, owner, snapshot)
        getattr(coordinator._job, part).__class__ = kind
        return coordinator

    return make


def regional_run(seed: int, make: MakeCoordinator, faults: Faults, settings: Settings = SETTINGS) -> SimulatedCluster:
    """Of a flow with several regions."""
    flow = len(SHAPES) * (seed % 2) + (0, 1, 5)[seed % 3]
    cluster = SimulatedCluster(seed, flows_for(flow), faults, settings, make).run()
    check(cluster, flow)
    return cluster


LOSSES = replace(USUAL, patience=30, kill_task=0.8, drop=0.005)
"""Regions die all the time."""
UNCLEAR = replace(LOSSES, store=0.5)
"""The log answers badly, too."""
SLOW = replace(SETTINGS, interval=0.02, restart_delay=0.1, max_restart_delay=0.3)
"""A region is gone for several checkpoints."""


@pytest.mark.parametrize(
    ("part", "kind", "faults", "settings"),
    [("checkpoints", Keeping, LOSSES, SETTINGS), ("finalizer", Repeating, UNCLEAR, SLOW)],
    ids=["kept cut", "manifest not made again"],
)
def test_broken_rule_of_carried_regions_is_caught(part: str, kind: type, faults: Faults, settings: Settings) -> None:
    for make, seeds in ((make_coordinator, 20), (with_part(part, kind), 1000)):
        found = first_caught(lambda seed, make=make: regional_run(seed, make, faults, settings), seeds)  # type: ignore[misc]
        assert bool(found) is (make is not make_coordinator), found


def test_other_regions_go_on_while_one_restarts() -> None:
    assert any(regional_run(seed, make_coordinator, LOSSES, SLOW).storage.carried > 5 for seed in range(20))

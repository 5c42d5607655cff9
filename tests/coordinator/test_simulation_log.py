"""The log, endings and savepoints in simulation: rules broken on purpose, one a test; the oracles must notice.

What is unbroken passes under the same faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.actors.storage.log import read_entries
from penstock.coordinator.checkpoint.finalizer import CheckpointFinalizer, make_savepoint
from penstock.coordinator.job.job import _ENDINGS, Job
from penstock.coordinator.log.log_writer import LogWriter
from penstock.coordinator.model.commands import StoreSavepoint
from penstock.coordinator.model.events import SavepointCopied
from penstock.coordinator.model.job_states import JobState
from penstock.coordinator.model.manifest import Manifest, encode
from penstock.coordinator.model.retention import RetentionPolicy
from penstock.coordinator.model.settings import Settings
from penstock.engine.core.identity import CheckpointId
from support import simulated_work
from support.simulated_cluster import SimulatedCluster
from support.simulated_faults import FAULTS, SETTINGS, Faults
from support.simulated_flows import flows_for
from support.simulated_runs import check
from support.simulated_storage import Savepoint, SimulatedStorage

Patch = pytest.MonkeyPatch


def caught(faults: Faults, settings: Settings, seeds: int) -> str:
    """What the oracles say about the first seed that they refuse; empty if they refuse none."""
    for seed in range(seeds):
        flows = flows_for(seed)
        if flows[0].feed:  # its ranks have their own patience
            continue
        try:
            check(SimulatedCluster(seed, flows, faults, settings).run(), seed)
        except (AssertionError, KeyError) as error:
            return str(error).splitlines()[0]
    return ""


def doubts_manifests_only(patch: Patch) -> None:
    """A pin or a claim that failed is taken for one that never comes."""

    def failed(log: LogWriter) -> None:
        if isinstance(log.in_flight, Manifest):
            log._doubtful.append(log.in_flight)
        log.dropped()

    patch.setattr(LogWriter, "failed", failed)


def deletes_without_a_word(patch: Patch) -> None:
    """An ending deletes what it does not keep, whoever has taken over."""
    end = Job.end

    def ends(job: Job, final: JobState) -> None:
        if final in (JobState.CANCELLED, JobState.FAILED) and job.context.generation:
            job.finalizer.dropped(job.context.retained.not_kept(_ENDINGS[final]))
        end(job, final)

    patch.setattr(Job, "_drops", lambda job, final: False)
    patch.setattr(Job, "end", ends)


def stands_before_the_log_knows(patch: Patch) -> None:
    """The folder is a savepoint as soon as its files are copied, and whoever is asked again takes it for its own."""
    copied = CheckpointFinalizer.copied

    def stands(completion: CheckpointFinalizer, event: SavepointCopied) -> None:
        copied(completion, event)
        pending = completion._checkpoints.pendings.get(event.checkpoint)
        if pending is not None and pending.manifest is not None and pending.kind.commits:
            order = StoreSavepoint(pending.id, event.location, *make_savepoint(pending.manifest))
            completion._context.order(order)

    def store(storage: SimulatedStorage, order: StoreSavepoint) -> CheckpointId:
        files = {target: storage.files[source] for source, target in order.copies if source in storage.files}
        new = Savepoint(encode(order.manifest), files)
        storage.savepoints.setdefault(order.location, new)
        return storage.saved(order.location).checkpoint

    patch.setattr(CheckpointFinalizer, "copied", stands)
    patch.setattr(SimulatedStorage, "store_savepoint", store)
    patch.setattr(SimulatedStorage, "copy_savepoint", lambda storage, order: (order.target or "anywhere", None))


CASES: list[tuple[Callable[[Patch], None], Faults, Settings, str]] = [
    (
        doubts_manifests_only,
        replace(FAULTS, patience=40, store=0.3, full_disk=0.0, ask_pin=1.0),
        SETTINGS,
        "and there is nobody else",
    ),
    (
        deletes_without_a_word,
        replace(FAULTS, patience=30, second_coordinator=1.0, cancel=1.0),
        replace(SETTINGS, retention=RetentionPolicy.NEVER),
        "deleted",
    ),
    (
        stands_before_the_log_knows,
        replace(FAULTS, patience=40, ask_stop=1.0, kill_coordinator=1.0, ask_savepoint=0.0),
        SETTINGS,
        "the job stopped with",
    ),
]


@pytest.mark.parametrize(("broken", "faults", "settings", "said"), CASES, ids=[case[0].__name__ for case in CASES])
def test_rule_that_is_broken_is_noticed(
    broken: Callable[[Patch], None], faults: Faults, settings: Settings, said: str, monkeypatch: Patch
) -> None:
    assert caught(faults, settings, seeds=15) == ""
    broken(monkeypatch)
    found = caught(faults, settings, seeds=600)
    assert found
    assert said in found


def test_reading_of_the_simulation_is_the_real_one() -> None:
    assert simulated_work.read_entries is read_entries

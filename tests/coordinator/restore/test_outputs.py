"""Outputs are taken after the claim and before anything else; the identity of a job stands in its log."""

from __future__ import annotations

import pytest

from penstock.coordinator.machine import Coordinator
from penstock.coordinator.model import events
from penstock.coordinator.model.commands import DeployTask, EndJob, TakeOutputs
from penstock.coordinator.model.events import Failure
from penstock.coordinator.model.kinds import ClaimMode
from penstock.coordinator.model.manifest import Claim, Manifest
from penstock.coordinator.restore.stored_state import Snapshot
from penstock.engine.core.identity import CheckpointId, JobIdentity
from support.coordinator_driver import CoordinatorDriver, committable

OURS = "0b" * 16


def driver_of(uuid: str = OURS, **options: object) -> CoordinatorDriver:
    driver = CoordinatorDriver(**options)  # type: ignore[arg-type]
    driver.core = Coordinator(
        "job", "print", "a flow", driver.graph, driver.settings, driver.owner, driver.snapshot, uuid, True
    )
    driver.started = driver.core.start(0.0)
    return driver


def test_nothing_is_deployed_before_the_outputs_are_ours() -> None:
    driver = driver_of()
    assert driver.claim() == [TakeOutputs(JobIdentity(OURS, 1, "me"), ("me",), None)]
    assert driver.core.status().state == "claiming"
    orders = driver.tell(events.OutputsTaken(driver.now))
    assert [type(order) for order in orders] == [DeployTask, DeployTask]
    assert {order.claim for order in orders} == {"me"}


def test_every_claim_and_manifest_and_permit_carries_the_identity() -> None:
    driver = driver_of()
    driver.claim()
    driver.tell(events.OutputsTaken(driver.now))
    driver.run()
    driver.pass_time(1.0)
    commits = driver.complete(committable(1))
    heir = driver_of(log=driver.log, owner="heir")
    (order,) = heir.claim()
    claims = [entry for entry in driver.log if isinstance(entry, Claim)]
    (manifest,) = [entry for entry in driver.log if isinstance(entry, Manifest)]
    assert {entry.uuid for entry in (*claims, manifest)} == {OURS}
    assert {order.permit.by for order in commits if hasattr(order, "permit")} == {JobIdentity(OURS, 1, "me")}
    assert order == TakeOutputs(JobIdentity(OURS, 2, "heir"), ("me", "heir"), manifest)


def test_output_that_cannot_be_taken_fails_the_job_before_it_has_done_anything() -> None:
    driver = driver_of()
    driver.claim()
    failure = Failure("the output belongs to another job", retry=False, kind="ConfigurationError")
    assert driver.tell(events.OutputsRefused(failure, driver.now)) == [EndJob("failed", failure)]


def test_storage_that_fails_is_asked_again_a_few_times() -> None:
    driver = driver_of()
    (asked,) = driver.claim()
    failure = Failure("the disk sleeps", retry=True, kind="StorageError")
    for _ in range(2):
        assert driver.tell(events.OutputsRefused(failure, driver.now)) == [asked]
    assert driver.tell(events.OutputsRefused(failure, driver.now)) == [EndJob("failed", failure)]


@pytest.mark.parametrize("said", [events.OutputsTaken(0.0), events.OutputsRefused(Failure("late", retry=False), 0.0)])
def test_answer_that_comes_twice_or_after_a_cancel_changes_nothing(said: events.Event) -> None:
    driver = driver_of()
    driver.claim()
    driver.tell(events.CancelRequested(driver.now))
    assert driver.tell(said) == []
    driver = driver_of()
    driver.claim()
    driver.tell(events.OutputsTaken(driver.now))
    assert driver.tell(said) == []
    assert driver.core.status().state == "deploying"


def test_log_of_another_identity_is_refused() -> None:
    first = driver_of()
    first.claim()
    other = driver_of("1c" * 16, log=first.log, owner="other")
    (end,) = other.read_log()
    assert isinstance(end, EndJob)
    assert end.failure is not None
    assert "another run of job 'job' has claimed the checkpoint folder" in end.failure.message


def test_job_that_starts_from_a_snapshot_names_those_that_it_goes_on_from_for_ever() -> None:
    manifest = Manifest(
        number=3,
        checkpoint=CheckpointId(2, 5),
        fingerprint="print",
        parallelism={"source": 1, "sink": 1},
        tasks=(),
        kind="savepoint",
        uuid="parent",
        ancestors=("grandparent",),
    )
    lineage = ("grandparent", "parent")
    driver = driver_of(snapshot=Snapshot(manifest, "elsewhere", ClaimMode.NO_CLAIM))
    (order,) = driver.claim()
    assert order == TakeOutputs(JobIdentity(OURS, 3, "me", lineage), ("me",), manifest, "elsewhere")
    heir = driver_of(log=driver.log, owner="heir")  # started without the snapshot
    heir.claim()
    assert [entry.ancestors for entry in driver.log if isinstance(entry, Claim)] == [lineage, lineage]

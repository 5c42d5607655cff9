"""The coordinator, event by event: what it orders, in full."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as replace_entry

from penstock.coordinator.log.recovery import Refused, decide_recovery, last_claim
from penstock.coordinator.model.commands import (
    AbortCheckpoint,
    CommitCheckpoint,
    DeployTask,
    DiscardEntries,
    DiscardState,
    EndJob,
    ProposeRound,
    ReadLog,
    StartTask,
    StopTask,
    StoreEntry,
)
from penstock.coordinator.model.events import (
    EntryRefused,
    RoundProposed,
    TaskAcked,
    TaskDeclined,
    TaskDeployed,
)
from penstock.coordinator.model.manifest import Claim, Claimant, Ended, Manifest, TaskState, decode
from penstock.coordinator.model.records import FormatError, encode_record
from penstock.coordinator.model.settings import Settings
from penstock.engine.core.identity import Attempt, CommitPermit
from support.coordinator_driver import (
    A1,
    FIRST,
    FULL_DISK,
    SECOND,
    SINK,
    SOURCE,
    TOLERANT,
    CoordinatorDriver,
    committable,
    handle,
    in_checkpoint,
    running,
    trigger,
)

# --- taking over ---------------------------------------------------------------------------------------------------


def test_new_job_claims_its_log_before_anything_is_deployed() -> None:
    driver = CoordinatorDriver()
    assert driver.started == [ReadLog()]
    claim = Claim(number=0, generation=1, job="job", fingerprint="print", description="a flow", owner="me")
    (order,) = driver.read_log()
    assert order == StoreEntry(claim)
    attempts = ((SOURCE, A1), (SINK, A1))
    assert driver.stored(order) == [
        DeployTask(SOURCE, A1, (), attempts, None),
        DeployTask(SINK, A1, (), attempts, None),
    ]


def test_tasks_start_when_the_last_of_their_region_is_deployed() -> None:
    driver = CoordinatorDriver()
    driver.claim()
    assert driver.tell(TaskDeployed(SINK, A1, 0.0)) == []
    assert driver.tell(TaskDeployed(SOURCE, A1, 0.0)) == [StartTask(SOURCE, A1), StartTask(SINK, A1)]
    assert driver.core.status().state == "running"


def test_second_coordinator_goes_on_from_the_newest_manifest_and_commits_it_again() -> None:
    driver = in_checkpoint()
    driver.complete(committable(1))
    heir = CoordinatorDriver(log=driver.log, owner="heir")
    orders = heir.claim()
    first, attempt = heir.log[1], Attempt(2, 1)
    assert isinstance(first, Manifest)
    assert [order for order in orders if isinstance(order, DeployTask)] == [
        DeployTask(task, attempt, (handle(task, FIRST, A1),), ((SOURCE, attempt), (SINK, attempt)), FIRST)
        for task in (SOURCE, SINK)
    ]
    permit = CommitPermit(FIRST, (committable(1),))
    assert heir.tell(TaskDeployed(SINK, attempt, 0.0)) == [CommitCheckpoint(SINK, attempt, permit)]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            Manifest(number=0, checkpoint=FIRST, fingerprint="other", parallelism={}, tasks=()),
            "belongs to another flow",
        ),
        (Claim(number=0, generation=1, job="another", fingerprint="print"), "belongs to job 'another'"),
        (Ended(number=0, generation=1, status="finished"), "is over"),
    ],
)
def test_a_log_that_is_not_ours_ends_the_job_and_is_not_written_to(entry: Claim | Manifest | Ended, said: str) -> None:
    driver = CoordinatorDriver(log=[entry])
    (order,) = driver.read_log()
    assert isinstance(order, EndJob)
    assert order.status == "failed"
    assert order.failure is not None
    assert said in order.failure.message
    assert "another checkpoint folder" in order.failure.remedy
    assert (order.failure.kind, order.failure.retry) == ("ConfigurationError", False)


def test_script_that_was_started_twice_is_told_so_when_both_runs_have_staged_a_frame() -> None:
    claim = Claim(number=0, generation=1, job="job", fingerprint="other", description="rows: 4 splits staged:ab12")
    manifest = Manifest(number=1, checkpoint=FIRST, fingerprint="other", parallelism={}, tasks=())
    for description, said in (
        ("rows: 4 splits staged:cd34", "another run of job 'job' has begun"),
        ("rows: 5 splits staged:cd34", "belongs to another flow"),
    ):
        found = decide_recovery([claim, manifest], "print", "job", description)
        assert isinstance(found, Refused)
        assert said in found.failure.message
        assert "wait for it to end" in found.failure.remedy or "belongs" in said


def test_folder_of_another_evaluation_of_a_lease_says_that_nothing_goes_on_from_one() -> None:
    claim = Claim(number=0, generation=1, job="job", fingerprint="other", description="rows: 4 splits leased:ab12")
    manifest = Manifest(number=1, checkpoint=FIRST, fingerprint="other", parallelism={}, tasks=())
    found = decide_recovery([claim, manifest], "print", "job", "rows: 4 splits leased:cd34")
    assert isinstance(found, Refused)
    assert "another evaluation of a leased frame" in found.failure.message
    assert "remove the checkpoint folder and the outputs" in found.failure.remedy


@pytest.mark.parametrize("others", [False, True])
def test_who_may_not_have_a_log_is_told_whose_it_is_and_that_it_is_in_use_only_if_that_is_known(others: bool) -> None:
    by = Claimant(host="here", process=4711, began="2026-01-02 03:04:05 UTC")
    claim = Claim(number=0, generation=1, job="job", fingerprint="other", owner="them", uuid="theirs", by=by)
    manifest = Manifest(
        number=1, checkpoint=FIRST, fingerprint="print" if others else "other", parallelism={}, tasks=()
    )
    entries, whose = [claim, manifest], "a run that began at 2026-01-02 03:04:05 UTC in process 4711 on host here"
    for owner in ("", "somebody else"):
        found = decide_recovery(entries, "print", "job", uuid="ours", running=owner)
        assert isinstance(found, Refused)
        assert ("another run" if others else "another flow") in found.failure.message
        assert found.failure.message.endswith(f"; it was claimed last by {whose}")
    found = decide_recovery(entries, "print", "job", uuid="ours", running="them")
    assert isinstance(found, Refused)
    assert found.failure.message == f"the checkpoint folder of job 'job' is in use: {whose}"
    assert found.failure.remedy == "end it first, or give this run a folder of its own"
    found = decide_recovery([*entries, Ended(number=2, generation=1, status="failed")], "print", "job", running="them")
    assert isinstance(found, Refused)
    assert "in use" not in found.failure.message


def test_claim_of_the_version_before_can_be_read_and_says_nothing_of_its_run() -> None:
    claim = decode(encode_record(Claim(number=0, generation=1, job="job", fingerprint="other", format=4)))
    assert isinstance(claim, Claim)
    assert last_claim([claim]) == ""
    with pytest.raises(FormatError, match="it has format 3, and this version knows 4 to 8"):
        decode(encode_record(Claim(number=0, generation=1, job="job", fingerprint="other", format=3)))


def test_job_without_a_checkpoint_begins_with_the_flow_and_the_data_that_are_there_now() -> None:
    driver = CoordinatorDriver(log=[Claim(number=0, generation=1, job="job", fingerprint="before it was mended")])
    (order,) = driver.read_log()
    assert isinstance(order, StoreEntry)
    assert (order.entry.generation, order.entry.fingerprint) == (2, "print")


def test_claim_and_manifests_name_what_is_recorded_of_the_inputs() -> None:
    driver = CoordinatorDriver(inputs=("later", "first"))
    driver.claim()
    driver.run()
    driver.pass_time(1.0)
    driver.complete()
    claim, manifest = driver.log
    assert isinstance(claim, Claim)
    assert isinstance(manifest, Manifest)
    assert (claim.inputs, manifest.inputs) == ("later", "later")


@pytest.mark.parametrize("inputs", [("first",), ("later", "first"), ()])
def test_job_goes_on_from_a_checkpoint_over_its_own_inputs_or_fewer(inputs: tuple[str, ...]) -> None:
    driver = in_checkpoint()
    driver.complete()
    log = [driver.log[0], replace_entry(driver.log[1], inputs="first")]
    heir = CoordinatorDriver(log=log, owner="heir", inputs=inputs)
    assert any(isinstance(order, DeployTask) for order in heir.claim())


def test_job_that_was_planned_over_other_files_than_its_newest_checkpoint_is_refused() -> None:
    """Two scripts start at the same time, and the other one has taken in new files meanwhile."""
    driver = in_checkpoint()
    driver.complete()
    log = [driver.log[0], replace_entry(driver.log[1], inputs="later")]
    (order,) = CoordinatorDriver(log=log, owner="heir", inputs=("first",)).read_log()
    assert isinstance(order, EndJob)
    assert order.failure is not None
    assert "over other files" in order.failure.message
    assert "start the job again" in order.failure.remedy


def test_of_two_that_start_together_the_loser_steps_down() -> None:
    driver = CoordinatorDriver()
    driver.read_log()
    driver.log.append(Claim(number=0, generation=1, job="job", fingerprint="print", owner="the other"))
    assert driver.tell(EntryRefused(0, 0.0)) == [ReadLog()]
    (order,) = driver.read_log()
    assert isinstance(order, EndJob)
    assert order.status == "superseded"


def test_a_manifest_that_lands_before_the_claim_is_what_the_job_goes_on_from() -> None:
    old = in_checkpoint()
    (order,) = (old.ack(SOURCE, FIRST), old.ack(SINK, FIRST))[1]
    assert isinstance(order, StoreEntry)
    heir = CoordinatorDriver(log=list(old.log), owner="heir")
    heir.read_log()
    heir.log.append(order.entry)
    assert heir.tell(EntryRefused(1, 0.0)) == [ReadLog()]
    (claim,) = heir.read_log()
    assert isinstance(claim, StoreEntry)
    assert (claim.entry.number, heir.stored(claim)) == (2, [ReadLog()])
    assert all(o.restored_from == FIRST for o in heir.read_log() if isinstance(o, DeployTask))


def test_a_claim_in_a_hole_of_the_log_is_not_believed() -> None:
    """1. The log is read: claim 0. 2. The old coordinator stores 1, 2, 3 and deletes 1. 3. Our claim of 1 succeeds."""
    old = in_checkpoint(Settings(retained=1))
    heir = CoordinatorDriver(log=list(old.log), owner="heir")
    (claim,) = heir.read_log()
    old.complete()
    old.pass_time(2.0)
    assert DiscardEntries((1,)) in old.complete()
    heir.log.append(old.log[2])
    assert heir.stored(claim) == [ReadLog()]
    (again,) = heir.read_log()
    assert isinstance(again, StoreEntry)
    assert (again.entry.number, again.entry.owner) == (3, "heir")  # type: ignore[union-attr]


# --- a checkpoint --------------------------------------------------------------------------------------------------


def test_checkpoint_is_complete_once_its_manifest_is_durable_and_only_then_commits() -> None:
    driver = in_checkpoint()
    assert driver.ack(SOURCE, FIRST) == []
    (order,) = driver.ack(SINK, FIRST, committable(1))
    manifest = Manifest(
        number=1,
        checkpoint=FIRST,
        fingerprint="print",
        parallelism={"source": 1, "sink": 1},
        tasks=(
            TaskState(task=SINK, state=(handle(SINK, FIRST, A1),), committables=(committable(1),)),
            TaskState(task=SOURCE, state=(handle(SOURCE, FIRST, A1),)),
        ),
    )
    assert order == StoreEntry(manifest)
    assert driver.stored(order) == [
        CommitCheckpoint(SINK, A1, CommitPermit(FIRST, (committable(1),))),
        CommitCheckpoint(SOURCE, A1, CommitPermit(FIRST, ())),
    ]


def test_deterministic_flow_proposes_rounds_before_the_trigger() -> None:
    driver = running(deterministic=True)
    assert driver.pass_time(1.0) == [ProposeRound(SOURCE, A1, FIRST)]
    assert driver.tell(RoundProposed(SOURCE, A1, FIRST, 7, 1.1)) == [trigger(FIRST, 1.0, round=7)]


def test_every_later_manifest_lists_what_nobody_confirmed_to_be_visible() -> None:
    driver = in_checkpoint()
    driver.complete(committable(1))
    driver.pass_time(2.0)
    driver.ack(SOURCE, SECOND)
    (order,) = driver.ack(SINK, SECOND, committable(2))
    assert isinstance(order, StoreEntry)
    assert isinstance(order.entry, Manifest)
    assert order.entry.uncommitted == ((SINK, committable(1)),)
    both = CommitPermit(SECOND, (committable(1), committable(2)))
    assert CommitCheckpoint(SINK, A1, both) in driver.stored(order)


def test_oldest_checkpoint_goes_when_more_than_retained_are_complete() -> None:
    driver = in_checkpoint(Settings(retained=1))
    driver.complete()
    driver.pass_time(2.0)
    orders = driver.complete()
    assert orders[:2] == [
        DiscardEntries((1,)),
        DiscardState((handle(SINK, FIRST, A1), handle(SOURCE, FIRST, A1))),
    ]


def test_acknowledgement_of_a_stale_attempt_is_discarded() -> None:
    driver = in_checkpoint()
    stale = Attempt(0, 9)
    files = (handle(SINK, FIRST, stale),)
    assert driver.tell(TaskAcked(SINK, stale, FIRST, files, (), False, 1.1)) == [DiscardState(files)]


def test_duplicate_acknowledgement_changes_nothing() -> None:
    driver = in_checkpoint()
    driver.ack(SOURCE, FIRST)
    assert driver.ack(SOURCE, FIRST) == []
    assert driver.core.status().pending is not None


def test_declined_checkpoint_fails_the_job_when_none_may_fail() -> None:
    driver = in_checkpoint()
    orders = driver.tell(TaskDeclined(SINK, A1, FIRST, FULL_DISK, 1.1))
    assert orders == [
        AbortCheckpoint(SINK, A1, FIRST, None),
        AbortCheckpoint(SOURCE, A1, FIRST, None),
        StopTask(SOURCE, A1),
        StopTask(SINK, A1),
        EndJob("failed", replace(FULL_DISK, message=f"checkpoint 1.1 failed: {FULL_DISK.message}")),
    ]


def test_committables_of_a_checkpoint_given_up_are_carried_to_the_next_one() -> None:
    driver = in_checkpoint(TOLERANT)
    driver.ack(SINK, FIRST, committable(1))
    driver.tell(TaskDeclined(SOURCE, A1, FIRST, FULL_DISK, 1.1))
    assert driver.pass_time(2.5) == [trigger(SECOND, 2.5)]
    driver.ack(SOURCE, SECOND)
    (order,) = driver.ack(SINK, SECOND, committable(2))
    assert isinstance(order, StoreEntry)
    assert isinstance(order.entry, Manifest)
    assert order.entry.tasks[0].committables == (committable(1), committable(2))


def test_checkpoint_that_takes_too_long_is_given_up_and_says_whom_it_waited_for() -> None:
    driver = in_checkpoint(Settings(timeout=10.0))
    driver.ack(SOURCE, FIRST)
    order = driver.pass_time(11.0)[-1]
    assert isinstance(order, EndJob)
    assert order.failure is not None
    assert "not complete after 10 s; it waited for the snapshots of sink[0] (1 of 2 tasks)" in order.failure.message

"""Which failures count, and what becomes of completed checkpoints."""

from __future__ import annotations

import pytest

from penstock.coordinator.checkpoint.failures import FailureTolerance, Origin, Verdict
from penstock.coordinator.model.kinds import COUNTED, CheckpointKind, FailureReason
from penstock.coordinator.model.retention import Ending, RetentionPolicy, StoredCheckpoint, plan_subsumption
from penstock.engine.core.identity import CheckpointId

EXPIRED = FailureReason.CHECKPOINT_EXPIRED
CHECKPOINT, SAVEPOINT, STOP = CheckpointKind.CHECKPOINT, CheckpointKind.SAVEPOINT, CheckpointKind.STOP_WITH_SAVEPOINT
IGNORED, TOLERATED, FAIL_JOB = Verdict.IGNORED, Verdict.TOLERATED, Verdict.FAIL_JOB


def id(number: int) -> CheckpointId:
    return CheckpointId(1, number)


# --- failures --------------------------------------------------------------------------------------------------------


def test_counted_failures_in_a_row_beyond_the_limit_fail_the_job_and_the_count_begins_anew() -> None:
    manager = FailureTolerance(tolerable=1)
    assert [manager.failed(EXPIRED, id(number)) for number in (1, 2, 3, 4)] == [TOLERATED, FAIL_JOB] * 2


@pytest.mark.parametrize("reason", FailureReason)
def test_only_reasons_that_count_fail_the_job(reason: FailureReason) -> None:
    assert FailureTolerance(0).failed(reason, id(1)) is (FAIL_JOB if reason in COUNTED else IGNORED)


def test_reasons_know_what_they_are() -> None:
    assert {reason for reason in FailureReason if reason.is_counted} == COUNTED
    assert FailureReason.IO_EXCEPTION in COUNTED


def test_a_checkpoint_counts_once_but_failures_before_there_was_an_id_each() -> None:
    manager = FailureTolerance(tolerable=3)
    assert [manager.failed(EXPIRED, id(1)) for _ in range(3)] == [TOLERATED, IGNORED, IGNORED]
    io = FailureReason.IO_EXCEPTION
    assert [manager.failed(io, None) for _ in range(3)] == [TOLERATED, TOLERATED, FAIL_JOB]


def test_success_ends_the_row_and_older_failures_are_no_news() -> None:
    manager = FailureTolerance(tolerable=1)
    manager.failed(EXPIRED, id(1))
    manager.completed(id(3))
    assert manager.failed(EXPIRED, id(2)) is IGNORED
    assert manager.failed(EXPIRED, id(4)) is TOLERATED
    manager.completed(id(2))  # an older success is no news either
    assert manager.failed(EXPIRED, id(5)) is FAIL_JOB
    manager.validate()


@pytest.mark.parametrize(
    ("kind", "origin", "verdict"),
    [
        (CHECKPOINT, Origin.COORDINATOR, TOLERATED),
        (CHECKPOINT, Origin.TASK, TOLERATED),
        (SAVEPOINT, Origin.COORDINATOR, IGNORED),
        (SAVEPOINT, Origin.TASK, TOLERATED),
        (STOP, Origin.COORDINATOR, IGNORED),
        (STOP, Origin.TASK, FAIL_JOB),
    ],
)
def test_savepoints_count_only_on_a_tasks_side(kind: CheckpointKind, origin: Origin, verdict: Verdict) -> None:
    assert FailureTolerance(tolerable=5).failed(FailureReason.CHECKPOINT_DECLINED, id(1), kind, origin) is verdict


# --- retention -------------------------------------------------------------------------------------------------------


def stored(number: int, kind: CheckpointKind = CHECKPOINT) -> StoredCheckpoint:
    policy = RetentionPolicy.ALWAYS if kind.is_savepoint else RetentionPolicy.NEVER
    return StoredCheckpoint(id(number), kind, policy)


def subsumed(retained: int, *kinds: CheckpointKind) -> list[int]:
    listed = [stored(number, kind) for number, kind in enumerate(kinds)]
    return [one.id.number for one in plan_subsumption(listed, retained)]


def test_checkpoints_go_from_the_oldest_on_until_the_number_fits() -> None:
    assert subsumed(2, *[CHECKPOINT] * 5) == [0, 1, 2]
    assert subsumed(5, *[CHECKPOINT] * 5) == []
    assert subsumed(1) == []


def test_savepoints_count_and_leave_the_list_but_the_last_real_checkpoint_stays() -> None:
    assert subsumed(2, SAVEPOINT, CHECKPOINT, CHECKPOINT) == [0]
    assert subsumed(1, CHECKPOINT, SAVEPOINT, SAVEPOINT) == [1]
    assert subsumed(1, CHECKPOINT, CHECKPOINT, SAVEPOINT) == [0]
    assert subsumed(1, SAVEPOINT, SAVEPOINT) == [0]


def test_nothing_older_is_needed_after_the_savepoint_that_the_job_stops_with() -> None:
    assert subsumed(1, CHECKPOINT, CHECKPOINT, STOP) == [0, 1]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (RetentionPolicy.NEVER, ()),
        (RetentionPolicy.ON_FAILURE, (Ending.FAILED,)),
        (RetentionPolicy.ON_CANCELLATION, (Ending.CANCELLED, Ending.FAILED, Ending.SUSPENDED)),
        (RetentionPolicy.ALWAYS, tuple(Ending)),
    ],
)
def test_policy_says_for_which_ends_files_stay(policy: RetentionPolicy, kept: tuple[Ending, ...]) -> None:
    one = StoredCheckpoint(id(1), CHECKPOINT, policy)
    assert tuple(ending for ending in Ending if one.keeps_files(ending)) == kept


def test_only_a_savepoint_in_between_commits_nothing() -> None:
    assert [kind.commits for kind in (CHECKPOINT, SAVEPOINT, STOP)] == [True, False, True]

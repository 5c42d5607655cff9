"""Barrier alignment: rules 1 to 3 of penstock.engine.alignment, and random sequences that keep its invariants."""

import random

import pytest

from penstock.engine.core.identity import CheckpointId
from support.aligner import NOTHING, Aligner, Alignment


def cp(number: int) -> CheckpointId:
    return CheckpointId(1, number)


def test_barrier_waits_for_the_slowest_channel():
    aligner = Aligner(3)
    assert aligner.barrier(1, cp(1)) == NOTHING
    assert aligner.barrier(2, cp(1)) == NOTHING
    assert aligner.blocked == {1, 2}
    assert aligner.barrier(0, cp(1)) == Alignment(aligned=cp(1))
    assert aligner.blocked == set()


def test_repeated_barrier_is_counted_once():
    aligner = Aligner(2)
    aligner.barrier(0, cp(1))
    assert aligner.barrier(0, cp(1)) == NOTHING


def test_newer_barrier_aborts_the_pending_checkpoint():
    aligner = Aligner(2)
    aligner.barrier(0, cp(1))
    assert aligner.barrier(1, cp(2)) == Alignment(aborted=(cp(1),))
    assert aligner.blocked == {1}


def test_barrier_of_an_older_checkpoint_is_ignored_and_does_not_block():
    aligner = Aligner(2)
    aligner.barrier(0, cp(2))
    aligner.barrier(1, cp(2))
    assert aligner.barrier(0, cp(1)) == NOTHING
    assert aligner.blocked == set()


def test_end_of_partition_counts_as_the_pending_barrier():
    aligner = Aligner(3)
    aligner.barrier(0, cp(1))
    assert aligner.end(1) == NOTHING
    assert aligner.barrier(2, cp(1)) == Alignment(aligned=cp(1))


def test_end_of_partition_without_a_pending_checkpoint_lowers_the_next_target():
    aligner = Aligner(3)
    aligner.end(2)
    aligner.barrier(0, cp(6))
    assert aligner.barrier(1, cp(6)) == Alignment(aligned=cp(6))
    aligner.end(1)
    assert aligner.barrier(0, cp(7)) == Alignment(aligned=cp(7))


def test_last_end_of_partition_completes_the_pending_checkpoint():
    aligner = Aligner(2)
    aligner.barrier(0, cp(1))
    assert aligner.end(1) == Alignment(aligned=cp(1))


def test_cancel_marker_of_the_pending_checkpoint_releases_its_channels():
    aligner = Aligner(3)
    aligner.barrier(0, cp(2))
    aligner.barrier(2, cp(2))
    assert aligner.cancel(cp(2)) == Alignment(aborted=(cp(2),))
    assert aligner.blocked == set()
    assert aligner.barrier(1, cp(2)) == NOTHING


def test_cancel_marker_of_an_unknown_newer_checkpoint_makes_its_barriers_void():
    aligner = Aligner(2)
    assert aligner.cancel(cp(5)) == Alignment(aborted=(cp(5),))
    assert aligner.barrier(1, cp(5)) == NOTHING
    aligner.barrier(0, cp(6))
    assert aligner.barrier(1, cp(6)) == Alignment(aligned=cp(6))


def test_cancel_marker_of_a_completed_checkpoint_is_ignored():
    aligner = Aligner(1)
    aligner.barrier(0, cp(10))
    assert aligner.cancel(cp(10)) == NOTHING


def test_abort_before_any_barrier_makes_the_barriers_void_without_a_report():
    aligner = Aligner(2)
    assert aligner.abort(cp(3)) == NOTHING
    assert aligner.barrier(0, cp(3)) == NOTHING
    assert aligner.blocked == set()


def test_injected_barriers_do_not_block():
    aligner = Aligner(2)
    aligner.barrier(0, cp(1), block=False)
    assert aligner.blocked == set()
    assert aligner.barrier(1, cp(1), block=False) == Alignment(aligned=cp(1))


def test_single_channel_aligns_at_once():
    assert Aligner(1).barrier(0, cp(1)) == Alignment(aligned=cp(1))


@pytest.mark.parametrize("seed", range(200))
def test_invariants_hold_after_every_event_of_a_random_sequence(seed):
    rng = random.Random(seed)
    aligner = Aligner(rng.randint(1, 4))
    aligned: list[CheckpointId] = []
    for _ in range(60):
        checkpoint, channel = cp(rng.randint(1, 12)), rng.randrange(aligner.channels)
        action = rng.choice(["barrier"] * 6 + ["cancel", "abort", "end"])
        if action == "barrier" and channel in aligner.open and channel not in aligner.blocked:
            outcome = aligner.barrier(channel, checkpoint)
        elif action == "cancel":
            outcome = aligner.cancel(checkpoint)
        elif action == "abort":
            outcome = aligner.abort(checkpoint)
        elif action == "end" and rng.random() < 0.2:
            outcome = aligner.end(channel)
        else:
            continue
        aligner.validate()
        aligned += [outcome.aligned] if outcome.aligned else []
    assert aligned == sorted(set(aligned)), "each checkpoint is aligned at most once, in the order of the ids"

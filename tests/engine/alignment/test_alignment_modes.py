"""Unaligned, alternating and at-least-once barrier handling: the rules that the scenario table leaves out or mixes.

Times are milliseconds; ``arrival(1, timeout=100)`` is an aligned barrier of checkpoint 1, created at 0.
"""

from __future__ import annotations

import pytest

from penstock.engine.alignment import (
    Aborted,
    AbortReason,
    AlignedHandler,
    AlternatingHandler,
    BarrierArrival,
    BarrierTracker,
    Outcome,
    SnapshotMode,
    Triggered,
    UnalignedHandler,
)
from penstock.engine.alignment.times import AlignmentTimes
from penstock.engine.core.identity import CheckpointId

NOTHING = Outcome()


def arrival(checkpoint: int, *, timeout: float | None = None, unaligned: bool = False) -> BarrierArrival[int]:
    return BarrierArrival(checkpoint, 0, unaligned, timeout)


def triggered(checkpoint: int, mode: SnapshotMode) -> Triggered[int]:
    return Triggered(checkpoint, mode)


# ---------------------------------------------------------------------- aligned


def test_ids_may_be_any_ordered_values() -> None:
    handler = AlignedHandler[CheckpointId](1)
    taken = handler.barrier(0, BarrierArrival(CheckpointId(2, 1), 0), 0)
    assert taken.completed == CheckpointId(2, 1)
    assert handler.barrier(0, BarrierArrival(CheckpointId(1, 9), 0), 0) == NOTHING


def test_announcement_begins_a_checkpoint_that_a_cancel_marker_does_not_end_before_a_channel_is_counted() -> None:
    handler = AlignedHandler[int](2)
    handler.announcement(0, arrival(1, timeout=100), 0)
    assert handler.pending
    assert handler.cancel(1, 1) == NOTHING
    assert handler.pending


def test_abort_by_the_coordinator_ends_a_checkpoint_that_is_only_announced() -> None:
    handler = AlternatingHandler[int](2)
    handler.announcement(0, arrival(1, timeout=100), 0)
    assert handler.abort(1).aborted == (Aborted(1, AbortReason.NOTIFIED),)
    assert (handler.pending, handler.next_deadline) == (False, None)


def test_announcement_of_a_checkpoint_that_is_over_is_ignored() -> None:
    handler = AlternatingHandler[int](1)
    handler.barrier(0, arrival(3), 0)
    assert handler.announcement(0, arrival(3, timeout=10), 0) == NOTHING
    assert handler.announcement(0, arrival(2, timeout=10), 0) == NOTHING
    assert not handler.pending


def test_aligned_handler_refuses_an_unaligned_barrier() -> None:
    with pytest.raises(AssertionError, match="overtaken"):
        AlignedHandler[int](2).barrier(0, arrival(1, unaligned=True), 0)


def test_aborted_alignment_leaves_no_times_but_the_start_delay() -> None:
    handler = AlignedHandler[int](2)
    handler.barrier(0, arrival(1), 7)
    handler.read(100)
    assert (handler.times.began, handler.times.processed_bytes) == (7, 100)
    handler.cancel(1, 1)
    assert (handler.times.start_delay, handler.times.duration, handler.times.processed_bytes) == (7, 0, 0)


def test_start_delay_is_the_age_of_the_first_barrier_and_never_negative() -> None:
    times = AlignmentTimes()
    times.begin(created=3.0, now=5.0)
    assert times.start_delay == 2.0
    times.begin(created=9.0, now=5.0)
    assert times.start_delay == 0.0


def test_bytes_count_only_between_first_and_last_channel() -> None:
    handler = UnalignedHandler[int](2)
    handler.read(1)
    handler.barrier(0, arrival(1, unaligned=True), 3)
    handler.read(10)
    handler.end(1, 8)
    handler.read(100)
    assert (handler.times.duration, handler.times.processed_bytes) == (5, 10)


# ---------------------------------------------------------------------- unaligned


def test_unaligned_checkpoint_keeps_what_comes_ahead_of_the_other_barriers_until_it_is_complete() -> None:
    handler = UnalignedHandler[int](3)
    first = handler.barrier(0, arrival(1, unaligned=True), 0)
    assert first == Outcome(triggered=triggered(1, SnapshotMode.UNALIGNED))
    assert [handler.persists(channel) for channel in range(3)] == [None, 1, 1]
    assert handler.end(2, 0) == NOTHING
    assert handler.barrier(1, arrival(1, unaligned=True), 0) == Outcome(completed=1)
    assert [handler.persists(channel) for channel in range(3)] == [None, None, None]


def test_unaligned_handler_moves_announced_barriers_to_the_front() -> None:
    handler = UnalignedHandler[int](2)
    assert handler.announcement(1, arrival(1, timeout=100), 0).prioritised == (1,)


def test_unaligned_snapshot_that_is_aborted_keeps_nothing_more() -> None:
    handler = UnalignedHandler[int](2)
    handler.barrier(0, arrival(1, unaligned=True), 0)
    assert handler.abort(1).aborted == (Aborted(1, AbortReason.NOTIFIED),)
    assert handler.persists(1) is None


# ---------------------------------------------------------------------- alternating


def test_timer_counts_the_age_that_the_barrier_has_already() -> None:
    handler = AlternatingHandler[int](2)
    handler.announcement(0, arrival(1, timeout=100), 30)
    assert handler.next_deadline == 100
    late = AlternatingHandler[int](2)
    late.announcement(0, arrival(1, timeout=100), 130)
    assert late.next_deadline == 130


def test_timer_does_nothing_before_it_is_due() -> None:
    handler = AlternatingHandler[int](2)
    handler.barrier(0, arrival(1, timeout=100), 0)
    assert handler.fire(99) == NOTHING
    assert handler.fire(100) == Outcome(triggered=triggered(1, SnapshotMode.UNALIGNED))
    assert handler.fire(101) == NOTHING


def test_timer_of_a_closed_handler_is_not_due() -> None:
    handler = AlternatingHandler[int](2)
    handler.barrier(0, arrival(1, timeout=100), 0)
    handler.close()
    assert handler.next_deadline is None
    assert handler.fire(1000) == NOTHING


def test_turning_prioritises_announced_barriers_and_those_announced_later() -> None:
    handler = AlternatingHandler[int](3)
    handler.announcement(1, arrival(1, timeout=100), 0)
    assert handler.fire(100) == Outcome(prioritised=(1,))
    assert handler.announcement(2, arrival(1, timeout=100), 101).prioritised == (2,)
    assert handler.barrier(1, arrival(1, timeout=100), 102).triggered == triggered(1, SnapshotMode.UNALIGNED)


def test_late_barrier_turns_the_checkpoint_without_the_timer() -> None:
    handler = AlternatingHandler[int](3)
    handler.announcement(0, arrival(1, timeout=100), 0)
    handler.announcement(1, arrival(1, timeout=100), 0)
    late = handler.barrier(0, arrival(1, timeout=100), 101)
    assert late == Outcome(prioritised=(1,), triggered=triggered(1, SnapshotMode.UNALIGNED))
    assert handler.blocked == {0}


def test_barrier_exactly_at_the_timeout_is_not_late() -> None:
    handler = AlternatingHandler[int](2)
    assert handler.barrier(0, arrival(1, timeout=100), 100) == NOTHING


def test_last_barrier_wins_over_the_timeout() -> None:
    handler = AlternatingHandler[int](2)
    handler.barrier(0, arrival(1, timeout=100), 0)
    assert handler.barrier(1, arrival(1, timeout=100), 500).triggered == triggered(1, SnapshotMode.ALIGNED)


def test_last_end_of_partition_wins_over_the_timeout() -> None:
    handler = AlternatingHandler[int](2)
    handler.barrier(0, arrival(1, timeout=100), 0)
    assert handler.end(1, 500) == Outcome(triggered=triggered(1, SnapshotMode.ALIGNED), completed=1)


def test_late_end_of_partition_turns_the_checkpoint() -> None:
    handler = AlternatingHandler[int](3)
    handler.barrier(0, arrival(1, timeout=100), 0)
    assert handler.end(1, 101) == Outcome(triggered=triggered(1, SnapshotMode.UNALIGNED))


def test_unaligned_barrier_turns_the_checkpoint_even_as_the_last_one() -> None:
    handler = AlternatingHandler[int](2)
    handler.barrier(0, arrival(1, timeout=100), 0)
    last = handler.barrier(1, arrival(1, unaligned=True), 1)
    assert last == Outcome(triggered=triggered(1, SnapshotMode.UNALIGNED), completed=1)
    assert handler.blocked == set()


def test_checkpoint_after_one_that_turned_begins_aligned() -> None:
    handler = AlternatingHandler[int](2)
    handler.barrier(0, arrival(1, unaligned=True), 0)
    handler.barrier(1, arrival(1, unaligned=True), 0)
    handler.barrier(0, arrival(2, timeout=100), 0)
    assert handler.barrier(1, arrival(2, timeout=100), 0).triggered == triggered(2, SnapshotMode.ALIGNED)


def test_savepoint_without_timeout_stays_aligned_for_ever() -> None:
    handler = AlternatingHandler[int](3)
    handler.barrier(0, arrival(1), 0)
    assert handler.next_deadline is None
    assert handler.barrier(1, arrival(1), 10**9) == NOTHING
    assert handler.barrier(2, arrival(1), 10**9).triggered == triggered(1, SnapshotMode.ALIGNED)


def test_injected_barriers_of_an_alternating_handler_block_nothing() -> None:
    handler = AlternatingHandler[int](2)
    handler.barrier(0, arrival(1, timeout=100), 0, injected=True)
    assert handler.blocked == set()


def test_subsumed_checkpoint_takes_its_timer_along() -> None:
    handler = AlternatingHandler[int](2)
    handler.barrier(0, arrival(1, timeout=100), 0)
    subsumed = handler.barrier(1, arrival(2), 50)
    assert subsumed.aborted == (Aborted(1, AbortReason.SUBSUMED),)
    assert handler.next_deadline is None
    assert handler.blocked == {1}


# ---------------------------------------------------------------------- at least once


def test_tracker_never_blocks_and_never_waits_for_a_timer() -> None:
    tracker = BarrierTracker[int](2)
    assert tracker.barrier(0, arrival(1, timeout=10), 0) == NOTHING
    assert (tracker.blocked, tracker.next_deadline, tracker.persists(1)) == (frozenset(), None, None)
    assert tracker.fire(100) == NOTHING


def test_tracker_swallows_the_barriers_of_an_id_that_the_coordinator_gave_up() -> None:
    tracker = BarrierTracker[int](2)
    assert tracker.abort(2) == NOTHING
    tracker.barrier(0, arrival(1), 0)
    assert tracker.barrier(0, arrival(2), 0).aborted == (Aborted(2, AbortReason.NOTIFIED),)
    assert tracker.barrier(1, arrival(1), 0).triggered == triggered(1, SnapshotMode.ALIGNED)
    assert tracker.barrier(1, arrival(2), 0) == NOTHING
    assert not tracker.pending


def test_tracker_with_one_open_channel_reports_an_id_given_up_before_its_barrier() -> None:
    tracker = BarrierTracker[int](1)
    tracker.abort(2)
    assert tracker.barrier(0, arrival(2), 0) == Outcome((Aborted(2, AbortReason.NOTIFIED),))
    assert tracker.barrier(0, arrival(3), 0).triggered == triggered(3, SnapshotMode.ALIGNED)


def test_tracker_aborts_a_pending_id_once() -> None:
    tracker = BarrierTracker[int](3)
    tracker.barrier(0, arrival(1), 0)
    assert tracker.abort(1).aborted == (Aborted(1, AbortReason.NOTIFIED),)
    assert tracker.cancel(1, 1) == NOTHING
    assert tracker.barrier(2, arrival(1), 0) == NOTHING
    assert not tracker.pending


def test_tracker_without_ends_that_count_aborts_all_pending_ids_when_an_input_ends() -> None:
    tracker = BarrierTracker[int](3, ends_count=False)
    tracker.barrier(0, arrival(1), 0)
    tracker.barrier(0, arrival(2), 0)
    ended = tracker.end(1, 0)
    assert ended.aborted == (Aborted(1, AbortReason.INPUT_ENDED), Aborted(2, AbortReason.INPUT_ENDED))
    assert not tracker.pending


def test_end_of_partition_triggers_the_newest_id_that_it_completes_and_drops_the_older_ones() -> None:
    tracker = BarrierTracker[int](3)
    for checkpoint in (1, 2, 3):
        tracker.barrier(0, arrival(checkpoint), 0)
    for checkpoint in (1, 2):
        tracker.barrier(1, arrival(checkpoint), 0)
    assert tracker.end(2, 0) == Outcome(triggered=triggered(2, SnapshotMode.ALIGNED), completed=2)
    assert tracker.pending_checkpoints == (3,)


def test_tracker_never_triggers_an_older_id_after_a_newer_one() -> None:
    tracker = BarrierTracker[int](2)
    tracker.barrier(1, arrival(1), 0)
    tracker.end(1, 0)
    assert tracker.barrier(0, arrival(2), 0).triggered == triggered(2, SnapshotMode.ALIGNED)
    assert tracker.end(0, 0) == NOTHING
    assert not tracker.pending

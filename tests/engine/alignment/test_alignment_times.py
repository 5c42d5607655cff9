"""How long alignments take, and which ids there may be. Times are milliseconds."""

from __future__ import annotations

from penstock.engine.alignment import AlignedHandler, AlignmentTimes, BarrierArrival, Outcome
from penstock.engine.core.identity import CheckpointId


def test_ids_may_be_any_ordered_values() -> None:
    handler = AlignedHandler[CheckpointId](1)
    taken = handler.barrier(0, BarrierArrival(CheckpointId(2, 1), 0), 0)
    assert taken.triggered == CheckpointId(2, 1)
    assert handler.barrier(0, BarrierArrival(CheckpointId(1, 9), 0), 0) == Outcome()


def test_aborted_alignment_leaves_no_times_but_the_start_delay() -> None:
    handler = AlignedHandler[int](2)
    handler.barrier(0, BarrierArrival(1, 0), 7)
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
    handler = AlignedHandler[int](2)
    handler.read(1)
    handler.barrier(0, BarrierArrival(1, 0), 3)
    handler.read(10)
    handler.end(1, 8)
    handler.read(100)
    assert (handler.times.duration, handler.times.processed_bytes) == (5, 10)

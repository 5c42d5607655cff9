"""The sequencer of a feed and its readers: positions, slices, what is kept, checkpoints, groups."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.errors import ConfigurationError
from penstock.engine.core.identity import CheckpointId
from penstock.engine.feed.cursor import ReadCursor
from penstock.engine.feed.digests import OrderHash
from penstock.engine.feed.messages import FeedEnded, NotYet, RankGroup, Refusal, Refused, Slice
from penstock.engine.feed.sequencer import FeedSettings, Sequencer
from penstock.engine.kernels.hashing import hashes

FIRST, SECOND, LAST = (CheckpointId(1, number) for number in (1, 2, 9))
ALONE = RankGroup(1, 1, 0)


def rows(start: int, stop: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(start, stop), pa.int64())})


def row_hashes(batch: pa.RecordBatch) -> np.ndarray:
    return hashes(batch.columns)


def values(slice: object) -> list[int]:
    assert isinstance(slice, Slice), slice
    return [value for piece in slice.rows for value in piece.column("n").to_pylist()]


def feed(stop: int, piece: int = 7, ended: bool = True, **options: object) -> Sequencer[pa.RecordBatch]:
    """With rows 0 to ``stop``, which came in pieces."""
    made: Sequencer[pa.RecordBatch] = Sequencer(FeedSettings(10, **options), row_hashes)  # type: ignore[arg-type]
    for start in range(0, stop, piece):
        made.accept(rows(start, min(start + piece, stop)))
        made.validate()
    if ended:
        end(made)
    return made


def end(sequencer: Sequencer[pa.RecordBatch]) -> None:
    """The feed ends, and a checkpoint that holds it is committed."""
    sequencer.end()
    sequencer.snapshot(LAST)
    sequencer.committed(LAST)


def read_all(sequencer: Sequencer[pa.RecordBatch], group: RankGroup, stop: int) -> list[list[int]]:
    """Global batches from the group's start to ``stop``, put together from the ranks' slices."""
    assert sequencer.join(group, group.start) == group
    return [
        [value for rank in range(group.ranks) for value in values(sequencer.read(group.generation, rank, batch))]
        for batch in range(group.start, stop)
    ]


@settings(deadline=None)
@given(st.integers(1, 13), st.integers(1, 13), st.integers(1, 7), st.integers(0, 3))
def test_global_batches_are_the_same_however_rows_come_and_however_many_ranks_read(
    piece: int, other: int, ranks: int, start: int
) -> None:
    expected = [list(range(10 * n, min(10 * n + 10, 37))) for n in range(4)]
    assert read_all(feed(37, piece), RankGroup(1, ranks, start), 4) == expected[start:]
    assert feed(37, piece).order == feed(37, other).order


def test_shares_of_a_batch_are_contiguous_even_and_whole_at_any_number_of_ranks() -> None:
    for ranks in range(1, 20):
        group = RankGroup(1, ranks, 0)
        for size in (1, 7, 10):
            shares = [group.share(rank, size) for rank in range(ranks)]
            assert [place for share in shares for place in share] == list(range(size))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_batch_is_not_there_before_it_is_full_or_the_feed_has_ended() -> None:
    sequencer = feed(15, ended=False)
    sequencer.join(ALONE, 0)
    assert sequencer.read(1, 0, 1) == NotYet(1, 1, "rows of the flow: 5 are missing")
    end(sequencer)
    assert values(sequencer.read(1, 0, 1)) == list(range(10, 15))
    assert sequencer.read(1, 0, 2) == FeedEnded(1, 2, 2)


def test_last_batch_that_is_not_full_can_be_dropped() -> None:
    sequencer = feed(15, drop_last=True)
    sequencer.join(ALONE, 0)
    assert sequencer.read(1, 0, 1) == FeedEnded(1, 1, 1)
    assert not sequencer.is_finished
    sequencer.acknowledge(1, 0, 1, 1)
    assert sequencer.is_finished


@pytest.mark.parametrize("taken", [1, 2])
def test_rank_whose_loop_is_done_need_not_hear_of_the_end_if_it_has_taken_everything(taken: int) -> None:
    sequencer = feed(20, ended=False)
    sequencer.join(ALONE, 0)
    sequencer.acknowledge(1, 0, taken, 0, done=True)
    assert not sequencer.is_finished
    sequencer.validate()
    end(sequencer)
    assert sequencer.is_finished == (taken == 2)
    sequencer.validate()


def test_rank_that_goes_on_reading_is_not_done() -> None:
    sequencer = feed(20, ended=False)
    sequencer.join(ALONE, 0)
    sequencer.acknowledge(1, 0, 2, 0, done=True)
    sequencer.acknowledge(1, 0, 2, 0)
    end(sequencer)
    assert not sequencer.is_finished


def test_feed_without_rows_is_finished_at_its_end_without_anybody_who_reads() -> None:
    assert feed(0).is_finished
    assert not feed(1).is_finished


def test_rows_are_kept_until_every_rank_has_saved_what_it_made_of_them() -> None:
    sequencer = feed(40)
    sequencer.join(RankGroup(1, 2, 0), 0)
    sequencer.acknowledge(1, 0, 3, 3)
    assert (sequencer.oldest, sequencer.kept_rows) == (0, 40)
    sequencer.acknowledge(1, 1, 4, 2)
    sequencer.validate()
    assert (sequencer.oldest, sequencer.kept_rows) == (2, 20)
    assert sequencer.read(1, 1, 1) == Refused(Refusal.GONE, 1, 1)


def test_rows_that_all_ranks_have_taken_go_when_there_is_no_room_for_the_next_batch() -> None:
    sequencer = feed(28, ended=False, most_rows=28)
    sequencer.join(ALONE, 0)
    assert not sequencer.ready
    sequencer.acknowledge(1, 0, 1, 0)
    assert not sequencer.ready, "batch 1 is there, so nobody waits for room"
    sequencer.acknowledge(1, 0, 2, 0)
    assert sequencer.ready
    assert sequencer.oldest == 2
    sequencer.validate()


def test_rows_kept_for_older_models_stay_when_barriers_bring_more_rows_than_there_is_room_for() -> None:
    sequencer = feed(30, ended=False, most_rows=50, ahead=30)
    sequencer.join(RankGroup(1, 1, 0), 0)
    sequencer.accept(rows(30, 100))  # they stood before a barrier
    for taken in range(1, 9):
        sequencer.acknowledge(1, 0, taken, 0)
        sequencer.validate()
        assert sequencer.oldest == max(0, min(5, taken - 2))
    assert sequencer.join(RankGroup(2, 3, 6), 6) == RankGroup(2, 3, 6)
    assert values(sequencer.read(2, 0, 6)) == [60, 61, 62]


def test_who_sends_rows_is_told_whom_it_waits_for() -> None:
    sequencer = feed(30, ended=False, most_rows=30)
    assert sequencer.waits_for() == "ranks to join"
    sequencer.join(RankGroup(1, 3, 0), 0)
    for rank in (0, 2):
        sequencer.acknowledge(1, rank, 2, 0)
    assert sequencer.waits_for() == "rank 1 of 3, which is at batch 0"
    for rank in range(3):
        sequencer.acknowledge(1, rank, 3, 0)
    assert sequencer.waits_for() == ""


def test_barrier_can_be_reached_when_there_is_no_room() -> None:
    sequencer = feed(30, ended=False, most_rows=30)
    assert not sequencer.ready
    sequencer.accept(rows(30, 35))
    sequencer.validate()
    assert sequencer.snapshot(FIRST).position == 35


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_snapshot_holds_what_was_not_saved_and_a_restored_feed_goes_on_at_the_same_positions() -> None:
    sequencer = feed(26, ended=False)
    sequencer.join(ALONE, 0)
    sequencer.acknowledge(1, 0, 2, 1)
    state = sequencer.snapshot(FIRST)
    assert (state.first, state.position, sum(piece.num_rows for piece in state.rows)) == (10, 26, 16)
    restored: Sequencer[pa.RecordBatch] = Sequencer.restored(state, sequencer.settings, row_hashes)
    restored.validate()
    for one in (sequencer, restored):
        one.accept(rows(26, 40))
        end(one)
    assert restored.order == sequencer.order
    assert read_all(restored, RankGroup(2, 3, 1), 4) == read_all(sequencer, RankGroup(2, 3, 1), 4)


def test_ranks_that_are_ahead_of_a_restored_feed_join_again_and_get_nothing_twice() -> None:
    state = feed(12, ended=False).snapshot(FIRST)
    restored: Sequencer[pa.RecordBatch] = Sequencer.restored(state, FeedSettings(10))
    reader: ReadCursor[pa.RecordBatch] = ReadCursor(RankGroup(4, 1, 0), 0)
    reader.next_batch = 3
    reader.saved(3)
    reader.must_join = False
    reader.on_answer(restored.read(4, 0, 3))
    assert reader.must_join
    reader.joined(restored.join(reader.group, reader.saved_before))
    assert not reader.must_join
    restored.acknowledge(4, 0, 3, 3)
    restored.accept(rows(12, 40))
    restored.validate()
    assert restored.kept_rows == 10
    reader.on_answer(restored.read(4, 0, 3))
    assert values(reader.take()) == list(range(30, 40))


def test_group_whose_start_a_restored_feed_has_left_behind_may_join_if_its_ranks_are_further() -> None:
    sequencer = feed(40)
    sequencer.join(ALONE, 0)
    sequencer.acknowledge(1, 0, 3, 2)
    restored: Sequencer[pa.RecordBatch] = Sequencer.restored(sequencer.snapshot(FIRST), sequencer.settings)
    assert restored.join(ALONE, 0) == Refused(Refusal.GONE, 1)
    assert restored.join(ALONE, 3) == ALONE


def test_rows_whose_order_may_change_are_handed_out_once_they_are_committed() -> None:
    sequencer = feed(25, ended=False, repeatable=False)
    sequencer.end()
    sequencer.join(ALONE, 0)
    assert sequencer.read(1, 0, 0) == NotYet(1, 0, "a checkpoint: 25 rows are in none that is durable")
    assert sequencer.wants_checkpoint
    sequencer.snapshot(FIRST)
    sequencer.snapshot(SECOND)
    sequencer.committed(SECOND)
    sequencer.validate()
    assert values(sequencer.read(1, 0, 2)) == list(range(20, 25))
    assert not sequencer.wants_checkpoint


def test_end_and_what_operators_emit_at_it_are_told_once_they_are_committed() -> None:
    """A job that is stopped ends its data, and goes on behind the same rows if the stop fails."""
    sequencer = feed(22, ended=False)
    sequencer.accept(rows(22, 34), final=True)
    sequencer.end()
    sequencer.join(ALONE, 0)
    assert values(sequencer.read(1, 0, 1)) == list(range(10, 20))
    assert sequencer.read(1, 0, 2) == NotYet(1, 2, "a checkpoint: 34 rows are in none that is durable")
    assert sequencer.read(1, 0, 3) == NotYet(1, 3, "a checkpoint: 34 rows are in none that is durable")
    assert sequencer.wants_checkpoint
    sequencer.snapshot(FIRST)
    sequencer.committed(FIRST)
    assert [values(sequencer.read(1, 0, batch)) for batch in (2, 3)] == [list(range(20, 30)), list(range(30, 34))]
    assert sequencer.read(1, 0, 4) == FeedEnded(1, 4, 4)


def test_what_a_restored_feed_begins_with_stands_in_the_log_and_may_be_handed_out() -> None:
    sequencer = feed(25, repeatable=False)
    restored: Sequencer[pa.RecordBatch] = Sequencer.restored(sequencer.snapshot(FIRST), sequencer.settings)
    restored.join(ALONE, 0)
    assert values(restored.read(1, 0, 2)) == list(range(20, 25))


# --- groups ----------------------------------------------------------------------------------------------------------


def test_older_group_is_refused_in_everything() -> None:
    sequencer = feed(40)
    sequencer.join(RankGroup(2, 2, 0), 0)
    assert sequencer.join(ALONE, 0) == Refused(Refusal.STALE, 2)
    assert sequencer.read(1, 0, 0) == Refused(Refusal.STALE, 2)
    assert not sequencer.acknowledge(1, 0, 4, 4)
    assert sequencer.oldest == 0


def test_two_groups_of_one_generation_are_refused_and_the_same_may_join_again() -> None:
    sequencer = feed(40)
    assert sequencer.join(ALONE, 0) == sequencer.join(ALONE, 0) == ALONE
    assert sequencer.join(RankGroup(1, 2, 0), 0) == Refused(Refusal.CONTRADICTION, 1)


def test_group_that_is_not_known_is_asked_to_join() -> None:
    sequencer = feed(40)
    assert sequencer.read(1, 0, 0) == Refused(Refusal.UNKNOWN_GROUP, 1)
    sequencer.join(ALONE, 0)
    assert sequencer.read(3, 0, 0) == Refused(Refusal.UNKNOWN_GROUP, 3)


def test_reader_of_a_group_that_was_replaced_says_so_and_what_to_do() -> None:
    reader: ReadCursor[pa.RecordBatch] = ReadCursor(ALONE, 0)
    with pytest.raises(ConfigurationError, match=r"a newer group reads the feed(.|\n)*end this process"):
        reader.on_answer(Refused(Refusal.STALE, 2))


def test_reader_gives_every_batch_out_once_in_order_whatever_comes_twice_or_late() -> None:
    sequencer = feed(30)
    sequencer.join(ALONE, 0)
    reader: ReadCursor[pa.RecordBatch] = ReadCursor(ALONE, 0, ahead=2)
    assert list(reader.wanted()) == [0, 1, 2]
    second, first = sequencer.read(1, 0, 1), sequencer.read(1, 0, 0)
    for answer in (second, first, first, second):
        reader.on_answer(answer)
    assert list(reader.wanted()) == [2]
    assert [values(reader.take()), values(reader.take())] == [list(range(10)), list(range(10, 20))]
    reader.on_answer(first)
    reader.on_answer(Refused(Refusal.GONE, 1, 0))
    assert reader.take() is None
    reader.on_answer(FeedEnded(1, 3, 3))
    assert list(reader.wanted()) == [2]
    assert not reader.is_at_end


def test_reader_cannot_save_what_it_has_not_given_out() -> None:
    with pytest.raises(ValueError, match="not between"):
        ReadCursor(ALONE, 0).saved(1)


# --- order hash ------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=50), st.integers(0, 50))
def test_order_hash_does_not_depend_on_how_rows_are_cut(found: list[int], cut: int) -> None:
    array = np.array(found, dtype=np.uint64)
    assert OrderHash().extended(array[:cut]).extended(array[cut:]) == OrderHash().extended(array)


def test_order_hash_depends_on_the_order_and_wraps_around_over_many_rows() -> None:
    array = np.arange(10_000, dtype=np.uint64)
    assert OrderHash().extended(array) != OrderHash().extended(array[::-1])
    halves = OrderHash().extended(array[:4097]).extended(array[4097:])
    assert halves == OrderHash().extended(array)
    assert 0 < halves.value < 2**64


def test_settings_that_leave_no_room_for_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="keeps at least one batch"):
        FeedSettings(10, most_rows=9)
    with pytest.raises(ValueError, match="at least one rank"):
        RankGroup(1, 0, 0)

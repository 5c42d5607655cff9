"""Where the splits of a set stand in lanes and rounds."""

from __future__ import annotations

import pytest

from penstock.engine.plan.split_places import places, rounds_of


@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 20])
def test_splits_of_a_set_stand_in_their_order_in_whole_rounds(count: int, lanes: int) -> None:
    for turn in range(20):
        found = places(count, lanes, turn)
        assert list(found) == sorted(set(found)), "ascending, one split a place"
        assert len(found) == count
        assert found[-1] < rounds_of(count, lanes) * lanes


def test_small_sets_take_turns_that_lie_far_apart_so_that_all_subtasks_get_some() -> None:
    assert [places(1, 8, turn) for turn in range(8)] == [(0,), (4,), (2,), (6,), (1,), (5,), (3,), (7,)]
    assert [places(2, 8, turn) for turn in range(3)] == [(0, 4), (2, 6), (1, 5)]
    assert places(8, 8, 5) == tuple(range(8))
    assert places(0, 8, 5) == ()

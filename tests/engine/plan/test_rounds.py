"""Splits are dealt to lanes: each to one, in order, and the first few at even distances."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine.plan.rounds import SplitAssignment, evenly_assigned, lanes_of, read_cursors, write_cursors


@pytest.mark.parametrize("lanes", range(1, 12))
@pytest.mark.parametrize("first", range(12))
def test_every_split_has_one_place_in_one_lane(first: int, lanes: int) -> None:
    assignment = SplitAssignment(lanes, evenly_assigned(first, lanes))
    for splits in range(first, 3 * lanes + 2):
        found = {lane: [p for p in range(splits) if assignment.lane_of(p) == lane] for lane in range(lanes)}
        for lane, positions in found.items():
            assert assignment.count(lane, splits) == len(positions)
            assert list(assignment.positions(lane, len(positions))) == positions
            assert assignment.position(lane, len(positions)) >= splits


@pytest.mark.parametrize("lanes", range(1, 12))
@pytest.mark.parametrize("splits", range(1, 12))
def test_the_first_splits_are_shared_evenly_and_stay_in_order(splits: int, lanes: int) -> None:
    assignment = SplitAssignment(lanes, evenly_assigned(splits, lanes))
    of = [assignment.lane_of(position) for position in range(min(splits, lanes))]
    assert of == sorted(set(of))
    for parallelism in range(1, lanes + 1):
        shares = [sum(lane in lanes_of(subtask, parallelism, lanes) for lane in of) for subtask in range(parallelism)]
        assert max(shares) <= -(-len(of) // parallelism) + 1
        if lanes % parallelism == 0:
            assert max(shares) - min(shares) <= 1


def test_with_as_many_splits_as_lanes_they_go_by_turns() -> None:
    assignment = SplitAssignment(4, evenly_assigned(9, 4))
    assert [assignment.lane_of(position) for position in range(9)] == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_a_source_goes_on_as_it_was_dealt() -> None:
    _, cursors = read_cursors(None, range(8), evenly_assigned(4, 8))
    _, again = read_cursors(write_cursors(3, cursors), range(8), evenly_assigned(5, 8))
    assert [cursor.dealt for cursor in again] == [4] * 8


def test_a_state_that_does_not_tell_was_dealt_by_turns() -> None:
    _, cursors = read_cursors(None, range(8), evenly_assigned(4, 8))
    older = write_cursors(3, cursors).drop_columns(["dealt"])
    _, again = read_cursors(older, range(8), evenly_assigned(4, 8))
    assert [cursor.dealt for cursor in again] == [0] * 8


def test_reader_of_lanes_that_stood_between_other_rounds_begins_with_the_smallest_and_moves_none() -> None:
    """Subtasks that share no exchange stand behind different rounds at one checkpoint by agreement (rule 6)."""
    parts = [write_cursors(round, read_cursors(None, lanes)[1]) for round, lanes in ((5, range(2)), (3, range(2, 4)))]
    place, cursors = read_cursors(pa.concat_tables(parts), range(4))
    assert (place.round, place.begun) == (3, True)
    assert [cursor.round for cursor in cursors] == [5, 5, 3, 3]
    assert write_cursors(4, cursors)["round"].to_pylist() == [5, 5, 4, 4], "a lane that is ahead keeps its round"

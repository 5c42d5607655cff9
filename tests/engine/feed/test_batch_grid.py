"""Which rows are in which batch, where epochs end within batches."""

from __future__ import annotations

import random

import pytest

from penstock.engine.feed.batch_grid import UNKNOWN, BatchGrid, CutGrid


def batches_of(size: int, drop_last: bool, ends: list[int]) -> list[tuple[int, int, int]]:
    """By the definition: (epoch, first row, end) of every batch."""
    found, begin = [], 0
    for epoch, end in enumerate(ends):
        for first in range(begin, end, size):
            if first + size <= end or not drop_last:
                found.append((epoch, first, min(first + size, end)))
        begin = end
    return found


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_those_of_the_definition(drop_last: bool) -> None:
    for seed in range(200):
        chance = random.Random(seed)
        size, ends = chance.randint(1, 6), [0]
        for _ in range(chance.randint(1, 5)):
            ends.append(ends[-1] + chance.choice([0, chance.randint(0, 20), 2 * size]))
        ends = ends[1:]
        grid, expected = BatchGrid.of(size, drop_last, ends), batches_of(size, drop_last, ends)
        assert (grid.first, grid.begin, grid.closed) == (len(expected), ends[-1], len(ends))
        for batch, (epoch, first, end) in enumerate(expected):
            assert (grid.epoch_of(batch), grid.first_row(batch), grid.end_row(batch)) == (epoch, first, end)
            is_last = batch + 1 == len(expected) or expected[batch + 1][0] > epoch
            assert (grid.is_known(batch), grid.is_last(batch)) == (True, is_last)
        for position in range(ends[-1] + 1):
            behind = [batch for batch, (_, first, _) in enumerate(expected) if first >= position]
            assert grid.batch_from(position) == (behind[0] if behind else len(expected)), (seed, position)


def test_no_row_that_has_come_is_forgotten_for_a_batch_of_which_the_place_is_not_known() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        size, drop_last, ends = chance.randint(1, 6), chance.random() < 0.5, [0]
        for _ in range(4):
            ends.append(ends[-1] + chance.randint(0, 20))
        whole = BatchGrid.of(size, drop_last, ends[1:])
        for known in range(4):
            grid = BatchGrid.of(size, drop_last, ends[1 : known + 1])
            for batch in range(whole.first):
                guess, true = grid.first_row(batch), whole.first_row(batch)
                assert min(guess, ends[known + 1]) <= true, "a row before the guess, of the open epoch, is in the batch"
                assert guess == true or not grid.is_known(batch)


def test_grid_without_epochs_is_a_plain_division() -> None:
    grid = BatchGrid(10)
    assert [grid.first_row(7), grid.end_row(7), grid.batch_from(65), grid.epoch_of(7)] == [70, 80, 7, 0]
    assert not grid.is_last(7)


def test_cut_batches_are_where_they_were_cut_also_if_it_goes_on_in_the_middle() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        borders, ends, firsts = [0], [], []
        for _ in range(chance.randint(1, 4)):
            for _ in range(chance.randint(0, 4)):
                borders.append(borders[-1] + chance.randint(1, 6))
            ends.append(borders[-1])
            firsts.append(len(borders) - 1)
        base = chance.randrange(len(borders))
        ended = sum(first <= base for first in firsts)
        if ended and firsts[ended - 1] == base and chance.random() < 0.5:
            ended -= 1  # the epoch that ends there has not been told to end
        grid = CutGrid.going_on(base, borders[base], ends[:ended], firsts[:ended])
        for epoch in range(ended, len(ends)):
            for border in borders[max(base, firsts[epoch - 1] if epoch else 0) + 1 : firsts[epoch] + 1]:
                assert grid.end_row(grid.next) == UNKNOWN
                grid.cut(border)
            grid.close(ends[epoch])
        assert (grid.next, grid.firsts, grid.first, grid.begin) == (len(borders) - 1, firsts, firsts[-1], ends[-1])
        for batch in range(base, len(borders) - 1):
            assert (grid.first_row(batch), grid.end_row(batch)) == (borders[batch], borders[batch + 1])
            assert grid.is_last(batch) == (batch + 1 in firsts)
        for position in range(borders[base], borders[-1] + 1):
            assert grid.batch_from(position) == next(at for at, border in enumerate(borders) if border >= position)
        assert (grid.first_row(10**6), grid.end_row(10**6)) == (borders[-1], UNKNOWN)


def test_an_epoch_ends_where_a_batch_does() -> None:
    grid = CutGrid(1)
    grid.cut(3)
    with pytest.raises(AssertionError, match="ends at 5, and the last batch at 3"):
        grid.close(5)

"""How many rows a user's sink is given at once, by calls of which each takes what a model says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.engine.runtime.part_sizes import FIRST_ROWS, PART_SECONDS, PartSizes

BATCH = 65_536


def calls(seconds: Callable[[int], float], batches: int) -> list[list[int]]:
    """The parts of each batch."""
    sizes, found = PartSizes(), []
    for _ in range(batches):
        left, parts = BATCH, list[int]()
        while left:
            rows = min(left, sizes.rows)
            sizes.took(rows, seconds(rows))
            parts.append(rows)
            left -= rows
        found.append(parts)
    return found


@pytest.mark.parametrize("row", [2e-6, 1e-5, 1e-4, 1e-3, 0.05])
@pytest.mark.parametrize("price", [0.0, 0.002, 0.3])
def test_rows_of_a_part_take_about_a_tenth_of_a_second_beside_the_price_of_the_call(row: float, price: float) -> None:
    parts = [rows for parts in calls(lambda rows: price + rows * row, 4) for rows in parts]
    settled = parts[len(parts) // 2 :]
    assert max(settled) * row <= 2 * PART_SECONDS
    assert max(settled) * row >= min(PART_SECONDS, BATCH * row) / 2


def test_no_part_takes_much_longer_from_the_beginning() -> None:
    parts = [rows for parts in calls(lambda rows: rows * 1e-4, 2) for rows in parts]
    assert parts[0] == FIRST_ROWS
    assert max(parts) * 1e-4 <= 2 * PART_SECONDS


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.2, 3.0])
def test_a_sink_that_takes_the_same_for_any_number_of_rows_is_given_whole_batches(seconds: float) -> None:
    parts = calls(lambda rows: seconds, 100)
    assert len(parts[0]) <= 8
    assert sum(map(len, parts[1:])) <= 110


def test_a_first_call_that_connects_and_one_that_stands_still_are_soon_forgotten() -> None:
    taken: list[int] = []

    def seconds(rows: int) -> float:
        taken.append(rows)
        return rows * 1e-5 + (5.0 if len(taken) in (1, 40) else 0.0)

    parts = calls(seconds, 60)
    assert len(parts[0]) < 40
    assert max(map(len, parts[-10:])) <= 10


def test_a_call_that_takes_long_for_one_row_is_given_one() -> None:
    assert calls(lambda rows: rows * 1.0, 1)[0][-1] == 1


def test_batch_without_rows_says_nothing_of_how_long_rows_take() -> None:
    sizes, others = PartSizes(), PartSizes()
    for rows in (1_000, 0, 1_000, 0):
        sizes.took(rows, 0.2)
        if rows:
            others.took(rows, 0.2)
        assert sizes.rows == others.rows

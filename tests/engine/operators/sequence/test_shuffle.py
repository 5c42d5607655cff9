"""Shuffle: a permutation of every block, the same one whatever the batches, restores and barriers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.errors import FlowError
from penstock.engine.kernels.counter_random import permutation, words
from penstock.engine.operators import Shuffle
from penstock.engine.state.memory import TaskMemory
from support.operator_harness import LANES, SIZES, Units, run
from support.operator_windows import windows_of

SCHEMA = pa.schema([("p", pa.int64()), ("text", pa.string())])


def numbered(lengths: dict[tuple[int, int], int]) -> Units:
    """Rows that carry their position in the stream."""
    units, first = {}, 0
    for unit in sorted(lengths):
        values = range(first, first + lengths[unit])
        units[unit] = pa.table([list(values), [f"row {value}" for value in values]], schema=SCHEMA)
        first += lengths[unit]
    return units


def expected(rows: int, config: Shuffle) -> list[int]:
    """Written down from the definition: block by block."""
    found: list[int] = []
    for block, start in enumerate(range(0, rows, config.window)):
        count = min(config.window, rows - start)
        drawn = words(config.seed, config.epoch, 1, block, count).tolist()
        found += [start + row for row in sorted(range(count), key=lambda row, drawn=drawn: (drawn[row], row))]
    return found


@settings(max_examples=40, deadline=None)
@given(
    window=st.integers(1, 40),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 2),
    size=st.sampled_from(SIZES),
    lengths=st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, LANES - 1)), st.integers(0, 30), max_size=10),
    restore=st.booleans(),
    output_rows=st.sampled_from((3, 1024)),
)
def test_every_block_is_permuted_by_its_number_whatever_the_batches_and_restores(
    window: int,
    seed: int,
    epoch: int,
    size: int,
    lengths: dict[tuple[int, int], int],
    restore: bool,
    output_rows: int,
) -> None:
    config = Shuffle(window, seed, epoch)
    memory = TaskMemory()
    outcome = run(
        config,
        numbered(lengths),
        schemas=[SCHEMA],
        size=size,
        restore=restore,
        output_rows=output_rows,
        memory=memory,
    )
    found = outcome.table.column("p").to_pylist()
    assert found == expected(sum(lengths.values()), config)
    assert outcome.table.column("text").to_pylist() == [f"row {value}" for value in found]


@pytest.mark.parametrize("size", SIZES)
def test_a_block_leaves_with_the_round_and_lane_of_its_last_row(size: int) -> None:
    units = run(Shuffle(4), numbered({(0, 0): 3, (0, 2): 2, (1, 1): 3, (2, 0): 1}), size=size).units
    final = max(units)
    assert {unit: sorted(row[0] for row in rows) for unit, rows in units.items()} == {
        (0, 2): [0, 1, 2, 3], (1, 1): [4, 5, 6, 7], final: [8],
    }  # fmt: skip


def test_seeds_epochs_and_blocks_have_orders_of_their_own() -> None:
    orders = [
        tuple(permutation(seed, epoch, block, 100)) for seed in range(3) for epoch in range(3) for block in range(3)
    ]
    assert len(set(orders)) == len(orders)
    assert all(sorted(order) == list(range(100)) for order in orders)


def test_the_order_of_a_seed_stays_for_ever() -> None:
    """Checkpoints and whoever compares two runs rely on it."""
    assert permutation(1, 2, 3, 8).tolist() == [4, 3, 6, 7, 1, 2, 5, 0]


def test_every_row_is_equally_likely_at_every_place() -> None:
    """Chi-squared over 8 × 8 cells; 49 degrees of freedom: below 102 in all but one of a hundred thousand seeds."""
    count = Counter(
        (row, place) for block in range(2000) for place, row in enumerate(permutation(5, 0, block, 8).tolist())
    )
    mean = 2000 / 8
    assert sum((count[row, place] - mean) ** 2 / mean for row in range(8) for place in range(8)) < 102


def test_a_barrier_ends_the_open_block_and_what_follows_begins_anew() -> None:
    windows = [numbered({(0, 0): 10})[0, 0]] * 2
    first, second, end = windows_of(Shuffle(4, 1), windows, 3)
    assert first == second
    assert [row[0] for row in first] == expected(10, Shuffle(4, 1))
    assert end == []


def test_the_open_block_is_accounted_for() -> None:
    memory = TaskMemory()
    run(Shuffle(1000), numbered({(0, 0): 900}), size=100, memory=memory)
    held = numbered({(0, 0): 900})[0, 0].nbytes
    assert held <= memory.statistics().peak < 2 * held


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Shuffle(0), "a window of 0 rows"),
        (Shuffle(2**31), "a window of"),
        (Shuffle(5, -1), "seed -1"),
        (Shuffle(5, 2**63), "seed"),
        (replace(Shuffle(5), epoch=-2), "epoch -2"),
    ],
)
def test_shuffle_refuses_impossible_numbers(config: Shuffle, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        config.output_schema([SCHEMA])


def test_words_do_not_depend_on_how_many_are_drawn() -> None:
    assert np.array_equal(words(1, 0, 1, 7, 5), words(1, 0, 1, 7, 500)[:5])

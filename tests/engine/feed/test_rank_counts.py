"""The least of a number of each rank."""

from __future__ import annotations

import random

from penstock.engine.feed.rank_counts import RankCounts


def test_the_least_is_that_of_all_ranks_however_they_grow() -> None:
    for seed in range(100):
        draw = random.Random(seed)
        ranks, start = draw.randint(1, 6), draw.randint(0, 3)
        counts, expected = RankCounts(ranks, start), [start] * ranks
        for _ in range(100):
            rank, to = draw.randrange(ranks), draw.randint(0, 20)
            counts.grow(rank, to)
            expected[rank] = max(expected[rank], to)
            assert (counts.each, counts.least) == (expected, min(expected)), seed


def test_no_ranks_have_zero() -> None:
    assert RankCounts(0, 0).least == 0

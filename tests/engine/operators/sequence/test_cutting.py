"""Batches by cost: a function of the costs alone, within the budget, with every row once, and full."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.operators.sequence.cutting import Costs, Cutter, CuttingRules
from support.sweeps import seeds


def batches_of(rules: CuttingRules, costs: Costs, buckets: Costs, sizes: list[int], again: bool = False) -> list[list]:
    """The numbers of the rows of each batch, of rows that come in pieces of these sizes. ``again``: what is held goes
    into another cutter between two pieces."""
    cutter, held, found = Cutter(rules), np.zeros(0, np.int64), []

    def taken(made: list) -> None:
        nonlocal held
        found.extend(held[rows].tolist() for rows in made)
        held = np.delete(held, np.concatenate([np.zeros(0, np.int64), *made]).astype(np.int64))

    at = 0
    while at < len(costs):
        count = sizes[at % len(sizes)]
        held = np.concatenate([held, np.arange(at, min(at + count, len(costs)))])
        taken(cutter.add(costs[at : at + count], buckets[at : at + count]))
        at += count
        assert len(held) == len(cutter.costs)
        if again:
            cutter = Cutter(rules, cutter.costs, cutter.buckets, cutter.carried, cutter.windows)
    taken(cutter.end())
    assert not len(held)
    return found


def random_case(seed: int) -> tuple[CuttingRules, Costs, Costs, np.random.Generator]:
    chance = np.random.default_rng(seed)
    count = int(chance.choice([1, 1, 3]))
    budgets = tuple(int(each) for each in chance.integers(4, 60, count))
    window = int(chance.choice([0, 1, 5, 17])) if count == 1 else 0
    rules = CuttingRules(budgets, bool(chance.integers(2)), window, int(chance.integers(3)))
    rows = int(chance.integers(0, 120))
    buckets = chance.integers(0, count, rows)
    costs = np.minimum(chance.integers(0, 30, rows), np.array(budgets)[buckets])
    return rules, costs, buckets, chance


@pytest.mark.parametrize("seed", seeds(60, of=600))
def test_batches_are_a_function_of_the_costs_whatever_pieces_rows_come_in(seed: int) -> None:
    rules, costs, buckets, chance = random_case(seed)
    whole = batches_of(rules, costs, buckets, [len(costs) + 1])
    assert sorted(row for batch in whole for row in batch) == list(range(len(costs)))
    for again in (False, True):
        sizes = [int(each) for each in chance.integers(1, 12, 5)]
        assert batches_of(rules, costs, buckets, sizes, again) == whole
    for batch in whole:
        own, (bucket,) = np.maximum(costs[batch], 1), set(buckets[batch].tolist())
        assert (own.max() * len(own) if rules.padded else own.sum()) <= rules.budgets[bucket]
        assert batch == sorted(batch)


@pytest.mark.parametrize("seed", seeds(20, of=200))
def test_in_order_a_batch_ends_only_where_the_next_row_does_not_fit(seed: int) -> None:
    rules, costs, buckets, _ = random_case(seed)
    rules = replace(rules, window=0)
    for bucket, budget in enumerate(rules.budgets):
        mine = [each for each in batches_of(rules, costs, buckets, [7]) if buckets[each[0]] == bucket]
        assert [row for batch in mine for row in batch] == np.flatnonzero(buckets == bucket).tolist()
        for batch, behind in itertools.pairwise(mine):
            more = np.maximum(costs[[*batch, behind[0]]], 1)
            assert (more.max() * len(more) if rules.padded else more.sum()) > budget


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 30), st.lists(st.integers(1, 9), max_size=120), st.booleans())
def test_no_row_waits_for_more_than_two_windows(window: int, costs: list[int], padded: bool) -> None:
    rules = CuttingRules((40,), padded, window)
    left = batches_of(rules, np.array(costs, np.int64), np.zeros(len(costs), np.int64), [1])
    # a window that is no batch stays whole, and so does the next one, until there are two batches of them
    held = 2 * window + 2 * 40
    at = 0
    for batch in left:
        assert all(row < at + len(batch) + held for row in batch)
        at += len(batch)


def lognormal(rows: int, seed: int = 0) -> Costs:
    drawn = np.random.default_rng(seed).lognormal(5.5, 1.1, rows)
    return np.clip(drawn, 8, 4096).astype(np.int64)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("seed", seeds(1, of=6))
def test_a_window_fills_at_least_97_percent_of_a_log_normal_corpus(padded: bool, seed: int) -> None:
    costs = lognormal(40_000, seed)
    by_32 = [costs[at : at + 32] for at in range(0, len(costs), 32)]
    assert sum(each.sum() for each in by_32) / sum(each.max() * len(each) for each in by_32) < 0.35
    rules = CuttingRules((16_384 if padded else 8192,), padded, 8192)
    batches = batches_of(rules, costs, np.zeros(len(costs), np.int64), [8192])
    used = sum(costs[each].max() * len(each) for each in batches) if padded else rules.budgets[0] * len(batches)
    assert costs.sum() / used >= 0.97, costs.sum() / used


def test_buckets_leave_nothing_out_at_the_end() -> None:
    cutter = Cutter(CuttingRules((3, 2)))
    one, buckets = np.ones(6, np.int64), np.array([0, 1, 0, 1, 0, 1])
    assert [each.tolist() for each in cutter.add(one, buckets)] == [[1, 3], [0, 2, 4]]
    assert [each.tolist() for each in cutter.end()] == [[0]]


def test_what_a_cutter_draws_begins_anew_with_each_epoch() -> None:
    rules, costs = CuttingRules((10,), window=20), np.random.default_rng(1).integers(1, 9, 90)
    none = np.zeros(90, np.int64)
    cutter, found = Cutter(rules), []
    for epoch in (0, 0, 1):
        found.append([each.tolist() for each in [*cutter.add(costs, none, epoch), *cutter.end(epoch)]])
    assert found[0] == found[1] != found[2]

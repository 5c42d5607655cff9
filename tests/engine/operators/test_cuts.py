"""Contract: a cut may stand after every element and after every piece, and nothing of what comes out depends on it.

Each case is run without a cut, and with cuts: at every place of one run, at some that a seed draws, and, as a sweep, at
each place by itself. All attempts together give the same rows in the same order, in the same rounds and lanes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.core.operator import Memory, Unlimited
from penstock.engine.core.traits import traits_of
from penstock.engine.operators.join import merge_join, merge_sides
from penstock.engine.operators.sequence.regroup import Regroup
from penstock.engine.plan.partitioning import wire_schema
from support import operator_cases
from support.cut_operators import CutRun, Row, events_of
from support.operator_cases import ports_of, schemas_of
from support.operator_harness import LANES, context
from support.spilling import budget
from support.sweeps import seeds, swept

PIECE = 3
"""Rows of a piece: whatever is emitted comes in several."""

EXCHANGED = {"regroup behind an exchange": Regroup(), "regroup in any order": Regroup(ordered=False)}
"""They take rows of several producers, with the parts of rows."""
CASES = {**operator_cases.CASES, **EXCHANGED}
ANY_ORDER = {"stream aggregate, in any order", "regroup in any order"}


def parted(rows: pa.Table) -> pa.Table:
    """The rows with a part each, as a partitioned exchange gives them."""
    parts = pa.array(np.arange(rows.num_rows) % LANES, pa.uint16())
    return pa.table([*rows.columns, parts], schema=wire_schema(rows.schema))


def run_of(name: str, seed: int, memory: Memory | None = None) -> CutRun:
    """Equal for equal seeds."""
    chance, ports = random.Random(seed), ports_of(name)
    if name in EXCHANGED:
        ports = [{at: parted(rows) for at, rows in ports[0].items()}]
    streams = [events_of(port, chance, with_final=bool(seed & 1), exchanged=name in EXCHANGED) for port in ports]
    where = replace(context(), output_rows=PIECE, memory=memory or Unlimited())
    return CutRun(CASES[name], where, schemas_of(ports), streams, chance, windows=bool(seed & 2))


def check(name: str, found: list[Row], expected: list[Row]) -> None:
    if name in ANY_ORDER:
        assert Counter(map(repr, found)) == Counter(map(repr, expected))
    else:
        assert found == expected


SPILLING = ["regroup", *EXCHANGED, "sort", "full shuffle", "aggregate", "partial count", "mix"]


def never() -> bool:
    return False


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", seeds(4, of=40))
def test_an_operator_that_is_cut_everywhere_gives_what_it_gives_uncut(name: str, seed: int) -> None:
    expected = run_of(name, seed).rows(never)
    check(name, run_of(name, seed).rows(lambda: True), expected)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", seeds(4, of=200))
def test_an_operator_that_is_cut_now_and_then_gives_what_it_gives_uncut(name: str, seed: int) -> None:
    expected, chance = run_of(name, seed).rows(never), random.Random(seed)
    often: Callable[[], bool] = lambda: chance.random() < 0.3  # noqa: E731
    check(name, run_of(name, seed).rows(often, often), expected)


@pytest.mark.parametrize("name", [*SPILLING, swept("hash full where")])
@pytest.mark.parametrize("seed", seeds(2, of=40))
def test_an_operator_that_spills_and_is_cut_gives_what_it_gives_uncut(name: str, seed: int) -> None:
    expected = run_of(name, seed).rows(never)
    with budget(0) as task:
        check(name, run_of(name, seed, task.account("operator-1")).rows(lambda: True), expected)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("merge")])
@pytest.mark.parametrize("seed", seeds(2, of=40))
def test_a_merge_join_that_is_cut_between_steps_gives_what_it_gives_uncut(
    monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    expected = run_of(name, seed).rows(never)
    monkeypatch.setattr(merge_sides, "STEP_ROWS", 2)
    monkeypatch.setattr(merge_join, "HELD_ROWS", 4)
    check(name, run_of(name, seed).rows(never), expected)
    check(name, run_of(name, seed).rows(lambda: True), expected)


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(4))
def test_an_operator_that_is_cut_once_gives_what_it_gives_uncut(name: str, seed: int) -> None:
    places = 0

    def count() -> bool:
        nonlocal places
        places += 1
        return False

    expected = run_of(name, seed).rows(count)
    for place in range(places):
        at = iter(range(places * 2))
        check(name, run_of(name, seed).rows(lambda: next(at) == place), expected)  # noqa: B023


_GIVING = "shuffle", "window", "batches", "pack", "mix", "stream aggregate"
GIVING = [name for name in CASES if name.startswith(_GIVING)]


@pytest.mark.parametrize("name", GIVING)
def test_a_cut_takes_no_piece_of_what_an_operator_gives_at_an_end(name: str) -> None:
    """Of a batch neither, but of those whose batch lets go of no more than is held of a few."""
    after_a_batch = name.startswith(("mix", "stream aggregate"))
    stood = 0
    for seed in range(4):
        run = run_of(name, seed)
        while run.advance():
            if not run.is_giving or (after_a_batch and run.is_giving == "process"):
                continue
            before = len(run.out.batches)
            run.cut()
            stood += 1
            assert len(run.out.batches) == before, f"the cut of {run.is_giving} took pieces first"
    assert stood, "it gives pieces at an end"


def test_a_call_is_cut_behind_what_it_emits_unless_its_operator_says_otherwise() -> None:
    assert traits_of(CASES["above untold"]).cut == {}
    assert traits_of(CASES["map batches"]).cut == {}, "a function may give something else when it is called again"

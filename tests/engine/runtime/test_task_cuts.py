"""Tasks that are cut as a whole, at any moment, go on as if nothing had happened: rows and their order are those of a
run without a cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from penstock.engine.scheduler.pool import PoolScheduler
from support.cut_runs import CutRuns
from support.cut_runs_threaded import THREADS, ThreadedCutRuns
from support.engine_simulation_flows import Disk
from support.engine_simulation_shapes import SHAPES, plan_of
from support.sweeps import swept


def by_lane(disk: Disk) -> dict:
    """The rows of each sink, in the order in which they were written: in all, or by lane."""
    sinks = {operator for _, operator, _ in disk.visible.values()}
    found: dict = {}
    for sink in sorted(sinks):
        for lane, row in disk.written(sink):
            found.setdefault((sink, lane), []).append(row)
    return found


def run(
    shape: int,
    parallelism: int,
    seed: int,
    *,
    crashes: float,
    cuts: float,
    credit: int = 1,
    budget: int | None = None,
    runs: Callable[..., CutRuns] = CutRuns,
):
    disk = Disk()
    plan = replace(plan_of(shape, parallelism, disk), memory_budget=budget)
    made = runs(plan, seed, disk_commit(disk), crashes=crashes, cuts=cuts, credit=credit)
    return made.run(), by_lane(disk)


def disk_commit(disk: Disk):
    def commit(permit):
        for committable in permit.committables:
            disk.visible[committable.payload["place"]] = disk.prepared[committable.payload["place"]]

    return commit


def check(shape: int, parallelism: int, seeds: range) -> None:
    _, expected = run(shape, parallelism, 0, crashes=0, cuts=0)
    for seed in seeds:
        _, found = run(shape, parallelism, seed, crashes=0.004, cuts=0.02, credit=1 if seed % 2 else 200)
        assert found == expected, f"seed {seed}"


SPILLING = 2000
FEW = frozenset(range(0, len(SHAPES), 4))


@pytest.mark.parametrize("shape", [shape if shape in FEW else swept(shape) for shape in range(len(SHAPES))])
def test_cuts_change_no_row(shape):
    check(shape, 2, range(shape, shape + 1))


@pytest.mark.sweep
@pytest.mark.parametrize("shape", range(len(SHAPES)))
@pytest.mark.parametrize("parallelism", [1, 3])
def test_cuts_change_no_row_whatever_the_seed(shape, parallelism):
    check(shape, parallelism, range(4))


@pytest.fixture
def pool() -> Iterator[PoolScheduler]:
    with PoolScheduler(THREADS) as found:
        yield found


@pytest.mark.parametrize("shape", [0, *map(swept, range(1, len(SHAPES)))])
def test_cuts_change_no_row_with_several_threads(shape: int, pool: PoolScheduler) -> None:
    """Also where operators spill whatever they hold."""
    _, expected = run(shape, 2, 0, crashes=0, cuts=0)
    for seed, budget in enumerate((None, SPILLING)):
        made = partial(ThreadedCutRuns, pool=pool)
        _, found = run(shape, 2, seed, crashes=0.003, cuts=0.02, credit=200, budget=budget, runs=made)
        assert found == expected

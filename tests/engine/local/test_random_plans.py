"""Random flows over random windows: the same rows in the same order wherever they run, and those that SQL has.

Each flow runs serially with one subtask, which is compared with DuckDB where the flow is in SQL; then with other
numbers of threads and subtasks, its windows queued ahead or one by one, the last one closed by a barrier or by the end;
and now and then as a job in this process that is fed the same. ``make simulate`` runs 10,000 of them.
"""

from __future__ import annotations

import random

import pytest

from support.random_plans import REFUSED, RandomPlan, Rows, by_duckdb, draw_plan, in_a_job, in_a_plan
from support.sweeps import seeds

HUNDRED = 100


def in_any_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: tuple((value is None, value or 0) for value in row))


def same(found: list[Rows], wanted: list[Rows], plan: RandomPlan) -> bool:
    """Rows are the same wherever they come; input out of order need not be read to where it is."""
    return found == wanted or (plan.may_read_less() and [REFUSED] in (found, wanted))


def check(plan: RandomPlan, draw: random.Random, runs: int) -> None:
    """Run it here and there."""
    found = {end: in_a_plan(plan, 0, 1, ahead=False, open_end=end) for end in (False, True)}
    *windows, rest = found[False]
    known = by_duckdb(plan)
    if REFUSED in (rest, found[True][-1]):
        assert same(found[True], found[False], plan)
    else:
        assert windows[:-1] == found[True][:-1], "the last barrier changes no window before it"
    if known is not None and rest != REFUSED:
        assert [in_any_order(each) for each in windows] == [in_any_order(each) for each in known], "DuckDB has others"
        assert not rest, "what SQL makes of a window is not held"
    for _ in range(runs):
        options = {"ahead": draw.random() < 0.5, "open_end": draw.random() < 0.5}
        degree, parallelism = draw.randrange(3), draw.randrange(1, 4)
        again = in_a_plan(plan, degree, parallelism, **options)
        assert same(again, found[options["open_end"]], plan), f"degree {degree}, parallelism {parallelism}, {options}"
    if plan.seed % 20 == 0:
        parallelism, threads = draw.randrange(1, 4), draw.randrange(3)
        rows = [row for window in found[False] for row in window]
        wanted = REFUSED if rest == REFUSED else rows
        again = in_a_job(plan, parallelism, threads)
        assert same([again], [wanted], plan), f"a job, parallelism {parallelism}, {threads} threads"


@pytest.mark.parametrize("hundred", seeds(1, of=100))
def test_flow_gives_the_same_rows_in_the_same_order_wherever_it_runs(hundred: int) -> None:
    for seed in range(hundred * HUNDRED, (hundred + 1) * HUNDRED):
        plan = draw_plan(seed)
        try:
            check(plan, random.Random(seed), runs=2)
        except BaseException as error:
            error.add_note(plan.told())
            raise

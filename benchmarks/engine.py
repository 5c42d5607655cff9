"""The operators and four pipelines against bare pyarrow, and what a batch costs besides its rows.

Run it as ``python benchmarks/engine.py``; the result goes to ``benchmarks/results/engine.json``. ``--small`` runs
everything once over few rows, to see that it works; ``--only TEXT`` runs what has the text in its name. Two kinds of
rows:

1. *Throughput*, in million rows per second, at 16 Ki and 64 Ki rows per batch (``engine_work`` says what is compared).
   Aims: 0.9 of the bare loop for what works batch by batch, 1.0 for what keeps state.
2. *Overhead*, in microseconds: an operator is given batches of one row; the aim is 100 µs a batch. For operators that
   hold their rows the figure contains their whole work.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from engine_pipelines import pipeline_cases
from engine_work import (
    Case,
    Work,
    grouping_cases,
    joining_cases,
    ordering_cases,
    overhead_cases,
    stateless_cases,
)

from harness import Row, compare, report

SIZES = (16 * 1024, 64 * 1024)
ROWS = 2_000_000
SMALL_ROWS = 8_000
CALLS = 2_000
AIM_MICROSECONDS = 100.0
RESULT = Path(__file__).parent / "results" / "engine.json"


def rate(case: Case, work: Work) -> Callable[[], float]:
    """Million rows per second."""

    def run() -> float:
        started = time.perf_counter()
        work()
        return case.rows / (time.perf_counter() - started) / 1e6

    return run


def throughput_row(case: Case, size: int, rounds: int) -> Row:
    return compare(
        f"{case.name}, batches of {size // 1024} Ki",
        case.peer,
        rate(case, case.ours),
        rate(case, case.theirs),
        unit="M rows/s",
        aim=case.aim,
        rounds=rounds,
        higher_is_better=True,
    )


def overhead_row(name: str, work: Work, calls: int, rounds: int) -> Row:
    def microseconds() -> float:
        started = time.perf_counter()
        work()
        return (time.perf_counter() - started) / calls * 1e6

    return compare(f"a batch, {name}", "the aim", microseconds, lambda: AIM_MICROSECONDS, unit="µs", rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description="The engine against bare pyarrow.")
    parser.add_argument("--small", action="store_true", help="few rows, one round: does it run at all")
    parser.add_argument("--batch", type=int, choices=SIZES, help="rows of a batch; both sizes by default")
    parser.add_argument("--only", default="", help="only what has this text in its name")
    parser.add_argument("--output", type=Path, default=RESULT, help="where the result goes")
    given = parser.parse_args()
    count, rounds = (SMALL_ROWS, 1) if given.small else (ROWS, 5)
    rows: list[Row] = []
    makers = (stateless_cases, grouping_cases, joining_cases, ordering_cases, pipeline_cases)
    for size in SIZES if given.batch is None else [given.batch]:
        for make in makers:
            cases = [case for case in make(count, size) if given.only in case.name]
            rows += [throughput_row(case, size, rounds) for case in cases]
    calls = 100 if given.small else CALLS
    overheads = [each for each in overhead_cases(calls) if given.only in f"a batch, {each[0]}"]
    rows += [overhead_row(name, work, calls, rounds) for name, work in overheads]
    report(rows, given.output)


if __name__ == "__main__":
    main()

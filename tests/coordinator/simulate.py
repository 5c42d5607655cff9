"""Run simulated clusters for many seeds, on all cores: ``python tests/coordinator/simulate.py --seeds 5000``.

A seed that fails is printed with what everybody waited for; ``--first N --seeds 1`` runs it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

PORTION = 50
"""Seeds that a process runs before it asks for more."""


def run(seeds: range) -> tuple[int, list[tuple[int, str]]]:
    """The steps that the seeds took, and those that failed with what was said."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from support.simulated_runs import simulate

    steps, failed = 0, []
    for seed in seeds:
        try:
            steps += simulate(seed).steps
        except Exception as error:  # also those of other kinds: they show in the model, or in the core
            failed.append((seed, f"{type(error).__name__}: {error}"))
    return steps, failed


def portions(first: int, seeds: int) -> Iterator[range]:
    end = first + seeds
    return (range(start, min(start + PORTION, end)) for start in range(first, end, PORTION))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    began = time.monotonic()
    with ProcessPoolExecutor(arguments.processes) as pool:
        results = list(pool.map(run, portions(arguments.first, arguments.seeds)))
    failed = [each for _, found in results for each in found]
    for seed, said in failed[:3]:
        print(f"seed {seed}: {said}")
    seconds, steps = time.monotonic() - began, sum(taken for taken, _ in results)
    names = [seed for seed, _ in failed] or "none"
    print(f"{arguments.seeds} seeds, {steps} steps, {seconds:.1f} s; failed: {names}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

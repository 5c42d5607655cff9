"""Run the real engine in simulated jobs for many seeds: ``python tests/scenarios/simulate_engine.py --seeds 5000``.

A seed that fails is printed with what everybody waited for; ``--first N --seeds 1`` runs it again.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    from support.engine_simulation_runs import simulate

    failed, steps, began = [], 0, time.monotonic()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            steps += simulate(seed).steps
        except AssertionError as error:
            failed.append(seed)
            if len(failed) <= 3:
                print(error)
    seconds = time.monotonic() - began
    print(f"{arguments.seeds} seeds, {steps} steps, {seconds:.1f} s; failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    sys.exit(main())

"""Let seeded accidents happen to the ranks of feeds: ``python tests/scenarios/ranks.py --seeds 50``.

Prints one line per seed and a table by kind; ``--write FILE`` puts the table between the marks of a document.
``--first N --seeds 1`` runs a seed again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent.parent


def run_all(seeds: range) -> tuple[Counter[str], Counter[str]]:
    """By kind: the runs, and those in which something was wrong."""
    from scenarios.chaos import one_node

    from support.rank_disasters import kind_of, undergo, undisturbed

    runs, wrong = Counter[str](), Counter[str]()
    batches = undisturbed()
    with one_node(), tempfile.TemporaryDirectory(prefix="penstock-ranks-") as folder:
        for seed in seeds:
            try:
                problems = undergo(seed, Path(folder) / str(seed), batches)
            except Exception as error:
                problems = [f"{type(error).__name__}: {error}"]
            runs[kind_of(seed)] += 1
            wrong[kind_of(seed)] += bool(problems)
            print(f"{seed:>5} {kind_of(seed):<40} {'WRONG ' + '; '.join(problems) if problems else 'ok'}", flush=True)
    return runs, wrong


def main() -> int:
    """Exit code 1 if a rank got anything but the right batches."""
    from support.reports import markdown, put_between_marks

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    runs, wrong = run_all(range(options.first, options.first + options.seeds))
    rows = [[kind, count, count - wrong[kind]] for kind, count in runs.items()]
    told = f"{runs.total() - wrong.total()} of {runs.total()}: every rank got its part of the right batches."
    text = f"{told}\n\n{markdown(['accident', 'runs', 'batches right'], rows)}"
    print(text)
    if options.write is not None:
        put_between_marks(options.write, "ranks", text)
    return 1 if wrong.total() else 0


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    from conftest import ENVIRONMENT

    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    sys.exit(main())

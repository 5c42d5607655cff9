"""Let seeded accidents happen to scripts that hand Spark frames over: ``python tests/scenarios/sparks.py --seeds 20``.

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
    from support.spark_accidents import TOGETHER, kind_of, undergo, undergo_together

    runs, wrong = Counter[str](), Counter[str]()

    def tell(seed: int, problems: list[str]) -> None:
        runs[kind_of(seed)] += 1
        wrong[kind_of(seed)] += bool(problems)
        print(f"{seed:>5} {kind_of(seed):<40} {'WRONG ' + '; '.join(problems) if problems else 'ok'}", flush=True)

    together = [seed for seed in seeds if kind_of(seed) in TOGETHER]
    with tempfile.TemporaryDirectory(prefix="penstock-sparks-") as folder:
        for seed in (each for each in seeds if each not in together):
            try:
                tell(seed, undergo(seed, Path(folder) / str(seed)))
            except (AssertionError, OSError) as error:
                tell(seed, [f"{type(error).__name__}: {error}"])
        for seed, problems in undergo_together(together, Path(folder) / "together").items() if together else ():
            tell(seed, problems)
    return runs, wrong


def main() -> int:
    """Exit code 1 if rows were lost or doubled, or an error did not say how to go on."""
    from support.reports import markdown, put_between_marks

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    runs, wrong = run_all(range(options.first, options.first + options.seeds))
    rows = [[kind, count, count - wrong[kind]] for kind, count in runs.items()]
    told = f"{runs.total() - wrong.total()} of {runs.total()}: the rows of the frame, each once."
    text = f"{told}\n\n{markdown(['accident', 'runs', 'rows right'], rows)}"
    print(text)
    if options.write is not None:
        put_between_marks(options.write, "sparks", text)
    return 1 if wrong.total() else 0


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    from conftest import ENVIRONMENT

    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    sys.exit(main())

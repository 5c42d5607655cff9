"""Let seeded accidents happen to the ranks of feeds: ``python tests/scenarios/ranks.py --seeds 50``.

Prints one line per seed and a table by kind; ``--write FILE`` puts the table between the marks of a document.
``--first N --seeds 1`` runs a seed again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.seeded import Tally

TESTS = Path(__file__).parent.parent


def run_all(seeds: range) -> Tally:
    """Let them happen, one after the other, on one cluster."""
    from scenarios.chaos import one_node

    from support.rank_disasters import kind_of, undergo, undisturbed
    from support.seeded import Tally

    tally = Tally(kind_of)
    batches = undisturbed()
    with one_node(), tempfile.TemporaryDirectory(prefix="penstock-ranks-") as folder:
        for seed in seeds:
            try:
                problems = undergo(seed, Path(folder) / str(seed), batches)
            except Exception as error:
                problems = [f"{type(error).__name__}: {error}"]
            tally.tell(seed, problems)
    return tally


def main() -> int:
    """Exit code 1 if a rank got anything but the right batches."""
    from support.seeded import run_script

    right = "every rank got its part of the right batches"
    return run_script(__doc__ or "", 50, run_all, "ranks", right, "batches right")


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    from support.seeded import prepare_processes

    prepare_processes()
    sys.exit(main())

"""Let seeded accidents happen to scripts that hand Spark frames over: ``python tests/scenarios/sparks.py --seeds 20``.

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
    """Let them happen; those that need only an executor share a session, and come last."""
    from support.seeded import Tally
    from support.spark_accidents import TOGETHER, kind_of, undergo, undergo_together

    tally = Tally(kind_of)
    together = [seed for seed in seeds if kind_of(seed) in TOGETHER]
    with tempfile.TemporaryDirectory(prefix="penstock-sparks-") as folder:
        for seed in (each for each in seeds if each not in together):
            try:
                tally.tell(seed, undergo(seed, Path(folder) / str(seed)))
            except (AssertionError, OSError) as error:
                tally.tell(seed, [f"{type(error).__name__}: {error}"])
        for seed, problems in undergo_together(together, Path(folder) / "together").items() if together else ():
            tally.tell(seed, problems)
    return tally


def main() -> int:
    """Exit code 1 if rows were lost or doubled, or an error did not say how to go on."""
    from support.seeded import run_script

    return run_script(__doc__ or "", 20, run_all, "sparks", "the rows of the frame, each once", "rows right")


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    from support.seeded import prepare_processes

    prepare_processes()
    sys.exit(main())

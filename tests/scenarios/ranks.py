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
    from support.nodes import Nodes
    from support.seeded import Tally

TESTS = Path(__file__).parent.parent


def run_all(seeds: range) -> Tally:
    """Let them happen, one after the other: first those on a cluster of one node, then those that kill a node."""
    from scenarios.chaos import one_node

    from support.nodes import three_nodes
    from support.rank_disasters import NODE_KILLED, kind_of, undisturbed
    from support.seeded import Tally

    tally, batches = Tally(kind_of), undisturbed()
    on_nodes = [seed for seed in seeds if kind_of(seed) == NODE_KILLED]
    with tempfile.TemporaryDirectory(prefix="penstock-ranks-") as folder:
        if on_one := [seed for seed in seeds if seed not in on_nodes]:
            with one_node():
                run_some(on_one, Path(folder), batches, tally)
        if on_nodes:
            with three_nodes() as nodes:
                run_some(on_nodes, Path(folder), batches, tally, nodes)
    return tally


def run_some(
    seeds: list[int], folder: Path, batches: list[list[int]], tally: Tally, nodes: Nodes | None = None
) -> None:
    """On the cluster that is there."""
    from support.rank_disasters import undergo

    for seed in seeds:
        try:
            problems = undergo(seed, folder / str(seed), batches, nodes)
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
        tally.tell(seed, problems)


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

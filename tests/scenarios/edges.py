"""Let seeded disasters happen at the edges of jobs: ``python tests/scenarios/edges.py --seeds 150``.

Prints one line per seed and a table by kind; ``--write FILE`` puts the table between the marks of a document.
``--first N --seeds 1`` runs a seed again. The jobs run in this process, without Ray.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parent.parent


def main() -> int:
    """Exit code 1 if a run that ended well has not left exactly its rows, an audit says more than is true of them, or
    an error was not one of ours."""
    sys.path.insert(0, str(TESTS))
    from support.edge_disasters import kind_of, undergo
    from support.reports import put_between_marks

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=150)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    wrong = 0
    for seed in range(options.first, options.first + options.seeds):
        count = counts[kind_of(seed)]
        count[0] += 1
        with tempfile.TemporaryDirectory(prefix="penstock-edges-") as folder:
            try:
                world = undergo(seed, Path(folder) / "world")
                problem, said = world.judge(), "; ".join(world.said)
            except Exception as error:
                problem, said = f"{type(error).__name__}: {error}", ""
        count[1] += "finished" in said
        count[2] += any(word in said for word in ("Error:", "taken over"))
        wrong += bool(problem)
        print(f"{seed:>5} {kind_of(seed):<24} {'WRONG ' + problem if problem else 'ok'}  ({said})", flush=True)
    text = table(counts, wrong)
    print(text)
    if options.write is not None:
        put_between_marks(options.write, "edges", text)
    return 1 if wrong else 0


def table(counts: dict[str, list[int]], wrong: int) -> str:
    """The outcomes by kind, as Markdown."""
    from support.reports import markdown

    total = sum(count[0] for count in counts.values())
    head = ["disaster", "runs", "some run finished, rows exact", "some run was refused"]
    rows = [[kind, *count] for kind, count in counts.items()]
    return f"{total - wrong} of {total}: no row lost or repeated without an error.\n\n{markdown(head, rows)}"


if __name__ == "__main__":
    sys.exit(main())

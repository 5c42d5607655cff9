"""Scripts that let seeded accidents happen: their options, a line per seed, and a table in a document.

``support`` must be found when this is imported (each script puts the folder of the tests into ``sys.path``).
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from .reports import markdown, put_between_marks

TESTS = Path(__file__).parent.parent


class Tally:
    """By kind: the runs, and those in which something was wrong."""

    def __init__(self, kind_of: Callable[[int], str]) -> None:
        self._kind_of = kind_of
        self._runs, self._wrong = Counter[str](), Counter[str]()

    def tell(self, seed: int, problems: list[str]) -> None:
        """What came of a seed."""
        kind = self._kind_of(seed)
        self._runs[kind] += 1
        self._wrong[kind] += bool(problems)
        print(f"{seed:>5} {kind:<40} {'WRONG ' + '; '.join(problems) if problems else 'ok'}", flush=True)

    @property
    def wrong(self) -> int:
        """Runs in which something was wrong."""
        return self._wrong.total()

    def report(self, right: str, column: str) -> str:
        """The numbers. ``right``: what was right of so many runs; ``column``: its short form."""
        rows = [[kind, count, count - self._wrong[kind]] for kind, count in self._runs.items()]
        told = f"{self._runs.total() - self.wrong} of {self._runs.total()}: {right}."
        return f"{told}\n\n{markdown(['accident', 'runs', column], rows)}"


def run_script(
    description: str, seeds: int, run_all: Callable[[range], Tally], mark: str, right: str, column: str
) -> int:
    """Read the options, let the accidents happen, and print what came of them; ``mark``: those between which
    ``--write`` puts it. The exit code: 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    tally = run_all(range(options.first, options.first + options.seeds))
    text = tally.report(right, column)
    print(text)
    if options.write is not None:
        put_between_marks(options.write, mark, text)
    return 1 if tally.wrong else 0


def prepare_processes() -> None:
    """Set what Ray and Spark need on loopback, for this process and those that it starts; they find ``support``."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    from conftest import ENVIRONMENT

    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)

"""How long ``import penstock`` and ``penstock --help`` take, and that neither imports ray or pyspark."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from house_sides import SideError

from harness import Row, compare, sized

AIM_SECONDS = 0.4
HEAVY = ("ray", "raydp", "pyspark")
HELP = "import sys; sys.argv = ['penstock', '--help']; from penstock.jobs.cli import main; main()"
WORKS = {"import penstock": "import penstock", "penstock --help": HELP}


def imported(code: str) -> list[str]:
    """The modules of :data:`HEAVY` that are there after the code has run."""
    ask = f"import atexit, sys; atexit.register(lambda: print([m for m in {HEAVY!r} if m in sys.modules]))\n{code}"
    lines = run([sys.executable, "-c", ask]).splitlines()
    return [name for name in HEAVY if repr(name) in lines[-1]]


def run(command: Sequence[str]) -> str:
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise SideError(f"{' '.join(command)}: {made.stderr[-1000:]}")
    return made.stdout


def import_rows() -> Iterator[Row]:
    """Seconds of new processes, start of Python included, against the aim. Raises SideError if ray was imported."""
    command = Path(sys.executable).with_name("penstock")
    for name, code in WORKS.items():
        if found := imported(code):
            raise SideError(f"{name} imports {', '.join(found)}")
        line = [str(command), "--help"] if name.endswith("--help") else [sys.executable, "-c", code]

        def ours(line: Sequence[str] = line) -> float:
            started = time.perf_counter()
            run(line)
            return time.perf_counter() - started

        yield compare(name, "the aim of 0.4 s", ours, lambda: AIM_SECONDS, rounds=sized(5, 1))

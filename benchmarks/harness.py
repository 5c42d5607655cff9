"""Runs two sides of a comparison in turn and writes what came out as rows.

Every benchmark script uses it::

    rows = [compare("filter, 64 Ki rows", "duckdb", ours, theirs, unit="s", aim=1.0)]
    report(rows, "benchmarks/results/filter.json")

Rules:

1. The sides run in turn, A B A B …, so that a machine that grows slower hits both. Warm-up rounds are not counted.
2. A side is a callable. It is timed (unit ``s``), unless it returns a number: then that is its result, in ``unit``.
   Both sides must do the same; a mixture is refused.
3. ``ours`` and ``theirs`` are medians. ``ratio`` says how many times better we are: above 1 we win, whichever
   direction is better. ``spread`` is the wider side's (maximum - minimum) / median: a ratio within it means little.
   Of more than five rounds it is that of the five in the middle.
4. ``met`` is ``ratio >= aim``. A benchmark reports; it is the reader who judges a miss.
5. A comparison whose spread is above ``WIDE`` goes on, for ``MOST_ROUNDS`` rounds at most; if it stays there the row is
   *unclear*.

With ``PENSTOCK_BENCH=tiny`` in the environment every script runs once over little data, to see that it works; the
figures mean nothing then. ``PENSTOCK_BENCH_RESULTS`` names another folder for the results.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

Side = Callable[[], float | None]
Size = TypeVar("Size")

VERSIONS = ("penstock", "pyarrow", "numpy", "ray", "raydp", "pyspark", "duckdb")
"""The distributions whose versions stand above the results."""

WIDE, MOST_ROUNDS = 0.25, 9
"""See rule 5."""

WIDTH_WITHOUT_TERMINAL = 120
"""Columns of the table where the output is a file or a log: rich would take 80 and break the names."""


def sized(normal: Size, tiny: Size) -> Size:
    """``normal``, or ``tiny`` where a script is only tried."""
    return tiny if os.environ.get("PENSTOCK_BENCH") == "tiny" else normal


def results_folder() -> Path:
    """Where the scripts leave their results."""
    given = os.environ.get("PENSTOCK_BENCH_RESULTS")
    return Path(given) if given else Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison; see the module's rules."""

    work: str
    peer: str
    ours: float
    theirs: float
    unit: str
    ratio: float
    spread: float
    aim: float
    met: bool

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.aim <= 0:
            return "reference"
        return ("met" if self.met else "missed") + (", unclear" if self.spread > WIDE else "")


def compare(
    work: str,
    peer: str,
    ours: Side,
    theirs: Side,
    *,
    unit: str = "s",
    aim: float = 1.0,
    rounds: int = 5,
    warmup: int = 1,
    higher_is_better: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Row:
    """Run both sides ``warmup + rounds`` times in turn and return their comparison."""
    if rounds < 1 or warmup < 0:
        raise ValueError(f"{work}: rounds={rounds}, warmup={warmup}; at least one round must be counted")
    rounds, warmup = sized((rounds, warmup), (1, 0))
    results: tuple[list[float], list[float]] = ([], [])
    returned: set[bool] = set()
    for turn in range(warmup + max(rounds, sized(MOST_ROUNDS, rounds))):
        if turn >= warmup + rounds and spread_of(results) <= WIDE:
            break
        for side, counted in zip((ours, theirs), results, strict=True):
            result, was_returned = measure(side, clock)
            returned.add(was_returned)
            if turn >= warmup:
                counted.append(result)
    if len(returned) > 1:
        raise ValueError(f"{work}: a run returned a number and another did not; return one from both sides or neither")
    if returned == {False} and (unit != "s" or higher_is_better):
        raise ValueError(f"{work}: timed in seconds, where less is better; return a number from both sides for {unit}")
    return make_row(work, peer, results, unit, aim, higher_is_better)


def measure(side: Side, clock: Callable[[], float]) -> tuple[float, bool]:
    """One run: its result, and whether the side returned it (otherwise: the seconds it took)."""
    start = clock()
    result = side()
    seconds = clock() - start
    return (seconds, False) if result is None else (float(result), True)


def make_row(
    work: str,
    peer: str,
    results: tuple[Sequence[float], Sequence[float]],
    unit: str,
    aim: float,
    higher_is_better: bool,
) -> Row:
    """The row for the counted results of both sides."""
    ours, theirs = (median(side) for side in results)
    if min(*results[0], *results[1]) <= 0:
        raise ValueError(f"{work}: a result is not above 0; give the sides more work")
    ratio = ours / theirs if higher_is_better else theirs / ours
    return Row(work, peer, ours, theirs, unit, ratio, spread_of(results), aim, met=ratio >= aim)


def spread_of(results: Sequence[Sequence[float]]) -> float:
    """The wider side's; see rule 3."""
    return max(map(_spread, results))


def _spread(side: Sequence[float]) -> float:
    left_out = max(0, len(side) - 5) // 2
    middle = sorted(side)[left_out : len(side) - left_out]
    return (middle[-1] - middle[0]) / median(side) if median(side) else 0.0


def describe_machine() -> dict[str, str]:
    """What a reader must know to compare figures: processor, cores, memory, system, versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    described = {
        "processor": processor_name(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    for name in VERSIONS:
        try:
            described[name] = version(name)
        except PackageNotFoundError:
            continue
    return described


def processor_name() -> str:
    """The processor's model name as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def report(rows: Sequence[Row], path: str | Path, console: Console | None = None, **more: Any) -> None:
    """Write the rows as JSON to ``path``, with machine, versions and time, and print them as a table.

    ``more``: what else the file shall have. ``text`` is what ``house.py --docs`` puts into ``docs/performance.md``,
    between marks with the file's name.
    """
    machine = save(rows, path, **more)
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL)
    console.print(" · ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)
    console.print(make_table(rows))


def save(rows: Sequence[Row], path: str | Path, **more: Any) -> dict[str, str]:
    """Write the file alone, as often as there are new rows; the machine that it describes."""
    machine = describe_machine()
    content = {
        "machine": machine,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": [asdict(row) for row in rows],
        **more,
    }
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return machine


def make_table(rows: Sequence[Row]) -> Table:
    """The rows for people."""
    table = Table()
    for name in ("work", "peer"):
        table.add_column(name)
    for name in ("ours", "theirs", "unit", "ratio", "spread", "aim", "met"):
        table.add_column(name, justify="left" if name in {"unit", "met"} else "right", no_wrap=True)
    for row in rows:
        figures = (f"{row.ours:.4g}", f"{row.theirs:.4g}", row.unit, f"{row.ratio:.2f}", f"{row.spread:.0%}")
        table.add_row(row.work, row.peer, *figures, f"{row.aim:.2f}", row.verdict)
    return table

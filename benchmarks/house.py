"""The benchmark house: Penstock beside what users would pick instead, on this machine, with one command.

``make bench`` runs the short form (about 20 minutes once the peers are installed) and prints a table;
``benchmarks/results/latest.json`` is the list of its rows, ``machine.json`` beside it says on what. ``make bench-full``
takes more data and rounds, and everything else in ``benchmarks/``. ``--docs`` writes the tables and plots of the last
run into ``README.md`` and ``docs/performance.md`` (``house_docs``).

Rules:

1. Both sides of a comparison run in turn, A B A B …, in the same run, on the same files, after one warm-up each.
   Figures are medians of 5 rounds, or of up to 9 where they spread by more than a quarter (``harness``).
2. Peers live in environments of their own (``benchmarks/peers/*.txt``, made under ``build/peers``), and each side is a
   process of its own (``house_sides``).
3. Correctness first: both outputs are digested, and where they differ there is an error and no figure.
4. A row that ``docs/performance.md`` has as met and that is missed now by more than its spread makes the run end with
   exit code 1 (``house_docs.fallen_back``).
5. Without peers (``--no-peers``) our sides run alone, to see that they do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

from house_comparisons import ONLY_FULL, SUITES, Comparison, Figure, Spec
from house_docs import fallen_back, write_docs
from house_sides import LOCAL, OURS, Answer, Side, SideError
from house_starts import import_rows
from rich.console import Console

from harness import MOST_ROUNDS, WIDE, Row, describe_machine, make_row, make_table, results_folder, sized

ROUNDS = 5
WIDTH = 160
COMMON = frozenset({"pyarrow", "numpy"})
"""What many environments hold, each its own version; the lists in ``peers/`` tell those of the peers."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script with results of its own. ``wanted``: what the names of the rows that are taken hold."""

    name: str
    arguments: tuple[str, ...] = ()
    wanted: str = ""
    peer: bool = False
    """Without peers it is called with ``--no-peers``."""


SCRIPTS_SHORT = (
    Script("feed.py", peer=True),
    Script("feed_peers.py", ("--rounds", "2"), peer=True),
    Script("feed_mesh.py", ("--only", "requests")),
    Script("spark_handoff.py"),
    Script("engine.py", ("--batch", "65536"), wanted="batches of 64 Ki"),
    Script("barrier.py", wanted="split set of 15"),
    Script("job_barrier.py"),
    Script("recovery.py", ("--only", "cost", "--rounds", "2")),
    Script("growth.py"),
    Script("tpch.py", peer=True),
)
SCRIPTS_FULL = {"growth.py": ("--full",)}

ALL = (*SUITES, "import", "scripts")


class DifferentRowsError(Exception):
    """Two sides have computed different things."""


def make_rows(comparison: Comparison, rounds: int, versions: dict[str, str]) -> list[Row]:
    """Both sides in turn; a row for each figure. Raises DifferentRowsError, SideError."""
    check_outputs(comparison)
    warmups = sized(1, 0)
    with ExitStack() as stack:
        sides = [stack.enter_context(start(spec, who)) for who, spec in named(comparison)]
        for side in sides:
            versions.update({name: each for name, each in side.versions.items() if name not in COMMON})
        rows: list[Row] = []
        for turn in range(warmups + max(rounds, sized(MOST_ROUNDS, rounds))):
            if rows and max(row.spread for row in rows) <= WIDE:
                break
            found = [side.run() for side in sides]
            if comparison.digests:
                compare_digests(comparison.work, comparison.peer, *found)
            if turn + 1 >= warmups + rounds:
                ours, theirs = (side.answers[warmups:] for side in sides)
                rows = [figure_row(comparison, figure, ours, theirs) for figure in comparison.figures]
    for row in rows:
        print(f"    {row.ours:.3g} : {row.theirs:.3g} {row.unit}, ratio {row.ratio:.2f}", flush=True)
    return rows


def named(comparison: Comparison) -> list[tuple[str, Spec]]:
    return [("ours", comparison.ours), (comparison.peer, comparison.theirs)]


def start(spec: Spec, who: str) -> Side:
    return Side(f"{who} {Path(spec.script).stem}", spec.environment, spec.script, spec.settings)


def check_outputs(comparison: Comparison) -> None:
    """Run the sides that show what both compute, if the measured ones cannot."""
    if comparison.check is None:
        return
    answers = []
    for who, spec in zip(("ours", comparison.peer), comparison.check, strict=True):
        with start(spec, f"{who}, checked") as side:
            answers.append(side.run())
    compare_digests(comparison.work, comparison.peer, *answers)


def compare_digests(work: str, peer: str, ours: Answer, theirs: Answer) -> None:
    if ours["digest"] != theirs["digest"]:
        raise DifferentRowsError(f"{work}: ours gives {ours['digest']}, {peer} {theirs['digest']} (rows-digest)")


def figure_row(comparison: Comparison, figure: Figure, ours: Sequence[Answer], theirs: Sequence[Answer]) -> Row:
    rates = (
        [comparison.rows / answer[figure.ours] / 1e6 for answer in ours],
        [comparison.rows / answer[figure.theirs] / 1e6 for answer in theirs],
    )
    aim = comparison.aim if figure.aim is None else figure.aim
    return make_row(comparison.work + figure.suffix, comparison.peer, rates, "M rows/s", aim, True)


def run_alone(comparison: Comparison, done: list[Spec]) -> list[Row]:
    """Our sides, once: there is no peer to compare with, and no row. ``done``: those that have run."""
    for spec in (comparison.ours, *(comparison.check or ())[:1]):
        if spec not in done:
            done.append(spec)
            with start(spec, "alone") as side:
                side.run()
    return []


def geometric_mean(rows: Sequence[Row]) -> Row:
    """The row that stands for all operators against Velox."""

    def mean(values: Sequence[float]) -> float:
        return exp(sum(log(value) for value in values) / len(values))

    ours, theirs = mean([row.ours for row in rows]), mean([row.theirs for row in rows])
    ratio, spread = mean([row.ratio for row in rows]), max(row.spread for row in rows)
    work = f"{len(rows)} operators on batches in memory, one thread, geometric mean"
    return Row(work, rows[0].peer, ours, theirs, rows[0].unit, ratio, spread, 1.0, met=ratio >= 1.0)


def script_rows(script: Script, results: Path, no_peers: bool) -> list[Row]:
    """The rows of a script that are wanted. All of them are also in a file of its own."""
    path, here = Path(__file__).resolve().parent / script.name, Path(__file__).resolve().parent
    environ = {**os.environ, **LOCAL, "PENSTOCK_BENCH_RESULTS": str(results)}
    command = [sys.executable, str(path), *script.arguments, *(["--no-peers"] if script.peer and no_peers else [])]
    made = subprocess.run(command, env=environ, check=False, stdout=subprocess.DEVNULL)
    if made.returncode:
        raise SideError(f"{script.name} failed: run it alone to see how")
    for found in (results / f"{path.stem}.json", here / "results" / f"{path.stem}.json"):
        if found.exists():
            rows = [Row(**row) for row in json.loads(found.read_text(encoding="utf-8"))["rows"]]
            return [row for row in rows if script.wanted in row.work]
    return []


def scripts(full: bool) -> Sequence[Script]:
    """Scripts to run, in this order."""
    if not full:
        return SCRIPTS_SHORT
    here = Path(__file__).resolve().parent
    found = [each for each in sorted(here.glob("*.py")) if "__main__" in each.read_text(encoding="utf-8")]
    peers = {each.name for each in SCRIPTS_SHORT if each.peer}
    return [
        Script(each.name, SCRIPTS_FULL.get(each.name, ()), peer=each.name in peers)
        for each in found
        if each.name != Path(__file__).name
    ]


def run_suite(name: str, options: Any, versions: dict[str, str]) -> Iterator[Callable[[], Iterable[Row]]]:
    done: list[Spec] = []
    rounds = sized(options.rounds or ROUNDS, 1)
    for comparison in SUITES[name](options.full):
        if options.only not in comparison.work + comparison.peer:
            continue
        print(f"{name}: {comparison.work} against {comparison.peer}", flush=True)
        if options.no_peers and comparison.theirs.environment != OURS:
            yield partial(run_alone, comparison, done)
        else:
            yield partial(make_rows, comparison, rounds, versions)


def main() -> None:
    options, results, load = parse(), results_folder(), os.getloadavg()[2]
    if options.docs:
        write_docs(results)
        return
    chosen = options.suites or [name for name in ALL if options.full or name not in ONLY_FULL]
    rows, failures, versions = [], [], {}
    for name in chosen:
        found = []
        for measure in measurements(name, options, results, versions):
            try:
                found += measure()
            except (DifferentRowsError, SideError) as error:
                print(f"    {error}", flush=True)
                failures.append(f"{name}: {error}")
        rows += found
        if name == "velox" and len(found) > 1:
            rows.append(geometric_mean(found))
        save(rows, versions, failures, results, load)  # after each suite: a run that is broken off leaves what it has
    show(rows, versions)
    worse = sized(fallen_back(rows), [])
    told = [f"{len(failures)} suites failed"] * bool(failures) + [each.partition("\n")[0] for each in failures] + worse
    if told:
        raise SystemExit("; ".join(told))


def measurements(
    name: str, options: Any, results: Path, versions: dict[str, str]
) -> Iterator[Callable[[], Iterable[Row]]]:
    """What a suite measures, piece by piece, so that a piece that fails takes no other with it."""
    if name == "import":
        yield lambda: list(import_rows())
    elif name == "scripts":
        for script in scripts(options.full):
            if options.only not in script.name:
                continue
            print(f"scripts: {script.name}", flush=True)
            yield partial(script_rows, script, results, options.no_peers)
    else:
        yield from run_suite(name, options, versions)


def save(rows: Sequence[Row], versions: Mapping[str, str], failures: Sequence[str], results: Path, load: float) -> None:
    """``latest.json`` and ``machine.json``."""
    results.mkdir(parents=True, exist_ok=True)
    machine = {**describe_machine(), **versions}
    at = datetime.now(UTC).isoformat(timespec="minutes")
    (results / "latest.json").write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")
    told = {"at": at, "machine": machine, "failures": list(failures), "load_before": load}
    (results / "machine.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def show(rows: Sequence[Row], versions: Mapping[str, str]) -> None:
    """Machine, versions and the table on the screen."""
    machine = {**describe_machine(), **versions}
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(" · ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)
    console.print(make_table(rows))


def parse() -> Any:
    parser = argparse.ArgumentParser(description="Penstock beside its peers.")
    parser.add_argument("suites", nargs="*", help=f"some of: {', '.join(ALL)}; else all")
    parser.add_argument("--full", action="store_true", help="more data, more rounds, every script")
    parser.add_argument("--rounds", type=int, default=0, help="counted rounds of each side")
    parser.add_argument("--only", default="", help="only comparisons that have this text in work or peer")
    parser.add_argument("--docs", action="store_true", help="run nothing: write the last run's tables into the docs")
    parser.add_argument("--no-peers", action="store_true", help="run our sides alone, once")
    return parser.parse_args()


if __name__ == "__main__":
    main()

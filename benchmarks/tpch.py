"""The 22 queries of TPC-H beside DuckDB, DataFusion and Polars, on one thread and on two.

``python benchmarks/tpch.py`` makes the tables at scale 1 (``tpch_data``), prints what ``house.py --docs`` writes into
``docs/performance.md``, and leaves all figures in ``benchmarks/results/tpch.json``. ``--queries``, ``--threads``,
``--peers`` and ``--scale`` take a part; ``--ray`` adds the same queries as jobs on Ray.

Rules:

1. Each engine runs a query in a process of its own, ours in one subtask. For one query they run in turn, ``--rounds``
   times; the least processor seconds count, and the least wall seconds. The files are in the system's cache by then.
2. Peak memory is the process's, its libraries included. A job on Ray runs in several processes, of which neither that
   nor processor time is known: it has its wall seconds alone, from ``ps.run`` to the end of ``wait``.
3. Our rows are compared with DuckDB's each time, in order: where they differ there is an error and no figure. A peer
   that differs is marked (Polars rounds products of decimals to the digits of their factors).
4. What an engine cannot run has no figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from house_sides import OURS, Answer, Side, SideError
from tpch_data import generated, look_alike
from tpch_queries import QUERIES
from tpch_rows import difference, geometric_mean

from harness import Row, report, results_folder, sized

PENSTOCK, DUCKDB, ON_RAY = "penstock", "duckdb", "penstock on Ray"
PEERS = ("datafusion", "polars")
ROUNDS = sized(3, 1)
AIMS = {"cpu 1": 1.3, "cpu 2": 1.6, "worst": 2.5, "wall": 0.65, "peak": 1.5}
"""At most so many times as much as DuckDB; ``wall``: two threads for one."""
RAY_SECONDS = 3.0
"""So much longer a query may take on Ray, start included, than in one process."""


class DifferentRowsError(Exception):
    """Our rows are not DuckDB's."""


@dataclass(frozen=True)
class Cost:
    """Of a query in an engine: the least of its runs, and the spread of their processor seconds."""

    cpu: float
    wall: float
    peak: int
    spread: float
    differs: str | None = None


Costs = dict[tuple[int, int, str], Cost]
"""By query, threads and engine."""

_WORDS = {"cpu": "CPU s", "wall": "wall", "peak": "MiB"}


def engines(options: Any, threads: int) -> Iterator[tuple[str, str]]:
    """Each with its environment."""
    yield PENSTOCK, OURS
    yield DUCKDB, OURS
    for peer in options.peers.split(",") if options.peers else ():
        yield peer, "engines"
    if options.ray and threads > 1:
        yield ON_RAY, OURS


def measure(number: int, threads: int, folder: Path, options: Any) -> dict[str, Cost]:
    """All engines in turn. Raises DifferentRowsError; SideError if ours or DuckDB fails."""
    asked = {"query": number, "threads": threads, "folder": str(folder)}
    with ExitStack() as stack:
        sides = {}
        for engine, environment in engines(options, threads):
            side = Side(f"tpch {number} {threads} {engine}", environment, "tpch_side.py", {**asked, "engine": engine})
            sides[engine] = stack.enter_context(side)
        for _ in range(options.rounds):
            for engine in list(sides):
                try:
                    sides[engine].run()
                except SideError as error:
                    if engine in (PENSTOCK, DUCKDB):
                        raise
                    print(f"    {error}", flush=True)
                    del sides[engine]
        return {engine: cost_of(side.answers, sides[DUCKDB].answers[0]) for engine, side in checked(sides)}


def checked(sides: Mapping[str, Side]) -> Iterator[tuple[str, Side]]:
    known = sides[DUCKDB].answers[0]["rows"]
    for answer in (answer for engine in (PENSTOCK, ON_RAY) if engine in sides for answer in sides[engine].answers):
        if found := difference(answer["rows"], known):
            raise DifferentRowsError(found)
    yield from sides.items()


def cost_of(answers: Sequence[Answer], known: Answer) -> Cost:
    used = [answer["cpu"] for answer in answers]
    return Cost(
        min(used),
        min(answer["seconds"] for answer in answers),
        max(answer["peak"] for answer in answers),
        (max(used) - min(used)) / median(used),
        difference(answers[-1]["rows"], known["rows"]),
    )


# ---------------------------------------------------------------------- what is told


def ratios(costs: Costs, threads: int, engine: str = PENSTOCK, figure: str = "cpu", over: str = DUCKDB) -> list[float]:
    """Of each query, the engine's figure over that of ``over``."""
    return [
        getattr(cost, figure) / getattr(costs[number, threads, over], figure)
        for (number, some, name), cost in costs.items()
        if (some, name) == (threads, engine)
    ]


def headline_rows(costs: Costs) -> list[Row]:
    """What stands for the whole. Ratios are as the harness has them: above 1 we are better."""
    threads = sorted({some for _, some, _ in costs})
    rows = [
        _row(f"geometric mean, {some} threads", costs, some, "cpu", "s", geometric_mean, f"cpu {some}")
        for some in threads
    ]
    rows += [_row("the worst, 1 threads", costs, 1, "cpu", "s", max, "worst")] if 1 in threads else []
    rows += [_row("peak memory, median, 1 threads", costs, 1, "peak", "B", median, "peak")] if 1 in threads else []
    rows += [_row_of_threads(costs)] if threads == [1, 2] else []
    return rows + ([_row_of_ray(costs)] if any(name == ON_RAY for *_, name in costs) else [])


def _row(what: str, costs: Costs, threads: int, figure: str, unit: str, of: Any, aim: str) -> Row:
    ratio = 1 / of(ratios(costs, threads, figure=figure))
    ours, theirs = (
        geometric_mean(
            [getattr(c, figure) for (_, some, name), c in costs.items() if (some, name) == (threads, engine)]
        )
        for engine in (PENSTOCK, DUCKDB)
    )
    spread = median(c.spread for (_, some, name), c in costs.items() if (some, name) == (threads, PENSTOCK))
    what = what.replace("1 threads", "one thread").replace("2 threads", "two threads")
    return Row(f"TPC-H, {what}", "DuckDB", ours, theirs, unit, ratio, spread, 1 / AIMS[aim], met=ratio >= 1 / AIMS[aim])


def _row_of_threads(costs: Costs) -> Row:
    """The wall of two threads for one."""
    both = [(costs[number, 1, name].wall, cost.wall) for (number, some, name), cost in costs.items()
            if (some, name) == (2, PENSTOCK)]  # fmt: skip
    one, two = (geometric_mean(each) for each in zip(*both, strict=True))
    aim = 1 / AIMS["wall"]
    return Row("TPC-H, wall, two threads", "one thread", two, one, "s", one / two, 0.0, aim, met=one / two >= aim)


def _row_of_ray(costs: Costs) -> Row:
    """By how many seconds a query on Ray takes longer than in one process, at most."""
    longer = max(
        cost.wall - costs[number, some, PENSTOCK].wall for (number, some, name), cost in costs.items() if name == ON_RAY
    )
    ratio = RAY_SECONDS / max(longer, 1e-3)
    what = "TPC-H, a query on Ray longer than in one process, at most"
    return Row(what, "the aim of 3 s", longer, RAY_SECONDS, "s", ratio, 0.0, 1.0, met=ratio >= 1)


def table(costs: Costs, threads: int) -> str:
    """Seconds and memory of all engines on so many threads, in Markdown."""
    names = sorted({name for _, some, name in costs if some == threads}, key=(PENSTOCK, DUCKDB, *PEERS, ON_RAY).index)
    single = [name for name in names if name != ON_RAY]
    columns = [(figure, name) for figure in ("cpu", "wall", "peak") for name in (names if figure == "wall" else single)]
    head = [f"{name}: {_WORDS[figure]}" for figure, name in columns]
    head.insert(len(single), "ratio")
    lines = [f"| on {threads} thread{'s' * (threads > 1)} | " + " | ".join(head) + " |", "|--:|" + "--:|" * len(head)]
    for number in sorted({number for number, some, _ in costs if some == threads}):
        found = {name: costs.get((number, threads, name)) for name in names}
        ratio = costs[number, threads, PENSTOCK].cpu / costs[number, threads, DUCKDB].cpu
        cells = [_cell(found[name], figure) for figure, name in columns]
        cells.insert(len(single), f"{ratio:.2f}")
        lines.append(f"| {number} | " + " | ".join(cells) + " |")
    means = [geometric_mean(ratios(costs, threads, name, figure)) for figure, name in columns]
    cells = [f"{mean:.2f}" for mean in means]
    cells.insert(len(single), f"**{means[0]:.2f}**")
    return "\n".join([*lines, "| : DuckDB | " + " | ".join(cells) + " |"])


def _cell(cost: Cost | None, figure: str) -> str:
    if cost is None:
        return "–"
    value = getattr(cost, figure)
    text = f"{value / 2**20:.0f}" if figure == "peak" else f"{value:.3f}"
    return text + " †" * (figure == "cpu" and cost.differs is not None)


def told(costs: Costs, scale: float) -> str:
    """All tables, and what was aimed at."""
    parts = [table(costs, threads) for threads in sorted({some for _, some, _ in costs})]
    if any(cost.differs for cost in costs.values()):
        parts.append("† rows that differ from DuckDB's.")
    ours = [cost for (_, some, name), cost in costs.items() if (some, name) == (1, PENSTOCK)]
    if ours:
        worst = ", ".join(f"{each:.2f}" for each in sorted(ratios(costs, 1), reverse=True)[:3])
        memory = ratios(costs, 1, figure="peak")
        parts.append(
            f"Scale {scale:g}; last lines: geometric means of ratios to DuckDB. Aims: CPU {AIMS['cpu 1']} on one "
            f"thread, {AIMS['cpu 2']} on two, on one no query above {AIMS['worst']} (the worst three: {worst}); wall "
            f"of two threads for one {AIMS['wall']}; peak memory {AIMS['peak']} (median {median(memory):.2f}, worst "
            f"{max(memory):.2f})."
        )
    return "\n\n".join(parts)


def main() -> None:
    options = parse()
    folder = look_alike() if options.scale == 0 else generated(options.scale, options.views)
    costs: Costs = {}
    failed = []
    for threads in map(int, options.threads.split(",")):
        for number in map(int, options.queries.split(",")):
            try:
                found = measure(number, threads, folder, options)
            except (DifferentRowsError, SideError) as error:
                print(f"{number}: {error}", flush=True)
                failed.append(number)
                continue
            costs.update({(number, threads, engine): cost for engine, cost in found.items()})
            shown = ", ".join(f"{engine} {cost.cpu:.3f}" for engine, cost in found.items() if engine != ON_RAY)
            on_ray = f"; on Ray {found[ON_RAY].wall:.2f} s" if ON_RAY in found else ""
            print(f"query {number}, {threads} threads: {shown} CPU s{on_ray}", flush=True)
    save(costs, options.scale)
    if failed:
        raise SystemExit(f"queries {failed} failed or differ from DuckDB")


def save(costs: Costs, scale: float) -> None:
    text = told(costs, scale)
    print(text)
    figures = [
        {"query": number, "threads": threads, "engine": engine, **asdict(cost)}
        for (number, threads, engine), cost in costs.items()
    ]
    report(headline_rows(costs), results_folder() / "tpch.json", text=text, figures=figures)


def parse() -> Any:
    every = ",".join(str(number) for number in range(1, len(QUERIES) + 1))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=sized(1.0, 0.0), help="0: the look-alike of the tests")
    parser.add_argument("--views", action="store_true", help="the files of tpchgen-cli, with text as string_view")
    parser.add_argument("--queries", default=sized(every, "1,3,6"), help="numbers with commas")
    parser.add_argument("--threads", default="1,2", help="numbers with commas")
    parser.add_argument("--peers", default=sized(",".join(PEERS), ""), help="beside DuckDB")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each engine")
    parser.add_argument("--ray", action="store_true", help="the queries as jobs on Ray as well, with two threads")
    parser.add_argument("--no-peers", dest="peers", action="store_const", const="", help="beside DuckDB alone")
    return parser.parse_args()


if __name__ == "__main__":
    main()

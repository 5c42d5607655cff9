"""Writes the tables and plots of the last run of the house into the docs.

Tables stand between ``<!-- bench: begin -->`` and ``<!-- bench: end -->``: five rows in ``README.md``, all of them in
``docs/performance.md``. The plot of all ratios beside
their aims is ``docs/plots/ratios.svg``; the curves of ``growth.py`` stand beside it.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from house_data import ROOT

from harness import Row

TEXTS = ("tpch", "growth")
"""Scripts whose results hold a text of their own for ``docs/performance.md``."""
CURVES = ("growth.svg", "feed_resume.svg")
PLOT = ROOT / "docs" / "plots" / "ratios.svg"
BUSY = 1.0
"""More load than this by others, in processes over a quarter of an hour, and the figures are called preliminary."""

HEADLINES = (
    ("geometric mean", "Velox"),
    ("filter → project → Parquet on Ray, 2 CPUs, start of the job included", "Ray Data"),
    ("group by (300 K groups) → Parquet on Ray, 2 CPUs, start of the job included", "Spark batch"),
    ("keyed count, min, max, sum → blackhole, exactly once, a checkpoint every second, 2 subtasks, start", "PyFlink"),
    ("feed to a training loop, batches of 1,024: start of the job included", "Ray Data"),
)
"""What the work and the peer hold of each row that the README shows: whole jobs, with their start."""

LINE, LEFT, SCALE, WIDTH = 18, 560, 70.0, 1040
MET, MISSED, NEUTRAL = "#2a9d8f", "#c1440e", "#8d99ae"


def write_docs(results: Path) -> None:
    """Everything, from ``latest.json`` and ``machine.json``, the texts of scripts, and what checkpoints cost."""
    for name in TEXTS:
        put_text(results / f"{name}.json", name)
    if (results / "checkpoints.json").exists():
        told = json.loads((results / "checkpoints.json").read_text(encoding="utf-8"))
        told.setdefault("load_before", 0.0)
        rows = [Row(**row) for row in told["rows"]]
        put(ROOT / "docs" / "performance.md", f"{whole_table(rows)}\n\n{told_of(told)}", "checkpoints")
    if not (results / "latest.json").exists():
        return
    rows = [Row(**row) for row in json.loads((results / "latest.json").read_text(encoding="utf-8"))]
    told = json.loads((results / "machine.json").read_text(encoding="utf-8"))
    compared = [row for row in rows if row.aim > 0]
    put(ROOT / "README.md", short_table(compared) + f"\n\n{told_of(told)}")
    put(ROOT / "docs" / "performance.md", whole_table(rows) + f"\n\n{told_of(told)}")
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    PLOT.write_text(plot(rows), encoding="utf-8")
    for name in CURVES:
        if (results / name).exists():
            shutil.copy(results / name, PLOT.parent)


def put(path: Path, text: str, name: str = "bench") -> None:
    """Replace what stands between the marks of that name. Raises ValueError if they are not there."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    content = path.read_text(encoding="utf-8")
    before, mark, rest = content.partition(begin)
    _, last, after = rest.partition(end)
    if not mark or not last:
        raise ValueError(f"{path} has no marks {begin} and {end}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def put_text(found: Path, name: str) -> None:
    """What a script tells, if it has run."""
    if not found.exists():
        return
    told = json.loads(found.read_text(encoding="utf-8"))
    if "text" in told:
        machine = " · ".join(f"{name} {value}" for name, value in told["machine"].items())
        put(ROOT / "docs" / "performance.md", f"{told['text']}\n\n{told['at'][:10]}: {machine}.", name)


def told_of(told: Mapping[str, Any]) -> str:
    """The date, the machine and the versions; what failed; and whether others were at work."""
    machine = " · ".join(f"{name} {value}" for name, value in told["machine"].items())
    lines = [f"{told['at'][:10]}: {machine}."]
    if told["load_before"] > BUSY:
        lines.append(
            f"**Preliminary** if others were at work: in the quarter of an hour before, {told['load_before']:.0f} "
            "processes were busy on this machine. Ratios may then be off by more than their spread."
        )
    lines += [f"Not measured: {failure.splitlines()[0]}." for failure in told["failures"]]
    return "\n".join(lines)


def short_table(rows: Sequence[Row]) -> str:
    """The rows of the README."""
    lines = ["| work | peer | ratio | aim | |", "|---|---|--:|--:|---|"]
    for work, peer in HEADLINES:
        for row in rows:
            if work in row.work and peer in row.peer:
                lines.append(f"| {row.work} | {row.peer} | {row.ratio:.2g} | {row.aim:g} | {row.verdict} |")
    return "\n".join(lines)


def fallen_back(rows: Sequence[Row]) -> list[str]:
    """What ``docs/performance.md`` has as met, and is missed now by more than its spread."""
    told = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    table = told.partition("<!-- bench: begin -->")[2].partition("<!-- bench: end -->")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    met = {(line[0], line[1]) for line in cells if line[-1].startswith("met")}
    return [
        f"{row.work} against {row.peer} was met and is missed: {row.ratio:.2f} of {row.aim:g}"
        for row in rows
        if (row.work, row.peer) in met and row.ratio * (1 + row.spread) < row.aim
    ]


def whole_table(rows: Sequence[Row]) -> str:
    """Every row."""
    lines = ["| work | peer | ours | theirs | unit | ratio | spread | aim | |", "|---|---|--:|--:|---|--:|--:|--:|---|"]
    for row in rows:
        aim, met = f"{row.aim:g}" if row.aim > 0 else "", row.verdict.replace("missed", "**missed**")
        lines.append(
            f"| {row.work} | {row.peer} | {row.ours:.3g} | {row.theirs:.3g} | {row.unit} | {row.ratio:.2f} | "
            f"{row.spread:.0%} | {aim} | {met} |"
        )
    return "\n".join(lines)


def plot(rows: Sequence[Row]) -> str:
    """A bar for each ratio on a logarithmic axis, and a tick where its aim is."""

    def at(ratio: float) -> float:
        return LEFT + SCALE * 3 + SCALE * max(-3.0, min(3.5, math.log2(max(ratio, 1e-9)) / 1.5))

    height = LINE * (len(rows) + 3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>',
        '<text x="8" y="14" font-size="13">How many times as fast as the peer (logarithmic; | the aim)</text>',
        f'<path d="M{at(1):.0f},22 V{height - 6}" stroke="black"/>',
    ]
    for number, row in enumerate(rows):
        y = LINE * (number + 2)
        first, last = sorted((at(1.0), at(row.ratio)))
        colour = NEUTRAL if row.aim <= 0 else MET if row.met else MISSED
        name = escape(f"{row.work} : {row.peer}"[:125])
        parts += [
            f'<text x="{LEFT + 40}" y="{y}" text-anchor="end" font-size="9">{name}</text>',
            f'<rect x="{first:.1f}" y="{y - 9}" width="{max(1.0, last - first):.1f}" height="11" fill="{colour}"/>',
            f'<text x="{max(last, at(row.aim) if row.aim > 0 else 0) + 5:.1f}" y="{y}">{row.ratio:.2g}</text>',
        ]
        if row.aim > 0:
            parts.append(f'<path d="M{at(row.aim):.1f},{y - 11} v15" stroke="black" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>\n"])

"""Holds the branch coverage of the pure parts against a floor that only rises: ``make coverage``.

``python tests/coverage_floor.py REPORT`` reads the report that ``coverage json`` wrote. A part below its floor in
``coverage_floor.txt`` fails, with the files that miss most; one that is well above it gets a new floor.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

FLOOR = Path(__file__).parent / "coverage_floor.txt"
SLACK = 1.0
"""Percent: runs differ a little, because threads do, and moving code may cost as much."""


def shares(report: dict[str, dict[str, dict[str, int]]]) -> dict[str, float]:
    """The percentage of branches that were taken, by top-level folder."""
    taken: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for name, file in report.items():
        part = Path(name).parts[0]
        taken[part] += file["summary"]["covered_branches"]
        there[part] += file["summary"]["num_branches"]
    return {part: 100 * taken[part] / there[part] for part in there if there[part]}


def missing_most(report: dict[str, dict[str, dict[str, int]]], part: str, number: int = 10) -> list[str]:
    """The files of a part with most branches that were not taken."""
    missing = {name: file["summary"]["missing_branches"] for name, file in report.items()}
    names = sorted((name for name in missing if Path(name).parts[0] == part), key=lambda name: -missing[name])
    return [f"{missing[name]:5} {name}" for name in names[:number]]


def main() -> int:
    report = json.loads(Path(sys.argv[1]).read_text())["files"]
    floors = {part: float(floor) for part, floor in (line.split() for line in FLOOR.read_text().splitlines())}
    below = False
    for part, share in sorted(shares(report).items()):
        floor = floors.get(part, 0.0)
        print(f"branches taken in {part}: {share:.1f} %, floor {floor:.1f} %")
        if share < floor:
            below = True
            print("below the floor: branches not taken in", *missing_most(report, part), sep="\n")
        floors[part] = max(floor, int(10 * (share - SLACK)) / 10)
    if not below:
        FLOOR.write_text("".join(f"{part} {floor:.1f}\n" for part, floor in sorted(floors.items())))
    return int(below)


if __name__ == "__main__":
    sys.exit(main())

"""The feed beside what training teams use, over rows of several widths: batches a second, and what one costs.

Run it as ``python benchmarks/feed_peers.py``; the result goes to ``benchmarks/results/feed_peers.json``. ``--table``
prints the table of ``docs/performance.md``.

- Rows in order, in batches of tensors, to one rank or to four that share each batch. The loop does nothing with them.
- Ours, Ray Data and the ``DataLoader`` (rows in memory, no workers) read the same Parquet files; MosaicML Streaming,
  litData and Grain the first of these rows in files of their own formats, written before (uncompressed, no workers).
- Counted is what a run takes more than one over a few batches in the same processes: what is read ahead of the first
  batch counts, starts do not. Processor time is that of all processes, clusters of Ray included: it depends less than
  batches a second on what else a machine does. A round in which the two runs took about as long has no batches a
  second, and a peer without any such round no figure.
"""

from __future__ import annotations

import argparse
import tempfile
from math import isnan
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from house_sides import OURS, Answer, Side

from harness import Row, make_row, report, results_folder, sized

SHAPES = sized(
    ((8, 16, 12_000, 1), (8, 8_192, 1_000, 1), (1_024, 256, 600, 1), (102_400, 16, 120, 1), (8, 256, 3_000, 4),
     (1_024, 256, 600, 4)),
    ((8, 16, 50, 1), (1_024, 8, 20, 2)),
)  # fmt: skip
"""Bytes a row, rows a batch, batches, ranks."""
AIMS = sized((3.0, 2.0, 4.0, 4.0, 3.0, 4.0), (0.0, 0.0))
"""In batches a second, against Ray Data."""
PEERS = {"Ray Data": OURS, "DataLoader": OURS, "MosaicML Streaming": "feeds", "litData": "feeds", "Grain": "feeds"}
ROUNDS = sized(3, 1)
FILES = 4
ROW_BY_ROW = frozenset({"MosaicML Streaming", "litData", "Grain"})
FIRST = 4
"""Batches of the run that is not counted."""
FEW = 60_000
"""So many rows, or 20 batches, are enough for those that handle each row by itself."""


def write_rows(folder: Path, width: int, rows: int) -> None:
    """Files of groups of a few MB, as one would read in pieces."""
    draw = np.random.default_rng(3)
    folder.mkdir(parents=True)
    each = -(-rows // FILES)
    for number in range(FILES):
        count = min(each, rows - number * each)
        if width == 8:
            column: pa.Array = pa.array(draw.random(count))
        else:
            flat = pa.array(draw.integers(0, 255, count * width, np.uint8))
            column = pa.FixedSizeListArray.from_arrays(flat, width)
        group = max(1, (4 << 20) // width)
        pq.write_table(pa.table({"x": column}), folder / f"{number}.parquet", row_group_size=group, compression="none")


def run_once(kind: str, settings: dict[str, Any]) -> Answer:
    with Side(f"feed of {kind}", PEERS.get(kind, OURS), "feed_shapes.py", {**settings, "kind": kind}) as side:
        return side.run()


def measure(shape: tuple[int, int, int, int], kinds: list[str], rounds: int) -> dict[str, list[Answer]]:
    """All sides in turn. Raises AssertionError if one has read fewer rows, or more."""
    width, batch, batches, ranks = shape
    found: dict[str, list[Answer]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="feed-peers-") as name:
        few = max(min(batches, 20), min(batches, FEW // batch))
        for part, count in (("all", batches), ("few", few), ("first", FIRST)):
            write_rows(Path(name) / part / "parquet", width, batch * count)
        for turn in range(rounds):
            for kind in kinds:
                part, count = ("few", few) if kind in ROW_BY_ROW else ("all", batches)
                folders = {"folder": f"{name}/{part}/parquet", "few": f"{name}/first/parquet"}
                settings = {**folders, "width": width, "batch": batch, "ranks": ranks}
                answer = run_once(kind, {**settings, "meeting": f"{name}/meeting-{turn}"})
                assert answer["rows"] == batch * count, f"{kind} has read {answer['rows']} of {batch * count} rows"
                found[kind].append(answer)
                told = f"{rate_of(answer):.0f} batches/s, {answer['milliseconds']:.2f} ms"
                print(f"{name_of(shape)}: {kind}: {told}", flush=True)
    return found


def rate_of(answer: Answer) -> float:
    """Batches a second; not a number where its seconds tell nothing."""
    return float(answer["batches"] / answer["seconds"]) if answer["seconds"] is not None else float("nan")


def rates_of(answers: list[Answer]) -> list[float]:
    """Of the rounds that have one."""
    return [rate for rate in map(rate_of, answers) if not isnan(rate)]


def name_of(shape: tuple[int, int, int, int]) -> str:
    width, batch, _, ranks = shape
    size = f"{width} B" if width < 1_024 else f"{width // 1_024} KB"
    return f"{size} × {batch:,}" + (f", {ranks} ranks" if ranks > 1 else "")


def rows_of(shape: tuple[int, int, int, int], found: dict[str, list[Answer]], aim: float) -> list[Row]:
    rows = []
    for peer in [kind for kind in found if kind != "ours"]:
        work, aimed = f"feed, rows {name_of(shape)}", aim if peer == "Ray Data" else 1.0
        both = found["ours"], found[peer]
        speed = rates_of(both[0]), rates_of(both[1])
        cost = tuple([max(answer["milliseconds"], 1e-3) for answer in side] for side in both)
        if all(speed):
            rows.append(make_row(work, peer, speed, "batches/s", aimed, True))
        rows.append(make_row(f"{work}: processor time a batch", peer, cost, "ms", 1.0, False))
    return rows


def table_of(results: dict[str, dict[str, list[Answer]]]) -> str:
    """Batches a second / milliseconds of processor time a batch."""
    kinds = list(next(iter(results.values())))
    lines = [f"| rows | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for name, found in results.items():
        cells = [
            f"{f'{median(rates):,.0f}' if (rates := rates_of(found[kind])) else '–'} / "
            f"{median(a['milliseconds'] for a in found[kind]):,.2f}"
            for kind in kinds
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--no-peers", action="store_true", help="ours alone, to see that it runs")
    parser.add_argument("--only", nargs="*", choices=PEERS, help="these peers alone")
    parser.add_argument("--shapes", nargs="*", type=int, default=range(len(SHAPES)), help="these alone, by number")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--table", action="store_true", help="print the table of the documentation")
    options = parser.parse_args()
    asked = [SHAPES[number] for number in options.shapes]
    kinds = ["ours"] if options.no_peers else ["ours", *(options.only or PEERS)]
    results = {name_of(shape): measure(shape, kinds, options.rounds) for shape in asked}
    rows = [
        row
        for shape, found, aim in zip(asked, results.values(), (AIMS[number] for number in options.shapes), strict=True)
        for row in rows_of(shape, found, aim)
    ]
    if options.table and not options.no_peers:
        print(table_of(results))
    report(rows, results_folder() / "feed_peers.json")


if __name__ == "__main__":
    main()

"""Cost as the work grows: rows, groups, build rows, columns, files, operators, joins; subtasks, keys of state, tasks of
the coordinator.

Run it as ``python benchmarks/growth.py``; the rows go to ``benchmarks/results/growth.json`` and the curves to
``growth.svg`` beside it. Each row sets the largest size against the smallest: what should be flat has a ratio of 1.

1. *Rows*: Parquet → filter → project → group by (300 K groups) → Parquet in one process at 1, 10 and, with ``--full``,
   100 million rows, with 1 and 2 subtasks: rows a second, and the peak of the process's memory. Every size runs in
   a process of its own, in turn with the others.
2. *Keys*: the state of a hash aggregation with 10 K to 1 M keys (10 M with ``--full``): seconds for taking and writing
   it to disk, and its bytes; and the same for the checkpoint that follows when no row has come, which names the file of
   the one before. A state of which a single key has changed is written whole.
3. *Tasks*: the coordinator's events a second over the life of a job with 10 to 10,000 tasks.
4. *Exponents*: processor seconds of whole jobs along seven axes, each over three powers of ten (``growth_axes``): a
   table in ``docs/performance.md``, and a row for the largest exponent. ``--only-axes`` makes these and the next alone.
5. *Small queries*: processor milliseconds of one, and of each join that it has (``small_queries``).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from statistics import median

import numpy as np
import pyarrow as pa
from engine_work import Kept
from growth_axes import AXES, Growth, grow, table
from house_data import DATA, bid_files
from house_sides import OURS, Side
from small_queries import small_queries
from svg_plot import Series, write_plot

from coordinator import life_rate
from harness import Row, make_row, report, results_folder, sized
from penstock.actors.storage.snapshots import SnapshotFiles
from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.identity import Attempt, CheckpointId, TaskId
from penstock.engine.core.operator import OperatorContext
from penstock.engine.operators import Aggregate, HashAggregate

ROWS, MOST_ROWS = sized((1_000_000, 10_000_000), (2_000, 4_000)), 100_000_000
KEYS, MOST_KEYS = sized((10_000, 100_000, 1_000_000), (100, 1_000)), 10_000_000
TASKS = sized((10, 100, 1_000, 10_000), (10, 100))
ROUNDS = sized(3, 1)
AIM_FLAT, AIM_SUBTASKS = 0.9, 1.5
MOST_EXPONENT = 1.1
BATCH = 64 * 1024


def run_once(rows: int, subtasks: int) -> tuple[float, float]:
    """Million rows a second, and the peak of the memory in MiB, of a new process."""
    asked = {"folder": str(bid_files(rows, "parquet")), "subtasks": subtasks, "out": str(DATA / "out-growth")}
    with Side(f"growth {rows} {subtasks}", OURS, "growth_run.py", asked) as side:
        answer = side.run()
    return rows / answer["seconds"] / 1e6, answer["peak"] / 2**20


def rows_grow(sizes: Sequence[int]) -> tuple[list[Row], list[Series]]:
    cells = [(rows, subtasks) for rows in sizes for subtasks in (1, 2)]
    found: dict[tuple[int, int], list[tuple[float, float]]] = {cell: [] for cell in cells}
    for _ in range(ROUNDS):
        for cell in cells:
            found[cell].append(run_once(*cell))
    least, most = sizes[0], sizes[-1]

    def figures(cell: tuple[int, int], which: int) -> list[float]:
        return [each[which] for each in found[cell]]

    job = "filter → project → group by in one process"
    table = [
        against(f"{job}, {most:,} rows, 2 subtasks", f"{least:,} rows",
                figures((most, 2), 0), figures((least, 2), 0), "M rows/s", AIM_FLAT, True),
        against(f"{job}, {most:,} rows, 2 subtasks: memory", f"{least:,} rows",
                figures((most, 2), 1), figures((least, 2), 1), "MiB", 0.5, False),
        against(f"{job}, {most:,} rows, 2 subtasks", "1 subtask",
                figures((most, 2), 0), figures((most, 1), 0), "M rows/s", AIM_SUBTASKS, True),
    ]  # fmt: skip
    curves = [
        Series("M rows/s × 100, 2 subtasks", "rows", sizes, [median(figures((n, 2), 0)) * 100 for n in sizes]),
        Series("peak memory, MiB, 2 subtasks", "rows", sizes, [median(figures((n, 2), 1)) for n in sizes]),
    ]
    return table, curves


def against(
    work: str, peer: str, ours: Sequence[float], theirs: Sequence[float], unit: str, aim: float, higher: bool
) -> Row:
    return make_row(work, peer, (ours, theirs), unit, aim, higher)


def snapshots_of(keys: int) -> tuple[float, float, float, float]:
    """Seconds and bytes written for the state of so many keys, on disk; then those of a checkpoint without news."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    asked = (Aggregate("n", None, "count"), Aggregate("total", "v", "sum"), Aggregate("most", "v", "max"))
    context = OperatorContext("operator", TaskId("stage", 0), Attempt(1, 1), 1, range(1))
    running = HashAggregate(("k",), asked).build(context, [schema], None)
    for number, start in enumerate(range(0, keys, BATCH)):
        values = np.arange(start, min(keys, start + BATCH))
        running.process(0, Batch(pa.record_batch([values, values], schema=schema), Tag(0, 0, number)), Kept())
    told: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        files, written = SnapshotFiles(folder, "growth"), 0
        for checkpoint in (CheckpointId(1, 1), CheckpointId(1, 2)):
            started = time.perf_counter()
            state = running.snapshot()
            assert state is not None
            files.write(context.task, checkpoint, context.attempt, {context.operator: state})
            told += [time.perf_counter() - started, float(files.bytes_written - written)]
            files.completed(context.task, checkpoint)
            written = files.bytes_written
    running.close()
    return told[0], told[1], told[2], told[3]


def keys_grow(sizes: Sequence[int]) -> tuple[list[Row], list[Series]]:
    found: dict[int, list[tuple[float, float, float, float]]] = {size: [] for size in sizes}
    for _ in range(ROUNDS):
        for size in sizes:
            found[size].append(snapshots_of(size))
    least, most = sizes[0], sizes[-1]

    def per_key(size: int, which: int) -> list[float]:
        return [each[which] / size * (1e9, 1.0)[which] for each in found[size]]

    table = [
        against(f"state of {most:,} keys, taken and written, per key", f"{least:,} keys",
                per_key(most, 0), per_key(least, 0), "ns", AIM_FLAT, False),
        against(f"state of {most:,} keys, bytes per key", f"{least:,} keys",
                per_key(most, 1), per_key(least, 1), "B", AIM_FLAT, False),
        against(f"state of {most:,} keys, checkpoint without news", "with news, written whole",
                [each[2] * 1e3 for each in found[most]], [each[0] * 1e3 for each in found[most]], "ms", 1.0, False),
        against(f"state of {most:,} keys, bytes written for a checkpoint without news", "with news, written whole",
                [1 + each[3] for each in found[most]], [1 + each[1] for each in found[most]], "B", 100.0, False),
    ]  # fmt: skip
    return table, [Series("state on disk, ms", "keys", sizes, [median(s[0] for s in found[n]) * 1e3 for n in sizes])]


def tasks_grow(sizes: Sequence[int]) -> tuple[list[Row], list[Series]]:
    found: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(ROUNDS):
        for size in sizes:
            found[size].append(life_rate(size))
    least, most = sizes[0], sizes[-1]
    work = f"coordinator, {most:,} tasks"
    table = [against(work, f"{least:,} tasks", found[most], found[least], "events/s", 0.5, True)]
    return table, [Series("coordinator, K events/s", "tasks", sizes, [median(found[n]) / 1e3 for n in sizes])]


def axes_grow() -> list[Growth]:
    found = []
    for axis in AXES:
        found.append(grow(axis))
        print(f"{axis.what}: exponent {found[-1].exponent:.2f}", flush=True)
    return found


def exponent_row(found: Sequence[Growth]) -> Row:
    """The steepest of all."""
    worst = max(found, key=lambda each: each.exponent)
    exponent = max(worst.exponent, 0.01)
    work = f"exponent of {worst.axis.what}, the largest of {len(found)}"
    ratio = MOST_EXPONENT / exponent
    return Row(work, f"the aim of {MOST_EXPONENT}", exponent, MOST_EXPONENT, "", ratio, 0.0, 1.0, met=ratio >= 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help=f"up to {MOST_ROWS:,} rows and {MOST_KEYS:,} keys")
    parser.add_argument("--only-axes", action="store_true", help="exponents and small queries alone")
    options = parser.parse_args()
    parts = [] if options.only_axes else [
        rows_grow((*ROWS, *([MOST_ROWS] if options.full else []))),
        keys_grow((*KEYS, *([MOST_KEYS] if options.full else []))),
        tasks_grow(TASKS),
    ]  # fmt: skip
    growths = axes_grow()
    rows = [row for found, _ in parts for row in found] + small_queries()
    print(table(growths))
    report([*rows, exponent_row(growths)], results_folder() / "growth.json", text=table(growths))
    if parts:
        curves = [each for _, found in parts for each in found]
        write_plot(results_folder() / "growth.svg", "As the work grows", curves)


if __name__ == "__main__":
    main()

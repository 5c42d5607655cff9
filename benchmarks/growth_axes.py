"""Processor seconds of a whole job against one size of its work, the others held: rows, groups, build rows, columns,
files, operators, joins.

A job is built, planned and run in this process, with one subtask. The exponent is that of the last step: 1 where ten
times as much costs ten times as much, less where a fixed cost still weighs. Data are made before the clock starts.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from house_data import made
from pyarrow import parquet

import penstock as ps
from harness import sized

ROUNDS = sized(3, 1)
TINY = (1, 10)
SPLIT = 64 * 1024
Job = Callable[[], ps.Flow]


@dataclass(frozen=True)
class Axis:
    """``job(size)`` makes the data; what it returns builds the flow."""

    what: str
    sizes: Sequence[int]
    job: Callable[[int], Job]


@dataclass(frozen=True)
class Growth:
    """An axis with the least processor seconds at each of its sizes."""

    axis: Axis
    seconds: Sequence[float]

    @property
    def exponent(self) -> float:
        """Of the last step."""
        (first, last), (one, other) = self.axis.sizes[-2:], self.seconds[-2:]
        return math.log(other / one) / math.log(last / first)


def splits(**columns: np.ndarray) -> list[pa.Table]:
    """A table for each split."""
    whole = pa.table(columns)
    return [whole.slice(start, SPLIT) for start in range(0, whole.num_rows, SPLIT)]


def rows(size: int) -> Job:
    tables = splits(k=np.arange(size) % 1_000, v=np.arange(size) % 77)

    def flow() -> ps.Flow:
        flow = ps.Flow("rows")
        kept = flow.from_tables(tables).filter("v <> 5").with_columns(w="v * 2 + k")
        kept.aggregate(["k"], w=("w", "sum")).collect("rows")
        return flow

    return flow


def groups(size: int) -> Job:
    count = sized(2_000_000, 1_000)
    tables = splits(k=np.random.default_rng(1).integers(0, size, count), v=np.arange(count) % 77)

    def flow() -> ps.Flow:
        flow = ps.Flow("groups")
        flow.from_tables(tables).aggregate(["k"], v=("v", "sum"), n="count").collect("rows")
        return flow

    return flow


def build_rows(size: int) -> Job:
    count = sized(2_000_000, 1_000)
    chance = np.random.default_rng(1)
    probed = splits(k=chance.integers(0, size, count), v=np.arange(count) % 77)
    built = splits(k=chance.permutation(size), w=np.arange(size))

    def flow() -> ps.Flow:
        flow = ps.Flow("build")
        joined = flow.from_tables(probed).hash_join(flow.from_tables(built), ["k"])
        joined.aggregate(w=("w", "sum"), v=("v", "sum")).collect("rows")
        return flow

    return flow


def columns(size: int) -> Job:
    table = pa.table({f"c{number}": np.arange(100) for number in range(size)})

    def flow() -> ps.Flow:
        flow = ps.Flow("columns")
        flow.from_tables(table).filter("c0 <> 7").filter("c0 <> 8").collect("rows")
        return flow

    return flow


def files(size: int) -> Job:
    def write(folder: Path) -> None:
        parquet.write_table(pa.table({"k": np.arange(1_000), "v": np.arange(1_000) % 77}), folder / "0.parquet")
        for number in range(1, size):
            shutil.copy(folder / "0.parquet", folder / f"{number}.parquet")

    folder = made(f"growth-files-{size}", write)

    def flow() -> ps.Flow:
        flow = ps.Flow("files")
        flow.read_parquet(folder).aggregate(v=("v", "sum")).collect("rows")
        return flow

    return flow


def parquet_columns(size: int) -> Job:
    def write(folder: Path) -> None:
        rows = np.arange(1_000)
        parquet.write_table(pa.table({f"c{number}": rows + number for number in range(size)}), folder / "0.parquet")

    folder = made(f"growth-columns-{size}", write)

    def flow() -> ps.Flow:
        flow = ps.Flow("parquet-columns")
        flow.read_parquet(folder).filter("c0 <> 7").filter("c0 <> 8").collect("rows")
        return flow

    return flow


def operators(size: int) -> Job:
    table = pa.table({"v": np.arange(1_000)})

    def flow() -> ps.Flow:
        flow = ps.Flow("operators")
        stream = flow.from_tables(table)
        for number in range(size):
            stream = stream.filter(ps.field("v") != number) if number % 2 else stream.with_columns(v=ps.field("v") + 1)
        stream.collect("rows")
        return flow

    return flow


def joins(size: int) -> Job:
    table = pa.table({"k": np.arange(100)})

    def flow() -> ps.Flow:
        flow = ps.Flow("joins")
        stream = flow.from_tables(table)
        for _ in range(size):
            stream = stream.hash_join(flow.from_tables(table), ["k"], how="left semi")
        stream.collect("rows")
        return flow

    return flow


def tens(least: int, steps: int = 4) -> Sequence[int]:
    return sized([least * 10**step for step in range(steps)], TINY)


AXES = (
    Axis("rows: filter → project → 1 K groups", tens(10_000), rows),
    Axis("groups of 2 M rows", tens(1_000), groups),
    Axis("build rows of a hash join of 2 M rows", tens(1_000), build_rows),
    Axis("columns of 100 rows, filtered twice", tens(10), columns),
    Axis("columns of a Parquet file of 1,000 rows, filtered twice", tens(10), parquet_columns),
    Axis("Parquet files of 1,000 rows", tens(10), files),
    Axis("operators in a chain, over 1,000 rows", tens(1), operators),
    Axis("hash joins one behind the other, of 100 rows", tens(1), joins),
)


def grow(axis: Axis, rounds: int = ROUNDS) -> Growth:
    """Sizes in turn; the least of the rounds counts."""
    jobs = [axis.job(size) for size in axis.sizes]
    seconds(jobs[0])
    turns = [[seconds(job) for job in jobs] for _ in range(rounds)]
    return Growth(axis, [min(each) for each in zip(*turns, strict=True)])


def seconds(job: Job) -> float:
    began = time.process_time()
    ps.run_local(job()).wait().result("rows")
    return time.process_time() - began


def table(found: Sequence[Growth]) -> str:
    """The growths in Markdown."""
    steps = max(len(each.seconds) for each in found)
    names = ["least", *(f"× {10**step:,}" for step in range(1, steps))]
    lines = [f"| CPU seconds against | from | {' | '.join(names)} | exponent |", "|---|--:|" + "--:|" * (steps + 1)]
    for each in found:
        cells = [f"{value:.3g}" for value in each.seconds] + [""] * (steps - len(each.seconds))
        lines.append(f"| {each.axis.what} | {each.axis.sizes[0]:,} | {' | '.join(cells)} | {each.exponent:.2f} |")
    return "\n".join(lines)

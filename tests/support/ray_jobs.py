"""Small flows for the tests of the Ray runtime, and what their outputs must hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.engine.flow.flow import Flow
from penstock.engine.planner.graph import Order

SPLITS = 24
ROWS_PER_SPLIT = 400


def tables() -> list[pa.Table]:
    """The input: ``SPLITS`` tables with a number that is unique over all of them."""
    return [
        pa.table(
            {"n": pa.array(range(s * ROWS_PER_SPLIT, (s + 1) * ROWS_PER_SPLIT)), "split": [f"s{s}"] * ROWS_PER_SPLIT}
        )
        for s in range(SPLITS)
    ]


def gather_flow(out: Path, rate: float = 0.0, name: str = "gather", order: Order = "deterministic") -> Flow:
    """Two stages: read and derive in parallel, gather, write. ``rate``: rows per second of the source."""
    flow = Flow(name, lanes=4, order=order)
    numbers = flow.from_tables(tables(), rate=rate)
    squares = numbers.with_columns(square=pc.multiply(pc.field("n"), pc.field("n"))).filter(pc.field("n") > 99)
    squares.gather().write_parquet(out)
    return flow


def expected() -> pa.Table:
    """The rows that the flow writes, by ``n``."""
    whole = pa.concat_tables(tables())
    whole = whole.append_column("square", pc.multiply(whole["n"], whole["n"]))
    return whole.filter(pc.field("n") > 99)


def written(out: Path) -> pa.Table:
    """What a plain reader sees in the folder, by ``n``."""
    return ds.dataset(out, format="parquet").to_table().sort_by("n")


def fails_at(limit: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A user's function that raises at the row whose ``n`` is ``limit``."""

    def explode(batch: pa.RecordBatch) -> pa.RecordBatch:
        if limit in batch.column("n").to_pylist():
            raise ValueError(f"cannot work on {limit}")
        return batch

    return explode

"""The four pipelines that ``engine.py`` measures: whole plans on one thread, beside pyarrow code that does the same.

The first two are stateless and their peer is a loop over the batches; the last two join and aggregate, and their peer
is pyarrow's own join and group by over the whole input.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from engine_work import STATEFUL, STATELESS, Case, Work, batches_of, table

from penstock.engine.flow.flow import Flow, Stream
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.sources.memory import MemorySource


def run_in_task(stream: Stream, **tables: pa.Table) -> Work:
    """A warm task that is given one split set a run: the rows that depend on it."""
    task = PlanTask(stream)
    splits = {name: MemorySource((given,)).splits()[0] for name, given in tables.items()}

    def run() -> list[pa.RecordBatch]:
        return list(task.run(splits))

    return run


def pipeline_cases(rows: int, size: int) -> list[Case]:
    """All four; ``size``: rows per batch of the sources."""
    given = pa.Table.from_batches(batches_of(table(rows, 10), size))
    left = pa.Table.from_batches(batches_of(given.select(["k", "v", "x"]), size))
    right = pa.table({"k": np.arange(0, rows // 10, 2), "w": np.arange(len(range(0, rows // 10, 2)))})
    return [_narrowing(left, rows), _widening(given, rows), _joining(left, right), _grouping(given, rows)]


def _source(flow: Flow, name: str, given: pa.Table) -> Stream:
    return flow.from_tables([given.schema.empty_table()], name=name)


def _narrowing(given: pa.Table, rows: int) -> Case:
    flow = Flow("narrowing")
    stream = (
        _source(flow, "rows", given).filter(pc.field("v") < 500).project("k", d=pc.field("x") * 2.0 + pc.field("v"))
    )

    def each(batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = batch.filter(pc.less(batch["v"], 500))
        found = pc.add_checked(pc.multiply_checked(kept["x"], 2.0), pc.cast(kept["v"], pa.float64()))
        return pa.RecordBatch.from_arrays([kept["k"], found], ["k", "d"])

    def theirs() -> list[Any]:
        return [each(batch) for batch in given.to_batches()]

    return Case("filter → project", "pyarrow loop", rows, run_in_task(stream, rows=given), theirs, STATELESS)


def _widening(given: pa.Table, rows: int) -> Case:
    flow = Flow("widening")
    kept = ["k", "s", "l"]
    stream = _source(flow, "rows", given).project(*kept).filter(pc.field("s") != "carrier 007").unnest("l")

    def each(batch: pa.RecordBatch) -> pa.RecordBatch:
        batch = batch.select(kept)
        batch = batch.filter(pc.not_equal(batch["s"], "carrier 007"))
        parents = pc.list_parent_indices(batch["l"])
        arrays = [batch["k"].take(parents), batch["s"].take(parents), batch["l"].flatten()]
        return pa.RecordBatch.from_arrays(arrays, kept)

    def theirs() -> list[Any]:
        return [each(batch) for batch in given.to_batches()]

    return Case("project → filter → unnest", "pyarrow loop", rows, run_in_task(stream, rows=given), theirs, STATELESS)


def _joining(left: pa.Table, right: pa.Table) -> Case:
    flow = Flow("joining")
    both = _source(flow, "left", left).merge_join(_source(flow, "right", right), on=["k"], how="left")
    stream = both.stream_aggregate(by=["k"], n="count", total=("v", "sum"), w=("w", "max"))

    def theirs() -> pa.Table:
        found = left.join(right, ["k"], join_type="left outer", use_threads=False)
        return found.group_by("k", use_threads=False).aggregate([([], "count_all"), ("v", "sum"), ("w", "max")])

    rows = left.num_rows + right.num_rows
    ours = run_in_task(stream, left=left, right=right)
    return Case("merge join → stream aggregate", "pyarrow join, group by", rows, ours, theirs, STATEFUL)


def _grouping(given: pa.Table, rows: int) -> Case:
    flow = Flow("grouping")
    late = _source(flow, "rows", given).filter(pc.field("v") >= 100)
    stream = late.aggregate(by=["s"], n="count", mean=("x", "mean")).sort("s")

    def theirs() -> pa.Table:
        found = given.filter(pc.greater_equal(given["v"], 100)).group_by("s", use_threads=False)
        return found.aggregate([([], "count_all"), ("x", "mean")]).sort_by("s")

    ours = run_in_task(stream, rows=given)
    return Case("filter → hash aggregate → sort", "pyarrow group by, sort", rows, ours, theirs, STATEFUL)

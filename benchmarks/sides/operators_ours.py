"""Our operators over batches in memory, on this thread: driven as a driver does it, without a task around them.

Seconds are CPU seconds of the process: one thread works, and they do not count what others do on the machine.
"""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from engine_work import Kept, driven
from pyarrow import feather
from side import Answer, digest, serve, settings

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.core.operator import OperatorConfig, OperatorContext
from penstock.engine.operators import (
    Aggregate,
    Filter,
    HashAggregate,
    MergeJoin,
    Project,
    Sort,
    SortKey,
    StreamAggregate,
    TopN,
)

ASKED = (
    Aggregate("n", None, "count"),
    Aggregate("total", "v", "sum"),
    Aggregate("least", "v", "min"),
    Aggregate("most", "v", "max"),
)
SINGLE: dict[str, OperatorConfig] = {
    "hash 1 K": HashAggregate(("few",), ASKED),
    "hash 1 M": HashAggregate(("many",), ASKED),
    "streaming": StreamAggregate(("k",), ASKED),
    "order by": Sort((SortKey("x"),)),
    "top-n": TopN((SortKey("x"),), 100),
}


def filtered(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Filter and project, batch by batch: the filter as the planner narrows it to what the projection needs."""
    context = OperatorContext("operator", TaskId("stage", 0), Attempt(1, 1), 1, range(1))
    whole = Filter(pc.field("v") < 500)
    narrowed = whole.traits.narrowed
    keep = whole if narrowed is None else narrowed(["k", "x", "v"])
    derive = Project.keeping(["k"], {"y": pc.field("x") * 2.0 + pc.field("v")})
    schema = batches[0].schema
    first, second = keep.build(context, [schema], None), derive.build(context, [keep.output_schema([schema])], None)
    out = Kept()
    for number, records in enumerate(batches):
        between: list[Batch] = []
        first.process(0, Batch(records, Tag(0, 0, number)), Collected(between))
        for batch in between:
            second.process(0, batch, out)
    return out.batches


class Collected:
    """An output that keeps batches with their tags."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def emit(self, batch: Batch) -> None:
        self._batches.append(batch)


def main() -> None:
    asked = settings()
    work, folder = asked["work"], Path(asked["folder"])

    def read(name: str) -> list[pa.RecordBatch]:
        return list(feather.read_table(folder / f"{name}.arrow").to_batches())

    if work == "merge join":
        right = [batch.rename_columns(["k", "w"]) for batch in read("right")]
        task = driven(MergeJoin(("k",)), read("left"), right)
    elif work == "filter+project":
        batches = read("rows")

        def task() -> list[pa.RecordBatch]:
            return filtered(batches)
    else:
        task = driven(SINGLE[work], read("rows"))

    def run() -> Answer:
        started = time.perf_counter()
        out = task()
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "rows": sum(batch.num_rows for batch in out), "digest": digest(out)}

    serve(run, "penstock", "pyarrow")


if __name__ == "__main__":
    main()

"""Velox over batches in memory, with one driver. PyVelox has neither a plan node for streaming aggregation (its hash
aggregation stands in for it) nor one for top-n (order by and limit do). Seconds are CPU seconds of the process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyarrow import feather
from pyvelox.arrow import to_arrow, to_velox
from pyvelox.plan_builder import PlanBuilder
from pyvelox.runner import LocalRunner
from side import Answer, digest, serve, settings

ASKED = ["count(1) as n", "sum(v) as total", "min(v) as least", "max(v) as most"]


def plans(read: Callable[[str], list[Any]], work: str) -> PlanBuilder:
    if work == "merge join":
        left = PlanBuilder()
        right = left.new_builder().values(read("right"))
        return left.values(read("left")).merge_join(["k"], ["rk"], right.get_plan_node(), ["k", "v", "w"])
    plan = PlanBuilder().values(read("rows"))
    if work == "filter+project":
        return plan.filter("v < 500").project(["k", "x * 2.0 + cast(v as double) as y"])
    if work == "order by":
        return plan.order_by(["x"])
    if work == "top-n":
        return plan.order_by(["x"]).limit(100)
    return plan.aggregate([{"hash 1 K": "few", "hash 1 M": "many", "streaming": "k"}[work]], ASKED)


def main() -> None:
    asked = settings()
    folder = Path(asked["folder"])
    tables = {}

    def read(name: str) -> list[Any]:
        tables[name] = feather.read_table(folder / f"{name}.arrow", memory_map=False).to_batches()
        return [to_velox(batch) for batch in tables[name]]

    node = plans(read, asked["work"]).get_plan_node()

    def run() -> Answer:
        started = time.perf_counter()
        runner = LocalRunner(node)
        out = list(runner.execute())
        seconds = time.perf_counter() - started
        found = [as_batch(to_arrow(each)) for each in out]
        answer = {"seconds": seconds, "rows": sum(each.num_rows for each in found), "digest": digest(found)}
        del found, out  # vectors live in the runner's memory: they must go first
        return answer

    serve(run, "pyvelox", "pyarrow")


def as_batch(found: Any) -> Any:
    """PyVelox gives rows as one array of structs."""
    import pyarrow as pa

    return found if isinstance(found, pa.RecordBatch) else pa.RecordBatch.from_struct_array(found)


if __name__ == "__main__":
    main()

"""Flows that are fed split sets, the sets, and what a plan in one process makes of the same windows."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.engine.expressions.expressions import field
from penstock.engine.flow.flow import Flow, Stream
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.operators import SortKey

LEFT = pa.schema([("k", pa.int64()), ("v", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("w", pa.int64())])

SplitSet = Mapping[str, list[pa.Table]]
Window = Sequence[SplitSet]
Build = Callable[[Flow], dict[str, Stream]]


def left(flow: Flow) -> Stream:
    return flow.from_split_sets(LEFT, name="left")


def right(flow: Flow) -> Stream:
    return flow.from_split_sets(RIGHT, name="right")


def kept(flow: Flow) -> dict[str, Stream]:
    return {"kept": left(flow).filter(field("v") > 0).with_columns(double=field("v") * 2).gather()}


def sums(flow: Flow) -> dict[str, Stream]:
    totals = left(flow).aggregate(["k"], total=("v", "sum"), n=("v", "count"), exchange="key")
    return {"sums": totals.gather()}


def whole(flow: Flow) -> dict[str, Stream]:
    return {"whole": left(flow).aggregate([], total=("v", "sum"), n=("v", "count"))}


def joined(flow: Flow) -> dict[str, Stream]:
    both = left(flow).merge_join(right(flow), on=["k"], how="left")
    return {"joined": both.stream_aggregate(by=["k"], total=("w", "sum")).gather()}


def forked(flow: Flow) -> dict[str, Stream]:
    rows = left(flow)
    return {
        "rows": rows.filter(field("v") > 20).gather(),
        "top": rows.gather().sort(SortKey("v", descending=True), "k").limit(5),
    }


def hashed(flow: Flow) -> dict[str, Stream]:
    return {"hashed": left(flow).hash_join(right(flow), on=["k"], how="inner", exchange="key").gather()}


SHAPES: dict[str, Build] = {each.__name__: each for each in (kept, sums, whole, joined, forked, hashed)}


def job_flow(build: Build, out: Path, name: str = "fed", lanes: int = 4) -> Flow:
    """The flow with a Parquet folder for each of its outputs."""
    flow = Flow(name, lanes=lanes)
    for output, stream in build(flow).items():
        stream.write_parquet(out / output, name=output)
    return flow


def draw_windows(seed: int, build: Build, windows: int = 5) -> list[list[dict[str, list[pa.Table]]]]:
    """Windows of some split sets of some splits, a few of them empty; the ``k`` of a split ascend. What joins split by
    split gets splits with keys of their own: a group that goes on in the next split of its lane is another's business.
    """
    draw = random.Random(seed)
    sources, begins = sources_of(build), {"left": 0, "right": 0}

    def table(source: str) -> pa.Table:
        begins[source] += 10 if build is joined else 0
        keys = sorted(begins[source] + draw.randrange(6) for _ in range(draw.choice((0, 1, 5, 12))))
        schema = LEFT if source == "left" else RIGHT
        return pa.table([keys, [draw.randrange(1000) for _ in keys]], schema=schema)

    def split_set() -> dict[str, list[pa.Table]]:
        count = draw.choice((1, 1, 2, 5))
        return {source: [table(source) for _ in range(count)] for source in sources}

    return [[split_set() for _ in range(draw.choice((0, 1, 1, 3)))] for _ in range(windows)]


def expected(build: Build, windows: Sequence[Window]) -> dict[str, list[list[tuple[Any, ...]]]]:
    """Output to the rows of each window, in their order, as a plan in this process gives them."""
    found: dict[str, list[list[tuple[Any, ...]]]] = {}
    for output in build(Flow("plan")):
        task = PlanTask(build(Flow("plan"))[output])
        found[output] = [_window(task, window) for window in windows]
        task.cancel()
    return found


def _window(task: PlanTask, window: Window) -> list[tuple[Any, ...]]:
    for split_set in window:
        for source, tables in split_set.items():
            for table in tables:
                task.add_split(source, table)
    task.request_barrier()
    rows: list[tuple[Any, ...]] = []
    while (batch := task.read()) is not None:
        rows += [tuple(row.values()) for row in batch.to_pylist()]
    return rows


def sources_of(build: Build) -> list[str]:
    return [node.id for node in _flow_of(build).nodes if not node.inputs]


def _flow_of(build: Build) -> Flow:
    flow = Flow("looked-at")
    build(flow)
    return flow


def written(out: Path) -> list[tuple[Any, ...]]:
    """What a plain reader sees in the folder, sorted."""
    if not any(out.rglob("*.parquet")):
        return []
    return sorted((tuple(row.values()) for row in ds.dataset(out, format="parquet").to_table().to_pylist()), key=repr)


def flat(windows: Sequence[Sequence[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    """The rows of all windows, sorted."""
    return sorted((row for window in windows for row in window), key=repr)

"""Our job on Ray over CSV, exactly once, with a checkpoint every second and two subtasks: keyed count, min, max and sum
into a sink that throws rows away, or the projection alone.

``runner``: "ray" is a whole new job on a warm cluster, "local" the embedded runner in this process, without Ray. For
``"check"`` the rows are collected and digested by the embedded runner, which makes the same rows.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from ray_cluster import join_ray
from side import Answer, digest, serve, settings

import penstock as ps
from penstock.engine.core.elements import Batch
from penstock.engine.core.identity import CheckpointId, CommitPermit, Committable
from penstock.engine.core.operator import Committer, OperatorContext, Output, Stateless

NUMBERS = count()
STARTING = {"created", "claiming", "deploying"}


class Nowhere(Stateless):
    """The running sink: forgets what it is given."""

    def process(self, port: int, batch: Batch, out: Output) -> None: ...

    def flush(self, checkpoint: CheckpointId) -> None: ...

    def prepare(self, checkpoint: CheckpointId) -> list[Committable]:
        return []


class Nothing:
    """Commits nothing."""

    def commit(self, permit: CommitPermit) -> None: ...

    def clean(self, keep: Any, claims: Any = ()) -> None: ...


@dataclass(frozen=True)
class Blackhole:
    """A sink that throws every row away."""

    kind: str = field(default="blackhole", init=False)
    guarantee: str = field(default="exactly once", init=False)
    place: str = field(default="", init=False)

    def describe(self) -> str:
        return "throw away"

    def output_schema(self, inputs: Any) -> pa.Schema:
        return inputs[0]

    def build(self, context: OperatorContext, inputs: Any, restored: pa.Table | None) -> Nowhere:
        return Nowhere()

    def visible_rows(self, job: str) -> int | None:
        return None

    def committer(self, job: str) -> Committer:
        return Nothing()

    def check(self, job: str, resuming: bool = False) -> None: ...


def flow_over(folder: str, kind: str) -> tuple[ps.Flow, ps.Stream]:
    flow = ps.Flow(f"bench-csv-{kind}-{next(NUMBERS)}")
    types = {"auction": pa.int64(), "bidder": pa.int64(), "price": pa.int64(), "channel": pa.string(), "at": pa.int64()}
    bids = flow.read_csv(folder, types=types)
    if kind == "project":
        return flow, bids.project("auction", "bidder", euros=ps.field("price") * 0.01)
    return flow, bids.aggregate(
        ["auction"], exchange="key", n="count", least=("price", "min"), most=("price", "max"), total=("price", "sum")
    )


def main() -> None:
    asked = settings()
    state = Path(asked["state"])
    every = asked.get("every")
    runner = asked["runner"]
    if runner == "ray":
        join_ray()

    def check() -> Answer:
        flow, rows = flow_over(asked["folder"], asked["kind"])
        rows.collect("rows")
        found = ps.run_local(flow).result("rows")
        return {"digest": digest(found.to_batches()), "rows": found.num_rows, "seconds": 0.0}

    def run() -> Answer:
        shutil.rmtree(state, ignore_errors=True)
        flow, rows = flow_over(asked["folder"], asked["kind"])
        flow.attach(Blackhole(), rows)
        places = ps.Checkpoints(str(state), every=every)
        started = time.perf_counter()
        if runner == "local":
            ps.run_local(flow, parallelism=2, checkpoints=places).wait()
            seconds = time.perf_counter() - started
            return {"seconds": seconds, "running": seconds}
        job = ps.run(flow, parallelism=2, checkpoints=places)
        job.wait_until(lambda status: status.state not in STARTING)
        running = time.perf_counter()
        job.wait_until(lambda status: status.is_over)
        over = time.perf_counter()
        job.wait()
        return {
            "seconds": time.perf_counter() - started,
            "running": over - running,
            "checkpoints": job.status().checkpoints_completed,
        }

    serve(check if runner == "check" else run, "penstock", "pyarrow", "ray")


if __name__ == "__main__":
    main()

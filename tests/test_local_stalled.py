"""A consumer that stalls: what is in flight stays within what ``explain`` has said, and nothing is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.exchange.channels import DEFAULT_CREDIT
from penstock.engine.planner.memory_bound import memory_bound
from penstock.engine.scheduler.protocol import WaitReason
from support.wide_source import BATCH_BYTES, WideSource, until_file

NUMBERS = pa.schema({"n": pa.int64()})
SOURCE = WideSource(8, 16)
"""More than half a gigabyte."""
PATIENCE = 120.0


@pytest.mark.parametrize("way", ["gather", "partition"])
def test_stalled_consumer_bounds_what_is_in_flight(tmp_path: Path, way: str) -> None:
    go = tmp_path / "go"
    flow = ps.Flow("stalled", lanes=4)
    rows = flow.from_source(SOURCE, name="wide")
    moved = rows.gather(name="edge") if way == "gather" else rows.rebalance(name="edge")
    moved.map_batches(until_file(str(go)), NUMBERS).gather().collect("found")
    before = pa.total_allocated_bytes()
    with ps.run_local(flow, parallelism=2, threads=3) as job:
        bound = memory_bound(job.plan)
        (edge,) = (each for each in bound.edges if each.edge == "edge")
        assert edge.bytes + edge.channels * BATCH_BYTES < SOURCE.rows * 72
        until = time.monotonic() + PATIENCE
        while True:
            known = {task: found for task, found in job.statistics().items() if found.sources}
            waits = [each.wait.reason for found in known.values() for each in found.waits]
            if waits and all(reason is WaitReason.OUTPUT for reason in waits) and len(waits) == len(known) == 2:
                sentences = job.why()[1:]  # a source may have gone on meanwhile, for the last credit
                if sum("wide waits for output: edge" in each for each in sentences) == 2:
                    break
            assert time.monotonic() < until, f"the sources never stopped: {known}"
            time.sleep(0.05)
        allocated = pa.total_allocated_bytes() - before
        queued = [each for found in known.values() for each in found.edges if each.direction == "out"]
        assert [each.channels for each in queued] == [edge.channels // 2] * 2
        for each in queued:
            assert DEFAULT_CREDIT <= each.queued <= each.channels * (DEFAULT_CREDIT + BATCH_BYTES)
        assert bound.bytes is not None
        held = bound.bytes - sum(each.count * (each.operators or 0) for each in bound.processes)
        assert allocated <= held
        assert sum(source.rows for found in known.values() for source in found.sources) < SOURCE.rows
        assert {each.split("[")[0] for each in sentences if each.endswith("others wait for it")} == {"edge"}, sentences
        go.touch()
        assert job.result("found").num_rows == SOURCE.rows

"""A consumer that stalls on Ray: what is in flight stays bounded, ``why`` leads to it, and no row is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.engine.exchange.channels import DEFAULT_CREDIT
from penstock.engine.planner.memory_bound import memory_bound
from penstock.engine.scheduler.protocol import WaitReason
from support.wide_source import BATCH_BYTES, WideSource, until_file

pytestmark = pytest.mark.ray

SOURCE = WideSource(4, 10)
PATIENCE = 120.0


def test_stalled_consumer_bounds_what_is_in_flight_and_is_named(cluster: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    flow = ps.Flow("stuck", lanes=4)
    moved = flow.from_source(SOURCE, name="wide").gather(name="edge")
    moved.map_batches(until_file(str(go)), pa.schema({"n": pa.int64()}), name="stuck").write_parquet(tmp_path / "out")
    with ps.run(flow, parallelism=2) as job:
        (edge,) = memory_bound(job.plan).edges
        assert edge.bytes < SOURCE.rows * 72 // 2, "the source has far more to give"
        until = time.monotonic() + PATIENCE
        while True:
            sources = [found for found in job.statistics().values() if found.sources]
            waits = [each.wait.reason for found in sources for each in found.waits]
            if waits == [WaitReason.OUTPUT] * 2:
                break
            assert time.monotonic() < until, f"the sources never stopped: {sources}"
        queued = [each for found in sources for each in found.edges]
        assert [each.channels for each in queued] == [1, 1]
        assert all(DEFAULT_CREDIT <= each.queued <= DEFAULT_CREDIT + BATCH_BYTES for each in queued)
        assert sum(each.queued for each in queued) <= edge.bytes
        assert sum(source.rows for found in sources for source in found.sources) < SOURCE.rows
        waiting = [f"wide[{subtask}]: wide waits for output: edge: wide[{subtask}] → edge[0]" for subtask in range(2)]
        while not names_the_culprit(said := job.why()) or sorted(said[2:]) != waiting:
            assert time.monotonic() < until, f"it was never said: {said}"
        go.touch()
        job.wait(PATIENCE)
    assert ds.dataset(tmp_path / "out", format="parquet").count_rows() == SOURCE.rows


def names_the_culprit(said: list[str]) -> bool:
    """What is first in the chain; until the batches that the sources have sent are there, it is another one."""
    # a call is made beside the driver if it is the first one, or the one before took long
    at_work = len(said) > 1 and ("edge waits for dependency: until_file." in said[1] or "works, in edge" in said[1])
    return at_work and said[1].startswith("edge[0]: ") and said[1].endswith("; others wait for it")

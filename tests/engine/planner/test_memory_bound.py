"""The most memory that a plan may take, computed before it runs, and what ``explain`` says of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.exchange.channels import DEFAULT_CREDIT
from penstock.engine.plan.rounds import CHUNK_ROWS
from penstock.engine.plan.sizes import TEXT_BYTES, batch_bytes, size
from penstock.engine.planner.memory_bound import EdgeBound, memory_bound
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.state.memory import DEFAULT_BUDGET
from penstock.engine.state.write_behind import LIMIT_BYTES

MIB = 1024 * 1024
NUMBERS = pa.schema({"n": pa.int64()})
BATCH = 8 * CHUNK_ROWS


def shuffled(out: Path | None = None) -> ps.Flow:
    """Three stages: read, group by key behind a shuffle, gather."""
    flow = ps.Flow("shuffled", lanes=4)
    rows = flow.from_tables([NUMBERS.empty_table()], name="rows").filter(ps.field("n") > 0)
    groups = rows.partition_by("n", name="by_n").aggregate(["n"], count=("n", "count")).gather(name="all")
    if out is None:
        groups.collect("found")
    else:
        groups.write_parquet(out)
    return flow


def test_every_channel_counts_with_its_credit_and_one_batch() -> None:
    bound = memory_bound(plan_job(shuffled(), 3))
    by_n, gathered, local = bound.edges
    assert (by_n, gathered) == (EdgeBound("by_n", 9, BATCH), EdgeBound("all", 3, 2 * BATCH))
    assert (local.channels, local.batch) == (3, 2 * BATCH)  # from the aggregation to what puts its rows in order
    assert bound.in_flight == 9 * (DEFAULT_CREDIT + BATCH) + 2 * 3 * (DEFAULT_CREDIT + 2 * BATCH)


def test_a_process_may_hold_what_is_in_flight_at_all_its_ends() -> None:
    read, group, gather = memory_bound(plan_job(shuffled(), 3)).processes
    assert (read.count, group.count, gather.count) == (3, 3, 1)
    to_group, to_gather = 3 * (DEFAULT_CREDIT + BATCH), DEFAULT_CREDIT + 2 * BATCH
    local = to_gather
    assert [each.in_flight for each in (read, group, gather)] == [to_group, to_group + to_gather + local, 3 * to_gather]
    assert [each.operators for each in (read, group, gather)] == [0, DEFAULT_BUDGET, 0]


def test_sources_hold_a_batch_for_each_lane_and_one_ahead() -> None:
    read, *_ = memory_bound(plan_job(shuffled(), 2)).processes
    assert read.in_hand == (2 + 2 + 1) * BATCH


def test_in_all_each_channel_counts_once() -> None:
    bound = memory_bound(plan_job(shuffled(), 3))
    own = sum(each.count * (each.own + (each.operators or 0)) for each in bound.processes)
    assert bound.bytes == bound.in_flight + own < sum(each.count * each.in_flight for each in bound.processes) + own


def test_channels_inside_a_task_count_too() -> None:
    flow = ps.Flow("local")
    gathered = flow.from_tables([NUMBERS.empty_table()]).gather(name="all")
    gathered.sort("n", name="sorted").filter(ps.field("n") > 0, name="kept").collect("found")
    bound = memory_bound(plan_job(flow, 2))
    assert [(edge.edge, edge.channels) for edge in bound.edges] == [("all", 2), ("sorted->kept:0", 1)]
    assert bound.processes[-1].in_flight == bound.in_flight


def test_parquet_sinks_hold_a_row_group_and_what_waits_for_the_disk(tmp_path: Path) -> None:
    *_, gather = memory_bound(plan_job(shuffled(tmp_path / "out"), 2)).processes
    assert gather.writing == LIMIT_BYTES + 64 * MIB


def test_feeds_hold_what_their_ranks_have_not_taken_or_not_saved() -> None:
    flow = ps.Flow("fed")
    flow.from_tables([NUMBERS.empty_table()]).feed(batch_size=10, room=1000, keep=500)
    room, kept, batch_beside = 1000, 500, 10
    assert memory_bound(plan_job(flow, 1)).processes[-1].writing == (room + kept + batch_beside) * 8


def test_without_a_budget_there_is_no_bound() -> None:
    flow = shuffled()
    assert memory_bound(plan_job(flow, 2, memory_budget=None)).bytes is None
    assert "  in all: no bound, as memory_budget is None" in flow.explain(memory_budget=None).splitlines()


def test_explain_prints_edges_processes_and_the_sum() -> None:
    plan = plan_job(shuffled(), 2)
    lines = shuffled().explain(2).splitlines()
    told = lines[lines.index("memory, at most") + 1 :]
    assert told[0] == "  by_n: 66.0 MiB in flight: 4 channels, 16.0 MiB of credit and a batch of about 512.0 KiB"
    assert told[1] == "  all: 34.0 MiB in flight: 2 channels, 16.0 MiB of credit and a batch of about 1.0 MiB"
    assert told[3] == "  stage rows: each of 2 processes 33.0 MiB in flight, 2.5 MiB in hand"
    assert "512.0 MiB in operators before they spill" in told[4]
    assert told[-1] == f"  in all: {size(memory_bound(plan).bytes or 0)}"


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        (pa.int8(), 1),
        (pa.bool_(), 1),
        (pa.decimal128(9), 16),
        (pa.binary(64), 64),
        (pa.string(), TEXT_BYTES),
        (pa.list_(pa.int64()), TEXT_BYTES),
        (pa.dictionary(pa.int32(), pa.string()), 4),
        (pa.struct({"a": pa.int64(), "b": pa.string()}), 8 + TEXT_BYTES),
    ],
)
def test_size_of_a_batch_follows_from_its_schema(type: pa.DataType, expected: int) -> None:
    assert batch_bytes(pa.schema({"x": type})) == CHUNK_ROWS * expected


def test_explain_shows_the_compression_of_an_edge() -> None:
    text = shuffled().explain(2, runtime=ps.Runtime(compression={"all": "zstd"}))
    edges = {line.split(":")[0].strip(): line for line in text.splitlines() if "all to all" in line}
    assert edges["all"].endswith("; zstd between machines")
    assert "between machines" not in edges["by_n"]
    assert shuffled().explain(2, runtime=ps.Runtime(compression="lz4")).count("; lz4 between machines") == 2


def test_compression_of_an_edge_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match=r"'by_m', which the flow does not have[\s\S]*are by_n, all"):
        shuffled().explain(runtime=ps.Runtime(compression={"by_m": "lz4"}))

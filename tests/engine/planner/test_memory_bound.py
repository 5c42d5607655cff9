"""The most memory that a plan may take, computed before it runs, and what ``explain`` says of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import penstock as ps
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.core.operator import OUTPUT_BYTES
from penstock.engine.exchange.channels import DEFAULT_CREDIT
from penstock.engine.kernels.page_library import page_library
from penstock.engine.plan.rounds import CHUNK_ROWS
from penstock.engine.plan.sizes import TEXT_BYTES, batch_bytes, size
from penstock.engine.planner import memory_bound as bounds
from penstock.engine.planner.memory_bound import WORK, EdgeBound, memory_bound
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.state.memory import DEFAULT_BUDGET
from penstock.engine.state.write_behind import LIMIT_BYTES

MIB = 1024 * 1024
NUMBERS = pa.schema({"n": pa.int64()})
BATCH = 65 * CHUNK_ROWS // 8
"""With a bit for nulls."""


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
    assert [each.budget for each in (read, group, gather)] == [0, DEFAULT_BUDGET, 0]
    assert group.operators == (1 + WORK) * DEFAULT_BUDGET


def test_sources_and_operators_have_batches_in_hand() -> None:
    read, *_ = memory_bound(plan_job(shuffled(), 2)).processes
    taken, made, under_way, put_together, ahead = [BATCH] * 5
    assert read.in_hand == taken + made + under_way + put_together + ahead  # and of each lane slices of its table


@pytest.mark.skipif(page_library() is None, reason="pyarrow reads one lane after the other")
def test_each_lane_that_is_read_at_once_has_a_batch_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "rows.parquet")
    flow = ps.Flow("read", lanes=4)
    flow.read_parquet(tmp_path).filter(ps.field("n") > 0).collect("found")
    assert "2 lanes are read at once where there are threads for it" in flow.explain(1)
    (two, *_) = memory_bound(plan_job(flow, 1)).processes
    monkeypatch.setattr(bounds, "LANES_AT_ONCE", 1)
    (one, *_) = memory_bound(plan_job(flow, 1)).processes
    assert two.in_hand - one.in_hand == BATCH


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


def test_parquet_sinks_hold_a_row_group_its_pages_and_what_waits_for_the_disk(tmp_path: Path) -> None:
    *_, gather = memory_bound(plan_job(shuffled(tmp_path / "out"), 2)).processes
    assert gather.writing == LIMIT_BYTES + 2 * 64 * MIB


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
    assert told[0] == "  by_n: 68.1 MiB in flight: 4 channels, 16.0 MiB of credit and a batch of 1.0 MiB"
    assert told[1] == "  all: 36.1 MiB in flight: 2 channels, 16.0 MiB of credit and a batch of 2.0 MiB"
    assert told[3] == "  stage rows: each of 2 processes 34.0 MiB in flight, 5.1 MiB in hand"
    assert told[4] == "    filter-1: 1.0 MiB that it makes at a time"
    assert "1.5 GiB in operators (512.0 MiB before they spill)" in told[5]
    assert told[-3:] == [
        f"  in all: {size(memory_bound(plan).bytes or 0)}",
        "  beside that, whatever it is: a row of more than 16.0 MiB, and",
        "    found: what it keeps",
    ]


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        (pa.int8(), 9 * CHUNK_ROWS // 8),
        (pa.bool_(), 2 * CHUNK_ROWS // 8),
        (pa.decimal128(9), 129 * CHUNK_ROWS // 8),
        (pa.binary(64), 513 * CHUNK_ROWS // 8),
        (pa.binary(200), OUTPUT_BYTES),
        (pa.string(), OUTPUT_BYTES),
        (pa.list_(pa.int64()), OUTPUT_BYTES),
        (pa.dictionary(pa.int32(), pa.string()), 33 * CHUNK_ROWS // 8),
        (pa.struct({"a": pa.int64(), "b": pa.string()}), OUTPUT_BYTES),
    ],
)
def test_batch_has_what_its_rows_have_and_no_more_than_a_piece(type: pa.DataType, expected: int) -> None:
    assert batch_bytes(pa.schema({"x": type})) == expected


def test_what_a_feed_keeps_of_texts_is_called_a_guess() -> None:
    flow = ps.Flow("fed")
    flow.from_tables([pa.table({"x": ["one"]})]).feed(batch_size=10, room=1000, keep=500, name="ranks")
    (part,) = memory_bound(plan_job(flow, 1)).processes[-1].parts
    assert part.kept == (1000 + 500 + 10) * TEXT_BYTES
    assert str(part) == "ranks: 47.2 KiB until it is written or taken, a guess, with 32 bytes for a text or a list"


def test_what_a_feed_keeps_of_texts_is_no_guess_where_its_room_is_in_bytes() -> None:
    for room, words in (("2GiB", "2.0 GiB"), (None, "256.0 MiB")):
        flow = ps.Flow("fed")
        flow.from_tables([pa.table({"x": ["one"]})]).feed(batch_size=10, room=room, keep=500, name="ranks")
        (part,) = memory_bound(plan_job(flow, 1)).processes[-1].parts
        assert str(part) == f"ranks: {words} until it is written or taken"
        assert part.beyond == "the 520 rows of the batch that is wanted next, and of those that stay"


def test_what_has_no_bound_is_said_in_words(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"k": [1], "x": ["one"]}), tmp_path / "rows.arrow")
    flow = ps.Flow("words")
    rows = flow.read_ipc(tmp_path / "rows.arrow", name="rows")
    joined = rows.filter("k > 0").merge_join(flow.from_tables([pa.table({"k": [1]})]), on=["k"], name="joined")
    joined.sort("k").write_parquet(tmp_path / "out")
    found = memory_bound(plan_job(flow, 1)).unbounded
    assert found == ("rows: a batch as it is given", "joined: the rows of one key, and the last ones of each side")


def test_operator_that_holds_counters_alone_needs_no_budget() -> None:
    flow = ps.Flow("counters")
    flow.from_tables([NUMBERS.empty_table()]).limit(3).collect("found")
    assert [each.budget for each in memory_bound(plan_job(flow, 1)).processes] == [0] * len(plan_job(flow, 1).stages)


def test_tables_in_memory_count_and_nothing_is_read_of_them() -> None:
    table = pa.table({"n": range(1000)})
    few, many = ps.Flow("few"), ps.Flow("many")
    for flow, tables in ((few, 1), (many, 4)):
        flow.from_tables([table] * tables).collect("found")
    held = [memory_bound(plan_job(flow, 1)).processes[0].in_hand for flow in (few, many)]
    assert held[1] - held[0] == 3 * table.nbytes


def test_explain_shows_the_compression_of_an_edge() -> None:
    text = shuffled().explain(2, runtime=ps.Runtime(compression={"all": "zstd"}))
    edges = {line.split(":")[0].strip(): line for line in text.splitlines() if "all to all" in line}
    assert edges["all"].endswith("; zstd between machines")
    assert "between machines" not in edges["by_n"]
    assert shuffled().explain(2, runtime=ps.Runtime(compression="lz4")).count("; lz4 between machines") == 2


def test_compression_of_an_edge_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match=r"'by_m', which the flow does not have[\s\S]*are by_n, all"):
        shuffled().explain(runtime=ps.Runtime(compression={"by_m": "lz4"}))

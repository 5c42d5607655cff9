"""Streaming and hash aggregation in windows: rows, batches, masks, spilling, and a consumer that holds them up.

Each docstring begins with the scenario's id.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine.core.errors import FlowError
from penstock.engine.flow.flow import Flow
from penstock.engine.operators import Aggregate, HashAggregate, SortKey, StreamAggregate
from penstock.engine.state.memory import TaskMemory
from support.scenario_tasks import (
    MODES,
    In,
    Sluggish,
    batches_out,
    cut_at,
    finish,
    joined,
    own,
    read,
    rows,
    run,
    scan,
    split,
    table,
    values,
    window,
)

PAIRS = table(c0=[], c1=[])


def pairs(keys, numbers):
    return {"rows": split(c0=keys, c1=numbers)}


# ---------------------------------------------------------------------- hash aggregation


@MODES
def test_sum_of_everything_is_one_row_per_window_and_none_for_the_empty_end(degree, make_task):
    """ha.barrier.global: 100, then 260. Velox adds a row of null for the empty stretch before the end; here nothing
    follows the last barrier."""
    task = make_task(scan(Flow("plan"), like=PAIRS).aggregate(sum=("c1", "sum")), degree)
    sets = [pairs([1, 2, 3, 4], [10, 20, 30, 40]), pairs([5, 6, 7, 8], [50, 60, 70, 80])]
    assert [values(each) for each in run(task, sets, barriers=True)] == [[100], [260], []]


@MODES
def test_empty_window_of_a_global_aggregate_has_its_row(degree, make_task):
    """ha.barrier.global: an empty window that the caller has closed is a window: its sum is null. So is a task without
    any row."""
    task = make_task(scan(Flow("plan"), like=PAIRS).aggregate(sum=("c1", "sum")), degree)
    assert values(window(task)) == [None]
    assert finish(task) == []
    untouched = make_task(scan(Flow("plan"), like=PAIRS).aggregate(sum=("c1", "sum")), degree)
    assert values(finish(untouched)) == [None]


@MODES
def test_distinct_count_of_everything_forgets_the_values_at_a_barrier(degree, make_task):
    """ha.barrier.globalDistinct: 2, then 3; no 0 for the empty end."""
    task = make_task(scan(Flow("plan"), like=PAIRS).aggregate(n=("c0", "count_distinct")), degree)
    sets = [pairs([1, 1, 2, 2], [10, 20, 30, 40]), pairs([1, 3, 3, 4], [50, 60, 70, 80])]
    assert [values(each) for each in run(task, sets, barriers=True)] == [[2], [3], []]


@MODES
def test_list_of_everything_is_sorted_within_its_window(degree, make_task):
    """ha.barrier.globalSorted: c1 in descending order, per window."""
    listed = Aggregate("", "c1", "collect_list", order_by=(SortKey("c1", descending=True),))
    task = make_task(scan(Flow("plan"), like=PAIRS).aggregate(arr=listed), degree)
    sets = [pairs([1, 1, 2, 2], [10, 20, 30, 40]), pairs([1, 3, 3, 4], [50, 60, 70, 80])]
    assert [values(each) for each in run(task, sets, barriers=True)] == [[[40, 30, 20, 10]], [[80, 70, 60, 50]], []]


ABANDONED = [
    pairs([1, 1, 2, 2], [10, 20, 30, 40]),
    pairs([1, 3, 3, 4], [50, 60, 70, 80]),
    pairs([5, 5, 6], [90, 100, 110]),
]


@MODES
def test_partial_aggregation_groups_every_window(degree, make_task):
    """ha.barrier.abandonedPartial: Velox gives partial grouping up when it does not pay, and passes rows on one by one.
    Here it never does (groups that are too large go to disk), so each window has one state per key."""
    partial = HashAggregate(("c0",), (Aggregate("avg", "c1", "mean"),), step="partial")
    flow = Flow("plan")
    task = make_task(flow.apply(partial, [scan(flow, like=PAIRS)]), degree)
    assert [values(each) for each in run(task, ABANDONED, barriers=True)] == [[1, 2], [1, 3, 4], [5, 6], []]


@MODES
def test_partial_and_final_aggregation_agree_on_every_window(degree, make_task):
    """ha.barrier.abandonedPartial: the means that the states add up to."""
    task = make_task(scan(Flow("plan"), like=PAIRS).aggregate(by=["c0"], avg=("c1", "mean")), degree)
    windows = [rows(each) for each in run(task, ABANDONED, barriers=True)]
    assert windows == [
        [(1, 15.0), (2, 35.0)],
        [(1, 50.0), (3, 65.0), (4, 80.0)],
        [(5, 95.0), (6, 110.0)],
        [],
    ]


@MODES
def test_spilled_aggregation_drains(degree, make_task, tmp_path):
    """ha.barrier.spilled: Velox refuses. Here the files are merged and emitted, and are gone after the barrier."""
    memory = TaskMemory(budget=100_000, folder=str(tmp_path / "spill"))
    aggregate = HashAggregate(("k",), (Aggregate("n", None, "count"), Aggregate("v", "v", "first")))
    flow = Flow("plan")
    like = pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], pa.string())})
    spilling = In(aggregate, {"memory": memory.account("aggregate"), "output_rows": 100})
    task = make_task(flow.apply(spilling, [scan(flow, like=like)]), degree)
    given = pa.table({"k": [n % 1500 for n in range(2000)], "v": [f"{n:0128}" for n in range(2000)]})
    expected = [(n, 2 if n < 500 else 1, f"{n:0128}") for n in range(1500)]
    for cycle in (1, 2):
        assert rows(window(task, rows=split(given))) == expected
        spilled = memory.statistics()
        assert spilled.spilled_files >= cycle
        assert (spilled.held, spilled.files) == (0, 0)
    assert finish(task) == []
    memory.release()


@MODES
@pytest.mark.parametrize("held", ["hold", "flush"])
def test_operator_that_holds_goes_on_over_barriers(held, degree, make_task):
    """ha.barrier.global: beyond Velox, the plan may tell an operator to keep what it holds at a barrier: then its rows
    come at the end, over all windows."""
    counted = scan(Flow("plan"), like=PAIRS).gather().aggregate(by=["c0"], n="count", at_barrier=held)
    task = make_task(counted.sort("c0", at_barrier=held), degree)
    windows = [rows(each) for each in run(task, [pairs([1, 2, 1], [0, 0, 0])] * 2, barriers=True)]
    once = [(1, 2), (2, 1)]
    assert windows == ([[], [], [(1, 4), (2, 2)]] if held == "hold" else [once, once, []])


# ---------------------------------------------------------------------- streaming aggregation


def test_operators_that_never_ran_are_closed(make_task):
    """sa.closeUninitialized: an unknown function fails when the flow is built, so there is no half-made operator. A
    task that is cancelled before it began closes operators that never saw a row."""
    rows = scan(Flow("plan"))
    with pytest.raises(FlowError, match="do_not_exist"):
        rows.project("c0", x="do_not_exist(c0)")
    task = make_task(rows.stream_aggregate(by=["c0"], n="count"))
    task.cancel()
    assert [each.state for found in task.statistics() for each in found.drivers] == ["released"]


CLUSTERED = (
    ([1, 1, None, 2, 2], [0, 1, 2, 3, 4]),
    ([2, 3, 3, 4], [5, 6, 7, 8]),
    ([5, 6, 6, 6], [9, 10, 11, 12]),
    ([6, 6, 6, 6], [13, 14, 15, 16]),
    ([6, 7, 8], [17, 18, 19]),
)
KEYED = table(c0=[], payload=[])


def staged(output_rows: int):
    """Partial and final streaming aggregation."""
    payload = [Aggregate(name, "payload", name) for name in ("min", "max", "sum")]
    ones = [Aggregate("ones", "one", "sum"), Aggregate("none", "nothing", "sum")]
    partial = StreamAggregate(("c0",), (Aggregate("n", None, "count"), *payload, *ones), step="partial")
    rows = scan(Flow("plan", lanes=1), like=KEYED).with_columns(one="1", nothing="cast(null as int)")
    states = cut_at(rows, partial, output_rows, "partial")
    return cut_at(states, partial.final(rows.schema), output_rows, "final")


@MODES
@pytest.mark.parametrize(
    ("output_rows", "whole", "batches"), [(64, False, 5), (1, False, 9), (64, True, 2), (4, True, 3)]
)
def test_groups_come_out_with_the_round_in_which_they_end(output_rows, whole, batches, degree, make_task):
    """sa.preferredOutputBatchBytes: the rows of the source, in its order. Velox's batches follow from bytes; here a
    round's groups leave at its end in batches of at most ``output_rows`` rows, so their number does not depend on an
    estimate: those that ended in a round come with it, the last ones with the barrier."""
    task = make_task(staged(output_rows), degree)
    splits = [pa.table({"c0": keys, "payload": payload}) for keys, payload in CLUSTERED]
    for each in [pa.concat_tables(splits)] if whole else splits:
        task.add_split("rows", split(each))
    task.request_barrier()
    expected = [
        (1, 2, 0, 1, 1, 2, None),
        (None, 1, 2, 2, 2, 1, None),
        (2, 3, 3, 5, 12, 3, None),
        (3, 2, 6, 7, 13, 2, None),
        (4, 1, 8, 8, 8, 1, None),
        (5, 1, 9, 9, 9, 1, None),
        (6, 8, 10, 17, 108, 8, None),
        (7, 1, 18, 18, 18, 1, None),
        (8, 1, 19, 19, 19, 1, None),
    ]
    assert rows(read(task)) == expected
    assert batches_out(task, "final") == batches


@MODES
@pytest.mark.parametrize("output_rows", [1, 64, 2**31 - 1])
def test_no_group_is_lost_before_a_consumer_that_refuses(output_rows, degree, make_task):
    """sa.noRowLossWithBackpressuringDownstream: 200 batches of 100 groups before a consumer that takes three trips to
    another thread for each batch, and takes no other one meanwhile."""
    first = StreamAggregate(("c0",), (Aggregate("x", "payload", "first"),))
    groups = cut_at(scan(Flow("plan", lanes=1), like=KEYED), first, output_rows, "groups")
    cycles = 3 if output_rows > 1 else 1
    task = make_task(own(groups.gather(), lambda context: Sluggish(context, cycles)), degree)
    count = 200 if output_rows > 1 else 10
    for number in range(count):
        keys = range(number * 100, number * 100 + 100)
        task.add_split("rows", split(c0=keys, payload=keys))
    assert values(finish(task)) == list(range(count * 100))


@MODES
def test_null_keys_are_left_out_by_a_filter_before_streaming_aggregation(degree, make_task):
    """sa.ignoreNullKeys: not an option of streaming aggregation here either; hash aggregation has it, and a filter
    before does the same."""
    with pytest.raises(TypeError, match="ignore_null_keys"):
        StreamAggregate(("c0",), (), ignore_null_keys=True)
    keys = pa.table({"c0": [1, None, 1, 2], "payload": [1, 2, 3, 4]})
    flow = Flow("plan")
    stream = scan(flow, like=KEYED)
    streamed = stream.filter("c0 is not null").stream_aggregate(by=["c0"], s=("payload", "sum"))
    hashed = stream.aggregate(by=["c0"], ignore_null_keys=True, s=("payload", "sum"))
    task = make_task(streamed.gather().union(hashed), degree)
    assert rows(window(task, rows=split(keys))) == [(1, 4), (2, 4)] * 2
    assert joined([finish(task)]) == []

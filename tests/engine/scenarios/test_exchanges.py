"""Exchanges inside a task: order, parts, windows, and channels that hold next to nothing.

Each docstring begins with the scenario's id.
"""

from __future__ import annotations

import pytest

from penstock.engine.exchange.channels import OutputChannel
from penstock.engine.flow.flow import Flow
from penstock.engine.operators import Sort, SortKey
from support.scenario_tasks import (
    MODES,
    batches_out,
    cut_at,
    finish,
    joined,
    read,
    rows,
    rows_read,
    run,
    scan,
    split,
    table,
    values,
    window,
)


@pytest.fixture(params=[100, 10_240])
def credit(request, monkeypatch):
    """Channels let so many bytes be under way: one batch, or a few."""
    monkeypatch.setattr(OutputChannel.__init__, "__defaults__", (request.param,))
    return request.param


def gathered(flow: Flow):
    first, *others = (scan(flow, name).gather() for name in "abc")
    return first.union(*others)


@MODES
def test_gather_keeps_the_order_of_its_sources(degree, make_task):
    """lp.gatherPreservesOrderSerial: three sources, then a number per row: source after source, in serial mode in
    Velox, in every mode here."""
    task = make_task(gathered(Flow("plan")).window([], r="row_number"), degree)
    given = ([10, 20, 30, 40, 50, 60], [70, 80], [90, 100, 110, 120])
    found = window(task, **{name: split(c0=each) for name, each in zip("abc", given, strict=True)})
    assert rows(found) == [(10 * number, number) for number in range(1, 13)]


@MODES
def test_order_of_sources_in_several_splits_is_that_of_their_rounds(degree, make_task):
    """lp.gatherPreservesOrderSerial: a split each per round; the order is known before anything runs."""
    task = make_task(gathered(Flow("plan")), degree)
    for name, each in (("a", (10, 30, 50)), ("b", (70,)), ("c", (90, 110))):
        for value in each:
            task.add_split(name, split(c0=[value, value + 10]))
    assert values(finish(task)) == [10, 20, 70, 80, 90, 100, 30, 40, 110, 120, 50, 60]


@MODES
@pytest.mark.parametrize("barriers", [True, False])
def test_gather_through_channels_that_hold_one_batch_loses_nothing(barriers, degree, make_task, credit):
    """lp.maxBufferSizeGather: producers stop and go on; 2100 rows in 21 batches, and no deadlock."""
    task = make_task(gathered(Flow("plan")), degree)
    sets = [{name: split(c0=range(-71 + 10 * n, 29 + 10 * n)) for name in "abc"} for n in range(7)]
    found = joined(run(task, sets, barriers=barriers))
    assert (len(values(found)), min(values(found)), max(values(found))) == (2100, -71, 88)
    assert batches_out(task, "union-1") == len(found) == 21


@MODES
@pytest.mark.parametrize("barriers", [True, False])
def test_hash_exchange_through_channels_that_hold_one_batch_loses_nothing(barriers, degree, make_task, credit):
    """lp.maxBufferSizePartition: three scans of seven splits, each into two parts by key: 42 batches, one per scan,
    round and part."""
    flow = Flow("plan", parts=2)
    first, *others = (scan(flow, name).partition_by("c0") for name in "abc")
    task = make_task(first.union(*others, name="all"), degree)
    sets = [{name: split(c0=range(100 * n, 100 * n + 100)) for name in "abc"} for n in range(7)]
    found = joined(run(task, sets, barriers=barriers))
    assert sorted(values(found)) == sorted([*range(700)] * 3)
    assert batches_out(task, "all") == 42


BUFFERED = [range(100), range(53, 153), range(-71, 929), range(-69, 931)]


@MODES
@pytest.mark.parametrize(("whole", "batches"), [(False, 8), (True, 2)])
def test_parts_of_a_round_come_as_one_batch_each(whole, batches, degree, make_task):
    """lp.partitionBuffering: Velox fills a buffer per part, whose bytes decide the batches. Here a round does: a round
    per split gives 8 batches, one round 2."""
    task = make_task(scan(Flow("plan", parts=2)).partition_by("c0").project("c0"), degree)
    everything = [value for each in BUFFERED for value in each]
    for each in [everything] if whole else BUFFERED:
        task.add_split("rows", split(c0=each))
    found = finish(task)
    assert sorted(values(found)) == sorted(everything)
    assert len(found) == batches
    parts = [set(values(found[place::2])) for place in (0, 1)]
    assert not parts[0] & parts[1], "a key has one part"


@MODES
def test_rows_of_a_cycle_pass_a_hash_exchange_before_its_barrier(degree, make_task):
    """tb.derived.hashExchangeManyPartitions: 64 parts. In Velox rows stay in the buffers of the parts over the barrier;
    here what is before it in time is before it in the stream."""
    task = make_task(scan(Flow("plan", parts=64)).partition_by("c0").project("c0"), degree)
    for cycle in range(2):
        given = range(cycle * 10, cycle * 10 + 10)
        assert sorted(values(window(task, rows=split(c0=given)))) == list(given)
    assert finish(task) == []


@MODES
@pytest.mark.parametrize("kind", ["partition_by", "rebalance", "partition_by_range"])
def test_windows_behind_each_kind_of_exchange_are_those_before_it(kind, degree, make_task):
    """tb.derived.hashExchangeManyPartitions: in turn and by range, with an aggregate that drains on either side."""
    like = table(k=[], v=[])
    sums = scan(Flow("plan", parts=8), like=like).stream_aggregate(by=["k"], v=("v", "sum"))
    arguments = {"partition_by": ("k",), "rebalance": (), "partition_by_range": ("k", [2, 4])}[kind]
    regrouped = getattr(sums, kind)(*arguments).aggregate(by=["k"], v=("v", "sum"))
    task = make_task(regrouped, degree)
    for _ in range(3):
        found = window(task, rows=split(k=[1, 1, 2, 3, 1], v=[1, 2, 3, 4, 5]))
        assert sorted(rows(found)) == [(1, 8), (2, 3), (3, 4)]
    assert finish(task) == []


@MODES
def test_join_of_exchanged_sides_drains_with_tiny_channels(degree, make_task, credit):
    """lp.maxBufferSizePartition: both sides of a join come through exchanges; neither waits for the other for ever."""
    flow = Flow("plan", parts=4)
    left, right = table(k=[], v=[]), table(k=[], w=[])
    sides = [scan(flow, name, like).partition_by("k") for name, like in (("left", left), ("right", right))]
    task = make_task(sides[0].hash_join(sides[1], on=["k"]), degree)
    for cycle in range(2):
        keys = range(cycle * 500, cycle * 500 + 500)
        found = window(task, left=split(k=keys, v=keys), right=split(k=keys, w=keys))
        assert sorted(rows(found)) == [(key, key, key) for key in keys]
    assert rows_read(task) == {"left": 1000, "right": 1000}


@MODES
def test_merge_of_sorted_sources_is_a_sort_of_their_union(degree, make_task):
    """merge.offByOne: there is no operator that merges sorted streams by key: streams are merged by their order tags.
    What the source's merge gives, a sort of the union does."""
    flow = Flow("plan")
    task = make_task(scan(flow, "a").union(scan(flow, "b")).sort("c0"), degree)
    for _ in range(2):
        assert values(window(task, a=split(c0=[0, 1, 10]), b=split(c0=[2, 3, 4, 5]))) == [0, 1, 2, 3, 4, 5, 10]


MERGES = [(1, 1, 1, 1, 1), (3, 1, 1, 1, 3), (3, 4, 1, 1, 12), (3, 4, 32, 1, 384)]
MERGES += [(1, 1, 1, 1024, 1), (3, 1, 1, 1024, 1), (3, 4, 32, 1024, 1)]


@MODES
@pytest.mark.parametrize(("sources", "splits", "rows_each", "output_rows", "batches"), MERGES)
def test_merged_rows_come_in_batches_of_the_wanted_size(
    sources, splits, rows_each, output_rows, batches, degree, make_task
):
    """merge.outputSize: the rows of the table that bound rows; a bound in bytes is not offered."""
    flow = Flow("plan")
    first, *others = (scan(flow, name) for name in "abc"[:sources])
    both = (first.union(*others) if others else first).gather()
    task = make_task(cut_at(both, Sort((SortKey("c0"),)), output_rows, "sort"), degree)
    for name in "abc"[:sources]:
        for number in range(splits):
            task.add_split(name, split(c0=range(number * rows_each, number * rows_each + rows_each)))
    task.request_barrier()
    found = read(task)
    assert values(found) == sorted([*range(splits * rows_each)] * sources)
    assert len(found) == batches

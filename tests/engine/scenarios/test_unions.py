"""Unions of scans under barriers: each window brings exactly the rows of its splits, whichever source is longer.

In each window the rows of the first source come first, then those of the second: an order that Velox does not promise.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine.flow.flow import Flow
from support.scenario_tasks import MODES, read, rows, rows_read, run, scan, split, table, values, window

SIZES = {
    "tb.mixedUnion.barrierExecution": [[100], [100]],
    "tb.mixedUnion.barrierWithMultipleSplits": [[50, 50, 50], [50, 50, 50]],
    "tb.mixedUnion.barrierWithThreeSources": [[100], [100], [100]],
    "tb.mixedUnion.barrierWithEmptySource": [[100], [0]],
    "tb.mixedUnion.barrierWithUnequalSourceSizes": [[1000], [10]],
    "tb.mixedUnion.barrierMultipleBarrierCycles": [[40, 40, 40], [40, 40, 40]],
    "tb.mixedUnion.barrierWithSourceFinishedBeforeDrain": [[1000], [1]],
    "tb.mixedUnion.barrierWithAllEmptySources": [[0], [0]],
    "tb.mixedUnion.barrierWithThreeSourcesOneEmpty": [[100], [0], [50]],
    "tb.mixedUnion.drainOneSideFinishedOtherProducing": [[500], [0]],
    "tb.mixedUnion.drainWithPendingDataOnOneSide": [[200], [50]],
    "tb.mixedUnion.multipleBarrierCyclesAlternatingCompletion": [[100, 10, 100, 10], [10, 100, 10, 100]],
    "tb.mixedUnion.drainThreeSourcesMixedStates": [[0], [20], [500]],
    "tb.mixedUnion.rapidBarrierCyclesMinimalData": [[5, 5, 5, 5, 5], [5, 5, 5, 5, 5]],
}
"""Rows of each split of each source."""

NAMES = "abc"


def union(sources: int):
    flow = Flow("union")
    first, *others = (scan(flow, name) for name in NAMES[:sources])
    return first.union(*others)


@MODES
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_union_gives_each_window_the_rows_of_its_splits(sizes, degree, make_task):
    """tb.mixedUnion.…: one split per source, then a barrier; rows that came before it, and their number in all."""
    task = make_task(union(len(sizes)), degree)
    sets, expected = [], []
    for counts in zip(*sizes, strict=True):
        begins = [1000 * source for source in range(len(counts))]
        ranges = [range(begin, begin + count) for begin, count in zip(begins, counts, strict=True)]
        sets.append({name: split(c0=each) for name, each in zip(NAMES, ranges, strict=False)})
        expected.append([value for each in ranges for value in each])
    windows = run(task, sets, barriers=True)
    assert [values(each) for each in windows] == [*expected, []]


@MODES
def test_batches_of_a_source_come_in_the_order_of_the_union_however_they_are_cut(degree, make_task, one_row_batches):
    """tb.mixedUnion.drainWithPendingDataOnOneSide: the same in batches of one row, where one side always waits."""
    task = make_task(union(2), degree)
    windows = run(task, [{"a": split(c0=range(20)), "b": split(c0=range(100, 105))}] * 2, barriers=True)
    assert [values(each) for each in windows] == [[*range(20), *range(100, 105)]] * 2 + [[]]


@MODES
def test_projection_behind_a_union_sees_every_row(degree, make_task):
    """tb.mixedUnion.barrierWithProject: c0, c1 and their sum over 50 + 50 rows."""
    flow = Flow("union")
    like = table(c0=[], c1=[])
    task = make_task(scan(flow, "a", like).union(scan(flow, "b", like)).project("c0", "c1", s="c0 + c1"), degree)
    batches = window(task, a=split(c0=range(50), c1=range(50)), b=split(c0=range(50, 100), c1=range(50)))
    assert rows(batches) == [(n, n % 50, n + n % 50) for n in range(100)]


@MODES
def test_filter_behind_a_union_sees_every_row(degree, make_task):
    """tb.mixedUnion.barrierWithFilter: 50 <= c0 < 150 of 0..99 and 100..199."""
    flow = Flow("union")
    task = make_task(scan(flow, "a").union(scan(flow, "b")).filter("c0 >= 50 and c0 < 150"), degree)
    assert values(window(task, a=split(c0=range(100)), b=split(c0=range(100, 200)))) == list(range(50, 150))


@MODES
def test_statistics_of_a_union_tell_the_barrier_and_the_rows_of_both_sources(degree, make_task):
    """tb.mixedUnion.barrierTaskStats: one barrier, two splits, 200 rows."""
    task = make_task(union(2), degree)
    for name in "ab":
        task.add_split(name, split(c0=range(100)))
    reached = task.request_barrier()
    assert len(values(read(task))) == 200
    assert reached.result().barrier == 1
    assert reached.result().rows["union-1"] == 200
    assert rows_read(task) == {"a": 100, "b": 100}


@MODES
def test_aggregates_above_and_below_a_union_drain_in_its_window(degree, make_task):
    """tb.mixedUnion.barrierExecution: what the inputs of a union emit at a barrier comes behind the ends of their
    rounds; it still belongs to the window. Velox does not try this."""
    flow = Flow("union")
    like = table(k=[], v=[])
    sums = [scan(flow, name, like).stream_aggregate(by=["k"], v=("v", "sum")) for name in "ab"]
    task = make_task(sums[0].union(sums[1]).aggregate(by=["k"], v=("v", "sum")), degree)
    given = pa.table({"k": [1, 1, 2], "v": [1, 2, 3]})
    sets = [{"a": split(given), "b": split(given)}] * 3
    assert [rows(each) for each in run(task, sets, barriers=True)] == [[(1, 6), (2, 6)]] * 3 + [[]]

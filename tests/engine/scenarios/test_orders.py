"""Operators that order, number, mark or count rows: limit, sort, top-n, window, mark distinct.

Each docstring begins with the scenario's id.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine.core.errors import FlowError
from penstock.engine.flow.flow import Flow
from penstock.engine.operators import Aggregate, MarkDistinct, Sort, SortKey, WindowFunction
from support.scenario_tasks import MODES, cut_at, finish, read, rows, scan, split, table, values, window

# ---------------------------------------------------------------------- limit

BIG = 2**31
LIMITS = [
    (0, 10, 10), (0, BIG + 1_000_000, 3000), (0, 1234, 1234), (17, 10, 10), (17, 983, 983), (17, 2000, 2000),
    (BIG + 1000, BIG + 1000, 0), (BIG + 1000, 2000, 0), (1000, 145, 145), (1000, 1000, 1000), (1000, 1234, 1234),
    (1234, 10, 10), (1234, 983, 983), (1234, 1000, 1000), (1234, 2000, 1766), (12345, 10, 0),
]  # fmt: skip


@MODES
@pytest.mark.parametrize(("offset", "count", "passed"), LIMITS)
def test_limit_passes_what_lies_between_offset_and_end(offset, count, passed, degree, make_task):
    """limit.basic: three batches of 1000 rows, every fifth null; numbers above 2³¹ count as well as others."""
    task = make_task(scan(Flow("plan")).limit(count, offset=offset), degree)
    everything = [None if row % 5 == 0 else 1000 * batch + row for batch in range(3) for row in range(1000)]
    for batch in range(3):
        task.add_split("rows", split(c0=everything[batch * 1000 : batch * 1000 + 1000]))
    assert values(finish(task)) == everything[offset : offset + passed]


# ---------------------------------------------------------------------- sort, top-n


@MODES
@pytest.mark.parametrize(("count", "output_rows", "batches"), [(1024, 100, 11), (1000, 100, 10), (1000, 1, 1000)])
def test_sorted_rows_come_in_batches_of_the_wanted_size(count, output_rows, batches, degree, make_task):
    """orderby.outputBatchRows: key null every five rows, nulls last. Batches are bounded by rows; Velox's bound in
    bytes (a row of 257 columns per batch) is not offered: how wide rows are the caller knows."""
    flow = Flow("plan")
    task = make_task(cut_at(scan(flow), Sort((SortKey("c0"),)), output_rows, "sort"), degree)
    keys = [None if row % 5 == 0 else count - row for row in range(count)]
    expected = [*sorted(key for key in keys if key is not None), *(key for key in keys if key is None)]
    for _ in range(2):
        found = window(task, rows=split(c0=keys))
        assert values(found) == expected
        assert len(found) == batches


def test_top_n_without_sense_is_refused_when_the_flow_is_built():
    """topn.validation: no key, no row to keep, the same key twice."""
    stream = scan(Flow("plan"), like=table(a=[], b=[]))
    for count, keys, message in (
        (5, (), "no key is given"),
        (0, ("a",), "cannot keep 0 rows"),
        (5, ("a", "b", "a"), "'a'"),
    ):
        with pytest.raises(FlowError, match=message):
            stream.top_n(count, *keys)


# ---------------------------------------------------------------------- window


@MODES
@pytest.mark.parametrize("whole", [False, True])
def test_rank_of_peers_does_not_depend_on_batches(whole, degree, make_task):
    """window.peerAcrossBatches: four rows of one partition with one order key, in one split or in two."""
    like = table(p=[], s=[])
    task = make_task(scan(Flow("plan"), like=like).window(["p"], ["s"], is_sorted=True, rank="rank"), degree)
    for _ in range(1 if whole else 2):
        task.add_split("rows", split(p=[1] * (4 if whole else 2), s=[10] * (4 if whole else 2)))
    assert [row[2] for row in rows(finish(task))] == [1, 1, 1, 1]


@MODES
def test_barrier_ends_a_partition_of_a_window(degree, make_task):
    """window.peerAcrossBatches: beyond Velox, whose window refuses barriers: behind one, ranks begin anew."""
    like = table(p=[], s=[])
    stream = scan(Flow("plan"), like=like).window(["p"], ["s"], is_sorted=True, n="row_number", t=("s", "sum"))
    task = make_task(stream, degree)
    for _ in range(2):
        assert rows(window(task, rows=split(p=[1, 1, 2], s=[10, 11, 12]))) == [
            (1, 10, 1, 10),
            (1, 11, 2, 21),
            (2, 12, 1, 12),
        ]


def test_keys_of_a_window_must_differ():
    """window.validation: partition keys twice, an order key twice, a negative distance. A key that is both is taken: it
    orders nothing within its partition."""
    stream = scan(Flow("plan"), like=table(a=[], b=[], c=[], d=[]))
    for by, order, name in (
        (["a", "a"], ["b"], "a"),
        (["a", "b"], ["c", "d", "c"], "c"),
    ):
        with pytest.raises(FlowError, match=f"'{name}'"):
            stream.window(list(by), list(order), n="row_number")
    both = stream.window(["a", "b"], ["c", "b"], n="row_number")
    assert both.schema == stream.window(["a", "b"], ["c"], n="row_number").schema
    with pytest.raises(FlowError, match="negative offset -1"):
        stream.window(["a"], ["b"], n=WindowFunction("", "lag", "c", offset=-1))


def test_frames_with_bounds_are_refused_by_name():
    """window.kRangeSearch, window.nanFrameBound, window.nanFrameBoundAcrossOutputBatches: frames run from the start of
    their partition; those between bounds are not offered, and asking for one says what is."""
    stream = scan(Flow("plan"), like=table(a=[], b=[]))
    with pytest.raises(FlowError, match=r"frame='range between 2 preceding' does not fit[^$]*'rows' or 'range'"):
        stream.window(["a"], ["b"], n=WindowFunction("", "sum", "b", frame="range between 2 preceding"))


@MODES
def test_running_range_frame_includes_peers_and_puts_nan_last(degree, make_task):
    """window.nanFrameBound: what there is of it: NaN is a key like others, the largest, and its own only peer."""
    nan = float("nan")
    given = pa.table({"p": [1] * 5, "s": [1.0, 2.0, 2.0, nan, nan], "v": [1, 2, 3, 4, 5]})
    total = WindowFunction("", "sum", "v", frame="range")
    task = make_task(scan(Flow("plan"), like=given).window(["p"], ["s"], total=total, rank="rank"), degree)
    assert [row[3:] for row in rows(window(task, rows=split(given)))] == [(1, 1), (6, 2), (6, 2), (15, 4), (15, 4)]


# ---------------------------------------------------------------------- mark distinct

MARKS = {
    "md.withNulls": (
        [1, None, 1, None, None],
        [True, False, True, True, False],
        [False, True, True, False, True],
        ([True, True, False, False, False], [True, False, False, True, False], [False, True, True, False, False]),
    ),
    "md.nullMasks": (
        [1, 1, 1, 1],
        [None, True, False, True],
        [True, None, None, False],
        ([True, False, False, False], [False, True, False, False], [True, False, False, False]),
    ),
    "md.allMasksFalse": ([1, 2, 3], [False] * 3, [False] * 3, ([True] * 3, [False] * 3, [False] * 3)),
    "md.encodedMasks": (
        [1, 1, 1, 2, 2],
        [True, False, True, True, False],
        [True] * 5,
        ([True, False, False, True, False],) * 3,
    ),
}


@MODES
@pytest.mark.parametrize(("keys", "mask0", "mask1", "expected"), MARKS.values(), ids=MARKS)
def test_marks_stand_at_the_first_row_of_a_key_in_which_the_mask_is_true(
    keys, mask0, mask1, expected, degree, make_task
):
    """md.withNulls, md.nullMasks, md.allMasksFalse, md.encodedMasks: null is a key, a null mask is false. Keys are
    forgotten at a barrier."""
    given = pa.table({"c0": keys, "mask0": pa.array(mask0, pa.bool_()), "mask1": pa.array(mask1, pa.bool_())})
    marks = MarkDistinct(("c0",), "plain", (("mask0", "m0"), ("mask1", "m1")))
    flow = Flow("plan")
    task = make_task(flow.apply(marks, [scan(flow, like=given)]), degree)
    for _ in range(2):
        found = rows(window(task, rows=split(given)))
        assert tuple([row[place] for row in found] for place in (3, 4, 5)) == expected


@MODES
def test_marked_rows_aggregate_as_distinct_values(degree, make_task):
    """md.aggregation: two marks, then a masked sum for each, by key."""
    like = table(c0=[], c1=[], c2=[])
    flow = Flow("plan")
    first = flow.apply(MarkDistinct(("c0", "c1"), "new1"), [scan(flow, like=like)])
    both = flow.apply(MarkDistinct(("c0", "c2"), "new2"), [first])
    sums = {f"sum{n}": Aggregate("", f"c{n}", "sum", where=f"new{n}") for n in (1, 2)}
    task = make_task(both.aggregate(by=["c0"], **sums), degree)
    for c0, c1, c2 in (([1, 1], [1, 1], [1, 2]), ([1, 2], [1, 1], [1, 2]), ([2, 2], [2, 3], [1, 2])):
        task.add_split("rows", split(c0=c0, c1=c1, c2=c2))
    task.request_barrier()
    assert sorted(rows(read(task))) == [(1, 1, 3), (2, 6, 3)]

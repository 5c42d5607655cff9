"""Windows of whole plans: rows, batches and splits, with barriers and without, on the caller's thread and on others.

Each docstring begins with the scenario's id.
"""

from __future__ import annotations

import pytest

from penstock.engine.flow.flow import Flow
from penstock.engine.operators import Filter, Project, Unnest
from support.scenario_tasks import (
    BARRIERS,
    MODES,
    WIDE_MODES,
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


@WIDE_MODES
@BARRIERS
@pytest.mark.parametrize("output_rows", [23, 200])
def test_filter_and_project_give_one_batch_per_split(output_rows, barriers, degree, make_task):
    """tb.filterProject: five splits of one batch. Filter and project make no batches of their own, so their number does
    not depend on batch sizes."""
    given = table(c0=range(100), c1=range(100))
    kept = cut_at(scan(Flow("plan"), like=given), Filter("c1 % 10 > 0"), output_rows, "filter")
    sums = Project((("c0", "c0"), ("c1", "c1"), ("s", "c0 + c1")))
    task = make_task(cut_at(kept, sums, output_rows, "project"), degree)
    windows = run(task, [{"rows": split(given)}] * 5, barriers=barriers)
    expected = [(n, n, 2 * n) for n in range(100) if n % 10]
    assert [rows(each) for each in windows] == ([expected] * 5 + [[]] if barriers else [expected * 5])
    assert batches_out(task, "project") == 5
    assert rows_read(task) == {"rows": 500}


@WIDE_MODES
@BARRIERS
def test_gathered_scans_give_every_row_in_the_window_of_its_split(barriers, degree, make_task):
    """tb.localPartitionGather: three scans into one consumer, five splits each; in the order of the sources, however
    many threads there are."""
    flow = Flow("plan")
    first, *others = (scan(flow, name).gather() for name in "abc")
    task = make_task(first.union(*others), degree)
    sets = [{name: split(c0=range(at, at + 100)) for at, name in enumerate("abc")} for _ in range(5)]
    windows = run(task, sets, barriers=barriers)
    expected = [row for at in range(3) for row in range(at, at + 100)]
    assert [values(each) for each in windows] == ([expected] * 5 + [[]] if barriers else [expected * 5])
    assert rows_read(task) == {"a": 500, "b": 500, "c": 500}


class _Numbered:
    """Gives every row it ever sees another number."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, records):
        self._next += records.num_rows
        return {"id": range(self._next - records.num_rows, self._next)}


@MODES
@BARRIERS
def test_numbers_that_a_warm_object_gives_are_unique_over_all_windows(barriers, degree, make_task):
    """tb.assignUniqueId: there is no operator for that; a user's object is, as it lives as long as the task: a barrier
    flushes, it builds nothing anew."""
    stream = scan(Flow("plan")).map_batches(_Numbered, table(id=[]).schema).project("id")
    task = make_task(stream, degree)
    windows = run(task, [{"rows": split(c0=range(100))}] * 5, barriers=barriers)
    assert values(joined(windows)) == list(range(500))
    assert len(windows) == (6 if barriers else 1)


@MODES
def test_projection_of_two_splits_gives_them_one_after_the_other(degree, make_task):
    """tb.projectTwoSplits: c0 + 1 of 1, 2, 3 twice. Splits come in the order in which they were added: there are no
    sequence numbers to give."""
    task = make_task(scan(Flow("plan")).project(c0="c0 + 1"), degree)
    windows = run(task, [{"rows": split(c0=[1, 2, 3])}] * 2, barriers=True)
    assert [values(each) for each in windows] == [[2, 3, 4], [2, 3, 4], []]


# ---------------------------------------------------------------------- unnest

UNNEST_SPLIT = table(s=[[1, 2, 3]] * 100)


@WIDE_MODES
@BARRIERS
@pytest.mark.parametrize(("output_rows", "batches"), [(23, 70), (200, 10)])
def test_unnest_gives_the_same_batches_with_barriers_and_without(output_rows, batches, barriers, degree, make_task):
    """un.barrier: five splits of 100 lists of three elements, in batches of at most 23 and 200 rows."""
    stream = cut_at(scan(Flow("plan"), like=UNNEST_SPLIT), Unnest(("s",)), output_rows, "unnest")
    task = make_task(stream, degree)
    windows = run(task, [{"rows": split(UNNEST_SPLIT)}] * 5, barriers=barriers)
    assert values(joined(windows)) == [1, 2, 3] * 500
    assert batches_out(task, "unnest") == len(joined(windows)) == batches
    assert rows_read(task) == {"rows": 500}


# ---------------------------------------------------------------------- limit

LIMITS = [
    (0, 5000, 5000, 5),
    (0, 1000, 1000, 1),
    (0, 1500, 1500, 2),
    (0, 1999, 1999, 2),
    (0, 6000, 5000, 5),
    (1000, 1999, 1999, 2),
    (1000, 4000, 4000, 4),
    (1000, 500, 500, 1),
    (500, 5000, 4500, 5),
]


@MODES
@BARRIERS
@pytest.mark.parametrize(("offset", "count", "passed", "batches"), LIMITS)
def test_limit_counts_over_the_whole_task(offset, count, passed, batches, barriers, degree, make_task):
    """tb.limit: offset and limit count on over barriers. Velox ends the task at the limit; here barriers may still be
    requested, are reached, and bring nothing, without reading the splits before them."""
    task = make_task(scan(Flow("plan")).gather().limit(count, offset=offset, name="limit"), degree)
    windows = run(task, [{"rows": split(c0=range(n * 1000, n * 1000 + 1000))} for n in range(5)], barriers=barriers)
    assert values(joined(windows)) == list(range(offset, offset + passed))
    assert batches_out(task, "limit") == batches
    if barriers:
        needed = min(-(-(offset + count) // 1000), 5)
        assert rows_read(task) == {"rows": needed * 1000}, "splits behind the limit are not read"


@MODES
def test_limit_of_each_window_begins_anew(degree, make_task):
    """tb.limit: beyond Velox, a limit may count per window."""
    task = make_task(scan(Flow("plan")).gather().limit(2, offset=1, per="window"), degree)
    windows = run(task, [{"rows": split(c0=range(5))}] * 3, barriers=True)
    assert [values(each) for each in windows] == [[1, 2]] * 3 + [[]]


@MODES
def test_branch_that_has_reached_its_limit_does_not_hold_a_barrier_up(degree, make_task):
    """tb.derived.finishedDriver: a union of a scan with limit 1 and a scan. Velox needs every driver alive for a
    barrier; here the second window is reached although the limit was done in the first."""
    flow = Flow("plan")
    task = make_task(scan(flow, "few").limit(1).union(scan(flow, "all").gather()), degree)
    assert values(window(task, few=split(c0=[1, 2]), all=split(c0=[10]))) == [1, 10]
    assert values(window(task, few=split(c0=[3]), all=split(c0=[11, 12]))) == [11, 12]
    assert finish(task) == []


@MODES
def test_consumer_that_is_done_while_its_producers_run_makes_no_error(degree, make_task):
    """tb.derived.closedConsumer: a limit of 1 behind an exchange, many splits, then barriers. In Velox draining into
    the closed queue is an error."""
    task = make_task(scan(Flow("plan")).gather().limit(1), degree)
    for number in range(50):
        task.add_split("rows", split(c0=range(number, number + 100)))
    first = task.request_barrier()
    assert values(read(task)) == [0]
    assert first.result().rows["limit-1"] == 1
    assert window(task, rows=split(c0=[1])) == []
    assert finish(task) == []


@MODES
def test_limit_needs_nothing_more_and_the_caller_says_where_the_data_end(degree, make_task):
    """limit.overLocalExchange: a split of 1000 rows, and a limit of 20, which ends Velox's task. Here further splits
    are taken and not read, and the task ends when no more come: else what is held would come in any window."""
    task = make_task(scan(Flow("plan")).gather().limit(20), degree)
    assert values(window(task, rows=split(c0=range(1000)))) == list(range(20))
    task.add_split("rows", split(c0=range(1000)))
    assert finish(task) == []
    assert rows_read(task) == {"rows": 1000}

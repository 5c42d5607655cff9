"""How many batches unnest makes: each piece has at most the wanted number of rows, cut anywhere, also within a list.

Each docstring begins with the scenario's id. Without barriers first; ``test_windows.py`` has unnest under barriers.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine.core.errors import FlowError
from penstock.engine.flow.flow import Flow
from penstock.engine.operators import Unnest
from support.scenario_tasks import MODES, batches_out, cut_at, finish, rows, scan, split, table, values, window


def lists(count: int, size: int, nulls: int = 0) -> pa.Array:
    values = [[k * (row % 3) for k in range(size)] for row in range(count)]
    return pa.array([None if nulls and row % nulls == 0 else each for row, each in enumerate(values)])


def unnested(given: pa.Table, columns: tuple[str, ...], output_rows: int):
    return cut_at(scan(Flow("plan"), like=given), Unnest(columns), output_rows, "unnest")


IDENTITY = [
    (100, 1, 1, 100),
    (100, 1, 100, 1),
    (100, 4, 1, 400),
    (100, 4, 100, 4),
    (100, 4, 400, 1),
    (1024, 4, 256, 16),
    (1024, 4, 1024, 4),
    (1024, 4, 4096, 1),
    (1024, 1, 256, 4),
    (1024, 4, 7, 586),
    (1024, 1, 7, 147),
]


@MODES
@pytest.mark.parametrize(("count", "size", "output_rows", "batches"), IDENTITY)
def test_one_list_is_cut_at_the_wanted_number_of_rows(count, size, output_rows, batches, degree, make_task):
    """un.outputBatches.identity: lists of equal length beside a replicated column."""
    given = pa.table({"c0": range(count), "c1": lists(count, size)})
    task = make_task(unnested(given, ("c1",), output_rows), degree)
    found = window(task, rows=split(given))
    assert rows(found) == [(row, k * (row % 3)) for row in range(count) for k in range(size)]
    assert batches_out(task, "unnest") == len(found) == batches


PADDING = [
    (100, 1, 2, 100, 2),
    (100, 1, 2, 200, 1),
    (1024, 1, 4, 256, 16),
    (1024, 3, 4, 256, 16),
    (1024, 1, 4, 4096, 1),
    (1024, 3, 4, 4096, 1),
    (1024, 1, 4, 7, 586),
    (1024, 3, 4, 7, 586),
]


@MODES
@pytest.mark.parametrize(("count", "short", "long", "output_rows", "batches"), PADDING)
def test_shorter_lists_are_padded_and_cut_alike(count, short, long, output_rows, batches, degree, make_task):
    """un.outputBatches.padding: two lists side by side, the longer one decides."""
    given = pa.table({"c0": range(count), "c1": lists(count, short), "c2": lists(count, long)})
    task = make_task(unnested(given, ("c1", "c2"), output_rows), degree)
    found = window(task, rows=split(given))
    expected = [(row, k * (row % 3) if k < short else None, k * (row % 3)) for row in range(count) for k in range(long)]
    assert rows(found) == expected
    assert batches_out(task, "unnest") == len(found) == batches


@MODES
def test_null_list_is_an_empty_one_beside_a_longer_list(degree, make_task):
    """un.arrayWithNull: every sixth list is null; the other one decides the number of rows."""
    given = pa.table({"c0": range(1024), "c1": lists(1024, 3, nulls=6), "c2": lists(1024, 4)})
    task = make_task(unnested(given, ("c1", "c2"), 25), degree)
    found = window(task, rows=split(given))
    assert len(rows(found)) == 4096
    assert [row[1] for row in rows(found)[:8]] == [None, None, None, None, 0, 1, 2, None]
    assert len(found) == 164


@MODES
@pytest.mark.parametrize("output_rows", [2, 17, 33, 512])
def test_number_of_batches_is_that_of_the_rows(output_rows, degree, make_task):
    """un.batchSize: 1000 lists of three elements give 3000 rows in ceil(3000 / size) batches."""
    given = pa.table({"s": [[1, 2, 3]] * 1000})
    task = make_task(unnested(given, ("s",), output_rows), degree)
    found = window(task, rows=split(given))
    assert values(found) == [1, 2, 3] * 1000
    assert len(found) == -(-3000 // output_rows)


@MODES
@pytest.mark.parametrize("output_rows", [2, 17, 33, 512, 1024])
def test_each_input_batch_is_cut_by_itself(output_rows, degree, make_task):
    """un.splitOutput: three batches of 768 output rows. Velox can be told not to cut; here the bound always holds, and
    one above the batch's rows gives a batch each."""
    given = pa.table({"s": [[1, 2, 3]] * 256})
    task = make_task(unnested(given, ("s",), output_rows), degree)
    for _ in range(3):
        task.add_split("rows", split(given))
    found = finish(task)
    assert values(found) == [1, 2, 3] * 768
    assert len(found) == 3 * -(-768 // output_rows)


def test_column_that_is_no_list_is_refused_when_the_flow_is_built():
    """un.unsupportedType: the error names the column and its type."""
    with pytest.raises(FlowError, match="column 'c0' is int64"):
        scan(Flow("plan"), like=table(c0=[])).unnest("c0")

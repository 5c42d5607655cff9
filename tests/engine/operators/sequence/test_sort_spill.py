"""A sort that spills: the same rows in the same order, whatever the budget, at barriers, restored, and in bounds."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.buffers import sorted_runs
from penstock.engine.buffers.sorted_runs import merge
from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import StorageError
from penstock.engine.core.operator import exhaust
from penstock.engine.kernels.pieces import Bound
from penstock.engine.operators import Sort, SortKey
from penstock.engine.state.memory import TaskMemory
from penstock.engine.state.spill import disk_error_context
from support.key_types import KEY_TYPES, key_column
from support.operator_harness import Collected, context, rows_of, run
from support.operator_windows import windows_of
from support.oracle import numbered
from support.spilling import BUDGETS, budget

SIZES = (1, 3, 1024)
floats = st.sampled_from([None, 1.5, -2.0, float("nan"), float("inf"), 0.0, -0.0])
rows = st.lists(
    st.tuples(st.none() | st.integers(0, 3), st.sampled_from(["", "a", "ab", "b", None]), floats), max_size=60
)
keys = st.lists(
    st.builds(SortKey, st.sampled_from(["a", "s", "f"]), st.booleans(), st.booleans()),
    min_size=1,
    max_size=3,
    unique_by=lambda key: key.column,
)


def made_of(given: list[tuple[Any, ...]]) -> pa.Table:
    """Key columns of several types, and others that no kernel sorts."""
    types = {"a": pa.int64(), "s": pa.string(), "f": pa.float64()}
    columns = [pa.array([row[place] for row in given], type) for place, type in enumerate(types.values())]
    lists = pa.array([[row[0], 1] if row[0] else None for row in given], pa.list_(pa.int64()))
    words = columns[1].dictionary_encode()
    return numbered(pa.table([*columns, lists, words], names=[*types, "l", "d"]))


def by_units(table: pa.Table, lanes: int = 4, rounds: int = 3) -> dict[tuple[int, int], pa.Table]:
    share = -(-table.num_rows // (lanes * rounds)) or 1
    units = itertools.product(range(rounds), range(lanes))
    return {unit: table.slice(number * share, share) for number, unit in enumerate(units)}


@settings(max_examples=25, deadline=None)
@given(given_rows=rows, by=keys, size=st.sampled_from(SIZES), bytes=st.sampled_from(BUDGETS))
def test_a_spilled_sort_gives_the_same_rows_in_the_same_order(
    given_rows: list[Any], by: list[SortKey], size: int, bytes: int
) -> None:
    table, config = made_of(given_rows), Sort(tuple(by))
    units = by_units(table)
    expected = run(config, units, schemas=[table.schema])
    with budget(bytes) as memory:
        found = run(config, units, schemas=[table.schema], size=size, output_rows=7, memory=memory)
        assert rows_of(found.table) == rows_of(expected.table)
        assert all(batch.records.num_rows <= 7 for batch in found.batches)
        assert bytes or not given_rows or memory.statistics().spilled_files


@settings(max_examples=25, deadline=None)
@given(
    given_rows=rows,
    by=keys,
    size=st.sampled_from(SIZES),
    bytes=st.sampled_from(BUDGETS),
    parallelisms=st.sampled_from([(1,), (2, 1), (4, 2, 1)]),
)
def test_spilled_rows_are_restored_by_any_number_of_subtasks(
    given_rows: list[Any], by: list[SortKey], size: int, bytes: int, parallelisms: tuple[int, ...]
) -> None:
    table, config = made_of(given_rows), Sort(tuple(by))
    units = by_units(table, rounds=len(parallelisms))
    expected = run(config, units, schemas=[table.schema])
    with budget(bytes) as memory:
        found = run(
            config,
            units,
            schemas=[table.schema],
            size=size,
            restore=True,
            parallelisms=parallelisms,
            memory=memory,
        )
    assert rows_of(found.table) == rows_of(expected.table)


@settings(max_examples=15, deadline=None)
@given(windows=st.lists(rows, min_size=1, max_size=4), by=keys, bytes=st.sampled_from(BUDGETS))
def test_every_window_of_a_spilled_sort_is_sorted_by_itself(
    windows: list[list[Any]], by: list[SortKey], bytes: int
) -> None:
    tables, config = [made_of(window) for window in windows], Sort(tuple(by))
    with budget(bytes) as memory:
        assert windows_of(config, tables, 3, memory.account("sort-1")) == windows_of(config, tables, 1024)


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_runs_are_merged_by_every_key_type(kind: str) -> None:
    numbers = [3, None, 0, 5, 2, 0, None, 4, 3]
    table = pa.table({"k": key_column(kind, numbers), "p": range(len(numbers))})
    for key in (SortKey("k"), SortKey("k", True), SortKey("k", nulls_first=True), SortKey("k", True, True)):
        expected = rows_of(run(Sort((key,)), {(0, 0): table}).table)
        with budget(0) as memory:
            assert rows_of(run(Sort((key,)), {(0, 0): table}, size=2, memory=memory).table) == expected


def test_many_runs_are_merged_over_several_levels_and_few_files_are_there_at_once() -> None:
    generator = np.random.default_rng(1)
    table = pa.table({"k": generator.integers(0, 50, 700), "p": range(700)})
    with budget(0) as memory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "FAN_IN", 3)
        patch.setattr(sorted_runs, "PIECE_BYTES", 40)
        found = run(Sort((SortKey("k"),)), {(0, 0): table}, size=4, memory=memory)
        statistics = memory.statistics()
    assert rows_of(found.table) == rows_of(table.sort_by([("k", "ascending"), ("p", "ascending")]))
    assert statistics.spilled_files > 175
    assert statistics.spilled_bytes < 6 * 700 * 28  # a row is written once per level


def test_equal_rows_of_several_pieces_keep_the_order_of_their_runs() -> None:
    schema = pa.schema([("k", pa.int64()), ("run", pa.int64())])
    runs = [
        [pa.record_batch({"k": [7] * 2, "run": [number] * 2}, schema=schema) for _ in range(3)] for number in range(4)
    ]
    merged = merge([iter(run) for run in runs], schema, [(0, SortKey("k"))])
    found = pa.Table.from_batches(merged)
    assert found.column("run").to_pylist() == [number for number in range(4) for _ in range(6)]


def test_ten_times_the_budget_is_sorted_within_the_budget_and_one_batch() -> None:
    rows_per_batch, batches = 4096, 40
    generator = np.random.default_rng(0)
    schema = pa.schema([("k", pa.int64()), ("v", pa.float64())])
    size = rows_per_batch * 16
    memory = TaskMemory(batches * size // 10)
    config = Sort((SortKey("k"),))
    running = config.build(replace(context(), memory=memory.account("sort-1")), [schema], None)
    output = Collected(schema)
    for number in range(batches):
        values = {"k": generator.integers(0, 10**6, rows_per_batch), "v": generator.random(rows_per_batch)}
        exhaust(running.process(0, Batch(pa.record_batch(values, schema=schema), Tag(0, 0, number)), output))
    steps = running.finish(output)
    assert steps is not None
    assert not output.batches
    next(steps)
    assert len(output.batches) == 1  # the driver decides when the next one comes
    exhaust(steps)
    running.close()
    keys = pa.chunked_array([batch.records.column("k") for batch in output.batches]).to_numpy()
    assert len(keys) == rows_per_batch * batches
    assert (np.diff(keys) >= 0).all()
    assert memory.statistics().peak <= batches * size // 10 + size
    memory.release()


def spilled(memory: TaskMemory) -> Any:
    schema = pa.schema([("k", pa.int64())])
    running = Sort((SortKey("k"),)).build(replace(context(), memory=memory.account("sort-1")), [schema], None)
    for number in range(3):
        running.process(
            0, Batch(pa.record_batch({"k": [3, 1, 2]}, schema=schema), Tag(0, 0, number)), Collected(schema)
        )
    return running


def test_closing_in_the_middle_of_the_output_leaves_nothing() -> None:
    for steps in (0, 1):
        with budget(0) as memory:
            running = spilled(memory)
            running._bound = Bound(2)
            found: Iterator[None] = running.finish(Collected(pa.schema([("k", pa.int64())])))
            list(itertools.islice(found, steps))
            assert memory.statistics().files
            running.close()


def test_a_snapshot_outlives_the_operator_and_its_files() -> None:
    with budget(0) as memory:
        running = spilled(memory)
        state = running.snapshot()
        running.close()
    assert sorted(row["k"] for row in state.column("row").to_pylist()) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_a_disk_that_becomes_full_is_an_error_with_a_remedy_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class FullSink:
        def __init__(self, path: str, mode: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with budget(0) as memory:
        running = spilled(memory)
        monkeypatch.setattr(pa, "OSFile", FullSink)
        with pytest.raises(StorageError, match=r"sort-1: cannot spill to .*: No space left") as caught:
            exhaust(running.process(0, Batch(pa.record_batch({"k": [1]}), Tag(0, 0, 9)), Collected(pa.schema([]))))
        assert "free space" in caught.value.remedy
        running.close()


def test_what_the_disk_says_without_a_number_is_passed_on() -> None:
    with (
        pytest.raises(StorageError, match="sort-1: cannot spill to /x: gone"),
        disk_error_context("spill to", "/x", "sort-1"),
    ):
        raise OSError("gone")

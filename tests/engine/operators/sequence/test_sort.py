"""Sort and top-n, against DuckDB: stable, any key type, nulls where they are asked for, restored, at barriers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import FINAL_ROUND, Tag
from penstock.engine.core.errors import FlowError
from penstock.engine.kernels.pieces import PIECE_ROWS
from penstock.engine.operators import Sort, SortKey, TopN
from penstock.engine.operators.sequence import top_n
from support.key_types import KEY_TYPES, key_column
from support.operator_harness import SIZES, rows_of, run
from support.operator_windows import windows_of
from support.oracle import numbered, query

floats = st.sampled_from([None, 1.5, -2.0, float("nan"), float("inf"), 0.0])
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
    types = {"a": pa.int64(), "s": pa.string(), "f": pa.float64()}
    columns = [pa.array([row[place] for row in given], type) for place, type in enumerate(types.values())]
    return numbered(pa.table(columns, names=list(types)))


def by_units(table: pa.Table, lanes: int = 4, rounds: int = 3) -> dict[tuple[int, int], pa.Table]:
    share = -(-table.num_rows // (lanes * rounds)) or 1
    units = [(round, lane) for round in range(rounds) for lane in range(lanes)]
    return {unit: table.slice(number * share, share) for number, unit in enumerate(units)}


def ordered(given: list[SortKey]) -> str:
    words = [
        f"{key.column} {'desc' if key.descending else 'asc'} nulls {'first' if key.nulls_first else 'last'}"
        for key in given
    ]
    return f"select * from t order by {', '.join(words)}, p"


@settings(max_examples=40, deadline=None)
@given(given_rows=rows, by=keys, size=st.sampled_from(SIZES))
def test_sort_equals_duckdb_and_keeps_the_order_of_equal_rows(
    given_rows: list[Any], by: list[SortKey], size: int
) -> None:
    table = made_of(given_rows)
    found = run(Sort(tuple(by)), by_units(table), schemas=[table.schema], size=size)
    assert rows_of(found.table) == query(ordered(by), t=table)


@pytest.mark.parametrize("distinct", [40, 3000])
@pytest.mark.parametrize("nulls_first", [False, True])
@pytest.mark.parametrize("descending", [False, True])
def test_few_strings_and_many_are_sorted_alike(distinct: int, descending: bool, nulls_first: bool) -> None:
    chance = np.random.default_rng(distinct)
    words = pa.array(chance.integers(0, distinct, 4000).astype(str), mask=chance.random(4000) < 0.1)
    table = numbered(pa.table({"a": np.zeros(4000, dtype=np.int64), "s": words, "f": chance.integers(0, 2, 4000)}))
    by = [SortKey("s", descending, nulls_first), SortKey("f")]
    found = run(Sort(tuple(by)), by_units(table), size=1024)
    assert rows_of(found.table) == query(ordered(by), t=table)


@settings(max_examples=40, deadline=None)
@given(given_rows=rows, by=keys, size=st.sampled_from(SIZES), count=st.sampled_from([1, 2, 7, 100]))
def test_top_n_is_the_head_of_the_sorted_rows(given_rows: list[Any], by: list[SortKey], size: int, count: int) -> None:
    table = made_of(given_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_n, "SPARE_ROWS", 4)
        found = run(TopN(tuple(by), count), by_units(table), schemas=[table.schema], size=size)
    assert rows_of(found.table) == query(f"{ordered(by)} limit {count}", t=table)


@settings(max_examples=20, deadline=None)
@given(given_rows=rows, by=keys, size=st.sampled_from(SIZES), parallelisms=st.sampled_from([(1,), (2, 1), (4, 2, 1)]))
def test_rows_held_are_restored_in_their_order(
    given_rows: list[Any], by: list[SortKey], size: int, parallelisms: tuple[int, ...]
) -> None:
    """The last round always runs in one subtask, which gets the rows of several."""
    table = made_of(given_rows)
    units = by_units(table, rounds=len(parallelisms))
    for config in (Sort(tuple(by)), TopN(tuple(by), 5)):
        straight = run(config, units, schemas=[table.schema])
        restored = run(config, units, schemas=[table.schema], size=size, restore=True, parallelisms=parallelisms)
        if isinstance(config, Sort):
            assert rows_of(restored.table) == rows_of(straight.table)
        else:
            assert rows_of(restored.table)[:5] == rows_of(straight.table)


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_sort_orders_every_key_type(kind: str) -> None:
    numbers = [3, None, 0, 5, 2, 0, None, 4]
    table = pa.table({"k": key_column(kind, numbers), "n": numbers, "p": range(len(numbers))})
    found = rows_of(run(Sort((SortKey("k"), SortKey("n"))), {(0, 0): table}, size=3).table)
    assert [row[2] for row in found] == [2, 5, 4, 0, 7, 3, 1, 6]
    found = rows_of(run(Sort((SortKey("k", True, True), SortKey("n", True, True))), {(0, 0): table}, size=3).table)
    assert [row[2] for row in found] == [1, 6, 3, 7, 0, 4, 2, 5]


def test_top_n_per_lane_keeps_the_first_rows_of_every_lane() -> None:
    units = {(round, lane): pa.table({"v": [round, lane, 9 - lane]}) for round in range(2) for lane in (1, 3)}
    found = run(TopN((SortKey("v", descending=True),), 2, per_lane=True), units, size=2)
    assert found.units == {(FINAL_ROUND, 1): [(8,), (8,)], (FINAL_ROUND, 3): [(6,), (6,)]}


def test_sorted_rows_come_in_pieces_under_the_first_lane() -> None:
    table = pa.table({"v": range(PIECE_ROWS + 1)})
    found = run(Sort((SortKey("v", descending=True),)), {(0, 2): table}, size=50_000)
    assert [(batch.tag, batch.records.num_rows) for batch in found.batches] == [
        (Tag(FINAL_ROUND, 0, 0), PIECE_ROWS),
        (Tag(FINAL_ROUND, 0, 1), 1),
    ]
    assert found.table.column("v").to_pylist() == list(range(PIECE_ROWS, -1, -1))


@pytest.mark.parametrize("config", [Sort((SortKey("v"),)), TopN((SortKey("v"),), 2)])
def test_each_window_is_sorted_by_itself(config: Sort | TopN) -> None:
    windows = [pa.table({"v": values}, schema=pa.schema([("v", pa.int64())])) for values in ([3, 1], [], [2, 0])]
    assert windows_of(config, windows, 1) == [[(1,), (3,)], [], [(0,), (2,)], []]


def test_sort_keeps_dictionary_columns_of_different_dictionaries() -> None:
    parts = [pa.array(["b", "a"]).dictionary_encode(), pa.array(["c", None]).dictionary_encode()]
    units = {(round, 0): pa.table({"k": part}) for round, part in enumerate(parts)}
    found = run(Sort((SortKey("k"),)), units)
    assert pa.types.is_dictionary(found.schema.field("k").type)
    assert found.table.column("k").to_pylist() == ["a", "b", "c", None]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Sort(()), "sort: no key is given"),
        (Sort((SortKey("z"),)), "sort: its input has no column 'z'"),
        (Sort((SortKey("a"), SortKey("a", True))), "'a' is given twice"),
        (Sort((SortKey("l"),)), "column 'l' of type list.* cannot be a key"),
        (TopN((), 1), "top n: no key is given"),
        (TopN((SortKey("a"), SortKey("a")), 1), "'a' is given twice"),
        (TopN((SortKey("a"),), 0), "cannot keep 0 rows"),
    ],
)
def test_sort_and_top_n_refuse_keys_that_make_no_order(config: Sort | TopN, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        config.output_schema([pa.schema([("a", pa.int64()), ("l", pa.list_(pa.month_day_nano_interval()))])])

"""Unnest, against DuckDB and against the tables of other engines."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.errors import FlowError
from penstock.engine.kernels.pieces import PIECE_ROWS
from penstock.engine.operators import Unnest
from support.operator_harness import SIZES, rows_of, run
from support.oracle import connect

ROWS = pa.table(
    {"x": [1.5, 2.5, 3.5, 4.5, 5.5, None], "l": [[1, 2, None, 4], None, [5, 6], [], [None], [7, 8, 9]]},
)

lists = st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "type", [pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.dictionary(pa.int8(), pa.list_(pa.int64()))]
)
def test_unnest_gives_one_row_per_element_and_drops_rows_without(size: int, type: pa.DataType) -> None:
    column = ROWS.column("l").combine_chunks()
    if pa.types.is_dictionary(type):
        indices = pa.array(
            [None if row is None else number for number, row in enumerate(column.to_pylist())], pa.int8()
        )
        column = pa.DictionaryArray.from_arrays(indices, column)
    else:
        column = column.cast(type)
    rows = pa.table({"x": ROWS.column("x"), "l": column})
    outcome = run(Unnest(("l",), ordinality="n"), {(3, 1): rows}, size=size)
    assert outcome.units == {
        (3, 1): [
            ("1.5", 1, 1), ("1.5", 2, 2), ("1.5", None, 3), ("1.5", 4, 4), ("3.5", 5, 1), ("3.5", 6, 2),
            ("5.5", None, 1), (None, 7, 1), (None, 8, 2), (None, 9, 3),
        ]
    }  # fmt: skip


def test_unnest_outer_keeps_rows_without_elements_with_ordinality_zero() -> None:
    outcome = run(Unnest(("l",), ordinality="n", outer=True), {(0, 0): ROWS.slice(1, 3)})
    assert rows_of(outcome.table) == [("2.5", None, 0), ("3.5", 5, 1), ("3.5", 6, 2), ("4.5", None, 0)]


@pytest.mark.parametrize("size", SIZES)
def test_a_marker_keeps_rows_without_elements_and_tells_them_from_null_elements(size: int) -> None:
    outcome = run(Unnest(("l",), ordinality="n", marker="is_element"), {(0, 0): ROWS.slice(1, 4)}, size=size)
    assert outcome.schema.names == ["x", "l", "n", "is_element"]
    assert rows_of(outcome.table) == [
        ("2.5", None, 0, False), ("3.5", 5, 1, True), ("3.5", 6, 2, True), ("4.5", None, 0, False),
        ("5.5", None, 1, True),
    ]  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
def test_unnest_of_fixed_size_lists_and_maps_respects_slices_and_nulls(size: int) -> None:
    rows = pa.table(
        {
            "f": pa.array([[9, 9], None, [1, 2], [3, None]], pa.list_(pa.int64(), 2)),
            "m": pa.array(
                [[("z", 0)], [("a", 1)], None, [("b", None), ("c", 3), ("d", 4)]], pa.map_("string", "int64")
            ),
            "k": [0, 1, 2, 3],
        }
    ).slice(1)
    outcome = run(Unnest(("f", "m")), {(0, 0): rows}, size=size)
    assert outcome.schema.names == ["f", "m_key", "m_value", "k"]
    assert rows_of(outcome.table) == [
        (None, "a", 1, 1),
        (1, None, None, 2),
        (2, None, None, 2),
        (3, "b", None, 3),
        (None, "c", 3, 3),
        (None, "d", 4, 3),
    ]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), lists, lists), max_size=30),
    size=st.sampled_from(SIZES),
    skip=st.integers(0, 3),
)
def test_unnest_of_two_lists_equals_duckdb_for_every_batch_size(rows: list[Any], size: int, skip: int) -> None:
    schema = pa.schema([("k", pa.int64()), ("a", pa.list_(pa.int64())), ("b", pa.large_list(pa.int64()))])
    whole = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    table = whole.slice(skip).append_column("p", pa.array(range(whole.slice(skip).num_rows), pa.int64()))
    outcome = run(Unnest(("a", "b"), ordinality="n"), {(0, 0): table}, size=size)
    assert rows_of(outcome.table) == _oracle(table)


def _oracle(table: pa.Table) -> list[tuple[Any, ...]]:
    with connect() as connection:
        connection.register("given_rows", table)
        found = connection.execute(
            """
            select k, a[n] as a, b[n] as b, p, n from (
                select *, unnest(range(1, 1 + greatest(coalesce(len(a), 0), coalesce(len(b), 0)))) as n from given_rows
            ) order by p, n
            """
        )
        return found.fetchall()


def test_unnest_cuts_a_huge_list_into_pieces() -> None:
    rows = pa.table({"k": [1, 2, 3], "l": [[0], list(range(3 * PIECE_ROWS)), [1]]})
    outcome = run(Unnest(("l",)), {(0, 0): rows})
    assert [batch.records.num_rows for batch in outcome.batches] == [PIECE_ROWS] * 3 + [2]
    assert outcome.table.column("l").to_pylist() == [0, *range(3 * PIECE_ROWS), 1]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Unnest(("nope",)), "unnest: its input has no column 'nope'(.|\n)*x, l"),
        (Unnest(("x",)), "column 'x' is double(.|\n)*takes list, large_list, fixed_size_list and map"),
        (Unnest(("l", "l")), "'l' is given twice"),
        (Unnest(()), "no column is given"),
        (Unnest(("l",), ordinality="x"), "two columns named 'x'"),
        (Unnest(("l",), marker="x"), "two columns named 'x'"),
    ],
)
def test_unnest_refuses_what_it_cannot_unnest(config: Unnest, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        config.output_schema([ROWS.schema])

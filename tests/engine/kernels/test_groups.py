"""Group numbers, against a dictionary of Python: any type, nulls, nested values, several columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.errors import FlowError
from penstock.engine.kernels.groups import check_group_types, first_rows, group_ids, stable_order
from penstock.engine.operators.aggregate.seen_keys import SeenKeys
from support.key_types import KEY_TYPES, key_column

scalars = st.none() | st.integers(0, 3)
floats = st.sampled_from([None, 0.0, -0.0, 1.5, math.nan, -math.nan, math.inf])
NESTED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "list": (pa.list_(pa.int64()), st.none() | st.lists(scalars, max_size=3)),
    "list of strings": (pa.large_list(pa.string()), st.none() | st.lists(st.sampled_from(["", "a", None]), max_size=3)),
    "fixed list": (pa.list_(pa.int8(), 2), st.none() | st.lists(scalars, min_size=2, max_size=2)),
    "list of lists": (pa.list_(pa.list_(pa.int8())), st.none() | st.lists(st.lists(scalars, max_size=2), max_size=2)),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.float64())]),
        st.none() | st.fixed_dictionaries({"a": scalars, "b": floats}),
    ),
    "map": (pa.map_(pa.int8(), pa.int8()), st.none() | st.lists(st.tuples(st.integers(0, 2), scalars), max_size=2)),
    "float": (pa.float64(), floats),
}


def expected_ids(values: list[Any]) -> list[int]:
    """Numbers in the order of first appearance; equal by their text, NaNs and zeros made one."""
    numbers: dict[str, int] = {}
    texts = [repr(value).replace("-0.0", "0.0").replace("-nan", "nan") for value in values]
    return [numbers.setdefault(text, len(numbers)) for text in texts]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(NESTED)), cut=st.integers(0, 3))
def test_group_ids_number_nested_values_in_the_order_of_first_appearance(
    data: st.DataObject, kind: str, cut: int
) -> None:
    type, strategy = NESTED[kind]
    values = data.draw(st.lists(strategy, max_size=20))
    column = pa.array(values, type).slice(cut)
    ids, groups = group_ids([column], len(column))
    wanted = expected_ids(column.to_pylist())
    assert ids.tolist() == wanted
    assert groups == len(set(wanted))


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_group_ids_number_every_key_type(kind: str) -> None:
    column = key_column(kind, [3, None, 3, 0, None, 5, 0])
    ids, groups = group_ids([column], len(column))
    assert ids.tolist() == expected_ids(column.to_pylist())
    assert groups == len(set(ids.tolist()))


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(scalars, floats, st.sampled_from(["x", "y", None])), max_size=30))
def test_group_ids_tell_rows_of_several_columns_apart(rows: list[tuple[Any, ...]]) -> None:
    types = (pa.int64(), pa.float64(), pa.string())
    columns = [pa.array([row[place] for row in rows], type) for place, type in enumerate(types)]
    ids, _ = group_ids(columns, len(rows))
    assert ids.tolist() == expected_ids(
        [tuple(column[place].as_py() for column in columns) for place in range(len(rows))]
    )
    assert first_rows(ids).tolist() == [number not in ids[:place] for place, number in enumerate(ids)]


def test_group_ids_of_many_wide_columns_do_not_overflow() -> None:
    rows = 3000
    columns = [pa.array(np.random.default_rng(seed).permutation(rows)) for seed in range(7)]
    doubled = [pa.concat_arrays([column, column]) for column in columns]
    ids, groups = group_ids(doubled, 2 * rows)
    assert (groups, ids.tolist()) == (rows, [*range(rows), *range(rows)])


def test_no_column_makes_one_group() -> None:
    assert group_ids([], 3)[0].tolist() == [0, 0, 0]
    assert group_ids([], 0)[1] == 0


def test_stable_order_keeps_the_order_within_a_group() -> None:
    ids = np.array([1, 0, 1, 0], dtype=np.int64)
    assert stable_order(ids, 2).tolist() == stable_order(ids, 2**20).tolist() == [1, 3, 0, 2]


def test_seen_keys_tell_first_rows_and_remember_lanes() -> None:
    seen = SeenKeys(pa.schema([("k", pa.string())]))
    assert seen.first([pa.array(["a", None, "a"])], np.array([0, 1, 2], dtype=np.int32)).tolist() == [True, True, False]
    assert seen.first([pa.array([None, "b"])], np.array([3, 3], dtype=np.int32)).tolist() == [False, True]
    assert seen.lanes.tolist() == [0, 1, 3]
    seen.forget()
    assert seen.first([pa.array(["a"])], np.array([0], dtype=np.int32)).tolist() == [True]


def test_a_union_column_cannot_be_grouped_by() -> None:
    type = pa.dense_union([pa.field("a", pa.int8())])
    with pytest.raises(FlowError, match=r"column 'k' of type dense_union.* cannot be a key"):
        check_group_types("hash aggregate", [pa.field("k", type)])

"""Keys as numbers: the codes must order and equate exactly as the values do."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.kernels.keys import comparable, differences, first_descent, shared_codes, valid_rows

integers = st.integers(-(2**63), 2**63 - 1)
numbers = st.floats(allow_nan=True)


def rank(value: float) -> tuple[int, float]:
    return (1, 0.0) if math.isnan(value) else (0, value)


@settings(max_examples=100, deadline=None)
@given(
    left=st.lists(st.tuples(integers, numbers, st.text(max_size=3)), min_size=1, max_size=12), cut=st.integers(0, 12)
)
def test_shared_codes_order_and_equate_as_the_values_do(left: list[tuple[int, float, str]], cut: int) -> None:
    """Three columns whose ranges multiply to far more than 2⁶⁴."""
    rows = [*left, *left[:3]]
    columns = [
        comparable(pa.array([row[0] for row in rows], pa.int64())),
        comparable(pa.array([row[1] for row in rows], pa.float64())),
        comparable(pa.array([row[2] for row in rows], pa.string())),
    ]
    ours, theirs = shared_codes([column[:cut] for column in columns], [column[cut:] for column in columns])
    codes = np.concatenate([ours, theirs])
    keys = [(row[0], rank(row[1]), row[2].encode()) for row in rows]
    for one, other in itertools.combinations(range(len(rows)), 2):
        assert (codes[one] < codes[other]) == (keys[one] < keys[other])
        assert (codes[one] == codes[other]) == (keys[one] == keys[other])


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12))
def test_first_descent_is_the_first_row_below_the_one_before(rows: list[tuple[int, int]]) -> None:
    columns = [
        comparable(pa.array([row[0] for row in rows], pa.int64())),
        pa.array([f"{b}" for _, b in rows], "string"),
    ]
    falls = [place for place in range(1, len(rows)) if rows[place] < rows[place - 1]]
    assert first_descent(columns) == (falls[0] if falls else None)


def test_differences_treats_null_as_a_key_and_nan_as_equal_to_nan() -> None:
    column = pa.array([None, None, 0.0, -0.0, float("nan"), float("nan"), None, 1.0])
    assert differences([column]).tolist() == [False, True, False, True, False, True, True]
    nested = pa.array([None, {"a": None}, {"a": None}, {"a": 1}, None])
    assert differences([nested]).tolist() == [True, False, True, True]
    assert differences([pa.array([{}, {}, None], pa.struct([]))]).tolist() == [False, True]


@pytest.mark.parametrize("type", [pa.uint64(), pa.int64(), pa.int8(), pa.bool_(), pa.float16(), pa.duration("ms")])
def test_comparable_keeps_the_order_of_extremes(type: pa.DataType) -> None:
    values = {
        pa.uint64(): [0, 1, 2**63 - 1, 2**63, 2**64 - 1],
        pa.int64(): [-(2**63), -1, 0, 2**63 - 1],
        pa.int8(): [-128, 0, 127],
        pa.bool_(): [False, True],
        pa.float16(): np.array([-np.inf, -1, -0.5, 0, 0.5, np.inf, np.nan], dtype=np.float16),
        pa.duration("ms"): [-5, 0, 5],
    }[type]
    codes = comparable(pa.array(values, type))
    assert codes.dtype == np.int64
    assert (np.diff(codes.astype(object)) > 0).all()


def test_every_nan_is_the_same_and_larger_than_infinity() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001], dtype=np.uint64)
    codes = comparable(pa.array(np.append(bits.view(np.float64), np.inf)))
    assert codes[0] == codes[1] == codes[2] > codes[3]


def test_valid_rows_are_those_without_a_null_in_any_column() -> None:
    assert valid_rows([pa.array([1, 2]), pa.array(["x", "y"])]) is None
    found = valid_rows([pa.array([1, None, 3, 4]), pa.array(["x", "y", None, "z"])])
    assert found is not None
    assert found.tolist() == [0, 3]

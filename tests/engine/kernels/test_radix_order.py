"""Radix order: the rows that a stable sort by all parts gives, whatever their ranges and however many are equal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.kernels.radix_order import LEAD_BITS, Part, radix_order

LOWEST, HIGHEST = -(2**63), 2**63 - 1
numbers = st.one_of(
    st.integers(0, 2),
    st.integers(LOWEST, HIGHEST),
    st.sampled_from([LOWEST, -1, 0, 2**17, 2**49, HIGHEST]),
)
columns = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.tuples(*[numbers] * width), min_size=1, max_size=40).map(
        lambda rows: [*zip(*rows, strict=True)]
    )
)


@given(columns=columns, descending=st.lists(st.booleans(), min_size=3, max_size=3))
def test_rows_come_in_the_order_of_all_parts_and_equal_ones_as_they_were(
    columns: list[tuple[int, ...]], descending: list[bool]
) -> None:
    parts = [
        Part.of(np.array(column, dtype=np.int64), descending=down)
        for column, down in zip(columns, descending, strict=False)
    ]
    rows = range(len(columns[0]))
    signs = [-1 if down else 1 for down in descending]
    expected = sorted(rows, key=lambda row: [sign * column[row] for sign, column in zip(signs, columns, strict=False)])
    assert radix_order(parts, len(rows)).tolist() == expected


@pytest.mark.parametrize("shared_bits", [0, 30, LEAD_BITS, 60])
def test_rows_whose_leading_bits_are_equal_are_told_apart_by_the_others(shared_bits: int) -> None:
    chance = np.random.default_rng(shared_bits)
    wide = (chance.integers(0, 3, 5000) << shared_bits) + chance.integers(0, 4, 5000)
    second = chance.integers(LOWEST, HIGHEST, 5000) // 2**shared_bits
    found = radix_order([Part.of(wide), Part.of(second, descending=True)], 5000)
    assert np.array_equal(found, np.lexsort([-second.astype(object), wide]))


def test_flags_and_narrow_integers_are_parts_too() -> None:
    flags, small = np.array([True, False, True, False]), np.array([3, 7, 1, 7], dtype=np.int32)
    assert radix_order([Part.of(flags), Part.of(small, descending=True)], 4).tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_rows_that_are_all_equal_stay_as_they_are(rows: int) -> None:
    assert radix_order([Part.of(np.zeros(rows, dtype=np.int64))], rows).tolist() == list(range(rows))
    assert radix_order([], rows).tolist() == list(range(rows))

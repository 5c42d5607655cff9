"""Vocabularies: each distinct value has one number, all others have none; also where hashes are the same."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.kernels import key_dictionary as dictionaries
from penstock.engine.kernels import native
from penstock.engine.kernels.hashing import hashes, mixed
from penstock.engine.kernels.key_dictionary import HashedValues, Spread, Table, numbered
from penstock.engine.kernels.keys import comparable
from penstock.engine.operators.join.sorted_lookup import SortedLookup

LOWEST, HIGHEST = -(2**63), 2**63 - 1
integers = st.one_of(st.integers(-3, 9), st.sampled_from([LOWEST, LOWEST + 1, HIGHEST - 1, HIGHEST, 2**40]))


def check(made: Any, known: list[Any], places: list[int], asked: list[Any], answers: list[int]) -> None:
    assert len(made) == len(set(known))
    numbers = dict(zip(known, places, strict=True))
    assert sorted(numbers.values()) == list(range(len(made)))
    assert places == [numbers[value] for value in known]
    assert answers == [numbers.get(value, -1) for value in asked]


@given(known=st.lists(integers, max_size=30), asked=st.lists(integers, max_size=30))
def test_integers_of_any_range_are_numbered_and_found(known: list[int], asked: list[int]) -> None:
    column, keys = np.array(known, dtype=np.int64), np.array(asked, dtype=np.int64)
    for made in (numbered(column)[0], Spread(column)):
        check(made, known, made.place(column).tolist(), asked, made.place(keys).tolist())


def test_a_narrow_range_is_a_table_and_a_wide_one_is_not() -> None:
    assert isinstance(numbered(np.array([HIGHEST, HIGHEST - 7]))[0], Table)
    assert isinstance(numbered(np.array([HIGHEST, HIGHEST - 8]))[0], Spread)
    assert isinstance(numbered(np.array([LOWEST, HIGHEST]))[0], Spread)


def test_many_integers_are_found_however_they_are_spread() -> None:
    for step in (5, 2**20, 2**42, int(pow(0x9E3779B97F4A7C15, -1, 2**63))):
        values = (np.arange(20_000, dtype=np.uint64) * np.uint64(step)).view(np.int64)
        made = Spread(values)
        known = set(values.tolist())
        asked = np.concatenate([values, values + 1])
        assert np.array_equal(made.place(asked) >= 0, [key in known for key in asked.tolist()])


words = st.text(alphabet="aé\0", max_size=12)


@pytest.mark.parametrize("hashed_anew", [0, 3, 100])
@given(known=st.lists(words, max_size=20), asked=st.lists(words, max_size=20))
def test_strings_are_numbered_and_found_whoever_looks_them_up(
    hashed_anew: int, known: list[str], asked: list[str]
) -> None:
    column, keys = pa.array(known, pa.string()), pa.array(asked, pa.string())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dictionaries, "HASHED_ANEW", hashed_anew)
        made = HashedValues(column)
    check(made, known, made.place(column).tolist(), asked, made.place(keys).tolist())


def colliding(first: int, second: int, other: int) -> tuple[bytes, bytes]:
    """Two strings of 16 bytes with one hash: the words of a string are mixed with their place and added up."""
    place = 0xA0761D6478BD642F

    def forward(number: int) -> int:
        return int(mixed(np.array([number % 2**64], dtype=np.uint64))[0])

    def backward(number: int) -> int:
        for factor in (0xD6E8FEB86659FD93, 0x9E3779B97F4A7C15):
            number = ((number ^ (number >> 32)) * pow(factor, -1, 2**64)) % 2**64
        return number

    wanted = forward(first + place) + forward(second + 2 * place) - forward(other + place)
    last = (backward(wanted % 2**64) - 2 * place) % 2**64
    return struct.pack("<QQ", first, second), struct.pack("<QQ", other, last)


def test_values_with_one_hash_are_told_apart() -> None:
    one, other = colliding(1, 2, 3)
    third, fourth = colliding(5, 6, 7)
    known = pa.array([one, other, third, b"x", other], pa.binary())
    assert len(set(hashes([known]).tolist())) == 3
    lookup = SortedLookup([known])
    found = lookup.matches([pa.array([other, fourth, one, third, b"x"], pa.binary())])
    assert found.counts.tolist() == [2, 0, 1, 1, 1]
    assert found.rows is not None
    rows = [found.rows[np.arange(first, first + 1)][0] for first in found.first[[0, 2, 3, 4]]]
    assert rows == [1, 0, 2, 3]


def test_a_key_that_only_has_the_hash_of_a_known_one_is_not_found() -> None:
    one, other = colliding(11, 12, 13)
    assert HashedValues(pa.array([one], pa.binary())).place(pa.array([other, one], pa.binary())).tolist() == [-1, 0]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["1.50", "2.25", "1.50"]).cast(pa.decimal128(9, 2)),
        pa.array([[1, None], [], [1, None]], pa.list_(pa.int8())),
        pa.array([b"abc", b"abd", b"abc"], pa.binary(3)),
    ],
)
def test_decimals_nested_keys_and_bytes_are_words(column: pa.Array) -> None:
    first, second, third = HashedValues(comparable(column)).place(comparable(column)).tolist()
    assert first == third != second


def test_no_keys_may_have_no_bounds_either() -> None:
    """Arrow lets an array of no strings be without offsets; not all libraries write the one that pyarrow writes."""
    none = pa.Array.from_buffers(pa.string(), 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    assert len(numbered(none)[0]) == 0
    for known in (none, pa.array(["a", "b"])):
        assert numbered(known)[0].place(none).tolist() == []


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("low", [LOWEST, -5, HIGHEST - 4_000])
def test_numbers_in_a_table_follow_the_first_rows(low: int, compiled: bool, monkeypatch) -> None:
    if not compiled:
        monkeypatch.setattr(native, "_kernels", None)
    offsets = np.random.default_rng(1).integers(0, 2_000, 1_500)
    column = offsets + low
    table, found = numbered(column)
    assert isinstance(table, Table)
    order = {value: number for number, value in enumerate(dict.fromkeys(column.tolist()))}
    assert found.tolist() == [order[value] for value in column.tolist()]
    probed = np.array([LOWEST, HIGHEST, 0, *range(low, low + 2_500)], dtype=np.int64)
    assert table.place(probed).tolist() == [order.get(value, -1) for value in probed.tolist()]

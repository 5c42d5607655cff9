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
from penstock.engine.kernels.key_dictionary import ANY_WAY, NARROW, HashedValues, Ranked, Spread, numbered
from penstock.engine.kernels.keys import comparable
from penstock.engine.operators.join.matching import Matches, all_pairs
from penstock.engine.operators.join.sorted_lookup import SortedLookup

COMPILED = native.kernels()
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


def test_a_narrow_range_has_bits_and_a_wide_one_does_not() -> None:
    assert isinstance(numbered(np.array([HIGHEST, HIGHEST - ANY_WAY + 1]))[0], Ranked)
    assert isinstance(numbered(np.array([HIGHEST, HIGHEST - ANY_WAY]))[0], Spread)
    many = np.arange(2 * ANY_WAY // NARROW) * NARROW
    assert isinstance(numbered(many)[0], Ranked)
    assert isinstance(numbered(many * 2)[0], Spread)
    assert isinstance(numbered(np.array([LOWEST, HIGHEST]))[0], Spread)


@pytest.mark.parametrize("compiled", [True, False])
def test_many_integers_are_found_however_they_are_spread(compiled: bool, monkeypatch) -> None:
    if not compiled:
        monkeypatch.setattr(native, "_kernels", None)
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
def test_numbers_of_a_narrow_range_are_ranks(low: int, compiled: bool, monkeypatch) -> None:
    if not compiled:
        monkeypatch.setattr(native, "_kernels", None)
    offsets = np.random.default_rng(1).integers(0, 2_000, 1_500)
    column = offsets + low
    table, found = numbered(column)
    assert isinstance(table, Ranked)
    assert len(table) == len(set(column.tolist()))
    order = {value: number for number, value in enumerate(sorted(set(column.tolist())))}
    assert found.tolist() == [order[value] for value in column.tolist()]
    probed = np.array([LOWEST, HIGHEST, 0, *range(low, low + 2_500)], dtype=np.int64)
    assert table.place(probed).tolist() == [order.get(value, -1) for value in probed.tolist()]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("spread", [1, 60, 2**40])
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("ascending", [False, True])
def test_rows_of_a_key_come_in_their_own_order(
    spread: int, repeated: bool, ascending: bool, compiled: bool, monkeypatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native, "_kernels", None)
    random = np.random.default_rng(spread)
    known = random.integers(0, 300, 2_000) * spread if repeated else random.permutation(2_000) * spread
    known = np.sort(known) if ascending else known
    mask = random.random(2_000) < 0.1
    asked = np.append(random.integers(-5, 400, 600) * spread, [LOWEST, HIGHEST, 1, -1])
    for rows in (slice(None), slice(0, 0)):
        column = pa.array(known[rows], mask=mask[rows])
        found = SortedLookup([column]).matches([pa.array(asked)])
        values = column.to_pylist()
        for key, first, count in zip(asked.tolist(), found.first.tolist(), found.counts.tolist(), strict=True):
            there = np.arange(first, first + count)
            mine = there if found.rows is None else found.rows[there]
            assert mine.tolist() == [row for row, value in enumerate(values) if value == key]


@given(
    counts=st.lists(st.integers(0, 5), max_size=30),
    limit=st.sampled_from([1, 2, 5, 9, 100]),
    keep=st.booleans(),
    once=st.booleans(),
)
def test_pairs_are_those_of_the_twin(counts: list[int], limit: int, keep: bool, once: bool) -> None:
    numbers = np.random.default_rng(len(counts)).permutation(40)
    first = np.arange(len(counts), dtype=np.int64)
    if once:
        counts = [count % 2 for count in counts]
        first[np.array(counts, dtype=np.int64) == 0] = -1
    for rows in (None, numbers):
        matches = Matches(first, np.array(counts, dtype=np.int64), rows, once)
        made = {}
        for kernels in (COMPILED, None):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(native, "_kernels", kernels)
                pieces = list(all_pairs(matches, keep_left=keep, limit=limit))
            made[kernels is None] = [(piece.left.tolist(), shown(piece.right, piece.right_missing)) for piece in pieces]
            for piece in pieces:
                assert not piece.ascending or bool((np.diff(piece.left) > 0).all())
        assert made[True] == made[False]


@given(left=st.lists(st.integers(0, 40), max_size=60), right=st.lists(st.integers(0, 40), max_size=60))
def test_spans_of_two_sorted_sides_are_those_of_a_search(left: list[int], right: list[int]) -> None:
    assert COMPILED is not None
    for spread in (1, 2**57):
        ours, theirs = (np.sort(np.array(side, dtype=np.int64)) * spread - 2**62 for side in (left, right))
        first, counts = COMPILED.merge_spans(ours, theirs)
        assert counts.tolist() == (theirs.searchsorted(ours, side="right") - theirs.searchsorted(ours)).tolist()
        assert first[counts > 0].tolist() == theirs.searchsorted(ours[counts > 0]).tolist()


def test_few_keys_of_many_are_found_by_ever_longer_steps() -> None:
    assert COMPILED is not None
    theirs = np.repeat(np.arange(0, 100_000, 2), 3)
    for ours in (np.sort(np.random.default_rng(seed).integers(-9, 100_009, 40)) for seed in range(20)):
        first, counts = COMPILED.merge_spans(ours, theirs)
        assert counts.tolist() == [3 * (key % 2 == 0 and 0 <= key < 100_000) for key in ours.tolist()]
        assert first[counts > 0].tolist() == (ours[counts > 0] // 2 * 3).tolist()


def shown(rows: Any, missing: Any) -> list[int | None]:
    flags = [False] * len(rows) if missing is None else missing.tolist()
    return [None if flag else row for row, flag in zip(rows.tolist(), flags, strict=True)]

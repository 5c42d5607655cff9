"""Keys to numbers over many batches: by address, by hash, and from one to the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.kernels import key_table, short_strings, slots
from penstock.engine.kernels.growable_array import GrowableArray
from penstock.engine.kernels.hashing import mixed, part_numbers
from penstock.engine.kernels.key_table import KeyTable
from support.key_types import KEY_TYPES, key_column
from support.memory_peaks import MIB, anonymous_memory

near = st.none() | st.integers(0, 5)
far = st.sampled_from([None, 0, 1, -(2**63), 2**63 - 1, 2**40, -(2**40), 7])
texts = st.sampled_from([None, "", "a", "a\0", "b" * 20, "é"])


contents = st.one_of(
    st.none(),
    st.sampled_from([b"", b"\0", b"\0\0", b"a", b"a\0", b"\0a", b"carrier 12", b"\xff\xfe"]),
    st.binary(max_size=6),
    st.integers(0, 30).map(lambda size: b"ab" * size),
    st.sampled_from([0, 4, 5, 12, 13, 16, 17, 24, 25]).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
)


def expected(rows: list[Any]) -> list[int]:
    numbers: dict[Any, int] = {}
    return [numbers.setdefault("nan" if repr(row) == "nan" else row, len(numbers)) for row in rows]


def numbered(table: KeyTable, batches: list[list[pa.Array]]) -> tuple[list[int], list[int]]:
    """The numbers of all rows, and the positions of the first ones."""
    ids: list[int] = []
    firsts: list[int] = []
    for columns in batches:
        found, new = table.number(columns, len(columns[0]))
        firsts += [len(ids) + row for row in new.tolist()]
        ids += found.tolist()
    return ids, firsts


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(near, far, texts), max_size=40), size=st.integers(1, 15), columns=st.integers(1, 3))
def test_keys_are_numbered_by_first_row_whatever_the_batches(rows: list[Any], size: int, columns: int) -> None:
    types = (pa.int32(), pa.int64(), pa.string())
    for chosen in ((0, 1, 2)[:columns], (2, 0, 1)[:columns], (1, 2, 0)[:columns]):
        kept = [tuple(row[place] for place in chosen) for row in rows]
        batches = [
            [pa.array([row[n] for row in kept[start : start + size]], types[place]) for n, place in enumerate(chosen)]
            for start in range(0, len(kept), size)
        ]
        ids, firsts = numbered(KeyTable(), batches)
        assert ids == expected(kept)
        assert firsts == [place for place, row in enumerate(kept) if row not in kept[:place]]


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(contents, max_size=60),
    longest=st.sampled_from([4, 12, 16, 24, 100]),
    size=st.integers(1, 30),
    repeats=st.sampled_from([1, 40]),
    type=st.sampled_from([pa.binary(), pa.large_binary(), pa.string(), pa.large_string()]),
)
def test_strings_of_any_length_are_numbered_as_a_dict_would(
    rows: list[bytes | None], longest: int, size: int, repeats: int, type: pa.DataType
) -> None:
    """Slices with nulls, empty strings, zeros at the end, bytes that are no text, and strings that get longer."""
    kept = [row if row is None else row[:longest] for row in rows] * repeats
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        kept = [row if row is None else row.decode("latin1").encode() for row in kept]
    column = pa.array([b"before", *kept], pa.large_binary() if pa.types.is_large_unicode(type) else pa.binary())
    column = column.cast(type).slice(1)
    table = KeyTable()
    ids, firsts = numbered(table, [[column.slice(start, size)] for start in range(0, len(kept), size)])
    assert ids == expected(kept)
    assert firsts == [place for place, row in enumerate(kept) if row not in kept[:place]]
    assert numbered(table, [[column]])[0] == ids
    assert numbered(KeyTable(), [[column]])[0] == ids


def test_what_lies_under_a_null_string_is_no_key() -> None:
    long = "much longer than any word"
    whole = pa.array(["a", long, "b", "a", long])
    bits = pa.array([True, False, True, False, True]).buffers()[1]
    hidden = pa.Array.from_buffers(pa.string(), 5, [bits, *whole.buffers()[1:]])
    ids, _ = numbered(KeyTable(), [[hidden.slice(0, 3)], [hidden.slice(1)], [pa.array(["a", None, long])]])
    assert ids == expected(["a", None, "b", None, "b", None, long, "a", None, long])


def test_strings_that_get_longer_keep_their_numbers_over_many_rows() -> None:
    """Word by word, by Arrow when few are known, and by Arrow alone from the first long one on."""
    sizes = [3, 4, 9, 12, 14, 16, 20, 24, 24, 30, 3]
    chance = np.random.default_rng(2)
    batches = [pa.array([f"{row:0{size}}" for row in chance.integers(0, 40, 3_000)]) for size in sizes]
    batches.append(pa.array([f"{row:06}" for row in range(40_000)]))
    batches.append(pa.concat_arrays(batches))
    ids, _ = numbered(KeyTable(), [[batch] for batch in batches])
    assert ids == expected([word for batch in batches for word in batch.to_pylist()])


def test_strings_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_strings, "_hashes", lambda words: np.zeros(len(words[0]), dtype=np.uint64))
    words = ["a", "b", "a\0", "", "carrier 1", "carrier 2", "a longer carrier", "b", "a longer courier", ""]
    ids, _ = numbered(KeyTable(), [[pa.array(words[start : start + 3])] for start in range(0, len(words), 3)])
    assert ids == expected(words)


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_keys_of_every_type_are_numbered_over_batches(kind: str) -> None:
    numbers = [3, None, 1, 3, 2, None, 1, 5, 4, 3]
    column = key_column(kind, numbers)
    ids, _ = numbered(KeyTable(), [[column.slice(start, 3)] for start in range(0, len(numbers), 3)])
    assert ids == expected(column.to_pylist())


def test_ranges_that_widen_and_break_keep_the_numbers() -> None:
    """By address at first, then a wider table, then by hash, and by address again when there are enough keys."""
    table = KeyTable()
    steps = [[5, 6, 5], [7, 900, 6], [2**60, 5, 900], [-(2**63), 2**63 - 1, 7]]
    ids, _ = numbered(table, [[pa.array(step)] for step in steps])
    assert ids == expected([value for step in steps for value in step])
    dense = KeyTable()
    spread = np.random.default_rng(0).permutation(1_000_000)
    parts = [spread[start : start + 50_000] for start in range(0, 1_000_000, 50_000)]
    ids, firsts = numbered(dense, [[pa.array(part)] for part in parts])
    assert ids == firsts == list(range(1_000_000))
    assert numbered(dense, [[pa.array(spread[::-1])]])[0] == list(range(999_999, -1, -1))


def test_scattered_keys_get_their_places_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest and the smallest key of a batch are mostly a little further out than those before."""
    made: list[int] = []
    put = key_table._Places.put

    def counting(places: key_table._Places, codes: Any) -> None:
        made.append(places.bytes)
        put(places, codes)

    monkeypatch.setattr(key_table._Places, "put", counting)
    chance = np.random.default_rng(6)
    parts = [chance.integers(0, 60_000, 4_000) * 4 for _ in range(20)]
    ids, _ = numbered(KeyTable(), [[pa.array(part)] for part in parts])
    assert ids == expected(np.concatenate(parts).tolist())
    assert len(made) == 1


def test_keys_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_table, "_hashes", lambda codes: np.zeros(len(codes[0]), dtype=np.uint64))
    values = [2**60, 3, -(2**60), 3, 2**60, 8, -(2**60), 11]
    ids, _ = numbered(KeyTable(), [[pa.array(values[start : start + 3])] for start in range(0, 8, 3)])
    assert ids == expected(values)


def test_a_dictionary_with_null_or_repeated_values_counts_as_its_values() -> None:
    odd = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None, 3]), pa.array(["a", None, "b", "a"]))
    ids, _ = numbered(KeyTable(), [[pa.array(["b", None])], [odd]])
    assert ids == [0, 1, 2, 1, 0, 1, 2]


def test_many_strings_are_found_by_hash_and_by_arrow_alike() -> None:
    words = pa.array([f"word {number}" for number in range(5_000)])
    batches = [words.slice(0, 100), words.slice(50, 4_000), words, words.take(pa.array([4_999, 0, 77])), words]
    ids, _ = numbered(KeyTable(), [[batch] for batch in batches])
    assert ids == expected([word for batch in batches for word in batch.to_pylist()])


def test_keys_of_one_part_are_spread_over_all_slots() -> None:
    """Behind an exchange keys come part by part: the bits that tell the part must not tell the slot."""
    found = mixed(np.arange(100_000, dtype=np.uint64))
    mine = found[part_numbers(found, 16) == 3]
    table = slots.Slots()
    table.add(mine)
    taken = np.flatnonzero(table._slots >= 0) * 16 // len(table._slots)
    assert np.bincount(taken, minlength=16).min() > len(mine) / 32


def test_the_slots_are_never_more_than_half_full() -> None:
    table = slots.Slots()
    table.add(np.arange(1_000, dtype=np.uint64))
    assert table.count == 1_000
    assert table.bytes >= 2 * 1_000 * 4


def test_what_was_given_does_not_change_with_the_numbers() -> None:
    growing = GrowableArray(np.int64)
    growing.put([1, 2])
    given_away = growing.given()
    growing.to(2)[0] = 9
    growing.put([3])
    assert given_away.tolist() == [1, 2]
    assert growing.values.tolist() == [9, 2, 3]


@pytest.mark.parametrize("made_first", [True, False])
def test_copy_that_another_thread_makes_ahead_is_what_changes(made_first: bool) -> None:
    growing = GrowableArray(np.int64)
    growing.put([1, 2])
    given_away = growing.given()
    ahead = growing.copy_ahead()
    assert ahead is not None
    assert not ahead.is_made
    growing.put([3])  # behind what was given, which stays
    room = ahead.make() if made_first else None
    values = growing.to(3)
    assert ahead.is_made
    assert room is None or np.shares_memory(values, room)
    values[0] = 9
    assert growing.to(5).tolist() == [9, 2, 3, 0, 0]
    assert given_away.tolist() == [1, 2]
    assert growing.copy_ahead() is None, "nothing is given any more"


def test_room_that_nothing_was_written_to_takes_no_memory() -> None:
    """A batch of large texts has room for all of them as new keys, and mostly they are known."""
    growing = GrowableArray(np.int64)
    growing.put([1, 2])
    before = anonymous_memory()
    growing.reserve(400 * MIB // 8)
    assert anonymous_memory() - before < 100 * MIB
    assert growing.to(3).tolist() == [1, 2, 0]


def test_the_first_null_keeps_the_numbers_of_keys_beyond_the_range_that_was_asked_for() -> None:
    """A table that has grown has places to spare; keys that took these count when it is made anew for the nulls."""
    batches: list[list[int | None]] = [[*range(1000)], [*range(2000)], [2400], [None, 5], [2400, None]]
    ids, _ = numbered(KeyTable(), [[pa.array(batch, pa.int64())] for batch in batches])
    assert ids == expected([value for batch in batches for value in batch])

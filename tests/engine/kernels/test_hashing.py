"""The hash behind exchanges: equal keys have equal hashes in any layout, and a hash is the same for ever."""

import datetime
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.kernels.hashing import HASH_VERSION, hashes, part_numbers

NAN = float("nan")


def hashed(column: pa.Array) -> list[int]:
    return hashes([column]).tolist()


def text(column: pa.Array) -> str:
    return " ".join(f"{number:016x}" for number in hashed(column))


VALUES = {
    "integers": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    "small integers": (st.integers(-128, 127), pa.int8()),
    "unsigned": (st.integers(0, 2**64 - 1), pa.uint64()),
    "floats": (st.sampled_from([0.0, -0.0, NAN, 1.5, float("inf"), 1e-300]), pa.float64()),
    "booleans": (st.booleans(), pa.bool_()),
    "strings": (st.text(max_size=200), pa.string()),
    "binary": (st.binary(max_size=40), pa.large_binary()),
    "fixed binary": (st.binary(min_size=11, max_size=11), pa.binary(11)),
    "decimals": (st.decimals(-999, 999, places=2), pa.decimal128(10, 2)),
    "small decimals": (st.decimals(-999, 999, places=2), pa.decimal32(7, 2)),
    "dates": (st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)), pa.date32()),
    "timestamps": (st.integers(0, 2**40), pa.timestamp("us", "UTC")),
    "lists": (st.lists(st.none() | st.integers(0, 3), max_size=4), pa.list_(pa.int64())),
    "fixed lists": (st.lists(st.integers(0, 3), min_size=2, max_size=2), pa.list_(pa.int64(), 2)),
    "structs": (
        st.fixed_dictionaries({"a": st.none() | st.integers(0, 2), "b": st.text(max_size=3)}),
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
    ),
    "maps": (st.lists(st.tuples(st.text(max_size=2), st.integers(0, 2)), max_size=3), pa.map_(pa.string(), pa.int64())),
}


def key_of(value: object) -> str:
    """What SQL's GROUP BY tells values apart by."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value + 0.0)
    return repr(value)


@pytest.mark.parametrize("kind", VALUES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equal_values_have_equal_hashes_wherever_they_stand(kind, data):
    values, type = VALUES[kind]
    drawn = data.draw(st.lists(st.none() | values, min_size=1, max_size=30))
    column = pa.array(drawn, type)
    known: dict[str, int] = {}
    for value, found in zip(column.to_pylist(), hashed(column), strict=True):
        assert known.setdefault(key_of(value), found) == found
    assert len(set(known.values())) == len(known), "different values of a small set should differ"
    again = pa.concat_arrays([column, column]).slice(len(column) - 1)
    assert hashed(again) == (hashed(column)[-1:] + hashed(column))
    cut = data.draw(st.integers(0, len(column)))
    assert hashed(column.slice(0, cut)) + hashed(column.slice(cut)) == hashed(column)


@pytest.mark.parametrize("kind", ["integers", "strings", "floats", "dates", "decimals", "binary"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_dictionary_counts_as_its_values(kind, data):
    values, type = VALUES[kind]
    column = pa.array(data.draw(st.lists(st.none() | values, max_size=30)), type)
    assert hashed(column.dictionary_encode()) == hashed(column)
    assert hashed(pa.concat_arrays([column, column]).dictionary_encode().slice(len(column))) == hashed(column)
    with_null = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1]), pa.array([1, None]))
    assert hashed(with_null) == hashed(pa.array([1, None, None, None]))


def test_layouts_of_one_type_are_equal():
    words = ["", "a", "a\0", "eight by", "nine byte", "é" * 70, "x" * 1000, None]
    column = pa.array(words)
    assert hashed(column.cast(pa.large_string())) == hashed(column)
    assert hashed(column.cast(pa.string_view())) == hashed(column)
    assert hashed(column.cast(pa.binary())) == hashed(column)
    assert len(set(hashed(column))) == len(words)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), pa.array(["a", None]))
    assert hashed(runs) == hashed(pa.array(["a", "a", None, None, None]))
    lists = pa.array([[1, None], [], None, [1]], pa.list_(pa.int64()))
    assert hashed(lists.cast(pa.large_list(pa.int64()))) == hashed(lists)
    assert len(set(hashed(lists))) == 4
    assert hashed(pa.array([0.0, NAN], pa.float32())) == hashed(pa.array([-0.0, -NAN]))


def test_what_lies_under_a_null_is_not_looked_at():
    valid = pa.array([True, False, False])
    hidden = pa.StructArray.from_arrays([pa.array([1, 2, 3])], ["a"], mask=pa.array([False, True, True]))
    assert hidden.is_valid().equals(valid)
    assert hashed(hidden)[1] == hashed(hidden)[2]
    numbers = pa.Array.from_buffers(pa.int64(), 3, [valid.buffers()[1], pa.array([1, 2, 3]).buffers()[1]])
    assert hashed(numbers) == hashed(pa.array([1, None, None]))


def test_long_columns_are_hashed_in_blocks_without_a_trace():
    column = pa.array([f"key {number % 977}" for number in range(20_000)])
    once = hashed(column.slice(0, 977))
    assert hashed(column) == [once[number % 977] for number in range(20_000)]


def test_several_columns_are_one_key_in_their_order():
    one, two = pa.array([1, 2, 1, 2, None]), pa.array([2, 1, 2, 2, None])
    both = hashes([one, two]).tolist()
    assert both[0] == both[2]
    assert len(set(both)) == 4
    assert hashes([two, one]).tolist()[0] != both[0]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(np.arange(100_000)),
        pa.array(np.arange(100_000) * 4096),
        pa.array(np.arange(100_000, dtype=np.float64)),
        pa.array([f"user-{number:08d}" for number in range(100_000)]),
        pa.array([str(number) for number in range(100_000)]),
        pa.array(np.arange(100_000)).cast(pa.decimal128(20, 0)),
    ],
    ids=["sequence", "multiples", "floats", "padded names", "numerals", "decimals"],
)
@pytest.mark.parametrize("parts", [2, 7, 128])
def test_parts_are_about_equally_large(column, parts):
    counts = np.bincount(part_numbers(hashes([column]), parts), minlength=parts)
    expected = len(column) / parts
    assert len(counts) == parts
    assert abs(counts - expected).max() < 5 * expected**0.5


def test_unions_are_hashed_by_code_and_value_however_they_lie_in_memory():
    codes = pa.array([0, 1, 0, 1, 1], pa.int8())
    sparse = pa.UnionArray.from_sparse(codes, [pa.array([1, 9, 3, 9, 9]), pa.array([None, "b", "x", None, "e"])])
    places = pa.array([1, 0, 0, 1, 2], pa.int32())
    dense = pa.UnionArray.from_dense(codes, places, [pa.array([3, 1]), pa.array(["b", None, "e"])])
    found = hashes([sparse])
    assert len(set(found.tolist())) == 5
    for union in (sparse, dense):
        for start in range(6):
            assert hashes([union.slice(start)]).tolist() == found[start:].tolist()
        assert hashes([union.take(pa.array([4, 3, 2, 1, 0]))]).tolist() == found[::-1].tolist()
    same = pa.UnionArray.from_sparse(codes, [pa.array([1] * 5), pa.array([1] * 5)])
    assert len(set(hashes([same]).tolist())) == 2


PINNED = {
    "null": pa.array([None], pa.null()),
    "int64": pa.array([0, 1, -1, None]),
    "uint64": pa.array([2**64 - 1], pa.uint64()),
    "float64": pa.array([-0.0, NAN, 1.5]),
    "bool": pa.array([False, True]),
    "string": pa.array(["", "a", "penstock", "a pipe for turbines", "x" * 300]),
    "decimal128": pa.array([Decimal("1.50"), Decimal("-0.01")]),
    "timestamp": pa.array([1_700_000_000_000_000], pa.timestamp("us")),
    "list": pa.array([[], [1, None], [1, 2]], pa.list_(pa.int64())),
    "struct": pa.array([{"a": 1, "b": "x"}, None]),
}
"""Of version 1. Should one of these change, HASH_VERSION must too: checkpoints refer to it."""


@pytest.mark.parametrize("kind", PINNED)
def test_hashes_of_version_1_never_change(kind):
    assert HASH_VERSION == 1
    assert text(PINNED[kind]) == NUMBERS[kind]


NUMBERS = {
    "null": ("589965cc75374cc3"),
    "int64": ("0000000000000000 17fb89ee9dcab42a 1f9b169def102dca 589965cc75374cc3"),
    "uint64": ("1f9b169def102dca"),
    "float64": ("0000000000000000 8e7d136df9f5136d b4e69408036e9408"),
    "bool": ("0000000000000000 17fb89ee9dcab42a"),
    "string": ("5f7a9e13506c7433 d4aeb26333a30afe 78e236bbba33fae1 09b498e12bfa690b 9a664828fde43ade"),
    "decimal128": ("132849835f2050e0 ecd3b1242da11804"),
    "timestamp": ("3fd5592d31716534"),
    "list": ("0000000000000000 9e021317bea34148 92f9de4acc293b78"),
    "struct": ("43aab10d316946d0 589965cc75374cc3"),
}

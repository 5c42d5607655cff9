"""Nested keys as bytes against a comparison of Python values, pair by pair."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.kernels.key_bytes import key_bytes
from penstock.engine.kernels.keys import comparable

NAN = math.nan
POOLS: dict[pa.DataType, list[Any]] = {
    pa.int32(): [-(2**31), -1, 0, 5],
    pa.uint64(): [0, 2**63, 2**64 - 1],
    pa.string(): ["", "a", "a\0", "a\0\1", "a\0b", "a\1", "b", "ä"],
    pa.binary(): [b"", b"\0", b"\0\0", b"\0\1", b"\xff"],
    pa.float64(): [-1.5, -0.0, 0.0, math.inf, NAN],
    pa.decimal128(10, 2): [Decimal(-5), Decimal(0), Decimal("0.01")],
    pa.bool_(): [False, True],
    pa.dictionary(pa.int8(), pa.string()): ["", "a", "b"],
    pa.null(): [None],
}
LEAVES = list(POOLS)
NESTED = [
    *(pa.struct([("one", first), ("two", second)]) for first, second in product(LEAVES[:5], LEAVES[:5])),
    *(pa.list_(leaf) for leaf in LEAVES),
    pa.large_list(pa.string()),
    pa.list_(pa.int32(), 2),
    pa.map_(pa.string(), pa.int32()),
    pa.list_(pa.struct([("l", pa.list_(pa.string())), ("s", pa.string())])),
    pa.struct([]),
]


def drawn(type: pa.DataType, chance: random.Random, *, nullable: bool = True) -> Any:
    if nullable and chance.random() < 0.15:
        return None
    if pa.types.is_struct(type):
        return {field.name: drawn(field.type, chance) for field in type}
    if pa.types.is_map(type):
        return [
            (drawn(type.key_type, chance, nullable=False), drawn(type.item_type, chance))
            for _ in range(chance.randrange(3))
        ]
    if pa.types.is_nested(type):
        length = type.list_size if pa.types.is_fixed_size_list(type) else chance.randrange(4)
        return [drawn(type.value_type, chance) for _ in range(length)]
    return chance.choice(POOLS[type])


def order(value: Any) -> tuple[Any, ...]:
    """What Python compares: null is the largest value, and so is NaN among numbers."""
    if value is None:
        return (2,)
    if isinstance(value, dict):
        return (1, [order(each) for each in value.values()])
    if isinstance(value, list | tuple):
        return (1, [order(each) for each in value])
    if isinstance(value, float):
        return (1, math.isnan(value), 0.0 if math.isnan(value) else value + 0.0)
    return (1, value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("type", NESTED, ids=str)
def test_bytes_of_nested_keys_are_ordered_and_equal_as_the_keys_are(type: pa.DataType) -> None:
    chance = random.Random(3)
    values = [drawn(type, chance) for _ in range(80)]
    column = pa.array(values, type)
    found = key_bytes(column, comparable).to_pylist()
    assert key_bytes(column.slice(7, 20), comparable).to_pylist() == found[7:27]
    pairs = [(order(value), each) for value, each in zip(values, found, strict=True) if value is not None]
    for (one, mine), (other, theirs) in product(pairs, pairs):
        assert (one < other, one == other) == (mine < theirs, mine == theirs), (one, other)


def test_no_rows_have_no_bytes() -> None:
    assert len(key_bytes(pa.array([], NESTED[0]), comparable)) == 0

"""Compact forms of columns: what they are, and that the way back gives the very column."""

from __future__ import annotations

import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.arrow.compact import (
    as_decimals,
    as_records,
    compact_type,
    fits,
    is_compact,
    plain,
    plain_records,
)
from penstock.engine.core.errors import InternalError
from penstock.engine.kernels.row_bits import row_bits
from support.compact_columns import compact, compacted

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("bytes", pa.large_binary()),
        ("price", pa.decimal128(15, 2)),
        ("wide", pa.decimal128(38, 4)),
        ("count", pa.int64()),
        ("code", pa.dictionary(pa.int32(), pa.string())),
    ]
)


def rows(seed: int, count: int = 40) -> pa.RecordBatch:
    chooser = random.Random(seed)

    def column(make, type):
        return pa.array([make() if chooser.random() < 0.8 else None for _ in range(count)], type)

    return pa.RecordBatch.from_arrays(
        [
            column(lambda: chooser.choice(["", "a", "bb", "ccc" * 20]), pa.string()),
            column(lambda: chooser.choice([b"", b"\x00", b"xyz"]), pa.large_binary()),
            column(lambda: Decimal(chooser.randint(-(10**15) + 1, 10**15 - 1)).scaleb(-2), pa.decimal128(15, 2)),
            column(lambda: Decimal(chooser.randint(-(2**63), 2**63 - 1)).scaleb(-4), pa.decimal128(38, 4)),
            column(lambda: chooser.randint(0, 5), pa.int64()),
            column(lambda: chooser.choice("xy"), pa.string()).dictionary_encode(),
        ],
        schema=SCHEMA,
    )


@pytest.mark.parametrize("seed", range(20))
def test_plain_gives_the_column_again_also_of_slices(seed):
    whole = rows(seed)
    narrow = compacted(whole)
    assert [is_compact(one, other) for one, other in zip(narrow.schema.types, SCHEMA.types, strict=True)] == [
        *(True, True, True, True, False, False)
    ]
    assert fits(narrow.schema, SCHEMA)
    assert not fits(SCHEMA, narrow.schema)
    for start, length in ((0, 40), (3, 20), (8, 32), (39, 1), (40, 0)):
        found = plain_records(narrow.slice(start, length), SCHEMA)
        found.validate(full=True)
        assert found.equals(whole.slice(start, length))
        assert found.schema == SCHEMA


def test_nothing_is_copied_of_what_is_plain():
    whole = rows(0)
    assert plain_records(whole, SCHEMA) is whole
    assert as_records(whole.columns, SCHEMA).equals(whole)
    column = whole.column(0)
    assert plain(column, pa.string()) is column


def test_what_is_neither_is_a_bug():
    with pytest.raises(InternalError, match="a column of string came as int64"):
        plain(pa.array([1]), pa.string())


@pytest.mark.parametrize(
    "type", [pa.int64(), pa.decimal256(10, 2), pa.decimal64(10, 2), pa.decimal128(38, 20), pa.decimal128(5, -2)]
)
def test_other_types_have_no_compact_form(type):
    assert compact_type(type) is None


def test_digits_may_be_more_than_the_declared_ones():
    most = as_decimals(np.array([2**63 - 1, -(2**63)]), pa.decimal64(18, 0))
    assert plain(most, pa.decimal128(5, 0)).equals(
        pa.array([2**63 - 1, -(2**63)], pa.decimal128(38, 0)).cast(pa.decimal128(5, 0), safe=False)
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_row_is_as_wide_as_in_the_declared_type(seed):
    whole = rows(seed)
    picked = np.array(random.Random(seed).choices(range(40), k=25))
    for places in (picked, np.arange(40), np.arange(0)):
        found = row_bits(compacted(whole).columns, places, SCHEMA.types)
        wanted = row_bits(whole.columns, places)
        assert np.array_equal(found, wanted)
    start = seed % 7
    found = row_bits(compacted(whole).slice(start).columns, np.arange(10), SCHEMA.types)
    assert np.array_equal(found, row_bits(whole.slice(start).columns, np.arange(10)))


def test_of_nulls_alone_a_row_is_as_wide():
    nulls = pa.array([None, None], pa.string())
    found = row_bits([compact(nulls)], np.arange(2), [pa.string()])
    assert np.array_equal(found, row_bits([nulls], np.arange(2)))

"""Exchanges' configs: which part a row belongs to, and what is refused when the flow is built."""

import pickle
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import FlowError
from penstock.engine.plan import partitioning
from penstock.engine.plan.partitioning import (
    PART,
    TURN_ROWS,
    HashPartitioning,
    RangePartitioning,
    RoundRobin,
    same_parts,
    sorted_by_part,
)

ROWS = pa.table({"k": pa.array([3, None, 1, 3]), "v": [1.0, 2.0, 3.0, 4.0], "s": ["b", "a", None, "b"]})


def batch(table: pa.Table, round: int = 0, lane: int = 0, sequence: int = 0) -> Batch:
    return Batch(table.combine_chunks().to_batches()[0], Tag(round, lane, sequence))


def parts(config, table: pa.Table) -> list[int]:
    config.check(table.schema)
    partitioner = pickle.loads(pickle.dumps(config)).partitioner(table.schema)
    return partitioner.parts(batch(table)).tolist()


def column(values: list, type: pa.DataType) -> pa.Table:
    return pa.table({"c": pa.array(values, type)})


def test_rows_with_equal_keys_are_in_one_part():
    found = parts(HashPartitioning(("k", "s"), 1000), ROWS)
    assert found[0] == found[3]
    assert len(set(found)) == 3
    assert found == parts(HashPartitioning(("k", "s"), 1000), ROWS.set_column(2, "s", ROWS["s"].dictionary_encode()))
    assert set(parts(HashPartitioning(("k",), 1), ROWS)) == {0}


@pytest.mark.parametrize(
    ("values", "bounds", "type", "expected"),
    [
        ([5, 10, 11, None, -1, 20], (10, 20), pa.int64(), [0, 1, 1, 2, 0, 2]),
        ([1.0, float("nan"), None, -0.0], (0.0, 2.0), pa.float64(), [1, 2, 2, 1]),
        (["a", "bb", "b", None, "z"], ("b", "c"), pa.string(), [0, 1, 1, 2, 2]),
        ([Decimal("1.5"), None, Decimal("-1.0")], (Decimal("1.5"),), pa.decimal128(5, 1), [1, 1, 0]),
        ([2**63, 1, None], (2**62,), pa.uint64(), [1, 0, 1]),
        ([True, False, None], (True,), pa.bool_(), [1, 0, 1]),
        ([0, 2_000_000, None], (1_000_000,), pa.timestamp("us"), [0, 1, 1]),
        (["x", None, "a"], ("b",), pa.dictionary(pa.int8(), pa.string()), [1, 1, 0]),
        ([b"xx", None, b"ab"], (b"ac",), pa.binary(2), [1, 1, 0]),
    ],
)
def test_ranges_begin_with_their_bound_and_nulls_come_last(values, bounds, type, expected):
    assert parts(RangePartitioning("c", bounds), column(values, type)) == expected


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 3 * TURN_ROWS), min_size=1, max_size=6), st.integers(1, 9))
def test_turns_depend_on_the_position_in_round_and_lane_alone(sizes, count):
    rows = sum(sizes)
    table = pa.table({"x": np.arange(rows)})
    whole = parts(RoundRobin(count), table)
    partitioner = RoundRobin(count).partitioner(table.schema)
    found, start = [], 0
    for number, size in enumerate(sizes):
        found += partitioner.parts(batch(table.slice(start, size), 0, 0, number)).tolist()
        partitioner.parts(batch(table.slice(0, 1), 0, 1, number))  # another lane in between
        start += size
    assert found == whole
    blocks = [whole[row] for row in range(0, rows, TURN_ROWS)]
    assert all(whole[row] == blocks[row // TURN_ROWS] for row in range(0, rows, 997))
    assert len(set(blocks[:count])) == min(count, len(blocks)), "no part gets a second turn before all had one"


def test_turns_of_consecutive_blocks_reach_all_subtasks():
    partitioner = RoundRobin(128).partitioner(ROWS.schema)
    table = pa.table({"x": np.arange(8 * TURN_ROWS)})
    owners = {int(part) // 32 for part in partitioner.parts(batch(table))}
    assert owners == {0, 1, 2, 3}


def test_a_new_round_begins_at_another_part():
    partitioner = RoundRobin(16).partitioner(ROWS.schema)
    firsts = [int(partitioner.parts(batch(ROWS, round, lane))[0]) for round in range(4) for lane in range(4)]
    assert len(set(firsts)) == 7


def test_rows_are_sorted_by_part_and_keep_their_order_within_it():
    records, found = sorted_by_part(batch(ROWS).records, np.array([2, 0, 1, 0], dtype=np.uint16))
    assert found.tolist() == [0, 0, 1, 2]
    assert records.column("v").to_pylist() == [2.0, 4.0, 3.0, 1.0]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (HashPartitioning(("a",), 8), HashPartitioning(("b",), 8), True),
        (HashPartitioning(("a",), 8), HashPartitioning(("a",), 16), False),
        (HashPartitioning(("a",), 8), HashPartitioning(("a", "b"), 8), False),
        (RangePartitioning("a", (1, 2)), RangePartitioning("b", (1, 2)), True),
        (RangePartitioning("a", (1, 2)), RangePartitioning("a", (1, 3)), False),
        (RoundRobin(8), RoundRobin(8), False),
        (HashPartitioning(("a",), 3), RangePartitioning("a", (1, 2)), False),
    ],
)
def test_partitionings_are_alike_if_equal_keys_have_equal_parts(one, other, expected):
    assert same_parts(one, other) is expected
    assert same_parts(other, one) is expected


@pytest.mark.parametrize(
    ("config", "schema", "message"),
    [
        (HashPartitioning((), 8), ROWS.schema, "no key is given"),
        (HashPartitioning(("z",), 8), ROWS.schema, "has no column 'z'"),
        (HashPartitioning(("k", "k"), 8), ROWS.schema, "given twice"),
        (HashPartitioning(("k",), 0), ROWS.schema, "0 parts are impossible"),
        (HashPartitioning(("k",), 32769), ROWS.schema, "32769 parts are impossible"),
        (RoundRobin(8), pa.schema([(PART, pa.int8())]), "a name that exchanges need"),
        (RangePartitioning("k", ()), ROWS.schema, "no bound is given"),
        (RangePartitioning("k", (2, 1)), ROWS.schema, "do not ascend"),
        (RangePartitioning("k", (1, 1)), ROWS.schema, "do not ascend"),
        (RangePartitioning("k", (1, None)), ROWS.schema, "a bound is null"),
        (RangePartitioning("k", ("a",)), ROWS.schema, "do not fit column 'k'"),
        (RangePartitioning("l", ([1],)), pa.schema([("l", pa.list_(pa.int64()))]), "'l' is list<item: int64>"),
    ],
)
def test_impossible_exchanges_are_refused(config, schema, message):
    with pytest.raises(FlowError, match=message):
        config.check(schema)


def test_descriptions_say_what_decides_the_parts():
    assert HashPartitioning(("k", "s"), 64).describe() == "k, s (hash 1) into 64 parts"
    assert "bounds 1, 2: 3 parts" in RangePartitioning("k", (1, 2)).describe()
    assert "128 parts" in RoundRobin(128).describe()


@pytest.mark.parametrize("seed", range(5))
def test_round_robin_that_is_cut_anywhere_goes_on_where_it_was(monkeypatch, seed):
    monkeypatch.setattr(partitioning, "TURN_ROWS", 3)
    chance = random.Random(seed)
    sizes = [
        (round, lane, chance.randrange(1, 9)) for round in range(3) for lane in sorted(chance.choices(range(4), k=6))
    ]
    batches = [batch(ROWS.take([0] * size), round, lane) for round, lane, size in sizes]
    uncut, cut = RoundRobin(5).partitioner(ROWS.schema), RoundRobin(5).partitioner(ROWS.schema)
    for each in batches:
        assert cut.parts(each).tolist() == uncut.parts(each).tolist()
        state, cut = cut.snapshot(), RoundRobin(5).partitioner(ROWS.schema)
        cut.restore(state)


def test_parts_that_depend_on_rows_alone_have_no_state():
    for config in (HashPartitioning(("k",), 4), RangePartitioning("k", (2,))):
        assert config.partitioner(ROWS.schema).snapshot() is None

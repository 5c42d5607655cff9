"""States that are changed in place give what merging of lifted rows gives, to the last bit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.kernels.accumulators import GroupRows, Merging, accumulator_of, state_maker
from penstock.engine.kernels.whole_sums import WholeSums
from penstock.engine.operators.aggregate.aggregate_functions import FUNCTIONS

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [None, -128, 127, 3]),
    "int64": (pa.int64(), [None, 2**63 - 1, -(2**63), 1, -1, 2**40]),
    "uint64": (pa.uint64(), [None, 2**64 - 1, 2**63, 0, 1]),
    "boolean": (pa.bool_(), [None, True, False]),
    "float64": (pa.float64(), [None, 1e16, 1.0, -1e16, 0.1, -0.0, 0.0, float("nan"), float("inf"), float("-inf")]),
    "float32": (pa.float32(), [None, 1e8, 1.5, -0.0, float("nan")]),
    "decimal": (pa.decimal128(38, 2), [None, Decimal("1e35"), Decimal("-1e35"), Decimal("0.01"), Decimal("-7")]),
    "wide decimal": (pa.decimal256(60, 0), [None, Decimal(10) ** 59, -(Decimal(10) ** 59), Decimal(3)]),
    "narrow decimal": (pa.decimal64(9, 1), [None, Decimal("9.5"), Decimal("-0.1")]),
    "string": (pa.string(), [None, "b", "a", ""]),
    "timestamp": (pa.timestamp("us"), [None, 5, -5, 0]),
}
NUMERIC = [kind for kind in VALUES if kind not in {"string", "timestamp"}]
PAIRS = [
    (name, kind)
    for name in ("count", "sum", "mean", "min", "max", "variance", "first", "last", "collect_list", "count_distinct")
    for kind in VALUES
    if kind in NUMERIC or name not in {"sum", "mean", "variance"}
    if (name, kind) != ("variance", "boolean")
]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_states_in_place_are_those_of_merging(name: str, kind: str, data: st.DataObject) -> None:
    type, sample = VALUES[kind]
    function = FUNCTIONS[name]
    if name == "variance":  # beside infinity it is NaN, but the squares of the state may be infinite or NaN
        sample = [value for value in sample if value is None or abs(value) != float("inf")]
    rows = data.draw(
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from(sample), st.booleans(), st.booleans()), max_size=30)
    )
    size = data.draw(st.integers(1, 12))
    found, wanted = accumulator_of(function, type), Merging(function, type)
    groups = 0
    for start in range(0, len(rows), size):
        share = rows[start : start + size]
        groups = max([groups, *(row[0] + 1 for row in share)])
        kept = [row for row in share if row[2]]
        masked = len(kept) < len(share) or {row[0] for row in rows[: start + size]} != set(range(groups))
        values = pa.array([row[1] for row in kept], type)
        which = GroupRows(np.array([row[0] for row in kept], dtype=np.int64), groups, masked)
        wanted.add(values, which)
        if share[0][3]:
            found.merge(function.lift(values, len(values)), which)
        else:
            found.add(values, which)
    for mine, other in zip(found.state(), wanted.state(), strict=True):
        assert mine.type == other.type
        assert repr(mine.to_pylist()) == repr(other.to_pylist())


def test_a_state_stays_as_it_is_when_further_rows_come() -> None:
    sums = WholeSums()
    sums.add(pa.array([1, 2]), GroupRows(np.array([0, 1]), 2))
    before = sums.state()
    sums.add(pa.array([2**62, 2**62]), GroupRows(np.array([0, 0]), 2))
    assert [part.to_pylist() for part in before] == [[0, 0], [1, 2]]
    assert FUNCTIONS["sum"].state_types(pa.int64()) == tuple(part.type for part in before)
    high, low = (part.to_pylist() for part in sums.state())
    assert [upper * 2**32 + lower for upper, lower in zip(high, low, strict=True)] == [2**63 + 1, 2]


@pytest.mark.parametrize("name", ["first", "last"])
def test_values_that_have_been_replaced_are_let_go_of(name: str) -> None:
    """4,000 values of 1 KB of five groups: no more is held than they take a few times, and each state is right."""
    values, chance = accumulator_of(FUNCTIONS[name], pa.string()), np.random.default_rng(0)
    wanted: dict[int, str] = {}
    for number in range(400):
        ids = chance.integers(0, 5, 10)
        texts = [f"{number:05}.{place:02}" * 128 for place in range(10)]
        for group, text in zip(ids.tolist(), texts, strict=True):
            wanted[group] = text if name == "last" else wanted.get(group, text)
        values.add(pa.array(texts), GroupRows(ids, 5, True))
        if number % 50 == 49:
            assert values.state()[0].to_pylist() == [wanted.get(group) for group in range(5)]
    assert values.bytes < 2 * 1024 * 1024


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_states_of_slices_are_slices_of_the_states(name: str, kind: str) -> None:
    type, sample = VALUES[kind]
    accumulator = accumulator_of(FUNCTIONS[name], type)
    ids = np.random.default_rng(0).integers(0, 50, 200)
    accumulator.add(pa.array([sample[number % len(sample)] for number in range(200)], type), GroupRows(ids, 51, True))
    states, whole = state_maker(accumulator), accumulator.state()
    for part in (slice(0, 51), slice(0, 20), slice(20, 50), slice(50, 51)):
        pairs = zip(states(part), whole, strict=True)
        assert all(str(mine) == str(all.slice(part.start, part.stop - part.start)) for mine, all in pairs)

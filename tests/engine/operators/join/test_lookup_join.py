"""Lookup join with the index in memory, against DuckDB, and with an index of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import FlowError
from penstock.engine.core.operator import exhaust
from penstock.engine.flow import index
from penstock.engine.kernels.pieces import PIECE_ROWS
from penstock.engine.operators import Between, InList, LookupJoin
from penstock.engine.operators.join.index_protocol import Found
from penstock.engine.operators.join.matching import Matches
from support.key_types import KEY_TYPES, comparable_values, key_column
from support.operator_harness import SIZES, Collected, context, rows_of, run
from support.oracle import connect

PLANES = pa.table({"tailnum": ["N1", "N2", None, "N1"], "seats": [10, 20, 30, 40], "year": [1999, None, 2001, 2002]})
FLIGHTS = pa.table({"flight": [1, 2, 3, 4, 5], "plane": ["N2", "N9", None, "N1", "N2"], "year": [2013] * 5})

INNER = [(1, "N2", 2013, 20, None), (4, "N1", 2013, 10, 1999), (4, "N1", 2013, 40, 2002), (5, "N2", 2013, 20, None)]
LEFT = [INNER[0], (2, "N9", 2013, None, None), (3, None, 2013, None, None), *INNER[1:]]


@pytest.mark.parametrize(("how", "expected"), [("inner", INNER), ("left", LEFT)])
@pytest.mark.parametrize("size", SIZES)
def test_lookup_join_keeps_the_streams_order_and_repeats_rows_per_match(
    how: str, expected: list[Any], size: int
) -> None:
    outcome = run(LookupJoin(index.memory(PLANES, "tailnum"), ("plane",), how=how), {(2, 3): FLIGHTS}, size=size)
    assert outcome.schema.names == ["flight", "plane", "year", "seats", "year_right"]
    assert outcome.units == {(2, 3): expected}


keys = st.lists(st.tuples(st.none() | st.integers(0, 4), st.none() | st.integers(0, 3)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(probe=keys, stored=keys, how=st.sampled_from(["inner", "left"]), size=st.sampled_from(SIZES))
def test_lookup_join_on_two_keys_equals_duckdb(probe: list[Any], stored: list[Any], how: str, size: int) -> None:
    ours, theirs = (
        pa.table({
            "a": pa.array([a for a, _ in side], pa.int32()),
            "b": pa.array([None if b is None else f"b{b}" for _, b in side], pa.string()),
            "p": pa.array(range(len(side)), pa.int64()),
        })
        for side in (probe, stored)
    )  # fmt: skip
    outcome = run(LookupJoin(index.memory(theirs, ["b", "a"]), ("b", "a"), how=how), {(0, 0): ours}, size=size)
    with connect() as connection:
        connection.register("ours", ours)
        connection.register("theirs", theirs)
        expected = connection.execute(
            f"select ours.*, theirs.p from ours {how} join theirs using (a, b) order by ours.p, theirs.p"
        ).fetchall()
    assert rows_of(outcome.table) == expected


@pytest.mark.parametrize("key_type", KEY_TYPES)
@pytest.mark.parametrize("stored", [[0, 2, 4, 5, None, 2], list(range(6)) * 5, []])
def test_lookup_join_on_any_key_type(key_type: str, stored: list[int | None]) -> None:
    probe = [None, 0, 1, 2, 3, 4, 5, None]
    ours = pa.table({"k": key_column(key_type, probe), "p": range(len(probe))})
    theirs = pa.table({"k": key_column(key_type, stored), "q": pa.array(range(len(stored)), pa.int64())})
    keys, other_keys = (comparable_values(table.column("k")) for table in (ours, theirs))
    expected = [
        (mine, place)
        for mine, key in enumerate(keys)
        for place, other in enumerate(other_keys)
        if key is not None and key == other
    ]
    for size in (1, 3, 16):
        outcome = run(LookupJoin(index.memory(theirs, "k"), ("k",)), {(0, 0): ours}, size=size)
        assert rows_of(outcome.table.select(["p", "q"])) == expected


def test_one_key_with_many_matches_comes_in_pieces() -> None:
    stored = pa.table({"k": [1] * 1000, "v": range(1000)})
    outcome = run(LookupJoin(index.memory(stored, "k"), ("k",)), {(0, 0): pa.table({"k": [1] * 200})}, size=1024)
    assert [batch.records.num_rows for batch in outcome.batches] == [PIECE_ROWS, 200_000 - PIECE_ROWS]
    assert outcome.table.column("v").to_pylist() == list(range(1000)) * 200


@dataclass(frozen=True)
class Squares:
    """An index without a table: the answer to n is n², for n from 0 to 9. It says what it was asked."""

    key: tuple[str, ...] = ("n",)
    asked: tuple[list[Any], ...] = ([],)
    blocks: bool = False

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("n", pa.int64()), ("square", pa.int64())])

    def fingerprint(self) -> str:
        return ""

    def describe(self) -> str:
        return "squares"

    def open(self) -> Squares:
        return self

    def lookup(self, keys: pa.RecordBatch) -> Found:
        numbers = np.array(keys.column("n").to_pylist(), dtype=np.int64)
        self.asked[0].extend(numbers.tolist())
        known = (numbers >= 0) & (numbers < 10)
        records = pa.record_batch({"n": numbers, "square": numbers * numbers}, schema=self.schema)
        return Found(Matches(np.arange(len(numbers)), known.astype(np.int64), None), records)

    def close(self) -> None:
        self.asked[0].append("closed")


def test_an_index_of_the_users_own_is_asked_for_keys_without_null_and_closed_at_the_end() -> None:
    asked: list[Any] = []
    config = LookupJoin(Squares(asked=(asked,)), ("k",), how="left")
    running = config.build(context(), [pa.schema([("k", pa.int64())])], None)
    running.close()
    assert asked == ["closed"]
    outcome = run(config, {(0, 0): pa.table({"k": [3, None, 12, 5]})})
    assert rows_of(outcome.table) == [(3, 9), (None, None), (12, None), (5, 25)]


STORED = pa.table({
    "u0": [1, 1, 1, 2, 2, 3], "u1": [1, 2, 3, 1, 2, 1], "u2": [10, 20, 30, 10, 20, None], "v": list("abcdef")
})  # fmt: skip
PROBE = pa.table({
    "t0": [1, 2, 9, None, 3, 1], "t1": [[1, 3], [2], [1], [1], None, []], "t2": [10, 0, 0, 0, 0, None],
    "t3": [20, 99, 99, 99, 99, 99],
})  # fmt: skip
CONDITIONS: list[tuple[tuple[Between | InList, ...], str | None, str]] = [
    ((), None, "true"),
    ((InList("u1", "t1"),), None, "list_contains(t1, u1)"),
    ((InList("u1", (1, 3, None)),), None, "u1 in (1, 3)"),
    ((Between("u2", "t2", "t3"),), None, "u2 between t2 and t3"),
    ((Between("u2", 0, "t3"),), None, "u2 between 0 and t3"),
    ((Between("u2", 11, 20),), None, "u2 between 11 and 20"),
    ((Between("u0", "t0", 2), InList("u1", "t1")), None, "u0 between t0 and 2 and list_contains(t1, u1)"),
    ((), "u1 % 2 = 0", "u1 % 2 = 0"),
    ((Between("u2", "t2", 25),), "u1 + t0 > 2", "u2 between t2 and 25 and u1 + t0 > 2"),
]


@pytest.mark.parametrize(("conditions", "filter", "text"), CONDITIONS)
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("rows", [1, 2, 1024])
def test_conditions_and_filter_equal_duckdb_and_a_marker_tells_matches(
    conditions: tuple[Between | InList, ...], filter: str | None, text: str, how: str, rows: int
) -> None:
    config = LookupJoin(
        index.memory(STORED, "u0"), ("t0",), how=how, with_key=True, conditions=conditions, filter=filter, marker="hit"
    )
    outcome = run(config, {(0, 0): PROBE}, size=2, output_rows=rows)
    assert all(batch.records.num_rows <= rows for batch in outcome.batches)
    ours = PROBE.append_column("p", pa.array(range(6)))
    theirs = STORED.append_column("q", pa.array(range(6)))
    with connect() as connection:
        connection.register("ours", ours)
        connection.register("theirs", theirs)
        expected = connection.execute(
            f"select ours.* exclude (p), theirs.* exclude (q), q is not null from ours {how} join theirs"
            f" on t0 = u0 and {text} order by p, q"
        ).fetchall()
    assert rows_of(outcome.table) == expected
    assert outcome.schema.names == ["t0", "t1", "t2", "t3", "u0", "u1", "u2", "v", "hit"]


def test_rows_with_a_null_in_a_key_or_beside_a_condition_are_not_looked_up() -> None:
    asked: list[Any] = []
    table = pa.table({"k": [1, None, 2, 3], "low": [0, 0, None, 9]})
    config = LookupJoin(Squares(asked=(asked,)), ("k",), how="left", conditions=(Between("square", "low", 100),))
    running = config.build(context(), [table.schema], None)
    output = Collected(config.output_schema([table.schema]))
    exhaust(running.process(0, Batch(table.to_batches()[0], Tag(0, 0, 0)), output))
    assert asked == [1, 3]
    exhaust(running.process(0, Batch(table.slice(1, 2).to_batches()[0], Tag(0, 0, 1)), output))
    assert asked == [1, 3], "a batch without anything to look up does not ask"
    assert [row[2] for batch in output.batches for row in rows_of(batch.records)] == [1, None, None, 9, None, None]


def test_columns_of_the_index_are_found_under_their_own_names_in_conditions() -> None:
    stored = pa.table({"k": [1, 1], "v": [5, 6]})
    config = LookupJoin(index.memory(stored, "k"), ("k",), conditions=(Between("v", "v", 9),), filter="v_right < 9")
    assert rows_of(run(config, {(0, 0): pa.table({"k": [1, 1], "v": [6, 9]})}).table) == [(1, 6, 6)]
    assert "where v between v and 9 and v_right < 9" in config.describe()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LookupJoin(index.memory(PLANES, "tailnum"), ("plane",), conditions=(Between("nope", 1, 2),)), "index has no"),
        (
            LookupJoin(index.memory(PLANES, "tailnum"), ("plane",), conditions=(InList("seats", "no"),)),
            "no column 'no'",
        ),
        (LookupJoin(index.memory(PLANES, "tailnum"), ("plane",), conditions=(InList("seats", "year"),)), "int64"),
        (LookupJoin(index.memory(PLANES, "tailnum"), ("plane",), filter="seats + 1"), "not a condition"),
        (LookupJoin(index.memory(PLANES, "tailnum"), ("plane",), marker="seats"), "two columns named 'seats'"),
        (LookupJoin(index.memory(PLANES, "tailnum"), ("nope",)), "no column 'nope'(.|\n)*flight, plane, year"),
        (LookupJoin(index.memory(PLANES, "tailnum"), ("flight",)), "'flight' is int64 on the stream, 'tailnum' is str"),
        (LookupJoin(index.memory(PLANES, ["tailnum", "year"]), ("plane",)), "1 columns .* stand for the key"),
        (LookupJoin(index.memory(PLANES, "tailnum"), ("plane",), how="right"), "'right' is no join type"),
        (LookupJoin(index.memory(PLANES, "tailnum"), ("plane",), suffix=""), "two columns named 'year'"),
        (LookupJoin(index.memory(PLANES, "tailnum"), ()), "0 columns"),
    ],
)
def test_lookup_join_refuses_what_it_cannot_join(config: LookupJoin, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        config.output_schema([FLIGHTS.schema])

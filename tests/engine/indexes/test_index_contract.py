"""What every index promises, shown for each kind: answers, order, nulls, types, copies, closing."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.flow import index
from penstock.engine.operators import Between, InList, LookupJoin
from support.index_kinds import KINDS
from support.key_types import KEY_TYPES, comparable_values, key_column
from support.operator_harness import SIZES, rows_of, run

SQL_KINDS = ("sqlite", "adbc")
NOT_IN_SQLITE = {
    "uint64": "its integers end at 2**63 - 1",
    "null": "a column without a type",
    "dictionary": "a database has no dictionaries",
    "dictionary of decimals": "a database has no dictionaries",
    "double": "it stores NaN as null",
    "float": "it stores NaN as null",
}

TABLE = pa.table({
    "k": [5, 1, 3, 1, None, 7, 5, 5], "n": ["a", "b", None, "a", "a", "b", "a", "c"], "v": range(8)
})  # fmt: skip


def answer(opened: index.OpenIndex, keys: pa.RecordBatch, column: str = "v") -> list[list[Any]]:
    """For each key the values of ``column`` in its matches."""
    found = opened.lookup(keys)
    matches = found.matches
    rows = np.arange(found.records.num_rows) if matches.rows is None else matches.rows
    values = np.array(found.records.column(column).to_pylist(), dtype=object)[rows]
    places = zip(matches.first.tolist(), matches.counts.tolist(), strict=True)
    return [values[first : first + count].tolist() for first, count in places]


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_index_tells_all_matches_of_each_key_in_its_own_order(kind: str, tmp_path: Path) -> None:
    opened = KINDS[kind](tmp_path, TABLE, ["k"]).open()
    assert answer(opened, pa.record_batch({"k": [1, 2, 5, 3, 9, 7]})) == [[1, 3], [], [0, 6, 7], [2], [], [5]]
    assert answer(opened, pa.record_batch({"k": [4]})) == [[]]
    opened.close()


def test_index_of_several_keys_matches_whole_keys_only(kind: str, tmp_path: Path) -> None:
    opened = KINDS[kind](tmp_path, TABLE, ["n", "k"]).open()
    keys = pa.record_batch({"n": ["a", "b", "b", "a", "c"], "k": [5, 7, 5, 1, 5]})
    assert answer(opened, keys) == [[0, 6], [5], [], [3], [7]]
    opened.close()


def test_index_without_rows_matches_nothing(kind: str, tmp_path: Path) -> None:
    opened = KINDS[kind](tmp_path, TABLE.slice(0, 0), ["k"]).open()
    assert answer(opened, pa.record_batch({"k": [1, 2]})) == [[], []]
    opened.close()


def test_copy_of_an_index_is_equal_and_answers_alike(kind: str, tmp_path: Path) -> None:
    config = KINDS[kind](tmp_path, TABLE, ["k"])
    copy = pickle.loads(pickle.dumps(config))
    if kind != "adbc":  # functions of other packages compare by identity
        assert copy == config
        assert hash(copy) == hash(config)
    assert (copy.describe(), copy.fingerprint()) == (config.describe(), config.fingerprint())
    opened = copy.open()
    assert answer(opened, pa.record_batch({"k": [3]})) == [[2]]
    opened.close()


def test_description_names_key_and_columns_but_no_place(kind: str, tmp_path: Path) -> None:
    described = KINDS[kind](tmp_path, TABLE, ["k"]).describe()
    assert "by k with k, n, v" in described
    assert str(tmp_path) not in described


def test_index_answers_several_threads_at_once(kind: str, tmp_path: Path) -> None:
    config = KINDS[kind](tmp_path, TABLE, ["k"])
    opened = config.open()
    keys = pa.record_batch({"k": [1, 2, 5, 3, 9, 7]})
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: answer(opened, keys), range(20)))
    opened.close()
    assert answers == [[[1, 3], [], [0, 6, 7], [2], [], [5]]] * 20


@pytest.mark.parametrize("key_type", KEY_TYPES)
def test_index_takes_keys_of_any_type_that_it_can_hold(kind: str, key_type: str, tmp_path: Path) -> None:
    if kind in SQL_KINDS and key_type in NOT_IN_SQLITE:
        pytest.skip(NOT_IN_SQLITE[key_type])
    stored = [0, 2, 4, 5, None, 2, 3, None, None, None, 1]
    probe = [None, 0, 1, 2, 3, 4, 5, None]
    ours = pa.table({"k": key_column(key_type, probe), "p": range(len(probe))})
    theirs = pa.table({"k": key_column(key_type, stored), "q": pa.array(range(len(stored)), pa.int64())})
    mine, others = (comparable_values(table.column("k")) for table in (ours, theirs))
    expected = [(p, q) for p, key in enumerate(mine) for q, other in enumerate(others) if key == other != None]  # noqa: E711
    made = KINDS[kind](tmp_path, theirs, ["k"])
    ours = ours.set_column(0, "k", ours.column("k").cast(made.schema.field("k").type))  # files know fewer types
    config = LookupJoin(made, ("k",), with_key=True)
    for size in (1, 8):
        outcome = run(config, {(0, 0): ours}, size=size)
        assert rows_of(outcome.table.select(["p", "q"])) == expected
        assert outcome.schema.field("k_right").type == ours.schema.field("k").type


@pytest.mark.parametrize("nested", ["struct", "list"])
def test_index_takes_nested_keys_where_it_can_hold_them(kind: str, nested: str, tmp_path: Path) -> None:
    if kind in SQL_KINDS:
        pytest.skip("a database has no nested columns")
    if nested == "struct":
        values: list[Any] = [{"a": 0, "b": "b0"}, {"a": 1, "b": "b0"}, {"a": 0, "b": "b1"}, {"a": None, "b": "b"}]
    else:
        values = [[], [1], [1, 1], [None, 1]]
    theirs = pa.table({"k": [*values[:2], values[3], None, values[1]], "q": range(5)})
    probe = pa.array([values[1], values[2], values[3], None], theirs.schema.field("k").type)
    ours = pa.table({"k": probe, "p": range(4)})
    outcome = run(LookupJoin(KINDS[kind](tmp_path, theirs, ["k"]), ("k",)), {(0, 0): ours}, size=3)
    assert rows_of(outcome.table.select(["p", "q"])) == [(0, 1), (0, 4), (2, 2)]


PROBE = pa.table({
    "p": range(9), "k": [5, None, 1, 9, 5, 3, 7, 1, None], "low": [1, 1, 2, 0, 7, None, 0, 0, 0],
    "names": [["a"], [], ["a", "b"], None, ["c", "a"], ["a"], None, ["a", "b"], []],
})  # fmt: skip


def joined(how: str) -> list[tuple[Any, ...]]:
    """(p, v, hit): what the join of the next test must give."""
    rows = []
    for probe in PROBE.to_pylist():
        hits = [
            (probe["p"], stored["v"], True)
            for stored in TABLE.to_pylist()
            if None not in (probe["k"], probe["low"], probe["names"], stored["n"])
            and stored["k"] == probe["k"]
            and probe["low"] <= stored["v"] <= 7
            and stored["n"] in probe["names"]
            and stored["v"] != 6
        ]
        rows += hits or ([(probe["p"], None, False)] if how == "left" else [])
    return rows


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", ["inner", "left"])
def test_join_gives_the_same_rows_with_any_index(kind: str, how: str, size: int, tmp_path: Path) -> None:
    config = LookupJoin(
        KINDS[kind](tmp_path, TABLE, ["k"]),
        ("k",),
        how=how,
        conditions=(Between("v", "low", 7), InList("n", "names")),
        filter="v <> 6",
        marker="hit",
    )
    units = {(0, 0): PROBE.slice(0, 5), (0, 2): PROBE.slice(5, 2), (1, 1): PROBE.slice(7)}
    outcome = run(config, units, size=size, restore=True, parallelisms=(1, 3, 2), output_rows=2)
    assert rows_of(outcome.table.select(["p", "v", "hit"])) == joined(how)
    assert len(joined("inner")) == 4
    assert all(batch.records.num_rows <= 2 for batch in outcome.batches)

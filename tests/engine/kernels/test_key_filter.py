"""Key filters: they drop no row that has a match, few others get through, compiled or not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.kernels import native
from penstock.engine.kernels.key_filter import KeyFilter, KeyTest

COMPILED = native.kernels()


@pytest.fixture(params=["compiled", "twins"])
def which(request, monkeypatch) -> str:
    monkeypatch.setattr(native, "_kernels", COMPILED if request.param == "compiled" else None)
    return request.param


def keys(kind: str, values: np.ndarray, random: np.random.Generator) -> pa.Array:
    mask = random.random(len(values)) < 0.1
    if kind == "text":
        return pa.array([f"key {n}" for n in values.tolist()], pa.string(), mask=mask)
    if kind == "codes":
        return keys("text", values, random).dictionary_encode()
    if kind == "decimal":
        return pa.array(values, mask=mask).cast(pa.decimal128(25, 2))
    if kind == "double":
        return pa.array(np.where(values % 7 == 0, np.nan, values * 0.5), mask=mask, from_pandas=False)
    if kind == "date":
        return pa.array(values.astype(np.int32), mask=mask).cast(pa.date32())
    spread = values * 2**40 - 2**62 if kind == "wide" else values
    return pa.array(spread, mask=mask)


def matching(build: list[pa.Array], probe: list[pa.Array]) -> list[int]:
    """The rows that must pass, by Python's own set."""

    def row(columns: list[pa.Array], number: int) -> tuple:
        values = [column[number].as_py() for column in columns]
        return tuple("nan" if str(value) == "nan" else value for value in values)

    there = {row(build, number) for number in range(len(build[0]))}
    rows = (row(probe, number) for number in range(len(probe[0])))
    return [number for number, values in enumerate(rows) if values in there and None not in values]


@pytest.mark.parametrize("seed", range(16))
def test_rows_with_a_match_pass_and_few_others(which: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    kinds = list(random.choice(["narrow", "wide", "text", "codes", "decimal", "double", "date"], 1 + seed % 3))
    many = int(random.integers(2, 50_000))
    built, probed = (random.integers(0, many, rows) for rows in (random.integers(0, 1_500), 3_000))
    build, probe = ([keys(kind, values, random) for kind in kinds] for values in (built, probed))
    passed = KeyTest(build).picked(probe)
    must = matching(build, probe)
    assert set(must) <= set(passed.tolist())
    assert (np.diff(passed) > 0).all()
    assert len(passed) - len(must) <= 0.03 * len(probed)


def test_twins_let_the_same_rows_through(monkeypatch) -> None:
    random = np.random.default_rng(7)
    build, probe = (pa.array(random.integers(-(2**63), 2**63 - 1, rows)) for rows in (20_000, 50_000))
    found = []
    for kernels in (COMPILED, None):
        monkeypatch.setattr(native, "_kernels", kernels)
        found.append(KeyTest([build]).picked([probe]).tolist())
    assert found[0] == found[1]


def test_form_of_a_column_does_not_matter(which: str) -> None:
    words = pa.array([f"word {number}" for number in range(2_000)])
    test = KeyTest([words.slice(0, 700).dictionary_encode()])
    plain, coded = test.picked([words]), test.picked([words.dictionary_encode()])
    assert plain.tolist() == coded.tolist()
    assert 700 <= len(plain) < 710


def test_number_of_bits_of_a_decimal_does_not_matter(which: str) -> None:
    values = pa.array([None, *range(-1_000, 1_000)], pa.int64()).cast(pa.decimal128(21, 2))
    forms = [values.cast(type) for type in (pa.decimal64(18, 2), pa.decimal128(18, 2), pa.decimal256(18, 2))]
    wanted = set(range(301, 1_001))
    for build in forms:
        test = KeyTest([build.slice(301, 700)])
        passed = [test.picked([probe]).tolist() for probe in forms]
        passed += [[row + 5 for row in test.picked([probe.slice(5)]).tolist()] for probe in forms]
        assert all(each == passed[0] for each in passed)
        assert wanted <= set(passed[0])
        assert len(passed[0]) < 710
    two = KeyTest([forms[0].slice(301, 700)] * 2)
    assert wanted <= set(two.picked([forms[1]] * 2).tolist())


@pytest.mark.parametrize("edge", [-(2**63), -1, 0, 2**63 - 4])
def test_narrow_integers_are_exact_at_the_edges_of_their_type(which: str, edge: int) -> None:
    build = pa.array([edge + 1, edge + 3], pa.int64())
    probe = pa.array([edge, edge + 1, edge + 2, edge + 3, 2**63 - 1, -(2**63)] * 200, pa.int64())
    assert {probe[row].as_py() for row in KeyTest([build]).picked([probe]).tolist()} == {edge + 1, edge + 3}


def test_nothing_passes_a_side_without_keys(which: str) -> None:
    for columns in (1, 2):
        test = KeyTest([pa.nulls(9, pa.int64())] * columns)
        assert not len(test.picked([pa.array(range(1_000))] * columns))


def test_bounds_are_those_of_numbers_and_dates_that_are_no_nulls() -> None:
    (found,) = KeyTest([pa.array([7, None, 3], pa.int32())]).bounds
    assert found == (pa.scalar(3, pa.int32()), pa.scalar(7, pa.int32()))
    assert KeyTest([pa.array([0.5, float("nan")]), pa.array(["a", "b"])]).bounds == [None, None]
    assert KeyTest([pa.nulls(3, pa.int32())]).bounds == [None]


def test_a_test_holds_for_its_window() -> None:
    told = KeyFilter()
    rows = [pa.array([1, 2, 3])]
    assert told.picked(0, rows) is None
    told.publish(0, [pa.array([2])])
    assert told.picked(0, rows).tolist() == [1]
    assert told.picked(1, rows) is None
    assert (told.seen, told.passed) == (3, 1)

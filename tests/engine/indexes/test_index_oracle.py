"""Lookup joins with every index against DuckDB, on generated tables: keys of many types, nulls, repeats."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.operators import LookupJoin
from support import oracle
from support.asynchronous_driver import batches_of, drive
from support.index_kinds import KINDS
from support.operator_harness import rows_of, run

START = datetime(1969, 12, 31, 23, 59, 58, tzinfo=UTC)
MAKERS: dict[str, tuple[pa.DataType, Any]] = {
    "int": (pa.int32(), lambda n: n - 3),
    "text": (pa.string(), lambda n: "aé'\"b"[: n % 6] + "x" * (n // 6)),
    "decimal": (pa.decimal128(12, 3), lambda n: Decimal(n - 4) / 8),
    "time": (pa.timestamp("us", "UTC"), lambda n: START + timedelta(milliseconds=n * 500)),
    "words": (pa.dictionary(pa.int8(), pa.string()), lambda n: f"w{n}"),
}
"""name -> type, and how a small number becomes a value of it."""

NUMBERS = st.none() | st.integers(0, 7)


def column(kind: str, numbers: list[int | None]) -> pa.Array:
    type, make = MAKERS[kind]
    values = [None if number is None else make(number) for number in numbers]
    if pa.types.is_dictionary(type):
        return pa.array(values, type.value_type).dictionary_encode().cast(type)
    return pa.array(values, type)


@st.composite
def sides(draw: st.DrawFn) -> tuple[pa.Table, pa.Table, tuple[str, ...]]:
    kinds = draw(st.lists(st.sampled_from(list(MAKERS)), min_size=1, max_size=3, unique=True))
    tables = []
    for most in (30, 25):
        rows = draw(st.lists(st.tuples(*[NUMBERS] * len(kinds)), max_size=most))
        columns = {kind: column(kind, [row[at] for row in rows]) for at, kind in enumerate(kinds)}
        tables.append(pa.table({**columns, "p": pa.array(range(len(rows)), pa.int64())}))
    return tables[0], tables[1], tuple(kinds)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    given_sides=sides(),
    how=st.sampled_from(["inner", "left"]),
    filter=st.sampled_from([None, "p < p_right", "p_right % 2 = 0"]),
    size=st.sampled_from([1, 3, 16, 1024]),
    output_rows=st.sampled_from([1, 7, 65536]),
    prefetch=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_lookup_join_equals_duckdb(
    kind: str, given_sides: Any, how: str, filter: str | None, size: int, output_rows: int, prefetch: int, seed: int
) -> None:
    ours, theirs, on = given_sides
    if kind in ("sqlite", "adbc"):  # a database has no dictionaries
        theirs = theirs.cast(pa.schema([(f.name, pa.string() if f.name == "words" else f.type) for f in theirs.schema]))
    with TemporaryDirectory() as folder:
        made = KINDS[kind](Path(folder), theirs, on)
        config = LookupJoin(made, on, how=how, filter=filter, with_key=True, marker="hit", prefetch=prefetch)
        if made.blocks:
            batches = drive(
                config, [list(batches_of(ours, size))], ours.schema, seed=seed, output_rows=output_rows
            ).batches
            table = pa.Table.from_batches([batch.records for batch in batches], config.output_schema([ours.schema]))
        else:
            table = run(config, {(0, 0): ours}, size=size, output_rows=output_rows).table
    equal = " and ".join(f"ours.{name} = theirs.{name}" for name in on)
    also = {None: "true", "p < p_right": "ours.p < theirs.p", "p_right % 2 = 0": "theirs.p % 2 = 0"}[filter]
    expected = oracle.query(
        f"select ours.p, theirs.p, theirs.p is not null from ours {how} join theirs on {equal} and {also} order by all",
        ours=plain(ours),
        theirs=plain(theirs),
    )
    assert rows_of(table.select(["p", "p_right", "hit"])) == expected
    looked_up = table.filter(table.column("hit"))
    for name in on:
        assert looked_up.column(name).to_pylist() == looked_up.column(f"{name}_right").to_pylist()


def plain(table: pa.Table) -> pa.Table:
    """Without time zones and dictionaries, which the oracle has its own ideas about."""
    types = {"time": pa.timestamp("us"), "words": pa.string()}
    return table.cast(pa.schema([(field.name, types.get(field.name, field.type)) for field in table.schema]))

"""Every join type of the merge join, with and without filter: its rows against DuckDB, their order against a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.operator import exhaust
from penstock.engine.operators import MergeJoin
from penstock.engine.operators.join.join_shape import JOIN_TYPES
from support.join_units import SCHEMAS, UnitKeys, sides, steps_of, units
from support.key_types import KEY_TYPES, comparable_values, key_column
from support.operator_harness import SIZES, Collected, context, rows_of, run
from support.oracle import connect

Row = tuple[Any, ...]
Tables = dict[tuple[int, int], pa.Table]

FILTER = "(v + w) % 3 <> 1"


def passes(left: Row, right: Row) -> bool:
    return math.fmod(left[2] + right[3], 3) != 1


def model(ports: list[Tables], how: str, test: Callable[[Row, Row], bool]) -> list[tuple[Row | None, Row | None]]:
    """The join row by row: left rows in order, each lone right row before the first left row with a larger key."""
    made: list[tuple[Row | None, Row | None]] = []
    for unit in sorted({*ports[0], *ports[1]}):
        left, right = ([] if unit not in port else rows_of(port[unit]) for port in ports)
        pairs = [(n, m) for n, one in enumerate(left) for m, other in enumerate(right) if matches(one, other, test)]
        hit = ({n for n, _ in pairs}, {m for _, m in pairs})
        if how == "right semi":
            made += [(None, right[m]) for m in sorted(hit[1])]
            continue
        lone = {m: place(left, right, m) for m in range(len(right)) if m not in hit[1] and how in {"right", "full"}}
        for n in range(len(left) + 1):
            made += [(None, right[m]) for m, before in lone.items() if before == n]
            if n == len(left):
                continue
            if how in {"inner", "left", "right", "full"}:
                made += [(left[n], right[m]) for one, m in pairs if one == n]
            if (n in hit[0]) == (how == "left semi") and how in {"left", "full", "left semi", "anti"}:
                made.append((left[n], None))
    return made


def matches(left: Row, right: Row, test: Callable[[Row, Row], bool]) -> bool:
    mine, theirs = key(left, 0), key(right, 1)
    return mine is not None and mine == theirs and test(left, right)


def key(row: Row, side: int) -> Row | None:
    found = (row[0], row[1]) if side == 0 else (row[2], row[1])
    return None if None in found else found


def place(left: list[Row], right: list[Row], number: int) -> int:
    before = [found for found in (key(row, 1) for row in right[: number + 1]) if found is not None]
    larger = [n for n, row in enumerate(left) if (found := key(row, 0)) and (not before or found > before[-1])]
    return larger[0] if larger else len(left)


def shown(pair: tuple[Row | None, Row | None], how: str) -> Row:
    left, right = pair
    if how in {"left semi", "anti"}:
        assert left is not None
        return left
    if how == "right semi":
        assert right is not None
        return right
    keys = (left[0], left[1]) if left is not None else (right[2], right[1]) if right is not None else ()
    return (*keys, left[2] if left else None, right[0] if right else None, right[3] if right else None)


def by_duckdb(ports: list[Tables], how: str, filter: str | None) -> list[Row]:
    with connect() as connection:
        for name, schema, port in zip(("l", "r"), SCHEMAS, ports, strict=True):
            tables = [
                table.append_column("u", pa.array([str(unit)] * table.num_rows, pa.string()))
                for unit, table in port.items()
            ]
            connection.register(
                name, pa.concat_tables([schema.append(pa.field("u", pa.string())).empty_table(), *tables])
            )
        on = "l.u = r.u and l.a = r.a and l.b = r.b" + (f" and {filter.replace('v', 'l.v')}" if filter else "")
        if how in {"left semi", "right semi", "anti"}:
            one, other = ("r", "l") if how == "right semi" else ("l", "r")
            verb = "not exists" if how == "anti" else "exists"
            text = f"select {one}.* exclude (u) from {one} where {verb} (from {other} where {on})"
        else:
            text = f"select coalesce(l.a, r.a), coalesce(l.b, r.b), l.v, r.v, r.w from l {how} join r on {on}"
        return connection.execute(text).fetchall()


def in_any_order(rows: list[Row]) -> list[str]:
    return sorted(map(repr, rows))


@settings(max_examples=120, deadline=None)
@given(
    left=units,
    right=units,
    how=st.sampled_from(JOIN_TYPES),
    filter=st.sampled_from([None, FILTER]),
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 9),
    step=st.sampled_from([1, 5, 16, 1 << 16]),
)
def test_every_join_type_equals_duckdb_in_the_same_order_for_every_batch_size_and_step(
    left: UnitKeys, right: UnitKeys, how: str, filter: str | None, size: int, seed: int, step: int
) -> None:
    ports = sides(left, right)
    config = MergeJoin(("a", "b"), how=how, filter=filter)
    with steps_of(step):
        outcome = run(config, *ports, schemas=SCHEMAS, size=size, seed=seed)
    wanted = model(ports, how, passes if filter else lambda one, other: True)
    found = rows_of(outcome.table)
    assert found == [shown(pair, how) for pair in wanted]
    assert in_any_order(found) == in_any_order(by_duckdb(ports, how, filter))


@settings(max_examples=40, deadline=None)
@given(left=units, right=units, how=st.sampled_from(JOIN_TYPES), rows=st.sampled_from([1, 2, 7]))
def test_output_in_small_batches_judges_rows_whose_pairs_span_them(
    left: UnitKeys, right: UnitKeys, how: str, rows: int
) -> None:
    ports = sides(left, right)
    config = MergeJoin(("a", "b"), how=how, filter=FILTER)
    outcome = run(config, *ports, schemas=SCHEMAS, output_rows=rows)
    assert all(batch.records.num_rows <= rows for batch in outcome.batches)
    assert rows_of(outcome.table) == [shown(pair, how) for pair in model(ports, how, passes)]


@pytest.mark.parametrize("key_type", KEY_TYPES)
@pytest.mark.parametrize("step", [2, 1 << 16])
def test_full_join_on_any_key_type_shows_the_key_of_either_side(key_type: str, step: int) -> None:
    left, right = [None, 0, 2, 4, 5, None], [0, 1, None, 2, 3, 5]
    tables = [pa.table({"k": key_column(key_type, numbers), "p": range(len(numbers))}) for numbers in (left, right)]
    ours, theirs = (comparable_values(table.column("k")) for table in tables)
    with steps_of(step):
        outcome = run(MergeJoin(("k",), how="full"), {(0, 0): tables[0]}, {(0, 0): tables[1]}, size=2)
    for found, mine, other in zip(
        comparable_values(outcome.table["k"]),
        outcome.table["p"].to_pylist(),
        outcome.table["p_right"].to_pylist(),
        strict=True,
    ):
        assert found == (ours[mine] if mine is not None else theirs[other])
    for name in ("p", "p_right"):
        assert {n for n in outcome.table[name].to_pylist() if n is not None} == set(range(6))


def test_keys_with_two_names_both_stand_in_the_output() -> None:
    left, right = pa.table({"k": [1, 2], "v": [10, 20]}), pa.table({"j": [2, 3], "v": [200, 300]})
    config = MergeJoin(("k",), how="full", right_on=("j",), filter=pc.field("v") < pc.field("v_right"))
    outcome = run(config, {(0, 0): left}, {(0, 0): right})
    assert outcome.schema.names == ["k", "v", "j", "v_right"]
    assert rows_of(outcome.table) == [(1, 10, None, None), (2, 20, 2, 200), (None, None, 3, 300)]
    assert config.describe() == "full on k = j where (v < v_right)"


def test_right_rows_with_one_number_in_two_batches_are_told_apart() -> None:
    left = pa.table({"k": [1, 1], "v": [5, 6]})
    right = pa.table({"k": [1, 1, 1, 1], "w": [5, 0, 0, 6]})
    outcome = run(MergeJoin(("k",), how="full", filter="v = w"), {(0, 0): left}, {(0, 0): right}, size=2)
    assert rows_of(outcome.table) == [(1, 5, 5), (1, 6, 6), (1, None, 0), (1, None, 0)]


@pytest.mark.parametrize("how", ["left semi", "anti", "right semi"])
def test_a_huge_product_costs_semi_and_anti_joins_nothing(how: str) -> None:
    rows = 300_000
    table = pa.table({"k": pa.repeat(7, rows), "v": range(rows)})
    outcome = run(MergeJoin(("k",), how=how), {(0, 0): table}, {(0, 0): table}, size=100_000)
    assert outcome.table.num_rows == (0 if how == "anti" else rows)


@pytest.mark.parametrize("how", JOIN_TYPES)
def test_a_drain_joins_what_has_come_and_forgets_it(how: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    config = MergeJoin(("k",), how=how)
    output = Collected(config.output_schema([schema, schema]))
    running = config.build(context(), [schema, schema], None)
    for window in range(2):
        for port in (0, 1):
            keys = [[2, 3], [1, 2]][port]
            records = pa.record_batch({"k": keys, "v": [10 * port + window] * 2}, schema=schema)
            exhaust(running.process(port, Batch(records, Tag(0, 0, window)), output))
        exhaust(running.drain(output))
        assert running.snapshot() is None
    for port in (0, 1):
        exhaust(running.end_round(port, 0, output))
        exhaust(running.end_port(port, output))
    rows = [row for batch in output.batches for row in rows_of(batch.records)]
    one = {
        "inner": [(2, 0, 10)], "left": [(2, 0, 10), (3, 0, None)], "right": [(1, None, 10), (2, 0, 10)],
        "full": [(1, None, 10), (2, 0, 10), (3, 0, None)], "left semi": [(2, 0)], "right semi": [(2, 10)],
        "anti": [(3, 0)],
    }[how]  # fmt: skip
    later = [tuple(value + 1 if n and value is not None else value for n, value in enumerate(row)) for row in one]
    assert rows == one + later


def test_a_snapshot_between_two_steps_remembers_which_right_rows_have_matched() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    config = MergeJoin(("k",), how="full")
    output = Collected(config.output_schema([schema, schema]))
    with steps_of(2):
        running = config.build(context(), [schema, schema], None)
        exhaust(
            running.process(
                1, Batch(pa.record_batch({"k": [1, 1, 3], "v": [1, 2, 3]}, schema=schema), Tag(0, 0, 0)), output
            )
        )
        exhaust(
            running.process(0, Batch(pa.record_batch({"k": [1, 1], "v": [7, 8]}, schema=schema), Tag(0, 0, 0)), output)
        )
        assert sum(batch.records.num_rows for batch in output.batches) == 4, "a step has been made"
        state = running.snapshot()
        assert state is not None
        again = config.build(context(), [schema, schema], state)
        output = Collected(output.schema)
        for port in (0, 1):
            exhaust(again.end_round(port, 0, output))
    assert [row for batch in output.batches for row in rows_of(batch.records)] == [(3, None, 3)]

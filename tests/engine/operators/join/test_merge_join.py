"""Merge join, against DuckDB: any batch size, any order of the ports, any key type, in steps or at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.core.operator import exhaust
from penstock.engine.kernels.pieces import PIECE_ROWS
from penstock.engine.operators import MergeJoin
from penstock.engine.operators.join import merge_join
from support.join_units import SCHEMAS, UnitKeys, sides, steps_of, units
from support.key_types import KEY_TYPES, comparable_values, key_column
from support.operator_harness import SIZES, Collected, context, rows_of, run
from support.oracle import connect


def oracle(ports: list[dict[tuple[int, int], pa.Table]], how: str) -> list[tuple[Any, ...]]:
    """The join of all units by DuckDB, in the order of the left side, matches in the order of the right."""
    with connect() as connection:
        for name, schema, units in zip(("ours", "theirs"), SCHEMAS, ports, strict=True):
            tables = [
                table.append_column(
                    "u", pa.array([f"{unit[0]:09}-{unit[1]:09}"] * table.num_rows, pa.string())
                ).append_column("p", pa.array(range(table.num_rows), pa.int64()))
                for unit, table in units.items()
            ]
            empty = schema.append(pa.field("u", pa.string())).append(pa.field("p", pa.int64())).empty_table()
            connection.register(name, pa.concat_tables([empty, *tables]))
        return connection.execute(
            f"""
            select ours.a, ours.b, ours.v, theirs.v, theirs.w from ours {how} join theirs
            on ours.u = theirs.u and ours.a = theirs.a and ours.b = theirs.b order by ours.u, ours.p, theirs.p
            """
        ).fetchall()


@settings(max_examples=80, deadline=None)
@given(
    left=units,
    right=units,
    how=st.sampled_from(["inner", "left"]),
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 9),
    step=st.sampled_from([1, 5, 16, 1 << 16]),
)
def test_merge_join_equals_duckdb_for_every_batch_size_order_of_ports_and_step(
    left: UnitKeys, right: UnitKeys, how: str, size: int, seed: int, step: int
) -> None:
    ports = sides(left, right)
    with steps_of(step):
        outcome = run(MergeJoin(("a", "b"), how=how), *ports, schemas=SCHEMAS, size=size, seed=seed)
    assert rows_of(outcome.table) == oracle(ports, how)
    if step == 1 << 16:
        assert {batch.tag.sequence for batch in outcome.batches} <= {0}, "a small unit is joined at once"


@settings(max_examples=25, deadline=None)
@given(left=units, right=units, size=st.sampled_from(SIZES), parallelisms=st.sampled_from([(1, 3), (4, 1, 2)]))
def test_restored_merge_join_goes_on_at_any_parallelism_and_holds_nothing_between_rounds(
    left: UnitKeys, right: UnitKeys, size: int, parallelisms: tuple[int, ...]
) -> None:
    ports = sides(left, right)
    config = MergeJoin(("a", "b"), how="left")
    straight = run(config, *ports, schemas=SCHEMAS)
    restored = run(config, *ports, schemas=SCHEMAS, size=size, restore=True, parallelisms=parallelisms)
    assert [(batch.tag, rows_of(batch.records)) for batch in restored.batches] == [
        (batch.tag, rows_of(batch.records)) for batch in straight.batches
    ]
    assert restored.states == 0


@pytest.mark.parametrize("key_type", KEY_TYPES)
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("step", [2, 1 << 16])
def test_merge_join_on_any_key_type_with_nulls_anywhere(key_type: str, how: str, step: int) -> None:
    left, right = [None, 0, 0, None, 1, 2, 3, 4, 5, None], [0, 0, None, None, 2, 4, 5, 5]
    tables = [pa.table({"k": key_column(key_type, numbers), "p": range(len(numbers))}) for numbers in (left, right)]
    values = [comparable_values(table.column("k")) for table in tables]
    expected: list[tuple[int, int | None]] = []
    for mine, key in enumerate(values[0]):
        found = [theirs for theirs, other in enumerate(values[1]) if key is not None and key == other]
        expected += [(mine, theirs) for theirs in found] or ([(mine, None)] if how == "left" else [])
    for size in (1, 3, 16):
        with steps_of(step):
            outcome = run(MergeJoin(("k",), how=how), {(0, 0): tables[0]}, {(0, 0): tables[1]}, size=size, seed=size)
        assert rows_of(outcome.table.select(["p", "p_right"])) == expected


@pytest.mark.parametrize(("ours", "theirs"), [((2, 3, 4), (7,)), ((7,), (2, 3, 4))])
def test_a_group_over_several_batches_of_both_sides_gives_the_product(
    ours: tuple[int, ...], theirs: tuple[int, ...]
) -> None:
    config = MergeJoin(("k",))
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    output = Collected(config.output_schema([schema, schema]))
    running = config.build(context(), [schema, schema], None)
    for port, sizes in enumerate((ours, theirs)):
        for number, size in enumerate(sizes):
            records = pa.record_batch({"k": [5] * size, "v": [10 * number + n for n in range(size)]}, schema=schema)
            exhaust(running.process(port, Batch(records, Tag(0, 0, number)), output))
        exhaust(running.end_round(port, 0, output))
    values = [[10 * number + n for number, size in enumerate(side) for n in range(size)] for side in (ours, theirs)]
    assert [row[1:] for batch in output.batches for row in rows_of(batch.records)] == [
        (left, right) for left in values[0] for right in values[1]
    ]


def test_a_huge_product_comes_in_pieces() -> None:
    left, right = pa.table({"k": [1] * 600, "v": range(600)}), pa.table({"k": [1] * 700, "w": range(700)})
    outcome = run(MergeJoin(("k",)), {(0, 0): left}, {(0, 0): right}, size=1024)
    assert [batch.records.num_rows for batch in outcome.batches] == [PIECE_ROWS] * 3 + [420_000 - 3 * PIECE_ROWS]
    assert outcome.table.column("w").to_pylist() == list(range(700)) * 600


def test_a_large_unit_is_joined_as_it_comes_in_bounded_memory() -> None:
    """Each side alone would fill many steps; the join never holds more than a few of them."""
    rows, step = 40_000, 1000
    left = pa.table({"k": np.arange(rows) // 2, "v": np.arange(rows)})
    right = pa.table({"k": np.arange(rows // 4) * 2, "w": np.arange(rows // 4)})
    with steps_of(step):
        config = MergeJoin(("k",), how="left")
        running = config.build(context(), [left.schema, right.schema], None)
        output = Collected(config.output_schema([left.schema, right.schema]))
        streams = [table.to_batches(max_chunksize=250) for table in (left, right)]
        done, most = [0, 0], 0
        while done != [len(stream) for stream in streams]:
            open_ports = [port for port in (0, 1) if done[port] < len(streams[port])]
            port = next(port for port in open_ports if running.accepts(port))
            exhaust(running.process(port, Batch(streams[port][done[port]], Tag(0, 0, done[port])), output))
            done[port] += 1
            if done[port] == len(streams[port]):
                exhaust(running.end_round(port, 0, output))
            state = running.snapshot()
            most = max(most, 0 if state is None else state.num_rows)
    assert most <= 6 * step
    joined = pa.Table.from_batches([batch.records for batch in output.batches])
    expected = [key // 2 if key % 2 == 0 else None for key in (np.arange(rows) // 2).tolist()]
    assert joined.column("w").to_pylist() == expected
    assert joined.column("v").to_pylist() == list(range(rows))


def test_right_rows_that_no_left_row_can_match_any_more_are_forgotten() -> None:
    """The left side stands far ahead; what comes on the right is dropped step by step until it gets there."""
    schema, step = pa.schema([("k", pa.int64())]), 100
    with steps_of(step):
        config = MergeJoin(("k",))
        running = config.build(context(), [schema, schema], None)
        output = Collected(config.output_schema([schema, schema]))
        exhaust(running.process(0, Batch(pa.record_batch({"k": range(5000, 5000 + step)}), Tag(0, 0, 0)), output))
        for number in range(52):
            assert running.accepts(1)
            keys = range(number * step, (number + 1) * step)
            exhaust(running.process(1, Batch(pa.record_batch({"k": keys}), Tag(0, 0, number)), output))
            state = running.snapshot()
            assert state is None or state.num_rows <= 3 * step
        for port in (0, 1):
            exhaust(running.end_round(port, 0, output))
    assert [row for batch in output.batches for row in rows_of(batch.records)] == [(5000 + n,) for n in range(step)]


def test_a_side_that_runs_ahead_is_refused_while_the_other_one_is_welcome() -> None:
    schema = pa.schema([("k", pa.int64())])
    config = MergeJoin(("k",))
    running = config.build(context(), [schema, schema], None)
    output = Collected(config.output_schema([schema, schema]))
    assert running.accepts(0)
    assert running.accepts(1)
    for lane in range(merge_join.HELD_UNITS):
        assert running.accepts(1)
        exhaust(running.process(1, Batch(pa.record_batch({"k": [lane]}), Tag(0, lane, 0)), output))
    assert not running.accepts(1)
    assert running.accepts(0)
    exhaust(running.process(0, Batch(pa.record_batch({"k": [3]}), Tag(0, 3, 0)), output))
    assert running.accepts(1), "units before lane 3 have been joined and forgotten"
    assert running.accepts(0)


def test_a_unit_that_only_one_side_has_is_kept_by_a_left_join() -> None:
    rows = pa.table({"k": [1, 2]})
    ports = ({(0, 0): rows, (1, 1): rows}, {(0, 1): rows, (1, 1): rows})
    assert run(MergeJoin(("k",), how="left"), *ports).units == {(0, 0): [(1,), (2,)], (1, 1): [(1,), (2,)]}
    assert run(MergeJoin(("k",)), *ports).units == {(1, 1): [(1,), (2,)]}


def test_a_snapshot_within_a_unit_holds_the_rows_of_both_sides() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    config = MergeJoin(("k",), how="left")
    output = Collected(config.output_schema([schema, schema]))
    running = config.build(context(), [schema, schema], None)
    exhaust(
        running.process(
            0, Batch(pa.record_batch({"k": [1, None], "v": ["a", "b"]}, schema=schema), Tag(4, 2, 0)), output
        )
    )
    exhaust(
        running.process(1, Batch(pa.record_batch({"k": [1, 1], "v": ["x", "y"]}, schema=schema), Tag(4, 2, 0)), output)
    )
    state = running.snapshot()
    assert state is not None
    assert state.column("__lane").to_pylist() == [2] * 4
    again = config.build(context(), [schema, schema], state)
    exhaust(again.process(0, Batch(pa.record_batch({"k": [3], "v": ["c"]}, schema=schema), Tag(4, 2, 1)), output))
    for port in (0, 1):
        exhaust(again.end_round(port, 4, output))
    assert [row for batch in output.batches for row in rows_of(batch.records)] == [
        (1, "a", "x"), (1, "a", "y"), (None, "b", None), (3, "c", None)
    ]  # fmt: skip
    assert again.snapshot() is None


@pytest.mark.parametrize("size", [1, 2, 16])
@pytest.mark.parametrize(("bad", "side"), [(0, "left"), (1, "right")])
def test_unsorted_input_names_the_side_both_keys_and_the_fix(size: int, bad: int, side: str) -> None:
    good = pa.table({"a": [1, 2, 3, 4], "b": ["x", "x", "x", "x"]})
    wrong = pa.table({"a": [1, 2, None, 2, 4], "b": ["x", "y", "a", "x", "x"]})
    tables = [good, good]
    tables[bad] = wrong
    with pytest.raises(DataError) as caught:
        run(MergeJoin(("a", "b")), {(2, 1): tables[0]}, {(2, 1): tables[1]}, size=size)
    assert caught.value.message == (
        f"the {side} input of the merge join (round 2, lane 1) is not sorted by a, b: (2, x) comes after (2, y)"
    )
    assert "sort within partitions by a, b" in caught.value.remedy


def test_descending_order_and_a_nan_before_a_number_are_not_sorted() -> None:
    sorted_rows = pa.table({"k": [1.0]})
    for values in ([2.0, 1.0], [float("nan"), 1.0]):
        with pytest.raises(DataError, match=r"right input of the merge join .* is not sorted"):
            run(MergeJoin(("k",)), {(0, 0): sorted_rows}, {(0, 0): pa.table({"k": values})})


def test_order_starts_anew_in_every_unit() -> None:
    ports = [{(0, 0): pa.table({"k": [5]}), (0, 1): pa.table({"k": [1]}), (1, 0): pa.table({"k": [0]})}] * 2
    assert run(MergeJoin(("k",)), *ports).units == {(0, 0): [(5,)], (0, 1): [(1,)], (1, 0): [(0,)]}


def test_output_columns_are_left_then_right_without_keys_and_with_a_suffix_on_clash() -> None:
    schema = MergeJoin(("a",), suffix="_weather").output_schema(SCHEMAS)
    assert schema.names == ["a", "b", "v", "v_weather", "b_weather", "w"]
    strict = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
    assert not MergeJoin(("a",)).output_schema([strict, strict]).field("n_right").nullable
    assert MergeJoin(("a",), how="left").output_schema([strict, strict]).field("n_right").nullable


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MergeJoin(("nope",)), "merge join: its left input has no column 'nope'(.|\n)*a, b, v"),
        (MergeJoin(("z",)), "merge join: its right input has no column 'z'(.|\n)*v, b, a, w"),
        (MergeJoin(("t",)), "key 't' is timestamp.us. on the left, 't' is timestamp.ms. on the right"),
        (MergeJoin(("l",)), "column 'l' of type list.* cannot be a key"),
        (MergeJoin(("o",)), "column 'o' of its left input is string_view, of which Arrow cannot pick rows"),
        (MergeJoin(("a",), how="outer"), "'outer' is no join type it knows(.|\n)*inner, left, right, full, left semi"),
        (MergeJoin(("a",), right_on=("a", "v")), "1 keys on the left, 2 on the right"),
        (MergeJoin(("a",), right_on=("b",)), "'a' is int64 on the left, 'b' is string on the right"),
        (MergeJoin(("a",), filter="v + w"), "int64, not a condition"),
        (MergeJoin(("a",), filter="u > 1"), "no column 'u'(.|\n)*a, b, v, .*v_right, b_right, w"),
        (MergeJoin(("a",), suffix=""), "two columns named 'b'"),
        (MergeJoin(()), "no key is given"),
        (MergeJoin(("a", "a")), "'a' is given twice"),
    ],
)
def test_merge_join_refuses_what_it_cannot_join(config: MergeJoin, message: str) -> None:
    left = [
        *SCHEMAS[0],
        pa.field("z", pa.int64()),
        pa.field("t", pa.timestamp("us")),
        pa.field("l", pa.list_(pa.month_day_nano_interval())),
    ]
    right = [*SCHEMAS[1], pa.field("t", pa.timestamp("ms")), pa.field("l", pa.list_(pa.month_day_nano_interval()))]
    if "string_view" in message:
        left.append(pa.field("o", pa.string_view()))
    with pytest.raises(FlowError, match=message):
        config.output_schema([pa.schema(left), pa.schema(right)])

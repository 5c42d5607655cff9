"""Streaming aggregation, against DuckDB: any batch size, any key type, restored at any round, at any parallelism."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.core.operator import exhaust
from penstock.engine.kernels.pieces import PIECE_ROWS
from penstock.engine.operators import Aggregate, StreamAggregate
from penstock.engine.state.memory import TaskMemory
from support.key_types import KEY_TYPES, key_column
from support.operator_harness import SIZES, Collected, Outcome, context, rows_of, run
from support.oracle import connect

ALL = tuple(Aggregate(name, "v", name) for name in ("count", "sum", "min", "max", "mean", "first", "last"))


def made_of(rows: list[tuple[int | None, int | None]], key_type: str = "int64") -> pa.Table:
    """Clustered rows: a key number and a value each."""
    keys = key_column(key_type, [key for key, _ in rows])
    return pa.table({"k": keys, "v": pa.array([value for _, value in rows], pa.int64())})


def oracle(table: pa.Table, by: str) -> list[tuple[Any, ...]]:
    """The same by DuckDB: runs of equal keys are told apart by where the key changes."""
    numbered = table.append_column("p", pa.array(range(table.num_rows), pa.int64()))
    with connect() as connection:
        connection.register("given_rows", numbered)
        return connection.execute(
            f"""
            with marked as (select *, {by} is distinct from lag({by}) over (order by p) or p = 0 as starts
                            from given_rows),
                 runs as (select *, sum(starts::int) over (order by p) as run from marked)
            select first({by} order by p), count(*), count(v), sum(v)::bigint, min(v), max(v), avg(v),
                   first(v order by p), last(v order by p)
            from runs group by run order by run
            """
        ).fetchall()


def shown(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(repr(value) if isinstance(value, float) else value for value in row) for row in rows]


clusters = st.lists(
    st.tuples(st.none() | st.integers(0, 5), st.lists(st.none() | st.integers(-9, 9), min_size=1, max_size=20)),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(groups=clusters, size=st.sampled_from(SIZES))
def test_stream_aggregate_equals_duckdb_for_every_batch_size(groups: list[Any], size: int) -> None:
    table = made_of([(key, value) for key, values in groups for value in values])
    config = StreamAggregate(("k",), (Aggregate("rows", None, "count"), *ALL))
    assert rows_of(run(config, {(0, 0): table}, size=size).table) == shown(oracle(table, "k"))


@pytest.mark.parametrize("key_type", [name for name in KEY_TYPES if name != "null"])
def test_stream_aggregate_groups_by_any_key_type_with_null_as_a_group(key_type: str) -> None:
    numbers = [0, 0, None, None, 1, 2, 2, 2, 5, 5, None, 4]
    table = made_of([(number, place) for place, number in enumerate(numbers)], key_type)
    plain = table.set_column(0, "k", pc.cast(table.column("k"), table.schema.field("k").type.value_type)) \
        if pa.types.is_dictionary(table.schema.field("k").type) else table  # fmt: skip
    config = StreamAggregate(("k",), (Aggregate("rows", None, "count"), *ALL))
    found = [rows_of(run(config, {(0, 0): table}, size=size).table) for size in (*SIZES, 2)]
    assert found == [found[0]] * len(found)
    expected = [row[1:] for row in shown(oracle(plain, "k"))]
    assert [row[1:] for row in found[0]] == expected


@settings(max_examples=25, deadline=None)
@given(
    units=st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 3)), clusters, max_size=10),
    size=st.sampled_from(SIZES),
    parallelisms=st.sampled_from([(1,), (1, 2), (4, 1, 3), (2, 3)]),
)
def test_restored_stream_aggregate_goes_on_at_any_parallelism(
    units: dict[tuple[int, int], Any], size: int, parallelisms: tuple[int, ...]
) -> None:
    tables = {
        unit: made_of([(key, value) for key, values in groups for value in values], "string")
        for unit, groups in units.items()
    }
    config = StreamAggregate(("k",), ALL)
    schemas = [made_of([], "string").schema]
    straight = run(config, tables, schemas=schemas, size=1024)
    restored = run(config, tables, schemas=schemas, size=size, restore=True, parallelisms=parallelisms)
    assert restored.units == straight.units
    assert [batch.tag for batch in restored.batches] == [batch.tag for batch in straight.batches]


def reference() -> Outcome:
    """Keys and payload of a published table: groups over batches, null as a key."""
    keys = [1, 1, None, 2, 2, 2, 3, 3, 4, 5, 6, 6, 6, 6, 6, 6, 6, 6, 7, 8]
    table = pa.table({"k": keys, "v": range(20)})
    config = StreamAggregate(("k",), (Aggregate("n", None, "count"), Aggregate("f", "v", "first")))
    return run(config, {(0, 0): table.slice(0, 9), (1, 0): table.slice(9)}, size=4)


def test_groups_that_span_batches_and_rounds_come_once() -> None:
    assert rows_of(reference().table) == [
        (1, 2, 0), (None, 1, 2), (2, 3, 3), (3, 2, 6), (4, 1, 8), (5, 1, 9), (6, 8, 10), (7, 1, 18), (8, 1, 19)
    ]  # fmt: skip


def test_groups_come_at_the_end_of_the_round_that_ends_them_and_open_ones_in_the_final_round() -> None:
    assert [(batch.tag, batch.records.num_rows) for batch in reference().batches] == [
        (Tag(0, 0, 0), 4),
        (Tag(1, 0, 0), 4),
        (Tag(FINAL_ROUND, 0, 0), 1),
    ]


def test_a_group_of_one_lane_does_not_continue_in_another() -> None:
    table = made_of([(1, 1), (1, 2)])
    config = StreamAggregate(("k",), (Aggregate("n", None, "count"),))
    outcome = run(config, {(0, 0): table, (0, 1): table, (1, 0): table})
    assert [row[1] for row in rows_of(outcome.table)] == [4, 2]
    assert [batch.tag for batch in outcome.batches] == [Tag(FINAL_ROUND, 0, 0), Tag(FINAL_ROUND, 1, 0)]


def test_a_second_aggregation_takes_what_the_first_one_emits_when_it_finishes() -> None:
    """Rows of the final round end there, and keep the order of lanes although the round was ended before finish."""
    config = StreamAggregate(("k",), (Aggregate("n", None, "count"),))
    schema = made_of([]).schema
    running = config.build(context(), [schema], None)
    output = Collected(config.output_schema([schema]))
    for lane in (0, 2):
        (records,) = made_of([(1, 1), (2, 2)]).to_batches()
        exhaust(running.process(0, Batch(records, Tag(0 if lane == 0 else FINAL_ROUND, lane, 0)), output))
        exhaust(running.end_round(0, 0 if lane == 0 else FINAL_ROUND, output))
    exhaust(running.end_port(0, output))
    exhaust(running.finish(output))
    assert [batch.tag for batch in output.batches] == [
        Tag(0, 0, 0), Tag(FINAL_ROUND, 0, 0), Tag(FINAL_ROUND, 2, 0)
    ]  # fmt: skip
    assert [batch.records.num_rows for batch in output.batches] == [1, 1, 2]


def test_a_snapshot_within_a_round_keeps_groups_that_have_ended() -> None:
    config = StreamAggregate(("k",), ALL)
    table = made_of([(0, 1), (1, 2), (1, 3), (2, 4)], "string")
    first, second = table.slice(0, 3).to_batches()[0], table.slice(3).to_batches()[0]
    output = Collected(config.output_schema([table.schema]))
    running = config.build(context(), [table.schema], None)
    exhaust(running.process(0, Batch(first, Tag(0, 2, 0)), output))
    state = running.snapshot()
    assert state is not None
    assert state.num_rows == 2
    again = config.build(context(), [table.schema], state)
    exhaust(again.process(0, Batch(second, Tag(0, 2, 1)), output))
    exhaust(again.end_round(0, 0, output))
    exhaust(again.finish(output))
    straight = run(config, {(0, 2): table})
    assert [row for batch in output.batches for row in rows_of(batch.records)] == rows_of(straight.table)


def test_one_huge_group_and_many_small_ones() -> None:
    rows = 3 * PIECE_ROWS
    config = StreamAggregate(("k",), (Aggregate("n", None, "count"), Aggregate("s", "v", "sum")))
    one = pa.table({"k": [7] * rows, "v": range(rows)})
    assert rows_of(run(config, {(0, 0): one}, size=50_000).table) == [(7, rows, rows * (rows - 1) // 2)]
    many = pa.table({"k": range(rows), "v": range(rows)})
    outcome = run(config, {(0, 0): many}, size=50_000)
    assert max(batch.records.num_rows for batch in outcome.batches) == PIECE_ROWS
    assert outcome.table.column("s").to_pylist() == list(range(rows))


def test_groups_that_have_ended_leave_within_their_round_a_piece_at_a_time() -> None:
    """What is held does not grow with the round: less than a piece and a batch of groups."""
    memory = TaskMemory()
    where = replace(context(), memory=memory.account("stream-aggregate-1"), output_rows=100)
    config, schema = StreamAggregate(("k",), (Aggregate("n", None, "count"),)), made_of([]).schema
    running, output = config.build(where, [schema], None), Collected(config.output_schema([schema]))
    for number in range(50):
        (records,) = made_of([(key, 0) for key in range(40 * number, 40 * number + 40)]).to_batches()
        exhaust(running.process(0, Batch(records, Tag(0, 0, number)), output))
        assert sum(batch.records.num_rows for batch in output.batches) >= 40 * (number + 1) - 100
    assert {batch.tag.round for batch in output.batches} == {0}
    assert memory.statistics().peak <= (100 + 40) * 16
    running.close()


@settings(max_examples=20, deadline=None)
@given(
    before=st.dictionaries(st.integers(0, 3), clusters, max_size=4),
    behind=st.dictionaries(st.integers(0, 3), clusters, max_size=4),
    final=st.booleans(),
    holds=st.booleans(),
    output_rows=st.sampled_from([1, 2, 7]),
)
def test_rows_behind_the_last_round_come_in_the_order_of_their_lanes_however_small_pieces_are(
    before: dict[int, Any], behind: dict[int, Any], final: bool, holds: bool, output_rows: int
) -> None:
    """Rows of the final round, or what operators before it have drained: several lanes have open groups then."""
    config, schema = StreamAggregate(("k",), ALL), made_of([]).schema
    found = []
    for rows in (output_rows, 65536):
        where = replace(context(), output_rows=rows, holds=holds)
        running, parts = config.build(where, [schema], None), []
        for round, units in ((0, before), (FINAL_ROUND if final else 0, behind)):
            output = Collected(config.output_schema([schema]))
            for lane, groups in sorted(units.items()):
                table = made_of([(key, value) for key, values in groups for value in values])
                for number, records in enumerate(table.to_batches(max_chunksize=3)):
                    if records.num_rows:
                        exhaust(running.process(0, Batch(records, Tag(round, lane, number)), output))
            if units is before:
                exhaust(running.end_round(0, 0, output))
            elif not final and not holds:
                exhaust(running.drain(output))
            else:
                exhaust(running.finish(output))
            parts.append(Outcome(output.schema, output.batches).units)
        found.append(parts)
    assert repr(found[0]) == repr(found[1])


def test_several_keys_a_struct_and_no_aggregates_give_distinct_runs() -> None:
    table = pa.table({"a": [1, 1, 1, 1, None], "b": ["x", "x", None, "y", "y"], "s": [{"i": 1}] * 3 + [None, None]})
    assert rows_of(run(StreamAggregate(("a", "b"), ()), {(0, 0): table}, size=2).table) == [
        (1, "x"), (1, None), (1, "y"), (None, "y")
    ]  # fmt: skip
    assert run(StreamAggregate(("s",), ()), {(0, 0): table}, size=2).table.to_pydict() == {"s": [{"i": 1}, None]}


def test_a_group_shows_the_key_of_its_first_row_whatever_the_batches() -> None:
    table = pa.table({"k": [-0.0, 0.0, 0.0]})
    for size in (1, 2, 3):
        assert rows_of(run(StreamAggregate(("k",), ()), {(0, 0): table}, size=size).table) == [("-0.0",)]


def test_a_dictionary_key_comes_out_as_its_values() -> None:
    table = pa.table({"k": key_column("dictionary", [0, 0, 1])})
    assert run(StreamAggregate(("k",), ()), {(0, 0): table}).schema.field("k").type == pa.string()


def test_an_integer_sum_is_exact_and_one_that_does_not_fit_is_an_error_of_the_data() -> None:
    """The running sum passes 2⁶³ and comes back: only the end counts, whatever the batches."""
    config = StreamAggregate(("k",), (Aggregate("s", "v", "sum"),))
    there_and_back = pa.table({"k": [1, 1, 1], "v": [2**63 - 1, 5, -7]})
    for size in (1, 2, 3):
        assert rows_of(run(config, {(0, 0): there_and_back}, size=size).table) == [(1, 2**63 - 3)]
        with pytest.raises(DataError, match=r"s = sum\(v\) does not fit into int64"):
            run(config, {(0, 0): there_and_back.slice(0, 2)}, size=size)
    unsigned = pa.table({"k": [1, 1], "v": pa.array([2**64 - 6, 5], pa.uint64())})
    assert rows_of(run(config, {(0, 0): unsigned}).table) == [(1, 2**64 - 1)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([True, None, True]), (2, False, 2.0 / 2)),
        (pa.array([Decimal("0.10"), Decimal("1.25"), None], pa.decimal128(5, 2)), (Decimal("1.35"), None, 0.675)),
        (pa.array([0.5, float("nan"), None]), (float("nan"), None, float("nan"))),
        (pa.array([None, None, None], pa.int32()), (None, None, None)),
    ],
)
def test_sum_and_mean_of_other_types(values: pa.Array, expected: tuple[Any, ...]) -> None:
    table = pa.table({"k": [1, 1, 1], "v": values})
    config = StreamAggregate(("k",), (Aggregate("s", "v", "sum"), Aggregate("m", "v", "mean")))
    for size in (1, 2, 3):
        ((_, total, mean),) = rows_of(run(config, {(0, 0): table}, size=size).table)
        assert (total, mean) == shown([(expected[0], expected[2])])[0]


@pytest.mark.parametrize("key_type", [name for name in KEY_TYPES if name != "null"])
def test_min_max_first_and_last_of_any_type(key_type: str) -> None:
    numbers = [3, None, 1, 5, 1, None]
    column = key_column(key_type, numbers)
    table = pa.table({"k": [1] * 6 + [2], "v": pa.concat_arrays([column, column.slice(1, 1)])})
    names = ("min", "max", "first", "last")
    config = StreamAggregate(("k",), tuple(Aggregate(name, "v", name) for name in names))
    convert = KEY_TYPES[key_type][1]
    expected = [(1, convert(1), convert(5), convert(3), None), (2, None, None, None, None)]
    for size in (1, 2, 7):
        assert rows_of(run(config, {(0, 0): table}, size=size).table) == shown(expected)


@pytest.mark.parametrize("type", [pa.float64(), pa.float32()])
def test_signalling_nans_in_the_data_are_nans_and_not_warnings(type: pa.DataType) -> None:
    bits = {pa.float64(): np.uint64(0x7FF0000000000001), pa.float32(): np.uint32(0x7F800001)}[type]
    nan = np.array([bits]).view(type.to_pandas_dtype())
    table = pa.table({"k": [1, 1], "v": pa.concat_arrays([pa.array(nan, type), pa.array([1.0], type)])})
    names = ("sum", "mean", "min", "max")
    config = StreamAggregate(("k",), tuple(Aggregate(name, "v", name) for name in names))
    for size in (1, 2):
        assert rows_of(run(config, {(0, 0): table}, size=size).table) == [(1, "nan", "nan", "1.0", "nan")]


def test_float_sums_do_not_depend_on_batches() -> None:
    values = [1e16, 1.0, -1e16, 0.1, 0.2, 0.3] * 50
    table = pa.table({"k": [1] * len(values), "v": values})
    config = StreamAggregate(("k",), (Aggregate("s", "v", "sum"), Aggregate("m", "v", "mean")))
    found = {tuple(rows_of(run(config, {(0, 0): table}, size=size).table)) for size in (1, 2, 7, 16, 1024)}
    total = 0.0
    for value in values:
        total += value
    assert found == {((1, repr(total), repr(total / len(values))),)}


def test_nothing_comes_of_nothing() -> None:
    outcome = run(StreamAggregate(("k",), ALL), {}, schemas=[made_of([]).schema], restore=True)
    assert (outcome.batches, outcome.states) == ([], 0)


def test_the_state_is_one_row_per_lane_with_an_open_group() -> None:
    config = StreamAggregate(("k",), ALL)
    tables = {(round, lane): made_of([(1, 5), (2, 6)]) for round in range(3) for lane in (0, 3)}
    assert run(config, tables, restore=True, parallelisms=(4,)).states == 0
    running = config.build(context(), [made_of([]).schema], None)
    output = Collected(config.output_schema([made_of([]).schema]))
    for lane in (0, 3):
        exhaust(running.process(0, Batch(made_of([(1, 5), (2, 6)]).to_batches()[0], Tag(0, lane, 0)), output))
    exhaust(running.end_round(0, 0, output))
    state = running.snapshot()
    assert state is not None
    assert state.column("__lane").to_pylist() == [0, 3]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (StreamAggregate(("nope",), ()), "stream aggregate: its input has no column 'nope'(.|\n)*k, v, w"),
        (StreamAggregate(("k",), (Aggregate("n", "nope", "sum"),)), "has no column 'nope'"),
        (StreamAggregate(("k",), (Aggregate("n", "v", "mode"),)), "unknown function 'mode'(.|\n)*count, sum"),
        (
            StreamAggregate(("k",), (Aggregate("n", "k", "sum"),)),
            "'n' of column 'k': sum cannot be computed of .*string",
        ),
        (StreamAggregate(("k",), (Aggregate("n", "k", "mean"),)), "mean cannot be computed of a column of type string"),
        (StreamAggregate(("k",), (Aggregate("n", "w", "min"),)), "min cannot be computed"),
        (StreamAggregate(("k",), (Aggregate("n", None, "sum"),)), "sum cannot be computed of no column"),
        (StreamAggregate(("k",), (Aggregate("k", None, "count"),)), "two columns named 'k'"),
        (StreamAggregate(("w",), ()), "column 'w' of type list.* cannot be a key"),
        (StreamAggregate((), ()), "no key is given"),
        (StreamAggregate(("k", "k"), ()), "'k' is given twice"),
    ],
)
def test_stream_aggregate_refuses_what_it_cannot_compute(config: StreamAggregate, message: str) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("w", pa.list_(pa.month_day_nano_interval()))])
    with pytest.raises(FlowError, match=message):
        config.output_schema([schema])

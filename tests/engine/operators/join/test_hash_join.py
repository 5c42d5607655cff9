"""Hash join: every join type against DuckDB and a model of its order, restored on the way, and at barriers."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.errors import FlowError
from penstock.engine.core.operator import PortPlace, exhaust
from penstock.engine.core.traits import traits_of
from penstock.engine.flow.flow import Flow
from penstock.engine.kernels.key_filter import KeyFilter
from penstock.engine.operators import HashJoin, MergeJoin
from penstock.engine.operators.join import equi_join
from penstock.engine.operators.join.join_shape import JOIN_TYPES, LEFT, RIGHT
from penstock.jobs.local_run import run_local
from support.join_units import SCHEMAS, sides
from support.key_types import KEY_TYPES, comparable_values, key_column
from support.operator_harness import SIZES, Collected, context, rows_of, run
from support.oracle import connect

Row = tuple[Any, ...]
Tables = dict[tuple[int, int], pa.Table]

FILTER = "(v + w) % 3 <> 1"
keys = st.lists(st.tuples(st.none() | st.integers(0, 4), st.none() | st.integers(0, 2)), max_size=20)
units = st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 3)), keys, max_size=5)


def model(ports: list[Tables], how: str, *, filtered: bool) -> list[Row]:
    """Row by row: the left side in order, right rows without match behind."""
    left, right = ([row for unit in sorted(port) for row in rows_of(port[unit])] for port in ports)
    pairs = [(n, m) for n, one in enumerate(left) for m, other in enumerate(right) if matches(one, other, filtered)]
    hit = ({n for n, _ in pairs}, {m for _, m in pairs})
    if how == "right semi":
        return [right[m] for m in sorted(hit[1])]
    if how in {"left semi", "anti"}:
        return [row for n, row in enumerate(left) if (n in hit[0]) == (how == "left semi")]
    made: list[Row] = []
    for n, row in enumerate(left):
        made += [(*row, right[m][0], right[m][3]) for one, m in pairs if one == n]
        made += [(*row, None, None)] if how in {"left", "full"} and n not in hit[0] else []
    lone = [row for m, row in enumerate(right) if m not in hit[1]] if how in {"right", "full"} else []
    return made + [(row[2], row[1], None, row[0], row[3]) for row in lone]


def matches(left: Row, right: Row, filtered: bool) -> bool:
    if None in left[:2] or left[:2] != (right[2], right[1]):
        return False
    return not filtered or math.fmod(left[2] + right[3], 3) != 1


def by_duckdb(ports: list[Tables], how: str, *, filtered: bool) -> list[Row]:
    on = "l.a = r.a and l.b = r.b" + (" and (l.v + w) % 3 <> 1" if filtered else "")
    with connect() as connection:
        for name, schema, port in zip(("l", "r"), SCHEMAS, ports, strict=True):
            connection.register(name, pa.concat_tables([schema.empty_table(), *port.values()]))
        if how in {"left semi", "right semi", "anti"}:
            one, other = ("r", "l") if how == "right semi" else ("l", "r")
            verb = "not exists" if how == "anti" else "exists"
            text = f"select * from {one} where {verb} (from {other} where {on})"
        else:
            text = f"select coalesce(l.a, r.a), coalesce(l.b, r.b), l.v, r.v, r.w from l {how} join r on {on}"
        return connection.execute(text).fetchall()


@settings(max_examples=100, deadline=None)
@given(
    left=units,
    right=units,
    how=st.sampled_from(JOIN_TYPES),
    filtered=st.booleans(),
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 9),
    output_rows=st.sampled_from([1, 7, 1 << 16]),
    restore=st.booleans(),
)
def test_every_join_type_equals_duckdb_in_the_order_of_the_left_side(
    left: Any, right: Any, how: str, filtered: bool, size: int, seed: int, output_rows: int, restore: bool
) -> None:
    ports = sides(left, right)
    config = HashJoin(("a", "b"), how=how, filter=FILTER if filtered else None)
    outcome = run(config, *ports, schemas=SCHEMAS, size=size, seed=seed, output_rows=output_rows, restore=restore)
    found = rows_of(outcome.table)
    assert found == model(ports, how, filtered=filtered)
    assert sorted(map(repr, found)) == sorted(map(repr, by_duckdb(ports, how, filtered=filtered)))
    assert all(batch.records.num_rows <= output_rows for batch in outcome.batches)


@settings(max_examples=60, deadline=None)
@given(
    left=units,
    right=units,
    how=st.sampled_from(JOIN_TYPES),
    filtered=st.booleans(),
    seed=st.integers(0, 9),
    size=st.sampled_from(SIZES),
)
def test_side_that_is_read_first_changes_no_row_and_no_tag(
    left: Any, right: Any, how: str, filtered: bool, seed: int, size: int
) -> None:
    ports = sides(left, right)
    config = HashJoin(("a", "b"), how=how, filter=FILTER if filtered else None)
    wanted = run(config, *ports, schemas=SCHEMAS, prompt=True, read_first=RIGHT)
    assert rows_of(wanted.table) == model(ports, how, filtered=filtered)
    for first in (None, LEFT):
        found = run(config, *ports, schemas=SCHEMAS, size=size, seed=seed, prompt=True, read_first=first)
        assert found.units == wanted.units, first


def test_right_rows_that_match_nothing_of_a_complete_left_side_are_not_held() -> None:
    schema = pa.schema([("k", pa.int64())])
    for how in JOIN_TYPES:
        config = HashJoin(("k",), how=how)
        output = Collected(config.output_schema([schema, schema]))
        running = config.build(context(), [schema, schema], None)
        running.process(RIGHT, Batch(pa.record_batch([range(100)], schema=schema), Tag(0, 0, 0)), output)
        running.process(LEFT, Batch(pa.record_batch([[3, 5]], schema=schema), Tag(0, 0, 0)), output)
        exhaust(running.end_port(LEFT, output))
        running.process(RIGHT, Batch(pa.record_batch([range(100)], schema=schema), Tag(0, 0, 1)), output)
        state = running.snapshot()
        held = sum(port == RIGHT for port in state.column("port").to_pylist())
        assert held == (200 if how in {"right", "full"} else 4)
        running.close()


@pytest.mark.parametrize("how", JOIN_TYPES)
@pytest.mark.parametrize("over", ["ended", "at a barrier"])
def test_side_whose_rows_match_nothing_of_an_empty_one_is_needed_no_more(how: str, over: str) -> None:
    schema = pa.schema([("k", pa.int64())])
    config = HashJoin(("k",), how=how)
    output = Collected(config.output_schema([schema, schema]))
    for empty in (LEFT, RIGHT):
        for rows in (0, 1):
            running = config.build(context(), [schema, schema], None)
            if rows:
                running.process(empty, Batch(pa.record_batch([[1]], schema=schema), Tag(0, 0, 0)), output)
            assert not running.needs_no_more(1 - empty)
            if over == "ended":
                exhaust(running.end_port(empty, output))
            else:
                running.end_window(empty)
            useless = 1 - empty in traits_of(config).needs_match
            assert running.needs_no_more(1 - empty) == (useless and not rows)
            exhaust(running.drain(output))
            assert over == "ended" or not running.needs_no_more(1 - empty)
            output.batches.clear()
            running.close()


@pytest.mark.parametrize("key_type", KEY_TYPES)
def test_hash_join_on_any_key_type(key_type: str) -> None:
    left, right = [None, 5, 0, 2, 4, 0], [0, 4, None, 2, 2]
    tables = [pa.table({"k": key_column(key_type, numbers), "p": range(len(numbers))}) for numbers in (left, right)]
    ours, theirs = (comparable_values(table.column("k")) for table in tables)
    outcome = run(HashJoin(("k",)), {(0, 0): tables[0]}, {(0, 0): tables[1]}, size=2)
    assert rows_of(outcome.table.select(["p", "p_right"])) == [
        (n, m) for n, one in enumerate(ours) for m, other in enumerate(theirs) if one is not None and one == other
    ]


class Waiting(KeyFilter):
    """A listener that somebody waits for."""

    is_over = False

    def publish(self, window: int, columns: Sequence[pa.Array]) -> int:
        self.is_over = True
        return super().publish(window, columns)

    def give_up(self) -> None:
        assert not self.is_over, "it has been told"
        self.is_over = True


@pytest.mark.parametrize("how", JOIN_TYPES)
def test_keys_of_the_right_side_are_told_for_the_window_that_it_is_complete_in(how: str) -> None:
    schema = pa.schema([("k", pa.int64())])
    config, told = HashJoin(("k",), how=how), Waiting()
    wanted = {LEFT: [told]} if traits_of(config).key_filters else {}
    output = Collected(config.output_schema([schema, schema]))
    running = config.build(replace(context(), listeners=wanted), [schema, schema], None)
    running.process(RIGHT, Batch(pa.record_batch([[3, 5]], schema=schema), Tag(0, 0, 0)), output)
    exhaust(running.drain(output))
    running.process(RIGHT, Batch(pa.record_batch([[7]], schema=schema), Tag(1, 0, 0)), output)
    assert told.picked(1, [pa.array([7])]) is None
    exhaust(running.end_port(RIGHT, output))
    found = [told.picked(window, [pa.array([3, 7])]) for window in (0, 1, 2)]
    drops = how in {"inner", "left semi", "right", "right semi"}
    assert [each if each is None else each.tolist() for each in found] == [None, [1] if drops else None, None]
    running.close()


@pytest.mark.parametrize("end", [None, "left", "right", "both", "barrier"])
@pytest.mark.parametrize("how", JOIN_TYPES)
def test_nobody_waits_for_a_join_that_is_closed(how: str, end: str | None) -> None:
    """Whenever that is: it has failed, is cancelled, or needs no more."""
    schema = pa.schema([("k", pa.int64())])
    config = HashJoin(("k",), how=how)
    wanted = {port: [Waiting()] for port in traits_of(config).key_filters}
    running = config.build(replace(context(), listeners=wanted), [schema, schema], None)
    output = Collected(config.output_schema([schema, schema]))
    running.process(RIGHT, Batch(pa.record_batch([[3, 5]], schema=schema), Tag(0, 0, 0)), output)
    if end == "barrier":
        exhaust(running.drain(output))
    for port, name in enumerate(("left", "right")):
        if end in {name, "both"}:
            exhaust(running.end_port(port, output))
            assert all(each.is_over for each in wanted.get(1 - port, ()) if end == name)
    running.close()
    assert all(each.is_over for listeners in wanted.values() for each in listeners)


@pytest.mark.parametrize("reason", [{"holds": True}, {"epochs": object()}])
def test_nobody_waits_for_a_join_that_tells_nothing(reason: dict[str, Any]) -> None:
    schema, listener = pa.schema([("k", pa.int64())]), Waiting()
    HashJoin(("k",)).build(replace(context(), listeners={LEFT: [listener]}, **reason), [schema, schema], None)
    assert listener.is_over


def test_left_rows_pass_through_under_their_own_tags_once_the_right_side_has_ended() -> None:
    schema = pa.schema([("k", pa.int64())])
    config = HashJoin(("k",), how="left")
    output = Collected(config.output_schema([schema, schema]))
    running = config.build(context(), [schema, schema], None)

    def give(port: int, keys: list[int], round: int, lane: int) -> None:
        exhaust(running.process(port, Batch(pa.record_batch({"k": keys}, schema=schema), Tag(round, lane, 0)), output))

    give(0, [1, 2], 0, 1)
    give(1, [2], 0, 3)
    for port in (0, 1):
        exhaust(running.end_round(port, 0, output))
    give(0, [3], 1, 2)
    assert not output.batches
    exhaust(running.end_port(1, output))
    give(0, [4], 1, 3)
    found = [((batch.tag.round, batch.tag.lane), batch.records["k"].to_pylist()) for batch in output.batches]
    assert found == [((1, 0), [1, 2]), ((1, 2), [3]), ((1, 3), [4])]


@pytest.mark.parametrize("cut", [False, True], ids=["uncut", "cut"])
@pytest.mark.parametrize("lanes", [(), (0,), (1, 3)], ids=str)
@pytest.mark.parametrize("round", [0, FINAL_ROUND], ids=["barrier", "end"])
def test_right_rows_that_come_last_share_the_last_lane_of_their_round(
    round: int, lanes: Sequence[int], cut: bool
) -> None:
    schema = pa.schema([("k", pa.int64())])
    config = HashJoin(("k",), how="full")
    output = Collected(config.output_schema([schema, schema]))
    running = config.build(context(), [schema, schema], None)
    exhaust(running.process(RIGHT, Batch(pa.record_batch([[9]], schema=schema), Tag(0, 2, 0)), output))
    exhaust(running.end_port(RIGHT, output))
    for lane in lanes:
        exhaust(running.process(LEFT, Batch(pa.record_batch([[lane]], schema=schema), Tag(round, lane, 0)), output))
    exhaust(running.end_round(LEFT, round, output))
    if cut:
        ports = (PortPlace(round=min(round, 0)), PortPlace(ended=True))
        last = {batch.tag.lane: batch.tag for batch in output.batches}
        running = config.build(replace(context(), ports=ports, last=last), [schema, schema], running.snapshot())
    rest = Collected(output.schema) if cut else output  # behind a cut the chain goes on numbering
    exhaust(running.drain(rest) if round == 0 else running.finish(rest))
    batches = [*output.batches, *rest.batches] if cut else output.batches
    found = [(batch.tag.round, batch.tag.lane, batch.records["k"].to_pylist()) for batch in batches]
    assert found == [*((round, lane, [lane]) for lane in lanes), (round, max(lanes, default=0), [9])]


@pytest.mark.parametrize("how", JOIN_TYPES)
def test_rows_never_meet_across_a_barrier(how: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    config = HashJoin(("k",), how=how)
    output = Collected(config.output_schema([schema, schema]))
    running = config.build(context(), [schema, schema], None)
    windows = []
    for round, sides_of_window in enumerate([([3, 2], [2, 1]), ([1], [3]), ([], [5])]):
        for port, numbers in enumerate(sides_of_window):
            values = [100 * port + n for n in numbers]
            if numbers:
                records = pa.record_batch({"k": numbers, "v": values}, schema=schema)
                exhaust(running.process(port, Batch(records, Tag(round, 0, 0)), output))
            exhaust(running.end_round(port, round, output))
        exhaust(running.drain(output))
        assert running.snapshot() is None
        windows.append([row for batch in output.batches for row in rows_of(batch.records)])
        output.batches = []
    expected: dict[str, list[list[Row]]] = {
        "inner": [[(2, 2, 102)], [], []],
        "left": [[(3, 3, None), (2, 2, 102)], [(1, 1, None)], []],
        "right": [[(2, 2, 102), (1, None, 101)], [(3, None, 103)], [(5, None, 105)]],
        "full": [[(3, 3, None), (2, 2, 102), (1, None, 101)], [(1, 1, None), (3, None, 103)], [(5, None, 105)]],
        "left semi": [[(2, 2)], [], []],
        "right semi": [[(2, 102)], [], []],
        "anti": [[(3, 3)], [(1, 1)], []],
    }
    assert windows == expected[how]


def test_no_row_is_kept_behind_a_barrier() -> None:
    rows = {"k": list(range(1_000)), "t": ["x" * 1_000] * 1_000}
    schema = pa.RecordBatch.from_pydict(rows).schema
    config = HashJoin(("k",))
    running = config.build(context(), [schema, schema], None)
    before = pa.total_allocated_bytes()
    out = Collected(config.output_schema([schema, schema]))
    for port in (1, 0):
        exhaust(running.process(port, Batch(pa.RecordBatch.from_pydict(rows), Tag(0, 0, 0)), out))
    exhaust(running.drain(out))
    assert sum(batch.records.num_rows for batch in out.batches) == 1_000
    out.batches.clear()
    assert pa.total_allocated_bytes() - before < 1_000 * 1_000 / 2, "what a join of the next window has beside its own"
    running.close()


def test_streams_in_any_order_are_gathered_and_joined() -> None:
    flow = Flow("joined", lanes=2)
    left = flow.from_tables([pa.table({"k": [3, 1], "v": [1, 2]}), pa.table({"k": [2, 9], "v": [3, 4]})])
    right = flow.from_tables([pa.table({"j": [2, 7], "w": [1, 2]}), pa.table({"j": [3, 3], "w": [3, 9]})])
    left.hash_join(right, ["k"], right_on=("j",), how="full", filter="v < w").collect("rows")
    assert rows_of(run_local(flow).result("rows")) == [
        (3, 1, 3, 3), (3, 1, 3, 9), (1, 2, None, None), (2, 3, None, None), (9, 4, None, None),
        (None, None, 2, 1), (None, None, 7, 2),
    ]  # fmt: skip


def test_hash_join_says_its_name_and_is_no_merge_join() -> None:
    assert HashJoin(("a",)) == HashJoin(("a",))
    assert HashJoin(("a",)) != MergeJoin(("a",))
    with pytest.raises(FlowError, match="hash join: 'outer' is no join type"):
        HashJoin(("a",), how="outer").output_schema(SCHEMAS)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_left_columns_are_passed_on_uncopied_where_each_row_has_its_one_place(how: str) -> None:
    left = pa.table({"k": [3, 1, 2], "v": [10, 11, 12]})
    right = pa.table({"k": [1, 2, 3], "w": [1, 2, 3]})
    outcome = run(HashJoin(("k",), how), {(0, 0): left}, {(0, 0): right})
    (batch,) = outcome.batches
    assert rows_of(outcome.table) == [(3, 10, 3), (1, 11, 1), (2, 12, 2)]
    assert batch.records.column(1).buffers()[1].address == left.column("v").chunk(0).buffers()[1].address


def test_shape_follows_the_inputs_and_goes_with_the_join() -> None:
    config = HashJoin(("k",))
    left, right = pa.schema({"k": pa.int64(), "x": pa.int64()}), pa.schema({"k": pa.int64(), "y": pa.string()})
    shape = config.shape([left, right])
    assert config.shape([pa.schema(left), right]) is shape
    assert config.shape([left.remove(1), right]).schema.names == ["k", "y"]
    told = pa.schema([pa.field("k", pa.int64(), metadata={"told": "here"})])
    assert config.shape([told, right]).schema.field("k").metadata == {b"told": b"here"}
    with pytest.raises(FlowError):
        config.shape([left, right.remove(0)])
    place = id(config)
    assert place in equi_join._shapes
    del config
    gc.collect()
    assert place not in equi_join._shapes

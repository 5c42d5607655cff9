"""A hash aggregation that spills: the same groups, in the same order, to the last digit, whatever the budget."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import StorageError
from penstock.engine.core.operator import exhaust
from penstock.engine.kernels.aggregate_protocol import Segments, State
from penstock.engine.operators import Aggregate, HashAggregate, SortKey
from penstock.engine.operators.aggregate import spilled_groups
from penstock.engine.operators.aggregate.list_aggregates import CollectList
from penstock.engine.state.memory import TaskMemory
from support.compact_columns import compacted
from support.key_types import KEY_TYPES, key_column
from support.operator_harness import Collected, context, rows_of, run
from support.operator_windows import windows_of
from support.spilling import BUDGETS, budget

SIZES = (1, 3, 1024)
NAMES = ("count", "sum", "min", "max", "mean", "first", "last", "count_distinct", "collect_list", "variance")
UNORDERED = tuple(
    Aggregate(f"{name} {column}", column, name)
    for name in NAMES
    for column in ("v", "x")
    if name not in {"first", "last", "collect_list"}
)
ALL = (
    Aggregate("rows", None, "count"),
    *(Aggregate(f"{name} {column}", column, name) for name in NAMES for column in ("v", "x")),
    Aggregate("some", "v", "sum", where="w"),
    Aggregate("sum of distinct", "v", "sum", distinct=True),
    Aggregate("by x", "v", "collect_list", order_by=(SortKey("x"),)),
)
decimals = st.sampled_from([None, 1e16, 1.0, -1e16, 0.1, 0.2, 0.3, float("nan")])
rows = st.lists(
    st.tuples(st.none() | st.integers(0, 12), st.none() | st.integers(-9, 9), decimals, st.booleans()), max_size=60
)


def made_of(given: list[tuple[Any, ...]], key_type: str = "string") -> pa.Table:
    types = {"v": pa.int64(), "x": pa.float64(), "w": pa.bool_()}
    columns = {"k": key_column(key_type, [row[0] if row[0] is None else row[0] % 6 for row in given])}
    columns["l"] = pa.array([None if row[0] is None else [row[0], 1] for row in given], pa.list_(pa.int64()))
    columns |= {name: pa.array([row[n + 1] for row in given], type) for n, (name, type) in enumerate(types.items())}
    return pa.table(columns)


def shown(table: pa.Table) -> list[str]:
    """Rows that compare even where a list or a struct holds NaN."""
    return list(map(repr, rows_of(table)))


def by_units(table: pa.Table, lanes: int = 4, rounds: int = 3) -> dict[tuple[int, int], pa.Table]:
    share = -(-table.num_rows // (lanes * rounds)) or 1
    units = [(round, lane) for round in range(rounds) for lane in range(lanes)]
    return {unit: table.slice(number * share, share) for number, unit in enumerate(units)}


@settings(max_examples=25, deadline=None)
@given(
    given_rows=rows,
    by=st.sampled_from([("k",), ("l",), ("k", "l")]),
    size=st.sampled_from(SIZES),
    bytes=st.sampled_from(BUDGETS),
    restore=st.booleans(),
)
def test_a_spilled_aggregation_gives_the_same_groups_in_the_same_order(
    given_rows: list[Any], by: tuple[str, ...], size: int, bytes: int, restore: bool
) -> None:
    """With every aggregate, float sums to the last digit, keys that are lists, and restored after every round."""
    table = made_of(given_rows)
    config, units = HashAggregate(by, ALL), by_units(table)
    expected = run(config, units, schemas=[table.schema])
    with budget(bytes) as memory:
        found = run(config, units, schemas=[table.schema], size=size, output_rows=2, restore=restore, memory=memory)
        assert shown(found.table) == shown(expected.table)
        assert all(batch.records.num_rows <= 2 for batch in found.batches)
        assert bytes or found.table.num_rows < 10 or memory.statistics().spilled_files


@pytest.mark.parametrize("parallelisms", [(2, 1, 1), (4, 1, 1), (3, 1, 1)])
@pytest.mark.parametrize("bytes", [0, 3_000, 10_000])
def test_groups_of_several_subtasks_keep_their_order_whatever_spills(parallelisms: tuple[int, ...], bytes: int) -> None:
    """Two subtasks count their rows from 0 on: whoever goes on for both of them has two groups of a number.
    A key is in one subtask, as behind an exchange."""
    chance = np.random.default_rng(1)

    def rows_of_lane(lane: int) -> pa.Table:
        return pa.table({"k": chance.integers(0, 80, 40) * 4 + lane, "x": chance.random(40)})

    units = {(round, lane): rows_of_lane(lane) for round in range(4) for lane in range(4)}
    config = HashAggregate(("k",), (Aggregate("s", "x", "sum"),))
    kwargs: dict[str, Any] = {"restore": True, "parallelisms": (*parallelisms, 1)}
    expected = run(config, units, **kwargs)
    with budget(bytes) as memory:
        found = run(config, units, memory=memory, **kwargs)
        assert memory.statistics().spilled_files
    assert shown(found.table) == shown(expected.table)


@settings(max_examples=15, deadline=None)
@given(
    given_rows=rows,
    size=st.sampled_from(SIZES),
    bytes=st.sampled_from(BUDGETS),
    parallelisms=st.sampled_from([(1,), (1, 2, 1), (4, 3, 1)]),
)
def test_both_steps_give_the_same_whatever_spills(
    given_rows: list[Any], size: int, bytes: int, parallelisms: tuple[int, ...]
) -> None:
    table = made_of(given_rows)
    partial, units = HashAggregate(("k",), UNORDERED, step="partial"), by_units(table)
    straight = run(partial, units, schemas=[table.schema])
    with budget(bytes) as memory:
        first = run(
            partial,
            units,
            schemas=[table.schema],
            size=size,
            restore=True,
            parallelisms=parallelisms,
            memory=memory,
        )
        assert repr(first.units) == repr(straight.units)
        lanes = {(0, lane): first.table.slice(0, 0) for lane in range(4)}
        for batch in first.batches:
            lanes[0, batch.tag.lane] = pa.concat_tables([lanes[0, batch.tag.lane], pa.table(batch.records)])
        config = partial.final(table.schema)
        expected = run(config, lanes, schemas=[first.schema])
        final = run(config, lanes, schemas=[first.schema], size=size, memory=memory)
    assert shown(final.table) == shown(expected.table)


@settings(max_examples=15, deadline=None)
@given(windows=st.lists(rows, min_size=1, max_size=4), bytes=st.sampled_from(BUDGETS), keyed=st.booleans())
def test_every_window_of_a_spilled_aggregation_stands_by_itself(
    windows: list[list[Any]], bytes: int, keyed: bool
) -> None:
    tables, config = [made_of(window) for window in windows], HashAggregate(("k",) if keyed else (), ALL)
    with budget(bytes) as memory:
        found = windows_of(config, tables, 3, memory.account("aggregate-1"))
    assert repr(found) == repr(windows_of(config, tables, 1024))


@pytest.mark.parametrize("key_type", KEY_TYPES)
def test_groups_of_any_key_type_are_parted(key_type: str) -> None:
    numbers = [0, 4, None, 0, 5, None, 2, 4, 0, 3, 1, 1, 2]
    table = pa.table({"k": key_column(key_type, numbers), "v": range(len(numbers))})
    config = HashAggregate(("k",), (Aggregate("list", "v", "collect_list"),))
    expected = rows_of(run(config, {(0, 0): table}).table)
    with budget(0) as memory:
        assert rows_of(run(config, {(0, 0): table}, size=2, memory=memory).table) == expected


def test_partitions_that_are_too_large_are_parted_again_until_no_bit_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled_groups, "LEVELS", 3)
    table = pa.table({"k": [f"key {number % 600}" for number in range(1800)], "v": range(1800)})
    config = HashAggregate(("k",), (Aggregate("s", "v", "sum"),))
    levels = []
    original = spilled_groups.BoundedGroups.leave

    def noted(self: spilled_groups.BoundedGroups) -> None:
        if self.can_leave:
            levels.append(self._level)
        original(self)

    monkeypatch.setattr(spilled_groups.BoundedGroups, "leave", noted)
    expected = rows_of(run(config, {(0, 0): table}).table)
    with budget(100) as memory:
        assert rows_of(run(config, {(0, 0): table}, size=300, memory=memory).table) == expected
    assert max(levels) == 2


def test_keys_with_one_hash_are_held_whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled_groups, "hashes", lambda columns: np.zeros(len(columns[0]), dtype=np.uint64))
    table = pa.table({"k": [3, 1, 2, 1, 3, 7], "v": range(6)})
    config = HashAggregate(("k",), (Aggregate("s", "v", "sum"),))
    with budget(0) as memory:
        found = run(config, {(0, 0): table}, size=2, memory=memory)
    assert rows_of(found.table) == [(3, 4), (1, 4), (2, 2), (7, 5)]


class Listing:
    """``collect_list`` as a user may write it: it can only merge rows that follow each other."""

    name, ordered = "listing", True
    merges: ClassVar[list[int]] = []

    def __init__(self) -> None:
        inner = CollectList()
        self.state_types, self.result_type = inner.state_types, inner.result_type
        self.lift, self.blank, self.final, self._merge = inner.lift, inner.blank, inner.final, inner.merge

    def merge(self, state: State, segments: Segments) -> State:
        Listing.merges.append(len(segments.starts))
        return self._merge(state, segments)


def test_one_huge_state_is_not_merged_again_with_every_batch() -> None:
    """Above the budget with a single group there is nothing to part: merges stay as rare as they are below it."""
    Listing.merges.clear()
    table = pa.table({"k": ["x"] * 4096, "v": range(4096)})
    config = HashAggregate(("k",), (Aggregate("list", "v", Listing()),))
    with budget(0) as memory:
        found = run(config, {(0, 0): table}, size=8, memory=memory)
    assert rows_of(found.table) == [("x", list(range(4096)))]
    assert 0 < len(Listing.merges) < 100  # of 512 batches


def test_ten_times_the_budget_is_grouped_within_the_budget_and_one_batch() -> None:
    count, batches = 4096, 40
    # a row is counted with the states, the lane and the position of its group, and with what finds it
    row_bytes = 2 * 8 + 3 * 8 + 4 + 8 + 48
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    config = HashAggregate(("k",), (Aggregate("n", None, "count"), Aggregate("s", "v", "sum")))
    limit = count * batches * row_bytes // 10
    memory = TaskMemory(limit)
    output = Collected(config.output_schema([schema]))
    running = config.build(replace(context(), memory=memory.account("aggregate-1")), [schema], None)
    keys = np.random.default_rng(0).permutation(count * batches)
    for number in range(batches):
        share = keys[number * count : (number + 1) * count]
        records = pa.record_batch({"k": share, "v": share * 2}, schema=schema)
        exhaust(running.process(0, Batch(records, Tag(0, 0, number)), output))
    steps = running.finish(output)
    assert steps is not None
    exhaust(steps)
    running.close()
    found = pa.Table.from_batches([batch.records for batch in output.batches])
    assert found.column("k").to_numpy().tolist() == keys.tolist()
    assert found.column("s").to_numpy().tolist() == (2 * keys).tolist()
    # a table of keys is made anew at once: eight places of four bytes for each, of 60 bytes that a group takes at least
    assert memory.statistics().peak <= limit + count * row_bytes + limit // 3
    memory.release()


def running_in(memory: TaskMemory) -> tuple[Any, Collected]:
    """An aggregation of which some groups have left and others have not."""
    schema = pa.schema([("k", pa.int64())])
    config = HashAggregate(("k",), (Aggregate("n", None, "count"),))
    where = replace(context(), memory=memory.account("aggregate-1"), output_rows=3)
    running = config.build(where, [schema], None)
    output = Collected(config.output_schema([schema]))
    for number in range(9):
        records = pa.record_batch({"k": range(number, number + 5)}, schema=schema)
        exhaust(running.process(0, Batch(records, Tag(0, 0, number)), output))
    return running, output


@pytest.mark.parametrize("bytes", [0, 300])
def test_closing_in_the_middle_of_the_output_leaves_nothing(bytes: int) -> None:
    with budget(bytes) as memory:
        running, output = running_in(memory)
        steps = running.finish(output)
        while not output.batches:
            next(steps)
        assert [len(batch.records) for batch in output.batches] == [3]
        assert memory.statistics().files
        running.close()


def test_a_full_disk_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise StorageError("no space", "free some", "aggregate-1")

    with budget(0) as memory:
        running, output = running_in(memory)
        monkeypatch.setattr(spilled_groups.BoundedGroups, "add", full)
        with pytest.raises(StorageError, match="aggregate-1: no space"):
            exhaust(running.finish(output))
        running.close()


def test_a_snapshot_of_spilled_groups_outlives_the_operator_and_the_next_rows() -> None:
    with budget(0) as memory:
        running, output = running_in(memory)
        state = running.snapshot()
        exhaust(running.process(0, Batch(pa.record_batch({"k": [0]}), Tag(0, 0, 9)), output))
        again = running.snapshot()
        running.close()
        restored = running_from(memory, state)
        assert restored == [(key, min(key + 1, 5, 13 - key)) for key in range(13)]
        assert running_from(memory, again)[0] == (0, 2)


def running_from(memory: TaskMemory, state: pa.Table) -> list[Any]:
    config, schema = HashAggregate(("k",), (Aggregate("n", None, "count"),)), pa.schema([("k", pa.int64())])
    output = Collected(config.output_schema([schema]))
    running = config.build(replace(context(), memory=memory.account("aggregate-2")), [schema], state)
    exhaust(running.finish(output))
    running.close()
    return [row for batch in output.batches for row in rows_of(batch.records)]


@pytest.mark.parametrize("bytes", [None, 2048], ids=["held", "spilled"])
@pytest.mark.parametrize("seed", range(2))
def test_the_form_of_columns_changes_nothing(seed: int, bytes: int | None) -> None:
    """Keys and arguments, text as codes and decimals as 64 bits, in some batches, and some too large for that."""
    random = np.random.default_rng(seed)
    digits = [
        int(n) * 10 ** int(power)
        for n, power in zip(random.integers(-99, 99, 300), random.integers(0, 22, 300), strict=True)
    ]
    types = {"text": pa.string(), "price": pa.decimal128(30, 2), "v": pa.decimal128(30, 2), "s": pa.string()}
    columns = {
        "text": [None if n == 3 else f"text {n}" for n in random.integers(0, 9, 300).tolist()],
        "price": [None if n == 1 else Decimal(n) for n in random.integers(0, 4, 300).tolist()],
        "v": [None if n % 7 == 0 else Decimal(n).scaleb(-2) for n in digits],
        "s": [f"s{n}" for n in random.integers(0, 5, 300).tolist()],
    }
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    functions = [Aggregate(each, "v", each) for each in ("sum", "mean", "min", "count", "last", "count_distinct")]
    config = HashAggregate(
        ("text", "price"), (*functions, Aggregate("most", "s", "max"), Aggregate("n", None, "count"))
    )
    found = []
    for form in ("plain", "compact"):
        memory, chooser = TaskMemory(bytes), Random(seed)
        output = Collected(config.output_schema([table.schema]))
        where = replace(context(), memory=memory.account("aggregate-1"))
        running = config.build(where, [table.schema], None)
        for number, records in enumerate(table.to_batches(max_chunksize=17)):
            given = records if form == "plain" else compacted(records, chooser)
            exhaust(running.process(0, Batch(given, Tag(0, 0, number)), output))
        exhaust(running.finish(output))
        running.close()
        memory.release()
        found.append(rows_of(pa.Table.from_batches([batch.records for batch in output.batches])))
        assert (memory.statistics().spilled_files > 0) == (bytes is not None)
    assert found[0] == found[1]

"""A hash join that spills: every join type gives the same rows in the same order, whatever the budget."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.buffers.stored_rows import StoredRows
from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.errors import StorageError
from penstock.engine.core.operator import Memory, exhaust
from penstock.engine.operators import HashJoin
from penstock.engine.operators.join import spilled_lookup
from penstock.engine.operators.join.join_shape import JOIN_TYPES
from penstock.engine.operators.join.spilled_lookup import SpilledLookup
from penstock.engine.state.memory import TaskMemory
from support.join_units import SCHEMAS, sides
from support.key_types import KEY_TYPES, key_column
from support.operator_harness import Collected, context, rows_of, run
from support.spilling import BUDGETS, budget

FILTER = "(v + w) % 3 <> 1"
SIZES = (1, 3, 1024)
keys = st.lists(st.tuples(st.none() | st.integers(0, 4), st.none() | st.integers(0, 2)), max_size=20)
units = st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 3)), keys, max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    left=units,
    right=units,
    how=st.sampled_from(JOIN_TYPES),
    filtered=st.booleans(),
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 9),
    output_rows=st.sampled_from([1, 7, 1 << 16]),
    bytes=st.sampled_from(BUDGETS),
    parallelisms=st.sampled_from([(), (1,)]),
)
def test_a_spilled_join_gives_the_same_rows_in_the_same_order(
    left: Any,
    right: Any,
    how: str,
    filtered: bool,
    size: int,
    seed: int,
    output_rows: int,
    bytes: int,
    parallelisms: tuple[int, ...],
) -> None:
    """With parallelisms it is restored after every round."""
    ports = sides(left, right)
    config = HashJoin(("a", "b"), how=how, filter=FILTER if filtered else None)
    expected = run(config, *ports, schemas=SCHEMAS)
    with budget(bytes) as memory:
        found = run(
            config,
            *ports,
            schemas=SCHEMAS,
            size=size,
            seed=seed,
            output_rows=output_rows,
            restore=bool(parallelisms),
            parallelisms=parallelisms or (1,),
            memory=memory,
        )
        assert rows_of(found.table) == rows_of(expected.table)
        assert all(batch.records.num_rows <= output_rows for batch in found.batches)
        assert bytes or not any(table.num_rows for table in ports[1].values()) or memory.statistics().spilled_files


@pytest.mark.parametrize("how", JOIN_TYPES)
def test_a_spilled_join_is_restored_at_other_parallelisms(how: str) -> None:
    """The last round runs in one subtask, which gets the rows of several."""
    chooser = random.Random(3)
    made = [
        {
            (round, lane): [(chooser.randrange(5), chooser.randrange(2)) for _ in range(9)]
            for round in range(3)
            for lane in range(4)
        }
        for _ in range(2)
    ]
    ports = sides(*made)
    config = HashJoin(("a", "b"), how=how)
    expected = run(config, *ports, restore=True, parallelisms=(4, 2, 1))
    with budget(0) as memory:
        found = run(config, *ports, size=4, restore=True, parallelisms=(4, 2, 1), memory=memory)
    assert rows_of(found.table) == rows_of(expected.table)


def windows(config: HashJoin, tables: list[tuple[pa.Table, pa.Table]], size: int, memory: Memory | None) -> list[Any]:
    """What each window gives that ends with a barrier, and what comes at the end."""
    inputs = [table.schema for table in tables[0]]
    where = context() if memory is None else replace(context(), memory=memory)
    output = Collected(config.output_schema(inputs))
    running = config.build(where, inputs, None)
    found = []
    for round, window in enumerate([*tables, None]):
        for port, table in enumerate(window or ()):
            for number, records in enumerate(table.combine_chunks().to_batches(max_chunksize=size)):
                if records.num_rows:
                    exhaust(running.process(port, Batch(records, Tag(round, 0, number)), output))
            exhaust(running.end_round(port, round, output))
        if window is None:
            for port in (0, 1):
                exhaust(running.end_round(port, FINAL_ROUND, output))
                exhaust(running.end_port(port, output))
            exhaust(running.finish(output))
        else:
            exhaust(running.drain(output))
        found.append([row for batch in output.batches for row in rows_of(batch.records)])
        output.batches = []
    running.close()
    return found


@settings(max_examples=20, deadline=None)
@given(data=st.lists(st.tuples(keys, keys), min_size=1, max_size=3), how=st.sampled_from(JOIN_TYPES))
def test_every_window_of_a_spilled_join_stands_by_itself(data: list[Any], how: str) -> None:
    tables = []
    for left, right in data:
        one, other = sides({(0, 0): left}, {(0, 0): right})
        tables.append((one[0, 0], other[0, 0]))
    config = HashJoin(("a", "b"), how=how, filter=FILTER)
    expected = windows(config, tables, 1024, None)
    with budget(0) as memory:
        assert windows(config, tables, 3, memory.account("join-1")) == expected


@pytest.mark.parametrize("key_type", KEY_TYPES)
def test_a_spilled_join_on_any_key_type(key_type: str) -> None:
    left, right = [None, 5, 0, 2, 4, 0], [0, 4, None, 2, 2, 5]
    tables = [pa.table({"k": key_column(key_type, numbers), "p": range(len(numbers))}) for numbers in (left, right)]
    for how in ("inner", "full"):
        expected = run(HashJoin(("k",), how=how), *({(0, 0): table} for table in tables))
        with budget(0) as memory:
            found = run(HashJoin(("k",), how=how), *({(0, 0): table} for table in tables), size=2, memory=memory)
        assert rows_of(found.table) == rows_of(expected.table)


@pytest.mark.parametrize("how", ["inner", "right semi", "anti"])
def test_one_huge_key_is_joined_in_pieces(how: str) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    left = pa.table({"k": ["x", "y"], "v": [1, 2]}, schema=schema)
    right = pa.table({"k": ["x"] * 5000, "v": range(5000)}, schema=schema)
    ports: list[Any] = [{(0, 0): left}, {(0, 0): right}]
    config = HashJoin(("k",), how=how)
    with budget(1024) as memory:
        found = run(config, *ports, size=100, output_rows=64, memory=memory)
    assert rows_of(found.table) == rows_of(run(config, *ports).table)
    assert max(batch.records.num_rows for batch in found.batches) <= 64


@pytest.mark.parametrize("same", [1, 3])
def test_keys_with_equal_hashes_are_told_apart(same: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        spilled_lookup, "hashes", lambda columns: columns[0].to_numpy().astype(np.uint64) % np.uint64(same)
    )
    monkeypatch.setattr(spilled_lookup, "PIECE_ROWS", 2)
    numbers = [5, 1, 4, 5, 9, 1, 1, 0, 4]
    with budget(0) as memory:
        table = pa.table({"k": numbers})
        rows = StoredRows(table.schema, table.to_batches(max_chunksize=4))
        lookup = SpilledLookup(rows, [0], memory.account("join-1"))
        wanted = [1, 2, 5, 9, 0, 10, 4, 5]
        matches = lookup.matches([pa.array(wanted)])
        assert matches.rows is not None
        for place, number in enumerate(wanted):
            there = np.arange(matches.first[place], matches.first[place] + matches.counts[place])
            assert matches.rows[there].tolist() == [row for row, other in enumerate(numbers) if other == number]
        lookup.delete()


def test_ten_times_the_budget_is_joined_within_the_budget_and_one_batch() -> None:
    rows, batches = 4096, 40
    schema = pa.schema([("k", pa.int64()), ("v", pa.float64())])
    config = HashJoin(("k",), how="full")
    size = rows * 16
    limit = batches * size // 10
    memory = TaskMemory(limit)
    output = Collected(config.output_schema([schema, schema]))
    running = config.build(replace(context(), memory=memory.account("join-1")), [schema, schema], None)
    for number, port in itertools.product(range(batches), (0, 1)):
        values = {"k": (np.arange(rows) + number * rows) * (port + 1), "v": np.full(rows, float(port))}
        exhaust(running.process(port, Batch(pa.record_batch(values, schema=schema), Tag(0, 0, number)), output))
    for port in (0, 1):
        exhaust(running.end_round(port, 0, output))
    steps = running.end_port(1, output)
    assert steps is not None
    exhaust(steps)
    exhaust(running.end_port(0, output))
    exhaust(running.finish(output))
    running.close()
    left = [number * rows + place for number in range(batches) for place in range(rows)]
    assert [key for batch in output.batches for key in batch.records.column(0).to_pylist()][: len(left)] == left
    assert memory.statistics().peak <= limit + rows * (16 + 32)
    assert memory.statistics().spilled_bytes > 20 * limit
    memory.release()


def test_long_keys_that_would_be_held_twice_are_looked_up_on_disk() -> None:
    table = pa.table({"k": [f"{number:0500}" for number in range(100)], "v": range(100)})
    ports: list[Any] = [{(0, 0): table.slice(90)}, {(0, 0): table}]
    expected = run(HashJoin(("k",)), *ports)
    with budget(70 * 1000) as memory:
        found = run(HashJoin(("k",)), *ports, size=10, memory=memory)
        assert memory.statistics().spilled_files
    assert rows_of(found.table) == rows_of(expected.table)


@pytest.mark.parametrize("calls", range(4))
def test_closing_in_the_middle_or_after_an_error_leaves_nothing(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = sides({(0, 0): [(1, 1), (2, 2)]}, {(0, 0): [(1, 1), (1, 1), (3, 3)]})
    config = HashJoin(("a", "b"), how="full")
    output = Collected(config.output_schema(SCHEMAS))
    with budget(0) as memory:
        running = config.build(replace(context(), memory=memory.account("join-1")), SCHEMAS, None)
        for port, tables in enumerate(ports):
            exhaust(running.process(port, Batch(tables[0, 0].combine_chunks().to_batches()[0], Tag(0, 0, 0)), output))
        if calls > 0:
            steps = running.end_port(1, output)
            assert steps is not None
            next(steps)
        if calls > 1:
            exhaust(steps)
            next(running.finish(output))
        running.close()
    assert len(output.batches) == (0, 1, 2, 2)[calls]


def test_a_full_disk_while_the_index_is_built_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise StorageError("no space", "free some", "join-1")

    ports = sides({(0, 0): [(1, 1)]}, {(0, 0): [(1, 1)]})
    config = HashJoin(("a", "b"))
    output = Collected(config.output_schema(SCHEMAS))
    with budget(0) as memory:
        running = config.build(replace(context(), memory=memory.account("join-1")), SCHEMAS, None)
        for port, tables in enumerate(ports):
            exhaust(running.process(port, Batch(tables[0, 0].combine_chunks().to_batches()[0], Tag(0, 0, 0)), output))
        monkeypatch.setattr(spilled_lookup, "concatenated", full)
        with pytest.raises(StorageError, match="join-1: no space"):
            exhaust(running.end_port(1, output))
        running.close()

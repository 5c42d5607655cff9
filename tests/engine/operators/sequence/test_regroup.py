"""Regroup: rows under the lanes of their parts, in an order that no interleaving, batch or spill can change."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.errors import FlowError, InternalError
from penstock.engine.core.operator import LANE, OperatorContext, exhaust
from penstock.engine.operators.sequence.regroup import Regroup, RunningRegroup
from penstock.engine.plan.partitioning import HashPartitioning, sorted_by_part, wire_schema
from support.operator_harness import Collected, context
from support.spilling import budget

PARTS = 8
SCHEMA = pa.schema([("part", pa.int64()), ("lane", pa.int64()), ("row", pa.int64()), ("text", pa.string())])
WIRE = wire_schema(SCHEMA)


def rows_of(lane: int, count: int, seed: int) -> pa.RecordBatch:
    parts = np.random.default_rng([lane, seed]).integers(0, PARTS, count)
    texts = [f"{'long ' * (row % 7)}{row}" for row in range(count)]
    return pa.record_batch([parts, np.full(count, lane), np.arange(count), pa.array(texts)], schema=SCHEMA)


def pieces(round: int, lane: int, rows: pa.RecordBatch, size: int, owned: range) -> list[Batch]:
    """What the outlet of the lane's producer sends to the owner of these parts."""
    found = []
    for sequence, start in enumerate(range(0, rows.num_rows, size)):
        batch = rows.slice(start, size)
        mine = batch.filter(pa.array(np.isin(batch.column("part").to_numpy(), list(owned))))
        if mine.num_rows:
            records, parts = sorted_by_part(mine, mine.column("part").to_numpy().astype(np.uint16))
            wire = pa.RecordBatch.from_arrays([*records.columns, pa.array(parts)], schema=WIRE)
            found.append(Batch(wire, Tag(round, lane, sequence)))
    return found


def merged(streams: Sequence[list[Batch]], chance: random.Random) -> list[Batch]:
    """The streams in one, each in its order."""
    left = [list(stream) for stream in streams if stream]
    found = []
    while left:
        stream = chance.choice(left)
        found.append(stream.pop(0))
        left = [each for each in left if each]
    return found


def build(
    where: OperatorContext, restored: pa.Table | None = None, config: Regroup | None = None
) -> tuple[RunningRegroup, Collected]:
    config = config or Regroup()
    source = WIRE if config.partitioning is None else SCHEMA
    return config.build(where, [source], restored), Collected(SCHEMA)


def run(
    rounds: int,
    lanes: int,
    *,
    count: int = 60,
    size: int = 7,
    seed: int = 0,
    parallelism: int = 1,
    memory: int | None = None,
    output_rows: int = 1000,
) -> list[tuple[Tag, list]]:
    """All that comes out of all subtasks, by tag."""
    chance, found = random.Random(seed), []
    for subtask in range(parallelism):
        with budget(memory) as task:
            where = replace(context(subtask, parallelism, PARTS), output_rows=output_rows)
            running, output = build(replace(where, memory=task.account("regroup")))
            for round in [*range(rounds), FINAL_ROUND]:
                streams = [pieces(round, lane, rows_of(lane, count, round), size, where.lanes) for lane in range(lanes)]
                for batch in merged(streams, chance):
                    exhaust(running.process(0, batch, output))
                exhaust(running.end_round(0, round, output))
            exhaust(running.end_port(0, output))
            exhaust(running.finish(output))
            assert running.snapshot() is None
            running.close()
        found += [(batch.tag, batch.records.to_pylist()) for batch in output.batches]
    return sorted(found, key=lambda each: each[0])


def test_rows_come_by_part_and_within_it_in_the_order_of_their_tags():
    found = run(2, 3)
    assert [(tag.round, tag.lane) for tag, _ in found] == [
        (round, part) for round in (0, 1, FINAL_ROUND) for part in range(PARTS)
    ]
    for tag, rows in found:
        assert {row["part"] for row in rows} == {tag.lane}
        assert [(row["lane"], row["row"]) for row in rows] == sorted((row["lane"], row["row"]) for row in rows)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1, 3, 16, 1024]),
    parallelism=st.sampled_from([1, 2, 3, PARTS]),
    memory=st.sampled_from([None, 0, 1024, 8192]),
    count=st.sampled_from([1, 5, 60]),
)
def test_the_outcome_depends_on_neither_interleaving_nor_batches_nor_parallelism_nor_memory(
    seed, size, parallelism, memory, count
):
    expected = run(2, 4, count=count)
    assert run(2, 4, count=count, size=size, seed=seed, parallelism=parallelism, memory=memory) == expected


def test_batches_are_cut_at_the_wanted_size():
    found = run(1, 4, output_rows=10)
    assert max(len(rows) for _, rows in found) == 10
    whole = run(1, 4)
    for part in range(PARTS):
        mine, theirs = ([row for tag, rows in each for row in rows if row["part"] == part] for each in (found, whole))
        assert mine == theirs


def test_rows_of_the_final_round_wait_for_the_others():
    running, output = build(context(lanes=PARTS))
    owned = range(PARTS)
    for batch in pieces(FINAL_ROUND, 0, rows_of(0, 9, 0), 9, owned) + pieces(4, 1, rows_of(1, 9, 0), 9, owned):
        exhaust(running.process(0, batch, output))
    exhaust(running.end_round(0, 4, output))
    assert {batch.tag.round for batch in output.batches} == {4}
    exhaust(running.end_round(0, FINAL_ROUND, output))
    exhaust(running.finish(output))
    assert {batch.tag.round for batch in output.batches} == {4, FINAL_ROUND}


def test_rows_that_come_behind_the_end_of_their_round_come_out_with_the_barrier():
    running, output = build(context(lanes=PARTS))
    exhaust(running.end_round(0, 0, output))
    for batch in pieces(0, 0, rows_of(0, 20, 0), 5, range(PARTS)):
        exhaust(running.process(0, batch, output))
    assert not output.batches
    exhaust(running.drain(output))
    assert sum(batch.records.num_rows for batch in output.batches) == 20
    assert running.snapshot() is None


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("memory", [None, 0])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_what_is_held_at_a_barrier_is_its_state_at_any_parallelism(memory, parallelism, told):
    """In the middle of a round; a state of an earlier release has not ``told`` under which tags its rows came, and they
    come first in their part."""
    streams = [pieces(0, lane, rows_of(lane, 40, 0), 7, range(PARTS)) for lane in range(3)]
    half = [batch for stream in streams for batch in stream[:3]]
    rest = [batch for stream in streams for batch in stream[3:]]
    states = []
    with budget(memory) as task:
        running, output = build(replace(context(lanes=PARTS), memory=task.account("regroup")))
        for batch in half:
            exhaust(running.process(0, batch, output))
        state = running.snapshot()
        assert running.snapshot().equals(state), "a snapshot changes nothing"
        running.close()
    state = state if told else state.drop_columns(["from", "sequence"])
    rows = []
    for subtask in range(parallelism):
        where = context(subtask, parallelism, PARTS)
        lanes = state.column(LANE).to_numpy()
        mine = state.filter(pa.array((lanes >= where.lanes.start) & (lanes < where.lanes.stop)))
        running, output = build(where, mine)
        states.append(running.snapshot())
        for batch in rest:
            records = batch.records.filter(
                pa.array(np.isin(batch.records.column("part").to_numpy(), list(where.lanes)))
            )
            if records.num_rows:
                exhaust(running.process(0, Batch(records, batch.tag), output))
        exhaust(running.finish(output))
        rows += [row for found in output.batches for row in found.records.to_pylist()]
    assert pa.concat_tables(states).sort_by([(LANE, "ascending")]).num_rows == state.num_rows
    expected = [row for lane in range(3) for row in rows_of(lane, 40, 0).to_pylist()]
    assert sorted(rows, key=str) == sorted(expected, key=str)
    for part in range(PARTS):
        mine = [row for row in rows if row["part"] == part]
        first = [row for batch in half for row in batch.records.drop_columns("__part").to_pylist()
                 if row["part"] == part]  # fmt: skip
        whole = [row for row in expected if row["part"] == part]
        assert mine == (whole if told else [*first, *(row for row in whole if row not in first)])


def test_behind_an_operator_it_finds_the_parts_by_the_keys():
    config = Regroup(HashPartitioning(("lane", "row"), PARTS))
    expected = None
    for parallelism in (1, 2, 4):
        found = []
        for subtask in range(parallelism):
            where = context(subtask, parallelism, PARTS)
            running, output = build(where, None, config)
            records = rows_of(0, 50, 0)
            parts = config.partitioning.partitioner(SCHEMA).parts(Batch(records, Tag(0, 0, 0)))
            mine = records.filter(pa.array(np.isin(parts, list(where.lanes))))
            exhaust(running.process(0, Batch(mine, Tag(0, where.lanes.start, 0)), output))
            exhaust(running.end_round(0, 0, output))
            found += [(batch.tag, batch.records.to_pylist()) for batch in output.batches]
        expected = expected or found
        assert found == expected


def test_without_order_rows_are_passed_on_before_the_round_ends():
    running, output = build(replace(context(lanes=PARTS), output_rows=11), None, Regroup(ordered=False))
    sent = pieces(0, 0, rows_of(0, 200, 0), 20, range(PARTS))
    for batch in sent:
        exhaust(running.process(0, batch, Loose(output)))
    assert 0 < sum(batch.records.num_rows for batch in output.batches) < 200
    exhaust(running.end_round(0, 0, Loose(output)))
    rows = [row for batch in output.batches for row in batch.records.to_pylist()]
    assert sorted(rows, key=str) == sorted(rows_of(0, 200, 0).to_pylist(), key=str)


class Loose:
    """Takes tags in any order."""

    def __init__(self, output: Collected) -> None:
        self._output = output

    def emit(self, batch: Batch) -> None:
        self._output.batches.append(batch)


def test_rows_of_foreign_parts_are_a_bug():
    running, output = build(context(0, 2, PARTS))
    with pytest.raises(InternalError, match="came to the owner"):
        exhaust(running.process(0, pieces(0, 0, rows_of(0, 50, 0), 50, range(PARTS))[0], output))


def test_input_without_parts_is_refused():
    with pytest.raises(FlowError, match="partitioned exchange"):
        Regroup().output_schema([SCHEMA])

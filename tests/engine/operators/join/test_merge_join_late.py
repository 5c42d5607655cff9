"""Merge join of rows that come behind the end of their round, as operators before it emit them at a task barrier."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.errors import DataError
from penstock.engine.core.operator import LANE, exhaust
from penstock.engine.operators import MergeJoin
from support.join_units import SCHEMAS, UnitKeys, sides, sorted_keys, steps_of
from support.operator_harness import Collected, context, rows_of, run

HOWS = ("inner", "left", "right", "full", "left semi", "right semi", "anti")
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])

lanes = st.dictionaries(st.tuples(st.just(0), st.integers(0, 2)), sorted_keys, max_size=3)


class Late:
    """A join that is fed with windows: a round that ends empty on both ports, then rows of it, then the barrier."""

    def __init__(self, config: MergeJoin, schemas: list[pa.Schema]) -> None:
        self.config, self.schemas = config, schemas
        self.out = Collected(config.output_schema(schemas))
        self.running = config.build(context(), schemas, None)
        self.seen = 0

    def end_round(self, round: int) -> None:
        for port in (0, 1):
            exhaust(self.running.end_round(port, round, self.out))

    def take(self, port: int, tag: Tag, keys: list[int]) -> None:
        records = pa.record_batch([keys, [10 * key + port for key in keys]], schema=SCHEMA)
        exhaust(self.running.process(port, Batch(records, tag), self.out))

    def drained(self) -> list[Batch]:
        """Let the barrier come; what has been emitted since the last one."""
        exhaust(self.running.drain(self.out))
        first, self.seen = self.seen, len(self.out.batches)
        return self.out.batches[first:]


def plain(how: str = "inner") -> Late:
    return Late(MergeJoin(("k",), how=how), [SCHEMA, SCHEMA])


def pairs(batches: list[Batch]) -> list[tuple[Any, ...]]:
    return [row for batch in batches for row in rows_of(batch.records)]


@settings(max_examples=60, deadline=None)
@given(
    windows=st.lists(st.tuples(lanes, lanes), min_size=1, max_size=3),
    how=st.sampled_from(HOWS),
    size=st.sampled_from([1, 3, 100]),
    seed=st.integers(0, 99),
    step=st.sampled_from([1, 5, 1 << 16]),
    restored=st.booleans(),
)
def test_late_rows_are_joined_like_those_of_a_round_window_for_window(
    windows: list[tuple[UnitKeys, UnitKeys]], how: str, size: int, seed: int, step: int, restored: bool
) -> None:
    chooser = random.Random(seed)
    join = Late(MergeJoin(("a", "b"), how=how), SCHEMAS)
    for round, (left, right) in enumerate(windows):
        ports = sides(left, right)
        expected = run(join.config, *ports, schemas=SCHEMAS)
        join.out.batches = []
        with steps_of(step):
            join.end_round(round)
            streams = [late_batches(port, round, size) for port in ports]
            while any(streams):
                # whose other side stands behind the barrier is not asked (``Ports.is_last``)
                welcome = [n for n in (0, 1) if streams[n] and (not streams[1 - n] or join.running.accepts(n))]
                port = chooser.choice(welcome)
                exhaust(join.running.process(port, streams[port].pop(0), join.out))
            found = join.out.batches
            if restored:
                restore(join)
                join.out.batches = []  # whose pieces are numbered anew
            exhaust(join.running.drain(join.out))
        found = [*found, *join.out.batches] if restored else found
        for lane in range(3):
            mine = [row for batch in found if batch.tag.lane == lane for row in rows_of(batch.records)]
            assert mine == expected.units.get((0, lane), [])
        assert restored or {batch.tag.round for batch in found} <= {round}
        assert join.running.snapshot() is None, "nothing is held behind the barrier"


def late_batches(port: dict[tuple[int, int], pa.Table], round: int, size: int) -> list[Batch]:
    """Batches of a round that has ended, lane by lane."""
    found = []
    for (_, lane), table in sorted(port.items()):
        batches = table.combine_chunks().to_batches(max_chunksize=size)
        found += [Batch(records, Tag(round, lane, number)) for number, records in enumerate(batches)]
    return [batch for batch in found if batch.records.num_rows]


def restore(join: Late) -> None:
    """Go on with a join that was built from the state of this one."""
    state = join.running.snapshot()
    join.running.close()
    join.running = join.config.build(context(), join.schemas, state)


def test_late_rows_are_part_of_the_snapshot_with_their_lane() -> None:
    """No checkpoint can stand between the rows of a barrier and the barrier; if one could, it would miss nothing."""
    join = plain()
    join.end_round(4)
    join.take(0, Tag(4, 2, 0), [1, 2])
    state = join.running.snapshot()
    assert (state.column(LANE).to_pylist(), state.column("round").to_pylist()) == ([2, 2], [FINAL_ROUND] * 2)


@pytest.mark.parametrize("first", [0, 1])
def test_late_rows_of_one_window_do_not_meet_those_of_the_next(first: int) -> None:
    join = plain("full")
    join.end_round(0)
    join.take(first, Tag(0, 0, 0), [1])
    assert len(pairs(join.drained())) == 1
    join.end_round(1)
    join.take(1 - first, Tag(1, 0, 0), [1])
    [row] = pairs(join.drained())
    assert row[:1] == (1,)
    assert None in row, "it has found no partner"


@pytest.mark.parametrize("ended", [0, 1])
def test_late_rows_meet_those_of_a_side_that_has_ended_before_the_barrier(ended: int) -> None:
    """A side whose source needs no more ends within the window: its rows are of the final round. The window's rows of
    the other side come late, and those that are joined leave in the round that has ended there."""
    join = plain()
    join.end_round(3)
    join.take(ended, Tag(FINAL_ROUND, 0, 0), [1, 2, 4])
    exhaust(join.running.end_round(ended, FINAL_ROUND, join.out))
    exhaust(join.running.end_port(ended, join.out))
    join.take(1 - ended, Tag(3, 0, 0), [2, 3, 4])
    batches = join.drained()
    assert pairs(batches) == [(2, 20, 21), (4, 40, 41)]
    assert {batch.tag.round for batch in batches} == {3}
    exhaust(join.running.end_round(1 - ended, 4, join.out))
    join.take(1 - ended, Tag(4, 0, 0), [4])
    assert pairs(join.drained()) == [], "rows of an earlier window are forgotten"


@pytest.mark.parametrize("first", [0, 1])
def test_rows_of_the_final_round_of_both_sides_meet_and_leave_in_it(first: int) -> None:
    join = plain()
    join.end_round(0)
    for port in (first, 1 - first):
        join.take(port, Tag(FINAL_ROUND, 0, 0), [1, 2])
        exhaust(join.running.end_round(port, FINAL_ROUND, join.out))
    for port in (first, 1 - first):
        exhaust(join.running.end_port(port, join.out))
    assert pairs(join.out.batches) == [(1, 10, 11), (2, 20, 21)]
    assert {batch.tag.round for batch in join.out.batches} == {FINAL_ROUND}


def test_side_that_is_far_ahead_in_the_final_round_is_still_refused() -> None:
    """Where no barrier can come between, memory stays bounded."""
    with steps_of(2):
        join = plain()
        join.take(0, Tag(FINAL_ROUND, 0, 0), [1, 2, 3, 4])
        assert [join.running.accepts(port) for port in (0, 1)] == [False, True]


def test_large_late_windows_are_joined_as_they_come() -> None:
    with steps_of(2):
        join = plain()
        join.end_round(0)
        for start in range(0, 40, 4):
            for port in (0, 1):
                join.take(port, Tag(0, 0, start), list(range(start, start + 4)))
        assert join.running.snapshot().num_rows < 20
        batches = join.drained()
    assert [row[0] for row in pairs(batches)] == list(range(40))
    assert {batch.tag.round for batch in batches} == {0}


def test_late_rows_of_a_lane_must_be_sorted_across_batches() -> None:
    join = plain()
    join.end_round(0)
    join.take(0, Tag(0, 0, 0), [5])
    with pytest.raises(DataError, match=r"final round, lane 0\) is not sorted by k"):
        join.take(0, Tag(0, 0, 1), [4])

"""Operators that need no more input: from then on rows may be thrown away, and not before."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.operator import EarlyTerminatingOperator, exhaust
from penstock.engine.operators import Limit, MergeJoin
from penstock.engine.operators.join.join_shape import JOIN_TYPES
from penstock.engine.operators.join.merge_join import RunningMergeJoin
from penstock.engine.operators.sequence.limit import Per, RunningLimit
from support.operator_harness import Collected, context, rows_of

SCHEMAS = [pa.schema([("k", pa.int64()), ("v", pa.int64())]), pa.schema([("k", pa.int64()), ("w", pa.int64())])]
SIZE = 2
Row = tuple[Any, ...]

keys = st.lists(st.none() | st.integers(0, 6), max_size=12).map(
    lambda found: sorted(found, key=lambda key: -1 if key is None else key)
)
units = st.lists(keys, min_size=1, max_size=3)


def batches_of(port: int, rounds: list[list[int | None]]) -> list[Batch]:
    made = []
    for round, found in enumerate(rounds):
        values = range(round * 100, round * 100 + len(found))
        records = pa.RecordBatch.from_arrays([pa.array(found, pa.int64()), pa.array(values)], schema=SCHEMAS[port])
        pieces = [records.slice(start, SIZE) for start in range(0, len(found), SIZE)]
        made += [Batch(piece, Tag(round, 0, number)) for number, piece in enumerate(pieces)]
    return made


def joined(how: str, rounds: list[list[list[int | None]]], chance: random.Random, *, dropping: bool) -> list[Row]:
    """The rows of a join whose ports speak in a random order; ``dropping``: what is not needed is thrown away."""
    config = MergeJoin(("k",), how)
    running = config.build(context(), SCHEMAS, None)
    out = Collected(config.output_schema(SCHEMAS))
    left = [batches_of(port, found) for port, found in enumerate(rounds)]
    ended, satisfied = [False, False], [False, False]
    while not all(ended):
        port = chance.choice([port for port in (0, 1) if not ended[port]])
        for each in (0, 1):
            now = running.needs_no_more(each)
            assert now or not satisfied[each], "an operator that needed no more needs more"
            satisfied[each] = now
        if not left[port]:
            exhaust(running.end_round(port, FINAL_ROUND, out))
            exhaust(running.end_port(port, out))
            ended[port] = True
        elif satisfied[port] and dropping:
            left[port] = []
        elif running.accepts(port):
            exhaust(running.process(port, left[port].pop(0), out))
    exhaust(running.finish(out))
    return [row for batch in out.batches for row in rows_of(batch.records)]


@pytest.mark.parametrize("how", JOIN_TYPES)
@settings(max_examples=60, derandomize=True, deadline=None)
@given(left=units, right=units, seed=st.integers(0, 2**32))
def test_merge_join_gives_the_same_rows_when_what_it_does_not_need_is_thrown_away(
    how: str, left: list[list[int | None]], right: list[list[int | None]], seed: int
) -> None:
    everything = joined(how, [left, right], random.Random(seed), dropping=False)
    assert joined(how, [left, right], random.Random(seed), dropping=True) == everything


ENDS_EARLY = {
    "inner": (True, True),
    "left": (False, True),
    "right": (True, False),
    "full": (False, False),
    "left semi": (True, True),
    "right semi": (True, True),
    "anti": (False, True),
}


def after_one_side_has_ended(how: str, port: int, others: list[int]) -> RunningMergeJoin:
    """The other side of ``port`` had keys 1 and 2 and has ended, ``port`` has had ``others``."""
    running = MergeJoin(("k",), how).build(context(), SCHEMAS, None)
    assert isinstance(running, EarlyTerminatingOperator)
    out = Collected(MergeJoin(("k",), how).output_schema(SCHEMAS))
    for side, found in ((1 - port, [1, 2]), (port, others)):
        for batch in batches_of(side, [list(found)]):
            exhaust(running.process(side, batch, out))
    exhaust(running.end_round(1 - port, FINAL_ROUND, out))
    exhaust(running.end_port(1 - port, out))
    return running


@pytest.mark.parametrize("port", [0, 1])
@pytest.mark.parametrize("how", JOIN_TYPES)
def test_merge_join_needs_a_side_no_more_once_it_has_passed_the_end_of_the_other(how: str, port: int) -> None:
    assert after_one_side_has_ended(how, port, [1, 3]).needs_no_more(port) == ENDS_EARLY[how][port]
    assert not after_one_side_has_ended(how, port, [1, 2]).needs_no_more(port), "another 2 would match"
    assert not after_one_side_has_ended(how, port, []).needs_no_more(port)


@pytest.mark.parametrize("port", [0, 1])
@pytest.mark.parametrize("how", JOIN_TYPES)
def test_merge_join_needs_a_side_no_more_when_the_other_has_no_more_rows_in_the_window(how: str, port: int) -> None:
    config = MergeJoin(("k",), how)
    running = config.build(context(), SCHEMAS, None)
    out = Collected(config.output_schema(SCHEMAS))
    for window in range(2):
        for side, found in ((1 - port, [1, 2]), (port, [1, 3])):
            [batch] = batches_of(side, [found])
            exhaust(running.process(side, Batch(batch.records, Tag(window, 0, 0)), out))
        assert not running.needs_no_more(port)
        running.end_window(1 - port)
        assert running.needs_no_more(port) == ENDS_EARLY[how][port]
        exhaust(running.drain(out))
        assert not running.needs_no_more(port), "the next window begins"


def limited(config: Limit, *sizes: int) -> RunningLimit:
    schema = pa.schema([("n", pa.int64())])
    running = config.build(context(), [schema], None)
    assert isinstance(running, EarlyTerminatingOperator)
    for number, rows in enumerate(sizes):
        exhaust(running.process(0, Batch(pa.record_batch({"n": range(rows)}), Tag(0, 0, number)), Collected(schema)))
    return running


def test_limit_needs_no_more_once_its_last_row_has_passed() -> None:
    assert not limited(Limit(3, offset=2), 4).needs_no_more(0)
    assert limited(Limit(3, offset=2), 4, 1).needs_no_more(0)
    assert limited(Limit(0)).needs_no_more(0)


@pytest.mark.parametrize(("per", "still"), [("task", True), ("window", False)])
def test_limit_needs_rows_again_behind_a_barrier_only_if_it_counts_by_windows(per: Per, still: bool) -> None:
    running = limited(Limit(3, per=per), 5)
    assert running.needs_no_more(0)
    exhaust(running.drain(Collected(pa.schema([("n", pa.int64())]))))
    assert running.needs_no_more(0) is still


def test_restored_limit_that_has_had_its_rows_needs_none() -> None:
    state = limited(Limit(3), 3).snapshot()
    running = Limit(3).build(context(), [pa.schema([("n", pa.int64())])], state)
    assert running.needs_no_more(0)

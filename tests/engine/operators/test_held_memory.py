"""Merge join and streaming aggregation tell their account what they hold, and in the end that it is nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.operator import OperatorConfig, exhaust
from penstock.engine.operators import Aggregate, MergeJoin, StreamAggregate
from penstock.engine.state.memory import OperatorMemory, TaskMemory
from support.operator_harness import Collected, context

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
JOIN = MergeJoin(("k",))
COUNT = StreamAggregate(("k",), (Aggregate("n", None, "count"),))
JOINED, COUNTED = JOIN.output_schema([SCHEMA, SCHEMA]), COUNT.output_schema([SCHEMA])
ROW = 16
"""Bytes of a row."""


@pytest.fixture
def account() -> Iterator[OperatorMemory]:
    task = TaskMemory()
    yield task.account("operator")
    task.validate()


def built(config: OperatorConfig, account: OperatorMemory, ports: int, restored: pa.Table | None = None) -> Any:
    return config.build(replace(context(), memory=account), [SCHEMA] * ports, restored)


def batch(keys: list[int], tag: Tag) -> Batch:
    return Batch(pa.record_batch([pa.array(keys), pa.array(keys)], schema=SCHEMA), tag)


def test_merge_join_holds_what_is_not_joined_yet(account: OperatorMemory) -> None:
    join, out = built(JOIN, account, 2), Collected(JOINED)
    exhaust(join.process(0, batch([1, 2, 3], Tag(0, 0, 0)), out))
    assert account.held == 3 * ROW
    exhaust(join.process(1, batch([1, 2], Tag(0, 0, 0)), out))
    exhaust(join.process(1, batch([7], Tag(1, 0, 0)), out))
    assert account.held == 6 * ROW
    exhaust(join.end_round(0, 0, out))
    assert account.held == ROW, "the unit that is complete on both sides is joined"
    again = built(JOIN, account, 2, join.snapshot())
    assert ROW <= account.held < 2 * ROW, "what is restored may have bitmaps of nulls besides"
    exhaust(again.drain(Collected(JOINED)))
    assert account.held == 0
    join.close()
    assert (account.held, account.peak) == (0, 6 * ROW)


def test_merge_join_that_is_closed_holds_nothing(account: OperatorMemory) -> None:
    join = built(JOIN, account, 2)
    exhaust(join.process(0, batch([1, 2, 3], Tag(0, 0, 0)), Collected(JOINED)))
    join.close()
    assert account.held == 0


def test_stream_aggregate_holds_the_groups_of_the_round_and_those_that_are_open(account: OperatorMemory) -> None:
    groups, out = built(COUNT, account, 1), Collected(COUNTED)
    exhaust(groups.process(0, batch([1, 1, 2, 3], Tag(0, 0, 0)), out))
    assert account.held == 3 * ROW
    exhaust(groups.process(0, batch([3, 3], Tag(0, 0, 1)), out))
    assert account.held == 3 * ROW, "the open group is continued"
    exhaust(groups.process(0, batch([5], Tag(0, 1, 0)), out))
    assert account.held == 4 * ROW
    exhaust(groups.end_round(0, 0, out))
    assert account.held == 2 * ROW, "one open group of each lane"
    again = built(COUNT, account, 1, groups.snapshot())
    assert 2 * ROW <= account.held < 3 * ROW, "what is restored may have bitmaps of nulls besides"
    exhaust(again.drain(Collected(COUNTED)))
    assert account.held == 0
    groups.close()
    assert (account.held, account.peak) == (0, 4 * ROW)

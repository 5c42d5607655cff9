"""Union: one order whichever stream speaks first, one batch held a port, barriers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.errors import FlowError
from penstock.engine.core.operator import exhaust
from penstock.engine.flow.flow import Flow
from penstock.engine.operators import Union
from support.operator_harness import SIZES, Collected, context, rows_of, run

SCHEMA = pa.schema([("port", pa.int64()), ("n", pa.int64())])


def table_of(port: int, start: int, rows: int) -> pa.Table:
    return pa.table({"port": [port] * rows, "n": range(start, start + rows)}, schema=SCHEMA)


units = st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 3)), st.integers(0, 20), max_size=8)


@settings(max_examples=50, deadline=None)
@given(
    ports=st.lists(units, min_size=2, max_size=4),
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 99),
    restore=st.booleans(),
    parallelisms=st.sampled_from([(1,), (2, 1, 3)]),
)
def test_union_orders_rows_by_round_lane_and_port_whoever_speaks_first(
    ports: list[dict[tuple[int, int], int]], size: int, seed: int, restore: bool, parallelisms: tuple[int, ...]
) -> None:
    given_tables = [
        {unit: table_of(port, 100 * unit[0] + 1000 * unit[1], rows) for unit, rows in lengths.items()}
        for port, lengths in enumerate(ports)
    ]
    found = run(
        Union(len(ports)), *given_tables, schemas=[SCHEMA] * len(ports),
        size=size, seed=seed, restore=restore, parallelisms=parallelisms,
    )  # fmt: skip
    expected: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
    for tables in given_tables:
        for unit, table in tables.items():
            if table.num_rows:
                expected.setdefault(unit, []).extend(rows_of(table))
    assert found.units == expected


def batch(port: int, tag: Tag) -> Batch:
    return Batch(table_of(port, tag.sequence, 1).to_batches()[0], tag)


def test_a_port_that_holds_a_batch_accepts_no_other() -> None:
    running = Union(2).build(context(), [SCHEMA, SCHEMA], None)
    output = Collected(SCHEMA)
    exhaust(running.process(0, batch(0, Tag(0, 2, 0)), output))
    assert (running.accepts(0), running.accepts(1)) == (False, True)
    exhaust(running.process(1, batch(1, Tag(0, 1, 0)), output))
    assert [each.tag for each in output.batches] == [Tag(0, 1, 0)]
    assert (running.accepts(0), running.accepts(1)) == (False, True)
    exhaust(running.end_port(1, output))
    assert [each.tag for each in output.batches] == [Tag(0, 1, 0), Tag(0, 2, 0)]


def test_what_comes_behind_the_end_of_a_round_waits_for_the_barrier() -> None:
    """Operators before the union drain: their rows come behind the end of the round, in whatever order."""
    found = []
    for order in ((0, 1), (1, 0)):
        running = Union(2).build(context(), [SCHEMA, SCHEMA], None)
        output = Collected(SCHEMA)
        for port in (0, 1):
            exhaust(running.end_round(port, 0, output))
        for port in order:
            assert running.accepts(port)
            exhaust(running.process(port, batch(port, Tag(0, 0, 0)), output))
            exhaust(running.process(port, batch(port, Tag(0, 1, 0)), output))
        assert output.batches == []
        exhaust(running.drain(output))
        found.append([(each.tag, rows_of(each.records)) for each in output.batches])
    assert found[0] == found[1]
    assert [(tag.lane, rows[0][0]) for tag, rows in found[0]] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_snapshot_within_a_round_keeps_what_a_port_holds() -> None:
    running = Union(2).build(context(), [SCHEMA, SCHEMA], None)
    output = Collected(SCHEMA)
    exhaust(running.process(1, batch(1, Tag(3, 2, 0)), output))
    state = running.snapshot()
    again = Union(2).build(context(), [SCHEMA, SCHEMA], state)
    exhaust(again.process(0, batch(0, Tag(3, 1, 0)), output))
    for port in (0, 1):
        exhaust(again.end_round(port, FINAL_ROUND, output))
    assert [(each.tag.lane, rows_of(each.records)[0][0]) for each in output.batches] == [(1, 0), (2, 1)]
    assert again.snapshot() is None


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (pa.schema([("n", pa.int64()), ("port", pa.int64())]), r"stream 2 has columns \(n: int64, port: int64\)"),
        (pa.schema([("port", pa.int64()), ("n", pa.int32())]), "n: int32"),
    ],
)
def test_union_refuses_streams_of_other_columns(other: pa.Schema, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        Union(2).output_schema([SCHEMA, other])


def test_union_needs_two_streams() -> None:
    with pytest.raises(FlowError, match="two streams or more"):
        Union(1).output_schema([SCHEMA])


def test_rows_of_a_stream_that_has_ended_come_out_in_the_last_round_of_those_that_go_on() -> None:
    """One side has ended, with rows in the final round; the other one has a barrier and goes on behind it."""
    running = Union(2).build(context(), [SCHEMA, SCHEMA], None)
    output = Collected(SCHEMA)
    exhaust(running.process(0, batch(0, Tag(FINAL_ROUND, 0, 0)), output))
    exhaust(running.end_port(0, output))
    exhaust(running.process(1, batch(1, Tag(4, 0, 0)), output))
    exhaust(running.end_round(1, 4, output))
    exhaust(running.drain(output))
    exhaust(running.process(1, batch(1, Tag(5, 0, 0)), output))
    exhaust(running.end_round(1, 5, output))
    assert [(each.tag.round, rows_of(each.records)[0][0]) for each in output.batches] == [(4, 1), (4, 0), (5, 1)]


def test_union_cannot_hold_at_a_barrier() -> None:
    flow = Flow("both")
    one, other = (flow.from_tables([table_of(0, 0, 1)]) for _ in range(2))
    with pytest.raises(FlowError, match="union: it has nothing of its own to hold"):
        flow.apply(Union(2), [one, other], at_barrier="hold")

"""Distinct and mark distinct say what they hold: rows that wait, and keys that are remembered."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.operator import exhaust
from penstock.engine.operators import Distinct, MarkDistinct
from penstock.engine.state.memory import TaskMemory
from support.operator_harness import Collected, context

CONFIGS = [Distinct(("k",)), Distinct(("k",), per_lane=True), MarkDistinct(("k",), "new", (("m", "first true"),))]


@pytest.mark.parametrize("config", CONFIGS, ids=["distinct", "distinct per lane", "mark distinct"])
def test_keys_and_rows_are_counted_until_they_are_forgotten(config: Distinct | MarkDistinct) -> None:
    keys = [f"a rather long key, number {number}" for number in range(500)]
    records = pa.record_batch({"k": keys, "m": [True] * 500})
    memory = TaskMemory(2**20)
    running = config.build(replace(context(), memory=memory.account("distinct-1")), [records.schema], None)
    out = Collected(config.output_schema([records.schema]))
    held = [memory.statistics().held]
    for round in range(2):
        exhaust(running.process(0, Batch(records, Tag(round, 0, 0)), out))
        held.append(memory.statistics().held)
        exhaust(running.end_round(0, round, out))
        held.append(memory.statistics().held)
    nothing, rows, seen, rows_again, seen_again = held
    assert nothing == 0
    assert rows >= records.nbytes
    assert seen >= records.column("k").nbytes
    assert rows_again >= seen + records.nbytes
    assert seen <= seen_again < 2 * seen  # what finds the keys may have been made since
    exhaust(running.drain(out))
    assert memory.statistics().held == 0
    exhaust(running.process(0, Batch(records, Tag(2, 0, 0)), out))
    running.close()
    assert memory.statistics().held == 0
    memory.release()

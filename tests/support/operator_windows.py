"""Runs one operator through task barriers: a window of rows, the end of its round, ``drain``, the next window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.operator import Memory, OperatorConfig, Unlimited, exhaust
from support.operator_harness import Collected, context, rows_of


def windows_of(
    config: OperatorConfig, windows: Sequence[pa.Table], size: int = 16, memory: Memory | None = None
) -> list[list[tuple[Any, ...]]]:
    """The rows that come out of each window, then those that come at the end. A window is one round of lane 0."""
    source = windows[0].schema
    schema = config.output_schema([source])
    running = config.build(replace(context(), memory=memory or Unlimited()), [source], None)
    found = []
    for round, window in enumerate(windows):
        output = Collected(schema)
        for number, records in enumerate(window.combine_chunks().to_batches(max_chunksize=size)):
            if records.num_rows:
                exhaust(running.process(0, Batch(records, Tag(round, 0, number)), output))
        exhaust(running.end_round(0, round, output))
        exhaust(running.drain(output))
        assert {batch.tag.round for batch in output.batches} <= {round}
        found.append([row for batch in output.batches for row in rows_of(batch.records)])
    output = Collected(schema)
    exhaust(running.end_round(0, FINAL_ROUND, output))
    exhaust(running.end_port(0, output))
    exhaust(running.finish(output))
    again = config.build(context(), [source], running.snapshot())
    running.close()
    silent = Collected(schema)
    exhaust(again.end_port(0, silent))
    exhaust(again.finish(silent))
    again.close()
    assert not silent.batches, "it gives rows again that it gave before the checkpoint"
    return [*found, [row for batch in output.batches for row in rows_of(batch.records)]]

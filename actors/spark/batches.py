"""How many rows Spark hands to a Python worker at a time.

Rules:

1. Spark makes one Arrow batch of so many rows, whatever they weigh, in memory beside the heap of the executor; without
   a bound, of a whole partition. An executor of 1 GB dies of one of 600 MB.
2. So the number is set while a frame is planned for a hand-off: by the width of a row where the types tell it, small
   where they do not. Where the user has set a smaller one, it stays.
3. Functions of the frame's own get as many at a time as the session says: their part of the plan is made before
   (:func:`planned_before`). Spark Connect and Spark 4 do not offer that; there the number holds for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from ...engine.plan.rounds import CHUNK_ROWS
from .sessions import is_classic
from .writing import BATCH_BYTES

UNKNOWN_WIDTH_ROWS = 128
"""Rows at a time where a row may be of any width: of a megabyte each, 128 MB."""

SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"


@contextmanager
def bounded_batches(frame: Any, schema: pa.Schema) -> Iterator[None]:
    """What is planned of the frame while the block lasts hands over so many rows at a time."""
    conf = frame.sparkSession.conf
    before = conf.get(SETTING)
    conf.set(SETTING, str(rows_at_a_time(schema, int(before))))
    try:
        yield
    finally:
        conf.set(SETTING, before)


def can_be_planned_before(frame: Any) -> bool:
    """Whether Spark lets us plan a frame, and so know what it is computed from, before more is put on it."""
    return is_classic(frame) and str(frame.sparkSession.version).startswith("3.")


def planned_before(frame: Any) -> Any:
    """A frame of the same rows, whose plan so far is made with the session's settings."""
    if not can_be_planned_before(frame):
        return frame
    held = frame._jdf
    made = held.sparkSession().internalCreateDataFrame(held.queryExecution().toRdd(), held.schema(), False)
    return type(frame)(made, frame.sparkSession)


def rows_at_a_time(schema: pa.Schema, asked: int) -> int:
    """``asked``: what the session says; 0: no bound."""
    try:
        width = max(1, sum(int(column.type.bit_width) for column in schema) // 8)
        rows = max(1, min(CHUNK_ROWS, BATCH_BYTES // width))
    except ValueError:
        rows = UNKNOWN_WIDTH_ROWS
    return min(rows, asked) if asked > 0 else rows

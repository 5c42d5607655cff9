"""A source that has far more to give than may be in flight, made when it is read; and consumers that stall."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.engine.plan.rounds import CHUNK_ROWS

WIDTH = 64
SCHEMA = pa.schema({"n": pa.int64(), "filler": pa.binary(WIDTH)})
BATCH_BYTES = CHUNK_ROWS * (8 + WIDTH)


@dataclass(frozen=True)
class WideSplit:
    """``batches`` chunks of ``BATCH_BYTES`` bytes."""

    number: int
    batches: int

    @property
    def id(self) -> str:
        return f"wide/{self.number}"

    @property
    def rows(self) -> int | None:
        return self.batches * CHUNK_ROWS

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        for batch in range(start // CHUNK_ROWS, self.batches):
            first = (self.number * self.batches + batch) * CHUNK_ROWS
            numbers = pa.array(range(first, first + CHUNK_ROWS), pa.int64())
            filler = pa.allocate_buffer(CHUNK_ROWS * WIDTH, resizable=False)
            values = pa.Array.from_buffers(pa.binary(WIDTH), CHUNK_ROWS, [None, filler])
            yield pa.RecordBatch.from_arrays([numbers, values], schema=SCHEMA)


@dataclass(frozen=True)
class WideSource:
    """``count`` splits of ``batches`` chunks each."""

    count: int
    batches: int
    kind: str = "wide"
    schema: pa.Schema = SCHEMA

    def splits(self) -> Sequence[WideSplit]:
        return [WideSplit(number, self.batches) for number in range(self.count)]

    def describe(self) -> str:
        return f"{self.count} splits of {self.batches} batches"

    @property
    def rows(self) -> int:
        return self.count * self.batches * CHUNK_ROWS


def until_file(path: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A user's function that is stuck, in whatever process, until the file is there; it gives the numbers on."""

    def stuck(batch: pa.RecordBatch) -> pa.RecordBatch:
        while not os.path.exists(path):
            time.sleep(0.02)
        return batch.select(["n"])

    return stuck

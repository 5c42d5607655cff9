"""A source of numbers, one split of which cannot be read: it ends the process, or raises an error that lasts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from penstock.engine.core.errors import DataError

Poison = Literal["kill", "raise"]
SPLITS, ROWS, BAD = 12, 100, 5
SCHEMA = pa.schema({"n": pa.int64()})


@dataclass(frozen=True)
class PoisonedSplit:
    number: int
    poison: Poison

    @property
    def id(self) -> str:
        return f"part-{self.number}"

    @property
    def rows(self) -> int:
        return ROWS

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        if self.number == BAD and self.poison == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.number == BAD:
            raise DataError("these bytes are no rows", "write the part again")
        first = self.number * ROWS
        yield pa.record_batch({"n": pa.array(range(first + start, first + ROWS))}, SCHEMA)


@dataclass(frozen=True)
class PoisonedSource:
    poison: Poison
    kind = "poisoned"
    schema = SCHEMA

    def splits(self) -> list[PoisonedSplit]:
        return [PoisonedSplit(number, self.poison) for number in range(SPLITS)]

    def describe(self) -> str:
        return f"{SPLITS} parts"


def rows_without_poison() -> list[int]:
    return [row for row in range(SPLITS * ROWS) if row // ROWS != BAD]

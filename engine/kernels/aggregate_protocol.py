"""What an aggregate function promises.

A function keeps its *state* in Arrow columns, one row per group. A row of input is lifted to a state of its own; states
that follow each other are merged; a state at the end becomes a value. Continuing a group is therefore the same as
merging the state kept so far with the rows that follow, and merging what several subtasks found is the same again.

Rules:

1. ``merge`` works strictly from the first row of a segment to its last. So a result does not depend on where a group
   was cut into batches, floating-point sums included (they are not summed pairwise).
2. Dictionary columns arrive decoded. ``blank`` is the state of no row at all: merging it changes nothing.
3. ``ordered`` says whether the value depends on the order of the rows. If it does, partial results of several subtasks
   must not be merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa

from ..core.errors import FlowError
from .pieces import Positions

State: TypeAlias = tuple[pa.Array, ...]


@dataclass(frozen=True)
class Segments:
    """Consecutive rows cut into non-empty segments: ``starts`` are their first rows, ``rows`` the number of all."""

    starts: Positions
    rows: int

    @cached_property
    def ends(self) -> Positions:
        """The row after the last one of each segment."""
        return np.append(self.starts[1:], self.rows)

    @cached_property
    def ids(self) -> Positions:
        """For each row the number of its segment."""
        return np.repeat(np.arange(len(self.starts)), self.ends - self.starts)


@runtime_checkable
class AggregateFunction(Protocol):
    """An aggregate function; immutable and picklable. ``column``: the type of its argument, None for rows as such."""

    @property
    def name(self) -> str:
        """The function's name in flows and errors."""

    @property
    def ordered(self) -> bool:
        """Whether the value depends on the order of the rows."""

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        """The types of the state's columns. Raises FlowError if the function does not take this type."""

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """The type of the value."""

    def lift(self, values: pa.Array | None, rows: int) -> State:
        """Each of ``rows`` rows as a state."""

    def blank(self, column: pa.DataType | None, rows: int) -> State:
        """The state of a group without any row, ``rows`` times."""

    def merge(self, state: State, segments: Segments) -> State:
        """One state per segment."""

    def final(self, state: State, column: pa.DataType | None) -> pa.Array:
        """The values. Raises OverflowError if one does not fit its type."""


def unfit(name: str, column: pa.DataType | None, takes: str) -> FlowError:
    """The error of a function that does not take this type."""
    given = "no column" if column is None else f"a column of type {column}"
    return FlowError(f"{name} cannot be computed of {given}", f"{name} takes {takes}")

"""Conditions of a lookup join besides its keys: what an index column is compared with.

Rules:

1. What stands beside the index column is the name of a column of the stream, or a constant that is no text (a text
   constant goes into the join's filter). A stream row with a null in such a column is not looked up.
2. A null in the index column matches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...core.arguments import checked
from ...expressions.list_functions import list_contains


@checked()
@dataclass(frozen=True, slots=True)
class Between:
    """``low`` ≤ index ``column`` ≤ ``high``, inclusive at both ends."""

    column: str
    low: Any
    high: Any

    @property
    def probe_columns(self) -> list[str]:
        """The stream's columns that it compares with."""
        return [bound for bound in (self.low, self.high) if isinstance(bound, str)]

    def expression(self, column: str, schema: pa.Schema) -> pc.Expression:
        """The condition on a joined row of ``schema``, in which the index column is called ``column``."""
        low, high = (
            pc.field(bound) if isinstance(bound, str) else pc.scalar(pa.scalar(bound))
            for bound in (self.low, self.high)
        )
        return (pc.field(column) >= low) & (pc.field(column) <= high)

    def describe(self) -> str:
        """The condition as SQL has it."""
        return f"{self.column} between {self.low} and {self.high}"


@checked()
@dataclass(frozen=True, slots=True)
class InList:
    """Index ``column`` is an element of ``values``: a list column of the stream, or constants."""

    column: str
    values: str | tuple[Any, ...]

    @property
    def probe_columns(self) -> list[str]:
        """The stream's columns that it compares with."""
        return [self.values] if isinstance(self.values, str) else []

    def expression(self, column: str, schema: pa.Schema) -> pc.Expression:
        """The condition on a joined row of ``schema``, in which the index column is called ``column``."""
        type = schema.field(column).type
        if isinstance(self.values, str):
            return list_contains(pc.field(self.values), schema.field(self.values).type, pc.field(column), type)
        known = [value for value in self.values if value is not None]
        return pc.if_else(pc.is_valid(pc.field(column)), pc.field(column).isin(pa.array(known, type)), False)

    def describe(self) -> str:
        """The condition as SQL has it."""
        values = self.values if isinstance(self.values, str) else ", ".join(map(repr, self.values))
        return f"{self.column} in ({values})"

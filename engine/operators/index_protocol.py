"""What an index promises to a lookup join.

Rules:

1. An :class:`Index` is immutable and picklable, and knows its schema. :class:`OpenIndex` answers, for one running
   operator, from one thread.
2. A lookup gets key columns without nulls, and tells for each row which rows of ``records`` match, in an order that
   depends on the index alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from .matching import Matches


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a lookup: ``matches`` are rows of ``records``, which has the index's schema."""

    matches: Matches
    records: pa.RecordBatch


class OpenIndex(Protocol):
    """An index that answers."""

    def lookup(self, keys: Sequence[pa.Array]) -> Found:
        """The matches of each row of ``keys``, which hold no null and have the types of the index's key columns (or
        are dictionaries of them)."""

    def close(self) -> None:
        """Release what the index holds for this operator."""


@runtime_checkable
class Index(Protocol):
    """What a lookup join needs to know of an index; see the module's rules."""

    @property
    def schema(self) -> pa.Schema:
        """All columns, the key included."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that lookups give values for."""

    def open(self) -> OpenIndex:
        """The index for one running operator."""

    def describe(self) -> str:
        """One phrase for ``explain`` and the flow's fingerprint."""

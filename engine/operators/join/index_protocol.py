"""What an index promises to a lookup join, so that anything that answers by key can be one.

Rules:

1. An :class:`Index` is immutable and picklable, and knows its schema. :class:`OpenIndex` answers for one running
   operator. It is closed exactly once, and never while a lookup is under way.
2. A lookup gets at least one row, no null, and the values' types (never dictionaries). It tells for each row which rows
   of ``records`` match, in an order that depends on the index alone.
3. An index that ``blocks`` (it reads files, or asks a server) is asked from other threads, by several at once, for
   each distinct key of a batch once. Any other is asked in place, for all rows of the batch, from one thread at a time.
4. What a lookup raises ends the task: an OSError (connection, time-out, disk) counts as the outside world's, so that
   the job restarts from its checkpoint; a PenstockError as what it says; anything else as a mistake in the index.
5. Content should not change while a job runs: rows that are looked up again after a failure get what is there then.
   ``fingerprint`` lets a restore find out, as far as it is cheap to know.

An index of one's own, over a service that takes a list of ids::

    @dataclass(frozen=True)
    class Customers:
        address: str
        key: tuple[str, ...] = ("customer",)
        schema: pa.Schema = pa.schema([("customer", pa.int64()), ("name", pa.string())])
        blocks: bool = True

        def open(self) -> OpenCustomers:
            return OpenCustomers(connect(self.address))

        def fingerprint(self) -> str:
            return ""

        def describe(self) -> str:
            return "customers"


    class OpenCustomers:
        def lookup(self, keys: pa.RecordBatch) -> Found:
            rows = self._service.fetch(keys.column(0).to_pylist())
            return Found.by_key(keys, pa.RecordBatch.from_pylist(rows, Customers.schema), ["customer"])

        def close(self) -> None:
            self._service.close()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import pyarrow as pa

from .matching import Matches
from .sorted_lookup import SortedLookup


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a lookup: ``matches`` are rows of ``records``, which has the index's schema."""

    matches: Matches
    records: pa.RecordBatch

    @classmethod
    def by_key(cls, keys: pa.RecordBatch, records: pa.RecordBatch, names: Sequence[str]) -> Self:
        """The answer for ``keys`` if ``records`` holds every row that matches one of them, in any order (it is kept),
        and perhaps others. ``names`` are the key columns in ``records``."""
        lookup = SortedLookup([records.column(name) for name in names])
        return cls(lookup.matches(keys.columns), records)


class OpenIndex(Protocol):
    """An index that answers."""

    def lookup(self, keys: pa.RecordBatch) -> Found:
        """The matches of each row of ``keys``, whose columns are the index's key columns."""

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

    @property
    def blocks(self) -> bool:
        """Whether a lookup may have to wait for something."""

    def open(self) -> OpenIndex:
        """The index for one running operator."""

    def fingerprint(self) -> str:
        """A hash of the content, or "" if that cannot be known cheaply or changes while the index is used."""

    def describe(self) -> str:
        """One phrase for ``explain`` and the flow's fingerprint: what it is, not where it lies."""

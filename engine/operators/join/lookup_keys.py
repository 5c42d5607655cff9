"""The keys of one batch as an index is asked for them: no nulls, plain values, and where wanted each key once.

Rules:

1. Rows with a null in one of the ``needed`` columns are not asked for, and so match nothing.
2. Keys are equal as ``keys.comparable`` has it: NaN equals NaN, −0.0 equals 0.0. Distinct keys come in the order of
   their first row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...kernels.keys import Comparable, comparable, decoded, valid_rows
from ...kernels.pieces import Positions
from .index_protocol import Found
from .matching import Matches


@dataclass(frozen=True, slots=True)
class Asked:
    """What an index is asked for: the keys of ``valid`` rows (None: of all) of a batch with ``rows`` rows."""

    keys: pa.RecordBatch
    valid: Positions | None
    rows: int

    @classmethod
    def of(cls, records: pa.RecordBatch, on: Sequence[str], needed: Sequence[str], schema: pa.Schema) -> Asked:
        """The keys of ``records`` in its columns ``on``, as ``schema`` has them."""
        valid = valid_rows([records.column(name) for name in needed])
        columns = [decoded(records.column(name)) for name in on]
        if valid is not None:
            columns = [column.take(pa.array(valid)) for column in columns]
        return cls(pa.RecordBatch.from_arrays(columns, schema=schema), valid, records.num_rows)

    def once(self) -> tuple[pa.RecordBatch, Positions]:
        """The distinct keys, and for each asked row the number of its key."""
        rows, numbers = distinct(self.keys.columns)
        return self.keys if len(rows) == len(numbers) else self.keys.take(pa.array(rows)), numbers

    def answered(self, found: Found, numbers: Positions | None = None) -> Matches:
        """The matches of all rows of the batch. ``numbers``: which row of the lookup each asked row was."""
        matches = found.matches
        if numbers is not None:
            matches = Matches(matches.first[numbers], matches.counts[numbers], matches.rows, matches.once)
        return matches if self.valid is None else matches.spread(self.valid, self.rows)


def distinct(columns: Sequence[pa.Array]) -> tuple[Positions, Positions]:
    """A row of each distinct key, and for each row the number of its key. The columns hold no null."""
    numbers, count = _numbered(comparable(columns[0]))
    for column in columns[1:]:
        others, other_count = _numbered(comparable(column))
        numbers, count = _numbered(numbers * other_count + others)
    rows = np.empty(count, dtype=np.int64)
    rows[numbers] = np.arange(len(numbers))
    return rows, numbers


def _numbered(values: Comparable) -> tuple[Positions, int]:
    column = pa.array(values) if isinstance(values, np.ndarray) else values
    encoded = column.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)

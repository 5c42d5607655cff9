"""The output of a lookup join: the rows of one batch with their matches, in pieces.

Rules:

1. Rows come in the order of the batch, the matches of a row in the order of the index.
2. A row without match has no place in the output of an inner join, so its pieces are full unless a condition takes
   pairs out again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ...kernels.pieces import Flags
from .join_shape import JoinShape, Taken
from .matching import Matches, PairFilter, all_pairs, slots


class LookupOutput:
    """Makes output batches; ``rows`` is the most that one may have, or None for one batch in all."""

    def __init__(
        self, shape: JoinShape, schema: pa.Schema, condition: PairFilter | None, how: str, rows: int | None
    ) -> None:
        self._shape = shape
        self._schema = schema
        self._marked = len(schema) > len(shape.schema)
        self._condition = condition
        self._keep_left = how == "left"
        self._rows = rows

    def batches(self, left: pa.RecordBatch, right: pa.RecordBatch, matches: Matches) -> Iterator[pa.RecordBatch]:
        """The joined rows."""
        rows = self._rows if self._rows is not None else max(int(np.maximum(matches.counts, 1).sum()), 1)
        if self._condition is None:
            parts = all_pairs(matches, keep_left=self._keep_left, limit=rows)
        else:
            parts = self._judged(left, right, matches, rows)
        for taken in parts:
            if taken.rows:
                yield self._marked_batch(self._shape.batch(left, right, taken), taken.right_missing)

    def _judged(self, left: pa.RecordBatch, right: pa.RecordBatch, matches: Matches, limit: int) -> Iterator[Taken]:
        """Rows and matches, where the condition decides which pairs count."""
        for piece in slots(left, right, matches, self._condition, limit):
            keep = piece.hits | piece.misses if self._keep_left else piece.hits
            missing = ~piece.hits[keep]
            yield Taken(piece.rows[keep], piece.where[keep], None, missing if missing.any() else None)

    def _marked_batch(self, made: pa.RecordBatch, missing: Flags | None) -> pa.RecordBatch:
        if not self._marked:
            return made
        marks = np.ones(made.num_rows, dtype=bool) if missing is None else ~missing
        return pa.RecordBatch.from_arrays([*made.columns, pa.array(marks)], schema=self._schema)

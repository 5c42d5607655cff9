"""The output of a lookup join: the rows of one batch with their matches, in pieces.

Rules:

1. Rows come in the order of the batch, the matches of a row in the order of the index.
2. A row without match has no place in the output of an inner join, so its pieces are full unless a condition takes
   pairs out again: where it leaves nothing, an empty piece stands for the work done.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ...core.schemas import no_rows
from ...kernels.pieces import Bound, Flags
from .join_shape import JoinShape, Taken
from .matching import Matches, PairFilter, all_pairs, slots


class LookupOutput:
    """Makes output batches; ``bound`` is what one may have, or None for one batch in all."""

    def __init__(
        self, shape: JoinShape, schema: pa.Schema, condition: PairFilter | None, how: str, bound: Bound | None
    ) -> None:
        self._shape = shape
        self._schema = schema
        self._nothing = no_rows(schema)
        self._marked = len(schema) > len(shape.schema)
        self._condition = condition
        self._keep_left = how == "left"
        self._bound = bound

    def batches(self, left: pa.RecordBatch, right: pa.RecordBatch, matches: Matches) -> Iterator[pa.RecordBatch]:
        """The joined rows."""
        bound = self._bound
        rows = max(int(np.maximum(matches.counts, 1).sum()), 1) if bound is None else bound.rows
        if self._condition is None:
            parts = all_pairs(matches, keep_left=self._keep_left, limit=rows)
        else:
            parts = self._judged(left, right, matches, rows)
        for taken in parts:
            if not taken.rows:
                yield self._nothing
                continue
            done = 0
            for made in self._shape.batches(left, right, taken, bound):
                missing = None if taken.right_missing is None else taken.right_missing[done : done + made.num_rows]
                yield self._marked_batch(made, missing)
                done += made.num_rows

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

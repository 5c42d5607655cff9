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

from .join_shape import JoinShape, Taken
from .matching import Matches, PairFilter, slots
from .pieces import Flags, Positions, pieces


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
        parts = self._pairs(matches, rows) if self._condition is None else self._judged(left, right, matches, rows)
        for taken in parts:
            if taken.rows:
                yield self._marked_batch(self._shape.batch(left, right, taken), taken.right_missing)

    def _pairs(self, matches: Matches, limit: int) -> Iterator[Taken]:
        """Rows and matches, where every pair counts."""
        counts = matches.counts
        if counts.max(initial=0) <= 1:
            yield from self._single(matches, limit)
            return
        places = np.maximum(counts, 1) if self._keep_left else counts
        for piece in pieces(places, limit):
            missing = counts[piece.rows] == 0
            where = np.where(missing, 0, matches.first[piece.rows] + piece.positions)
            yield _taken(matches, piece.rows, where, missing)

    def _single(self, matches: Matches, limit: int) -> Iterator[Taken]:
        """As ``_pairs``, for rows with at most one match each."""
        missing = matches.counts == 0
        some_missing = bool(missing.any())
        rows = np.arange(len(missing))
        if some_missing and not self._keep_left:
            rows, some_missing = np.flatnonzero(~missing), False
        for low in range(0, len(rows), limit):
            part = rows[low : low + limit]
            gaps = missing[part] if some_missing else None
            first = matches.first[part]
            yield _taken(matches, part, first if gaps is None else np.where(gaps, 0, first), gaps)

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


def _taken(matches: Matches, rows: Positions, where: Positions, missing: Flags | None) -> Taken:
    if matches.rows is not None and len(matches.rows):
        where = matches.rows[where]
    return Taken(rows, where, None, missing if missing is not None and missing.any() else None)

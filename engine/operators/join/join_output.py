"""What a step of a join gives: the rows of its join type, in an order that no step and no batch can change.

Rules:

1. Pairs come in the order of the left side, the matches of a row in the order of the right side. A left row that
   matches nothing comes in its place, a right row in its place, if the step gives it one.
2. Semi and anti joins without filter never look at pairs: a huge product costs them nothing.
3. Pieces are made one at a time, as they are asked for: neither a product nor a side is ever copied as a whole. Where a
   filter leaves nothing of a piece, or nothing was to be shown yet, an empty one stands for the work done.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from weakref import ref

import numpy as np
import pyarrow as pa

from ...core.schemas import no_rows
from ...kernels.pieces import PIECE_ROWS, Bound, Flags, Positions, indices, picked, pieces
from ...kernels.row_bits import row_bits
from .join_shape import LEFT_STAYS, ONE_SIDED, RIGHT_STAYS, JoinShape, Taken
from .matching import JoinStep, OutputPlaces, PairFilter, all_pairs, slots


class JoinOutput:
    """Makes the output of steps, and notes which right rows have matched."""

    def __init__(self, how: str, shape: JoinShape, condition: PairFilter | None, bound: Bound) -> None:
        self._how = how
        self._shape = shape
        self._condition = condition
        self._bound = bound
        self._widest = (_WidestRow(), _WidestRow())
        self._nothing = no_rows(shape.schema)

    def rows(self, step: JoinStep) -> Iterator[pa.RecordBatch]:
        """The output of a step, in pieces."""
        if self._how == "right semi":
            yield from self._right_semi(step)
        elif self._how in ONE_SIDED:
            yield from self._left_rows(step)
        else:
            of_pairs = self._how == "inner" or (self._condition is None and self._how not in RIGHT_STAYS)
            widest = self._widest[0].of(step.left) + self._widest[1].of(step.right)
            for taken in self._all_pairs(step) if of_pairs else self._pairs(step):
                if not taken.rows:
                    yield self._nothing
                    continue
                yield from self._shape.batches(step.left, step.right, taken, self._bound, widest)

    def _all_pairs(self, step: JoinStep) -> Iterator[Taken]:
        found = all_pairs(step.matches, keep_left=self._how in LEFT_STAYS, limit=self._bound.rows)
        return found if self._condition is None else map(partial(self._condition.of, step.left, step.right), found)

    def _slots(self, step: JoinStep) -> Iterator[OutputPlaces]:
        return slots(step.left, step.right, step.matches, self._condition, self._bound.rows)

    def _pairs(self, step: JoinStep) -> Iterator[Taken]:
        """Left, right, full; with a filter, or with the right rows that match nothing."""
        shown = 0  # right rows below have had their place
        for piece in self._slots(step):
            keep = piece.hits | piece.misses if self._how in LEFT_STAYS else piece.hits
            missing = ~piece.hits[keep]
            taken = Taken(piece.rows[keep], piece.where[keep], None, missing if missing.any() else None)
            if self._how in RIGHT_STAYS:
                step.matched[piece.where[piece.hits]] = True
                end = int(np.searchsorted(step.places, piece.decided, side="right"))
                yield from self._with_right(taken, step, shown, end)
                shown = end
            else:
                yield taken
        if self._how in RIGHT_STAYS:
            yield from self._with_right(_nothing(), step, shown, len(step.places))

    def _with_right(self, taken: Taken, step: JoinStep, shown: int, end: int) -> Iterator[Taken]:
        """``taken``, and among them those of the right rows from ``shown`` to ``end`` that have matched nothing."""
        while end - shown > self._bound.rows:
            upto = shown + self._bound.rows
            before = int(np.searchsorted(taken.left, step.places[upto - 1]))
            yield _with_lone(taken.part(slice(0, before)), step, _lone(step, shown, upto))
            taken, shown = taken.part(slice(before, taken.rows)), upto
        yield _with_lone(taken, step, _lone(step, shown, end))

    def _left_rows(self, step: JoinStep) -> Iterator[pa.RecordBatch]:
        """Left semi and anti."""
        matched = step.matches.counts > 0
        if self._condition is not None:
            matched = np.zeros(step.left.num_rows, dtype=bool)
            for taken in self._all_pairs(step):
                matched[taken.left] = True
                yield step.left.slice(0, 0)
        yield from self._chosen(step.left, matched == (self._how == "left semi"))

    def _right_semi(self, step: JoinStep) -> Iterator[pa.RecordBatch]:
        nothing = step.right.slice(0, 0)
        if self._condition is None:
            for inside in _in_any_range(step, self._bound.rows):
                step.matched[inside] = True
                yield nothing
        else:
            for taken in self._all_pairs(step):
                step.matched[taken.right] = True
                yield nothing
        leaving = len(step.places)
        yield from self._chosen(step.right.slice(0, leaving), step.matched[:leaving])

    def _chosen(self, records: pa.RecordBatch, flags: Flags) -> Iterator[pa.RecordBatch]:
        rows = np.flatnonzero(flags)
        for low in range(0, len(rows), self._bound.rows):
            yield from self._picked(records, rows[low : low + self._bound.rows])

    def _picked(self, records: pa.RecordBatch, rows: Positions) -> Iterator[pa.RecordBatch]:
        """Ascending rows, each once."""
        if not len(rows):
            yield records.slice(0, 0)
        for part in self._bound.parts(len(rows), row_bits(records.columns, rows)):
            mine = rows[part]
            gapless = mine[-1] - mine[0] + 1 == len(mine)
            yield records.slice(int(mine[0]), len(mine)) if gapless else picked(records, indices(mine))


class _WidestRow:
    """The bits of a side's widest row, found once for a side that stays: where even such rows fit, none is measured.
    It keeps no side alive."""

    def __init__(self) -> None:
        self._measured: ref[pa.RecordBatch] | None = None
        self._bits = 0

    def of(self, records: pa.RecordBatch) -> int:
        """Of these rows, or more; of rows on disk more than fits anywhere."""
        if not isinstance(records, pa.RecordBatch):
            return _UNKNOWN
        if self._measured is not None and self._measured() is records:
            return self._bits
        every = row_bits(records.columns, _NO_ROWS)
        if isinstance(every, int | np.integer):
            self._measured, self._bits = ref(records), int(every)
        elif records.num_rows <= _FEW_ROWS:
            return int(records.nbytes + 8 * records.num_columns) * 16  # with bits of validity, which may not be there
        else:
            self._measured, self._bits = ref(records), 0
            for start in range(0, records.num_rows, PIECE_ROWS):
                part = records.slice(start, PIECE_ROWS)
                self._bits = max(self._bits, int(np.max(row_bits(part.columns, np.arange(part.num_rows)))))
        return self._bits


_UNKNOWN = 2**62

_NO_ROWS: Positions = np.zeros(0, dtype=np.int64)

_FEW_ROWS = 1024
"""No row of so few takes more than all of them, and so much fits in most cases."""


def _lone(step: JoinStep, start: int, end: int) -> Positions:
    """The right rows from ``start`` to ``end`` that have matched nothing."""
    return start + np.flatnonzero(~step.matched[start:end])


def _nothing() -> Taken:
    none: Positions = np.zeros(0, dtype=np.int64)
    return Taken(none, none)


def _with_lone(taken: Taken, step: JoinStep, lone: Positions) -> Taken:
    """``taken`` with right rows that have no left side, each before the left row at which it has its place."""
    if not len(lone):
        return taken
    at = np.searchsorted(taken.left, step.places[lone], side="left")
    right_missing = taken.right_missing if taken.right_missing is not None else np.zeros(taken.rows, dtype=bool)
    return Taken(
        np.insert(taken.left, at, 0),
        np.insert(taken.right, at, lone),
        np.insert(np.zeros(taken.rows, dtype=bool), at, True),
        np.insert(right_missing, at, False),
    )


def _in_any_range(step: JoinStep, limit: int) -> Iterator[Positions]:
    """The right rows that lie in the range of matches of some left row, in pieces."""
    matches = step.matches
    matching = np.flatnonzero(matches.counts)
    if not len(matching):
        return
    matching = matching[np.argsort(matches.first[matching])]
    low = matches.first[matching]
    high = np.maximum.accumulate(low + matches.counts[matching])
    apart = np.append(True, low[1:] > high[:-1])  # no range before reaches here
    last = np.append(np.flatnonzero(apart)[1:], len(low)) - 1
    for piece in pieces(high[last] - low[apart], limit):
        inside = low[apart][piece.rows] + piece.positions
        yield inside if matches.rows is None else matches.rows[inside]

"""What a step of a join gives: the rows of its join type, in an order that no step and no batch can change.

Rules:

1. Pairs come in the order of the left side, the matches of a row in the order of the right side. A left row that
   matches nothing comes in its place, a right row in its place, if the step gives it one.
2. Semi and anti joins without filter never look at pairs: a huge product costs them nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ...kernels.pieces import Flags, Positions, cut, pieces
from .join_shape import LEFT_STAYS, ONE_SIDED, RIGHT_STAYS, JoinShape, Taken
from .matching import JoinStep, OutputPlaces, PairFilter, all_pairs, slots


class JoinOutput:
    """Makes the output of steps, and notes which right rows have matched."""

    def __init__(self, how: str, shape: JoinShape, condition: PairFilter | None, limit: int) -> None:
        self._how = how
        self._shape = shape
        self._condition = condition
        self._limit = limit

    def rows(self, step: JoinStep) -> Iterator[pa.RecordBatch]:
        """The output of a step, in pieces."""
        if self._how in ONE_SIDED:
            made = self._right_semi(step) if self._how == "right semi" else self._left_rows(step)
        elif self._condition is None and self._how not in RIGHT_STAYS:
            for taken in all_pairs(step.matches, keep_left=self._how in LEFT_STAYS, limit=self._limit):
                yield self._shape.batch(step.left, step.right, taken)
            return
        else:
            made = self._pairs(step)
        for records in made:
            yield from cut(records, self._limit)

    def _slots(self, step: JoinStep) -> Iterator[OutputPlaces]:
        return slots(step.left, step.right, step.matches, self._condition, self._limit)

    def _pairs(self, step: JoinStep) -> Iterator[pa.RecordBatch]:
        """Inner, left, right, full; with a filter, or with the right rows that match nothing."""
        shown = 0  # right rows below have had their place
        for piece in self._slots(step):
            keep = piece.hits | piece.misses if self._how in LEFT_STAYS else piece.hits
            missing = ~piece.hits[keep]
            taken = Taken(piece.rows[keep], piece.where[keep], None, missing if missing.any() else None)
            if self._how in RIGHT_STAYS:
                step.matched[piece.where[piece.hits]] = True
                end = int(np.searchsorted(step.places, piece.decided, side="right"))
                taken = _with_lone(taken, step, _lone(step, shown, end))
                shown = end
            if taken.rows:
                yield self._shape.batch(step.left, step.right, taken)
        if self._how in RIGHT_STAYS:
            rest = _with_lone(_nothing(), step, _lone(step, shown, len(step.places)))
            if rest.rows:
                yield self._shape.batch(step.left, step.right, rest)

    def _left_rows(self, step: JoinStep) -> Iterator[pa.RecordBatch]:
        """Left semi and anti."""
        wants_match = self._how == "left semi"
        if self._condition is None:
            yield _chosen(step.left, (step.matches.counts > 0) == wants_match)
            return
        for piece in self._slots(step):
            rows = piece.rows[piece.found if wants_match else piece.misses]
            yield step.left.take(pa.array(rows))

    def _right_semi(self, step: JoinStep) -> Iterator[pa.RecordBatch]:
        if self._condition is None:
            for inside in _in_any_range(step, self._limit):
                step.matched[inside] = True
        else:
            for piece in self._slots(step):
                step.matched[piece.where[piece.hits]] = True
        leaving = len(step.places)
        yield _chosen(step.right.slice(0, leaving), step.matched[:leaving])


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


def _chosen(records: pa.RecordBatch, flags: Flags) -> pa.RecordBatch:
    return records if flags.all() else records.filter(pa.array(flags))


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

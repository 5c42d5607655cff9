"""What the joins share: who matches whom, a condition on pairs, and which left rows are left without a match.

Rules:

1. Pairs are walked over in the order of the left side, the matches of a row in the order of the right side, in pieces
   of bounded size. Nothing is ever decided by a piece: a row whose pairs span pieces is judged behind its last one.
2. A condition is true, or the pair does not match; null counts as false.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...core.errors import FlowError
from ...expressions.evaluator import Evaluator, types_of
from ...expressions.expressions import as_expression
from ...expressions.kernel_calls import columns_of
from ...kernels.native import Kernels, kernels
from ...kernels.pieces import PIECE_ROWS, Flags, Piece, Positions, indices, picked, pieces
from .join_shape import LEFT, JoinShape, OutputColumn, Taken


class Numbers(Protocol):
    """Row numbers, picked by their positions: an array, or a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, wanted: Positions) -> Positions: ...


@dataclass(frozen=True, slots=True)
class Matches:
    """For each left row its matches: ``counts[n]`` rows, listed in ``rows`` from position ``first[n]`` on.

    ``rows`` are row numbers of the right side, or None where position and row number are the same. ``first`` means
    nothing where the count is 0. ``once``: no count is above 1, and ``first`` is negative where it is 0.
    """

    first: Positions
    counts: Positions
    rows: Numbers | None
    once: bool = False

    @classmethod
    def none(cls, rows: int) -> Matches:
        """No match for any of ``rows`` left rows."""
        nothing = np.zeros(rows, dtype=np.int64)
        return cls(nothing, nothing, None)

    def spread(self, looked_up: Positions, rows: int) -> Matches:
        """These matches of the rows ``looked_up`` as matches of all ``rows`` rows."""
        first, counts = np.full(rows, -1, dtype=np.int64), np.zeros(rows, dtype=np.int64)
        first[looked_up], counts[looked_up] = self.first, self.counts
        return Matches(first, counts, self.rows, self.once)


def all_pairs(matches: Matches, *, keep_left: bool, limit: int) -> Iterator[Taken]:
    """All pairs in pieces, where no condition decides. ``keep_left``: with the left rows that match nothing."""
    compiled = kernels()
    if compiled is not None and (matches.rows is None or isinstance(matches.rows, np.ndarray)):
        yield from _listed(compiled, matches, keep_left=keep_left, limit=limit)
        return
    counts = matches.counts
    is_single = int(counts.max(initial=0)) <= 1
    for piece in pieces(np.maximum(counts, 1) if keep_left else counts, limit):
        missing = counts[piece.rows] == 0 if keep_left else None
        where = matches.first[piece.rows] + piece.positions
        if missing is not None:
            where = np.where(missing, 0, where)
        if matches.rows is not None and len(matches.rows):
            where = matches.rows[where]
        yield Taken(piece.rows, where, None, missing if missing is not None and missing.any() else None, is_single)


def _listed(compiled: Kernels, matches: Matches, *, keep_left: bool, limit: int) -> Iterator[Taken]:
    """The same, compiled."""
    first = np.ascontiguousarray(matches.first)
    numbers = None if matches.rows is None else np.ascontiguousarray(matches.rows)
    if matches.once and not keep_left and len(first) <= limit:
        rows, where = compiled.list_found(first, numbers)
        if len(rows):
            yield Taken(rows, where, ascending=True)
        return
    counts = np.ascontiguousarray(matches.counts)
    at = np.zeros(3, dtype=np.int64)
    left_over = int(np.maximum(counts, 1).sum() if keep_left else counts.sum())
    while left_over:
        rows, where, missing = compiled.list_pairs(first, counts, numbers, min(limit, left_over), at, keep=keep_left)
        left_over -= len(rows)
        yield Taken(rows, where, None, missing if missing is not None and missing.any() else None, not at[2])


@dataclass(frozen=True, slots=True)
class JoinStep:
    """What a join does at once: left rows, right rows, and who matches whom.

    ``right`` may be rows on disk (``stored_rows``), unless some of them leave.
    The first ``len(places)`` right rows leave with this step: each has its place before the left row ``places[n]`` if
    it has matched nothing. ``matched``: which right rows have matched something, in this step or before; whoever makes
    the output of a step notes it there.
    """

    left: pa.RecordBatch
    right: pa.RecordBatch
    matches: Matches
    places: Positions
    matched: Flags


@dataclass(frozen=True, slots=True)
class OutputPlaces:
    """Some consecutive places for output: one for each pair, and one for each left row without any pair.

    ``rows`` and ``where`` are row numbers of the left and right side. ``hits``: the pair matches. ``misses``: the last
    place of a left row that has turned out to match nothing. Left rows below ``decided`` have had all their places.
    """

    rows: Positions
    where: Positions
    hits: Flags
    misses: Flags
    decided: int


class PairFilter:
    """A condition on pairs of rows, computed over the columns that it mentions."""

    def __init__(self, kind: str, condition: pc.Expression | str, shape: JoinShape) -> None:
        expression = as_expression(kind, condition, shape.pairs)
        (found,) = types_of(kind, shape.pairs, [("filter", expression)])
        if not (pa.types.is_boolean(found) or pa.types.is_null(found)):
            raise FlowError(f"{kind}: the filter {condition} is {found}, not a condition", "compare it with something")
        self._evaluator = Evaluator([("filter", expression)], [condition])
        mentioned = _mentioned(expression, shape.pairs)
        self._schema = pa.schema([shape.pairs.field(position) for position in mentioned])
        self._sources: list[OutputColumn] = [shape.pair_sources[position] for position in mentioned]

    def of(self, left: pa.RecordBatch, right: pa.RecordBatch, pairs: Taken) -> Taken:
        """Those of the pairs that match."""
        hits = self.passes(left, right, pairs.left, pairs.right)
        return Taken(pairs.left[hits], pairs.right[hits], ascending=pairs.ascending)

    def passes(self, left: pa.RecordBatch, right: pa.RecordBatch, rows: Positions, where: Positions) -> Flags:
        """For each pair (``rows[n]``, ``where[n]``): does it match?"""
        if not len(rows):
            return np.zeros(0, dtype=bool)
        mine, theirs = indices(rows), indices(where)
        arrays = [
            picked(left.column(source.position), mine)
            if source.side == LEFT
            else picked(right.column(source.position), theirs)
            for source in self._sources
        ]
        (mask,) = self._evaluator.evaluate(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        if pa.types.is_null(mask.type):
            return np.zeros(len(rows), dtype=bool)
        flags: Flags = mask.fill_null(False).to_numpy(zero_copy_only=False)
        return flags


def slots(
    left: pa.RecordBatch,
    right: pa.RecordBatch,
    matches: Matches,
    condition: PairFilter | None,
    limit: int = PIECE_ROWS,
) -> Iterator[OutputPlaces]:
    """The places for the output of a join, in pieces of at most ``limit``."""
    places = np.maximum(matches.counts, 1)
    carried = False  # whether the row that the last piece cut had a match in it
    for piece in pieces(places, limit):
        hits = matches.counts[piece.rows] > 0
        where = np.where(hits, matches.first[piece.rows] + piece.positions, 0)
        if matches.rows is not None and len(matches.rows):
            where = matches.rows[where]
        if condition is None:
            last = piece.positions + 1 == places[piece.rows]
            yield OutputPlaces(piece.rows, where, hits, ~hits, int(piece.rows[-1]) + bool(last[-1]))
            continue
        candidates = np.flatnonzero(hits)
        hits[candidates] = condition.passes(left, right, piece.rows[candidates], where[candidates])
        made, carried = _judged(piece, where, hits, places, carried=carried)
        yield made


def _judged(
    piece: Piece, where: Positions, hits: Flags, places: Positions, *, carried: bool
) -> tuple[OutputPlaces, bool]:
    """Which left rows have matched nothing; and whether the row that goes on behind the piece has matched so far."""
    rows = piece.rows
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    matched = np.logical_or.reduceat(hits, starts)
    if piece.positions[0] > 0:
        matched[0] |= carried
    is_whole = bool(piece.positions[-1] + 1 == places[rows[-1]])
    ends = np.append(starts[1:], len(rows)) - 1
    if not is_whole:
        ends = ends[:-1]
    misses = np.zeros(len(rows), dtype=bool)
    misses[ends] = ~matched[: len(ends)]
    decided = int(rows[-1]) + is_whole
    return OutputPlaces(rows, where, hits, misses, decided), bool(matched[-1])


def _mentioned(expression: pc.Expression, schema: pa.Schema) -> list[int]:
    """The positions of the columns without which the expression cannot be computed; at least one column."""
    columns, names = columns_of(expression), schema.names
    if columns is not None and columns <= set(names) and len(set(names)) == len(names):
        return [position for position, name in enumerate(names) if name in columns] or list(range(len(names)))[:1]
    everything = list(range(len(schema)))
    if "FieldPath" in str(expression):  # by position: they would shift
        return everything
    needed = [position for position in everything if not _works_without(expression, schema, position)]
    return needed or everything[:1]


def _works_without(expression: pc.Expression, schema: pa.Schema, position: int) -> bool:
    try:
        types_of("join", schema.remove(position), [("filter", expression)])
    except FlowError:
        return False
    return True

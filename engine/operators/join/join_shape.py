"""Where a join's columns come from: its output schema, the row that its filter sees, and output rows from row numbers.

Rules:

1. Output is the left columns, then the right ones, which get a suffix where a left column has the name. Where the keys
   have the same names on both sides they stand once, under the left side (SQL's USING): a row without a left side shows
   the right side's key. Otherwise both sides' keys stand there, null on a missing side (SQL's ON).
2. Semi and anti joins give the columns of one side only, under their own names.
3. A filter sees the joined row with all columns of both sides, named as an inner join would name them.
4. Output is made in pieces of bounded rows and bytes, however often a wide row stands in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from ...core.errors import FlowError
from ...core.schemas import unique_schema, value_type
from ...kernels.keys import decoded
from ...kernels.pieces import Bound, Flags, Positions, indices, picked
from ...kernels.row_bits import Bits, row_bits

LEFT, RIGHT = 0, 1

JoinType: TypeAlias = Literal["inner", "left", "right", "full", "left semi", "right semi", "anti"]
JOIN_TYPES: tuple[str, ...] = get_args(JoinType)

LEFT_ALONE = ("inner", "left", "left semi", "anti")
"""Join types that give right rows only beside a left one: a right side that is built once, or copied, may stay."""

LEFT_STAYS = frozenset({"left", "full"})
"""Join types that give a left row without match once, with nulls."""

RIGHT_STAYS = frozenset({"right", "full"})
"""The same for right rows."""

ONE_SIDED = {"left semi": LEFT, "right semi": RIGHT, "anti": LEFT}
"""Join types that give rows of one side only, at most once each."""


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """An output column: the ``position``-th of a ``side``; ``other``: the right column that stands in for a key where
    the left side is missing."""

    side: int
    position: int
    other: int | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """Output rows: the row of each side, or none where ``missing`` (None: nowhere). ``ascending``: it is known that
    every left row stands behind the one before it in the input, so none occurs twice."""

    left: Positions
    right: Positions
    left_missing: Flags | None = None
    right_missing: Flags | None = None
    ascending: bool = False

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.left)

    def part(self, part: slice) -> Taken:
        """Some of them, consecutive ones."""
        left = None if self.left_missing is None else self.left_missing[part]
        right = None if self.right_missing is None else self.right_missing[part]
        return Taken(self.left[part], self.right[part], left, right, self.ascending)


@dataclass(frozen=True, slots=True)
class JoinShape:
    """See the module's rules; ``pairs`` is the schema that a filter sees."""

    schema: pa.Schema
    sources: tuple[OutputColumn, ...]
    pairs: pa.Schema
    pair_sources: tuple[OutputColumn, ...]

    @classmethod
    def of(
        cls, kind: str, inputs: Sequence[pa.Schema], once: Sequence[tuple[str, str]], how: str, suffix: str
    ) -> JoinShape:
        """``once``: pairs of keys (left, right) that stand once in the output."""
        remedy = "rename a column, or choose another suffix"
        pair_sources, pair_fields = _columns(inputs, once, suffix, "inner")
        pairs = unique_schema(kind, pair_fields, remedy)
        if how == "inner":
            return cls(pairs, tuple(pair_sources), pairs, tuple(pair_sources))
        if how in ONE_SIDED:
            side = ONE_SIDED[how]
            sources = [OutputColumn(side, position) for position in range(len(inputs[side]))]
            fields = list(inputs[side])
        else:
            sources, fields = _columns(inputs, once, suffix, how)
        return cls(unique_schema(kind, fields, remedy), tuple(sources), pairs, tuple(pair_sources))

    def batches(
        self, left: pa.RecordBatch, right: pa.RecordBatch, taken: Taken, bound: Bound | None, widest: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The output rows, in pieces within the bound. ``widest``: no row of both sides takes more bits, if known."""
        picks = _picks(taken)
        if bound is None or (
            widest is not None and taken.rows <= bound.rows and taken.rows * widest <= 8 * bound.bytes
        ):
            yield self._batch(left, right, taken, picks)
            return
        for part in bound.parts(taken.rows, self._bits(left, right, taken)):
            if part.stop - part.start == taken.rows:
                yield self._batch(left, right, taken, picks)
            else:
                mine = taken.part(part)
                yield self._batch(left, right, mine, _picks(mine))

    def _bits(self, left: pa.RecordBatch, right: pa.RecordBatch, taken: Taken) -> Bits:
        """What each output row takes."""
        mine = [left.column(source.position) for source in self.sources if source.side == LEFT]
        theirs = [right.column(source.position) for source in self.sources if source.side == RIGHT]
        bits = _bits_of(mine, taken.left, taken.left_missing) + _bits_of(theirs, taken.right, taken.right_missing)
        if taken.left_missing is not None:
            others = [right.column(source.other) for source in self.sources if source.other is not None]
            bits = bits + _bits_of(others, taken.right, ~taken.left_missing)
        return bits

    def _batch(
        self, left: pa.RecordBatch, right: pa.RecordBatch, taken: Taken, picks: tuple[_Pick, _Pick]
    ) -> pa.RecordBatch:
        found = [iter(picks[side].of_columns(each, self._wanted(side))) for side, each in enumerate((left, right))]
        arrays = []
        for source in self.sources:
            if source.other is None:
                arrays.append(next(found[source.side]))
            else:
                mine, theirs = left.column(source.position), right.column(source.other)
                arrays.append(_either(decoded(mine), decoded(theirs), taken))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _wanted(self, side: int) -> list[int]:
        """The columns of a side that are taken as they are."""
        return [source.position for source in self.sources if source.side == side and source.other is None]


def check_join_type(kind: str, how: str, known: Sequence[str] = JOIN_TYPES) -> None:
    """``how`` is a join type that the operator knows."""
    if how not in known:
        raise FlowError(f"{kind}: {how!r} is no join type it knows", f"use one of: {', '.join(known)}")


def _columns(
    inputs: Sequence[pa.Schema], once: Sequence[tuple[str, str]], suffix: str, how: str
) -> tuple[list[OutputColumn], list[pa.Field]]:
    left, right = inputs
    stand_in = {mine: right.get_field_index(theirs) for mine, theirs in once} if how in RIGHT_STAYS else {}
    sources, fields = [], []
    for position, field in enumerate(left):
        type = value_type(field.type) if field.name in stand_in else field.type
        sources.append(OutputColumn(LEFT, position, stand_in.get(field.name)))
        fields.append(pa.field(field.name, type, field.nullable or how in RIGHT_STAYS, field.metadata))
    dropped, taken = {theirs for _, theirs in once}, set(left.names)
    for position, field in enumerate(right):
        if field.name not in dropped:
            name = field.name + suffix if field.name in taken else field.name
            sources.append(OutputColumn(RIGHT, position))
            fields.append(pa.field(name, field.type, field.nullable or how in LEFT_STAYS, field.metadata))
    return sources, fields


@dataclass(frozen=True, slots=True)
class _Pick:
    """Rows to take of one side, found once for all its columns."""

    rows: Positions
    taken: pa.Array | None

    @classmethod
    def of(cls, rows: Positions, missing: Flags | None, *, ascending: bool = False) -> _Pick:
        gapless = missing is None and len(rows) > 0 and rows[-1] - rows[0] + 1 == len(rows)
        if gapless and (ascending or bool((np.diff(rows) == 1).all())):
            return cls(rows, None)
        return cls(rows, indices(rows, missing))

    def of_columns(self, records: pa.RecordBatch, wanted: Sequence[int]) -> list[pa.Array]:
        """Of these columns, which are taken at once if they are in memory: of few rows that is a third of the work."""
        if not isinstance(records, pa.RecordBatch):
            rows = pa.array(self.rows) if self.taken is None else self.taken
            return [picked(records.column(place), rows) for place in wanted]
        if not wanted:
            return []
        mine = records if len(wanted) == records.num_columns else records.select(wanted)
        run = self.taken is None
        found: pa.RecordBatch = mine.slice(int(self.rows[0]), len(self.rows)) if run else picked(mine, self.taken)
        return list(found.columns)


def _picks(taken: Taken) -> tuple[_Pick, _Pick]:
    mine = _Pick.of(taken.left, taken.left_missing, ascending=taken.ascending)
    return mine, _Pick.of(taken.right, taken.right_missing)


def _bits_of(columns: Sequence[pa.Array], rows: Positions, missing: Flags | None) -> Bits:
    """What each of the rows takes of one side's columns: nothing where ``missing``, if their widths differ."""
    if missing is None:
        return row_bits(columns, rows)
    there = np.flatnonzero(~missing)
    found = row_bits(columns, rows[there])
    if isinstance(found, int):
        return found
    bits = np.zeros(len(rows), dtype=np.int64)
    bits[there] = found
    return bits


def _either(left: pa.Array, right: pa.Array, taken: Taken) -> pa.Array:
    """The left value, or the right one where the left side is missing."""
    if taken.left_missing is None:
        return picked(left, pa.array(taken.left))
    rows = np.where(taken.left_missing, len(left) + taken.right, taken.left)
    return picked(pa.concat_arrays([left, right]), pa.array(rows))

"""What the joins share: their output schema, and the rows of a join given who matches whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..errors import FlowError
from ..schemas import unique_schema
from .pieces import Positions, indices, pieces

JOIN_TYPES = ("inner", "left")


@dataclass(frozen=True, slots=True)
class Matches:
    """For each left row its matches: ``counts[n]`` rows, listed in ``rows`` from position ``first[n]`` on.

    ``rows`` are row numbers of the right side, or None where position and row number are the same. ``first`` means
    nothing where the count is 0.
    """

    first: Positions
    counts: Positions
    rows: Positions | None


def check_join_type(kind: str, how: str) -> None:
    """``how`` is a join type that the operator knows."""
    if how not in JOIN_TYPES:
        raise FlowError(f"{kind}: {how!r} is no join type it knows", f"use one of: {', '.join(JOIN_TYPES)}")


def join_schema(
    kind: str, left: pa.Schema, right: pa.Schema, right_keys: Sequence[str], how: str, suffix: str
) -> pa.Schema:
    """Left columns, then right columns without the keys, with ``suffix`` where a left column has the name."""
    fields = list(left)
    for field in right:
        if field.name not in right_keys:
            name = field.name + suffix if field.name in left.names else field.name
            fields.append(pa.field(name, field.type, field.nullable or how == "left", field.metadata))
    return unique_schema(kind, fields, "rename a column, or choose another suffix")


def joined_rows(
    left: pa.RecordBatch, right: pa.RecordBatch, matches: Matches, schema: pa.Schema, *, keep_left: bool
) -> Iterator[pa.RecordBatch]:
    """The joined rows in the order of the left side, in pieces. ``right`` holds only the columns that are wanted.

    ``keep_left``: a left row without match stays, with nulls.
    """
    counts = np.maximum(matches.counts, 1) if keep_left else matches.counts
    for piece in pieces(counts):
        unmatched = matches.counts[piece.rows] == 0
        where = np.where(unmatched, 0, matches.first[piece.rows] + piece.positions)
        if matches.rows is not None and len(matches.rows):
            where = matches.rows[where]
        taken = indices(where, unmatched if unmatched.any() else None)
        columns = [*piece.repeat(left).columns, *(column.take(taken) for column in right.columns)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)

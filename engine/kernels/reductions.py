"""Reductions of rows by group that several aggregate functions share."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .aggregate_protocol import Segments
from .keys import validity
from .pieces import Flags, Positions


def all_null(values: pa.Array, segments: Segments) -> Flags | None:
    """Which segments hold nothing but nulls; None if the column has no null."""
    if not values.null_count:
        return None
    flags: Flags = ~np.logical_or.reduceat(validity(values), segments.starts)
    return flags


def grouped(values: pa.Array, ids: Positions, function: str) -> pa.Array:
    """Arrow's own reduction, for types that numpy does not know. Groups are numbered in the order of their first row,
    and come in it."""
    type = values.type
    if pa.types.is_decimal(type) and type.bit_width < 128:  # which it does not know either
        values = values.cast(pa.decimal128(type.precision, type.scale))
    table = pa.table({"segment": ids, "value": values})
    made = table.group_by("segment", use_threads=False).aggregate([("value", function)])
    return made.column(f"value_{function}").combine_chunks().cast(type)


def is_whole(type: pa.DataType | None) -> bool:
    """Integers and booleans: what can be summed exactly."""
    return type is not None and bool(pa.types.is_integer(type) or pa.types.is_boolean(type))

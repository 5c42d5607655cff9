"""Rows to group numbers, by hashing: what grouping, distinct and their like share.

Rules:

1. Groups are numbered 0, 1, 2, … in the order of their first row.
2. Null is a key like any other and equal to null; NaN equals NaN, −0.0 equals 0.0; a dictionary counts as its values.
   Structs, lists and maps are equal if all that they hold is, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from ..core.errors import FlowError
from ..core.schemas import value_type
from .key_table import KeyTable
from .keys import check_key_types
from .pieces import Flags, Positions


def check_group_types(kind: str, fields: Iterable[pa.Field]) -> None:
    """The columns can be grouped by."""
    for field in fields:
        type = value_type(field.type)
        if pa.types.is_nested(type):
            if pa.types.is_union(type):
                raise FlowError(f"{kind}: column {field.name!r} of type {field.type} cannot be a key", "leave it out")
            children = [type.field(number) for number in range(type.num_fields)]
            check_group_types(kind, [pa.field(field.name, child.type) for child in children])
        else:
            check_key_types(kind, [field])


def group_ids(columns: Sequence[pa.Array], rows: int) -> tuple[Positions, int]:
    """The group of each of ``rows`` rows, and the number of groups. No columns: one group."""
    table = KeyTable()
    ids, _ = table.number(columns, rows)
    return ids, table.count


def first_rows(ids: Positions) -> Flags:
    """Which rows are the first of their group, given groups numbered by first row."""
    highest = np.maximum.accumulate(ids)
    return np.append(True, highest[1:] > highest[:-1])[: len(ids)]


def stable_order(ids: Positions, groups: int) -> Positions:
    """The rows by group, and in their own order within each."""
    narrow = ids.astype(np.uint16) if groups <= 2**16 else ids  # two bytes are sorted by radix
    order: Positions = np.argsort(narrow, kind="stable")
    return order

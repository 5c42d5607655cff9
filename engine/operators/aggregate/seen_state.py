"""The state of operators that remember keys and hold rows until their round ends: distinct and mark distinct.

A state row is either a key that has been seen (``set`` says in which collection, ``row`` is null) or a row that is held
(``set`` is null).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...buffers.held_rows import HeldRows
from ...buffers.state_rows import children
from ...core.operator import LANE
from ...expressions.evaluator import single_array
from .seen_keys import SeenKeys


def seen_state(collections: Sequence[SeenKeys], held: HeldRows) -> pa.Table | None:
    """One row for each key of each collection, and for each row held."""
    tables = [] if not held.rows else [held.snapshot()]
    for number, seen in enumerate(collections):
        if len(seen.lanes):
            columns = [column.combine_chunks() for column in seen.keys.columns]
            fields = [pa.field(str(place), column.type) for place, column in enumerate(columns)]
            keys = pa.StructArray.from_arrays(columns, fields=fields)
            numbers = pa.array(np.full(len(seen.lanes), number, dtype=np.int32))
            tables.append(pa.table({LANE: pa.array(seen.lanes), "set": numbers, "key": keys}))
    return pa.concat_tables(tables, promote_options="default") if tables else None


def restore_seen(table: pa.Table, collections: Sequence[SeenKeys], held: HeldRows) -> None:
    """Take over keys and rows."""
    if "set" in table.column_names:
        for number, seen in enumerate(collections):
            rows = table.filter(pc.fill_null(pc.equal(table.column("set"), number), False))
            if rows.num_rows:
                seen.first(children(single_array(rows.column("key"))), rows.column(LANE).to_numpy())
    if "row" in table.column_names:
        rows = table.filter(pc.is_valid(table.column("round")))
        if rows.num_rows:
            held.restore(rows)

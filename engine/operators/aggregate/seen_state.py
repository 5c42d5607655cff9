"""The state of operators that remember keys and hold rows until their round ends: distinct and mark distinct.

A state row is either a key that has been seen (``set`` says in which collection, ``row`` is null) or a row that is held
(``set`` is null).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...buffers.held_rows import HeldRows, Lanes
from ...buffers.state_rows import children
from ...core.operator import LANE
from ...expressions.evaluator import single_array
from ...state.change_log import FEW, Changes, StatePart, as_changes
from .seen_keys import SeenKeys


def seen_state(collections: Sequence[SeenKeys], held: HeldRows) -> pa.Table | None:
    """One row for each key of each collection, and for each row held."""
    tables = [_keys(number, seen.keys, seen.lanes) for number, seen in enumerate(collections) if len(seen.lanes)]
    tables += [] if not held.rows else [held.snapshot()]
    return pa.concat_tables(tables, promote_options="default") if tables else None


def seen_changes(collections: Sequence[SeenKeys], held: HeldRows) -> pa.Table | Changes | None:
    """The same; if many keys have been seen, those that are new by themselves."""
    if sum(len(seen.lanes) for seen in collections) < FEW:
        for seen in collections:
            seen.log_anew()  # ``change_log``, rule 6
        return seen_state(collections, held)
    found = Changes(())
    for number, seen in enumerate(collections):
        keys, lanes = seen.new()
        if len(lanes):
            seen.log.add(StatePart(partial(_keys, number, keys, lanes), len(lanes)))
        found += seen.log.cut()
    rows = held.snapshot()
    return found if rows is None else found + as_changes(rows)


def _keys(number: int, keys: pa.Table, lanes: Lanes) -> pa.Table:
    columns = [column.combine_chunks() for column in keys.columns]
    fields = [pa.field(str(place), column.type) for place, column in enumerate(columns)]
    numbers = pa.array(np.full(len(lanes), number, dtype=np.int32))
    return pa.table({LANE: pa.array(lanes), "set": numbers, "key": pa.StructArray.from_arrays(columns, fields=fields)})


def restore_seen(
    table: pa.Table, collections: Sequence[SeenKeys], held: HeldRows, stored: Sequence[StatePart] = ()
) -> None:
    """Take over keys and rows. ``stored``: the parts of the table, if they are known."""
    if "set" in table.column_names:
        for number, seen in enumerate(collections):
            rows = table.filter(pc.fill_null(pc.equal(table.column("set"), number), False))
            if rows.num_rows:
                seen.first(children(single_array(rows.column("key"))), rows.column(LANE).to_numpy())
    if "row" in table.column_names:
        rows = table.filter(pc.is_valid(table.column("round")))
        if rows.num_rows:
            held.restore(rows)
    for number, seen in enumerate(collections):
        alike = _keys(number, seen.schema.empty_table(), np.zeros(0, dtype=np.int32)).schema
        parts = [part for part in stored if _is_of(part.table, alike, number)]
        if sum(part.rows for part in parts) == len(seen.lanes):
            seen.go_on_with(parts)


def _is_of(table: pa.Table | None, schema: pa.Schema, number: int) -> bool:
    """Whether a part has keys of this collection, and nothing else."""
    return table is not None and table.schema.equals(schema) and pc.unique(table.column("set")).to_pylist() == [number]

"""Rows out of a state: with the columns that the flow has now, which may be others than when the state was written.

A flow reads only the columns that it needs (``pruning``). So a state that a flow which has changed since then starts
from, or that was written by a version that read all of them, may hold more columns, or fewer.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..core.errors import ConfigurationError


def row_type(schema: pa.Schema) -> pa.DataType:
    """What rows of this schema are in a column of a state, beside rows that hold something else."""
    return pa.struct([field.with_nullable(True) for field in schema])


def as_rows(records: pa.RecordBatch) -> pa.StructArray:
    """Rows as such a column has them."""
    return pa.StructArray.from_arrays(records.columns, fields=list(row_type(records.schema)))


def in_one(table: pa.Table, column: str) -> pa.Array:
    """A column of a state without chunks."""
    found = table.combine_chunks().column(column).combine_chunks()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def rows_of_state(rows: pa.StructArray, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a column of a state. Raises ConfigurationError as :func:`fitted` does."""
    fields = [rows.type.field(place) for place in range(rows.type.num_fields)]
    if not schema.names:  # rows without columns
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    return fitted(fields, children(rows), schema)


def children(rows: pa.StructArray) -> list[pa.Array]:
    """The columns of rows none of which is null. (``flatten`` of Arrow ends the process for unions.)"""
    return [rows.field(place) for place in range(rows.type.num_fields)]


def fitted(fields: Sequence[pa.Field], columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Stored columns as rows of ``schema``: by position where the names are the same ones (they may occur twice), else
    by name. Raises ConfigurationError if a column is missing or has another type."""
    names = [field.name for field in fields]
    places = list(range(len(names)))
    if names != schema.names:
        found = {name: place for place, name in enumerate(names) if names.count(name) == 1}
        missing = [name for name in schema.names if name not in found or schema.names.count(name) > 1]
        if missing:
            raise ConfigurationError(
                f"its state has rows with the columns {', '.join(names)}, and the flow now needs {missing[0]!r}",
                "the flow that wrote the state did not need that column: start from the first row, or from a snapshot "
                "of a flow that did",
            )
        places = [found[name] for name in schema.names]
    for place, wanted in zip(places, schema, strict=True):
        if not fields[place].type.equals(wanted.type):
            raise ConfigurationError(
                f"its state has column {wanted.name!r} as {fields[place].type}, the flow now has it as {wanted.type}",
                "give the column its former type, or start from the first row",
            )
    return pa.RecordBatch.from_arrays([columns[place] for place in places], schema=schema)

"""Unions without rows that came from a file or a connection, made whole.

Arrow leaves the type codes of a union without rows out when it writes one (IPC). Read again it has no buffer there,
and whoever measures it (``nbytes``) ends the process. So does a list whose unions are all without rows. Seen with
pyarrow 26.0; a copy by ``concat_arrays`` has all its buffers.
"""

from __future__ import annotations

import pyarrow as pa


class WholeUnions:
    """Makes the batches of a stream whole: ``__call__`` gives the same rows, and copies the columns that have a union
    somewhere inside, and no others. Looks for these once, as long as batches have one schema."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._places: tuple[int, ...] = ()

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        schema = records.schema
        if self._schema is None or not schema.equals(self._schema):
            self._schema = schema
            self._places = tuple(place for place, field in enumerate(schema) if _has_union(field.type))
        if not self._places:
            return records
        columns = records.columns
        for place in self._places:
            columns[place] = pa.concat_arrays([columns[place], columns[place].slice(0, 0)])
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def whole_union_table(table: pa.Table) -> pa.Table:
    """The same for a table."""
    if not any(_has_union(field.type) for field in table.schema):
        return table
    return pa.Table.from_batches(map(WholeUnions(), table.to_batches()), table.schema)


def _has_union(type: pa.DataType) -> bool:
    if pa.types.is_union(type):
        return True
    if isinstance(type, pa.BaseExtensionType):
        return _has_union(type.storage_type)
    if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
        return _has_union(type.value_type)
    if pa.types.is_struct(type):
        return any(_has_union(field.type) for field in type)
    if pa.types.is_map(type):
        return _has_union(type.key_type) or _has_union(type.item_type)
    return pa.types.is_nested(type) and _has_union(type.value_type)

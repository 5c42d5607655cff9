"""Arrow blocks as Spark's executors write them: one Arrow IPC stream for each partition.

Rules:

1. :func:`to_table` is the only place that opens one. Arrow for Java leaves out the one offset of a string, list or map
   array that has no elements, at any depth. Readers of that offset, in pyarrow and in Ray, fail or read beyond the
   buffer, so such columns are made anew.
2. A block's rows have exactly the schema that its source declares. Spark marks some columns as never null; that promise
   would not survive an outer join, so declared schemas make none at the top level.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..engine.errors import InternalError

_OFFSET_BYTES = 4


def to_table(data: bytes, schema: pa.Schema | None = None) -> pa.Table:
    """The rows of a block, without copying what need not be made anew; with ``schema``, as that schema."""
    table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    if not table.num_rows:
        return (schema or table.schema).empty_table()
    for position, column in enumerate(table.columns):
        if any(_lacks_offset(chunk) for chunk in column.chunks):
            whole = column.take(pa.array(np.arange(table.num_rows)))
            table = table.set_column(position, table.schema.field(position), whole)
    if schema is None or table.schema.equals(schema):
        return table
    if table.schema.names != schema.names:
        raise InternalError(f"a block has the columns {table.schema.names}, and its source declared {schema.names}")
    return table.cast(schema)


def _lacks_offset(array: pa.Array) -> bool:
    """Whether this array, or one inside it, has no elements and not even the offset where they would begin."""
    if pa.types.is_struct(array.type):
        return any(_lacks_offset(array.field(position)) for position in range(array.type.num_fields))
    if not (pa.types.is_nested(array.type) or pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        return False
    offsets = array.buffers()[1]
    if len(array) == 0 and (offsets is None or offsets.size < _OFFSET_BYTES):
        return True
    if pa.types.is_map(array.type):
        return _lacks_offset(array.keys) or _lacks_offset(array.items)
    return pa.types.is_list(array.type) and _lacks_offset(array.values)


def nullable(schema: pa.Schema) -> pa.Schema:
    """The schema without promises, at the top level, that a column is never null."""
    return pa.schema([pa.field(column.name, column.type) for column in schema])

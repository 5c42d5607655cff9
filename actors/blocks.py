"""Splits whose rows are Arrow blocks in Ray's object store.

Rules:

1. A block is one Arrow IPC stream, as Spark's executors write it; :func:`to_table` is the only place that opens one.
   Arrow for Java leaves out the one offset of a string, list or map array that has no elements, at any depth. Readers
   of that offset, in pyarrow and in Ray, fail or read beyond the buffer, so such columns are made anew.
2. A split holds the reference to its block, not the block. It must travel inside an argument of a Ray call (as part of
   a list or an object is fine): Ray then knows that the receiver borrows the reference and keeps the block. A split
   pickled in any other way would be a reference that nobody counts.
3. A block belongs to the process that made the hand-off and lives as long as that process; ``open`` says so when the
   block is gone.
4. A split's rows have exactly the schema that its source declares. Spark marks some columns as never null; that promise
   would not survive an outer join, so declared schemas make none at the top level.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from ..engine.errors import InternalError, TaskLostError
from ..engine.sources.files import from_row

_OFFSET_BYTES = 4


@dataclass(frozen=True, slots=True)
class RayBlockSplit:
    """One Spark partition: the reference to its block, its number of rows, and the schema to read it with."""

    id: str
    rows: int
    schema: pa.Schema = field(hash=False)
    block: Any = field(hash=False)
    blocking: ClassVar[bool] = True

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        import ray

        try:
            data = ray.get(self.block)
        except ray.exceptions.RayError as error:
            raise TaskLostError(
                f"the block of split {self.id} is gone: {error}",
                "blocks live as long as the process that handed them over from Spark; hand the frame over again",
            ) from error
        yield from from_row(iter(to_table(data, self.schema).to_batches()), start)


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


def measure(data: bytes) -> tuple[int, str]:
    """The number of rows of a block, and a hash of its bytes: equal for equal rows in the same order."""
    return to_table(data).num_rows, f"{zlib.crc32(data):08x}"


def nullable(schema: pa.Schema) -> pa.Schema:
    """The schema without promises, at the top level, that a column is never null."""
    return pa.schema([pa.field(column.name, column.type) for column in schema])

"""Maps, and lists of one length, as the lists that they are, without a copy.

Arrow's own cast gives other values without a word, or reads beyond their end, where the elements are runs or nulls, or
begin behind the start of their buffers, as those of a slice may.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def as_lists(column: pa.Array) -> pa.Array:
    """The column, which is of lists of any layout, with offsets if it had none; a map as lists of its entries."""
    type, types = column.type, pa.types
    if types.is_map(type):
        made, offsets = pa.list_(pa.struct([type.key_field, type.item_field])), column.buffers()[1]
    elif types.is_fixed_size_list(type):
        ends = np.arange(column.offset + len(column) + 1, dtype=np.int64) * type.list_size
        made, offsets = pa.large_list(type.value_field), pa.py_buffer(ends)
    else:
        return column
    given = [column.buffers()[0], offsets]
    return pa.Array.from_buffers(made, len(column), given, column.null_count, column.offset, [column.values])

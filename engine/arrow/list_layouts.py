"""Maps, and lists of one length, as the lists that they are, without a copy.

Arrow's own cast gives other values without a word, or reads beyond their end, where the elements are runs or nulls, or
begin behind the start of their buffers, as those of a slice may.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
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


def elements(lists: pa.Array, counts: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.int64] | None]:
    """Elements of ``lists``, which have offsets and so many elements each, and the places of list after list in them;
    None: they are these. (Arrow's own ``flatten`` fails on dictionaries and extension types where no list has any.)"""
    total = int(counts.sum())
    if not total:
        return lists.values.slice(0, 0), None
    starts = lists.offsets.to_numpy()[: len(lists)]
    filled = np.flatnonzero(counts)
    begins, ends = starts[filled], starts[filled] + counts[filled]
    first, last = int(begins.min()), int(ends.max())
    found = lists.values.slice(first, last - first)
    if bool((begins[1:] == ends[:-1]).all()):
        return found, None
    before = np.cumsum(counts) - counts
    return found, np.repeat(starts - before - first, counts) + np.arange(total)


def lists_of(lengths: npt.NDArray[np.int64], values: pa.Array, type: pa.DataType, mask: pa.Array | None) -> pa.Array:
    """Lists, or large ones, of these lengths, one behind the other in ``values``. ``mask``: which are null."""
    large = pa.types.is_large_list(type)
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int64() if large else pa.int32())
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(offsets, values, type=type, mask=mask)

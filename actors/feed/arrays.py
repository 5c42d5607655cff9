"""Record batches as NumPy arrays."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def to_numpy(records: pa.RecordBatch) -> dict[str, Any]:
    """The columns as NumPy arrays; lists of equal length become one array with as many columns."""
    return {name: _array(column) for name, column in zip(records.schema.names, records.columns, strict=True)}


def _array(column: pa.Array) -> Any:
    kind = column.type
    if pa.types.is_fixed_size_list(kind) and not column.null_count:
        return _array(column.flatten()).reshape(len(column), kind.list_size)
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and len(column) and not column.null_count:
        lengths = column.value_lengths()
        if lengths[0] == lengths[len(lengths) - 1] and len(lengths.unique()) == 1:
            return _array(column.flatten()).reshape(len(column), lengths[0].as_py())
    return column.to_numpy(zero_copy_only=False)

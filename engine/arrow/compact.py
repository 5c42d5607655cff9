"""Compact forms of columns inside a task: text of few values as codes, decimals as whole numbers of 64 bits.

A flow's schema declares ``string`` or ``decimal128(15, 2)``. Where every operator on the way takes it (the trait
``takes_compact``), a batch may hold such a column in another layout, which kernels are much faster on. Rules:

1. Text and binary (large, too) may be ``dictionary<int32, the declared type>``: the values of the dictionary are
   distinct, and none is null; indices may be null. ``decimal128(p, s)`` may be ``decimal64(18, s)``, whose 64 bits are
   the digits, however many: neither p nor 18 bounds them. Every other column is of its declared type. So the declared
   type and the type that is met say together which form a column has.
2. The form says nothing: values, rows, their order, the cuts of batches and the width of rows (``row_bits``) are those
   of the declared type. Each batch may hold a column in another form, or with another dictionary.
3. Schemas of flows, fingerprints, functions of users, sinks, exchanges between tasks, snapshots, and files know the
   declared types alone: :func:`plain_records` stands before each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..core.errors import InternalError

_DIGITS = 18


def compact_type(type: pa.DataType) -> pa.DataType | None:
    """The compact form of a declared type; None if it has none."""
    types = pa.types
    if types.is_decimal128(type):
        return pa.decimal64(_DIGITS, type.scale) if 0 <= type.scale <= _DIGITS else None
    is_text = types.is_string(type) or types.is_binary(type) or types.is_large_string(type)
    return pa.dictionary(pa.int32(), type) if is_text or types.is_large_binary(type) else None


def is_compact(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether a column of this type holds one of the declared type in its compact form."""
    return bool(found != declared and found == compact_type(declared))


def plain(array: pa.Array, type: pa.DataType) -> pa.Array:
    """The column, of the declared ``type``, in that type; the same object if it is."""
    found = array.type
    if found == type:
        return array
    if pa.types.is_decimal64(found) and (pa.types.is_decimal128(type) or pa.types.is_decimal256(type)):
        valid = array.is_valid() if array.null_count else None
        return as_decimals(digits(array), type, valid)
    if not is_compact(found, type):
        raise InternalError(f"a column of {type} came as {found}")
    return array.dictionary.take(array.indices)


def plain_records(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows, of the declared ``schema``, with its types; the same object if they have them."""
    found = records.schema
    if found.equals(schema) or found.types == schema.types:
        return records
    columns = [plain(column, type) for column, type in zip(records.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def fits(found: pa.Schema, declared: pa.Schema) -> bool:
    """Whether rows of ``found`` are of the declared schema, whatever the forms of their columns."""
    if found.names != declared.names:
        return False
    pairs = zip(found.types, declared.types, strict=True)
    return all(mine == theirs or is_compact(mine, theirs) for mine, theirs in pairs)


def as_records(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of the declared schema, of columns in whatever form."""
    if [column.type for column in columns] != schema.types:
        pairs = [(field, column.type) for field, column in zip(schema, columns, strict=True)]
        fields = [field.with_type(type) if is_compact(type, field.type) else field for field, type in pairs]
        schema = pa.schema(fields, schema.metadata)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def digits(array: pa.Array) -> npt.NDArray[np.int64]:
    """The digits of a column of decimal64, arbitrary where it is null: a view of its memory."""
    return np.frombuffer(array.buffers()[1], np.int64, len(array), 8 * array.offset) if len(array) else np.zeros(0, int)


def as_decimals(found: npt.NDArray[np.int64], type: pa.DataType, valid: pa.Array | None = None) -> pa.Array:
    """Digits as a column of decimals of 64 bits or more, which is null where ``valid`` is false."""
    count = type.bit_width // 64
    words = pa.py_buffer(np.ascontiguousarray(found))
    if count > 1:
        words = pa.allocate_buffer(8 * count * len(found))
        table = np.frombuffer(words, np.int64).reshape(-1, count)
        table[:, 0] = found
        np.right_shift(found, 63, out=table[:, 1])
        table[:, 2:] = table[:, 1:2]
    return pa.Array.from_buffers(type, len(found), [None if valid is None else _bits(valid), words])


def _bits(valid: pa.Array) -> Any:
    """The bits of booleans, from the first one on."""
    if valid.offset:
        valid = pa.array(valid.to_numpy(zero_copy_only=False))
    return valid.buffers()[1]

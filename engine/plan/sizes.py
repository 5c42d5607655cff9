"""Bytes in words, and how many a batch may have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from ..core.operator import OUTPUT_BYTES
from ..kernels.row_bits import fixed_bits
from .rounds import CHUNK_ROWS

TEXT_BYTES = 32
"""What a value of variable length is taken for where nothing is known of it."""

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_KIB = 1024


def size(count: float) -> str:
    """Bytes in the unit that reads best."""
    for unit in _UNITS:
        if count < _KIB or unit == _UNITS[-1]:
            break
        count /= _KIB
    return f"{count:.0f} {unit}" if unit == _UNITS[0] else f"{count:.1f} {unit}"


def batch_bytes(schema: pa.Schema) -> int:
    """The most bytes of a batch: ``CHUNK_ROWS`` rows, or ``OUTPUT_BYTES`` where these may have more. (A single row that
    has more is a batch of its own.)"""
    bits = [fixed_bits(field.type) for field in schema]
    if None in bits:
        return OUTPUT_BYTES
    return min(CHUNK_ROWS * sum(each or 0 for each in bits) // 8, OUTPUT_BYTES)


def row_bytes(schema: pa.Schema) -> int:
    """About the bytes of a row: of texts and lists a guess (``is_guessed``)."""
    return sum(_value_bytes(field.type) for field in schema)


def is_guessed(schema: pa.Schema) -> bool:
    """Whether the types leave open how wide a row is."""
    return any(fixed_bits(field.type) is None for field in schema)


def _value_bytes(type: pa.DataType) -> int:
    """Bytes of one value; of a list or a text a guess."""
    if (bits := fixed_bits(type)) is not None:
        return max(1, bits // 8)
    if isinstance(type, pa.BaseExtensionType):
        return _value_bytes(type.storage_type)
    if pa.types.is_struct(type):
        return sum(_value_bytes(field.type) for field in type)
    if pa.types.is_dictionary(type):
        return _value_bytes(type.index_type)
    return TEXT_BYTES


def leaf_bytes(fields: Iterable[pa.Field]) -> Iterator[int]:
    """About the bytes of one value of each column of a file that holds these fields: structs and lists have several."""
    for field in fields:
        type = field.type
        children = [type.field(n) for n in range(type.num_fields)]
        if pa.types.is_dictionary(type) or not children:
            yield _value_bytes(type.value_type if pa.types.is_dictionary(type) else type)
        else:
            yield from leaf_bytes(children)

"""One number for the rows that passed a place, and for those that are read there: the same rows, the same number.

Rules:

1. It is the sum, modulo 2**64, of a hash of each row: no order, no batches, and a row that is there twice counts twice
   (with XOR it would vanish). It is a proof against accidents, none against malice.
2. A row's hash is that of its columns (``hashing``), mixed with the names and types of the schema. Digests of another
   ``VERSION`` are not compared, but unknown: state names its columns after it.
3. It is of values, not of layouts: dictionaries count as their values, large strings and views as strings, lists and
   structs as what they hold; what lies under a null is not looked at. Numbers of another unit are other values.
4. Every NaN equals every other and −0.0 equals 0.0, as everywhere where keys are hashed: readers that compare values
   cannot tell them apart either.
5. What a sink cannot store as it came is digested as it stores it (``stored``): Parquet has no seconds, so timestamps
   become milliseconds, and dates in milliseconds lose their time of day.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from ..arrow.compact import plain_records
from ..arrow.days import whole_days
from ..core.operator import OperatorContext
from ..kernels.hashing import HASH_VERSION, hashes, mixed
from .checksums import digest

VERSION = f"{HASH_VERSION}.1"
MODULUS = 1 << 64


@runtime_checkable
class ContentSink(Protocol):
    """What a sink's config offers besides, if what is visible of it can be read back."""

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """The schema in which it stores rows of this one (rule 5)."""

    def visible_digest(self, job: str) -> int | str:
        """The digest of the rows that ``visible_rows`` counts, or why there is none."""


class RowDigest:
    """Digests rows of one schema. ``stored``: the schema in which the sink stores them."""

    def __init__(self, schema: pa.Schema, stored: pa.Schema | None = None) -> None:
        stored = schema if stored is None else stored
        named = repr([(field.name, _kind(field.type)) for field in stored])
        self._schema = schema
        #: equal for digests of which equal rows have the same
        self.salt = int(digest(named.encode())[:16], 16)
        #: column number to the type in which it is stored, where that holds other values
        self._casts = {at: type for at, type in enumerate(stored.types) if _kind(type) != _kind(schema.field(at).type)}

    def of(self, records: pa.RecordBatch) -> int:
        """The digest of these rows; those of several batches add up."""
        columns = plain_records(records, self._schema).columns
        for at, type in self._casts.items():
            column = columns[at]
            if pa.types.is_date64(column.type) and pa.types.is_date32(type):
                column = whole_days(column, records.schema.names[at])
            columns[at] = column.cast(type, safe=False)
        found = hashes(columns) if columns else np.zeros(records.num_rows, dtype=np.uint64)
        return int(mixed(found + np.uint64(self.salt)).sum(dtype=np.uint64))


def row_digest(
    context: OperatorContext, schema: pa.Schema, stored: Callable[[pa.Schema], pa.Schema] | None = None
) -> RowDigest | None:
    """What digests the rows of a sink; None if that is not wanted."""
    if not context.content:
        return None
    return RowDigest(schema, None if stored is None else stored(schema))


def _kind(type: pa.DataType) -> str:
    """The type without its layout (rule 3)."""
    types = pa.types
    if types.is_dictionary(type) or types.is_run_end_encoded(type):
        return _kind(type.value_type)
    if isinstance(type, pa.BaseExtensionType):
        return _kind(type.storage_type)
    if types.is_struct(type):
        return repr([(field.name, _kind(field.type)) for field in type])
    if types.is_union(type):
        found = zip(type.type_codes, type, strict=True)
        return f"one of {[(code, field.name, _kind(field.type)) for code, field in found]}"
    if types.is_map(type):
        return f"{_kind(type.key_type)}: {_kind(type.item_type)}"
    if types.is_nested(type):
        return f"list of {_kind(type.value_type)}"
    if types.is_decimal(type):
        return f"decimal of {type.scale}"
    return str(type).removeprefix("large_").removesuffix("_view")

"""Layouts that Arrow's kernels cannot handle are undone where rows come in: a flow sees the plain type of the values.

Arrow can store values in ways for which it has no kernels that pick rows, nor some of its readers: views (what Polars,
DuckDB and DataFusion write) and run-end encoding. Rules:

1. A ``string_view`` is a ``string``, a ``binary_view`` a ``binary``, a ``list_view`` a ``list``, a ``large_list_view``
   a ``large_list``, run-end encoded values are the values; at every depth: in lists, structs, maps, dictionaries and
   the extension types of Arrow. Everything else stays as it is: large types, dictionaries, names, nullability.
2. This happens at the doors where rows enter: the reading of splits, a user's function, a computed column, an index. No
   operator meets such a type. What cannot be undone (in a union, in an extension type of somebody else) is refused when
   the flow is planned.
3. A dictionary stays one where Arrow can put several together: of simple values (not half floats, which it corrupts),
   as a column of its own; its codes have at least 32 bits, for those of two tables may not fit into fewer. Elsewhere
   it is its values.
4. A plain column holds at most 2 GiB of text; a batch whose values are more is cut into several.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import DataError, FlowError
from .list_layouts import as_lists, elements
from .nested_types import with_children

_CODE_BITS = 32


class _NotPlainError(Exception):
    """There is no plain type."""


def plain_type(type: pa.DataType) -> pa.DataType:
    """The type that the flow sees; the same object if it is plain. Raises FlowError if there is none."""
    try:
        return _plain_type(type)
    except _NotPlainError:
        raise _refused("a column", type) from None


def plain_field(field: pa.Field) -> pa.Field:
    """The column with its plain type. Raises FlowError, naming it, if there is none."""
    try:
        return _plain_field(field)
    except _NotPlainError:
        raise _refused(f"column {field.name!r}", field.type) from None


@lru_cache(maxsize=256)
def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with plain types; the same object if they are. Raises FlowError, naming a column that has none."""
    given = list(schema)
    fields = [plain_field(field) for field in given]
    if all(made is field for made, field in zip(fields, given, strict=True)):
        return schema
    return pa.schema(fields, schema.metadata)


def check_plain(kind: str, schema: pa.Schema) -> None:
    """Raise FlowError unless the types of an operator's rows are plain."""
    plain = plain_schema(schema)
    for field, wanted in () if plain is schema else zip(schema, plain, strict=True):
        if wanted.type != field.type:
            raise FlowError(
                f"{kind}: column {field.name!r} of its output is {field.type}, which no operator takes",
                f"let it give {wanted.type}, and cast the values",
            )


def plain_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows with plain types; a batch that is plain is passed on as it is. Types are looked at once, as long as
    batches have one schema."""
    known: pa.Schema | None = None
    schema: pa.Schema | None = None
    for records in batches:
        given = records.schema
        if known is None or not given.equals(known, check_metadata=True):
            known, found = given, plain_schema(given)
            schema = None if found.equals(given) else found
        if schema is None:
            yield records
        else:
            yield from _pieces(records, schema)


def plain_table(table: pa.Table) -> pa.Table:
    """The same rows with plain types."""
    schema = plain_schema(table.schema)
    return table if schema.equals(table.schema) else pa.Table.from_batches(plain_batches(table.to_batches()), schema)


def plain_array(array: pa.Array) -> pa.Array:
    """The same values in their plain type. Raises ArrowInvalid if they are too many for it: more than 2 GiB of text."""
    return _plain(array, plain_type(array.type))


def _refused(what: str, type: pa.DataType) -> FlowError:
    return FlowError(
        f"{what} is {type}: it holds views or runs where Penstock cannot undo them",
        "leave the column out, or cast it before: string_view to string, list_view to list",
    )


def _plain_field(field: pa.Field) -> pa.Field:
    type = _plain_type(field.type)
    return field if type == field.type else field.with_type(type)


def _inner_field(field: pa.Field) -> pa.Field:
    type = _plain_type(_value_type(field.type))
    return field if type == field.type else field.with_type(type)


def _value_type(type: pa.DataType) -> pa.DataType:
    types = pa.types
    return _value_type(type.value_type) if types.is_dictionary(type) or types.is_run_end_encoded(type) else type


def _plain_type(type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string_view(type):
        return pa.string()
    if types.is_binary_view(type):
        return pa.binary()
    if types.is_run_end_encoded(type):
        return _plain_type(type.value_type)
    if types.is_dictionary(type):
        return _plain_dictionary(type)
    if isinstance(type, pa.BaseExtensionType):
        return _plain_extension(type)
    made = _plain_nested(type) if types.is_nested(type) else type
    return type if made == type else made


def _plain_dictionary(type: pa.DictionaryType) -> pa.DataType:
    """Rule 3."""
    types, values = pa.types, _plain_type(type.value_type)
    if types.is_nested(values) or types.is_dictionary(values) or isinstance(values, pa.BaseExtensionType):
        return _plain_type(values)
    if types.is_null(values) or types.is_float16(values):
        return values
    codes = type.index_type if type.index_type.bit_width >= _CODE_BITS else pa.int32()
    same = values == type.value_type and codes == type.index_type
    return type if same else pa.dictionary(codes, values, type.ordered)


def _plain_nested(type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_union(type) and any(_inner_field(field) is not field for field in type):
        raise _NotPlainError
    if types.is_list_view(type):
        return pa.list_(_inner_field(type.value_field))
    if types.is_large_list_view(type):
        return pa.large_list(_inner_field(type.value_field))
    return with_children(type, _inner_field)


def _plain_extension(type: Any) -> pa.DataType:
    storage = _plain_type(type.storage_type)
    if storage == type.storage_type:
        return type
    if isinstance(type, pa.JsonType):
        return pa.json_(storage)
    if isinstance(type, pa.OpaqueType):
        return pa.opaque(storage, type.type_name, type.vendor_name)
    raise _NotPlainError


def _pieces(records: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rule 4."""
    try:
        columns = [_plain(column, field.type) for column, field in zip(records.columns, schema, strict=True)]
        made = pa.RecordBatch.from_arrays(columns, schema=schema)
    except pa.ArrowInvalid as error:
        if records.num_rows < 2:
            raise DataError(f"a row does not fit into plain columns: {error}", "read it in smaller rows") from error
        half = records.num_rows // 2
        yield from _pieces(records.slice(0, half), schema)
        yield from _pieces(records.slice(half), schema)
        return
    yield made


def _plain(array: pa.Array, type: pa.DataType) -> pa.Array:
    types, given = pa.types, array.type
    if given == type:
        return array
    if types.is_string_view(given):
        # the direct cast does not notice that offsets overflow
        return array.cast(pa.large_string()).cast(pa.string())
    if types.is_binary_view(given):
        return array.cast(pa.large_binary()).cast(pa.binary())
    if types.is_run_end_encoded(given):
        runs = array.run_ends.to_numpy(zero_copy_only=False)
        places = np.searchsorted(runs, np.arange(array.offset, array.offset + len(array)), side="right")
        return _plain(array.values, type).take(pa.array(places))
    if types.is_dictionary(given):
        if not types.is_dictionary(type):
            return _plain(array.dictionary, type).take(array.indices)
        codes, values = array.indices.cast(type.index_type), _plain(array.dictionary, type.value_type)
        return pa.DictionaryArray.from_arrays(codes, values, ordered=type.ordered)
    if isinstance(given, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type, _plain(array.storage, type.storage_type))
    if types.is_struct(given):
        children = [_plain(array.field(number), type.field(number).type) for number in range(type.num_fields)]
        return _rebuilt(array, type, [], children)
    if types.is_fixed_size_list(given):
        size = given.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        return _rebuilt(array, type, [], [_plain(values, type.value_type)])
    return _plain_lists(array, type)


def _plain_lists(array: pa.Array, type: pa.DataType) -> pa.Array:
    """Lists of both sizes, their views, and maps."""
    value_type = pa.struct([type.key_field, type.item_field]) if pa.types.is_map(type) else type.value_type
    array = as_lists(array)
    counts = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(counts)
    large = pa.types.is_large_list(type)
    if len(ends) and not large and ends[-1] >= 1 << 31:
        raise pa.ArrowInvalid(f"{ends[-1]} elements in lists")
    offsets = np.append(0, ends).astype(np.int64 if large else np.int32)
    found, places = elements(array, counts)
    values = _plain(found, value_type)
    return _rebuilt(array, type, [pa.py_buffer(offsets)], [values if places is None else values.take(pa.array(places))])


def _rebuilt(array: pa.Array, type: pa.DataType, buffers: list[pa.Buffer], children: list[pa.Array]) -> pa.Array:
    """Nested values of other children, null where ``array`` is."""
    valid = None
    if array.null_count:
        valid = pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    return pa.Array.from_buffers(type, len(array), [valid, *buffers], array.null_count, 0, children)


def _type_of(told: bytes) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(told)).field(0).type


def _reduced(type: pa.DataType) -> tuple[Callable[[bytes], pa.DataType], tuple[bytes]]:
    return _type_of, (pa.schema([("", type)]).serialize().to_pybytes(),)


# pyarrow itself cannot pickle the types that it has without a class of their own (``variable_shape_tensor``)
copyreg.pickle(pa.BaseExtensionType, _reduced)

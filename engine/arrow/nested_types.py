"""Types of the same kind as a given one with other children, for all who walk through nested types."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa


def with_children(type: pa.DataType, made: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """The type with what ``made`` makes of each child; as it is, if it has none, or is a union, dictionary, extension
    or of runs. The key of a map is left to be non-null."""
    kinds = pa.types
    if kinds.is_struct(type):
        return pa.struct([made(field) for field in type])
    if kinds.is_map(type):
        return pa.map_(made(type.key_field).with_nullable(False), made(type.item_field), type.keys_sorted)
    if kinds.is_fixed_size_list(type):
        return pa.list_(made(type.value_field), type.list_size)
    for is_kind, make in (
        (kinds.is_list, pa.list_),
        (kinds.is_large_list, pa.large_list),
        (kinds.is_list_view, pa.list_view),
        (kinds.is_large_list_view, pa.large_list_view),
    ):
        if is_kind(type):
            return make(made(type.value_field))
    return type

"""Functions of lists that Arrow has no kernel for: membership, smallest and largest element, an element by position.

Rules:

1. Each is registered with Arrow as a function of its exact argument types when an expression first needs it, so such an
   expression means something in processes that have built it, and only there. Configs hold SQL text, which builds it.
2. A null argument gives null. Null elements are skipped; an empty list has no smallest element. NaN is the largest.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import FlowError
from ..core.schemas import value_type

Kernel: TypeAlias = Callable[..., pa.Array]

_registering = Lock()
_registered: set[str] = set()
"""Arrow registers functions for the process, and each once."""


def is_list(type: pa.DataType) -> bool:
    """Whether the type is one of lists of any length."""
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type))


def list_contains(
    lists: pc.Expression, list_type: pa.DataType, value: pc.Expression, type: pa.DataType
) -> pc.Expression:
    """Whether ``value`` is an element."""
    if not is_list(list_type):
        raise FlowError(f"a value of type {list_type} contains no elements", "give a list column")
    if pa.types.is_null(type):
        return pc.scalar(pa.scalar(None, pa.bool_()))
    if not _comparable(value_type(list_type.value_type), value_type(type)):
        raise FlowError(f"a list of {list_type.value_type} cannot contain a value of type {type}", "cast one of them")
    return _call("list_contains", _contains, [(lists, list_type), (value, type)], pa.bool_())


def list_extreme(lists: pc.Expression, type: pa.DataType, *, largest: bool) -> pc.Expression:
    """The smallest or ``largest`` element."""
    kernel = _largest if largest else _smallest
    return _call("list_max" if largest else "list_min", kernel, [(lists, type)], type.value_type)


def list_item(lists: pc.Expression, type: pa.DataType, position: int) -> pc.Expression:
    """The element at ``position``, from 0, or from the end if negative; null if there is none."""

    def kernel(context: Any, values: Any) -> pa.Array:
        return _item(_whole(values, context.batch_length), position)

    return _call(f"list_item[{position}]", kernel, [(lists, type)], type.value_type)


def _call(
    name: str, kernel: Kernel, arguments: list[tuple[pc.Expression, pa.DataType]], result: pa.DataType
) -> pc.Expression:
    types = [type for _, type in arguments]
    full = f"penstock.{name}({', '.join(map(str, types))})"
    with _registering:
        if full not in _registered:
            inputs = {f"argument_{number}": type for number, type in enumerate(types)}
            pc.register_scalar_function(kernel, full, {"summary": name, "description": name}, inputs, result)
            _registered.add(full)
    return pc.Expression._call(full, [argument for argument, _ in arguments])


def _comparable(one: pa.DataType, other: pa.DataType) -> bool:
    try:
        pc.equal(pa.nulls(0, one), pa.nulls(0, other))
    except pa.ArrowException:
        return False
    return True


def _whole(value: Any, rows: int) -> pa.Array:
    """An argument as an array: Arrow hands over scalars where all rows are equal."""
    return pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value


def _flat(lists: pa.Array) -> tuple[pa.Array, Any]:
    """The elements, and the number of the list of each."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return lists.flatten(), np.repeat(np.arange(len(lists)), lengths)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _contains(context: Any, given: Any, values: Any) -> pa.Array:
    lists, values = (_whole(value, context.batch_length) for value in (given, values))
    elements, owners = _flat(lists)
    equal = pc.equal(_decoded(elements), _decoded(values).take(pa.array(owners)))
    found = np.zeros(len(lists), dtype=bool)
    found[owners[equal.fill_null(False).to_numpy(zero_copy_only=False)]] = True
    is_null = pc.or_(lists.is_null(), values.is_null()).to_numpy(zero_copy_only=False)
    return pa.array(found, mask=is_null)


def _smallest(context: Any, given: Any) -> pa.Array:
    return _extreme(_whole(given, context.batch_length), first=True)


def _largest(context: Any, given: Any) -> pa.Array:
    return _extreme(_whole(given, context.batch_length), first=False)


def _extreme(lists: pa.Array, *, first: bool) -> pa.Array:
    elements, owners = _flat(lists)
    valid = np.flatnonzero(elements.is_valid().to_numpy(zero_copy_only=False))
    table = pa.table({"owner": owners[valid], "element": _decoded(elements).take(pa.array(valid))})
    order = pc.sort_indices(table, [("owner", "ascending"), ("element", "ascending")]).to_numpy()
    places = np.arange(len(lists))
    sorted_owners = owners[valid][order]
    begin, end = (np.searchsorted(sorted_owners, places, side=side) for side in ("left", "right"))
    at = pa.array(begin if first else end - 1, mask=begin == end)
    return elements.take(pa.array(valid[order]).take(at))


def _item(lists: pa.Array, position: int) -> pa.Array:
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    inside = (lengths > position) if position >= 0 else (lengths >= -position)
    at = starts + (position if position >= 0 else lengths + position)
    return lists.flatten().take(pa.array(at, mask=~inside))

"""Functions of lists that Arrow has no kernel for.

A null list gives null. Null elements are skipped; an empty list has no smallest element, and no sum. NaN is the
largest. What is sorted has nulls last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import FlowError
from ..core.schemas import value_type
from .own_kernels import own_call, whole


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
    return own_call("list_contains", _contains, [(lists, list_type), (value, type)], pa.bool_())


def list_extreme(lists: pc.Expression, type: pa.DataType, *, largest: bool) -> pc.Expression:
    """The smallest or ``largest`` element."""
    kernel = _largest if largest else _smallest
    return own_call("list_max" if largest else "list_min", kernel, [(lists, type)], type.value_type)


def list_item(lists: pc.Expression, type: pa.DataType, position: int) -> pc.Expression:
    """The element at ``position``, from 0, or from the end if negative; null if there is none."""

    def kernel(context: Any, values: Any) -> pa.Array:
        return _item(whole(values, context.batch_length), position)

    return own_call(f"list_item[{position}]", kernel, [(lists, type)], type.value_type)


def _comparable(one: pa.DataType, other: pa.DataType) -> bool:
    try:
        pc.equal(pa.nulls(0, one), pa.nulls(0, other))
    except pa.ArrowException:
        return False
    return True


def _flat(lists: pa.Array) -> tuple[pa.Array, Any]:
    """The elements, and the number of the list of each."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return lists.flatten(), np.repeat(np.arange(len(lists)), lengths)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _contains(context: Any, given: Any, values: Any) -> pa.Array:
    lists, values = (whole(value, context.batch_length) for value in (given, values))
    elements, owners = _flat(lists)
    equal = pc.equal(_decoded(elements), _decoded(values).take(pa.array(owners)))
    found = np.zeros(len(lists), dtype=bool)
    found[owners[equal.fill_null(False).to_numpy(zero_copy_only=False)]] = True
    is_null = pc.or_(lists.is_null(), values.is_null()).to_numpy(zero_copy_only=False)
    return pa.array(found, mask=is_null)


def _smallest(context: Any, given: Any) -> pa.Array:
    return _extreme(whole(given, context.batch_length), first=True)


def _largest(context: Any, given: Any) -> pa.Array:
    return _extreme(whole(given, context.batch_length), first=False)


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


# ---------------------------------------------------------------------- sums, order, and lists that are made


def list_sum(lists: pc.Expression, type: pa.DataType) -> pc.Expression:
    """The sum of the elements; whole numbers as int64, which is an error of the data beyond that."""
    inner = type.value_type
    result = pa.int64() if pa.types.is_integer(inner) else pa.float64()
    if pa.types.is_decimal(inner):
        result = pa.decimal128(38, inner.scale)
    elif not (pa.types.is_integer(inner) or pa.types.is_floating(inner)):
        raise FlowError(f"elements of type {inner} have no sum", "give a list of numbers")

    def kernel(context: Any, values: Any) -> pa.Array:
        return _sums(whole(values, context.batch_length), result)

    return own_call("list_sum", kernel, [(lists, type)], result)


def _sums(lists: pa.Array, result: pa.DataType) -> pa.Array:
    elements, owners = _flat(lists)
    valid = elements.is_valid().to_numpy(zero_copy_only=False)
    owners, elements = owners[valid], elements.drop_null()
    if pa.types.is_decimal(result):
        grouped = pa.table({"owner": owners, "element": elements.cast(result)}).group_by("owner", use_threads=False)
        sums = grouped.aggregate([("element", "sum")])
        places = pc.index_in(pa.array(np.arange(len(lists))), sums["owner"].combine_chunks())
        return sums["element_sum"].combine_chunks().cast(result).take(places)
    numbers = elements.cast(result).to_numpy(zero_copy_only=False)
    found = np.zeros(len(lists), numbers.dtype)
    np.add.at(found, owners, numbers)
    if pa.types.is_integer(result):
        near = np.bincount(owners, numbers.astype(float), len(lists))
        if np.any(np.abs(near) > 2.0**63 - 2.0**12):
            raise pa.ArrowInvalid("overflow: the sum of a list is beyond int64")
    return pa.array(found, mask=np.bincount(owners, minlength=len(lists)) == 0)


def list_mean(lists: pc.Expression, type: pa.DataType) -> pc.Expression:
    """The mean of the elements, as float64."""
    if not (pa.types.is_integer(type.value_type) or pa.types.is_floating(type.value_type)):
        raise FlowError(f"elements of type {type.value_type} have no mean", "cast them to double")

    def kernel(context: Any, values: Any) -> pa.Array:
        given = whole(values, context.batch_length)
        elements, owners = _flat(given)
        owners = owners[elements.is_valid().to_numpy(zero_copy_only=False)]
        counts = np.bincount(owners, minlength=len(given))
        sums = np.bincount(owners, elements.drop_null().cast(pa.float64(), safe=False).to_numpy(), len(given))
        return pa.array(sums / np.maximum(counts, 1), mask=counts == 0)

    return own_call("list_mean", kernel, [(lists, type)], pa.float64())


def list_sorted(lists: pc.Expression, type: pa.DataType, *, largest_first: bool) -> pc.Expression:
    """The elements in order, nulls last."""

    def kernel(context: Any, values: Any) -> pa.Array:
        given = whole(values, context.batch_length)
        elements, owners = _flat(given)
        table = pa.table({"owner": owners, "element": _decoded(elements)})
        order = "descending" if largest_first else "ascending"
        return _listed(given, elements.take(pc.sort_indices(table, [("owner", "ascending"), ("element", order)])))

    return own_call("list_reverse_sort" if largest_first else "list_sort", kernel, [(lists, type)], _variable(type))


def list_distinct(lists: pc.Expression, type: pa.DataType) -> pc.Expression:
    """Each element once, where it comes first; no nulls."""

    def kernel(context: Any, values: Any) -> pa.Array:
        given = whole(values, context.batch_length)
        elements, owners = _flat(given)
        codes = elements.dictionary_encode().indices if not pa.types.is_dictionary(elements.type) else elements.indices
        valid = np.flatnonzero(codes.is_valid().to_numpy(zero_copy_only=False))
        keys = np.stack([owners[valid], codes.drop_null().to_numpy().astype(np.int64)], axis=1)
        kept = valid[np.sort(np.unique(keys, axis=0, return_index=True)[1])]
        return _listed(given, elements.take(pa.array(kept)), np.bincount(owners[kept], minlength=len(given)))

    return own_call("list_distinct", kernel, [(lists, type)], _variable(type))


def list_of(values: Sequence[pc.Expression], type: pa.DataType) -> pc.Expression:
    """A list of values, which are of one type, nulls included."""

    def kernel(context: Any, *given: Any) -> pa.Array:
        rows, columns = context.batch_length, [whole(each, context.batch_length) for each in given]
        places = np.arange(rows * len(columns)).reshape(len(columns), rows).T.ravel()
        elements = pa.concat_arrays(columns).take(pa.array(places))
        return pa.ListArray.from_arrays(np.arange(0, rows * len(columns) + 1, len(columns), dtype=np.int32), elements)

    return own_call("list_value", kernel, [(each, type) for each in values], pa.list_(type))


def list_joined(one: pc.Expression, other: pc.Expression, type: pa.DataType) -> pc.Expression:
    """Two lists of one type, one behind the other; one that is null counts as empty if the other is not."""

    def kernel(context: Any, *given: Any) -> pa.Array:
        lists = [whole(each, context.batch_length) for each in given]
        parts = [_flat(each) for each in lists]
        owners = np.concatenate([part[1] for part in parts])
        order = np.argsort(owners, kind="stable")
        elements = pa.concat_arrays([part[0] for part in parts]).take(pa.array(order))
        nothing = pc.and_(*(each.is_null() for each in lists)).to_numpy(zero_copy_only=False)
        return _made(elements, np.bincount(owners, minlength=context.batch_length), nothing)

    return own_call("list_concat", kernel, [(one, type), (other, type)], _variable(type))


def _variable(type: pa.DataType) -> pa.DataType:
    return pa.list_(type.value_type)


def _listed(lists: pa.Array, elements: pa.Array, lengths: Any = None) -> pa.Array:
    """Lists of these elements, null where ``lists`` are, and as long unless ``lengths`` say otherwise."""
    if lengths is None:
        lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return _made(elements, lengths, lists.is_null().to_numpy(zero_copy_only=False))


def _made(elements: pa.Array, lengths: Any, nothing: Any) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), elements, mask=pa.array(nothing))


def list_text(lists: pc.Expression, type: pa.DataType, between: str) -> pc.Expression:
    """The elements that are not null, as one text; null if all are."""

    def kernel(context: Any, values: Any) -> pa.Array:
        given = whole(values, context.batch_length)
        elements, owners = _flat(given)
        kept = elements.is_valid().to_numpy(zero_copy_only=False)
        texts = _decoded(elements).drop_null().cast(pa.string())
        lengths = np.bincount(owners[kept], minlength=len(given))
        nothing = (np.bincount(owners, minlength=len(given)) > 0) & (lengths == 0)
        nothing |= given.is_null().to_numpy(zero_copy_only=False)
        return pc.binary_join(_made(texts, lengths, nothing), between)

    return own_call(f"array_to_string[{between!r}]", kernel, [(lists, type)], pa.string())

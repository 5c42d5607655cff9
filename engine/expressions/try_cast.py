"""A cast that gives null for what it cannot take.

What looks like a number or is one is cast at once. The other values are cast one by one, equal ones once.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .own_kernels import own_call, whole
from .sql_arguments import plain_text
from .sql_values import Value, cast_to

_LOOKS_GOOD = r"^[+-]?\d{1,9}$"


def tried(value: Value, type: pa.DataType) -> pc.Expression:
    """The value as ``type``, or null."""
    if value.type == type or pa.types.is_null(value.type):
        return cast_to(value, type).expression
    from .evaluator import Evaluator

    value = plain_text(value)
    if pa.types.is_large_string(value.type):
        value = cast_to(value, pa.string())
    column = Value(pc.field("given"), value.type)
    ways = _of_text(column, type) if pa.types.is_string(value.type) else [cast_to(column, type).expression]
    evaluators = [Evaluator([("cast", way)]) for way in ways]

    def kernel(context: Any, given: Any) -> pa.Array:
        return _cast(whole(given, context.batch_length), evaluators, type)

    return own_call(f"try_cast[{type}]", kernel, [(value.expression, value.type)], type)


def _of_text(column: Value, type: pa.DataType) -> list[pc.Expression]:
    """Ways to read a text, the best first: whole numbers may be written with a point or an exponent."""
    text = Value(pc.utf8_trim_whitespace(column.expression), pa.string())
    ways = [text.expression.cast(type)]
    if pa.types.is_integer(type):
        decimal = pa.decimal128(38, 9)
        ways += [cast_to(Value(text.expression.cast(each), each), type).expression for each in (decimal, pa.float64())]
    return ways


def _cast(column: pa.Array, evaluators: list[Any], type: pa.DataType) -> pa.Array:
    whole_column = _computed(evaluators[0], column)
    if whole_column is not None:
        return whole_column
    coded = column.dictionary_encode()
    distinct = coded.dictionary
    good = pa.array([False] * len(distinct))
    if pa.types.is_string(distinct.type):
        good = pc.match_substring_regex(distinct, _LOOKS_GOOD)
    at_once = _computed(evaluators[0], pc.if_else(good, distinct, pa.scalar(None, distinct.type)))
    if at_once is None:
        good, at_once = pa.array([False] * len(distinct)), pa.nulls(len(distinct), type)
    found = [
        at_once[place] if fine else _one(evaluators, distinct.slice(place, 1))
        for place, fine in enumerate(good.to_pylist())
    ]
    return pa.array([each.as_py() for each in found], type).take(coded.indices)


def _one(evaluators: list[Any], value: pa.Array) -> pa.Scalar:
    for each in evaluators:
        made = _computed(each, value)
        if made is not None:
            return made[0]
    return pa.scalar(None)


def _computed(evaluator: Any, column: pa.Array) -> pa.Array | None:
    from ..core.errors import DataError

    try:
        (found,) = evaluator.evaluate(pa.record_batch({"given": column}))
    except DataError:
        return None
    return found

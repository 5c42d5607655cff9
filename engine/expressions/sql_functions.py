"""The functions that SQL text may call, on kernels of Arrow.

Rules:

1. A function gets values with their types, and gives an expression. Names and meaning are DuckDB's; positions count
   from 1.
2. Arguments that shape the result (digits, patterns, positions, units) must be constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from . import sql_decimals as decimals
from .list_functions import is_list, list_contains, list_extreme, list_item
from .sql_values import Value, alike, as_item, cast_to, exact, minus, on_par, plus, remainder

Values: TypeAlias = Sequence[Value]
Function: TypeAlias = Callable[[Values], Any]


def date_part(unit: str, value: Value) -> pc.Expression | None:
    """A part of a date or time; None if there is no such part."""
    function = FUNCTIONS.get(unit.lower()) if unit.lower() in PARTS else None
    return None if function is None else function([value])


# ---------------------------------------------------------------------- makers of functions


def _plain(kernel: Callable[..., Any], least: int = 1, most: int | None = None) -> Function:
    """A kernel that takes the arguments as they are."""

    def function(values: Values) -> Any:
        _count(values, least, most or least)
        return kernel(*(value.expression for value in values))

    return function


def _floating(kernel: Callable[..., Any]) -> Function:
    """A kernel of one number that computes in float64."""

    def function(values: Values) -> Any:
        _count(values, 1, 1)
        return kernel(cast_to(values[0], pa.float64()).expression)

    return function


def _part(kernel: Callable[..., Any], **options: Any) -> Function:
    def function(values: Values) -> Any:
        _count(values, 1, 1)
        return kernel(values[0].expression, **options)

    return function


def _count(values: Values, least: int, most: int) -> None:
    if not least <= len(values) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise ValueError(f"takes {wanted} arguments, not {len(values)}")


def _constant(values: Values, position: int, type: type) -> Any:
    value = values[position].constant
    if not isinstance(value, type):
        raise ValueError(f"argument {position + 1} must be a constant ({type.__name__})")
    return value


# ---------------------------------------------------------------------- functions


def _two(make: Callable[[Value, Value], Any]) -> Function:
    def function(values: Values) -> Any:
        _count(values, 2, 2)
        return make(*values)

    return function


def _chosen(kernel: Callable[..., Any]) -> Function:
    """A kernel that gives one of its arguments."""

    def function(values: Values) -> Any:
        _count(values, 1, 64)
        return kernel(*(value.expression for value in alike(values)))

    return function


def _round(values: Values) -> Any:
    _count(values, 1, 2)
    digits = _constant(values, 1, int) if len(values) == 2 else 0
    (value, *_) = values
    if not pa.types.is_decimal(value.type):
        return pc.round(value.expression, ndigits=digits, round_mode="half_towards_infinity")
    given = exact(value)
    if digits >= 0:
        scale = min(digits, given.scale)
        return decimals.recast(given, pa.decimal128(min(given.whole + 1 + scale, decimals.DIGITS), scale))
    return decimals.rounded_to_zeros(given, -digits)


def _whole(
    kernel: Callable[..., Any], beyond: Callable[..., Any] | None, step: Callable[[Value, Value], Any]
) -> Function:
    """A whole number beside a number. Of decimals: what is before the point, and one ``step`` on if the number lies
    ``beyond`` that."""

    def function(values: Values) -> Any:
        _count(values, 1, 1)
        (value,) = values
        if not pa.types.is_decimal(value.type):
            return kernel((cast_to(value, pa.float64()) if pa.types.is_integer(value.type) else value).expression)
        near = Value(*decimals.cut(exact(value)))
        if beyond is None:
            return near.expression
        far = cast_to(Value(step(near, Value.of(1)), decimals.fitted(near.type.precision + 1, 0)), near.type)
        return pc.if_else(beyond(*(each.expression for each in on_par(value, near))), far.expression, near.expression)

    return function


def _abs(values: Values) -> Any:
    _count(values, 1, 1)
    (value,) = values
    return pc.abs_checked(exact(value).expression if pa.types.is_decimal(value.type) else value.expression)


def _nullif(values: Values) -> Any:
    _count(values, 2, 2)
    one, other = (value.expression for value in on_par(*values))
    return pc.if_else(pc.coalesce(pc.equal(one, other), pc.scalar(False)), pc.scalar(None), values[0].expression)


def _substring(values: Values) -> Any:
    _count(values, 2, 3)
    start = _constant(values, 1, int)
    if start < 1:
        raise ValueError("the first character has position 1")
    if len(values) == 2:
        return pc.utf8_slice_codeunits(values[0].expression, start - 1)
    length = _constant(values, 2, int)
    if length < 0:
        raise ValueError("a length is 0 or more")
    stop = start - 1 + length
    return pc.utf8_slice_codeunits(values[0].expression, start - 1, stop)


def _left(values: Values) -> Any:
    _count(values, 2, 2)
    return pc.utf8_slice_codeunits(values[0].expression, 0, _constant(values, 1, int))


def _trimmed(plain: Callable[..., Any], of_characters: Callable[..., Any]) -> Function:
    def function(values: Values) -> Any:
        _count(values, 1, 2)
        if len(values) == 1:
            return plain(values[0].expression)
        return of_characters(values[0].expression, _constant(values, 1, str))

    return function


def _with_text(kernel: Callable[..., Any]) -> Function:
    """A kernel of a text and a constant one."""

    def function(values: Values) -> Any:
        _count(values, 2, 2)
        return kernel(values[0].expression, _constant(values, 1, str))

    return function


def _replace(values: Values) -> Any:
    _count(values, 3, 3)
    pattern, replacement = _constant(values, 1, str), _constant(values, 2, str)
    if not pattern:  # Arrow finds it for ever
        return values[0].expression
    return pc.replace_substring(values[0].expression, pattern, replacement)


def _position(values: Values) -> Any:
    """Characters, not bytes: one more than there are before the first place; 0 if there is none."""
    _count(values, 2, 2)
    text, wanted = values[0].expression, _constant(values, 1, str)
    one, none = (pc.scalar(pa.scalar(number, pa.int32())) for number in (1, 0))
    if not wanted:
        return pc.if_else(pc.is_valid(text), one, pc.scalar(None))
    before = pc.list_element(pc.split_pattern(text, wanted, max_splits=1), 0)
    return pc.if_else(pc.match_substring(text, wanted), pc.add(pc.utf8_length(before), one), none)


def _concat(values: Values) -> Any:
    """Nulls count as empty texts. (Arrow's ``skip`` leaves out the rows in which all are null.)"""
    texts = [cast_to(value, pa.string()).expression for value in values]
    return pc.binary_join_element_wise(*texts, "", null_handling="replace", null_replacement="")


def _length(values: Values) -> Any:
    _count(values, 1, 1)
    (value,) = values
    return (pc.list_value_length if is_list(value.type) else pc.utf8_length)(value.expression)


def _contains(values: Values) -> Any:
    _count(values, 2, 2)
    one, other = values
    if is_list(one.type):
        other = as_item(other, one.type.value_type)
        return list_contains(one.expression, one.type, other.expression, other.type)
    return pc.match_substring(one.expression, _constant(values, 1, str))


def _extreme(largest: bool) -> Function:
    def function(values: Values) -> Any:
        _count(values, 1, 1)
        if not is_list(values[0].type):
            raise ValueError(f"takes a list, not {values[0].type}")
        return list_extreme(values[0].expression, values[0].type, largest=largest)

    return function


def _element(values: Values) -> Any:
    _count(values, 2, 2)
    position = _constant(values, 1, int)
    if not is_list(values[0].type) or position == 0:
        raise ValueError("takes a list and a position, from 1")
    return list_item(values[0].expression, values[0].type, position - 1 if position > 0 else position)


def _date_trunc(values: Values) -> Any:
    _count(values, 2, 2)
    return pc.floor_temporal(values[1].expression, unit=_constant(values, 0, str).lower())


def find_function(name: str) -> Function | None:
    """The function called ``name`` in any case."""
    return FUNCTIONS.get(name.lower())


FUNCTIONS: dict[str, Function] = {
    "abs": _abs,
    "ceil": _whole(pc.ceil, pc.greater, plus),
    "floor": _whole(pc.floor, pc.less, minus),
    "trunc": _whole(pc.trunc, None, plus),
    "round": _round,
    "sign": _plain(pc.sign),
    "sqrt": _floating(pc.sqrt),
    "exp": _floating(pc.exp),
    "ln": _floating(pc.ln),
    "log10": _floating(pc.log10),
    "log2": _floating(pc.log2),
    "power": lambda values: pc.power(*(cast_to(value, pa.float64()).expression for value in values)),
    "mod": _two(remainder),
    "isnan": _plain(pc.is_nan),
    "greatest": _chosen(pc.max_element_wise),
    "least": _chosen(pc.min_element_wise),
    "coalesce": lambda values: reduce(pc.coalesce, [value.expression for value in alike(values)]),
    "nullif": _nullif,
    "lower": _plain(pc.utf8_lower),
    "upper": _plain(pc.utf8_upper),
    "reverse": _plain(pc.utf8_reverse),
    "length": _length,
    "len": _length,
    "trim": _trimmed(pc.utf8_trim_whitespace, pc.utf8_trim),
    "ltrim": _trimmed(pc.utf8_ltrim_whitespace, pc.utf8_ltrim),
    "rtrim": _trimmed(pc.utf8_rtrim_whitespace, pc.utf8_rtrim),
    "substring": _substring,
    "substr": _substring,
    "left": _left,
    "replace": _replace,
    "strpos": _position,
    "concat": _concat,
    "starts_with": _with_text(pc.starts_with),
    "ends_with": _with_text(pc.ends_with),
    "regexp_matches": _with_text(pc.match_substring_regex),
    "contains": _contains,
    "list_contains": _contains,
    "array_contains": _contains,
    "cardinality": _length,
    "array_length": _length,
    "array_max": _extreme(True),
    "list_max": _extreme(True),
    "array_min": _extreme(False),
    "list_min": _extreme(False),
    "element_at": _element,
    "list_extract": _element,
    "date_trunc": _date_trunc,
    "year": _part(pc.year),
    "quarter": _part(pc.quarter),
    "month": _part(pc.month),
    "week": _part(pc.iso_week),
    "day": _part(pc.day),
    "dayofweek": _part(pc.day_of_week, count_from_zero=True, week_start=7),
    "dayofyear": _part(pc.day_of_year),
    "hour": _part(pc.hour),
    "minute": _part(pc.minute),
    "second": _part(pc.second),
}
PARTS = ("year", "quarter", "month", "week", "day", "dayofweek", "dayofyear", "hour", "minute", "second")

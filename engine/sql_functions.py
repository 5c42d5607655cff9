"""The functions that SQL text may call, on kernels of Arrow, and the conversions that its operators need.

Rules:

1. A function gets values with their types, and gives an expression. Names and meaning are DuckDB's; positions count
   from 1.
2. Arguments that shape the result (digits, patterns, positions, units) must be constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from .list_functions import is_list, list_contains, list_extreme, list_item


@dataclass(frozen=True, slots=True)
class Value:
    """An expression with its type; ``constant`` is what it always is, None if it is none (or null)."""

    expression: pc.Expression
    type: pa.DataType
    constant: Any = None

    @classmethod
    def of(cls, constant: Any) -> Value:
        """A constant."""
        scalar = pa.scalar(constant)
        return cls(pc.scalar(scalar), scalar.type, constant)


Values: TypeAlias = Sequence[Value]
Function: TypeAlias = Callable[[Values], Any]


# ---------------------------------------------------------------------- conversions


def truth(value: Value) -> pc.Expression:
    """A value as a condition: an untyped null is an unknown truth."""
    return pc.scalar(pa.scalar(None, pa.bool_())) if pa.types.is_null(value.type) else value.expression


def cast_to(value: Value, type: pa.DataType) -> Value:
    """The value as ``type``."""
    given, types = value.type, pa.types
    if given == type:
        return value
    if isinstance(value.constant, str) and (types.is_temporal(type) or types.is_integer(type)):
        return Value(pc.scalar(pa.scalar(value.constant).cast(type)), type)
    expression = value.expression
    if types.is_floating(given) and types.is_integer(type):
        expression = pc.round(expression, round_mode="half_to_even")
    if types.is_timestamp(given) and types.is_date(type):
        expression = pc.floor_temporal(expression, unit="day")
    if types.is_integer(given) and types.is_floating(type):
        return Value(expression.cast(type, safe=False), type)  # large numbers are rounded; that is no error
    return Value(expression.cast(type), type)


def on_par(one: Value, other: Value) -> tuple[Value, Value]:
    """Both operands of a calculation or comparison as Arrow should see them.

    Arrow picks a kernel by the smallest type that a constant fits: beside 2.5 it would compute integers as float32, and
    beside a decimal it cannot compute with a plain 2.
    """
    return _beside(one, other), _beside(other, one)


def _beside(value: Value, other: Value) -> Value:
    if pa.types.is_integer(value.type) and pa.types.is_float64(other.type):
        return cast_to(value, pa.float64())
    if pa.types.is_integer(value.type) and pa.types.is_decimal(other.type) and value.constant is not None:
        type = pa.decimal128(len(str(abs(value.constant))), 0)
        return Value(pc.scalar(pa.scalar(value.constant, type)), type, value.constant)
    return value


def divided(one: Value, other: Value) -> pc.Expression:
    """``one / other`` as float64; decimals stay decimals."""
    if pa.types.is_decimal(one.type) and pa.types.is_decimal(other.type):
        return pc.divide(one.expression, other.expression)
    return pc.divide(*(cast_to(each, pa.float64()).expression for each in (one, other)))


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


def _round(values: Values) -> Any:
    _count(values, 1, 2)
    digits = _constant(values, 1, int) if len(values) == 2 else 0
    return pc.round(values[0].expression, ndigits=digits, round_mode="half_towards_infinity")


def _nullif(values: Values) -> Any:
    _count(values, 2, 2)
    one, other = (value.expression for value in values)
    return pc.if_else(pc.coalesce(pc.equal(one, other), pc.scalar(False)), pc.scalar(None), one)


def _substring(values: Values) -> Any:
    _count(values, 2, 3)
    start = _constant(values, 1, int)
    if start < 1:
        raise ValueError("the first character has position 1")
    stop = start - 1 + _constant(values, 2, int) if len(values) == 3 else None
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
    return pc.replace_substring(values[0].expression, pattern, replacement)


def _position(values: Values) -> Any:
    _count(values, 2, 2)
    found = pc.find_substring(values[0].expression, _constant(values, 1, str))
    return pc.add(found, pc.scalar(pa.scalar(1, pa.int32())))


def _concat(values: Values) -> Any:
    """Nulls count as empty texts."""
    texts = [cast_to(value, pa.string()).expression for value in values]
    return pc.binary_join_element_wise(*texts, "", null_handling="skip")


def _length(values: Values) -> Any:
    _count(values, 1, 1)
    (value,) = values
    return (pc.list_value_length if is_list(value.type) else pc.utf8_length)(value.expression)


def _contains(values: Values) -> Any:
    _count(values, 2, 2)
    one, other = values
    if is_list(one.type):
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
    "abs": _plain(pc.abs_checked),
    "ceil": _plain(pc.ceil),
    "floor": _plain(pc.floor),
    "trunc": _plain(pc.trunc),
    "round": _round,
    "sign": _plain(pc.sign),
    "sqrt": _floating(pc.sqrt),
    "exp": _floating(pc.exp),
    "ln": _floating(pc.ln),
    "log10": _floating(pc.log10),
    "log2": _floating(pc.log2),
    "power": lambda values: pc.power(*(cast_to(value, pa.float64()).expression for value in values)),
    "mod": _plain(pc.remainder, 2),
    "isnan": _plain(pc.is_nan),
    "greatest": _plain(pc.max_element_wise, 1, 64),
    "least": _plain(pc.min_element_wise, 1, 64),
    "coalesce": lambda values: reduce(pc.coalesce, [value.expression for value in values]),
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

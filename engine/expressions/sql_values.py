"""Values of SQL text: expressions with their types, and how values of different types come together.

Rules:

1. A number with a point is a decimal, exact as it is written. Beside a float a decimal is the nearest double; beside
   integers and decimals all are decimals (``sql_decimals``).
2. Arrow picks a kernel by the smallest type that a constant fits, and finds nothing wrong with decimals of different
   types as long as there are no rows. So whatever must have one type is given it here.
3. Arrow brings uint64 and signed integers together as int64, which does not hold them all. Here a constant that is not
   negative becomes uint64 beside such a column; other signed integers meet it as decimals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from . import sql_decimals as decimals
from .sql_decimals import Exact

_INT64 = range(-(2**63), 2**63)
_EXACT_IN_FLOAT32 = 2**24


@dataclass(frozen=True, slots=True)
class Value:
    """An expression with its type; ``constant`` is what it always is, None if it is none (or null). ``meant``: of JSON
    text the value that a cast reads."""

    expression: pc.Expression
    type: pa.DataType
    constant: Any = None
    meant: Value | None = None

    @classmethod
    def of(cls, constant: Any) -> Value:
        """A constant. A whole number beyond int64 is a decimal."""
        if isinstance(constant, Decimal) or (isinstance(constant, int) and constant not in _INT64):
            return cls.typed(Decimal(constant), decimals.type_of_number(constant))
        scalar = pa.scalar(constant)
        return cls(pc.scalar(scalar), scalar.type, constant)

    @classmethod
    def typed(cls, constant: Any, type: pa.DataType) -> Value:
        """A constant of a type that holds it exactly."""
        return cls(pc.scalar(pa.scalar(constant, type)), type, constant)


def truth(value: Value) -> pc.Expression:
    """A value as a condition: an untyped null is an unknown truth."""
    return pc.scalar(pa.scalar(None, pa.bool_())) if pa.types.is_null(value.type) else value.expression


# ---------------------------------------------------------------------- conversions


def cast_to(value: Value, type: pa.DataType) -> Value:
    """The value as ``type``."""
    given, types = value.type, pa.types
    if given == type:
        return value
    if isinstance(value.constant, str) and types.is_time(type):
        return Value(pc.scalar(pa.scalar(_time(value.constant), type)), type)
    if isinstance(value.constant, str) and (types.is_temporal(type) or types.is_integer(type)):
        return Value(pc.scalar(pa.scalar(value.constant).cast(type)), type)
    if types.is_decimal(given) and (types.is_floating(type) or types.is_integer(type) or types.is_decimal(type)):
        return _from_decimal(value, type)
    if types.is_integer(given) and types.is_decimal(type):
        return Value(decimals.recast(exact(value), type), type)
    expression = value.expression
    if types.is_floating(given) and types.is_integer(type):
        expression = pc.round(expression, round_mode="half_to_even")
    if types.is_timestamp(given) and types.is_date(type):
        expression = pc.floor_temporal(expression, unit="day")
    if types.is_timestamp(given) and given.tz is not None and types.is_timestamp(type) and type.tz is None:
        expression = pc.local_timestamp(expression)  # the wall clock of the column's zone, as for parts of it
    if types.is_integer(given) and types.is_floating(type):
        return Value(expression.cast(type, safe=False), type)  # large numbers are rounded; that is no error
    return Value(expression.cast(type), type)


def _time(text: str) -> time:
    try:
        return time.fromisoformat(text)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{text!r} is no time of day") from error


def _from_decimal(value: Value, type: pa.DataType) -> Value:
    given = Exact(value.expression, value.type.precision, value.type.scale)
    if pa.types.is_decimal(type):
        return Value(decimals.recast(given, type), type)
    if pa.types.is_integer(type):
        whole = pa.decimal128(min(given.whole + 1, decimals.DIGITS), 0)
        return Value(decimals.recast(given, whole).cast(type), type)
    if value.constant is not None:
        return Value.typed(float(value.constant), type)
    return Value(decimals.as_double(given).cast(type), type)


def exact(value: Value) -> Exact:
    """A decimal or an integer to compute with."""
    type = value.type
    if value.constant is not None and pa.types.is_integer(type):
        type = decimals.type_of_number(value.constant)
        return Exact(pc.scalar(pa.scalar(Decimal(value.constant), type)), type.precision, 0)
    if pa.types.is_integer(type):
        type = decimals.type_of_integers(type)
    elif not pa.types.is_decimal128(type):
        if type.precision > decimals.DIGITS:
            raise decimals.TooWideError(f"{type} has more than {decimals.DIGITS} digits")
        type = pa.decimal128(type.precision, type.scale)
    cast = value.expression if type == value.type else value.expression.cast(type)
    return Exact(cast, type.precision, type.scale)


def _retyped(value: Value, type: pa.DataType) -> Value:
    """A decimal or an integer as a decimal type that loses nothing of it."""
    if value.type == type:
        return value
    if value.constant is not None:
        return Value.typed(Decimal(value.constant), type)
    if pa.types.is_integer(value.type):
        given = exact(value)
        return Value(given.expression.cast(type), type)
    return Value(value.expression.cast(type), type)


# ---------------------------------------------------------------------- values that come together


def are_decimals(values: Iterable[Value]) -> bool:
    """Whether all are decimals or integers, and there is a decimal, or integers that have no other type in common."""
    types = [each.type for each in values]
    if not all(pa.types.is_decimal(type) or pa.types.is_integer(type) for type in types):
        return False
    return any(map(pa.types.is_decimal, types)) or (
        pa.uint64() in types and any(map(pa.types.is_signed_integer, types))
    )


def _unsigned(values: Sequence[Value]) -> list[Value]:
    """Values of which one is uint64: constants that can be are, too."""
    if not any(each.type == pa.uint64() for each in values):
        return list(values)
    return [
        Value.typed(each.constant, pa.uint64())
        if pa.types.is_signed_integer(each.type) and each.constant is not None and each.constant >= 0
        else each
        for each in values
    ]


def literals(values: Sequence[Value]) -> list[Value]:
    """Constants; whole numbers beside a decimal have as many digits as they are written with."""
    if not are_decimals(values):
        return list(values)
    return [
        Value.typed(Decimal(each.constant), _decimal_type(each)) if pa.types.is_integer(each.type) else each
        for each in values
    ]


def comparable(values: Sequence[Value]) -> bool:
    """Whether :func:`alike` loses nothing of what one would compare."""
    known = [each for each in values if not pa.types.is_null(each.type)]
    return not are_decimals(known) or pa.types.is_decimal128(decimals.comparable_type(map(_decimal_type, known)))


def on_par(one: Value, other: Value) -> tuple[Value, Value]:
    """Both operands of a comparison, or of a calculation that is not one of decimals, as Arrow should see them."""
    one, other = _unsigned([one, other])
    if are_decimals([one, other]):
        type = decimals.comparable_type(map(_decimal_type, (one, other)))
        return _retyped(one, type), _retyped(other, type)
    return _beside(one, other), _beside(other, one)


def _beside(value: Value, other: Value) -> Value:
    if pa.types.is_integer(value.type) and pa.types.is_floating(other.type) and not _is_exact(value):
        return cast_to(value, pa.float64())
    if pa.types.is_decimal(value.type) and pa.types.is_floating(other.type):
        return cast_to(value, pa.float64())
    return value


def _is_exact(value: Value) -> bool:
    """Whether a float of any width holds the integer, so that Arrow may choose the width."""
    return value.constant is not None and abs(value.constant) <= _EXACT_IN_FLOAT32


def alike(values: Sequence[Value]) -> list[Value]:
    """Values of which one becomes the result: decimals get one type (nulls fit every type)."""
    values = _unsigned(values)
    known = [each for each in values if not pa.types.is_null(each.type)]
    if are_decimals(known):
        type = decimals.common_type(map(_decimal_type, known))
        return [each if pa.types.is_null(each.type) else _to_common(each, type) for each in values]
    if any(pa.types.is_floating(each.type) for each in known):
        return [_as_float(each) for each in values]
    return list(values)


def _as_float(value: Value) -> Value:
    """A number beside a float that becomes the result: the nearest double, where Arrow would refuse to round it."""
    is_rounded = pa.types.is_integer(value.type) and not _is_exact(value)
    return cast_to(value, pa.float64()) if is_rounded or pa.types.is_decimal(value.type) else value


def _to_common(value: Value, type: pa.DataType) -> Value:
    if value.constant is not None and _decimal_type(value).scale <= type.scale:
        return _retyped(value, type)
    return cast_to(value, type)


def _decimal_type(value: Value) -> pa.DataType:
    if pa.types.is_decimal(value.type):
        return value.type
    if value.constant is not None:
        return decimals.type_of_number(value.constant)
    return decimals.type_of_integers(value.type)


def as_item(value: Value, type: pa.DataType) -> Value:
    """A constant number as an element of a list of ``type``, if it is one."""
    if isinstance(value.constant, Decimal) and pa.types.is_floating(type):
        return cast_to(value, pa.float64())
    return value


# ---------------------------------------------------------------------- calculations


def calculation(plain: Callable[..., Any], of_decimals: Callable[[Exact, Exact], Any]) -> Callable[[Value, Value], Any]:
    """A calculation by ``plain``, a kernel of two expressions, and for decimals by a function of theirs."""

    def calculated(one: Value, other: Value) -> Any:
        one, other = _unsigned([one, other])
        if are_decimals([one, other]):
            return of_decimals(exact(one), exact(other))
        one, other = on_par(one, other)
        return plain(one.expression, other.expression)

    return calculated


def _quotient(one: Value, other: Value) -> Any:
    if any(pa.types.is_decimal(each.type) for each in (one, other)) and are_decimals([one, other]):
        return decimals.divided(exact(one), exact(other))
    return pc.divide(*(cast_to(each, pa.float64()).expression for each in (one, other)))


def _power(one: Value, other: Value) -> Any:
    exponent = cast_to(other, pa.float64()) if pa.types.is_decimal(other.type) else other
    return pc.power(cast_to(one, pa.float64()).expression, exponent.expression)


plus = calculation(pc.add_checked, lambda one, other: decimals.added(pc.add_checked, one, other))
minus = calculation(pc.subtract_checked, lambda one, other: decimals.added(pc.subtract_checked, one, other))
times = calculation(pc.multiply_checked, decimals.multiplied)
divided = _quotient
divided_whole = calculation(pc.divide_checked, decimals.divided_whole)
remainder = calculation(pc.remainder, decimals.remaining)
power = _power

"""Decimals in SQL text: the precision and scale of every result, and how it is computed without a wrong digit.

Rules (``docs/guides/decimals.md`` says them to users):

1. Precision and scale are those of Spark with loss of scale allowed. A result that would need more than ``DIGITS``
   digits gives up digits behind the point, down to ``LEAST_SCALE``; what no longer fits then is an error when it
   is met, never null and never another number.
2. What is computed is the exact result, rounded once to its type: half away from zero. Where it does not fit into 128
   bits on the way, it is computed in 256.
3. Values are compared exactly, whatever their types.
4. Arrow's own rounding of decimals is not used: it loses carries beyond 18 digits (1.99…9 becomes 1.9…90), and fails on
   fractions that have no digit before the point. Half a unit is added, and the rest cut off.
5. Nor does Arrow divide 256 bits by more than 32 without now and then a wrong digit in the middle (99…9 by 10**18). So
   of a wide decimal no more than nine digits are cut off at once.
6. Divided by more than 32 bits, a quotient of Arrow's is now and then too small (where words of both are equal), and
   the remainder is what that quotient leaves. So both are divided once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

DIGITS = 38
"""What a decimal has at most."""
LEAST_SCALE = 6
"""Digits behind the point that a result keeps, however many it has before it."""
_WIDE = 76
"""Digits of a result on the way to its type."""
_SPARE_WIDE = _WIDE - 1
"""So many declared digits let Arrow add to a wide one; the values may have one more: 10**76 is less than 2**255."""

_DIGITS_OF_A_WORD = 9
"""10**9 is the largest power that has 32 bits."""

_OF_INTEGERS = {1: 3, 2: 5, 4: 10, 8: 20}
"""Digits that hold every integer of so many bytes, as Spark counts them."""


class TooWideError(ValueError):
    """A column has more digits than can be computed with."""


@dataclass(frozen=True, slots=True)
class Exact:
    """An expression that is a decimal128 of ``precision`` and ``scale``."""

    expression: pc.Expression
    precision: int
    scale: int

    @property
    def whole(self) -> int:
        """Digits before the point."""
        return self.precision - self.scale


# ---------------------------------------------------------------------- types


def fitted(precision: int, scale: int) -> pa.DataType:
    """The type of a calculation's result that has so many digits exactly (rule 1)."""
    if precision <= DIGITS:
        return pa.decimal128(max(precision, 1), scale)
    return pa.decimal128(DIGITS, max(DIGITS - (precision - scale), min(scale, LEAST_SCALE)))


def common_type(types: Iterable[pa.DataType]) -> pa.DataType:
    """The type for values of either type. Digits before the point are all kept; those of one wide type stay in it."""
    given = list(types)
    if given[0].precision > DIGITS and given.count(given[0]) == len(given):
        return given[0]
    whole, scale = _spans(given)
    return pa.decimal128(min(whole + scale, DIGITS), max(min(scale, DIGITS - whole), 0))


def comparable_type(types: Iterable[pa.DataType]) -> pa.DataType:
    """The type in which values of these types are compared: it loses nothing (rule 3)."""
    whole, scale = _spans(types)
    if whole + scale > _WIDE:
        raise TooWideError(f"values of {whole} digits before and {scale} behind the point cannot be compared")
    return (pa.decimal128 if whole + scale <= DIGITS else pa.decimal256)(whole + scale, scale)


def _spans(types: Iterable[pa.DataType]) -> tuple[int, int]:
    given = list(types)
    return max(each.precision - each.scale for each in given), max(each.scale for each in given)


def type_of_integers(type: pa.DataType) -> pa.DataType:
    """The decimal that holds all integers of a type."""
    return pa.decimal128(_OF_INTEGERS[type.bit_width // 8], 0)


def type_of_number(number: int | Decimal) -> pa.DataType:
    """The smallest decimal that holds a number as it is written: 0.50 has two digits."""
    _, digits, exponent = Decimal(number).as_tuple()
    assert isinstance(exponent, int)
    scale, length = max(-exponent, 0), len(digits) + max(exponent, 0)
    if max(length, scale) > DIGITS:
        raise TooWideError(f"{number} has more than {DIGITS} digits")
    return pa.decimal128(max(length, scale), scale)


# ---------------------------------------------------------------------- calculations


def added(kernel: Callable[..., Any], one: Exact, other: Exact) -> pc.Expression:
    """``kernel`` adds or subtracts."""
    scale = max(one.scale, other.scale)
    precision = max(one.whole, other.whole) + scale + 1
    if precision <= DIGITS:
        return kernel(one.expression, other.expression)
    made = kernel(*(_declared(_wide(each, scale), _SPARE_WIDE, scale) for each in (one, other)))
    return _rounded(made, _WIDE, scale, fitted(precision, scale))


def multiplied(one: Exact, other: Exact) -> pc.Expression:
    """The product."""
    scale, precision = one.scale + other.scale, one.precision + other.precision + 1
    if precision <= DIGITS:
        return pc.multiply_checked(one.expression, other.expression)
    left, right = (_wide(each, each.scale) for each in (one, other))
    declared = min(other.precision, _WIDE - 1 - one.precision)
    made = pc.multiply_checked(left, _declared(right, declared, other.scale))
    return _rounded(made, one.precision + declared + 1, scale, fitted(precision, scale))


def divided(one: Exact, other: Exact) -> pc.Expression:
    """The quotient."""
    scale = max(LEAST_SCALE, one.scale + other.precision + 1)
    type = fitted(one.whole + other.scale + scale, scale)
    made, precision, scale = _quotient(one, other, type.scale + 1)
    return _rounded(made, precision, scale, type)


def divided_whole(one: Exact, other: Exact) -> pc.Expression:
    """The quotient without what is behind its point, as int64."""
    made, _, _ = _quotient(one, other, 0)
    return _declared(made, _WIDE, 0).cast(pa.int64())


def remaining(one: Exact, other: Exact) -> pc.Expression:
    """What a division to a whole number leaves; it has the sign of ``one``."""
    scale = max(one.scale, other.scale)
    type = pa.decimal128(min(one.whole, other.whole) + scale, scale)
    kind = _kind(max(one.whole, other.whole) + scale)
    left, right = (_in(kind, each, scale) for each in (one, other))
    return pc.remainder(pc.remainder(left, right), right).cast(type)  # twice: rule 6


def _quotient(one: Exact, other: Exact, digits: int) -> tuple[pc.Expression, int, int]:
    """The quotient cut off after at least ``digits`` digits, its precision and its scale.

    Arrow cuts a quotient of decimals (p1, s1) and (p2, s2) off after max(4, s1 + p2 - s2 + 1) digits. So the divisor is
    declared to have one digit, and the dividend gets the scale that makes it ``digits``: then Arrow adds two to it.
    """
    before = max(max(digits, 4) - 2 + other.scale, one.scale)
    needed = one.precision + before - one.scale + 2  # more than _WIDE: a dividend that has them is an error
    kind = _kind(max(needed, other.precision) + 1)
    dividend = one.expression.cast(kind(min(needed, _WIDE) - 2, before))
    divisor = _declared(other.expression.cast(kind(other.precision, other.scale)), 1, other.scale, kind)
    found, precision, scale = pc.divide(dividend, divisor), min(needed, _WIDE), before + 2 - other.scale
    # rule 6: what the quotient leaves is divided once more
    product = pc.multiply(_declared(found, 1, scale, kind), divisor)
    most = _WIDE if kind is pa.decimal256 else DIGITS
    parts = (_declared(each, most - 1, before + 2, kind) for each in (dividend, product))
    left = pc.divide(_declared(pc.subtract(*parts), most - 2, before + 2, kind), divisor)
    whole = (_declared(each, most - 1, scale, kind) for each in (found, left))
    return _declared(pc.add(*whole), precision, scale, kind), precision, scale


# ---------------------------------------------------------------------- conversions


def recast(one: Exact, type: pa.DataType) -> pc.Expression:
    """The decimal as another one, rounded if it has fewer digits behind the point."""
    return _rounded(one.expression, one.precision, one.scale, type)


def rounded_to_zeros(one: Exact, zeros: int) -> pc.Expression:
    """The nearest multiple of ``10**zeros``, half away from zero. An error when it is met if it has too many digits."""
    type = pa.decimal128(min(max(one.whole, zeros) + 1, DIGITS), 0)
    zeros = min(zeros, one.whole + 1)  # which is enough to make it 0
    kind, scale = _kind(one.precision + 4), one.scale + zeros
    shift = pa.scalar(Decimal(1).scaleb(-zeros), kind(zeros, zeros)).cast(kind(1, zeros), safe=False)
    shifted = pc.multiply_checked(_in(kind, one, one.scale), shift)
    kept = max(one.whole - zeros + 1, 1)
    rounded = _rounded(shifted, one.precision + 2, scale, pa.decimal128(kept, 0))
    power = pa.scalar(Decimal(10**zeros), kind(zeros + 1, 0))
    return pc.multiply_checked(rounded.cast(kind(kept, 0)), power).cast(type)


def cut(one: Exact) -> tuple[pc.Expression, pa.DataType]:
    """Without what is behind the point, and the type that this has. It has a digit to spare."""
    type = pa.decimal128(min(one.whole + 1, DIGITS), 0)
    return one.expression.cast(type, safe=False), type


def as_double(one: Exact) -> pc.Expression:
    """The nearest double. (Arrow multiplies by 0.1**scale, which is another one for every seventh number.)"""
    if one.precision > 15:
        return one.expression.cast(pa.string()).cast(pa.float64())
    # Up to here Arrow's result times 10**scale is nearer than a third to the decimal's digits, which are a double
    power = pc.scalar(float(10**one.scale))
    digits = pc.round(pc.multiply(one.expression.cast(pa.float64()), power))
    return pc.divide(digits, power)


def _kind(precision: int) -> Callable[[int, int], pa.DataType]:
    kind: Callable[[int, int], pa.DataType] = pa.decimal128 if precision <= DIGITS else pa.decimal256
    return kind


def _wide(one: Exact, scale: int) -> pc.Expression:
    return _in(pa.decimal256, one, scale)


def _in(kind: Callable[[int, int], pa.DataType], one: Exact, scale: int) -> pc.Expression:
    return one.expression.cast(kind(one.precision + scale - one.scale, scale))


def _declared(
    expression: pc.Expression, precision: int, scale: int, kind: Callable[[int, int], pa.DataType] = pa.decimal256
) -> pc.Expression:
    """The same digits under another precision. A cast that is not checked leaves them as they are."""
    return expression.cast(kind(precision, scale), safe=False)


def _rounded(expression: pc.Expression, precision: int, scale: int, type: pa.DataType) -> pc.Expression:
    """A decimal of ``precision`` and ``scale`` as ``type``; what does not fit is an error when it is met."""
    if type.scale < scale:
        kind = _kind(precision + 1)
        declared = min(precision, _SPARE_WIDE)
        given = _declared(expression, declared, scale, kind)
        half = pa.scalar(Decimal(5).scaleb(-type.scale - 1), kind(type.scale + 1, type.scale + 1))
        half = half.cast(kind(1, type.scale + 1), safe=False)  # for the declared precision of the sum
        zero = pc.scalar(pa.scalar(Decimal(0), kind(max(declared, scale), scale)))
        moved = pc.if_else(pc.less(given, zero), pc.subtract_checked(given, half), pc.add_checked(given, half))
        expression = _cut(moved, declared, scale, type.scale, kind)
    return expression.cast(type)


def _cut(
    expression: pc.Expression, precision: int, scale: int, kept: int, kind: Callable[[int, int], pa.DataType]
) -> pc.Expression:
    """With ``kept`` of ``scale`` digits behind the point (rule 5)."""
    at_once = scale if kind is pa.decimal128 else _DIGITS_OF_A_WORD
    while scale > kept:
        scale = max(kept, scale - at_once)
        expression = _declared(expression, precision, scale, kind)
    return expression

"""What share of the rows a condition lets pass, guessed from the least and largest values of columns.

Rules:

1. A guess is for choosing between plans that give the same rows: it may be wrong, never an error.
2. Between its bounds a column has any value as often as any other one; columns have nothing to do with each other. Of
   what the bounds do not tell, the constants below are taken.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from decimal import Decimal
from math import inf, isfinite
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from .kernel_calls import FLIPPED
from .tree import Call, ColumnPath, NotPlainError, Tree, serialized, tree_of

UNKNOWN = 1 / 3
"""Of a condition of which nothing is known, or that compares two columns."""
ONE_VALUE = 0.1
"""Of rows that have a certain value of a column with unknown bounds, or a text like a certain one."""
LEAST = 1e-6

Bounds: TypeAlias = tuple[float, float]
_Ranges: TypeAlias = Mapping[str, Bounds]


def share_of(condition: pc.Expression, ranges: _Ranges) -> float:
    """The share of rows for which ``condition`` holds, over columns with these bounds."""
    try:
        whole = tree_of(serialized(condition))
    except NotPlainError:
        return UNKNOWN
    return min(1.0, max(LEAST, _share(whole, ranges)))


def as_number(value: object) -> float | None:
    """A value on a line, whole for whole values; None if it has no place there."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float | Decimal):
        number = float(value)
    elif isinstance(value, datetime.datetime):
        number = value.replace(tzinfo=value.tzinfo or datetime.UTC).timestamp()
    elif isinstance(value, datetime.date):
        number = float(value.toordinal())
    else:
        return None
    return number if isfinite(number) else None


def _share(part: Tree, ranges: _Ranges) -> float:
    """Of one condition."""
    match part:
        case Call("and_kleene"):
            return _of_all(part, ranges)
        case Call("or_kleene", [one, other]):
            return min(1.0, _share(one, ranges) + _share(other, ranges))
        case Call("invert", [one]):
            return 1 - _share(one, ranges)
        case Call("if_else", [Call("is_valid"), one, pa.Scalar()]):
            return _share(one, ranges)
        case Call(
            "equal", [ColumnPath() as column, pa.Scalar() as value] | [pa.Scalar() as value, ColumnPath() as column]
        ):
            return _of_value(column, value, ranges)
        case Call("not_equal", [one, other]):
            return 1 - _share(Call("equal", (one, other)), ranges)
        case Call("is_in", [ColumnPath() as column]) if "value_set" in part.options:
            values = part.options["value_set"].values
            return min(1.0, len(values) * _of_value(column, values[0], ranges)) if len(values) else 0.0
        case Call("match_like" | "match_substring" | "starts_with" | "ends_with" | "is_null"):
            return ONE_VALUE
        case Call("is_valid"):
            return 1.0
        case _:
            return _of_all(part, ranges)


def _number_of(value: pa.Scalar) -> float | None:
    try:
        return as_number(value.as_py())
    except (ValueError, OverflowError):  # Python has no nanoseconds, and no year 10,000
        return None


def _of_value(column: ColumnPath, value: pa.Scalar, ranges: _Ranges) -> float:
    number, (name, *inner) = _number_of(value), column.path
    if number is None or inner or name not in ranges:
        return ONE_VALUE
    low, high = ranges[name]
    if not low <= number <= high:
        return 0.0
    is_whole = pa.types.is_integer(value.type) or pa.types.is_date(value.type)
    return 1 / (high - low + 1) if is_whole else ONE_VALUE


def _of_all(part: Tree, ranges: _Ranges) -> float:
    """Of conditions that must all hold: those that bound one column together, the others each for itself."""
    between: dict[str, Bounds] = {}
    found = 1.0
    for each in _terms(part):
        bound = _bound(each)
        if bound is None or bound[0] not in ranges:
            is_known = bound is None and each is not part and isinstance(each, Call)
            found *= _share(each, ranges) if is_known else UNKNOWN
            continue
        column, (low, high) = bound
        known = between.get(column, ranges[column])
        between[column] = max(known[0], low), min(known[1], high)
    for column, (low, high) in between.items():
        least, largest = ranges[column]
        found *= max(0.0, high - low) / (largest - least) if largest > least else float(low <= high)
    return found


def _terms(part: Tree) -> Iterator[Tree]:
    if isinstance(part, Call) and part.name == "and_kleene":
        for each in part.parts:
            yield from _terms(each)
    else:
        yield part


def _bound(part: Tree) -> tuple[str, Bounds] | None:
    """The column that a comparison with a literal bounds, and within what."""
    match part:
        case Call(name, [ColumnPath((column,)), pa.Scalar() as value]) if name in FLIPPED:
            pass
        case Call(flipped, [pa.Scalar() as value, ColumnPath((column,))]) if flipped in FLIPPED:
            name = FLIPPED[flipped]
        case _:
            return None
    number = _number_of(value)
    if number is None:
        return None
    return column, ((-inf, number) if name.startswith("less") else (number, inf))

"""What a condition can be on rows of which only bounds are known: those that statistics of files tell, say.

Rules:

1. A condition is true, false or null for a row, in Arrow's logic. Of some rows each of true and false is either
   possible or certainly not. Whatever is not understood, or not known of a column, is possible.
2. Bounds need not be values that are there; they may be wider. NaN lies within any bounds, and -0.0 is 0.0.
3. Whoever leaves rows out for that must know that none of them would have been an error: ``is_safe``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from .kernel_calls import COUNTING, FLIPPED, SAFE, always_meet
from .tree import Call, ColumnPath, NotPlainError, Tree, serialized, tree_of


@dataclass(frozen=True, slots=True)
class Range:
    """Of a column in some rows: between which values all lie that are not null (None: not known), whether there are
    any, and whether there are nulls. ``lacks``: whether a value is certainly none of them. Values as
    :func:`comparable_value` gives them."""

    low: Any = None
    high: Any = None
    has_values: bool = True
    has_nulls: bool = True
    lacks: Callable[[Any], bool] | None = None


Possible: TypeAlias = tuple[bool, bool]
"""Whether some row may be true, and whether one may be false."""
_Ranges: TypeAlias = Mapping[str, Range]
_ANY, _NEITHER = (True, True), (False, False)
_UNKNOWN = Range()


@dataclass(frozen=True, slots=True)
class BoundedCondition:
    """A condition. ``is_safe``: it has an answer for every row. ``columns``: those whose ranges matter."""

    possible: Callable[[_Ranges], Possible]
    is_safe: bool
    columns: frozenset[str]

    def may_hold(self, ranges: _Ranges) -> bool:
        """Whether it may be true for a row with these ranges; columns that are missing are not known."""
        return self.possible(ranges)[0]


def bounded(expression: pc.Expression, schema: pa.Schema) -> BoundedCondition:
    """A condition over rows of ``schema``."""
    return _bounded(serialized(expression), schema)


def has_answers(expression: pc.Expression, schema: pa.Schema) -> bool:
    """Whether it is certain that no row of ``schema`` makes the expression fail."""
    return bounded(expression, schema).is_safe


@lru_cache(maxsize=256)
def _bounded(serialized: bytes, schema: pa.Schema) -> BoundedCondition:
    try:
        part = _clause(tree_of(serialized), schema)
    except (NotPlainError, pa.ArrowException, ValueError, KeyError):
        return BoundedCondition(lambda ranges: _ANY, False, frozenset())
    return BoundedCondition(part.possible, part.is_safe, part.columns)


# ------------------------------------------------------------------ values and their kinds

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
_MOST_DIGITS = 38
_EXACT = 1 << 24
"""Whole numbers up to this are floats, too."""


def kind_of(type: pa.DataType) -> object:
    """What values of a type are compared as; None: not here."""
    types = pa.types
    if types.is_integer(type):
        return "whole"
    if types.is_float32(type) or types.is_float64(type):
        return "real"
    if types.is_decimal128(type):
        return "decimal"
    if types.is_string(type) or types.is_large_string(type):
        return "text"
    if types.is_binary(type) or types.is_large_binary(type):
        return "binary"
    if types.is_date32(type) or types.is_timestamp(type) or types.is_time(type):
        return type
    return None


def comparable_value(scalar: pa.Scalar) -> Any:
    """A value of a type that has a kind; None if it is null, or not to be compared (NaN)."""
    if not scalar.is_valid:
        return None
    kind = kind_of(scalar.type)
    if isinstance(kind, pa.DataType):
        return scalar.value
    found = scalar.as_py()
    if kind == "text":
        return found.encode()
    return None if kind == "real" and math.isnan(found) else found


def python_value(value: Any, type: pa.DataType) -> Any:
    """What Arrow gives for a value that can be compared. Raises what Arrow and Python do where they have none."""
    kind = kind_of(type)
    if isinstance(kind, pa.DataType):
        return pa.scalar(value, pa.int32() if type.bit_width == 32 else pa.int64()).cast(type).as_py()
    return value.decode() if kind == "text" else value


def is_exact(type: pa.DataType) -> bool:
    """Whether equal values of a type are the same for every condition: not floats, whose zeros differ."""
    return kind_of(type) not in (None, "real")


def _fit(column: pa.DataType, literal: pa.DataType) -> bool:
    """Whether Arrow compares values of two types as what they are, and none of them fails."""
    if column == literal:
        return True
    if pa.types.is_decimal128(column) or pa.types.is_decimal128(literal):
        both = [_digits(column), _digits(literal)]
        whole, behind = (max(each) for each in zip(*both, strict=True))
        return bool(whole + behind <= _MOST_DIGITS)
    return kind_of(column) == kind_of(literal) and always_meet({column, literal})


def _digits(type: pa.DataType) -> tuple[int, int]:
    """Digits before and behind the point."""
    if pa.types.is_decimal128(type):
        return type.precision - type.scale, type.scale
    return (_DIGITS[type.bit_width], 0) if pa.types.is_integer(type) else (_MOST_DIGITS + 1, 0)


# ------------------------------------------------------------------ parts of a condition


@dataclass(frozen=True, slots=True)
class _Clause:
    """A part of an expression: a column (``name``), a literal, or a condition."""

    possible: Callable[[_Ranges], Possible] = lambda ranges: _ANY
    is_safe: bool = True
    columns: frozenset[str] = frozenset()
    types: frozenset[pa.DataType] = frozenset()
    type: pa.DataType | None = None
    name: str | None = None
    literal: pa.Scalar | None = None


def _clause(tree: Tree, schema: pa.Schema) -> _Clause:
    """What is known of a part of an expression. Raises NotPlainError for a path into a struct."""
    if isinstance(tree, Call):
        return _call(tree, [_clause(each, schema) for each in tree.parts])
    if isinstance(tree, ColumnPath):
        (name, *inner) = tree.path
        if inner:
            raise NotPlainError(name)
        type = schema.field(name).type
        return _Clause(_flag(name, type), True, frozenset({name}), frozenset({type}), type, name)
    truth = _NEITHER if not tree.is_valid else _ANY
    if pa.types.is_boolean(tree.type) and tree.is_valid:
        truth = (tree.as_py(), not tree.as_py())
    return _Clause(lambda ranges: truth, types=frozenset({tree.type}), type=tree.type, literal=tree)


def _call(call: Call, given: Sequence[_Clause]) -> _Clause:
    types = {type for each in given for type in each.types}
    if "value_set" in call.options:
        types.add(call.options["value_set"].type.value_type)
    columns = frozenset(name for each in given for name in each.columns)
    found = _understood(call.name, given, call.options)
    if found is not None:
        if found.name is not None:
            return found
        safe = all(each.is_safe for each in given)
        return _Clause(found.possible, safe, columns, frozenset(types))
    if call.name in COUNTING:
        types.add(pa.int64())
    safe = call.name in SAFE and all(each.is_safe for each in given) and always_meet(types)
    return _Clause(is_safe=safe, columns=columns, types=frozenset(types))


def _flag(name: str, type: pa.DataType) -> Callable[[_Ranges], Possible]:
    """A column as a condition."""
    if not pa.types.is_boolean(type):
        return lambda ranges: _ANY

    def possible(ranges: _Ranges) -> Possible:
        range = ranges.get(name, _UNKNOWN)
        return (True, True) if range.has_values else _NEITHER

    return possible


_COMPARISONS = {*FLIPPED, "equal", "not_equal"}
_Answer: TypeAlias = Callable[[_Ranges], Possible]


def _understood(name: str, given: Sequence[_Clause], options: Mapping[str, Any]) -> _Clause | None:
    """A call whose answers are known from those of its parts; None: it is another one."""
    first = given[0] if given else _Clause()
    if name in _LOGIC:
        return _Clause(_LOGIC[name](*(each.possible for each in given)))
    if name in _COMPARISONS and len(given) == 2:
        if first.literal is not None:
            name, given = FLIPPED.get(name, name), given[::-1]
        return _compared(name, *given)
    if first.name is None or first.type is None:
        return None
    match name:
        case "is_null" | "is_valid":
            unsure = bool(options) and options["nan_is_null"].as_py()
            return None if unsure else _Clause(_validity(first.name, name == "is_valid"))
        case "match_like" | "starts_with":
            return _prefixed(name, first.name, first.type, options)
        case "is_in":
            return _contained(first.name, first.type, options["value_set"])
        case "cast":
            return _widened(first, options["to_type"].type)
        case _:
            return None


def _and(left: _Answer, right: _Answer) -> _Answer:
    def possible(ranges: _Ranges) -> Possible:
        (one, no), (other, neither) = left(ranges), right(ranges)
        return one and other, no or neither

    return possible


def _or(left: _Answer, right: _Answer) -> _Answer:
    def possible(ranges: _Ranges) -> Possible:
        (one, no), (other, neither) = left(ranges), right(ranges)
        return one or other, no and neither

    return possible


def _not(given: _Answer) -> _Answer:
    def possible(ranges: _Ranges) -> Possible:
        yes, no = given(ranges)
        return no, yes

    return possible


def _if_else(condition: _Answer, left: _Answer, right: _Answer) -> _Answer:
    def possible(ranges: _Ranges) -> Possible:
        (yes, no), (one, other), (third, fourth) = condition(ranges), left(ranges), right(ranges)
        return (yes and one) or (no and third), (yes and other) or (no and fourth)

    return possible


_LOGIC: Mapping[str, Callable[..., _Answer]] = {
    "and_kleene": _and,
    "or_kleene": _or,
    "invert": _not,
    "if_else": _if_else,
}


def _validity(column: str, wanted: bool) -> _Answer:
    def possible(ranges: _Ranges) -> Possible:
        range = ranges.get(column, _UNKNOWN)
        return (range.has_values, range.has_nulls) if wanted else (range.has_nulls, range.has_values)

    return possible


def _widened(part: _Clause, type: pa.DataType) -> _Clause | None:
    """A column as decimals that hold all of its values, and any literal that fits."""
    if part.type is None or not pa.types.is_decimal128(type):
        return None
    (whole, behind), (more, further) = _digits(part.type), _digits(type)
    if whole > more or behind > further:
        return None
    return replace(part, types=frozenset({type}), type=type)


def _compared(name: str, column: _Clause, literal: _Clause) -> _Clause | None:
    if column.name is None or column.type is None or literal.literal is None:
        return None
    if not literal.literal.is_valid:
        return _Clause(lambda ranges: _NEITHER)
    kind, value = kind_of(column.type), comparable_value(literal.literal)
    is_small = kind == "real" and isinstance(value, int) and abs(value) <= _EXACT
    if value is None or not (is_small or _fit(column.type, literal.literal.type)):
        return None
    answer = _COMPARED[name]

    def of(range: Range) -> Possible:
        yes, no = answer(range.low, range.high, value)
        return (yes or name == "not_equal", no or name != "not_equal") if kind == "real" else (yes, no)

    found = _by_range(column.name, of)
    return _Clause(_by_absence(column.name, name, value, found) if name in ("equal", "not_equal") else found)


def _by_absence(column: str, name: str, value: Any, found: _Answer) -> _Answer:
    """The same for a value that may not be there."""

    def possible(ranges: _Ranges) -> Possible:
        yes, no = found(ranges)
        lacks = ranges.get(column, _UNKNOWN).lacks
        if lacks is None or not (yes if name == "equal" else no) or not lacks(value):
            return yes, no
        return (False, no) if name == "equal" else (yes, False)

    return possible


def _by_range(column: str, of: Callable[[Range], Possible]) -> _Answer:
    """What a call that is null for null says, where the values of its column have bounds."""

    def possible(ranges: _Ranges) -> Possible:
        range = ranges.get(column, _UNKNOWN)
        if not range.has_values:
            return _NEITHER
        return _ANY if range.low is None or range.high is None else of(range)

    return possible


_COMPARED: Mapping[str, Callable[[Any, Any, Any], Possible]] = {
    "equal": lambda low, high, value: (low <= value <= high, not low == value == high),
    "not_equal": lambda low, high, value: (not low == value == high, low <= value <= high),
    "less": lambda low, high, value: (low < value, high >= value),
    "less_equal": lambda low, high, value: (low <= value, high > value),
    "greater": lambda low, high, value: (high > value, low <= value),
    "greater_equal": lambda low, high, value: (high >= value, low < value),
}
_WILD = re.compile(r"[%_\\]")


def _prefixed(name: str, column: str, type: pa.DataType, options: Mapping[str, Any]) -> _Clause | None:
    """A text that begins with something."""
    if options["ignore_case"].as_py() or kind_of(type) not in ("text", "binary"):
        return None
    pattern = options["pattern"].as_py()
    prefix = (_WILD.split(pattern)[0] if name == "match_like" else pattern).encode()
    return _Clause(_by_range(column, lambda range: (range.low[: len(prefix)] <= prefix <= range.high, True)))


def _contained(column: str, type: pa.DataType, values: pa.Scalar) -> _Clause | None:
    """One of several values."""
    if not (type == values.type.value_type or (kind_of(type) == "whole" and _fit(type, values.type.value_type))):
        return None
    given = list(values)
    found = [comparable_value(each) for each in given if each.is_valid]
    if None in found:
        return None
    has_null = len(found) < len(given)

    def possible(ranges: _Ranges) -> Possible:
        range = ranges.get(column, _UNKNOWN)
        near = found if range.has_values else []
        if range.low is not None and range.high is not None:
            near = [each for each in near if range.low <= each <= range.high]
        lacks = range.lacks
        yes = bool(near) if lacks is None else not all(map(lacks, near))
        return yes or (has_null and range.has_nulls), True

    return _Clause(possible)

"""The functions that SQL text may call, on kernels of Arrow.

Rules:

1. A function gets values with their types, and gives an expression. Names and meaning are DuckDB's; positions count
   from 1.
2. Arguments that shape the result (digits, patterns, positions, units) must be constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from difflib import get_close_matches
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import FlowError
from . import list_functions as lists
from . import sql_decimals as decimals
from .json_functions import JSON_FUNCTIONS
from .list_functions import is_list, list_contains, list_extreme, list_item
from .sql_arguments import Function, Values, constant, count, floating, plain, two
from .sql_text_functions import TEXT_FUNCTIONS
from .sql_time_functions import TIME_FUNCTIONS
from .sql_values import Value, alike, as_item, cast_to, exact, minus, on_par, plus, remainder


def _typed(values: Values) -> Values:
    """Values of which one becomes the result, also nulls without a type of their own: they get one of the others."""
    given = alike(values)
    known = next((each.type for each in given if not pa.types.is_null(each.type)), None)
    if known is None:
        return given
    return [Value(each.expression.cast(known), known) if pa.types.is_null(each.type) else each for each in given]


def _chosen(kernel: Callable[..., Any]) -> Function:
    """A kernel that gives one of its arguments."""

    def function(values: Values) -> Any:
        count(values, 1, 64)
        return kernel(*(value.expression for value in _typed(values)))

    return function


def _round(values: Values) -> Any:
    count(values, 1, 2)
    digits = constant(values, 1, int) if len(values) == 2 else 0
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
        count(values, 1, 1)
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
    count(values, 1, 1)
    (value,) = values
    return pc.abs_checked(exact(value).expression if pa.types.is_decimal(value.type) else value.expression)


def _nullif(values: Values) -> Any:
    count(values, 2, 2)
    one, other = (value.expression for value in on_par(*values))
    return pc.if_else(pc.coalesce(pc.equal(one, other), pc.scalar(False)), pc.scalar(None), values[0].expression)


def _length(values: Values) -> Any:
    count(values, 1, 1)
    (value,) = values
    return (pc.list_value_length if is_list(value.type) else pc.utf8_length)(value.expression)


def _contains(values: Values) -> Any:
    count(values, 2, 2)
    one, other = values
    if is_list(one.type):
        other = as_item(other, one.type.value_type)
        return list_contains(one.expression, one.type, other.expression, other.type)
    return pc.match_substring(one.expression, constant(values, 1, str))


def _extreme(largest: bool) -> Function:
    def function(values: Values) -> Any:
        count(values, 1, 1)
        if not is_list(values[0].type):
            raise ValueError(f"takes a list, not {values[0].type}")
        return list_extreme(values[0].expression, values[0].type, largest=largest)

    return function


def _element(values: Values) -> Any:
    count(values, 2, 2)
    position = constant(values, 1, int)
    if not is_list(values[0].type) or position == 0:
        raise ValueError("takes a list and a position, from 1")
    return list_item(values[0].expression, values[0].type, position - 1 if position > 0 else position)


def _pi(values: Values) -> Value:
    count(values, 0, 0)
    return Value.of(math.pi)


def _log(values: Values) -> Any:
    """To the base 10, or to the first argument's."""
    count(values, 1, 2)
    *base, value = (cast_to(each, pa.float64()).expression for each in values)
    return pc.logb(value, *base) if base else pc.log10(value)


def _power(values: Values) -> Any:
    count(values, 2, 2)
    return pc.power(*(cast_to(value, pa.float64()).expression for value in values))


def _coalesce(values: Values) -> Any:
    count(values, 1, 64)
    return reduce(pc.coalesce, [value.expression for value in _typed(values)])


def _ifnull(values: Values) -> Any:
    count(values, 2, 2)
    return _coalesce(values)


def _of_list(make: Callable[[pc.Expression, pa.DataType], Any]) -> Function:
    def function(values: Values) -> Any:
        count(values, 1, 1)
        if not is_list(values[0].type):
            raise ValueError(f"takes a list, not {values[0].type}")
        return make(values[0].expression, values[0].type)

    return function


def list_value(values: Values) -> Any:
    """A list of values that come together as those of ``coalesce`` do."""
    count(values, 1, 64)
    given = _typed(values)
    kinds = {each.type for each in given}
    if len(kinds) > 1:
        if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
            raise ValueError(f"takes values of one type, not {', '.join(map(str, kinds))}")
        wide = pa.float64() if any(map(pa.types.is_floating, kinds)) else pa.int64()
        given = [cast_to(each, wide) for each in given]
    return lists.list_of([each.expression for each in given], given[0].type)


def _append(values: Values) -> Any:
    count(values, 2, 2)
    one, item = values
    if not is_list(one.type):
        raise ValueError(f"takes a list, not {one.type}")
    inner = one.type.value_type
    single = lists.list_of([cast_to(as_item(item, inner), inner).expression], inner)
    return lists.list_joined(one.expression, single, pa.list_(inner))


def _list_concat(values: Values) -> Any:
    count(values, 2, 64)
    if not all(is_list(each.type) and each.type == values[0].type for each in values):
        raise ValueError("takes lists of one type")
    type = pa.list_(values[0].type.value_type)
    return reduce(lambda one, other: lists.list_joined(one, other, type), [each.expression for each in values])


def _array_to_string(values: Values) -> Any:
    """Elements that are not null, as texts."""
    count(values, 2, 2)
    given, between = values[0], constant(values, 1, str)
    if not is_list(given.type):
        raise ValueError(f"takes a list, not {given.type}")
    return lists.list_text(given.expression, given.type, between)


def find_function(name: str) -> Function | None:
    """The function called ``name`` in any case."""
    return FUNCTIONS.get(name.lower())


def near_names(name: str) -> list[str]:
    """Names of functions that somebody who writes ``name`` may mean."""
    return get_close_matches(name.lower(), FUNCTIONS, n=5, cutoff=0.5)


def arrow_function(name: str) -> Callable[..., Any] | None:
    """A scalar function of ``pyarrow.compute`` of that name, which takes expressions and, by name, its options."""
    if name not in pc.list_functions() or pc.get_function(name).kind != "scalar":
        return None
    found = getattr(pc, name, None)
    return found if callable(found) else None


def is_function(name: str) -> bool:
    """Whether a text may call it."""
    known = find_function(name) is not None or arrow_function(name) is not None or name.lower() == "struct_pack"
    return known and name.lower() not in REFUSED


def no_function(where: str, name: str) -> FlowError:
    """The error for one that may not be called."""
    if name.lower() in REFUSED:
        return FlowError(f"{where}: {name} {REFUSED[name.lower()]}", "see docs/sql.md")
    near = near_names(name)
    remedy = f"did you mean {', '.join(near)}? docs/sql.md lists all" if near else "see docs/sql.md"
    return FlowError(f"{where}: does not know the function {name}", remedy)


FUNCTIONS: dict[str, Function] = {
    "abs": _abs,
    "ceil": _whole(pc.ceil, pc.greater, plus),
    "ceiling": _whole(pc.ceil, pc.greater, plus),
    "floor": _whole(pc.floor, pc.less, minus),
    "trunc": _whole(pc.trunc, None, plus),
    "round": _round,
    "sign": plain(pc.sign),
    "sqrt": floating(pc.sqrt),
    "cbrt": floating(lambda value: pc.multiply(pc.sign(value), pc.power(pc.abs(value), pc.scalar(1 / 3)))),
    "exp": floating(pc.exp),
    "ln": floating(pc.ln),
    "log": _log,
    "log10": floating(pc.log10),
    "log2": floating(pc.log2),
    "power": _power,
    "pow": _power,
    "pi": _pi,
    "sin": floating(pc.sin),
    "cos": floating(pc.cos),
    "tan": floating(pc.tan),
    "cot": floating(lambda value: pc.divide(pc.scalar(1.0), pc.tan(value))),
    "asin": floating(pc.asin),
    "acos": floating(pc.acos),
    "atan": floating(pc.atan),
    "atan2": floating(pc.atan2, 2),
    "degrees": floating(lambda value: pc.multiply(value, pc.scalar(180 / math.pi))),
    "radians": floating(lambda value: pc.multiply(value, pc.scalar(math.pi / 180))),
    "xor": plain(pc.bit_wise_xor, 2),
    "mod": two(remainder),
    "isnan": plain(pc.is_nan),
    "isinf": plain(pc.is_inf),
    "isfinite": plain(pc.is_finite),
    "greatest": _chosen(pc.max_element_wise),
    "least": _chosen(pc.min_element_wise),
    "coalesce": _coalesce,
    "ifnull": _ifnull,
    "nvl": _ifnull,
    "nullif": _nullif,
    "length": _length,
    "len": _length,
    "char_length": _length,
    "character_length": _length,
    "contains": _contains,
    "list_contains": _contains,
    "list_has": _contains,
    "array_contains": _contains,
    "cardinality": _length,
    "array_length": _length,
    "array_max": _extreme(True),
    "list_max": _extreme(True),
    "array_min": _extreme(False),
    "list_min": _extreme(False),
    "element_at": _element,
    "list_extract": _element,
    "list_sum": _of_list(lists.list_sum),
    "list_avg": _of_list(lists.list_mean),
    "list_mean": _of_list(lists.list_mean),
    "list_sort": _of_list(lambda given, type: lists.list_sorted(given, type, largest_first=False)),
    "array_sort": _of_list(lambda given, type: lists.list_sorted(given, type, largest_first=False)),
    "list_reverse_sort": _of_list(lambda given, type: lists.list_sorted(given, type, largest_first=True)),
    "list_distinct": _of_list(lists.list_distinct),
    "list_value": list_value,
    "list_append": _append,
    "list_concat": _list_concat,
    "array_to_string": _array_to_string,
    **TEXT_FUNCTIONS,
    **TIME_FUNCTIONS,
    **JSON_FUNCTIONS,
}
OF_TEXT = {*TEXT_FUNCTIONS, "length", "len", "char_length", "character_length", "contains"}
"""Functions whose kernels take text in no other form than strings."""
REFUSED = {
    name: "gives other values each time, so rows would not come the same again: "
    + ("compare a column with a constant" if name != "random" else "take part of the digits of md5(...) of a column")
    for name in ("random", "now", "current_date", "current_timestamp", "get_current_timestamp", "today", "uuid")
}
"""Functions that are known and cannot be called, and why."""
MAY_FAIL = {
    *("abs", "ceil", "ceiling", "floor", "round", "trunc", "mod", "repeat", "chr", "list_sum", "make_date", "date_add"),
    *("strptime", "regexp_extract", *JSON_FUNCTIONS, *(name for name in TIME_FUNCTIONS if name.startswith("to_"))),
}
"""Functions that are an error of the data for some values."""

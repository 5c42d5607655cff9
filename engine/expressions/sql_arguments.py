"""What functions of SQL text say of their arguments, and functions that are nothing but a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from .own_kernels import each_distinct
from .sql_values import Value, cast_to

Values: TypeAlias = Sequence[Value]
Function: TypeAlias = Callable[[Values], Any]


def count(values: Values, least: int, most: int) -> None:
    """Raises ValueError if there are not so many arguments."""
    if not least <= len(values) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise ValueError(f"takes {wanted} arguments, not {len(values)}")


def constant(values: Values, position: int, type: type) -> Any:
    """The constant that an argument is; raises ValueError if it is none of that type."""
    found = values[position].constant
    if not isinstance(found, type) or isinstance(found, bool) != (type is bool):
        raise ValueError(f"argument {position + 1} must be a constant ({type.__name__})")
    return found


def text(value: Value) -> Value:
    """The value as text."""
    is_text = pa.types.is_string(value.type) or pa.types.is_large_string(value.type)
    return value if is_text else cast_to(value, pa.string())


def plain_text(value: Value) -> Value:
    """A view of text, or a dictionary of texts, as a string; other values as they are."""
    kind = value.type.value_type if pa.types.is_dictionary(value.type) else value.type
    is_text = pa.types.is_string_view(kind) or (
        kind != value.type and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
    )
    return cast_to(value, pa.string()) if is_text else value


def plain(kernel: Callable[..., Any], least: int = 1, most: int | None = None) -> Function:
    """A kernel that takes the arguments as they are."""

    def function(values: Values) -> Any:
        count(values, least, most or least)
        return kernel(*(value.expression for value in values))

    return function


def floating(kernel: Callable[..., Any], arguments: int = 1) -> Function:
    """A kernel of numbers that computes in float64."""

    def function(values: Values) -> Any:
        count(values, arguments, arguments)
        return kernel(*(cast_to(value, pa.float64()).expression for value in values))

    return function


def part(kernel: Callable[..., Any], **options: Any) -> Function:
    """A kernel of one argument, with options."""

    def function(values: Values) -> Any:
        count(values, 1, 1)
        return kernel(values[0].expression, **options)

    return function


def two(make: Callable[[Value, Value], Any]) -> Function:
    """A function of two values."""

    def function(values: Values) -> Any:
        count(values, 2, 2)
        return make(*values)

    return function


def with_text(kernel: Callable[..., Any]) -> Function:
    """A kernel of a text and a constant one."""

    def function(values: Values) -> Any:
        count(values, 2, 2)
        return kernel(values[0].expression, constant(values, 1, str))

    return function


def each_text(
    name: str, function: Callable[[str], Any], value: Value, result: pa.DataType | None = None
) -> pc.Expression:
    """``function`` of a value as text, computed once for equal ones; ``result``: its type, else text."""
    given = text(value)
    return each_distinct(name, function, given.expression, given.type, result or pa.string())


def per_text(name: str, function: Callable[[str], Any], result: pa.DataType | None = None) -> Function:
    """A function of one text."""

    def made(values: Values) -> Any:
        count(values, 1, 1)
        return each_text(name, function, values[0], result)

    return made

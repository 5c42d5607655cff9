"""JSON texts in SQL: what lies at a path.

A path is ``$.a.b[0]``, ``/a/b/0``, or the name of a member. What is found is JSON text again, written as short as it
can be, or plain text: a string without its quotes, and null for JSON's null. A text that is no JSON is an error of the
data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from .sql_arguments import Function, Values, constant, count, each_text, per_text
from .sql_values import Value

_MISSING = object()
_STEP = re.compile(r"""\.(?:"((?:[^"\\]|\\.)*)"|([^.\["]+))|\[(-?\d+)\]""")


def _path(given: str) -> tuple[str | int, ...]:
    """The steps of a path. Raises ValueError for one that is none."""
    if given.startswith("/"):
        steps = given[1:].replace("~1", "\0").split("/")
        return tuple(step.replace("\0", "/").replace("~0", "~") for step in steps)
    if not given.startswith("$"):
        return (given,)
    steps_of: list[str | int] = []
    at = 1
    while at < len(given):
        found = _STEP.match(given, at)
        if found is None or found[2] == "*":
            raise ValueError(f'{given!r} is no path: write $.name, $."a name", $[0], one after the other')
        at = found.end()
        steps_of.append(int(found[3]) if found[3] is not None else found[2] or json.loads(f'"{found[1]}"'))
    return tuple(steps_of)


def _parsed(given: str) -> Any:
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise pa.ArrowInvalid(f"{given[:80]!r} is no JSON: {error}") from None


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        if isinstance(value, dict):
            value = value.get(str(step), _MISSING)
        elif isinstance(value, list) and str(step).lstrip("-").isdigit():
            place = int(step)
            value = value[place] if -len(value) <= place < len(value) else _MISSING
        else:
            return _MISSING
    return value


def _written(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _as_json(value: Any) -> str | None:
    return None if value is _MISSING else _written(value)


def _as_text(value: Any) -> str | None:
    if value is _MISSING or value is None:
        return None
    return value if isinstance(value, str) else _written(value)


def extracted(value: Value, steps: tuple[str | int, ...], *, as_text: bool) -> Value:
    """What lies at a path: as JSON text, which casts read as what it means, or ``as_text``."""

    def made(name: str, write: Callable[[Any], str | None]) -> Value:
        return Value(each_text(f"{name}[{steps!r}]", lambda each: write(_at(_parsed(each), steps)), value), pa.string())

    plain = made("json_extract_string", _as_text)
    if as_text:
        return plain
    found = made("json_extract", _as_json)
    return Value(found.expression, found.type, meant=plain)


def _extract(*, as_text: bool) -> Function:
    def function(values: Values) -> Any:
        count(values, 2, 2)
        position = values[1].constant
        steps = (position,) if isinstance(position, int) else _path(constant(values, 1, str))
        return extracted(values[0], steps, as_text=as_text)

    return function


def _valid(given: str) -> bool:
    try:
        json.loads(given)
    except (ValueError, RecursionError):
        return False
    return True


def _length(given: str) -> int:
    value = _parsed(given)
    return len(value) if isinstance(value, list) else 0


JSON_FUNCTIONS: dict[str, Function] = {
    "json_extract": _extract(as_text=False),
    "json_extract_path": _extract(as_text=False),
    "json_extract_string": _extract(as_text=True),
    "json_extract_path_text": _extract(as_text=True),
    "json_array_length": per_text("json_array_length", _length, pa.int64()),
    "json_valid": per_text("json_valid", _valid, pa.bool_()),
}

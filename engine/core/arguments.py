"""Arguments of public functions: checked at the door, against what the signature says.

Rules:

1. The annotation is the check. ``@checked`` reads a function's annotations (or those of a dataclass's fields) when it
   is called for the first time, so there is no second table that could say something else. ``Annotated`` adds bounds.
2. What does not fit is refused before anything else happens. The error names the function, the argument, what was given
   and what is wanted. Nothing is guessed: ``True`` is no number, 2.5 no count, NaN no time, a set no order of names.
3. One text where several are wanted is one: ``"day"`` is ``("day",)``. Sequences arrive as tuples, and numpy's numbers
   as Python's.
4. Whether names exist, types fit and functions are known is said by who knows it: the operators, the sources, the plan.
"""

from __future__ import annotations

import collections.abc
import difflib
import functools
import inspect
import numbers
import operator
import os
import reprlib
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

import numpy as np

from .errors import FlowError, PenstockError

LONGEST_WAIT = 1e9
"""Seconds that a timeout may have, 31 years: clocks and locks take no more than about 292."""

LARGEST = 2**63 - 1
"""What a whole number may be at most, for it becomes an int64 somewhere."""

_T = TypeVar("_T", bound=Callable[..., Any])
_Wanted: TypeAlias = tuple[str, Callable[[Any], Any]]
"""What is wanted, in words, and what gives the value as the function gets it, or raises _Unfit."""


class _Unfit(Exception):
    """The value is not what is wanted."""


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number, for ``Annotated``."""

    low: float
    high: float = LARGEST

    def __str__(self) -> str:
        return f"≥ {self.low:,}" if self.high == LARGEST else f"from {self.low:,} to {self.high:,}"


Threads = Annotated[int, Within(0, 4096)]
"""How many threads: each has a stack, and the machine a limit."""
Parallelism = Annotated[int, Within(1, 32768)]
"""How many subtasks: no more than a flow can have lanes."""
Rate = Annotated[float, Within(0)]
"""So many a second."""
Seconds = Annotated[float, Within(0, LONGEST_WAIT)]
"""A time to wait."""


def checked(raises: type[PenstockError] = FlowError) -> Callable[[_T], _T]:
    """A function, or a dataclass, whose arguments are checked; ``raises``: the error."""

    def decorate(given: _T) -> _T:
        if isinstance(given, type):
            kind: Any = given
            kind.__init__ = _guarded(
                kind.__init__, kind.__name__, raises, lambda _: typing.get_type_hints(kind, include_extras=True)
            )
            return given
        hints = functools.partial(_hints, given)
        return cast("_T", _guarded(given, given.__name__, raises, hints))

    return decorate


def _guarded(function: Any, name: str, raises: type[PenstockError], hints: Callable[[Any], dict[str, Any]]) -> Any:
    parameters = inspect.signature(function).parameters
    kinds = {each: parameter.kind for each, parameter in parameters.items()}
    ordered = [each for each, kind in kinds.items() if kind in _ORDERED]
    by_name = {each for each, kind in kinds.items() if kind in _BY_NAME}
    further = next((each for each, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL), "")
    keywords = next((each for each, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), "")
    wanted: dict[str, _Wanted] = {}

    def fitted(parameter: str, said: str, value: Any) -> Any:
        if parameter not in wanted:
            return value
        words, fit = wanted[parameter]
        try:
            return fit(value)
        except _Unfit as unfit:
            told = f": {unfit}" if unfit.args else ""
            message = f"{name}: {said}={'…' if said in _HIDDEN else _SHORT.repr(value)} does not fit{told}"
            raise raises(message, f"give {words}{_each(kinds[parameter])}") from None

    @functools.wraps(function)
    def guarded(*given: Any, **named: Any) -> Any:
        if not wanted:
            wanted.update((each, _wanted(hint)) for each, hint in hints(given).items())
        if not keywords and (strange := next((each for each in named if each not in by_name), None)) is not None:
            raise TypeError(f"{name}() has no argument {strange!r}{_instead(strange, by_name)}")
        places = chain(ordered, repeat(further))
        # what else no parameter takes is Python's to refuse, in the call
        args = [fitted(parameter, parameter, value) for parameter, value in zip(places, given, strict=False)]
        kwargs = {each: fitted(each if each in by_name else keywords, each, value) for each, value in named.items()}
        return function(*args, **kwargs)

    return guarded


def _instead(strange: str, known: set[str]) -> str:
    near = difflib.get_close_matches(strange, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(sorted(known - {'self'}))}"


_HIDDEN = {"storage_options"}
"""Arguments that hold secrets: of what was given nothing is told."""
_ORDERED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def _each(kind: Any) -> str:
    return {
        inspect.Parameter.VAR_POSITIONAL: ", several one after the other",
        inspect.Parameter.VAR_KEYWORD: " for each keyword",
    }.get(kind, "")


def _hints(function: Any, given: tuple[Any, ...]) -> dict[str, Any]:
    """By parameter. Annotations are text (PEP 563), in the words of the function's module; what is returned does not
    matter, and may be known to type checkers alone."""
    names = {**function.__globals__, **({"Self": type(given[0])} if given else {})}
    texts = ((each, text) for each, text in function.__annotations__.items() if each != "return")
    return {each: eval(text, names) for each, text in texts}


def _wanted(hint: Any) -> _Wanted:
    """From an annotation to its check."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _bounded(_wanted(parts[0]), parts[1])
    if origin in (typing.Union, UnionType):
        return _one_of([_wanted(part) for part in sorted(parts, key=_by_width)])
    if origin is Literal:
        return " or ".join(map(repr, parts)), functools.partial(_literal, parts)
    if origin is tuple and parts[-1] is not ...:
        return _fixed([_wanted(part) for part in parts])
    if origin in (collections.abc.Sequence, collections.abc.Iterable, tuple, list):
        return _several(_wanted(parts[0]))
    if origin in (collections.abc.Mapping, dict):
        return _mapping(*map(_wanted, parts))
    if hint in _KINDS:
        return _KINDS[hint]
    if origin in (os.PathLike, collections.abc.Callable):
        return _KINDS[origin]
    if not isinstance(origin or hint, type):
        return "anything", _anything
    return _instance(origin or hint)


def _by_width(hint: Any) -> bool:
    """Whether an alternative takes others' values too, and so comes last: a sequence of texts takes a text."""
    return typing.get_origin(hint) in (collections.abc.Sequence, tuple)


def _anything(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise _Unfit
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Unfit("half a character (a surrogate) is no text") from None
    return value


def _path(value: Any) -> Any:
    if not isinstance(value, os.PathLike):
        raise _Unfit
    _text(os.fspath(value))
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise _Unfit
    found: int = _in_bounds(operator.index(value), Within(-LARGEST - 1))
    return found


def _number(value: Any) -> Any:
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise _Unfit
    number: Any = operator.index(value) if hasattr(value, "__index__") else float(value)
    if not abs(number) <= sys.float_info.max:
        raise _Unfit("it is not finite")
    return number


def _truth(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise _Unfit
    return bool(value)


def _nothing(value: Any) -> None:
    if value is not None:
        raise _Unfit


def _callable(value: Any) -> Any:
    if not callable(value):
        raise _Unfit
    return value


_KINDS: dict[Any, _Wanted] = {
    Any: ("anything", _anything),
    object: ("anything", _anything),
    str: ("text", _text),
    int: ("a whole number", _whole),
    float: ("a number", _number),
    bool: ("True or False", _truth),
    None: ("None", _nothing),
    NoneType: ("None", _nothing),
    os.PathLike: ("a path", _path),
    collections.abc.Callable: ("a function", _callable),
}


def _in_bounds(value: Any, bounds: Within) -> Any:
    if not bounds.low <= value <= bounds.high:
        raise _Unfit(f"it is not {bounds}")
    return value


def _bounded(base: _Wanted, bounds: Within) -> _Wanted:
    words, fit = base
    return f"{words} {bounds}", lambda value: _in_bounds(fit(value), bounds)


def _literal(known: tuple[Any, ...], value: Any) -> Any:
    if not any(type(value) is type(each) and value == each for each in known):
        raise _Unfit
    return value


def _one_of(alternatives: list[_Wanted]) -> _Wanted:
    def fit(value: Any) -> Any:
        told: tuple[Any, ...] = ()
        for _, each in alternatives:
            try:
                return each(value)
            except _Unfit as unfit:
                told = told or unfit.args
        raise _Unfit(*told)

    return " or ".join(dict.fromkeys(words for words, _ in alternatives)), fit


def _several(item: _Wanted) -> _Wanted:
    words, fit = item

    def fit_all(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            return (fit(value),)
        if isinstance(value, bytes | Mapping | set | frozenset) or not hasattr(value, "__iter__"):
            raise _Unfit
        return tuple(fit(each) for each in value)

    return f"several, each {words}", fit_all


def _fixed(items: list[_Wanted]) -> _Wanted:
    def fit(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list) or len(value) != len(items):
            raise _Unfit
        return tuple(fit(each) for (_, fit), each in zip(items, value, strict=True))

    return f"({', '.join(words for words, _ in items)})", fit


def _mapping(keys: _Wanted, values: _Wanted) -> _Wanted:
    def fit(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise _Unfit
        return {keys[1](key): values[1](each) for key, each in value.items()}

    return f"a dict of {keys[0]}: {values[0]}", fit


def _of_class(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise _Unfit
    return value


def _instance(kind: Any) -> _Wanted:
    """An object of a class; of a protocol: whatever has its members."""
    article = "an" if kind.__name__[0] in "AEIO" else "a"
    words = f"{article} {kind.__name__}"
    if not getattr(kind, "_is_protocol", False):  # else whatever has the members
        return words, lambda value: _of_class(value, kind)
    members = sorted(
        name
        for each in kind.__mro__
        if getattr(each, "_is_protocol", False)
        for name in {*vars(each), *vars(each).get("__annotations__", ())}
        if not name.startswith("_")
    )

    def fit(value: Any) -> Any:
        missing = [name for name in members if not hasattr(type(value), name) and not hasattr(value, name)]
        if missing or isinstance(value, type):
            raise _Unfit(f"it has no {missing[0]!r}" if missing else "it is a class, not an object")
        return value

    return words, fit

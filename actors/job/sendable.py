"""Whether a flow's functions can be sent to other processes, and if not, which variable stands in the way.

What a user wrote travels as cloudpickle makes it: code, the variables that it uses, and what these hold. A lock or a
client in one of them ends in an error of pickle's that names neither. So what cannot travel is looked for before
anything is started: from the function down to the first thing all of whose parts could travel alone.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import cloudpickle

from ...engine.core.errors import ConfigurationError
from ...engine.core.user_code import is_users_object
from ...engine.plan.plan import JobPlan

_OURS = __package__.partition(".")[0]
REMEDY = (
    "make it where it is used: in the function, or in __init__ of a class that is given in the function's place; each "
    "process makes its own then"
)

DEEPEST = 6
"""So many levels of a config are looked at for what a user has given: an aggregate's function is at two."""


def check_sendable(plan: JobPlan) -> None:
    """Raise ConfigurationError that names the operator, the function and the variable."""
    for id, config in _configs(plan):
        for what, value in _of_a_user(config):
            if _fails(value):
                path, last = _culprit(value, "")
                path = path.removeprefix("function.")  # of ours, around the user's
                where = f"{path!r} in it" if path else "it"
                raise ConfigurationError(
                    f"{what} cannot be sent to a job's processes, because {where} cannot be pickled: {_fails(last)}",
                    REMEDY,
                    id,
                )


def _configs(plan: JobPlan) -> Iterator[tuple[str, Any]]:
    for id, source in plan.sources.items():
        yield id, source.config
    for stage in plan.stages.values():
        for pipeline in stage.pipelines:
            for operator in pipeline.operators:
                yield operator.id, operator.config


def _of_a_user(config: Any) -> Iterator[tuple[str, Any]]:
    """A name for each thing that a user has given, and the thing: a config of a class of their own, or the functions in
    one of ours, with their arguments. Tables and indexes of ours can always travel, and are large."""
    if not _is_ours(config):
        yield f"the {type(config).__name__}", config
    elif is_dataclass(config):
        for each in fields(config):
            yield from _given(getattr(config, each.name), DEEPEST)


def _given(value: Any, deepest: int) -> Iterator[tuple[str, Any]]:
    """The functions and the objects of a user's in a field, or in its parts: a list of aggregates has some."""
    function = getattr(value, "function", value)
    if callable(function) and not _is_ours(function):
        yield _called(function), value
    elif is_users_object(value):
        yield f"the {type(value).__name__}", value
    elif deepest:
        parts: Iterable[Any] = ()
        if isinstance(value, (list, tuple)):
            parts = value
        elif isinstance(value, Mapping):
            parts = value.values()
        elif is_dataclass(value) and not isinstance(value, type):
            parts = (getattr(value, each.name, None) for each in fields(value))
        for part in parts:
            yield from _given(part, deepest - 1)


def _is_ours(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == _OURS


def _called(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__name__
    code = getattr(function, "__code__", None)
    where = f" ({os.path.basename(code.co_filename)}, line {code.co_firstlineno})" if code is not None else ""
    return f"the {'class' if isinstance(function, type) else 'function'} {name}{where}"


def is_connected() -> bool:
    """Whether this script is connected to Ray: it may know then how to pickle what nobody else can, so that only the
    attempt tells."""
    ray: Any = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: bytes) -> int:
        return len(data)


def _fails(value: Any) -> str:
    """Why the value cannot be pickled; "" if it can. Large buffers are not copied."""
    file: Any = _Nowhere()
    try:
        cloudpickle.CloudPickler(file, protocol=5, buffer_callback=lambda buffer: None).dump(value)
    except Exception as error:  # whatever a user's __reduce__ raises
        return str(error) or type(error).__name__
    return ""


def _culprit(value: Any, path: str) -> tuple[str, Any]:
    """The first part of a part … that cannot be pickled while all its own parts can, and how to get there."""
    seen: set[int] = set()
    while id(value) not in seen:
        seen.add(id(value))
        for name, part in _parts(value):
            if id(part) not in seen and _fails(part):
                path, value = f"{path}{name}" if name.startswith("[") or not path else f"{path}.{name}", part
                break
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a thing consists of, each part with a name."""
    if isinstance(value, functools.partial):
        yield from [("", value.func), ("args", value.args), ("keywords", value.keywords)]
    elif isinstance(value, MethodType):
        yield "self", value.__self__
    elif isinstance(value, FunctionType):
        yield from _variables(value)
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{number}]", each) for number, each in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((each.name, getattr(value, each.name, None)) for each in fields(value))
    else:
        yield from getattr(value, "__dict__", {}).items()


def _variables(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Those that a function brings along: of the functions around it, defaults, and the module's that it uses."""
    code: CodeType = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    used = function.__globals__
    yield from ((name, used[name]) for name in _globals(code) if name in used)


def _globals(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)

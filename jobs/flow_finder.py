"""The flow that a command line names: ``script.py:flow``, or ``module:flow``.

After the colon comes the name of a Flow, or of a function that gives one; the command line gives its arguments, as text
or as what they are annotated as. The script is imported, not run as the main program: what begins the job belongs
behind ``if __name__ == "__main__"``, and is refused elsewhere before it has begun anything.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, UnionType
from typing import Union, get_args, get_origin

from ..actors.process.imported_script import importing
from ..engine.core.errors import ConfigurationError, PenstockError, UserCodeError
from ..engine.files.paths import local_path
from ..engine.flow.flow import Flow
from .registry import JOBS

_FORM = "write script.py:flow or module:flow, where flow is a Flow, or a function that gives one"


def find_flow(where: str, given: Mapping[str, str] | None = None) -> Flow:
    """The flow. ``given``: the arguments of the function that makes it. Raises ConfigurationError if there is none,
    UserCodeError if the script fails."""
    if where in JOBS:
        raise ConfigurationError(f"{where!r} is a ready-made job, and no flow", _FORM)
    place, colon, attribute = where.rpartition(":")
    if not colon or not attribute:
        raise ConfigurationError(f"{where!r} names no flow", _FORM)
    try:
        with importing(place):
            module = _script(place) if place.endswith(".py") else _module(place)
        found = getattr(module, attribute, None)
        if not isinstance(found, Flow) and callable(found):
            found = found(**_arguments(where, found, given or {}))
        elif given:
            raise ConfigurationError(f"{where} is no function, so nothing can be given with {', '.join(given)}", _FORM)
    except PenstockError:
        raise
    except SystemExit as error:
        raise ConfigurationError(
            f"{where} ended itself, with sys.exit({error.code!r}), before there was a flow",
            'the script is imported, not run: put what runs behind `if __name__ == "__main__"`',
        ) from error
    except Exception as error:
        detail = "".join(traceback.format_exception(error))
        message = f"{where} raised {type(error).__name__}: {error}"
        raise UserCodeError(message, "see the traceback (--verbose)", detail=detail) from error
    if not isinstance(found, Flow):
        known = ", ".join(name for name, value in vars(module).items() if isinstance(value, Flow)) or "none"
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise ConfigurationError(f"{where} is {what}, not a flow", f"flows in {place}: {known}; {_FORM}")
    return found


def _arguments(where: str, function: Callable[..., object], given: Mapping[str, str]) -> dict[str, object]:
    """As the function takes them. Raises ConfigurationError that names its parameters."""
    signature = inspect.signature(function, eval_str=True)
    try:
        signature.bind(**given)
    except TypeError as error:
        takes = f"{where}{signature}"
        raise ConfigurationError(f"{takes} cannot be called: {error}", "give each as --with NAME=VALUE") from None
    return {name: _as(signature.parameters.get(name), name, text) for name, text in given.items()}


def _as(parameter: inspect.Parameter | None, name: str, text: str) -> object:
    wanted = str if parameter is None else _type(parameter.annotation)
    try:
        return _KINDS.get(wanted, str)(text)
    except (KeyError, ValueError):
        problem = f"--with {name}={text} is no {getattr(wanted, '__name__', 'value')}"
        raise ConfigurationError(problem, "give a value of that type") from None


def _type(annotation: object) -> object:
    """What an annotation allows besides None."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    kinds = [each for each in get_args(annotation) if each is not type(None)]
    return kinds[0] if len(kinds) == 1 else str


_KINDS: Mapping[object, Callable[[str], object]] = {
    int: int,
    float: float,
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    Path: Path,
}


def _script(path: str) -> ModuleType:
    """The file as a module. It stays known: classes and functions of it may be looked up by name."""
    path = local_path(path, "the script")
    if not os.path.isfile(path):
        raise ConfigurationError(f"{path} does not exist", "check the path; relative ones start at the working folder")
    folder, name = os.path.split(path)
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise ConfigurationError(f"there is no module {name!r}", _FORM) from error

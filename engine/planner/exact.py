"""What the config of an operator is, to the last constant: a text for the fingerprint of a flow.

``describe()`` is for people: it shortens long lists of values and rounds numbers. Two flows that differ in what it
leaves out are two flows, or a job would go on with other rows than it began with.

Data (tables, indexes, files) and code are not in it: indexes and sources have fingerprints of their own, and of a
function only its name counts, what ``functools.partial`` gives it, and what it says itself in ``fingerprint()``.

A config may be of any class: what counts are the fields of a dataclass (but for those whose metadata say
``exact: False``: rows do not depend on them) or a msgspec Struct, else the attributes. Of values in it that are neither
these nor plain ones only the class counts.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import re
from collections import deque
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import Enum
from functools import cached_property, partial
from pathlib import PurePath
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.traits import Traits
from ..expressions.kernel_calls import exactly

_PLAIN = (str, bytes, int, float, bool, type(None), Decimal, datetime.date, datetime.time, datetime.timedelta)

_LARGE = 1 << 16
"""Bytes of an array that is not spelt out: weights that a function is given."""


def exact_text(config: object) -> str:
    """All of an operator's config, but for data and code."""
    return _fields_text(config, ())


def _fields_text(value: object, inside: tuple[object, ...]) -> str:
    """``inside``: the objects that this one is found in, from the config on."""
    if any(each is value for each in inside):
        return "…"
    fields = ((name, getattr(value, name)) for name in _field_names(value))
    inside = (*inside, value)
    return ", ".join(f"{name}={_exact(each, inside)}" for name, each in fields if not isinstance(each, Traits))


def _field_names(value: object) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value) if field.metadata.get("exact", True)]
    if (of_struct := getattr(value, "__struct_fields__", None)) is not None:
        return list(of_struct)
    kind = type(value)
    slots = [each.__dict__.get("__slots__", ()) for each in kind.__mro__]
    names = {name for each in slots for name in ((each,) if isinstance(each, str) else each)}
    names |= {
        name for name in getattr(value, "__dict__", ()) if not isinstance(getattr(kind, name, None), cached_property)
    }
    return sorted(name for name in names if hasattr(value, name))


def _exact(value: object, inside: tuple[object, ...] = ()) -> str:
    if isinstance(value, pc.Expression):
        return exactly(value)
    if isinstance(value, _PLAIN) and not isinstance(value, Enum):
        return repr(value)
    if isinstance(value, (np.generic, complex, range, re.Pattern, PurePath, UUID)):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, np.ndarray):
        if value.nbytes > _LARGE and not value.dtype.hasobject:
            return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
        return f"{value.dtype} {value.shape} {_exact(value.tolist(), inside)}"
    if isinstance(value, pa.Scalar):
        return f"{value.type} {value.as_py()!r}"
    if isinstance(value, (Enum, pa.DataType, pa.Field, pa.Schema)):
        return str(value)
    if isinstance(value, (list, tuple, deque)):
        return f"[{', '.join(_exact(each, inside) for each in value)}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(_exact(each, inside) for each in value))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_exact(each, inside)}' for key, each in value.items())}}}"
    if isinstance(value, partial):
        return f"{_code(value.func)} with {_exact(value.args, inside)} {_exact(value.keywords, inside)}"
    if _has_fields(value):
        return f"{type(value).__name__}({_fields_text(value, inside)})"
    return _code(value)


def _has_fields(value: object) -> bool:
    """Whether a value is told by its fields: it is neither code nor data."""
    if callable(value) or hasattr(value, "fingerprint"):
        return False
    return dataclasses.is_dataclass(value) or hasattr(value, "__struct_fields__")


def _code(value: object) -> str:
    """The name of a function or class, or the class of anything else; and what something that is called says itself."""
    name = str(getattr(value, "__qualname__", type(value).__qualname__))
    told = getattr(value, "fingerprint", None) if callable(value) and not isinstance(value, type) else None
    return f"{name} {told()}" if callable(told) else name


def expressions_in(value: object) -> Iterator[str]:
    """The expressions among the fields of a config that is about data, a source's or a sink's, and their values."""
    for name in _field_names(value):
        found = getattr(value, name, None)
        if isinstance(found, pc.Expression):
            yield f"{name}={exactly(found)}"

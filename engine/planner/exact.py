"""What the config of an operator is, to the last constant: a text for the fingerprint of a flow.

``describe()`` is for people: it shortens long lists of values and rounds numbers. Two flows that differ in what it
leaves out are two flows, or a job would go on with other rows than it began with.

Data (tables, indexes, files) and code are not in it: indexes and sources have fingerprints of their own, and of a
function only its name counts, what ``functools.partial`` gives it, and what it says itself in ``fingerprint()``.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import Enum
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from ..core.traits import Traits
from ..expressions.kernel_calls import exactly

_PLAIN = (str, bytes, int, float, bool, type(None), Decimal, datetime.date, datetime.time, datetime.timedelta)


def exact_text(config: object) -> str:
    """All of an operator's config, but for data and code."""
    if not dataclasses.is_dataclass(config):
        return ""
    fields = ((field.name, getattr(config, field.name)) for field in dataclasses.fields(config))
    return ", ".join(f"{name}={_exact(value)}" for name, value in fields if not isinstance(value, Traits))


def _exact(value: object) -> str:
    if isinstance(value, pc.Expression):
        return exactly(value)
    if isinstance(value, _PLAIN) and not isinstance(value, Enum):
        return repr(value)
    if isinstance(value, pa.Scalar):
        return f"{value.type} {value.as_py()!r}"
    if isinstance(value, (Enum, pa.DataType, pa.Field, pa.Schema)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_exact, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_exact(each)}' for key, each in value.items())}}}"
    if isinstance(value, partial):
        return f"{_code(value.func)} with {_exact(value.args)} {_exact(value.keywords)}"
    if dataclasses.is_dataclass(value) and not callable(value) and not hasattr(value, "fingerprint"):
        return f"{type(value).__name__}({exact_text(value)})"
    return _code(value)


def _code(value: object) -> str:
    """The name of a function or class, or the class of anything else; and what something that is called says itself."""
    name = str(getattr(value, "__qualname__", type(value).__qualname__))
    told = getattr(value, "fingerprint", None) if callable(value) and not isinstance(value, type) else None
    return f"{name} {told()}" if callable(told) else name


def expressions_in(value: object) -> Iterator[str]:
    """The expressions among the fields of a config that is about data, a source's or a sink's, and their values."""
    names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else vars(value)
    for name in names:
        found = getattr(value, name, None)
        if isinstance(found, pc.Expression):
            yield f"{name}={exactly(found)}"

"""Functions that Arrow has no kernel for, registered with Arrow so that expressions can call them.

Rules:

1. Each is registered as a function of its exact argument types when an expression first needs it, so such an expression
   means something in processes that have built it, and only there. Configs hold SQL text, which builds it.
2. ``name`` says all that the kernel does: constants that it was made with stand in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Kernel: TypeAlias = Callable[..., pa.Array]

_registering = Lock()
_registered: set[str] = set()
"""Arrow registers functions for the process, and each once."""


def own_call(
    name: str, kernel: Kernel, arguments: Sequence[tuple[pc.Expression, pa.DataType]], result: pa.DataType
) -> pc.Expression:
    """A call of ``kernel``, which gets a context, with ``batch_length``, and the arguments (:func:`whole`)."""
    types = [type for _, type in arguments]
    full = f"penstock.{name}({', '.join(map(str, types))})"
    with _registering:
        if full not in _registered:
            inputs = {f"argument_{number}": type for number, type in enumerate(types)}
            pc.register_scalar_function(kernel, full, {"summary": name, "description": name}, inputs, result)
            _registered.add(full)
    return pc.Expression._call(full, [argument for argument, _ in arguments])


def whole(value: Any, rows: int) -> pa.Array:
    """An argument as an array: Arrow hands over scalars where all rows are equal."""
    return pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value


def each_distinct(
    name: str, function: Callable[[Any], Any], given: pc.Expression, type: pa.DataType, result: pa.DataType
) -> pc.Expression:
    """``function`` of each value, computed once for equal ones; null of null. It raises ArrowInvalid for what it
    cannot take."""

    def kernel(context: Any, values: Any) -> pa.Array:
        coded = whole(values, context.batch_length).dictionary_encode()
        made = pa.array([function(each) for each in coded.dictionary.to_pylist()], result)
        return made.take(coded.indices)

    return own_call(name, kernel, [(given, type)], result)

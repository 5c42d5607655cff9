"""Expressions as plain calls of Arrow's kernels: the same values as Acero's, without what a plan costs per batch.

Rules:

1. An expression is taken apart through its serialized form: a record batch that holds literals and options, and whose
   metadata list calls, columns and ends of calls in order. Whatever is not understood there is left to Acero.
2. Kernels are chosen as Acero chooses them: a literal counts as the smallest type that can hold it, unless another
   argument has its type. Each call is tried once, on its arguments over no rows, and its type compared with the one
   that Acero gives to this call of columns and literals; if they differ, Acero runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.schemas import no_rows

Calls: TypeAlias = Callable[[pa.RecordBatch], Any]
"""Computes the values for a batch: an array, or a scalar if they are all the same."""

TypeOf: TypeAlias = Callable[[pc.Expression, pa.Schema], pa.DataType]
"""The type that Acero gives to an expression."""


class NotPlainError(Exception):
    """The expression has a part that must be left to Acero."""


def as_calls(expression: pc.Expression, schema: pa.Schema, type_of: TypeOf) -> Calls | None:
    """``expression`` over batches of ``schema`` as calls of kernels; None if only Acero can tell."""
    return _as_calls(serialized(expression), schema, type_of)


@lru_cache(maxsize=512)
def _as_calls(serialized: bytes, schema: pa.Schema, type_of: TypeOf) -> Calls | None:
    try:
        parts = pa.ipc.open_file(serialized).get_batch(0)
        return _ExpressionReader(parts, schema, type_of).read().run
    except (NotPlainError, pa.ArrowException, StopIteration):
        return None


def exactly(expression: pc.Expression) -> str:
    """All that an expression is, with every value of its literals and options; ``str`` leaves out what is long."""
    parts = pa.ipc.open_file(serialized(expression)).get_batch(0)
    values = [f"{column.type}: {column.to_pylist()!r}" for column in parts.columns]
    return f"{_metadata(parts.schema)!r} {values!r}"


def columns_of(expression: pc.Expression) -> set[str] | None:
    """The columns that an expression names, of paths into structs the first step; None if it cannot be taken apart."""
    found = _columns_in(serialized(expression))
    return None if found is None else set(found)


def serialized(expression: pc.Expression) -> bytes:
    """What stands for the expression where it must be compared and hashed."""
    _, (form,) = expression.__reduce__()
    return bytes(form.to_pybytes())


@lru_cache(maxsize=1024)
def _columns_in(serialized: bytes) -> frozenset[str] | None:
    try:
        tokens = iter(_metadata(pa.ipc.open_file(serialized).get_batch(0).schema))
        found: set[str] = set()
        for kind, value in tokens:
            if kind == "field_ref":
                found.add(value)
            elif kind == "nested_field_ref":
                path = [next(tokens)[1] for _ in range(int(value))]
                found.add(path[0])
            elif kind not in ("literal", "call", "options", "end"):
                return None
    except (pa.ArrowException, StopIteration, ValueError, IndexError):
        return None
    return frozenset(found)


def columns_read(expressions: Iterable[pc.Expression], schema: pa.Schema) -> set[str]:
    """The columns that expressions over ``schema`` name; all, if one of them cannot be taken apart."""
    found: set[str] = set()
    for expression in expressions:
        columns = columns_of(expression)
        if columns is None or not columns <= set(schema.names):
            return set(schema.names)
        found |= columns
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the expression: how to compute it, and its values over no rows; of a literal its value."""

    run: Calls
    values: Any
    literal: pa.Scalar | None = None


class _ExpressionReader:
    """Reads the parts of one expression, depth first."""

    def __init__(self, parts: pa.RecordBatch, schema: pa.Schema, type_of: TypeOf) -> None:
        self._columns = parts.columns
        self._tokens: Iterator[tuple[str, str]] = iter(_metadata(parts.schema))
        self._schema = schema
        self._type_of = type_of
        self._no_rows = no_rows(schema)

    def read(self) -> _Part:
        """The next part with all that belongs to it."""
        return self._part(*next(self._tokens))

    def _part(self, kind: str, value: str) -> _Part:
        if kind == "field_ref":
            return self._column([value])
        if kind == "nested_field_ref":
            return self._column([next(self._tokens)[1] for _ in range(int(value))])
        if kind == "literal":
            scalar = self._columns[int(value)][0]
            return _constant(scalar)
        if kind == "call":
            return self._call(value)
        raise NotPlainError(kind)

    def _column(self, path: list[str]) -> _Part:
        position = self._schema.get_field_index(path[0])
        if position < 0:
            raise NotPlainError(path[0])
        column, inner = self._no_rows.column(position), path[1:]
        if not inner:
            return _Part(lambda records: records.column(position), column)
        return _Part(lambda records: pc.struct_field(records.column(position), inner), pc.struct_field(column, inner))

    def _call(self, name: str) -> _Part:
        arguments: list[_Part] = []
        options = None
        for kind, value in self._tokens:
            if kind == "end":
                break
            if kind == "options":
                options = _options(self._columns[int(value)])
            else:
                arguments.append(self._part(kind, value))
        if all(each.literal is not None for each in arguments):
            raise NotPlainError(name)  # a constant, or a function of no argument
        function, fitted = pc.get_function(name), _fitted(arguments)
        runs = [each.run for each in fitted]

        def run(records: pa.RecordBatch) -> Any:
            return function.call([each(records) for each in runs], options)

        values = function.call([each.values for each in fitted], options)
        if values.type != self._type_of(*_alone(name, arguments, options)):
            raise NotPlainError(name)
        return _Part(run, values)


def _alone(
    name: str, arguments: Sequence[_Part], options: pc.FunctionOptions | None
) -> tuple[pc.Expression, pa.Schema]:
    """The call of literals and of columns that have the other arguments' types, and the schema of these."""
    columns = [(str(at), each.values.type) for at, each in enumerate(arguments)]
    given = [
        pc.field(column) if each.literal is None else pc.scalar(each.literal)
        for (column, _), each in zip(columns, arguments, strict=True)
    ]
    return pc.Expression._call(name, given, options), pa.schema(columns)


def _fitted(arguments: Sequence[_Part]) -> list[_Part]:
    """The arguments, with literals in the type that Acero picks a kernel by."""
    types = [each.values.type for each in arguments if each.literal is None]
    return [
        each if each.literal is None or each.literal.type in types else _constant(_smallest(each.literal))
        for each in arguments
    ]


def _constant(scalar: pa.Scalar) -> _Part:
    return _Part(lambda records: scalar, scalar, scalar)


def _smallest(literal: pa.Scalar) -> pa.Scalar:
    """A number in the smallest type of its kind that can hold it."""
    type, value = literal.type, literal.as_py()
    if value is None:
        return literal
    if pa.types.is_float64(type):
        with np.errstate(over="ignore"):
            fits = np.isnan(value) or float(np.float32(value)) == value
        return literal.cast(pa.float32()) if fits else literal
    if pa.types.is_integer(type):
        signed = pa.types.is_signed_integer(type)
        narrow = [pa.int8(), pa.int16(), pa.int32()] if signed else [pa.uint8(), pa.uint16(), pa.uint32()]
        for smaller in narrow:
            bounds = np.iinfo(smaller.to_pandas_dtype())
            if smaller.bit_width < type.bit_width and bounds.min <= value <= bounds.max:
                return literal.cast(smaller)
    return literal


def _options(column: pa.Array) -> pc.FunctionOptions:
    """The options of a call: a file of their own, as the library expects it, around their column."""
    sink = pa.BufferOutputStream()
    records = pa.RecordBatch.from_arrays([column], [""])
    with pa.ipc.new_file(sink, records.schema) as writer:
        writer.write_batch(records)
    return pc.FunctionOptions.deserialize(sink.getvalue())


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """The metadata in their order with their repeated keys, which ``schema.metadata`` does not keep: read from Arrow's
    C interface, where they are a count, then keys and values, each a length and its bytes."""
    capsule = schema.__arrow_c_schema__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    at = ctypes.cast(pointer(capsule, b"arrow_schema"), ctypes.POINTER(ctypes.c_void_p))[2]
    if not at:
        return []
    count, at = ctypes.c_int32.from_address(at).value, at + 4
    texts = []
    for _ in range(2 * count):
        length = ctypes.c_int32.from_address(at).value
        texts.append(ctypes.string_at(at + 4, length).decode())
        at += 4 + length
    return list(zip(texts[::2], texts[1::2], strict=True))

"""Expressions as plain calls of Arrow's kernels: the same values as Acero's, without what a plan costs per batch.

Rules:

1. An expression is taken apart through its serialized form: a record batch that holds literals and options, and whose
   metadata list calls, columns and ends of calls in order. Whatever is not understood there is left to Acero.
2. Kernels are chosen as Acero chooses them: a literal counts as the smallest type that can hold it, unless another
   argument has its type, or there is a kernel of just the types that are given. Each call is tried once, on its
   arguments over no rows, and its type compared with the one that Acero gives to this call of columns and literals;
   if they differ, Acero runs.
3. Columns may be compact. What ``compact_calls`` has a kernel for is computed on that form, and may give one;
   other calls get their arguments plain.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.compact import plain
from ..core.schemas import no_rows
from .compact_calls import Argument, Kept, kernel_of

TypeOf: TypeAlias = Callable[[pc.Expression, pa.Schema], pa.DataType]
"""The type that Acero gives to an expression."""


class NotPlainError(Exception):
    """The expression has a part that must be left to Acero."""


def program_of(expressions: Iterable[pc.Expression], schema: pa.Schema, type_of: TypeOf) -> Program | None:
    """Expressions over batches of ``schema`` as calls of kernels; None if only Acero can tell what one of them is."""
    return _program_of(tuple(map(serialized, expressions)), schema, type_of)


@lru_cache(maxsize=512)
def _program_of(serialized: tuple[bytes, ...], schema: pa.Schema, type_of: TypeOf) -> Program | None:
    writer = _ProgramWriter(schema, type_of)
    try:
        for each in serialized:
            writer.add(each)
    except (NotPlainError, pa.ArrowException, StopIteration):
        return None
    return writer.program


def exactly(expression: pc.Expression) -> str:
    """All that an expression is, with every value of its literals and options; ``str`` leaves out what is long."""
    parts = pa.ipc.open_file(serialized(expression)).get_batch(0)
    values = [f"{column.type}: {column.to_pylist()!r}" for column in parts.columns]
    return f"{_metadata(parts.schema)!r} {values!r}"


def columns_of(expression: pc.Expression) -> set[str] | None:
    """The columns that an expression names, of paths into structs the first step; None if it cannot be taken apart."""
    found = _named_in(serialized(expression))
    return None if found is None else set(found[0])


def never_raises(expressions: Iterable[pc.Expression], schema: pa.Schema) -> bool:
    """Whether it is certain that no values of the columns of ``schema`` make one of the expressions fail."""
    for expression in expressions:
        found = _named_in(serialized(expression))
        if found is None or not found[1] <= _SAFE or not found[0] <= set(schema.names):
            return False
        types = {*(schema.field(name).type for name in found[0]), *found[2]}
        if not _always_meet(types | ({pa.int64()} if found[1] & _COUNTING else set())):
            return False
    return True


def _always_meet(types: set[pa.DataType]) -> bool:
    """Whether values of any two of these types that can be compared at all can be cast for that, whatever they are: not
    decimals (scaled, one may not fit), dates and times of several units, integers beside floats, unsigned integers of
    64 bits beside signed ones, and what is inside a struct."""
    integers = {type for type in types if pa.types.is_integer(type)}
    if any(pa.types.is_decimal(type) or pa.types.is_nested(type) for type in types):
        return False
    if len({type for type in types if pa.types.is_temporal(type)}) > 1:
        return False
    if pa.uint64() in integers and any(map(pa.types.is_signed_integer, integers)):
        return False
    return not (integers and any(map(pa.types.is_floating, types)))


_SAFE = {
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "and_kleene", "or_kleene", "invert"),
    *("is_null", "is_valid", "is_nan", "is_in", "if_else", "case_when", "coalesce", "year", "month", "day"),
    *("match_like", "match_substring", "starts_with", "ends_with", "utf8_length"),
}
"""Kernels that have an answer for every value."""
_COUNTING = {"year", "month", "day", "utf8_length"}
"""Those of them that give integers of something else."""


def serialized(expression: pc.Expression) -> bytes:
    """What stands for the expression where it must be compared and hashed."""
    _, (form,) = expression.__reduce__()
    return bytes(form.to_pybytes())


@lru_cache(maxsize=1024)
def _named_in(serialized: bytes) -> tuple[frozenset[str], frozenset[str], frozenset[pa.DataType]] | None:
    """The columns, the functions, and the types of the literals in an expression, those in lists included."""
    try:
        parts = pa.ipc.open_file(serialized).get_batch(0)
        tokens = iter(_metadata(parts.schema))
        types: set[pa.DataType] = set()
        found: set[str] = set()
        calls: set[str] = set()
        for kind, value in tokens:
            if kind == "field_ref":
                found.add(value)
            elif kind == "nested_field_ref":
                path = [next(tokens)[1] for _ in range(int(value))]
                found.add(path[0])
            elif kind == "call":
                calls.add(value)
            elif kind == "literal":
                types.add(parts.column(int(value)).type)
            elif kind == "options":
                types |= {each.type.value_type for each in parts.column(int(value)).type if each.name == "value_set"}
            elif kind != "end":
                return None
    except (pa.ArrowException, StopIteration, ValueError, IndexError):
        return None
    return frozenset(found), frozenset(calls), frozenset(types)


def columns_read(expressions: Iterable[pc.Expression], schema: pa.Schema) -> set[str]:
    """The columns that expressions over ``schema`` name; all, if one of them cannot be taken apart."""
    found: set[str] = set()
    for expression in expressions:
        columns = columns_of(expression)
        if columns is None or not columns <= set(schema.names):
            return set(schema.names)
        found |= columns
    return found


class Evaluation:
    """One batch, and what has been computed of it."""

    __slots__ = ("_plain", "_types", "kept", "records", "values")

    def __init__(self, records: pa.RecordBatch, program: Program, kept: Kept) -> None:
        self.records = records
        self.kept = kept
        #: of each step of the program that has run
        self.values: list[Any] = list(program.constants)
        self._types = program.types
        self._plain: dict[int, Any] = {}

    def plain(self, step: int) -> Any:
        """What a step has given, in its declared type."""
        value, type = self.values[step], self._types[step]
        if isinstance(value, pa.Scalar) or value.type == type:
            return value
        if step not in self._plain:
            self._plain[step] = plain(value, type)
        return self._plain[step]


@dataclass(slots=True)
class Program:
    """Several expressions over one schema, in steps of which each computes one call: what occurs twice is computed
    once. ``roots``: for each expression the number of steps up to it, and its own step."""

    steps: list[Callable[[Evaluation], Any]] = field(default_factory=list)
    types: list[pa.DataType] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    roots: list[tuple[int, int]] = field(default_factory=list)

    def results(self, frame: Evaluation) -> Iterator[int]:
        """Run the steps; the step of each expression in turn, when it has run."""
        done, values, steps = 0, frame.values, self.steps
        for end, step in self.roots:
            for number in range(done, end):
                if values[number] is None:
                    values[number] = steps[number](frame)
            done = max(done, end)
            yield step


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of an expression: its step, and its values over no rows; of a literal its value."""

    step: int
    values: Any
    literal: pa.Scalar | None = None


class _ProgramWriter:
    """Takes expressions over a schema apart."""

    def __init__(self, schema: pa.Schema, type_of: TypeOf) -> None:
        self.program = Program()
        self._schema = schema
        self._type_of = type_of
        self._no_rows = no_rows(schema)
        #: the parts by all that they are
        self._parts: dict[object, _Part] = {}

    def add(self, serialized: bytes) -> None:
        """Add an expression."""
        parts = pa.ipc.open_file(serialized).get_batch(0)
        tokens = iter(_metadata(parts.schema))
        root = self._part(*next(tokens), tokens, parts.columns)
        self.program.roots.append((len(self.program.steps), root.step))

    def _part(self, kind: str, value: str, tokens: Iterator[tuple[str, str]], columns: list[pa.Array]) -> _Part:
        if kind == "field_ref":
            return self._column((value,))
        if kind == "nested_field_ref":
            return self._column(tuple(next(tokens)[1] for _ in range(int(value))))
        if kind == "literal":
            return self._constant(columns[int(value)][0])
        if kind == "call":
            return self._call(value, tokens, columns)
        raise NotPlainError(kind)

    def _made(
        self, key: object, run: Callable[[Evaluation], Any], values: Any, constant: pa.Scalar | None = None
    ) -> _Part:
        program = self.program
        part = self._parts[key] = _Part(len(program.steps), values, constant)
        program.steps.append(run)
        program.types.append(values.type)
        program.constants.append(constant)
        return part

    def _constant(self, scalar: pa.Scalar) -> _Part:
        # its bytes: Python has no nanoseconds, and Arrow takes both zeros for equal
        value = pa.RecordBatch.from_arrays([pa.repeat(scalar, 1)], [""]).serialize().to_pybytes()
        key = ("literal", str(scalar.type), value)
        return self._parts.get(key) or self._made(key, lambda frame: scalar, scalar, scalar)

    def _column(self, path: tuple[str, ...]) -> _Part:
        if path in self._parts:
            return self._parts[path]
        position = self._schema.get_field_index(path[0])
        if position < 0:
            raise NotPlainError(path[0])
        column, inner = self._no_rows.column(position), list(path[1:])
        if not inner:
            return self._made(path, lambda frame: frame.records.column(position), column)
        return self._made(
            path,
            lambda frame: pc.struct_field(frame.records.column(position), inner),
            pc.struct_field(column, inner),
        )

    def _call(self, name: str, tokens: Iterator[tuple[str, str]], columns: list[pa.Array]) -> _Part:
        given: list[_Part] = []
        options, bare = None, b""
        for kind, value in tokens:
            if kind == "end":
                break
            if kind == "options":
                options, bare = _options(columns[int(value)])
            else:
                given.append(self._part(kind, value, tokens, columns))
        if all(each.literal is not None for each in given):
            raise NotPlainError(name)  # a constant, or a function of no argument
        key = (name, bare, *(each.step for each in given))
        return self._parts.get(key) or self._computed(key, name, given, options)

    def _computed(self, key: object, name: str, given: Sequence[_Part], options: pc.FunctionOptions | None) -> _Part:
        function = pc.get_function(name)
        type = self._type_of(*_alone(name, given, options))
        for arguments in (self._fitted(given), given):  # the second, where a kernel has just these types
            values = function.call([each.values for each in arguments], options)
            if values.type == type:
                break
        else:
            raise NotPlainError(name)
        steps = [each.step for each in arguments]
        known = [Argument(each.values.type, each.literal) for each in arguments]
        kernel = kernel_of(name, known, type, options, len(self.program.steps))

        def run(frame: Evaluation) -> Any:
            if kernel is not None:
                found = kernel([frame.values[step] for step in steps], frame.kept)
                if found is not None:
                    return found
            return function.call([frame.plain(step) for step in steps], options)

        return self._made(key, run, values)

    def _fitted(self, arguments: Sequence[_Part]) -> list[_Part]:
        """The arguments, with literals in the type that Acero picks a kernel by."""
        types = [each.values.type for each in arguments if each.literal is None]
        return [
            each if each.literal is None or each.literal.type in types else self._constant(_smallest(each.literal))
            for each in arguments
        ]


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


def _smallest(literal: pa.Scalar) -> pa.Scalar:
    """A number in the smallest type of its kind that can hold it."""
    type = literal.type
    if not (literal.is_valid and (pa.types.is_float64(type) or pa.types.is_integer(type))):
        return literal
    value = literal.as_py()
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


def _options(column: pa.Array) -> tuple[pc.FunctionOptions, bytes]:
    """The options of a call, and their bytes: a file of their own, as the library expects it, around their column."""
    sink = pa.BufferOutputStream()
    records = pa.RecordBatch.from_arrays([column], [""])
    with pa.ipc.new_file(sink, records.schema) as writer:
        writer.write_batch(records)
    found = sink.getvalue()
    return pc.FunctionOptions.deserialize(found), found.to_pybytes()


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

"""Expressions as plain calls of Arrow's kernels: the same values as Acero's, without what a plan costs per batch.

Rules:

1. An expression is taken apart (``tree``). Whatever is not understood there is left to Acero.
2. Kernels are chosen as Acero chooses them: a literal counts as the smallest type that can hold it, unless another
   argument has its type, or there is a kernel of just the types that are given. Each call is tried once, on its
   arguments over no rows, and its type compared with the one that Acero gives to this call of columns and literals;
   if they differ, Acero runs.
3. A call of nothing but constants is computed once. It is not a literal for rule 2: its type is what it is. One that
   fails is left to Acero, which says so of each batch.
4. Columns may be compact. What ``compact_calls`` has a kernel for is computed on that form, and may give one;
   other calls get their arguments plain.
"""

from __future__ import annotations

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
from .tree import Call, ColumnPath, NotPlainError, Tree, parts_of, serialized, tokens_of, tree_of

TypeOf: TypeAlias = Callable[[pc.Expression, pa.Schema], pa.DataType]
"""The type that Acero gives to an expression."""


def program_of(expressions: Iterable[pc.Expression], schema: pa.Schema, type_of: TypeOf) -> Program | None:
    """Expressions over batches of ``schema`` as calls of kernels; None if only Acero can tell what one of them is."""
    return _program_of(tuple(map(serialized, expressions)), schema, type_of)


@lru_cache(maxsize=512)
def _program_of(serialized: tuple[bytes, ...], schema: pa.Schema, type_of: TypeOf) -> Program | None:
    writer = _ProgramWriter(schema, type_of)
    try:
        for each in serialized:
            writer.add(each)
    except (NotPlainError, pa.ArrowException):
        return None
    return writer.program


def exactly(expression: pc.Expression) -> str:
    """All that an expression is, with every value of its literals and options; ``str`` leaves out what is long."""
    return _exactly(serialized(expression))


@lru_cache(maxsize=512)
def _exactly(serialized: bytes) -> str:
    parts = pa.ipc.open_file(serialized).get_batch(0)
    values = [f"{column.type}: {column.to_pylist()!r}" for column in parts.columns]
    return f"{tokens_of(parts.schema)!r} {values!r}"


def columns_of(expression: pc.Expression) -> set[str] | None:
    """The columns that an expression names, of paths into structs the first step; None if it cannot be taken apart."""
    found = _columns_in(serialized(expression))
    return None if found is None else set(found)


def always_meet(types: set[pa.DataType]) -> bool:
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


SAFE = {
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "and_kleene", "or_kleene", "invert"),
    *("is_null", "is_valid", "is_nan", "is_in", "if_else", "case_when", "coalesce", "year", "month", "day"),
    *("match_like", "match_substring", "starts_with", "ends_with", "utf8_length"),
}
"""Kernels that have an answer for every value."""
COUNTING = {"year", "month", "day", "utf8_length"}
"""Those of them that give integers of something else."""
FLIPPED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
"""Comparisons whose sides have an order, and what they are with the sides exchanged."""


@lru_cache(maxsize=1024)
def _columns_in(serialized: bytes) -> frozenset[str] | None:
    try:
        parts = parts_of(tree_of(serialized))
        return frozenset(part.path[0] for part in parts if isinstance(part, ColumnPath))
    except NotPlainError:
        return None


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
    """A part of an expression: its step, and its values over no rows; if it is the same for every row its value, of a
    literal and of a call of constants."""

    step: int
    values: Any
    constant: pa.Scalar | None = None
    is_literal: bool = False


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
        root = self._part(tree_of(serialized))
        self.program.roots.append((len(self.program.steps), root.step))

    def _part(self, tree: Tree) -> _Part:
        if isinstance(tree, ColumnPath):
            return self._column(tree.path)
        return self._call(tree) if isinstance(tree, Call) else self._constant(tree)

    def _made(self, key: object, run: Callable[[Evaluation], Any], values: Any, *, is_literal: bool = False) -> _Part:
        program = self.program
        constant = values if isinstance(values, pa.Scalar) else None
        part = self._parts[key] = _Part(len(program.steps), values, constant, is_literal)
        program.steps.append(run)
        program.types.append(values.type)
        program.constants.append(constant)
        return part

    def _constant(self, scalar: pa.Scalar) -> _Part:
        # its bytes: Python has no nanoseconds, and Arrow takes both zeros for equal
        value = pa.RecordBatch.from_arrays([pa.repeat(scalar, 1)], [""]).serialize().to_pybytes()
        key = ("literal", str(scalar.type), value)
        return self._parts.get(key) or self._made(key, lambda frame: scalar, scalar, is_literal=True)

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

    def _call(self, call: Call) -> _Part:
        given = [self._part(each) for each in call.parts]
        if not given:
            raise NotPlainError(call.name)
        options, bare = call.function_options
        key = (call.name, bare, *(each.step for each in given))
        return self._parts.get(key) or self._computed(key, call.name, given, options)

    def _computed(self, key: object, name: str, given: Sequence[_Part], options: pc.FunctionOptions | None) -> _Part:
        function = pc.get_function(name)
        is_constant = all(each.constant is not None for each in given)
        if is_constant and function.kind != "scalar" and name != "cast":
            raise NotPlainError(name)
        type = self._type_of(*_alone(name, given, options))
        fitted = self._fitted(given)
        # as they are: where a kernel has just these types, and first where there is no column for literals to fit
        for arguments in (given, fitted) if is_constant else (fitted, given):
            values = function.call([each.values for each in arguments], options)
            if values.type == type:
                break
        else:
            raise NotPlainError(name)
        if is_constant:
            if not isinstance(values, pa.Scalar):
                raise NotPlainError(name)
            return self._made(key, lambda frame: values, values)
        steps = [each.step for each in arguments]
        known = [Argument(each.values.type, each.constant) for each in arguments]
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
        types = [each.values.type for each in arguments if not each.is_literal]
        return [
            self._constant(_smallest(each.values)) if each.is_literal and each.values.type not in types else each
            for each in arguments
        ]


def _alone(
    name: str, arguments: Sequence[_Part], options: pc.FunctionOptions | None
) -> tuple[pc.Expression, pa.Schema]:
    """The call of literals and of columns that have the other arguments' types, and the schema of these."""
    columns = [(str(at), each.values.type) for at, each in enumerate(arguments)]
    given = [
        pc.scalar(each.values) if each.is_literal else pc.field(column)
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

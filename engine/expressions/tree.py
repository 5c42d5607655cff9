"""An expression as a tree of calls, columns and literals. The only place that takes its serialized form apart.

That is a record batch that holds literals and options, and whose metadata list calls, columns and ends of calls in
their order.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

MOST_DEPTH = 200
"""Calls within calls, such as a chain of so many ``or``: whatever walks a tree does so by calls of Python."""


class NotPlainError(Exception):
    """The expression has a part that must be left to Acero."""


@dataclass(frozen=True, slots=True)
class ColumnPath:
    """A column, or a ``path`` from one into its structs: of several names, which may have points."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """A call of a function. ``raw``: its options as they are written, or None."""

    name: str
    parts: Sequence[Tree]
    raw: pa.Array | None = None

    @cached_property
    def options(self) -> Mapping[str, pa.Scalar]:
        """Each option by its name."""
        return {} if self.raw is None else {each.name: self.raw.field(each.name)[0] for each in self.raw.type}

    @cached_property
    def function_options(self) -> tuple[pc.FunctionOptions | None, bytes]:
        """What the function is called with, and its bytes: a file of their own, as the library expects it, around their
        column."""
        if self.raw is None:
            return None, b""
        sink = pa.BufferOutputStream()
        records = pa.RecordBatch.from_arrays([self.raw], [""])
        with pa.ipc.new_file(sink, records.schema) as writer:
            writer.write_batch(records)
        found = sink.getvalue()
        return pc.FunctionOptions.deserialize(found), found.to_pybytes()


Tree: TypeAlias = Call | ColumnPath | pa.Scalar
"""A call, a column, or the value of a literal."""


_known: Final[dict[int, tuple[weakref.ref[Any], bytes]]] = {}
"""What live expressions are serialized, by their address: they do not change, and have no hash."""


def _forget(place: int, _: object, known: dict[int, Any] = _known) -> None:
    known.pop(place, None)


def serialized(expression: pc.Expression) -> bytes:
    """What stands for the expression where it must be compared and hashed; made once for each."""
    known = _known.get(id(expression))
    if known is not None and known[0]() is expression:
        return known[1]
    _, (form,) = expression.__reduce__()
    found = bytes(form.to_pybytes())
    _known[id(expression)] = weakref.ref(expression, partial(_forget, id(expression))), found
    return found


@lru_cache(maxsize=1024)
def tree_of(serialized: bytes) -> Tree:
    """The tree of an expression. Raises NotPlainError."""
    try:
        parts = pa.ipc.open_file(serialized).get_batch(0)
        return _built(iter(tokens_of(parts.schema)), parts.columns)
    except (pa.ArrowException, StopIteration, ValueError, IndexError) as error:
        raise NotPlainError(str(error)) from error


def _built(tokens: Iterator[tuple[str, str]], values: Sequence[pa.Array]) -> Tree:
    """The tree that these tokens describe."""
    open_calls: list[tuple[str, list[Tree], list[pa.Array]]] = []
    for kind, value in tokens:
        if kind == "call":
            if len(open_calls) == MOST_DEPTH:
                raise ValueError("it is too deep")
            open_calls.append((value, [], []))
            continue
        if kind == "options":
            open_calls[-1][2].append(values[int(value)])
            continue
        made = _call(*open_calls.pop()) if kind == "end" else _leaf(kind, value, tokens, values)
        if not open_calls:
            return made
        open_calls[-1][1].append(made)
    raise ValueError("it has no end")


def _call(name: str, parts: Sequence[Tree], options: Sequence[pa.Array]) -> Call:
    return Call(name, parts, options[0] if options else None)


def _leaf(kind: str, value: str, tokens: Iterator[tuple[str, str]], values: Sequence[pa.Array]) -> Tree:
    if kind == "field_ref":
        return ColumnPath((value,))
    if kind == "nested_field_ref":
        return ColumnPath(tuple(next(tokens)[1] for _ in range(int(value))))
    if kind == "literal":
        return values[int(value)][0]
    raise ValueError(kind)


def parts_of(tree: Tree) -> Iterator[Tree]:
    """It, and all that is below it."""
    yield tree
    if isinstance(tree, Call):
        for each in tree.parts:
            yield from parts_of(each)


def tokens_of(schema: pa.Schema) -> list[tuple[str, str]]:
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

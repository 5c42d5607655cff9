"""Questions about schemas that operators ask when a flow is built, with errors that name what exists.

Rules:

1. Every error is a :class:`FlowError` that names the kind of operator, the column, and the columns there are.
2. A schema with two columns of one name is refused where it enters: a name must mean one column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

import pyarrow as pa

from .errors import FlowError


def check_columns(kind: str, schema: pa.Schema, names: Iterable[str], side: str = "input") -> None:
    """All of ``names`` stand in ``schema`` once."""
    for name in names:
        found = len(schema.get_all_field_indices(name))
        if found == 0:
            raise missing_column(kind, name, schema, side)
        if found > 1:
            raise FlowError(f"{kind}: column {name!r} stands {found} times in its {side}", "rename all but one of them")


def missing_column(kind: str, name: str, schema: pa.Schema, side: str = "input") -> FlowError:
    """The error for a column that does not exist."""
    near = get_close_matches(name, schema.names, n=3)
    there = f"use one of the columns there are: {', '.join(schema.names) or 'none'}"
    remedy = f"did you mean {' or '.join(map(repr, near))}? {there}" if near else there
    return FlowError(f"{kind}: its {side} has no column {name!r}", remedy)


def duplicate_of(names: Iterable[str]) -> str | None:
    """The first name that occurs twice."""
    names = tuple(names)
    if len(set(names)) == len(names):
        return None
    return next((name for name, count in Counter(names).items() if count > 1), None)


def check_distinct(kind: str, what: str, names: Sequence[str]) -> None:
    """No name is asked for twice."""
    if (twice := duplicate_of(names)) is not None:
        raise FlowError(f"{kind}: {what} {twice!r} is given twice", "give each name once")


def unique_schema(kind: str, fields: Sequence[pa.Field], remedy: str) -> pa.Schema:
    """The schema of ``fields``, whose names must differ."""
    if (twice := duplicate_of(field.name for field in fields)) is not None:
        raise FlowError(f"{kind}: its output would have two columns named {twice!r}", remedy)
    return pa.schema(fields)


def check_inputs(kind: str, inputs: Sequence[pa.Schema], ports: int) -> None:
    """The operator got as many inputs as it has ports."""
    if len(inputs) != ports:
        raise FlowError(f"{kind} takes {ports} input{'s' if ports > 1 else ''}, not {len(inputs)}")


_FLAT: Final = frozenset(
    type.id
    for type in (
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.decimal128(1), pa.date32(), pa.timestamp("us"), pa.string(), pa.binary()),
    )
)
"""Of these types Arrow picks rows, whatever their parameters. (A type is hashed by its text: that takes time.)"""


def check_movable(kind: str, schema: pa.Schema, names: Iterable[str] | None = None, side: str = "input") -> None:
    """Arrow can pick rows out of the columns (``names``, or all): it cannot yet for views and run-end encoding."""
    found = zip(schema.names, schema.types, strict=True)
    for name, type in found if names is None else ((name, schema.field(name).type) for name in names):
        if type.id not in _FLAT and not _is_movable(type):
            raise FlowError(
                f"{kind}: column {name!r} of its {side} is {type}, of which Arrow cannot pick rows",
                "cast it before, for instance to string or large_string",
            )


@lru_cache(maxsize=256)
def _is_movable(type: pa.DataType) -> bool:
    try:
        pa.nulls(1, type).take(pa.array([0]))
    except pa.ArrowNotImplementedError:
        return False
    return True


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """No rows of this schema. (``from_pylist`` and ``empty_table`` of Arrow cannot make those of every type.)"""
    return pa.RecordBatch.from_arrays([pa.nulls(0, type) for type in schema.types], schema=schema)


def value_type(type: pa.DataType) -> pa.DataType:
    """The type of the values: of its dictionary for a dictionary type, else the type itself."""
    return type.value_type if pa.types.is_dictionary(type) else type


def check_same_types(kind: str, pairs: Iterable[tuple[pa.Field, pa.Field]], left: str, right: str) -> None:
    """The key columns of two sides have equal types (a dictionary counts as its values)."""
    for one, other in pairs:
        if value_type(one.type) != value_type(other.type):
            raise FlowError(
                f"{kind}: key {one.name!r} is {one.type} on the {left}, {other.name!r} is {other.type} on the {right}",
                "cast one of them in a projection before the join",
            )


def is_list(type: pa.DataType) -> bool:
    """Whether values are lists, of any length or of one; views are none."""
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type))

"""What callers give as one split of a source: a table in some form, or the path of a file. Checked when it is given.

Rules:

1. Tables and record batches have the source's columns, with their types and in their order. Dicts of arrays and pandas
   frames have its columns in any order, and values that fit its types.
2. What does not fit is a FlowError of whoever gives it, and nothing has been added. Of a split of somebody's own class
   only that it is one is known: its rows are compared when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any, TypeAlias

import pyarrow as pa

from ..arrow.plain_types import plain_table
from ..core.errors import FlowError
from ..core.source import Split
from .fed import NoRows, check_schema, file_split
from .memory import MemorySplit

NewSplit: TypeAlias = Any
"""A table, record batch, dict of arrays, path, ``Split``; or a pandas frame, which has no type without pandas."""

_FORMS = "give a table, a record batch, a pandas frame, a dict of arrays, or a file's path"


def split_of(given: object, schema: pa.Schema, id: str) -> Split:
    """The split. Raises FlowError, or ConfigurationError for a file."""
    if isinstance(given, NoRows):
        return given
    if isinstance(given, MemorySplit):
        return MemorySplit(given.id, table_of(given.table, schema))
    if isinstance(given, str | PathLike):
        return file_split(id, fspath(given), schema)
    if _is_split(given):
        return given  # type: ignore[return-value]  # it has the members
    return MemorySplit(id, table_of(given, schema))


def table_of(given: object, schema: pa.Schema) -> pa.Table:
    """The rows that are given in one of the forms of a table, with the source's schema."""
    if isinstance(given, pa.Table | pa.RecordBatch):
        table = pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else given
    elif isinstance(given, Mapping):
        table = _from_arrays(given, schema)
    elif _is_frame(given):
        table = _from_frame(given, schema)
    else:
        raise FlowError(f"a split is a {type(given).__name__}", _FORMS)
    if table.schema.equals(schema):
        return table
    check_schema("the split", table.schema, schema)
    try:
        return plain_table(table).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise FlowError(f"the split does not fit the source: {error}", "cast it, or fill what is missing") from error


def _is_split(given: object) -> bool:
    return not isinstance(given, type) and all(hasattr(given, member) for member in ("id", "rows", "open"))


def _is_frame(given: object) -> bool:
    """Whether it is a pandas frame, which it can only be if somebody has imported pandas."""
    return any(
        each.__module__.partition(".")[0] == "pandas" and each.__name__ == "DataFrame" for each in type(given).__mro__
    )


def _from_arrays(given: Mapping[Any, Any], schema: pa.Schema) -> pa.Table:
    _check_names(list(given), schema)
    arrays = [_array(given[field.name], field) for field in schema]
    if len({len(each) for each in arrays}) > 1:
        lengths = ", ".join(f"{name} has {len(each)}" for name, each in zip(schema.names, arrays, strict=True))
        raise FlowError(f"the split's columns are not equally long: {lengths}", "give every row a value, or None")
    fields = [pa.field(field.name, each.type) for field, each in zip(schema, arrays, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _array(values: Any, field: pa.Field) -> Any:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    try:
        return pa.array(values, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        message = f"the split's column {field.name!r} does not hold {field.type}: {error}"
        raise FlowError(message, "give values of that type") from None


def _from_frame(given: Any, schema: pa.Schema) -> pa.Table:
    _check_names(list(given.columns), schema)
    fields = [field.with_nullable(True) for field in schema]
    try:
        table = pa.Table.from_pandas(given[schema.names], schema=pa.schema(fields), preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise FlowError(f"the frame does not fit the source: {error}", "give its columns the source's types") from None
    return table.replace_schema_metadata(None)


def _check_names(names: list[Any], schema: pa.Schema) -> None:
    if len(names) != len(schema) or set(names) != set(schema.names):
        found, wanted = ", ".join(map(str, names)), ", ".join(schema.names)
        raise FlowError(f"the split has the columns {found}, the source takes {wanted}", "give those, and no others")

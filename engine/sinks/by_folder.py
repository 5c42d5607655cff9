"""Rows into folders named after their values (``year=2024/kind=a``), as Hive, Spark and DuckDB lay them out. Pure.

``files.partitions`` reads them back: a value is what Arrow writes of it as text, escaped as in URLs; null has a
folder of its own. The columns themselves are not in the files; :func:`stored_with` keeps what they were.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import DataError, FlowError
from ..core.schemas import missing_column
from ..files.partitions import NULL, partitions_of
from ..kernels.pieces import selected

_KEPT = " !$&'()+,;@~"
"""Besides letters, digits and ``-._``, what stands in a folder's name as it is: nothing of paths, globs and queries."""
_LONGEST = 255
"""Characters of a folder's name."""
WHOLE_SCHEMA = b"penstock:schema"
"""Where a file says which columns its rows have with those of its folders, and in which order."""


def check_by(by: Sequence[str], schema: pa.Schema) -> None:
    """Raise FlowError unless rows of the schema can go into folders by these columns."""
    for name in by:
        if name not in schema.names:
            raise missing_column("partition_by", name, schema)
        type = schema.field(name).type
        if _has_no_text(type):
            raise FlowError(
                f"partition_by: column {name!r} has type {type}", "folders have texts, whole numbers or days"
            )
        try:
            pc.cast(pc.cast(pa.nulls(0, type), pa.string()), type)
        except pa.ArrowNotImplementedError as error:
            raise FlowError(f"partition_by: column {name!r} has type {type}", "cast it to text before") from error
        if not name:
            raise FlowError("partition_by: a column has no name", "rename the column")
        if name.startswith(("_", ".")):
            message = f"partition_by: readers pass over folders whose names begin with {name[0]!r}, as {name!r} does"
            raise FlowError(message, "rename the column")
    if len(set(by)) < len(by):
        raise FlowError("partition_by names a column twice", "name each once")
    if len(by) == len(schema):
        raise FlowError("partition_by names all columns: nothing is left for the files", "leave one of them out")


def _has_no_text(type: pa.DataType) -> bool:
    """Whether values of the type are no text that means the same value everywhere."""
    types = pa.types
    if types.is_dictionary(type) or types.is_run_end_encoded(type):
        return _has_no_text(type.value_type)
    if isinstance(type, pa.BaseExtensionType):
        return _has_no_text(type.storage_type)
    is_bytes = types.is_binary(type) or types.is_large_binary(type) or types.is_fixed_size_binary(type)
    is_short = types.is_decimal(type) and type.scale < 0  # Parquet has none, not even in a schema
    return bool(types.is_nested(type) or types.is_floating(type) or is_bytes or is_short)


def folders_of(records: pa.RecordBatch, by: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows without these columns, by the folders that they belong into, in their order within each."""
    rest = records.select([name for name in records.schema.names if name not in by])
    texts = [pc.cast(records.column(name), pa.string()) for name in by]
    codes = np.zeros(records.num_rows, np.int64)
    for column in texts:
        found = pc.dictionary_encode(column, null_encoding="encode")
        # numbered anew each time, so that many columns do not overflow
        codes = np.unique(codes * len(found.dictionary) + found.indices.to_numpy(), return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for begin, end in zip(starts, [*starts[1:], len(order)], strict=True):
        positions = order[begin:end]
        values = [column[int(positions[0])].as_py() for column in texts]
        folder = "/".join(map(folder_name, by, values))
        yield folder, rest if len(positions) == len(order) else selected(rest, positions)


def folder_name(name: str, value: str | None) -> str:
    """The folder of rows with this value."""
    if value is None:
        told = NULL
    else:
        told = quote(value, safe=_KEPT)
        told = told.replace("_", "%5F", 1) if told == NULL else told
    folder = f"{quote(name, safe=_KEPT)}={told}"
    if len(folder) > _LONGEST:
        raise DataError(
            f"partition_by: the folder of rows in which {name!r} is {str(value)[:40]!r}… would have a name of "
            f"{len(folder)} characters, and file systems have {_LONGEST}",
            "write by shorter texts: a part of this one, or its hash",
        )
    return folder


def stored_with(schema: pa.Schema, by: Sequence[str]) -> pa.Schema:
    """The schema of the files of rows like these."""
    if not by:
        return schema
    kept = pa.schema([each for each in schema if each.name not in by])
    return kept.with_metadata({WHOLE_SCHEMA: base64.b64encode(schema.remove_metadata().serialize().to_pybytes())})


def whole(records: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """The rows of a file with the columns of its folders, as they were given to the sink. ``name``: its path within the
    output folder."""
    told = (records.schema.metadata or {}).get(WHOLE_SCHEMA)
    if told is None:
        return records
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told)))
    types = {each.name: each.type for each in schema if each.name not in records.schema.names}
    constants = partitions_of([name], records.schema.names, types).of(0)
    columns = [
        pa.repeat(constants[each], records.num_rows) if each in constants else records.column(each)
        for each in schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)

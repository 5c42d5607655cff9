"""A source over Parquet files: one split per row group or per file, in the order of the paths.

Rules:

1. All footers are read when the job is planned: they give the row counts, and a file whose columns or types differ
   from the first one's is refused then, not hours later.
2. Reading from row ``start`` skips whole row groups before it unread. With a filter, rows are counted after
   filtering, so that the row groups of the split are read from its beginning; ``rows`` is unknown then.
3. Folders named ``key=value`` are walked, but do not become columns.
4. Files are scanned as a dataset only for a filter; without one they are decoded, at two fifths of the processor time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

import pyarrow as pa
from pyarrow import compute, dataset, parquet

from ..errors import ConfigurationError, FlowError
from ..shown import hides_credentials
from .files import (
    ROWS_PER_BATCH,
    DataFile,
    absolute_paths,
    check_columns,
    check_same,
    from_row,
    is_local,
    list_files,
)


@dataclass(frozen=True, slots=True)
class ParquetSplit:
    """Some row groups of one file, with what is wanted of them."""

    file: DataFile
    groups: tuple[tuple[int, int], ...]
    """(row group, number of rows) of each, in order."""
    id: str
    file_schema: pa.Schema
    columns: tuple[str, ...]
    filter: compute.Expression | None = field(default=None, compare=False)
    blocking: ClassVar[bool] = True

    @property
    def rows(self) -> int | None:
        return None if self.filter is not None else sum(count for _, count in self.groups)

    def narrowed(self, columns: Sequence[str]) -> ParquetSplit:
        """The same rows with these columns alone."""
        return replace(self, columns=tuple(columns))

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        groups = list(self.groups)
        while self.filter is None and groups and start >= groups[0][1]:
            start -= groups.pop(0)[1]
        return from_row(self._batches([group for group, _ in groups]), start)

    def _batches(self, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        # a name with a dot would be taken for a path into a struct
        scanned = self.filter is not None or any("." in name for name in self.file_schema.names)
        schema = pa.schema([self.file_schema.field(name) for name in self.columns])
        # both read one row group at a time, which a slow consumer should not have read ahead, and forget which columns
        # are never null
        for records in self._scanned(groups) if scanned else self._decoded(groups):
            yield pa.RecordBatch.from_arrays([records.column(name) for name in self.columns], schema=schema)

    def _decoded(self, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Rule 4."""
        with self.file.reading(), self.file.open() as opened:
            file = parquet.ParquetFile(opened, pre_buffer=not is_local(self.file.filesystem))
            for group in groups:
                yield from file.iter_batches(
                    ROWS_PER_BATCH, row_groups=[group], columns=list(self.columns), use_threads=False
                )

    def _scanned(self, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        options = dataset.ParquetFragmentScanOptions(pre_buffer=not is_local(self.file.filesystem))
        form = dataset.ParquetFileFormat(default_fragment_scan_options=options)
        with self.file.reading():
            self.file.open().close()
            fragment = form.make_fragment(self.file.path, self.file.filesystem)
            for group in groups:
                yield from fragment.subset(row_group_ids=[group]).to_batches(
                    schema=self.file_schema,
                    columns=list(self.columns),
                    filter=self.filter,
                    batch_size=ROWS_PER_BATCH,
                    use_threads=False,
                )


@hides_credentials
@dataclass(frozen=True, eq=False)
class ParquetSource:
    """Reads Parquet files.

    ``path``: a file, a folder (all files below it, hidden ones excepted), or a sequence of both. ``columns``: which
    ones, in which order; all by default. ``filter``: an expression that may use any column of the files.
    ``split_by``: "file" keeps a file together, for inputs that were partitioned and sorted file by file.
    """

    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    columns: Sequence[str] | None = None
    filter: compute.Expression | None = None
    split_by: Literal["row group", "file"] = "row group"
    prunable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute_paths(self.path))
        if isinstance(self.columns, str):
            object.__setattr__(self, "columns", (self.columns,))
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(self.columns))
        if self.split_by not in ("row group", "file"):
            raise ConfigurationError(f"split_by is {self.split_by!r}", 'give "row group" or "file"')

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ParquetSource) or self._identity != other._identity:
            return False
        if self.filter is None or other.filter is None:
            return self.filter is other.filter
        return bool(self.filter.equals(other.filter))

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return self.path, self.columns, self.split_by

    @property
    def kind(self) -> str:
        return "parquet"

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([self._file_schema.field(name) for name in self._wanted])

    @cached_property
    def _wanted(self) -> tuple[str, ...]:
        return tuple(self._file_schema.names if self.columns is None else self.columns)

    @cached_property
    def _files(self) -> tuple[DataFile, ...]:
        return tuple(list_files(absolute_paths(self.path)))

    @cached_property
    def _file_schema(self) -> pa.Schema:
        """The schema of the first file: what the filter may use."""
        first = self._files[0]
        schema = _metadata(first).schema.to_arrow_schema().remove_metadata()
        check_columns(schema.names if self.columns is None else self.columns, schema, first.path)
        if self.filter is not None:
            try:
                schema.empty_table().filter(self.filter)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise FlowError(
                    f"the filter {self.filter} does not fit {first.path}: {str(error).splitlines()[0]}",
                    f"it has: {', '.join(f'{each.name} ({each.type})' for each in schema)}",
                ) from error
        return schema

    def splits(self) -> Sequence[ParquetSplit]:
        splits: list[ParquetSplit] = []
        # a filter may use any column, so without a projection to go by, all must agree
        needed = self.schema if self.filter is None else self._file_schema
        for file in self._files:
            metadata = _metadata(file)
            found = metadata.schema.to_arrow_schema()
            check_same(needed, found, file, self._files[0], all_wanted=self.columns is None)
            groups = tuple((group, metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups))
            if self.split_by == "file":
                splits.append(self._split(file, groups, file.id))
            else:
                splits += [self._split(file, (group,), f"{file.id}#{group[0]}") for group in groups]
        return splits

    def _split(self, file: DataFile, groups: tuple[tuple[int, int], ...], id: str) -> ParquetSplit:
        return ParquetSplit(file, groups, id, self._file_schema, self._wanted, self.filter)

    def describe(self) -> str:
        where = "" if self.filter is None else f" where {self.filter}"
        return f"{', '.join(self._wanted)}{where}"


def _metadata(file: DataFile) -> parquet.FileMetaData:
    with file.planning(), file.open() as opened:
        return parquet.read_metadata(opened)

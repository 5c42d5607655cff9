"""A source over Parquet files: one split per row group or per file, in the order of the paths.

Rules:

1. All footers are read when the job is planned: they give the row counts, and a file whose columns or types differ
   from the first one's is refused then, not hours later.
2. Reading from row ``start`` skips whole row groups before it unread. With a filter, rows are counted after
   filtering, so that the row groups of the split are read from its beginning; ``rows`` is unknown then.
3. Folders named ``key=value`` become columns behind those of the files (``partitions``). The source's own filter passes
   over files by them.
4. Pages that have a checksum are compared with it. A page that does not fit is a DataError that names the column.
5. Files are decoded column by column (``parquet_columns``); the source's own filter is applied there as one behind it
   would be. Only files in which a column has a dot in its name are scanned as a dataset for it, and all of them where
   there are no compiled kernels.
6. A split that is open holds no row group: of each column a page, its dictionary, and a block of the file. Only a scan,
   and what is read from afar (``far_columns``), holds a whole one (``open_bytes``, which ``explain`` counts).
7. A batch has at most ``ROWS_PER_BATCH`` rows and about ``OUTPUT_BYTES`` bytes. Where a footer does not tell how wide
   rows are (a text that stands once in a dictionary may be that of every row), few are read first, and then as many as
   the batch before suggests. A scan goes by the footer alone.
8. What no filter directly behind the source, or no join, lets through by the statistics and the bloom filters of the
   file is not decoded (``skipping``), where columns are decoded one by one and it is known without how many rows a
   chunk has.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import and_
from typing import Any, ClassVar, Literal, Self, TypeVar

import pyarrow as pa
from pyarrow import compute, dataset

from ..arrow.plain_types import plain_batches, plain_schema
from ..core.arguments import checked
from ..core.errors import ConfigurationError, FlowError
from ..core.shown import hides_credentials
from ..expressions.bounds import bounded, python_value
from ..expressions.evaluator import Evaluator
from ..expressions.kernel_calls import columns_read
from ..files.cached import is_cached
from ..files.object_store import storage_options
from ..files.partitions import Constants, FolderColumns, partitions_of
from ..files.paths import (
    DataFile,
    absolute_paths,
    check_columns,
    check_same,
    from_row,
    is_local,
    list_files,
)
from ..kernels.page_library import page_library
from ..plan.sizes import batch_bytes, is_guessed, leaf_bytes
from .parquet_columns import ColumnStream
from .parquet_files import (
    bounded_batches,
    comparing_pages,
    footer_of,
    parquet_file,
    read_footer,
    rows_at_once,
)
from .picking import Pick, PickedRows
from .skipping import GroupBounds, range_of

T = TypeVar("T")

LOOKED_AT = 16
"""Files, and row groups of them, that tell within which bounds columns lie."""

PAGES_BYTES = 5 * 512 * 1024
"""What a column that is read holds: a page and a dictionary of a MiB each, as most writers cut them, and buffers."""


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
    constants: tuple[tuple[str, pa.Scalar], ...] = ()
    """The columns of ``file_schema`` that the file does not have, but its folders tell."""
    blocking: ClassVar[bool] = True

    @property
    def rows(self) -> int | None:
        return None if self.filter is not None else sum(count for _, count in self.groups)

    @property
    def open_bytes(self) -> int:
        """About what it takes to read this, without the batches that it gives. Rule 6."""
        rows = max((count for _, count in self.groups), default=0)
        if self._is_scanned and not self._is_asked:
            return 2 * rows * sum(leaf_bytes(self.file_schema))
        whole = [2 * rows * leaf for leaf in leaf_bytes(self._schema(self._looked_at))]
        if self.is_far:
            return sum(whole)
        return sum(min(PAGES_BYTES, leaf) for leaf in whole)

    def narrowed(self, columns: Sequence[str]) -> ParquetSplit:
        """The same rows with these columns alone."""
        return replace(self, columns=tuple(columns))

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        groups = list(self.groups)
        while self.filter is None and groups and start >= groups[0][1]:
            start -= groups.pop(0)[1]
        return from_row(self._batches([group for group, _ in groups]), start)

    def column_stream(self, start: int, pick: Pick | None, compact: bool) -> ColumnStream | None:
        """The rows from row ``start`` on as chunks (``parquet_columns``), ``pick`` of them only; None: they are read
        by ``open``."""
        if not self.has_statistics:
            return None
        groups = list(self.groups)
        while groups and start >= groups[0][1]:
            start -= groups.pop(0)[1]
        return ColumnStream(self.file, groups, self._schema(self.columns), start, pick, compact, dict(self.constants))

    @property
    def has_statistics(self) -> bool:
        """Whether its row groups are read as chunks, and left out by what the file tells of them (``skipping``)."""
        return bool(self.columns) and page_library() is not None and not self._is_scanned

    @property
    def is_far(self) -> bool:
        """Whether each request for a part of it takes its time."""
        return not is_local(self.file.filesystem)

    @property
    def is_at_hand(self) -> bool:
        """Whether it is decoded here, from memory: what pyarrow reads runs beside Python, on another thread."""
        return self.has_statistics and not self.is_far and is_cached(self.file.path, self.file.size)

    @property
    def _is_scanned(self) -> bool:
        return self.filter is not None or self._has_dots

    @property
    def _has_dots(self) -> bool:
        """A column's name would be taken for a path into a struct."""
        return any("." in name for name in self.file_schema.names)

    @property
    def _is_asked(self) -> bool:
        """Whether the filter is applied as columns are decoded."""
        return self.filter is not None and bool(self.columns) and not self._has_dots and page_library() is not None

    @property
    def _looked_at(self) -> Sequence[str]:
        """The columns that are given out, and those that the filter looks at."""
        read = () if self.filter is None else columns_read([self.filter], self.file_schema)
        return [name for name in self.file_schema.names if name in self.columns or name in read]

    def _batches(self, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        if self.filter is not None and self._is_left_out(self.filter):
            return
        schema, constants = self._schema(self.columns), dict(self.constants)
        # both read one row group at a time, which a slow consumer should not have read ahead, and forget which columns
        # are never null
        if self._is_asked:
            found = self._asked(groups)
        else:
            found = self._scanned(groups) if self._is_scanned else self._decoded(groups)
        for records in plain_batches(found):
            yield _with(constants, records, schema)

    def _is_left_out(self, filter: compute.Expression) -> bool:
        """Whether the folders say that no row passes."""
        if not self.constants:
            return False
        condition = bounded(filter, self.file_schema)
        return condition.is_safe and not condition.may_hold({name: range_of(each) for name, each in self.constants})

    def _schema(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([self.file_schema.field(name) for name in columns])

    def _decoded(self, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Rule 5."""
        constants = dict(self.constants)
        columns = [name for name in self.columns if name not in constants]
        with self.file.reading(), self.file.open() as opened:
            file = parquet_file(self.file, opened, footer_of(self.file, opened))
            for group in groups:
                with comparing_pages(self.file, group, columns):
                    yield from bounded_batches(file, group, columns)

    def _asked(self, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Rule 5."""
        assert self.filter is not None
        schema, counts = self._schema(self._looked_at), dict(self.groups)
        pick = Pick(schema, (_Where(self.filter, schema, self.columns),))
        asked = [(group, counts[group]) for group in groups]
        stream = ColumnStream(self.file, asked, schema, 0, pick, False, dict(self.constants))
        with self.file.named():
            for chunk in stream.chunks(None):
                # a chunk that was not picked is one on which the filter fails, which it does again
                yield chunk.records if isinstance(chunk, PickedRows) else chunk.filter(self.filter)

    def _scanned(self, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        with self.file.reading():
            self.file.open().close()
            fragment = parquet_fragment(self.file, self.constants)
            if not plain_schema(fragment.physical_schema).equals(fragment.physical_schema):
                yield from self._picked(fragment, groups)
                return
            for group in groups:
                with comparing_pages(self.file, group, self.file_schema.names):
                    chosen = fragment.subset(row_group_ids=[group])
                    yield from chosen.to_batches(
                        schema=self.file_schema,
                        columns=list(self.columns),
                        filter=self.filter,
                        batch_size=rows_at_once(chosen.metadata.row_group(group), self.file_schema.names),
                        use_threads=False,
                    )

    def _picked(self, fragment: dataset.ParquetFileFragment, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """A filter over files with views, of which Arrow's scan cannot pick rows: they are made plain before."""
        constants = dict(self.constants)
        names = [name for name in self.file_schema.names if name not in constants]
        for group in groups:
            with comparing_pages(self.file, group, self.file_schema.names):
                chosen = fragment.subset(row_group_ids=[group])
                rows = rows_at_once(chosen.metadata.row_group(group), names)
                found = chosen.to_batches(columns=names, batch_size=rows, use_threads=False)
                for plain in plain_batches(found):
                    records = _with(constants, plain, self.file_schema)
                    whole = records if self.filter is None else records.filter(self.filter)
                    yield whole.select(list(self.columns))


class _Where:
    """The source's own filter (``core.source.Condition``)."""

    def __init__(self, expression: compute.Expression, schema: pa.Schema, keeps: Sequence[str]) -> None:
        self.expression, self.keeps = expression, keeps
        read = columns_read([expression], schema)
        self.columns = [name for name in schema.names if name in read]
        self._evaluator = Evaluator([("filter", expression)], schema=pa.schema([schema.field(n) for n in self.columns]))

    def mask(self, records: pa.RecordBatch) -> pa.Array | None:
        """For each row whether it passes; None: none does."""
        (found,) = self._evaluator.evaluate(records)
        return None if pa.types.is_null(found.type) else found


@hides_credentials
@checked(ConfigurationError)
@dataclass(frozen=True, eq=False)
class ParquetSource:
    """Reads Parquet files.

    ``path``: a file, a folder (all files below it, hidden ones excepted), a glob, or a sequence of these. ``columns``:
    which ones, in which order; all by default. ``filter``: an expression that may use any column of the files.
    ``split_by``: "file" keeps a file together, for inputs that were partitioned and sorted file by file.
    ``hive_partitioning``: whether folders named ``key=value`` are columns; ``hive_schema``: types of theirs.
    """

    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    columns: Sequence[str] | None = None
    filter: compute.Expression | None = None
    split_by: Literal["row group", "file"] = "row group"
    files: Sequence[DataFile] | None = field(default=None, repr=False, compare=False)
    """Those to read, as they were recorded; None: those that are there."""
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    """Who asks the path's buckets, and where (``access_key_id``, ``endpoint``, …); else as the environment says."""
    hive_partitioning: bool = True
    hive_schema: Mapping[str, pa.DataType] | None = field(default=None, hash=False)
    prunable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute_paths(self.path))
        options = storage_options(absolute_paths(self.path), self.storage_options)
        object.__setattr__(self, "storage_options", options)
        if self.split_by not in ("row group", "file"):
            raise ConfigurationError(f"split_by is {self.split_by!r}", 'give "row group" or "file"')
        if self.hive_schema and not self.hive_partitioning:
            raise ConfigurationError("hive_schema has types of folders that are not read", "leave one of both out")

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
        types = tuple(sorted((name, str(type)) for name, type in (self.hive_schema or {}).items()))
        return self.path, self.columns, self.split_by, self.hive_partitioning, types

    @property
    def kind(self) -> str:
        return "parquet"

    @property
    def reads_at_once(self) -> int | None:
        """Rule 7: a batch, or two where the one before may have had narrower rows; None: a scan does not know."""
        if self.filter is not None:
            return None
        return batch_bytes(self.schema) * (1 + is_guessed(self.schema))

    @cached_property
    def schema(self) -> pa.Schema:
        if self.columns is None:
            return self._file_schema
        return pa.schema([self._file_schema.field(name) for name in self._wanted])

    @cached_property
    def _wanted(self) -> tuple[str, ...]:
        return tuple(self._file_schema.names if self.columns is None else self.columns)

    @cached_property
    def _files(self) -> tuple[DataFile, ...]:
        return self.listed() if self.files is None else tuple(self.files)

    def listed(self) -> tuple[DataFile, ...]:
        """The files that are there now."""
        return tuple(list_files(absolute_paths(self.path)))

    def over(self, files: Sequence[DataFile]) -> Self:
        """The same source, of these files."""
        return replace(self, files=tuple(files))

    @cached_property
    def _own_schema(self) -> pa.Schema:
        """The schema of the first file."""
        return plain_schema(read_footer(self._files[0]).schema.to_arrow_schema().remove_metadata())

    @cached_property
    def _partitions(self) -> FolderColumns:
        if not self.hive_partitioning:
            return FolderColumns()
        return partitions_of([file.id for file in self._files], self._own_schema.names, self.hive_schema or {})

    @cached_property
    def _file_schema(self) -> pa.Schema:
        """What the filter may use: the columns of the first file, and those that folders tell."""
        first = self._files[0]
        schema = pa.schema([*self._own_schema, *self._partitions.schema])
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
        if told := set(self._partitions.schema.names):
            needed = pa.schema([each for each in needed if each.name not in told])
        for place, file in enumerate(self._files):
            metadata = read_footer(file)
            found = metadata.schema.to_arrow_schema()
            check_same(needed, found, file, self._files[0], all_wanted=self.columns is None)
            groups = tuple((group, metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups))
            if self.split_by == "file":
                splits.append(self._split(place, groups, file.id))
            else:
                splits += [self._split(place, (group,), f"{file.id}#{group[0]}") for group in groups]
        return splits

    def bounds(self, columns: Sequence[str]) -> dict[str, tuple[Any, Any]]:
        """The least and the largest value of columns, as footers of local files tell them: of a few row groups."""
        places = [place for place in _evenly(range(len(self._files))) if is_local(self._files[place].filesystem)]
        footers = [(read_footer(self._files[place]), self._partitions.of(place)) for place in places]
        groups = [(*each, group) for each in footers for group in range(each[0].num_row_groups)]
        known = [name for name in columns if name in self._file_schema.names]
        found: dict[str, tuple[Any, Any]] = {}
        for footer, constants, group in _evenly(groups):
            bounds = GroupBounds(footer, self._file_schema, constants)
            for name in known:
                told = bounds.of(group, name)
                if told.low is not None:
                    before = found.get(name, (told.low, told.high))
                    found[name] = min(before[0], told.low), max(before[1], told.high)
        return {name: each for name, bounds in found.items() if (each := self._in_python(name, bounds)) is not None}

    def _in_python(self, name: str, bounds: tuple[Any, Any]) -> tuple[Any, Any] | None:
        """Bounds of a column that Python has, too."""
        type = self._file_schema.field(name).type
        try:
            return python_value(bounds[0], type), python_value(bounds[1], type)
        except (pa.ArrowException, ValueError, OverflowError):
            return None

    def _split(self, place: int, groups: tuple[tuple[int, int], ...], id: str) -> ParquetSplit:
        constants = tuple(self._partitions.of(place).items())
        return ParquetSplit(
            self._files[place], groups, id, self._file_schema, self._wanted, self.filter, constants=constants
        )

    def describe(self) -> str:
        where = "" if self.filter is None else f" where {self.filter}"
        told = ", ".join(f"{each.name} {each.type}" for each in self._partitions.schema)
        return f"{', '.join(self._wanted)}{where}" + (f"; by folder {told}" if told else "")


def _with(constants: Constants, records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in these columns, of which some have one value in all rows."""
    rows = records.num_rows
    columns = [pa.repeat(constants[name], rows) if name in constants else records.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def parquet_fragment(file: DataFile, constants: Iterable[tuple[str, pa.Scalar]] = ()) -> dataset.ParquetFileFragment:
    """The file as a part of a dataset, for scans."""
    options = dataset.ParquetFragmentScanOptions(
        pre_buffer=not is_local(file.filesystem), page_checksum_verification=True
    )
    form = dataset.ParquetFileFormat(default_fragment_scan_options=options)
    told = [
        dataset.field(name) == value if value.is_valid else dataset.field(name).is_null() for name, value in constants
    ]
    return form.make_fragment(file.path, file.reached, reduce(and_, told) if told else None)


def _evenly(all: Sequence[T]) -> Sequence[T]:
    """The first one, the last one, and some at even distances between them."""
    count = min(len(all), LOOKED_AT)
    return [all[number * (len(all) - 1) // max(1, count - 1)] for number in range(count)]

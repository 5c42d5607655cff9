"""An index over Parquet files: only row groups that can hold a key are read, and the last ones read are kept.

Rules:

1. The footers tell which row groups to read (``bounds``). So an index that is asked for scattered keys should be sorted
   by its key, in row groups that are small against the cache; any other order works, with more reading.
2. Of a row group the key columns are read first, and the others only if one of the keys is there.
3. Matches of a key come in the order of the files' paths, then of the rows in them. Rows with a null key match nothing.
4. Files must not change while a job uses them; one whose size or footer is another than when the flow was built is
   refused. The fingerprint is of names, sizes and footers: the latter hold each column's size, range and place, but not
   each value.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow import dataset, parquet

from ..arrow.dictionaries import PlainNulls
from ..arrow.plain_types import plain_schema, plain_table
from ..core.arguments import checked
from ..core.errors import ConfigurationError, DataError
from ..expressions.evaluator import single_array
from ..files.paths import DataFile, absolute_paths, check_columns, check_same, list_files, with_content
from ..kernels.pieces import Positions
from ..operators.join.index_protocol import Found
from ..operators.join.sorted_lookup import SortedLookup
from ..sources.parquet import parquet_fragment
from ..sources.parquet_files import comparing_pages
from .bounds import Bounds, candidates
from .cache import Cache
from .checks import check_key
from .merging import PartialAnswer, merged

CACHE_BYTES = 128 * 1024 * 1024
"""What an operator keeps of its index unless the flow says otherwise: a few row groups of common size."""


@checked()
def parquet_index(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    key: str | Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> ParquetIndex:
    """An index over Parquet files: a file, a folder (all files below it), or a sequence of both.

    ``columns``: which ones, the key included; all by default. ``cache_bytes``: how much of them each operator may keep
    in memory. Keys may repeat: every row with the key matches.
    """
    files = with_content(list_files(absolute_paths(path)))
    footers = []
    for file in files:
        with file.planning():
            footers.append(_Footer.read(file))
    whole = footers[0].schema
    check_columns(whole.names if columns is None else columns, whole, files[0].path)
    schema = whole if columns is None else pa.schema([whole.field(name) for name in columns])
    for file, footer in zip(files, footers, strict=True):
        with file.planning():
            check_same(schema, footer.schema, file, files[0], all_wanted=columns is None)
    names = check_key("Parquet index", schema, key, "files' schema")
    if cache_bytes < 0:
        raise ConfigurationError(f"Parquet index: cache_bytes is {cache_bytes}", "give 0 or more bytes")
    return ParquetIndex(files, tuple(footer.digest for footer in footers), schema, names, cache_bytes)


@dataclass(frozen=True, slots=True)
class _Footer:
    """What a file's end tells."""

    metadata: parquet.FileMetaData
    schema: pa.Schema
    digest: str

    @classmethod
    def read(cls, file: DataFile) -> _Footer:
        with file.peek() as opened:
            metadata = parquet.read_metadata(opened)
            opened.seek(max(file.size - 8 - metadata.serialized_size, 0))
            digest = hashlib.sha256(opened.read()).hexdigest()
        return cls(metadata, plain_schema(metadata.schema.to_arrow_schema().remove_metadata()), digest)


@dataclass(frozen=True)
class ParquetIndex:
    """See :func:`parquet_index`."""

    files: tuple[DataFile, ...] = field(repr=False, compare=False)
    #: hashes of the files' footers
    digests: tuple[str, ...] = field(repr=False)
    schema: pa.Schema = field(repr=False)
    key: tuple[str, ...]
    cache_bytes: int = CACHE_BYTES

    @property
    def blocks(self) -> bool:
        """Always."""
        return True

    def open(self) -> OpenParquetIndex:
        """The index of one operator, with a cache of its own."""
        return OpenParquetIndex(self)

    def fingerprint(self) -> str:
        """A hash of the files' names, sizes and footers."""
        told = [(file.id, file.size, digest) for file, digest in zip(self.files, self.digests, strict=True)]
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def describe(self) -> str:
        """The key and the columns."""
        return f"index in Parquet files by {', '.join(self.key)} with {', '.join(self.schema.names)}"


@dataclass(frozen=True, slots=True)
class _Group:
    """One row group."""

    file: DataFile
    number: int
    fragment: dataset.ParquetFileFragment


class OpenParquetIndex:
    """See the module's rules. Its methods may be called by several threads at once."""

    def __init__(self, config: ParquetIndex) -> None:
        self._schema = config.schema
        self._key = list(config.key)
        self._groups: list[_Group] = []
        described: list[parquet.RowGroupMetaData] = []
        for file, digest in zip(config.files, config.digests, strict=True):
            with file.reading():
                footer = _Footer.read(file)
            if footer.digest != digest:
                raise DataError(
                    f"{file.path} is not the file that it was when the job was planned",
                    "an index must not change while a job uses it: write new data to new files",
                )
            fragment = parquet_fragment(file)
            groups = range(footer.metadata.num_row_groups)
            self._groups += [_Group(file, number, fragment) for number in groups]
            described += [footer.metadata.row_group(number) for number in groups]
        self._bounds = [Bounds.of(described, name, self._schema.field(name).type) for name in self._key]
        self._cache = Cache(config.cache_bytes)

    def lookup(self, keys: pa.RecordBatch) -> Found:
        """The rows of all files that match each key."""
        parts = [self._part(group, numbers, keys) for group, numbers in candidates(self._bounds, keys)]
        return merged([part for part in parts if part is not None], keys.num_rows, self._schema)

    def close(self) -> None:
        """Forget what was read. No file stays open between lookups."""
        self._cache.clear()

    def _part(self, number: int, numbers: Positions | None, keys: pa.RecordBatch) -> PartialAnswer | None:
        """The answer of one row group to the keys with these numbers; None if it holds none of them."""
        group = self._groups[number]
        wanted = keys if numbers is None else keys.take(pa.array(numbers))
        lookup: SortedLookup = self._cache.get((number, "key"), lambda: self._read_keys(group))
        matches = lookup.matches(wanted.columns)
        if not matches.counts.any():
            return None
        return PartialAnswer(numbers, Found(matches, self._cache.get((number, "rows"), lambda: self._read_rows(group))))

    def _read_keys(self, group: _Group) -> tuple[SortedLookup, int]:
        lookup = SortedLookup(_read(group, self._schema, self._key).columns)
        return lookup, lookup.nbytes

    def _read_rows(self, group: _Group) -> tuple[pa.RecordBatch, int]:
        records = _read(group, self._schema, self._schema.names)
        return records, records.nbytes


def _read(group: _Group, schema: pa.Schema, names: Sequence[str]) -> pa.RecordBatch:
    """Some columns of a row group."""
    with group.file.reading(), comparing_pages(group.file, group.number, names):
        group.file.open().close()
        found = plain_table(
            group.fragment.subset(row_group_ids=[group.number]).to_table(columns=list(names), use_threads=False)
        )
    wanted = pa.schema([schema.field(name) for name in names])
    records = pa.RecordBatch.from_arrays([single_array(column) for column in found.columns], schema=wanted)
    return PlainNulls(wanted).of(records)

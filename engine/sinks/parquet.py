"""A sink that writes a folder of Parquet files, each row exactly once (``folder_sink``)."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs, parquet

from ..core.errors import ConfigurationError
from ..core.operator import OperatorContext
from ..core.schemas import no_rows
from ..core.shown import hides_credentials
from ..files.paths import ROWS_PER_BATCH
from ..integrity.row_digests import MODULUS, RowDigest, row_digest
from .by_folder import whole
from .file_formats import ParquetFormat
from .file_writer import stored_schema
from .folder_sink import FolderSink

CODECS = ("zstd", "snappy", "lz4", "gzip", "brotli", "none")


@hides_credentials
@dataclass(frozen=True, slots=True)
class ParquetSink(FolderSink):
    """Writes Parquet files. ``compression``: one of ``CODECS``."""

    compression: str = "zstd"

    def __post_init__(self) -> None:
        FolderSink.__post_init__(self)
        if self.compression not in CODECS:
            raise ConfigurationError(f"compression is {self.compression!r}", f"give one of {', '.join(CODECS)}")

    @property
    def format(self) -> ParquetFormat:
        return ParquetFormat(self.compression)

    def digest(self, context: OperatorContext, schema: pa.Schema) -> RowDigest | None:
        return row_digest(context, schema, self.stored)

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """The schema in which the rows come back from its files."""
        return stored_schema(schema, self.partition_by)

    def visible_digest(self, job: str) -> int | str:
        """Of the rows of the same files, read back; pages are compared with their checksums."""
        found = self.each_visible(job, _digest)
        return "files that were retired may be gone" if found is None else sum(found) % MODULUS


def _digest(filesystem: fs.FileSystem, folder: str, name: str) -> int:
    """Of the rows of a file, in its own schema: an earlier job of the lineage may have had another one."""
    path = f"{folder}/{name}"
    with parquet.ParquetFile(path, filesystem=filesystem, page_checksum_verification=True) as file:
        digest = RowDigest(whole(no_rows(file.schema_arrow), name).schema)
        return sum(digest.of(whole(rows, name)) for rows in file.iter_batches(ROWS_PER_BATCH, use_threads=False))

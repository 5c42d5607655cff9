"""Real columns as the input of ``fuzz_pages.c``: their pages as they lie in files, and what is known of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from support.parquet_pages import flat_columns, reader_of


def write_page_seeds(path: Path, contents: Iterator[bytes]) -> int:
    """Write the columns of these files; how many there are."""
    count = 0
    with path.open("wb") as file:
        for content in contents:
            for head, chunk in _columns_of(content):
                file.write(struct.pack(f"<{len(head) + 1}i", *head, len(chunk)) + chunk)
                count += 1
    return count


def _columns_of(content: bytes) -> Iterator[tuple[tuple[int, ...], bytes]]:
    metadata = parquet.read_metadata(pa.BufferReader(content))
    for group, leaf, _, type in flat_columns(parquet.ParquetFile(pa.BufferReader(content))):
        reader = reader_of(content, metadata, group, leaf, type)
        if reader is not None:
            column = reader._column
            head = column.width, column.nullable, column.codec, column.rows, *column.sources
            yield head, content[column.next : column.end]

"""Real pages as the input of ``fuzz_pages.c``: headers, compressed bodies, and bodies with what is known of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from penstock.engine.kernels import pages
from penstock.engine.kernels.page_stream import DICTIONARY, PageHeader, PageStream
from support.parquet_pages import flat_columns, reader_of

_HEADER, _SNAPPY, _LZ4, _PAGE, _WHOLE = range(5)
_CODECS = ["UNCOMPRESSED", "SNAPPY", "LZ4"]
_LARGEST = 20_000
"""Damage in larger pages is met too seldom."""


def write_page_seeds(path: Path, contents: Iterator[bytes]) -> int:
    """Write the pages of these files; how many there are."""
    count = 0
    with path.open("wb") as file:
        for content in contents:
            for head, body in _seeds_of(content):
                if len(body) <= _LARGEST:
                    file.write(struct.pack("<7i", *head, len(body)) + body)
                    count += 1
    return count


def _seeds_of(content: bytes) -> Iterator[tuple[tuple[int, ...], bytes]]:
    file = parquet.ParquetFile(pa.BufferReader(content))
    for group, leaf, _, type in flat_columns(file):
        reader = reader_of(content, file.metadata, group, leaf, type)
        if reader is None:
            continue
        column, chunk = file.metadata.schema.column(leaf), file.metadata.row_group(group).column(leaf)
        width = column.length or pages._WIDTHS[column.physical_type]
        stream, left = reader._pages, chunk.num_values
        while left:
            before = stream._at
            header = stream.next()
            left -= 0 if header.type == DICTIONARY else header.values
            yield (_HEADER, 0, 0, 0, 0, 0), content[before : stream.body_at]
            compressed = content[stream.body_at : stream.body_at + header.compressed]
            if chunk.compression in {"SNAPPY", "LZ4"}:
                kind = _SNAPPY if chunk.compression == "SNAPPY" else _LZ4
                yield (kind, 0, 0, 0, 0, header.uncompressed), compressed
            head, body = _page(stream, header, column, width)
            yield head, body
            if chunk.compression in _CODECS and header.type != DICTIONARY:
                nullable, codec = column.max_definition_level, _CODECS.index(chunk.compression)
                yield (_WHOLE, head[1], width, 0, nullable, codec), content[before : stream.body_at] + compressed


def _page(stream: PageStream, header: PageHeader, column: object, width: int) -> tuple[tuple[int, ...], bytes]:
    levels, values = stream.body(header, stream.body_at, bool(column.max_definition_level))  # type: ignore[attr-defined]
    source, _ = pages._SOURCES[header.encoding]
    if header.type == DICTIONARY:
        source = pages._PLAIN
    elif source == pages._PLAIN and column.physical_type == "BOOLEAN":  # type: ignore[attr-defined]
        source = pages._BITS
    level_bytes = b"" if levels is None else levels.tobytes()
    return (_PAGE, source, width, header.values, len(level_bytes), 0), level_bytes + values.tobytes()

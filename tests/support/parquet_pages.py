"""Columns of Parquet files, read by the decoder of pages and by pyarrow, and random files to read.

``differences`` reads every flat column of a file in random steps: rows are taken, picked, or skipped, plain or compact,
and compared with what pyarrow reads, bit for bit.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet

from penstock.engine.kernels.page_stream import DoubtfulPage, Fetch
from penstock.engine.kernels.pages import ColumnReader, column_reader

STEPS = [1, 3, 100, 1000, 5000, 65536]
SHARES = [0.0, 0.001, 0.1, 0.9, 1.0]
PLAIN_TYPES = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def flat_columns(file: parquet.ParquetFile) -> Iterator[tuple[int, int, str, pa.DataType]]:
    """Row group, leaf, name and plain type of each column that is no list, struct or map."""
    schema = file.metadata.schema.to_arrow_schema()
    for group in range(file.metadata.num_row_groups):
        for leaf in range(file.metadata.num_columns):
            name = file.metadata.schema.column(leaf).path
            if name in schema.names:
                type = schema.field(name).type
                yield group, leaf, name, PLAIN_TYPES.get(type, type)


def reader_of(content: bytes, metadata: Any, group: int, leaf: int, type: pa.DataType) -> ColumnReader | None:
    """A reader of the bytes of a file."""
    return column_reader(fetch_of(content), metadata, group, leaf, type)


def fetch_of(content: bytes) -> Fetch:
    """How parts of it are read."""

    def fetch(at: int, memory: Any) -> int:
        found = np.frombuffer(content[at : at + len(memory)], dtype=np.uint8)
        memory[: len(found)] = found
        return len(found)

    return fetch


def in_steps(reader: ColumnReader, rows: int, rng: random.Random, *, compact: bool) -> Iterator[tuple[Any, pa.Array]]:
    """Positions of rows, and what the reader gives for them, until the column ends or raises DoubtfulPage."""
    at = 0
    while at < rows:
        step = min(rows - at, rng.choice(STEPS))
        how = rng.random()
        if how < 0.2:
            reader.skip(step)
        elif how < 0.6:
            chosen = np.random.default_rng(rng.randrange(1 << 30)).random(step) < rng.choice(SHARES)
            picked = np.flatnonzero(chosen)
            yield at + picked, reader.take(step, picked, compact)
        else:
            yield np.arange(at, at + step), reader.take(step, None, compact)
        at += step


def differences(content: bytes, rng: random.Random) -> tuple[list[str], list[str]]:
    """The columns that are not as pyarrow reads them, and those that were left to it."""
    file = parquet.ParquetFile(pa.BufferReader(content))
    wrong, left = [], []
    for group, leaf, name, type in flat_columns(file):
        wanted = file.read_row_group(group, columns=[name]).column(0).combine_chunks()
        wanted = wanted if wanted.type == type else wanted.cast(type)
        for compact in (False, True):
            reader = reader_of(content, file.metadata, group, leaf, type)
            if reader is None:
                left.append(name)
                break
            try:
                for rows, found in in_steps(reader, len(wanted), rng, compact=compact):
                    found.validate(full=not pa.types.is_string(type))
                    if not same_bits(plain(found, type), wanted.take(pa.array(rows))):
                        wrong.append(f"{name} {type} in row group {group}, compact={compact}")
                        break
            except DoubtfulPage:
                left.append(name)
                break
    return wrong, left


def plain(array: pa.Array, type: pa.DataType) -> pa.Array:
    """The values in their declared type."""
    if array.type == type:
        return array
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    # a cast checks digits, and files may have more than their precision
    return pa.array(array.to_pylist(), pa.decimal128(38, type.scale)).cast(type, safe=False)


def same_bits(one: pa.Array, other: pa.Array) -> bool:
    """Whether types, nulls and values are the same, NaNs and zeros by their bits."""
    if pa.types.is_floating(one.type):
        whole = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[one.type.bit_width]
        return bool(one.type == other.type and one.view(whole).equals(other.view(whole)))
    return bool(one.equals(other))


# ---------------------------------------------------------------- random files

_NUMBERS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
_TIMES = [
    pa.date32(), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.timestamp("ms"), pa.timestamp("us", "UTC"),
    pa.timestamp("ns"), pa.timestamp("us", "Europe/Berlin"),
]  # fmt: skip
_FLOATS = [pa.float16(), pa.float32(), pa.float64()]
_DECIMALS = [pa.decimal128(digits, 2) for digits in (3, 9, 10, 15, 18, 19, 28, 38)]
_TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()]
_OTHERS = [pa.bool_(), pa.binary(3), pa.binary(16), pa.binary(20)]
TYPES = [*_NUMBERS, *_TIMES, *_FLOATS, *_DECIMALS, *_TEXTS, *_OTHERS]
_CODECS = ["none", "snappy", "zstd", "gzip", "brotli", "lz4"]


def random_values(type: pa.DataType, rows: int, rng: Any) -> pa.Array:
    """Values of a type: few or many different ones, with long runs, with nulls or without."""
    few = rng.integers(0, 1 + rng.choice([1, 3, 300, 1 << 30]), size=1 + rng.integers(0, rows))
    numbers = few[rng.integers(0, len(few), size=rows)]
    if rng.random() < 0.4:
        numbers = np.sort(numbers)
    values = _made(PLAIN_TYPES.get(type, type), numbers, rng)
    nulls = pa.array(rng.random(rows) < rng.choice([0.0, 0.01, 0.5, 1.0]))
    return compute.if_else(nulls, pa.scalar(None, values.type), values).cast(type)


def _made(type: pa.DataType, numbers: Any, rng: Any) -> pa.Array:
    types = pa.types
    if types.is_decimal(type):
        most = 10**type.precision
        spread = int(rng.integers(1, 10**9)) ** int(rng.integers(1, 5))
        digits = ((int(number) * spread) % most * (-1) ** int(number) for number in numbers)
        return pa.array([Decimal(each).scaleb(-2) for each in digits], type)
    if types.is_boolean(type):
        return pa.array(numbers % 2 == 0)
    if types.is_fixed_size_binary(type):
        return pa.array([(int(each) * 7919).to_bytes(20, "little")[: type.byte_width] for each in numbers], type)
    if type in _TEXTS:
        texts = [("abcdefghi" * (int(each) % 7))[: int(each) % 47] + str(each) * (int(each) % 4) for each in numbers]
        plain_type = pa.string() if type in {pa.string(), pa.large_string()} else pa.binary()
        return pa.array(texts, plain_type).cast(type)
    if types.is_floating(type):
        width = {2: np.uint16, 4: np.uint32, 8: np.uint64}[type.bit_width // 8]
        bits = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(width)
        return pa.Array.from_buffers(type, len(bits), [None, pa.py_buffer(bits)])
    if types.is_time(type) or types.is_date(type):
        limit = 86_400_000 if types.is_time32(type) else 86_400_000_000
        whole = pa.int32() if type.bit_width == 32 else pa.int64()
        return pa.array(numbers % limit).cast(whole).view(type)
    if types.is_timestamp(type):
        return pa.array(numbers * int(rng.integers(1, 1000))).view(type)
    whole = np.dtype(type.to_pandas_dtype())
    return pa.array((numbers * int(rng.integers(-(2**31), 2**31))).astype(whole), type)


def random_file(seed: int, rows: int = 3000) -> bytes:
    """A file of pyarrow, of one column of each of some types, with random options."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(TYPES), size=8, replace=False)
    types = {f"c{number}": TYPES[number] for number in chosen}
    table = pa.table({name: random_values(type, rows, rng) for name, type in types.items()})
    if rng.random() < 0.3:
        with_views = [name for name, type in types.items() if type in PLAIN_TYPES]  # of which no rows can be picked
        table = table.drop_columns(with_views).drop_null()
        table = table.cast(pa.schema([field.with_nullable(False) for field in table.schema]))
    options: dict[str, Any] = {}
    if rng.random() < 0.5:
        options["use_dictionary"] = False
        options["column_encoding"] = {
            name: str(rng.choice(_encodings(type))) for name, type in types.items() if name in table.column_names
        }
    sink = io.BytesIO()
    parquet.write_table(
        table, sink, compression=str(rng.choice(_CODECS)), data_page_version=str(rng.choice(["1.0", "2.0"])),
        data_page_size=int(rng.choice([100, 5000, 1 << 20])), row_group_size=int(rng.choice([700, 10_000])),
        dictionary_pagesize_limit=int(rng.choice([200, 1 << 20])), write_page_checksum=bool(rng.random() < 0.5),
        store_decimal_as_integer=bool(rng.random() < 0.3), write_batch_size=int(rng.choice([1, 50, 1024])),
        use_byte_stream_split=False, **options,
    )  # fmt: skip
    return sink.getvalue()


def _encodings(type: pa.DataType) -> list[str]:
    types = pa.types
    if types.is_boolean(type):
        return ["PLAIN", "RLE"]
    if type in _TEXTS:
        return ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
    if types.is_fixed_size_binary(type) or types.is_decimal(type) or types.is_float16(type):
        return ["PLAIN", "BYTE_STREAM_SPLIT"]
    if types.is_floating(type):
        return ["PLAIN", "BYTE_STREAM_SPLIT"]
    return ["PLAIN", "BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED"]

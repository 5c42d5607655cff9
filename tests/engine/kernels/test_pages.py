"""The decoder of Parquet pages gives what pyarrow reads, whoever wrote it, and leaves to pyarrow what it doubts."""

from __future__ import annotations

import ctypes
import itertools
import random
from contextlib import suppress
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.engine.kernels.page_library import address, page_library
from penstock.engine.kernels.page_stream import ENCODINGS, DoubtfulPage, Fetch, PageStream
from penstock.engine.kernels.pages import column_reader
from support.parquet_pages import differences, fetch_of, flat_columns, random_file, reader_of, same_bits
from support.sweeps import seeds

DATA = Path(__file__).parents[2] / "data" / "parquet"
GOOD = sorted([*DATA.glob("apache/data/*.parquet"), *DATA.glob("writers/*.parquet")])
BAD = sorted(DATA.glob("apache/bad_data/*.parquet"))
UNREADABLE = {"incorrect_map_schema", "large_string_map.brotli"}
"""By pyarrow as well."""
LEFT = {
    "alltypes_dictionary": {"timestamp_col"},
    "alltypes_plain": {"timestamp_col"},
    "alltypes_plain.snappy": {"timestamp_col"},
    "concatenated_gzip_members": {"long_col"},
    "datapage_v1-corrupt-checksum": {"a", "b"},
    "hadoop_lz4_compressed": {"c0", "c1", "v11"},
    "int96_from_spark": {"a"},
    "nation.dict-malformed": {"comment_col", "name"},
    "non_hadoop_lz4_compressed": {"c0", "c1", "v11"},
    "repeated_primitive_no_list": {"Int32_list", "String_list"},
    "rle-dict-uncompressed-corrupt-checksum": {"binary_field", "long_field"},
    "rle_boolean_encoding": {"datatype_boolean"},
    "unknown-logical-type": {"column with unknown type"},
}
"""What pyarrow has to read: timestamps of 96 bits, the old LZ4, several GZIP members, lists, and damage."""


@pytest.mark.parametrize("seed", seeds(30, of=300))
def test_columns_are_those_that_pyarrow_reads_whatever_its_writer_was_told(seed: int) -> None:
    assert differences(random_file(seed), random.Random(seed)) == ([], [])


@pytest.mark.parametrize("path", GOOD, ids=[path.stem for path in GOOD])
def test_columns_of_other_writers_are_those_that_pyarrow_reads(path: Path) -> None:
    if path.stem in UNREADABLE:
        pytest.skip("pyarrow cannot read it")
    wrong, left = differences(path.read_bytes(), random.Random(1))
    assert (wrong, set(left)) == ([], LEFT.get(path.stem, set()))


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "brotli", "lz4_raw", "uncompressed"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_columns_of_duckdb_are_those_that_pyarrow_reads(codec: str, version: str, tmp_path: Path) -> None:
    path = tmp_path / "made.parquet"
    duckdb.sql(
        f"""COPY (SELECT i * 7919 % 1000 AS whole, (i % 5)::TINYINT AS byte, (i % 7 = 0) AS flag, i / 3 AS double,
        (i % 100)::FLOAT AS single, CASE WHEN i % 9 > 0 THEN 'text ' || i % 13 END AS few, 'row ' || i * i AS many,
        DATE '2020-01-01' + i::INT AS day, TIMESTAMP '2020-01-01' + to_seconds(i) AS at, i::DECIMAL(15, 2) / 4 AS ratio,
        (i * 37 - 999)::DECIMAL(15, 2) AS money, (i - 50)::DECIMAL(30, 3) AS large FROM range(5000) t(i))
        TO '{path}' (FORMAT parquet, COMPRESSION {codec}, PARQUET_VERSION {version}, ROW_GROUP_SIZE 2048)"""
    )
    assert differences(path.read_bytes(), random.Random(1)) == ([], [])


@pytest.mark.parametrize("path", BAD, ids=[path.stem for path in BAD])
def test_column_that_pyarrow_refuses_is_left_to_it(path: Path) -> None:
    content = path.read_bytes()
    try:
        file = parquet.ParquetFile(pa.BufferReader(content))
    except OSError:
        return
    for group, leaf, name, type in flat_columns(file):
        try:
            file.read_row_group(group, columns=[name])
        except OSError:
            reader = reader_of(content, file.metadata, group, leaf, type)
            assert reader is None or is_doubtful(reader, file.metadata.row_group(group).num_rows), name


def is_doubtful(reader: object, rows: int) -> bool:
    try:
        reader.take(rows)  # type: ignore[attr-defined]
    except DoubtfulPage:
        return True
    return False


def written(**columns: pa.Array) -> tuple[bytes, parquet.FileMetaData]:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns), sink, data_page_size=1000, write_batch_size=100, write_page_checksum=True)
    content = sink.getvalue().to_pybytes()
    return content, parquet.read_metadata(pa.BufferReader(content))


def test_compact_columns_share_the_dictionary_of_their_row_group() -> None:
    texts = pa.array([f"word {number % 50}" for number in range(5000)])
    money = pa.array(range(5000), pa.decimal128(15, 2))
    content, metadata = written(texts=texts, money=money)
    reader = reader_of(content, metadata, 0, 0, texts.type)
    one, other = reader.take(1000, None, True), reader.take(4000, np.arange(5, 30), True)
    assert (one.type, one.dictionary_decode()) == (pa.dictionary(pa.int32(), pa.string()), texts[:1000])
    assert other.dictionary.buffers()[2].address == one.dictionary.buffers()[2].address
    assert reader_of(content, metadata, 0, 0, texts.type).take(5000) == texts
    assert reader_of(content, metadata, 0, 1, money.type).take(3, None, True).type == pa.decimal64(18, 2)


@pytest.mark.parametrize("bits", range(1, 25))
def test_codes_of_each_width_are_unpacked_from_any_place_on(bits: int) -> None:
    library, rng = page_library(), np.random.default_rng(bits)
    assert library is not None
    words = rng.integers(0, 256, 1 << bits, dtype=np.uint8)
    codes = rng.integers(0, 1 << bits, 4000)
    packed = np.packbits((codes[:, None] >> np.arange(bits) & 1).astype(np.uint8).ravel(), bitorder="little")
    values = np.concatenate([np.array([bits, 0xE9, 0x07], dtype=np.uint8), packed])  # a run of 500 times eight
    sources = [1] * ENCODINGS
    for known in (1 << bits, int(codes.max())):
        says = {"rows": 4000, "nullable": False, "width": 1, "sources": sources}
        stream = PageStream(library, fetch_of(b""), 0, 0, "UNCOMPRESSED", **says)
        column, found = stream.column, np.empty(4000, dtype=np.uint8)
        column.page_left, column.unmet, column.header[6], column.out_width = 4000, 0, 0, 1
        column.words, column.known, column.to = address(words), known, address(found)
        assert library.call("column_open", ctypes.addressof(column), 0, 0, address(values), len(values), 0, 0) == 0
        done = failed = 0
        while done < 4000 and not failed:
            now = min(int(rng.integers(1, 700)), 4000 - done)
            failed, done = library.call("column_read", ctypes.addressof(column), done + now, 0, 0), done + now
        assert failed == (0 if known > codes.max() else -1)
        assert failed or (found == words[codes]).all()


def test_codes_that_are_fewer_than_their_run_says_are_doubtful() -> None:
    words, sink = pa.table({"words": [f"word {number % 3}" for number in range(20)]}), pa.BufferOutputStream()
    parquet.write_table(words, sink, compression="none")
    content = sink.getvalue().to_pybytes()
    metadata = parquet.read_metadata(pa.BufferReader(content))
    chunk = metadata.row_group(0).column(0)
    end = chunk.dictionary_page_offset + chunk.total_compressed_size
    begin = content.rindex(b"\x02\x07", 0, end)  # two bits a code, three times eight codes
    for place, byte in itertools.product(range(begin + 1, end), range(256)):
        damaged = content[:place] + bytes([byte]) + content[place + 1 :]
        try:
            wanted = parquet.ParquetFile(pa.BufferReader(damaged)).read().column(0).combine_chunks()
        except (OSError, pa.ArrowException):
            assert is_doubtful(reader_of(damaged, metadata, 0, 0, pa.string()), 20), (place, byte)
        else:
            assert same_bits(wanted, reader_of(damaged, metadata, 0, 0, pa.string()).take(20)), (place, byte)


def test_pages_of_which_nothing_is_picked_are_not_read() -> None:
    numbers = pa.array(np.random.default_rng(1).integers(0, 1 << 60, 200_000))
    content, metadata = written(numbers=numbers)
    chunk = metadata.row_group(0).column(0)
    hurt = bytearray(content)
    middle = (chunk.data_page_offset + chunk.dictionary_page_offset + chunk.total_compressed_size) // 2
    hurt[middle : middle + 100] = bytes(100)
    reader = reader_of(bytes(hurt), metadata, 0, 0, numbers.type)
    picked = np.array([0, 199_999])
    assert reader.take(200_000, picked) == numbers.take(pa.array(picked))
    with pytest.raises(DoubtfulPage):
        reader_of(bytes(hurt), metadata, 0, 0, numbers.type).take(200_000)


def test_more_rows_than_there_are_or_positions_beyond_them_are_refused() -> None:
    content, metadata = written(numbers=pa.array(range(100)))
    reader = reader_of(content, metadata, 0, 0, pa.int64())
    reader.skip(90)
    with pytest.raises(ValueError, match="11 rows of 10"):
        reader.take(11)
    with pytest.raises(ValueError, match="rows 5 to 10 of 10"):
        reader.take(10, np.array([5, 10]))


def asked_at_most(times: int, fetch: Fetch) -> Fetch:
    asked = itertools.repeat(None, times)
    return lambda at, memory: (next(asked), fetch(at, memory))[1]


def test_column_that_ends_behind_its_file_is_doubtful_wherever_that_is_cut() -> None:
    """Also within the header of a page, for which more bytes are asked until there are enough."""
    content, metadata = written(texts=pa.array([f"text {number}" for number in range(3000)]))
    chunk = metadata.row_group(0).column(0)
    begin = chunk.dictionary_page_offset
    for cut in range(begin + 1, begin + chunk.total_compressed_size, 7):
        fetch = asked_at_most(200, fetch_of(content[:cut]))
        reader = column_reader(fetch, metadata, 0, 0, pa.string())
        with pytest.raises(DoubtfulPage):
            reader.take(3000)


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("kind", ["plain", "words", "lengths"])
def test_page_whose_header_has_a_wrong_bit_gives_its_values_or_none(kind: str, second: bool) -> None:
    rows = 3000
    type = pa.string() if kind == "lengths" else pa.int64()
    values = pa.array(range(rows), pa.int64()) if kind == "plain" else pa.array([each % 7 for each in range(rows)])
    sink = pa.BufferOutputStream()
    parquet.write_table(
        pa.table([values.cast(type)], schema=pa.schema([pa.field("x", type, nullable=False)])),
        sink,
        compression="none",
        use_dictionary=kind == "words",
        column_encoding={"x": "DELTA_LENGTH_BYTE_ARRAY"} if kind == "lengths" else None,
        write_statistics=False,
        data_page_size=1000,
        write_batch_size=500,
        data_page_version="2.0" if second else "1.0",
    )
    content = sink.getvalue().to_pybytes()
    metadata = parquet.read_metadata(pa.BufferReader(content))
    begin = metadata.row_group(0).column(0).data_page_offset
    for bit in range(8 * 16):
        hurt = bytearray(content)
        hurt[begin + bit // 8] ^= 1 << bit % 8
        reader = reader_of(bytes(hurt), metadata, 0, 0, type)
        with suppress(DoubtfulPage):
            for row in range(0, rows, 250):
                assert reader.take(250) == values.cast(type)[row : row + 250], bit

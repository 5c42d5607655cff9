"""Columns of Parquet files, each decoded by itself: the chunks that pyarrow's batches are cut to, value by value."""

import io
import os
import random
import string
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.engine.arrow.compact import plain_records
from penstock.engine.core.errors import DataError
from penstock.engine.core.operator import OUTPUT_BYTES
from penstock.engine.kernels.page_library import page_library
from penstock.engine.plan.rounds import CHUNK_ROWS, RowStream
from penstock.engine.sources import parquet_files
from penstock.engine.sources.parquet import ParquetSource
from penstock.engine.sources.parquet_columns import ChunkedColumns, ColumnStream
from penstock.engine.sources.parquet_files import read_footer

pytestmark = pytest.mark.skipif(page_library() is None, reason="pyarrow reads all columns without compiled kernels")

KINDS = {
    "number": lambda chance: chance.randrange(-(2**40), 2**40),
    "few": lambda chance: chance.choice(["", "air", "rail", "truck"]),
    "text": lambda chance: "".join(chance.choices(string.ascii_letters, k=chance.randrange(40))),
    "money": lambda chance: Decimal(chance.randrange(-(10**9), 10**9)).scaleb(-2),
    "flag": lambda chance: chance.random() < 0.5,
    "list": lambda chance: [chance.randrange(5) for _ in range(chance.randrange(4))],
    "pair": lambda chance: {"x": chance.random(), "y": chance.choice(["a", None])},
}
TYPES = {
    "number": pa.int64(),
    "few": pa.string(),
    "text": pa.string_view(),
    "money": pa.decimal128(15, 2),
    "flag": pa.bool_(),
    "list": pa.list_(pa.int32()),
    "pair": pa.struct([("x", pa.float64()), ("y", pa.string())]),
}


def write(path, chance: random.Random, names, rows: int, **options) -> None:
    nulls = {name: chance.choice([0, 0.2]) for name in names}
    columns = {
        name: pa.array(
            [None if chance.random() < nulls[name] else KINDS[name](chance) for _ in range(rows)], type=TYPES[name]
        )
        for name in names
    }
    pq.write_table(
        pa.table(columns),
        path,
        row_group_size=max(rows // 3, 1),
        data_page_size=chance.choice([100, 2000, 10**6]),
        compression=chance.choice(["none", "snappy", "zstd"]),
        use_dictionary=chance.choice([True, False]),
        data_page_version=chance.choice(["1.0", "2.0"]),
        **options,
    )


def in_turn(stream, limits):
    return [chunk for limit in limits for chunk in stream.chunks(limit)]


@pytest.mark.parametrize("seed", range(24))
def test_chunks_are_those_that_batches_of_pyarrow_are_cut_to(tmp_path, seed):
    chance = random.Random(seed)
    names = chance.sample(list(KINDS), chance.randrange(1, 5))
    write(tmp_path / "a.parquet", chance, names, chance.choice([0, 1, 700]), write_page_checksum=True)
    source = ParquetSource(tmp_path, split_by=chance.choice(["file", "row group"]))
    for split in source.splits():
        start = chance.randrange(split.rows + 1)
        limits = [chance.choice([None, 0, 13, 100]) for _ in range(5)] + [None]
        wanted = in_turn(RowStream(split.open(start)), limits)
        for compact in (False, True):
            found = in_turn(split.column_stream(start, None, compact), limits)
            assert [plain_records(each, source.schema) for each in found] == wanted


def test_wide_rows_are_cut_by_what_they_weigh(tmp_path):
    texts = ["x" * 3000 if number % 7 else "" for number in range(8000)]
    table = pa.table({"t": texts, "n": range(8000)})
    pq.write_table(table, tmp_path / "a.parquet")
    (split,) = ParquetSource(tmp_path).splits()
    wanted = list(RowStream(split.open(5)).chunks(None))
    assert len(wanted) > 1
    assert max(each.nbytes for each in wanted) <= OUTPUT_BYTES
    assert list(split.column_stream(5, None, False).chunks(None)) == wanted


def test_text_of_a_dictionary_bounds_what_a_chunk_takes(tmp_path):
    """65,536 rows of one word: whether they fit is known before any is read."""
    for length, is_chunked in ((20, True), (200, False)):
        pq.write_table(pa.table({"t": ["w" * length] * CHUNK_ROWS}), tmp_path / "a.parquet")
        (split,) = ParquetSource(tmp_path / "a.parquet").splits()
        stream = split.column_stream(0, None, False)
        wanted = list(RowStream(split.open(0)).chunks(None))
        assert list(stream.chunks(None)) == wanted
        assert (len(wanted) == 1) is is_chunked
        assert isinstance(stream._chunks, ChunkedColumns) is is_chunked


def test_damaged_page_is_told_as_pyarrow_finds_it(tmp_path):
    options = {"write_page_checksum": True, "use_dictionary": False, "compression": "none"}
    pq.write_table(pa.table({"a": range(1000), "b": range(1000)}), tmp_path / "a.parquet", **options)
    where = pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(1).data_page_offset + 2000
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[where] ^= 255
    (tmp_path / "a.parquet").write_bytes(content)
    (split,) = ParquetSource(tmp_path).splits()
    stream = split.column_stream(0, None, False)
    assert isinstance(stream, ColumnStream)
    with pytest.raises(DataError, match="column 'b' of row group 0 does not fit its checksum"):
        list(stream.chunks(None))


def test_file_that_changes_while_it_is_read_is_another_one(tmp_path):
    pq.write_table(pa.table({"a": range(200_000)}), tmp_path / "a.parquet")
    (split,) = ParquetSource(tmp_path).splits()
    chunks = split.column_stream(0, None, False).chunks(None)
    next(chunks)
    with open(tmp_path / "a.parquet", "ab") as file:
        file.write(b"more")
    with pytest.raises(DataError, match=r"had .* bytes"):
        list(chunks)


def test_page_of_more_values_than_its_column_is_not_passed_over(tmp_path):
    """The header of the first page is met when the column is weighed, before a row is taken."""
    texts = [f"{number % 50}" for number in range(3000)]
    pq.write_table(pa.table({"t": texts}), tmp_path / "a.parquet", data_page_size=1, write_batch_size=100)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    begin = pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(0).data_page_offset
    at = content.index(b"\x2c\x15\xc8\x01", begin)  # the data page's own header, which begins with its 100 values
    content[at + 2 : at + 4] = b"\xfe\x7f"
    (tmp_path / "a.parquet").write_bytes(content)
    (split,) = ParquetSource(tmp_path).splits()
    with pytest.raises(DataError):
        list(split.column_stream(0, None, False).chunks(100))


def test_file_that_is_written_anew_has_a_footer_of_its_own(tmp_path, monkeypatch):
    """Though it has the same size, and the time of the last change was set, as programs do that copy."""
    monkeypatch.setattr(parquet_files, "TICK_NS", 0)
    for name in ("a", "b"):
        pq.write_table(pa.table({name: range(100)}), tmp_path / "_new", store_schema=False)
        os.utime(tmp_path / "_new", ns=(10**18, 10**18))
        os.replace(tmp_path / "_new", tmp_path / "a.parquet")
        source = ParquetSource(tmp_path)
        footer = read_footer(source.listed()[0])
        assert source.schema.names == footer.schema.names == [name]
        assert read_footer(source.listed()[0]) is footer


def test_footer_of_a_file_that_may_change_within_a_tick_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_files, "TICK_NS", 10**15)
    pq.write_table(pa.table({"a": range(100)}), tmp_path / "a.parquet")
    (file,) = ParquetSource(tmp_path).listed()
    assert read_footer(file) is not read_footer(file)


CANNOT_BE = {
    "a codec": (b"\x19\x18\x01n\x15\x00", 5, 0x7E),
    "a type": (b"\x1c\x15\x04\x19", 2, 0x00),
    "a type of the schema": (b"\x15\x04\x25\x02\x18\x01n", 1, 0x00),
    "levels": (b"\x15\x04\x25\x02\x18\x01n", 3, 0x00),
}
"""What a footer says that cannot be: behind which bytes of it, the place among these, and what stands there instead."""


@pytest.mark.parametrize("what", CANNOT_BE)
def test_footer_that_says_what_cannot_be_is_an_error_and_not_the_end_of_the_process(tmp_path, what: str) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array(range(50), pa.int64())}), sink, compression="none")
    content = bytearray(sink.getvalue())
    around, place, instead = CANNOT_BE[what]
    at = content.rindex(around) + place
    assert content[at] != instead
    content[at] = instead
    (tmp_path / "0").write_bytes(content)
    reads = (
        "import sys, penstock as ps\n"
        "flow = ps.Flow('damaged')\n"
        "try:\n"
        "    flow.read_parquet(sys.argv[1]).filter('n > 3').collect('rows')\n"
        "    ps.run_local(flow).result('rows')\n"
        "except ps.errors.DataError as error:\n"
        "    print(error.message)\n"
    )
    command = [sys.executable, "-c", reads, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "is damaged: its footer says of a column what cannot be" in done.stdout


def lists_of_one_length(chance: random.Random, rows: int) -> pa.Array:
    length, kind = chance.choice([1, 2, 7, 8, 300]), chance.choice([pa.uint8(), pa.int32(), pa.float64(), pa.bool_()])
    most = chance.choice([2, 3, 200])
    values = pa.array([chance.randrange(most) for _ in range(rows * length)]).cast(kind)
    found = pa.FixedSizeListArray.from_arrays(values, length)
    match chance.randrange(4):
        case 0:
            rows_found = found.to_pylist()
            for _ in range(rows // 50):
                rows_found[chance.randrange(rows)] = None
            return pa.array(rows_found, found.type)
        case 1 if length > 1:
            field = pa.field("item", kind, nullable=False)
            return pa.FixedSizeListArray.from_arrays(values, type=pa.list_(field, length))
    return found


@pytest.mark.parametrize("seed", range(24))
def test_lists_of_one_length_are_those_that_pyarrow_reads(tmp_path, seed):
    chance = random.Random(seed)
    rows = chance.choice([1, 700, 2000])
    column = lists_of_one_length(chance, rows)
    options = {
        "row_group_size": max(rows // chance.choice([1, 3]), 1),
        "data_page_size": chance.choice([100, 2000, 10**6]),
        "write_batch_size": chance.choice([1, 50, 1024]),
        "compression": chance.choice(["none", "snappy", "zstd", "gzip"]),
        "use_dictionary": chance.choice([True, False]),
        "data_page_version": chance.choice(["1.0", "1.0", "2.0"]),
    }
    table = pa.table({"x": column, "n": range(rows), "free": pa.array([[1]] * rows)})
    pq.write_table(table, tmp_path / "a.parquet", **options)
    source = ParquetSource(tmp_path, split_by=chance.choice(["file", "row group"]))
    for split in source.splits():
        start = chance.randrange(split.rows + 1)
        limits = [chance.choice([None, 0, 13, 100]) for _ in range(5)] + [None]
        wanted = in_turn(RowStream(split.open(start)), limits)
        found = in_turn(split.column_stream(start, None, True), limits)
        assert found == wanted
        for each in found:
            each.validate(full=True)


def readers_of(tmp_path, table: pa.Table, **options) -> list[type]:
    """What reads each column of the first row group."""
    pq.write_table(table, tmp_path / "a.parquet", **options)
    (split,) = ParquetSource(tmp_path).splits()
    stream = split.column_stream(0, None, False)
    chunks = list(stream.chunks(10))
    assert pa.Table.from_batches(chunks).equals(table.slice(0, 10))
    return [type(column._reader).__name__ for column in stream._chunks._columns.values()]


def test_lists_of_one_length_are_decoded_here_and_others_are_not(tmp_path):
    whole = pa.FixedSizeListArray.from_arrays(pa.array(range(4000)), 4)
    nulls = pa.array([None, *whole.to_pylist()[1:]], whole.type)
    free = pa.array(whole.to_pylist())
    table = pa.table({"whole": whole, "nulls": nulls, "free": free, "again": whole})
    assert readers_of(tmp_path, table.select(["whole", "nulls", "again"])) == ["ListReader", "_ByArrow", "ListReader"]
    with_nulls_inside = pa.FixedSizeListArray.from_arrays(pa.array([None, *range(3999)]), 4)
    assert readers_of(tmp_path, pa.table({"x": with_nulls_inside})) == ["_ByArrow"]
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int64(), (2, 2)), whole)
    assert readers_of(tmp_path, pa.table({"x": tensors})) == ["ListReader"]
    assert readers_of(tmp_path, pa.table({"x": whole}), data_page_version="2.0") == ["_ByArrow"]


def test_picked_rows_of_lists_are_those_that_were_asked_for(tmp_path):
    whole = pa.FixedSizeListArray.from_arrays(pa.array(range(4000)), 4)
    pq.write_table(pa.table({"x": whole}), tmp_path / "a.parquet", row_group_size=300, data_page_size=100)
    (split,) = ParquetSource(tmp_path, split_by="file").splits()
    stream = split.column_stream(0, None, False)
    list(stream.chunks(7))
    column = stream._chunks._columns["x"]
    picked = np.array([0, 5, 293, 600])
    assert column.take(700, picked).equals(whole.take(pa.array(picked + 7)))
    column.skip(100)
    assert column.take(3).equals(whole.slice(807, 3))

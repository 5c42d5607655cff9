"""Bloom filters of other writers: no value that is there is said to be missing, and few others are not."""

import datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock import Flow, run_local
from penstock.engine.expressions.bounds import comparable_value
from penstock.engine.kernels.page_library import page_library
from penstock.engine.operators.rowwise.filter import Filter
from penstock.engine.plan.rounds import lanes_of
from penstock.engine.sources.parquet import ParquetSource
from penstock.engine.sources.parquet_bloom import lacks_of
from penstock.engine.sources.picking import Pick
from penstock.engine.sources.reader import SplitReader

ROWS = 3000
DAY = datetime.date(2020, 1, 1)
TABLE = pa.table(
    {
        "i": pa.array([number % 50 * 3 - 70 for number in range(ROWS)], pa.int32()),
        "b": pa.array([number % 40 * 10**12 for number in range(ROWS)], pa.int64()),
        "u": pa.array([2**32 - 1 - number % 30 for number in range(ROWS)], pa.uint32()),
        "f": pa.array([number % 30 / 4 for number in range(ROWS)], pa.float64()),
        "g": pa.array([number % 30 / 4 for number in range(ROWS)], pa.float32()),
        "d": pa.array([Decimal(number % 30 - 9).scaleb(-1) for number in range(ROWS)], pa.decimal128(12, 2)),
        "e": pa.array([Decimal(number % 30 - 9) for number in range(ROWS)], pa.decimal128(25, 3)),
        "s": [f"word {number % 40}" * (number % 7) for number in range(ROWS)],
        "t": [DAY + datetime.timedelta(days=number % 60 * 2) for number in range(ROWS)],
    }
)
MISSING = {
    "i": range(1000, 1100),
    "b": range(1000, 1100),
    "u": range(1000, 1100),
    "f": [number + 0.125 for number in range(100)],
    "g": [number + 0.125 for number in range(100)],
    "d": [Decimal(number).scaleb(-2) for number in range(1001, 1999, 10)],
    "e": [Decimal(number).scaleb(-3) for number in range(1001, 1999, 10)],
    "s": [f"none {number}".encode() for number in range(100)],
    "t": range(100),
}


def write(path, writer: str) -> None:
    if writer == "duckdb":
        duckdb.from_arrow(TABLE).write_parquet(str(path), row_group_size=1000)
    else:
        options = {name: {"ndv": 300, "fpp": 0.01} for name in TABLE.schema.names}
        integers = writer == "pyarrow, integers"
        pq.write_table(
            TABLE, path, row_group_size=1000, bloom_filter_options=options, store_decimal_as_integer=integers
        )


@pytest.mark.parametrize("writer", ["duckdb", "pyarrow", "pyarrow, integers"])
def test_values_that_are_there_are_found(tmp_path, writer):
    path = tmp_path / "a.parquet"
    write(path, writer)
    metadata, content = pq.read_metadata(path), path.read_bytes()
    have_filters = 0
    for leaf, name in enumerate(TABLE.schema.names):
        type = metadata.schema.to_arrow_schema().field(name).type
        for group in range(metadata.num_row_groups):
            chunk = metadata.row_group(group).column(leaf)
            lacks = lacks_of(lambda at, size: content[at : at + size], chunk, metadata.schema.column(leaf), type)
            if lacks is None:
                continue
            have_filters += 1
            there = pq.ParquetFile(path).read_row_group(group, [name]).column(0).unique()
            assert not any(lacks(comparable_value(each)) for each in there)
            assert sum(map(lacks, MISSING[name])) > 80, name
    assert have_filters >= (24 if writer != "duckdb" else 15)


@pytest.mark.parametrize("integers", [False, True])
def test_long_decimals_are_found(tmp_path, integers):
    path, many = tmp_path / "a.parquet", Decimal("1234567890123456.12345678901234567890")
    values = pa.array([many, -many, Decimal("0E-20"), Decimal(7)], pa.decimal128(38, 20))
    options = {"m": {"ndv": 10}}
    pq.write_table(pa.table({"m": values}), path, bloom_filter_options=options, store_decimal_as_integer=integers)
    for value in values.to_pylist():
        flow = Flow("long", lanes=1)
        flow.read_parquet(str(path)).filter(pc.field("m") == value).collect("out")
        assert run_local(flow).result("out")["m"].to_pylist() == [value]


def test_numbers_beyond_a_columns_floats_are_not_looked_for(tmp_path):
    path = tmp_path / "a.parquet"
    values = pa.table({"f": pa.array([1.5, None], pa.float32())})
    pq.write_table(values, path, bloom_filter_options={"f": True}, write_statistics=False)
    flow = Flow("beyond", lanes=1)
    flow.read_parquet(str(path)).filter(pc.field("f") == 1e300).collect("out")
    assert run_local(flow).result("out").num_rows == 0


@pytest.mark.parametrize(
    "header", [b"", b"\x15", b"\x15\x40\x1c\x2c", b"\x15\x41", b"\x15\xff\xff\xff\xff\xff", b"\x00" * 40]
)
def test_header_that_is_not_understood_tells_nothing(tmp_path, header):
    path = tmp_path / "a.parquet"
    write(path, "pyarrow")
    metadata = pq.read_metadata(path)
    chunk = metadata.row_group(0).column(0)
    assert lacks_of(lambda at, size: header, chunk, metadata.schema.column(0), pa.int32()) is None


@pytest.mark.skipif(page_library() is None, reason="pyarrow reads whole row groups")
@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("s = 'word 38word x'", 0),
        ("i in (0, 1, 3)", 0),
        ("d = 0.55 or d = 1.85", 0),
        ("s = 'word 39'", 10),
        ("f <> 3.3", ROWS),
    ],
)
def test_row_groups_without_a_value_are_left_out(tmp_path, text, rows):
    write(tmp_path / "a.parquet", "pyarrow")
    source = ParquetSource(tmp_path)
    condition = Filter(text).build(None, [source.schema], None).condition(source.schema)
    reader = SplitReader("s", source.schema, source.splits(), lanes_of(0, 1, 1), 1)
    pick = Pick(source.schema, (condition,))
    reader.pick(pick)
    found = 0
    while (element := reader.peek()) is not None:
        found += getattr(element, "records", TABLE[:0]).num_rows
        reader.pop()
    assert found == rows
    assert pick.skipped.groups_left_out == pick.skipped.by_bloom == (0 if rows else 3)

"""Dictionaries of Parquet files are begun where they pay."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.core.errors import ConfigurationError
from penstock.engine.sinks.parquet_encoding import LEAST_ROWS, SAMPLE_ROWS, dictionary_columns, estimated_values

RANDOM = np.random.default_rng(5)
MANY = 200_000

COLUMNS = {
    "numbers": (RANDOM.integers(0, 10**9, MANY), False),
    "prices": (RANDOM.integers(0, 10**7, MANY) * 0.01, False),
    "ascending": (np.arange(MANY), False),
    "times": (pa.array(np.arange(MANY), pa.timestamp("us")), False),
    "different texts": ([f"user {n}" for n in range(MANY)], False),
    "few numbers": (RANDOM.integers(0, 50, MANY), True),
    "some numbers": (RANDOM.integers(0, 5000, MANY), True),
    "some texts": ([f"channel {n}" for n in RANDOM.integers(0, 20_000, MANY)], True),
    "one value": (np.zeros(MANY), True),
    "mostly null": (pa.array([None] * MANY, pa.int64()), True),
    "flags": (RANDOM.integers(0, 2, MANY).astype(bool), True),
    "decimals": (pa.array(RANDOM.integers(0, 10**9, MANY)).cast(pa.decimal128(19, 0)), False),
    "tiny": (pa.array(RANDOM.integers(-128, 127, MANY), pa.int8()), True),
}


def written(table: pa.Table, **options: object) -> tuple[bytes, dict[str, bool]]:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=table.num_rows, **options)
    group = pq.ParquetFile(sink).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return sink.getvalue(), {each.path_in_schema: each.has_dictionary_page for each in columns}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_mostly_different_values_get_none(name: str) -> None:
    values, pays = COLUMNS[name]
    table = pa.table({name: values})
    assert dictionary_columns(table) == (True if pays else [])
    data, _ = written(table, use_dictionary=dictionary_columns(table))
    assert pq.read_table(io.BytesIO(data)).equals(table)
    assert len(data) <= 1.02 * len(written(table)[0])


def test_other_columns_keep_theirs_nested_ones_too() -> None:
    rows = 2 * LEAST_ROWS
    table = pa.table(
        {
            "unique": range(rows),
            "few": [n % 3 for n in range(rows)],
            "list": [[1, 2]] * rows,
            "map": pa.array([[("a", [1])]] * rows, pa.map_(pa.string(), pa.list_(pa.int64()))),
            "struct": [{"x": 1, "y.z": {"b": "c"}}] * rows,
            "fixed": pa.array([[1, 2]] * rows, pa.list_(pa.int64(), 2)),
            "large": pa.array([[1]] * rows, pa.large_list(pa.int64())),
            "coded": pa.array(["a", "b"] * (rows // 2)).dictionary_encode(),
        }
    )
    found = written(table, use_dictionary=dictionary_columns(table))[1]
    assert [name for name, has in found.items() if not has] == ["unique"]
    assert [name for name, has in written(table)[1].items() if not has] == []


def test_values_of_very_different_frequency_are_not_taken_for_few() -> None:
    """Of a price's logarithm each value is as likely: most rows repeat few prices, the others have one of their own."""
    rows = 1_000_000
    prices = pa.table({"price": np.exp(RANDOM.random(rows) * 6.9 + 6.9).astype(np.int64) * 0.01})
    assert dictionary_columns(prices) == []
    assert not any(written(prices, use_dictionary=[])[1].values())


def test_few_rows_are_left_to_the_writer() -> None:
    assert dictionary_columns(pa.table({"n": range(LEAST_ROWS - 1)})) is True
    assert dictionary_columns(pa.table({"n": pa.array([], pa.int64())})) is True
    nulls = pa.array([None] * SAMPLE_ROWS + list(range(SAMPLE_ROWS)), pa.int64())
    assert dictionary_columns(pa.table({"n": nulls})) is True


@pytest.mark.parametrize("type", [pa.string_view(), pa.binary_view(), pa.month_day_nano_interval()], ids=str)
def test_types_that_cannot_be_counted_are_left_to_the_writer(type: pa.DataType) -> None:
    values = pa.array([f"user {n}" for n in range(MANY)])
    column = values.cast(pa.binary()).cast(type) if pa.types.is_binary_view(type) else None
    column = values.cast(type) if pa.types.is_string_view(type) else column
    assert dictionary_columns(pa.table({"a": pa.nulls(MANY, type) if column is None else column})) is True


@pytest.mark.parametrize("values", [10, 1000, 20_000, 300_000])
def test_estimate_of_evenly_spread_values(values: int) -> None:
    _, counts = np.unique(RANDOM.integers(0, values, SAMPLE_ROWS), return_counts=True)
    assert values / 2 < estimated_values(counts) < 2 * values


@pytest.mark.parametrize(("asked", "stored"), [("zstd", "ZSTD"), ("snappy", "SNAPPY"), ("none", "UNCOMPRESSED")])
def test_files_are_compressed_as_asked(tmp_path: Path, asked: str, stored: str) -> None:
    flow = ps.Flow("rows")
    flow.from_tables([pa.table({"x": range(10)})]).write_parquet(tmp_path / "out", compression=asked)
    ps.run_local(flow).wait()
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == stored


def test_an_unknown_compression_is_refused_with_those_that_are_known() -> None:
    stream = ps.Flow("rows").from_tables([pa.table({"x": range(10)})])
    with pytest.raises(ConfigurationError, match="zstd, snappy"):
        stream.write_parquet("out", compression="lzma")

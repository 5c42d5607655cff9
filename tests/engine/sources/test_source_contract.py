"""What every source promises: the same splits and rows each time, from any row on."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import csv, ipc, parquet

from penstock.engine.core.source import SourceConfig, Split
from penstock.engine.files.paths import resolve
from penstock.engine.sources.csv import CsvSource
from penstock.engine.sources.ipc import IpcSource
from penstock.engine.sources.lines import ERROR_FIELD
from penstock.engine.sources.memory import MemorySource
from penstock.engine.sources.parquet import ParquetSource
from penstock.engine.sources.records import JsonSource, TextSource

ROWS = 200_000
MAXIMUM_ROWS = 128 * 1024


def numbers(begin: int, rows: int) -> pa.Table:
    """Rows that all differ, with a text, a missing value now and then, and a column that never misses one."""
    ids = pa.array(range(begin, begin + rows), pa.int64())
    value = pc.if_else(pc.equal(pc.bit_wise_and(ids, 7), 0), None, pc.multiply(pc.cast(ids, pa.float64()), 0.5))
    name = pc.binary_join_element_wise("row", pc.cast(ids, pa.string()), "-")
    fields = [pa.field("id", pa.int64(), nullable=False), ("value", pa.float64()), ("name", pa.string())]
    return pa.table([ids, value, name], schema=pa.schema(fields))


TABLES = (numbers(0, ROWS), numbers(ROWS, 10), numbers(ROWS + 10, 0), numbers(ROWS + 10, ROWS // 2))


def memory(folder: Path) -> SourceConfig:
    return MemorySource(TABLES)


def write_parquet(folder: Path) -> Path:
    for position, table in enumerate(TABLES):
        parquet.write_table(table, folder / f"{position}.parquet", row_group_size=30_000)
    (folder / "_SUCCESS").touch()
    return folder


def parquet_groups(folder: Path) -> SourceConfig:
    return ParquetSource(write_parquet(folder))


def parquet_files(folder: Path) -> SourceConfig:
    return ParquetSource(write_parquet(folder), columns=["name", "id"], split_by="file")


def parquet_filtered(folder: Path) -> SourceConfig:
    return ParquetSource(write_parquet(folder), columns=["name"], filter=pc.field("value") > 1000.0)


def write_partitions(folder: Path) -> Path:
    for position, table in enumerate(TABLES):
        (folder / f"part={position}" / "word=a%20b").mkdir(parents=True)
        parquet.write_table(table, folder / f"part={position}/word=a%20b/x.parquet", row_group_size=30_000)
    return folder


def parquet_partitions(folder: Path) -> SourceConfig:
    return ParquetSource(write_partitions(folder))


def parquet_partitions_filtered(folder: Path) -> SourceConfig:
    condition = (pc.field("part") != 1) & (pc.field("value") > 1000.0)
    return ParquetSource(write_partitions(folder) / "part=*", columns=["word", "name"], filter=condition)


def csv_files(folder: Path) -> SourceConfig:
    for position, table in enumerate(TABLES):
        csv.write_csv(table, folder / f"{position}.csv")
    return CsvSource(folder, types={"value": pa.float64()})


def csv_with_bad_rows(folder: Path) -> SourceConfig:
    source = csv_files(folder)
    assert isinstance(source, CsvSource)
    return replace(source, keeps_bad=True)


def json_lines(folder: Path) -> SourceConfig:
    for position, table in enumerate(TABLES):
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        objects = (json.dumps(dict(zip(table.schema.names, row, strict=True))) for row in rows)
        (folder / f"{position}.jsonl").write_text("".join(f"{each}\n" for each in objects))
    return JsonSource(folder)


def lines_of_text(folder: Path) -> SourceConfig:
    for position, table in enumerate(TABLES):
        (folder / f"{position}.txt").write_text("".join(f"{name}\n" for name in table["name"].to_pylist()))
    return TextSource(folder)


def ipc_files(folder: Path) -> SourceConfig:
    for position, table in enumerate(TABLES):
        with ipc.new_file(folder / f"{position}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=7_000)
    return IpcSource(folder, columns=["name", "id"])


def ipc_streams(folder: Path) -> SourceConfig:
    for position, table in enumerate(TABLES):
        with ipc.new_stream(folder / f"{position}.arrows", table.schema) as writer:
            writer.write_table(table)
    return IpcSource(folder)


def parquet_in_a_bucket(folder: Path) -> SourceConfig:
    return ParquetSource(stored(write_parquet(folder), "s3://contract/parquet"))


def filtered_in_a_bucket(folder: Path) -> SourceConfig:
    url = stored(write_parquet(folder), "gs://contract/filtered")
    return ParquetSource(url, columns=["name"], filter=pc.field("value") > 1000.0)


def csv_in_a_bucket(folder: Path) -> SourceConfig:
    csv_files(folder)
    return CsvSource(stored(folder, "s3://contract/csv"), types={"value": pa.float64()})


def ipc_in_a_bucket(folder: Path) -> SourceConfig:
    ipc_files(folder)
    return IpcSource(stored(folder, "gs://contract/ipc"), columns=["name", "id"])


def stored(folder: Path, url: str) -> str:
    """The files of a local folder, in a bucket."""
    filesystem, place = resolve(url)
    for path in folder.iterdir():
        with filesystem.open_output_stream(f"{place}/{path.name}") as stream:
            stream.write(path.read_bytes())
    return url


IN_BUCKETS = (parquet_in_a_bucket, filtered_in_a_bucket, csv_in_a_bucket, ipc_in_a_bucket)
Make = Callable[[Path], SourceConfig]
MAKERS = (
    memory,
    parquet_groups,
    parquet_files,
    parquet_filtered,
    parquet_partitions,
    parquet_partitions_filtered,
    csv_files,
    csv_with_bad_rows,
    json_lines,
    lines_of_text,
    ipc_files,
    ipc_streams,
    *IN_BUCKETS,
)


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: make.__name__)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SourceConfig:
    make: Make = request.param
    if make in IN_BUCKETS:
        request.getfixturevalue("bucket_server")
    return make(tmp_path_factory.mktemp(make.__name__))


def read(split: Split, start: int = 0) -> pa.Table:
    batches = list(split.open(start))
    return pa.Table.from_batches(batches) if batches else pa.table({})


def read_all(splits: Iterable[Split], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([batch for split in splits for batch in split.open(0)], schema)


def test_source_gives_all_rows_in_order(source: SourceConfig) -> None:
    tables = [
        table.append_column("part", pa.array([part] * len(table), pa.int64())).append_column(
            "word", pa.array(["a b"] * len(table), pa.string())
        )
        for part, table in enumerate(TABLES)
    ]
    expected = pa.concat_tables(tables)
    expected = expected.append_column("text", expected["name"])
    expected = expected.append_column(ERROR_FIELD, pa.nulls(len(expected), ERROR_FIELD.type))
    if isinstance(source, ParquetSource) and source.filter is not None:
        expected = expected.filter(source.filter)
    found = read_all(source.splits(), source.schema)
    assert found.to_pydict() == expected.select(source.schema.names).to_pydict()


def test_batches_have_the_promised_schema_and_are_neither_empty_nor_too_long(source: SourceConfig) -> None:
    batches = [batch for split in source.splits() for batch in split.open(0)]
    assert all(batch.schema.equals(source.schema) for batch in batches)
    assert min(batch.num_rows for batch in batches) > 0
    assert max(batch.num_rows for batch in batches) <= MAXIMUM_ROWS


def test_splits_and_rows_are_the_same_when_planned_and_read_again(source: SourceConfig) -> None:
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert again.describe() == source.describe()
    first, second = source.splits(), again.splits()
    assert [(split.id, split.rows) for split in first] == [(split.id, split.rows) for split in second]
    assert read_all(first, source.schema) == read_all(second, source.schema) == read_all(first, source.schema)


def test_ids_of_splits_are_unique(source: SourceConfig) -> None:
    ids = [split.id for split in source.splits()]
    assert len(set(ids)) == len(ids)


def test_known_length_of_a_split_is_its_number_of_rows(source: SourceConfig) -> None:
    for split in source.splits():
        assert split.rows in (None, read(split).num_rows)


@pytest.mark.parametrize("start", [0, 1, 9, 10, 29_999, 30_000, MAXIMUM_ROWS, 140_001, ROWS - 1, ROWS, ROWS + 1])
def test_open_from_a_row_gives_the_rest(source: SourceConfig, start: int) -> None:
    for split in source.splits():
        expected, found = read(split).slice(start), read(split, start)
        assert found == expected if expected.num_rows else not found.num_rows


def test_pickled_split_reads_the_same_rows(source: SourceConfig) -> None:
    for split in source.splits():
        again = pickle.loads(pickle.dumps(split))
        assert (again.id, again.rows) == (split.id, split.rows)
        assert read(again, 5) == read(split, 5)


def test_reading_may_be_given_up_in_the_middle(source: SourceConfig) -> None:
    split = source.splits()[0]
    rows = split.open(0)
    first = next(rows)
    del rows
    assert next(split.open(0)) == first

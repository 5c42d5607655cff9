"""Folders named ``key=value``: their columns, as pyarrow and DuckDB read them, and files that filters pass over."""

import datetime
import os

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.core.errors import ConfigurationError, FlowError
from penstock.engine.files.partitions import partitions_of
from penstock.engine.operators.rowwise.filter import RunningFilter
from penstock.engine.sources.parquet import ParquetSource
from penstock.engine.sources.picking import Pick

ROWS = 600
TABLE = pa.table(
    {
        "year": [2020 + number % 3 for number in range(ROWS)],
        "kind": [["a", "b c", None, "x=y/z"][number % 4] for number in range(ROWS)],
        "id": range(ROWS),
        "text": [f"row {number % 17}" for number in range(ROWS)],
    }
)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "in"
    rows = TABLE  # noqa: F841 (DuckDB reads it by its name)
    duckdb.sql(f"copy rows to '{place}' (format parquet, partition_by (year, kind), row_group_size 2048)")
    return place


def by_duckdb(sql: str) -> list[tuple]:
    return duckdb.sql(sql).fetchall()


def told(table: pa.Table) -> list[tuple]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


def test_partition_columns_are_those_of_duckdb(folder):
    stream = ps.Flow("f").read_parquet(folder)
    assert dict(zip(stream.schema.names, map(str, stream.schema.types), strict=True)) == {
        "id": "int64",
        "text": "string",
        "year": "int64",
        "kind": "string",
    }
    want = by_duckdb(f"select id, text, year, kind from read_parquet('{folder}/**/*.parquet', hive_partitioning=true)")
    assert told(stream.to_arrow()) == sorted(want, key=repr)
    assert told(stream.to_arrow()) == told(TABLE.select(["id", "text", "year", "kind"]))


@pytest.mark.parametrize(
    "condition",
    ["year = 2021", "kind is null", "year > 2020 and id % 2 = 0", "kind = 'b c' or id < 10", "year = 1999", "id < 50"],
)
@pytest.mark.parametrize("columns", ["id", "id, year", "year", "kind, text", "kind"])
def test_filters_give_what_duckdb_gives(folder, condition, columns):
    rows = ps.Flow("f").read_parquet(folder).filter(condition).project(*columns.split(", "))
    place = f"read_parquet('{folder}/**/*.parquet', hive_partitioning=true)"
    assert told(rows.to_arrow()) == sorted(by_duckdb(f"select {columns} from {place} where {condition}"), key=repr)


@pytest.mark.parametrize(
    "condition",
    [pc.field("year") == 2021, pc.field("kind").is_null(), (pc.field("year") == 2020) & (pc.field("id") < 99)],
)
def test_the_sources_own_filter(folder, condition):
    rows = ps.Flow("f").read_parquet(folder, filter=condition, columns=["id", "kind", "year"]).to_arrow()
    want = TABLE.filter(condition).select(["id", "kind", "year"])
    assert told(rows) == told(want)


def test_a_column_with_a_dot_is_scanned(tmp_path):
    for number in (1, 2):
        (tmp_path / f"n={number}").mkdir()
        pq.write_table(pa.table({"a.b": [number, number + 10]}), tmp_path / f"n={number}" / "x.parquet")
    rows = ps.Flow("f").read_parquet(tmp_path)
    assert told(rows.to_arrow()) == [(1, 1), (11, 1), (12, 2), (2, 2)]
    kept = ps.Flow("f").read_parquet(tmp_path, filter=pc.field("n") == 2)
    assert told(kept.to_arrow()) == [(12, 2), (2, 2)]


@pytest.fixture
def four(tmp_path):
    for number in range(4):
        (tmp_path / f"n={number}").mkdir()
        pq.write_table(pa.table({"x": range(number, number + 5)}), tmp_path / f"n={number}" / "x.parquet")
    return tmp_path


def without(folder, *numbers: int) -> None:
    for number in numbers:
        os.remove(folder / f"n={number}" / "x.parquet")


def test_the_sources_own_filter_opens_no_other_file(four):
    splits = ParquetSource(str(four), filter=pc.field("n") == 2).splits()
    without(four, 0, 1, 3)
    assert [batch.num_rows for split in splits for batch in split.open(0)] == [5]


def test_a_filter_behind_opens_no_other_file(four):
    """Rows are counted as if they had been read."""
    source = ParquetSource(str(four))
    splits = source.splits()
    without(four, 0, 1, 3)
    condition = RunningFilter((pc.field("n") == 2) & (pc.field("x") > 3), "", source.schema).condition(source.schema)
    pick = Pick(source.schema, (condition,))
    chunks = [chunk for split in splits for chunk in split.column_stream(0, pick, False).chunks(None)]
    assert [chunk.counts for chunk in chunks] == [(5, 0), (5, 0), (5, 3), (5, 0)]
    assert (pick.skipped.groups_left_out, pick.skipped.rows) == (3, 15)


def test_lists_and_globs(tmp_path):
    for name in ("a/n=1/x.parquet", "a/n=2/x.parquet", "b/n=3/y.parquet", "a/_hidden/z.parquet", "a/n=2/.z.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"p": [name]}), tmp_path / name)

    def read(*paths, **options):
        return told(ps.Flow("f").read_parquet([tmp_path / each for each in paths], **options).to_arrow())

    first, second, third = ("a/n=1/x.parquet", 1), ("a/n=2/x.parquet", 2), ("b/n=3/y.parquet", 3)
    assert read("*") == read("*/*") == read("**") == read("**/*.parquet") == read("[ab]") == [first, second, third]
    assert read("a", "b") == read("b", "a/n=?") == [first, second, third]
    assert read("*/n=[23]/*") == [second, third]
    assert read("a/n=1/*.parquet") == read("a/n=1", hive_partitioning=False) == [first[:1]]
    assert read("a/n=1/x.parquet", "a/n=2/*") == [first[:1], second[:1]]
    with pytest.raises(ConfigurationError, match="matches no data files"):
        read("c*")


def test_a_file_whose_name_looks_like_a_glob_is_read(tmp_path):
    pq.write_table(pa.table({"p": [1]}), tmp_path / "x[1].parquet")
    pq.write_table(pa.table({"p": [2]}), tmp_path / "x1.parquet")
    assert told(ps.Flow("f").read_parquet(tmp_path / "x[1].parquet").to_arrow()) == [(1,)]


def test_columns_of_the_files_go_before_folders(tmp_path):
    (tmp_path / "n=1").mkdir()
    pq.write_table(pa.table({"n": [7]}), tmp_path / "n=1" / "x.parquet")
    assert told(ps.Flow("f").read_parquet(tmp_path).to_arrow()) == [(7,)]


def test_types():
    found = partitions_of(
        ["a=01/b=2024-02-29/c=2024-02-30/d=%20x/e=__HIVE_DEFAULT_PARTITION__/f", "a=-2/b=2024-03-01/c=x/d=%3D/e=5/f"],
        (),
        {},
    )
    assert found.schema == pa.schema(
        [("a", pa.int64()), ("b", pa.date32()), ("c", pa.string()), ("d", pa.string()), ("e", pa.int64())]
    )
    assert [value.as_py() for value in found.of(0).values()] == [
        1,
        datetime.date(2024, 2, 29),
        "2024-02-30",
        " x",
        None,
    ]
    assert [value.as_py() for value in found.of(1).values()] == [-2, datetime.date(2024, 3, 1), "x", "=", 5]


def test_two_texts_of_one_number_stay_texts():
    found = partitions_of(["k=7/f", "k=007/f", "k=7/g"], (), {})
    assert [found.of(place)["k"].as_py() for place in range(3)] == ["7", "007", "7"]


def test_types_that_are_given(folder):
    rows = ps.Flow("f").read_parquet(folder, hive_schema={"year": pa.string()})
    assert rows.schema.field("year").type == pa.string()
    assert set(rows.to_arrow()["year"].to_pylist()) == {"2020", "2021", "2022"}


def test_what_is_refused(tmp_path):
    (tmp_path / "n=1").mkdir()
    pq.write_table(pa.table({"x": [7]}), tmp_path / "n=1" / "x.parquet")
    with pytest.raises(FlowError, match="no folder tells 'm'"):
        ps.Flow("f").read_parquet(tmp_path, hive_schema={"m": pa.int8()})
    with pytest.raises(ConfigurationError, match="types of folders that are not read"):
        ps.Flow("f").read_parquet(tmp_path, hive_schema={"n": pa.int8()}, hive_partitioning=False)
    pq.write_table(pa.table({"x": [7]}), tmp_path / "x.parquet")
    with pytest.raises(ConfigurationError, match=r"tell nothing, and those of n=1/x\.parquet tell n"):
        ps.Flow("f").read_parquet(tmp_path)
    (tmp_path / "x.parquet").rename(tmp_path / "n=1" / "y.parquet")
    (tmp_path / "n=z").mkdir()
    pq.write_table(pa.table({"x": [7]}), tmp_path / "n=z" / "x.parquet")
    with pytest.raises(FlowError, match="folders tell 'n' values that are no int8"):
        ps.Flow("f").read_parquet(tmp_path, hive_schema={"n": pa.int8()})
    with pytest.raises(ConfigurationError, match="tell 'n' twice"):
        partitions_of(["n=1/n=2/x"], (), {})


def test_a_job_reads_audits_and_writes_them(folder, tmp_path):
    flow = ps.Flow("f")
    flow.read_parquet(folder).filter("year >= 2021").write_parquet(tmp_path / "out")
    with ps.run_local(flow, checkpoints=ps.Checkpoints(str(tmp_path / "state")), audit="content") as job:
        job.wait()
        assert [each.grade for each in (*job.audit().sources, *job.audit().sinks)] == ["proven", "proven"]
    want = TABLE.filter(pc.field("year") >= 2021).select(["id", "text", "year", "kind"])
    assert told(pq.read_table(tmp_path / "out", partitioning=None)) == told(want)

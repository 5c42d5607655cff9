"""Rows into folders: what DuckDB, pyarrow and we read back, exactly once, in few open files."""

from __future__ import annotations

import datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.actors.client.outputs import Output
from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import ConfigurationError, DataError, FlowError
from penstock.engine.core.identity import Attempt, CheckpointId, CommitPermit, TaskId
from penstock.engine.core.operator import OperatorContext
from penstock.engine.sinks import file_writer
from penstock.engine.sinks.by_folder import folder_name
from penstock.engine.sinks.file_writer import restored_totals
from penstock.engine.sinks.output_folder import OutputFolder, totals_of
from penstock.engine.sinks.parquet import ParquetSink
from support.sinks import prepared_by

JOB = "delays"
ROWS = 5000
WORDS = ["a", "b c", "x=y/z", "50%", "é*?", "__HIVE_DEFAULT_PARTITION__", "", None]
TABLE = pa.table(
    {
        "id": range(ROWS),
        "kind": [WORDS[number % 8] for number in range(ROWS)],
        "day": [datetime.date(2024, 1, 1 + number % 3) if number % 10 else None for number in range(ROWS)],
        "text": [f"row {number}" for number in range(ROWS)],
    }
)
FIRST, SECOND = CheckpointId(1, 1), CheckpointId(1, 2)


class Nowhere:
    def emit(self, batch: Batch) -> None:
        raise AssertionError("a sink has no output")


def told(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


def write(table: pa.Table, folder: Path, *by: str, **options: object) -> ps.Job:
    flow = ps.Flow("write")
    flow.from_tables(table).write_parquet(folder, partition_by=by, **options)
    with ps.run_local(flow, audit="content") as job:
        job.wait()
    return job


def opened(config: ParquetSink, schema: pa.Schema, attempt: int = 1, restored: pa.Table | None = None):
    context = OperatorContext("write", TaskId("stage", 0), Attempt(1, attempt), 2, range(8), JOB)
    return config.build(context, [schema], restored)


def put(sink, table: pa.Table) -> None:
    for records in table.to_batches(max_chunksize=700):
        sink.process(0, Batch(records, Tag(0, 0, 0)), Nowhere())


@pytest.mark.parametrize("by", [("kind",), ("day", "kind"), ("kind", "day")])
def test_what_others_read(tmp_path: Path, by: tuple[str, ...]) -> None:
    job = write(TABLE, tmp_path / "out", *by)
    names = TABLE.schema.names
    columns = ", ".join(names)
    found = duckdb.sql(
        f"select {columns} from read_parquet('{tmp_path}/out/**/*.parquet', hive_partitioning=true, "
        "hive_types={'kind': varchar, 'day': date})"
        if "day" in by
        else f"select {columns} from read_parquet('{tmp_path}/out/**/*.parquet', hive_partitioning=true)"
    )
    assert sorted(found.fetchall(), key=repr) == told(TABLE)
    types = {"kind": pa.string(), "day": pa.date32()}
    told_by_folders = pa.schema([(name, types[name]) for name in by])
    rows = ds.dataset(tmp_path / "out", partitioning=ds.partitioning(told_by_folders, flavor="hive")).to_table()
    assert rows.num_rows == ROWS
    ours = ps.Flow("read").read_parquet(tmp_path / "out").to_arrow().select(names)
    assert told(ours) == told(TABLE)
    assert told(job.output().to_table()) == told(TABLE)
    assert job.output().to_table().schema == TABLE.schema
    assert [each.grade for each in job.audit().sinks] == ["proven"]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([True, None, False]),
        pa.array([-1, 2**63 - 1, None]),
        pa.array([2**64 - 1, 0, None], pa.uint64()),
        pa.array([datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)], pa.date64()),
        pa.array([1_704_110_400_000_005, None, 5], pa.timestamp("us")),
        pa.array([1_704_110_400_000, None, -1], pa.timestamp("ms", "UTC")),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.array(["a", None, "b"], pa.large_string()),
        pa.array([None, None, None], pa.decimal128(9, 2)),
    ],
    ids=lambda values: str(values.type),
)
def test_values_come_back_in_their_types(tmp_path: Path, values: pa.Array) -> None:
    table = pa.table({"k": values, "x": [1, 2, 3]})
    job = write(table, tmp_path / "out", "k")
    assert told(job.output().to_table()) == told(table)
    rows = ps.Flow("read").read_parquet(tmp_path / "out", hive_schema={"k": values.type}).to_arrow().select(["k", "x"])
    assert told(rows) == told(table)
    assert [each.grade for each in job.audit().sinks] == ["proven"]


def test_rows_stay_in_their_order_within_a_folder(tmp_path: Path) -> None:
    write(TABLE, tmp_path / "out", "kind", max_rows_per_file=150)
    for folder in (tmp_path / "out").glob("kind=*"):
        parts = [pq.read_table(file)["id"].to_pylist() for file in sorted(folder.glob("part-*"))]
        assert [len(part) for part in parts] == [150] * 4 + [25]
        ids = [id for part in parts for id in part]
        assert ids == sorted(ids)


def test_a_prepared_folder_is_committed_once_by_anyone(tmp_path: Path) -> None:
    config = ParquetSink(tmp_path, partition_by=["kind"], rows_per_file=300)
    first = opened(config, TABLE.schema)
    put(first, TABLE.slice(0, 3000))
    prepared, state = prepared_by(first, FIRST), first.settle(FIRST, first.snapshot())
    put(first, TABLE.slice(3000, 500))  # what comes after the cut is lost with the process
    for _ in range(2):
        assert not list(tmp_path.glob("kind=*")) or _, "nothing is visible before it is committed"
        config.committer(JOB).commit(CommitPermit(FIRST, tuple(prepared)))
        config.committer(JOB).clean([])
    again = opened(config, TABLE.schema, 2, state)
    put(again, TABLE.slice(3000))
    last, state = prepared_by(again, SECOND), again.settle(SECOND, again.snapshot())
    for _ in range(2):
        config.committer(JOB).commit(CommitPermit(SECOND, tuple(last)))
    config.committer(JOB).clean([])
    parts, foreign = OutputFolder(*config_place(config)).parts([JOB])
    assert not foreign
    assert totals_of(parts) == restored_totals(state)
    assert config.visible_rows(JOB) == ROWS
    rows = ps.Flow("read").read_parquet(tmp_path).to_arrow().select(TABLE.schema.names)
    assert told(rows) == told(TABLE)
    assert not (tmp_path / "_staging").exists()


def config_place(config: ParquetSink):
    return config.output.filesystem, config.output.folder


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "OPEN_FILES", 5)
    config = ParquetSink(tmp_path, partition_by=["id"])
    sink = opened(config, TABLE.schema)
    for _ in range(3):
        put(sink, TABLE.slice(0, 12))
        assert len(sink._open) == 5
    config.committer(JOB).commit(CommitPermit(FIRST, tuple(prepared_by(sink, FIRST))))
    assert len(list(tmp_path.glob("id=*/*"))) == 36
    assert config.visible_rows(JOB) == 36


def test_all_open_files_hold_as_much_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "BUFFER_BYTES", 20_000)
    sink = opened(ParquetSink(tmp_path, partition_by=["kind"]), TABLE.schema)
    put(sink, TABLE)
    assert sum(file.pending_bytes for file in sink._open.values()) < 20_000
    assert len(sink._open) == 8
    sink.close()
    assert not list(tmp_path.rglob("*.parquet"))


def test_an_output_without_rows_has_its_columns(tmp_path: Path) -> None:
    job = write(TABLE.slice(0, 0), tmp_path / "out", "day", "kind")
    assert ps.Flow("read").read_parquet(tmp_path / "out").schema.names == ["id", "text", "day", "kind"]
    assert job.output().to_table().equals(TABLE.slice(0, 0))


def test_spark_and_ray_are_sent_to_the_folder(tmp_path: Path) -> None:
    """Given a list of files they would leave the folders' columns out."""
    output = write(TABLE, tmp_path / "out", "kind").output()
    for given in (output, Output(str(tmp_path / "out"), None)):
        for handed in (given.to_ray_dataset, lambda given=given: given.to_spark(None)):
            with pytest.raises(ConfigurationError, match="has columns that only its folders tell"):
                handed()


@pytest.mark.parametrize(
    "values",
    [
        pa.array([b"ab"], pa.binary(2)),
        pa.array([b"ab"], pa.large_binary()),
        pa.array([b"a"]).dictionary_encode(),
        pa.array([0.5]).dictionary_encode(),
        pa.array([b"a" * 16], pa.uuid()),
        pa.array([None], pa.decimal128(5, -2)),
    ],
    ids=lambda values: str(values.type),
)
def test_types_that_folders_cannot_tell(tmp_path: Path, values: pa.Array) -> None:
    with pytest.raises(FlowError, match=r"partition_by: column 'k' has type .*"):
        ps.Flow("f").from_tables(pa.table({"k": values, "x": [1]})).write_parquet(tmp_path, partition_by="k")


def test_a_text_that_is_too_long_for_a_folder_is_an_error_at_once(tmp_path: Path) -> None:
    write(pa.table({"k": ["日" * 28, "a" * 253], "x": [1, 2]}), tmp_path / "fits", "k")
    for text in ("日" * 29, "a" * 254):
        with pytest.raises(DataError, match=r"the folder of rows in which 'k' is .* would have a name of"):
            write(pa.table({"k": [text], "x": [1]}), tmp_path / str(len(text)), "k")


def test_null_and_its_word_have_two_folders() -> None:
    names = [folder_name("a_b", value) for value in (None, "__HIVE_DEFAULT_PARTITION__", "", "a/b", "1.5-x_y")]
    assert names == [
        "a_b=__HIVE_DEFAULT_PARTITION__",
        "a_b=%5F_HIVE_DEFAULT_PARTITION__",
        "a_b=",
        "a_b=a%2Fb",
        "a_b=1.5-x_y",
    ]


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (["kidn"], "no column 'kidn'"),
        (["kind", "kind"], "names a column twice"),
        (["id", "kind", "text", "l", "_x"], "readers pass over folders whose names begin with '_'"),
        (["l"], "has type list"),
    ],
)
def test_what_is_refused(tmp_path: Path, by: list[str], message: str) -> None:
    table = TABLE.drop_columns(["day"]).append_column("l", pa.array([[1]] * ROWS)).append_column("_x", TABLE["id"])
    by = [name for name in by if name != "l"] if len(by) > 3 else by
    with pytest.raises(FlowError, match=message):
        ps.Flow("f").from_tables(table).write_parquet(tmp_path, partition_by=by)


def test_one_column_is_left(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match="names all columns"):
        ps.Flow("f").from_tables(TABLE.select(["id", "kind"])).write_parquet(tmp_path, partition_by=["id", "kind"])


def test_one_name_is_a_list_of_one(tmp_path: Path) -> None:
    flow = ps.Flow("f")
    flow.from_tables(TABLE).filter(pc.field("id") < 9).write_parquet(tmp_path / "out", partition_by="kind")
    with ps.run_local(flow) as job:
        job.wait()
    assert len(list((tmp_path / "out").glob("kind=*"))) == 8

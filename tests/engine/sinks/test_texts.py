"""CSV and JSON: what DuckDB and pyarrow read of them, each row once."""

from __future__ import annotations

import datetime
import gzip
import json
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import csv

import penstock as ps
from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import ConfigurationError, DataError, FlowError
from penstock.engine.core.identity import Attempt, CheckpointId, CommitPermit, TaskId
from penstock.engine.core.operator import OperatorContext
from penstock.engine.sinks.file_writer import restored_totals
from penstock.engine.sinks.output_folder import totals_of
from penstock.engine.sinks.texts import CsvSink, JsonSink
from support.sinks import prepared_by

ROWS = 3000
WORDS = ["a", "", None, 'say "x"', "two\nlines", "é,;\t", "null"]
TABLE = pa.table(
    {
        "id": pa.array([2**60 + number for number in range(ROWS)]),
        "word": [WORDS[number % 7] for number in range(ROWS)],
        "real": [number / 7 if number % 5 else None for number in range(ROWS)],
        "yes": [number % 2 == 0 for number in range(ROWS)],
        "day": [datetime.date(2024, 1, 1 + number % 30) for number in range(ROWS)],
        "price": pa.array([Decimal(number).scaleb(-2) for number in range(ROWS)], pa.decimal128(12, 2)),
        "at": pa.array([1_704_110_400_000_000 + number for number in range(ROWS)], pa.timestamp("us")),
        "kind": pa.array([f"k{number % 3}" for number in range(ROWS)]).dictionary_encode(),
    }
)
NESTED = TABLE.append_column(
    "inner", pa.array([{"list": [1, None], "when": datetime.date(2024, 1, 1)}] * (ROWS - 1) + [None])
)
FIRST, SECOND = CheckpointId(1, 1), CheckpointId(1, 2)
JOB = "delays"


class Nowhere:
    def emit(self, batch: Batch) -> None:
        raise AssertionError("a sink has no output")


def told(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


def write(table: pa.Table, how: str, folder: Path, **options: object) -> ps.Job:
    flow = ps.Flow("write")
    getattr(flow.from_tables(table), how)(folder, **options)
    with ps.run_local(flow, audit="content") as job:
        job.wait()
    return job


@pytest.mark.parametrize(
    "options",
    [{}, {"delimiter": ";"}, {"compression": "gzip"}, {"max_rows_per_file": 700, "compression": "zstd"}],
    ids=str,
)
def test_csv_is_what_duckdb_and_pyarrow_read(tmp_path: Path, options: dict[str, object]) -> None:
    job = write(TABLE, "write_csv", tmp_path / "out", **options)
    (sink,) = job.audit().sinks
    assert (sink.grade, sink.visible) == ("counted", ROWS)
    types = ", ".join(f"'{name}': '{type}'" for name, type in zip(TABLE.schema.names, SQL, strict=True))
    sql = f"select * from read_csv('{tmp_path}/out/*', delim='{options.get('delimiter', ',')}', columns={{{types}}}, "
    found = duckdb.sql(sql + "header=true, quote='\"', escape='\"', allow_quoted_nulls=false, parallel=false)")
    assert sorted(found.fetchall(), key=repr) == told(TABLE)
    schema = pa.schema([each.with_type(pa.string()) if each.name == "kind" else each for each in TABLE.schema])
    convert = csv.ConvertOptions(column_types=schema, strings_can_be_null=True, quoted_strings_can_be_null=False)
    convert.null_values = [""]
    parse = csv.ParseOptions(delimiter=str(options.get("delimiter", ",")), newlines_in_values=True)
    rows = [csv.read_csv(path, None, parse, convert) for path in (tmp_path / "out").glob("part-*")]
    assert told(pa.concat_tables(rows)) == told(TABLE)


SQL = ["bigint", "varchar", "double", "boolean", "date", "decimal(12,2)", "timestamp", "varchar"]


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"max_rows_per_file": 700}], ids=str)
def test_json_is_what_duckdb_reads(tmp_path: Path, options: dict[str, object]) -> None:
    job = write(NESTED, "write_json", tmp_path / "out", **options)
    (sink,) = job.audit().sinks
    assert (sink.grade, sink.visible) == ("counted", ROWS)
    inner = 'struct(list bigint[], "when" date)'
    types = ", ".join(f"'{name}': '{type}'" for name, type in zip(NESTED.schema.names, [*SQL, inner], strict=True))
    found = duckdb.sql(f"select * from read_json('{tmp_path}/out/*', format='newline_delimited', columns={{{types}}})")
    assert sorted(found.fetchall(), key=repr) == told(NESTED)


def test_lines_of_json(tmp_path: Path) -> None:
    write(NESTED.slice(1, 1), "write_json", tmp_path / "out")
    (part,) = (tmp_path / "out").glob("part-*.jsonl")
    assert part.read_text() == (
        '{"id":1152921504606846977,"word":"","real":0.14285714285714285,"yes":false,"day":"2024-01-02","price":0.01,'
        '"at":"2024-01-01 12:00:00.000001","kind":"k1","inner":{"list":[1,null],"when":"2024-01-01"}}\n'
    )


def test_csv_without_names(tmp_path: Path) -> None:
    table = TABLE.select(["word", "yes"])
    job = write(table.slice(0, 3), "write_csv", tmp_path / "out", header=False, compression="gzip")
    (part,) = (tmp_path / "out").glob("part-*.csv.gz")
    assert gzip.decompress(part.read_bytes()) == b'"a",true\n"",false\n,true\n'
    assert job.audit().sinks[0].visible == 3


@pytest.mark.parametrize("how", ["write_csv", "write_json"])
def test_folders(tmp_path: Path, how: str) -> None:
    job = write(TABLE, how, tmp_path / "out", partition_by=["kind", "yes"])
    assert job.audit().sinks[0].visible == ROWS
    folders = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").glob("kind=*/*"))
    assert folders == [f"kind=k{kind}/yes={yes}" for kind in range(3) for yes in ("false", "true")]
    (part,) = (tmp_path / "out" / "kind=k1" / "yes=true").glob("part-*")
    assert "kind" not in part.read_text().partition("\n")[0]


@pytest.mark.parametrize("how", ["write_csv", "write_json"])
@pytest.mark.parametrize("header", [True, False])
def test_no_rows(tmp_path: Path, how: str, header: bool) -> None:
    options = {"header": header} if how == "write_csv" else {}
    job = write(TABLE.slice(0, 0), how, tmp_path / "out", **options)
    (part,) = (tmp_path / "out").glob("part-*")
    names = ",".join(f'"{name}"' for name in TABLE.schema.names) + "\n"
    assert part.read_text() == (names if how == "write_csv" and header else "")
    assert (job.audit().sinks[0].visible, job.audit().clean) == (0, True)


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("make", [CsvSink, JsonSink])
def test_what_was_prepared_is_committed_once_by_anyone(tmp_path: Path, make: type, compression: str) -> None:
    config = make(tmp_path, rows_per_file=400, compression=compression)
    prepared, state = [], None
    for attempt, checkpoint, first in ((1, FIRST, 0), (2, SECOND, 1500)):
        context = OperatorContext("write", TaskId("stage", 0), Attempt(1, attempt), 2, range(8), JOB)
        sink = config.build(context, [TABLE.schema], state)
        for records in TABLE.slice(first, 1500).to_batches(max_chunksize=170):
            sink.process(0, Batch(records, Tag(0, 0, 0)), Nowhere())
        prepared, state = prepared_by(sink, checkpoint), sink.settle(checkpoint, sink.snapshot())
        if attempt == 1:  # dies with rows behind the cut
            sink.process(0, Batch(TABLE.slice(1500, 9).to_batches()[0], Tag(0, 0, 0)), Nowhere())
        for _ in range(2):
            config.committer(JOB).commit(CommitPermit(checkpoint, tuple(prepared)))
            config.committer(JOB).clean([])
    assert config.visible_rows(JOB) == ROWS
    parts, foreign = config.output.parts([JOB])
    assert (len(parts), foreign, config.output.others([JOB])) == (8, [], [])
    assert totals_of(parts) == restored_totals(state)
    assert not (tmp_path / "_staging").exists()


def test_what_json_has_no_word_for(tmp_path: Path) -> None:
    for values in (
        pa.array([1.0, float("nan")]),
        pa.array([[float("inf")], []]),
        pa.array([{"x": [float("-inf")]}, None]),
    ):
        with pytest.raises(DataError, match=r"JSON has no NaN and no infinity, and column 'x' has"):
            write(pa.table({"x": values}), "write_json", tmp_path / str(values.type))
    assert not list(tmp_path.rglob("*.jsonl"))


def test_an_empty_line_is_no_row(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a missing value of the only column 'x' would be an empty line"):
        write(pa.table({"x": [1, None]}), "write_csv", tmp_path / "out")
    assert write(pa.table({"x": ["", "a"]}), "write_csv", tmp_path / "texts").audit().sinks[0].visible == 2


@pytest.mark.parametrize(
    ("how", "type"),
    [
        ("write_csv", pa.list_(pa.int8())),
        ("write_csv", pa.struct([("a", pa.int8())])),
        ("write_csv", pa.binary()),
        ("write_json", pa.binary()),
        ("write_json", pa.list_(pa.struct([("b", pa.binary(3))]))),
        ("write_json", pa.map_(pa.string(), pa.int8())),
        ("write_json", pa.duration("s")),
    ],
    ids=str,
)
def test_types_that_a_text_cannot_hold(tmp_path: Path, how: str, type: pa.DataType) -> None:
    stream = ps.Flow("f").from_tables(pa.table({"x": pa.nulls(1, type)}))
    with pytest.raises(FlowError, match=f"column 'x' has type .*, which {how[6:].upper()} cannot hold"):
        getattr(stream, how)(tmp_path / "out")


def test_options_that_are_none(tmp_path: Path) -> None:
    stream = ps.Flow("f").from_tables(TABLE)
    with pytest.raises(FlowError, match="compression='snappy' does not fit"):
        stream.write_csv(tmp_path / "out", compression="snappy")
    with pytest.raises(ConfigurationError, match="compression is 'snappy'"):
        JsonSink(tmp_path, compression="snappy")
    for options in ({"delimiter": ""}, {"delimiter": '"'}, {"delimiter": "ab"}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(options))} is "):
            stream.write_csv(tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("delimiter", "values"),
    [
        (" ", pa.array([0], pa.timestamp("s"))),
        (":", pa.array([0], pa.time32("s"))),
        ("-", pa.array([0], pa.date32()).dictionary_encode()),
        ("-", pa.array([-1])),
        (".", pa.array([0.5])),
        ("1", pa.array([1])),
        ("e", pa.array([True])),
    ],
    ids=str,
)
def test_a_delimiter_that_values_have_within_them(tmp_path: Path, delimiter: str, values: pa.Array) -> None:
    stream = ps.Flow("f").from_tables(pa.table({"t": ["a"], "x": values}))
    with pytest.raises(FlowError, match=r"column 'x' .* may have it within them"):
        stream.write_csv(tmp_path / "out", delimiter=delimiter)
    texts = stream.cast({"x": pa.string()}) if not pa.types.is_dictionary(values.type) else stream.drop("x")
    texts.write_csv(tmp_path / "out", delimiter=delimiter)


def test_numbers_between_spaces(tmp_path: Path) -> None:
    write(TABLE.select(["id", "real", "price", "word"]), "write_csv", tmp_path / "out", delimiter=" ")
    (part,) = (tmp_path / "out").glob("part-*")
    rows = csv.read_csv(part, parse_options=csv.ParseOptions(delimiter=" ", newlines_in_values=True))
    assert rows["id"].to_pylist() == TABLE["id"].to_pylist()


@pytest.mark.parametrize("header", [True, False])
def test_rows_of_megabytes_are_counted(tmp_path: Path, header: bool) -> None:
    words = ["x" * 3_000_000, 'line\n"two"\n' * 300_000, "", "\n", '"']
    job = write(pa.table({"t": words, "n": range(5)}), "write_csv", tmp_path / "out", header=header)
    assert (job.audit().sinks[0].visible, job.audit().clean) == (5, True)


def test_an_object_of_json_has_each_name_once(tmp_path: Path) -> None:
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(FlowError, match="which JSON cannot hold: an object has each name once"):
        ps.Flow("f").from_tables(pa.table({"x": twice})).write_json(tmp_path / "out")


def test_a_line_is_one_object(tmp_path: Path) -> None:
    write(NESTED, "write_json", tmp_path / "out")
    (part,) = (tmp_path / "out").glob("part-*")
    assert [json.loads(line)["word"] for line in part.read_text().splitlines()] == TABLE["word"].to_pylist()

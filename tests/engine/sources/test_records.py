"""CSV, lines of JSON and of text, whole files: what DuckDB and pyarrow read, in parts, from any row, with bad rows."""

from __future__ import annotations

import bz2
import gzip
import json
import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import csv

import penstock as ps
from penstock.engine.core.errors import ConfigurationError, DataError, FlowError
from penstock.engine.core.source import Split
from penstock.engine.sources import lines, records
from penstock.engine.sources.csv import CsvSource
from penstock.engine.sources.records import BinarySource, TextSource

WORDS = ["a", "", None, 'say "x"', "two\nlines", "é,;\t", "null", "x" * 300]
OBJECTS = [
    {"id": number, "word": WORDS[number % 8], "real": number / 7, "list": [number] * (number % 3), "in": {"a": number}}
    for number in range(2000)
]


def told(table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def read(split: Split, start: int = 0) -> list[dict[str, object]]:
    return [row for batch in split.open(start) for row in batch.to_pylist()]


def write_lines(path: Path, objects: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress], ids=["plain", "gzip", "bzip2"])
def test_json_is_what_duckdb_reads(tmp_path: Path, pack: object) -> None:
    path = write_lines(tmp_path / "in.jsonl", OBJECTS)
    want = duckdb.sql(f"select * from read_json('{path}', format='newline_delimited')").fetchall()
    path.write_bytes(pack(path.read_bytes()))
    assert told(ps.Flow("f").read_json(path).to_arrow()) == want


@pytest.mark.parametrize("part", [1, 100, 1000, 5000, 10**9])
@pytest.mark.parametrize("block", [16, 700, 10**6])
def test_parts_of_a_file_are_all_of_it_once(tmp_path: Path, part: int, block: int, monkeypatch) -> None:
    """Wherever it is cut: lines are longer and shorter than parts and blocks."""
    monkeypatch.setattr(lines, "PART_BYTES", part)
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    rng = random.Random(part + block)
    texts = ["x" * rng.choice([0, 1, 3, 50, 1500]) for _ in range(40)]
    for content in ("\n".join(texts), "\n".join(texts) + "\n", "\r\n".join(texts)):
        path = tmp_path / "in.txt"
        path.write_bytes(content.encode())
        splits = TextSource(path).splits()
        assert len({split.id for split in splits}) == len(splits) == max(1, -(-len(content) // part))
        found = [row["text"] for split in splits for row in read(split)]
        assert found == content.replace("\r", "").removesuffix("\n").split("\n")
        for split in splits[:5]:
            assert [read(split, start) for start in (1, 5)] == [read(split)[start:] for start in (1, 5)]


def test_types_are_those_of_the_sample_or_given(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"a": 1, "b": None, "c": [None], "d": "2024-01-01"}, {"a": 2}])
    write_lines(tmp_path / "b.jsonl", [{"b": "x", "d": "2024-01-02"}])
    rows = ps.Flow("f").read_json(tmp_path, types={"a": pa.float64(), "d": pa.date32()})
    assert [str(type) for type in rows.schema.types] == ["double", "date32[day]", "string", "list<item: string>"]
    assert rows.select("a", "b").to_arrow().to_pylist() == [
        {"a": 1.0, "b": None},
        {"a": 2.0, "b": None},
        {"a": None, "b": "x"},
    ]
    assert ps.Flow("f").read_json(path, columns=["c"]).to_arrow().to_pylist() == [{"c": [None]}, {"c": None}]


def test_errors_name_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "PART_BYTES", 100)
    monkeypatch.setattr(records, "_SAMPLE_BYTES", 100)
    objects: list[dict[str, object]] = [{"a": number} for number in range(100)]
    for bad, reason in (
        ('{"a": "x"}', "JSON parse error"),
        ('{"b": 1}', "unexpected field"),
        ("{", "JSON parse error"),
    ):
        path = write_lines(tmp_path / "in.jsonl", objects)
        content = path.read_text().splitlines()
        content[76] = bad
        path.write_text("\n".join(content))
        with pytest.raises(DataError, match=rf"line 77 of {path} cannot be read: .*{reason}"):
            ps.Flow("f").read_json(path, types={"a": pa.int64()}).to_arrow()


def test_text_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"a\nb\n\xff\nc")
    with pytest.raises(DataError, match=r"line 3 of .*in\.txt cannot be read: Invalid UTF8"):
        ps.Flow("f").read_text(tmp_path / "in.txt").to_arrow()


def bad_json(path: Path, rng: random.Random) -> tuple[list[object], list[int]]:
    """Objects of which some cannot be read; what is good, and the numbers of the lines that are not."""
    content, good, wrong = [], list[object](), list[int]()
    for number in range(500):
        if rng.random() < 0.1:
            wrong.append(number + 1)
            content.append(rng.choice(['{"a": "x"}', "{", "nothing", '{"a": [1]}']))
        else:
            good.append(number)
            content.append(json.dumps({"a": number, "b": "y" * rng.randrange(9)}))
    path.write_text("\n".join(content))
    return good, wrong


@pytest.mark.parametrize("part", [11, 300, 10**9])
@pytest.mark.parametrize("block", [50, 10**6])
def test_bad_lines_of_json_are_kept_in_their_places(tmp_path: Path, part: int, block: int, monkeypatch) -> None:
    monkeypatch.setattr(lines, "PART_BYTES", part)
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    path = tmp_path / "in.jsonl"
    good, wrong = bad_json(path, random.Random(part))
    types = {"a": pa.int64(), "b": pa.string()}
    rows = kept(ps.Flow("f").read_json, path, types)
    assert [row["a"] for row in rows if row["_error"] is None] == good
    bad = [row["_error"] for row in rows if row["_error"] is not None]
    assert [each["line"] for each in bad] == wrong
    content = path.read_text().splitlines()
    assert [each["text"] for each in bad] == [content[line - 1] for line in wrong]
    assert {each["file"] for each in bad} == {"in.jsonl"}
    assert all(each["reason"] for each in bad)
    assert [each for each, row in enumerate(rows, 1) if row["_error"] is not None] == wrong


def kept(read_it, path: Path, types: dict[str, pa.DataType]) -> list[dict[str, object]]:
    """All rows with the bad ones, whatever is asked of them, and the good ones alone."""
    stream = read_it(path, types=types, on_error="keep")
    rows: list[dict[str, object]] = stream.to_arrow().to_pylist()
    some = stream.select("b", "_error").to_arrow().to_pylist()
    assert [row["_error"] for row in some] == [row["_error"] for row in rows], "nor by what is read of them"
    skipping = read_it(path, types=types, on_error="skip")
    assert skipping.schema.names == ["a", "b"]
    good = [{"a": row["a"], "b": row["b"]} for row in rows if row["_error"] is None]
    assert skipping.to_arrow().to_pylist() == good
    assert skipping.count() == len(good)
    assert skipping.select("b").to_arrow()["b"].to_pylist() == [row["b"] for row in good]
    return rows


@pytest.mark.parametrize("block", [20, 10**6])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "bad", [b"null", b"  null", b"null,", b'{"a": 1} null', b'{"a": 1}null', b'{"a": 1, "t": "\xff"}']
)
def test_what_ends_the_process_or_passes_in_arrow_is_a_bad_line(
    tmp_path: Path, bad: bytes, first: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    good = [b'{"a": 2, "t": "a null, {} null, null"}', b'{"a": null, "t": null}', '{"a":null,"t":"é"}'.encode()]
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join([bad, *good] if first else [*good, bad]))
    with pytest.raises(DataError, match=f"line {1 if first else 4} of .*in.jsonl cannot be read: JSON parse error"):
        ps.Flow("f").read_json(path).to_arrow()
    kept = ps.Flow("f").read_json(path, on_error="keep").to_arrow()
    want = [(2, "a null, {} null, null"), (None, None), (None, "é")]
    assert told(kept.filter(kept["_error"].is_null()).drop(["_error"])) == want
    assert kept["_error"].combine_chunks().field("line").drop_null().to_pylist() == [1 if first else 4]
    assert told(ps.Flow("f").read_json(path, on_error="skip").to_arrow()) == want


@pytest.mark.parametrize("block", [10, 10**6])
def test_an_object_in_several_lines_is_bad_wherever_blocks_are_cut(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    path = tmp_path / "in.jsonl"
    path.write_text('{"a": 1}\n\n  \n{"a":\n2\n}\n{"a": 3}\n\n{"a": 4}{"a": 5}')
    with pytest.raises(DataError, match=r"line 4 of .*in.jsonl cannot be read"):
        ps.Flow("f").read_json(path).to_arrow()
    kept = ps.Flow("f").read_json(path, on_error="keep").to_arrow()
    assert kept["a"].drop_null().to_pylist() == [1, 3, 4, 5]
    assert kept["_error"].combine_chunks().field("line").drop_null().to_pylist() == [4, 5, 6]


@pytest.mark.parametrize("type", [pa.map_(pa.string(), pa.int8()), pa.duration("s"), pa.uuid(), pa.float16()], ids=str)
def test_types_that_json_has_no_values_of(tmp_path: Path, type: pa.DataType) -> None:
    with pytest.raises(ConfigurationError, match=r"types: JSON has no values of type .*, as 'a' is"):
        ps.Flow("f").read_json(write_lines(tmp_path / "in.jsonl", [{"a": 1}]), types={"a": type})


@pytest.mark.parametrize("block", [40, 10**6])
def test_bad_rows_of_csv_are_kept_in_their_places(tmp_path: Path, block: int, monkeypatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    rng = random.Random(block)
    content, good, wrong, line = ["a,b"], list[int](), list[int](), 2
    for number in range(400):
        if rng.random() < 0.1:
            wrong.append(line)
            content.append(rng.choice(["x,y", "1", "1,2,3", '1.5,"two\nlines"']))
        else:
            good.append(number)
            content.append(f'{number},"{rng.choice(["", "two" + chr(10) + "lines", chr(34) * 2, ","])}"')
        line += 1 + content[-1].count("\n")
    path = tmp_path / "in.csv"
    path.write_text("\n".join(content) + "\n")
    rows = kept(ps.Flow("f").read_csv, path, {"a": pa.int64(), "b": pa.string()})
    assert [row["a"] for row in rows if row["_error"] is None] == good
    assert [row["_error"]["line"] for row in rows if row["_error"] is not None] == wrong
    with pytest.raises((ConfigurationError, DataError), match=rf"{path} cannot be read: .*Row #[0-9]+"):
        ps.Flow("f").read_csv(path, types={"a": pa.int64()}).to_arrow()


@pytest.mark.parametrize("seed", range(8))
def test_csv_by_blocks_is_csv_as_arrow_reads_it(tmp_path: Path, seed: int, monkeypatch) -> None:
    """Quotes at the beginning of a field, within it, doubled, and lines within quotes."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", 30)
    rng = random.Random(seed)
    fields = ["", "a", '5" pipe', 'say ""', '"q"', '"x\ny"', '"say ""x"""', '"a,b"', '""', 'é"']
    path = tmp_path / "in.csv"
    path.write_text(
        "\ufeff" * (seed % 2) + "a,b\n" + "".join(f"{rng.choice(fields)},{rng.choice(fields)}\n" for _ in range(60))
    )
    read_it = ps.Flow("f").read_csv
    types = {"a": pa.string(), "b": pa.string()}
    want = read_it(path, types=types).to_arrow()
    found = read_it(path, types=types, on_error="keep").to_arrow()
    assert found["_error"].null_count == len(found)
    assert told(found.drop_columns("_error")) == told(want)


def test_csv_without_quotes_is_read_in_parts(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lines, "PART_BYTES", 20)
    (tmp_path / "in.csv").write_text("a,b\n" + "".join(f'{number},"{number}\n' for number in range(30)))
    source = CsvSource(tmp_path / "in.csv", quote="", keeps_bad=True)
    splits = source.splits()
    assert len(splits) > 5
    assert [row["a"] for split in splits for row in read(split)] == list(range(30))


def test_a_record_without_an_end_is_an_error(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 100)
    monkeypatch.setattr(lines, "RECORD_BYTES", 1000)
    (tmp_path / "in.csv").write_text('a,b\n1,x\n2,"' + "1,y\n" * 1000)
    with pytest.raises(DataError, match="a record has more than 1,000 bytes"):
        ps.Flow("f").read_csv(tmp_path / "in.csv", on_error="skip", types={"b": pa.string()}).to_arrow()


def test_a_mark_that_a_file_begins_with_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbfa\nb")
    (tmp_path / "in.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\n')
    assert told(ps.Flow("f").read_text(tmp_path / "in.txt").to_arrow()) == [("a",), ("b",)]
    assert told(ps.Flow("f").read_json(tmp_path / "in.jsonl").to_arrow()) == [(1,)]


def test_bad_rows_are_of_the_audit_and_go_into_a_file_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    good, wrong = bad_json(path, random.Random(5))
    flow = ps.Flow("f")
    rows = flow.read_json(path, types={"a": pa.int64(), "b": pa.string()}, on_error="keep", name="rows")
    rows.filter("_error is null").drop("_error").write_parquet(tmp_path / "good")
    rows.filter("_error is not null").select(
        ps.col("_error").struct["line"].alias("line"), ps.col("_error").struct["text"].alias("text")
    ).write_json(tmp_path / "bad")
    with ps.run_local(flow, audit="content") as job:
        job.wait()
        assert job.audit().sources[0].grade == "proven"
        assert sorted(sink.visible for sink in job.audit().sinks) == sorted([len(good), len(wrong)])
    found = [json.loads(each) for file in (tmp_path / "bad").glob("part-*") for each in file.read_text().splitlines()]
    assert sorted(each["line"] for each in found) == wrong


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_csv_of_other_dialects_is_what_duckdb_reads(tmp_path: Path, pack: object) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(pack(b"1;'a;b';2.5\n2;'it''s';\n3;'two\nlines';-1\n"))
    rows = ps.Flow("f").read_csv(path, delimiter=";", quote="'", column_names=["n", "s", "r"])
    zipped = "gzip" if pack is gzip.compress else "none"
    want = duckdb.sql(
        f"select * from read_csv('{path}', delim=';', quote='''', escape='''', header=false, compression='{zipped}', "
        "columns={'n': 'bigint', 's': 'varchar', 'r': 'double'})"
    )
    assert told(rows.to_arrow()) == want.fetchall()
    (tmp_path / "plain.csv").write_text('a|b\n1|"x\n2|y"\n')
    plain = ps.Flow("f").read_csv(tmp_path / "plain.csv", delimiter="|", quote="")
    assert told(plain.to_arrow()) == [(1, '"x'), (2, 'y"')]


def test_columns_and_options_of_csv(tmp_path: Path) -> None:
    csv.write_csv(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / "in.csv")
    assert ps.Flow("f").read_csv(tmp_path / "in.csv", columns=["b"]).to_arrow().to_pylist() == [{"b": "x"}, {"b": "y"}]
    for options in ({"delimiter": ""}, {"delimiter": "ab"}, {"quote": "é"}, {"column_names": []}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(options))} is "):
            CsvSource(tmp_path / "in.csv", **options)
    assert CsvSource(tmp_path, quote="'", column_names=["a", "b"]).describe() != CsvSource(tmp_path).describe()


def test_what_is_no_json(tmp_path: Path) -> None:
    for content, message in (("a,b\n1,2\n", "is no file of JSON objects in lines"), ("\n", "has no rows that tell")):
        (tmp_path / "in.jsonl").write_text(content)
        with pytest.raises(ConfigurationError, match=message):
            ps.Flow("f").read_json(tmp_path / "in.jsonl")
    write_lines(tmp_path / "in.jsonl", [{"abc": 1}])
    with pytest.raises(FlowError, match="has no column 'abd'"):
        ps.Flow("f").read_json(tmp_path / "in.jsonl", columns=["abd"])
    (tmp_path / "in.jsonl").write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigurationError, match="is a zip archive"):
        ps.Flow("f").read_json(tmp_path / "in.jsonl")
    (tmp_path / "in.jsonl").write_text("")
    assert ps.Flow("f").read_json(tmp_path / "in.jsonl", types={"a": pa.int8()}).to_arrow().num_rows == 0


def test_fields_are_those_of_the_first_file_that_tells_some(tmp_path: Path) -> None:
    """Empty files are what Spark writes of partitions without rows; of bad rows alone there may be a file, too."""
    (tmp_path / "1.jsonl").write_text("\n")
    write_lines(tmp_path / "2.jsonl", [{"a": 1}])
    assert ps.Flow("f").read_json(tmp_path).to_arrow().to_pylist() == [{"a": 1}]
    assert ps.Flow("f").read_json(tmp_path, types={"b": pa.int8()}).to_arrow().to_pylist() == [{"b": None, "a": 1}]
    (tmp_path / "1.jsonl").write_text("nope\n")
    with pytest.raises(ConfigurationError, match=r"1.jsonl is no file of JSON objects"):
        ps.Flow("f").read_json(tmp_path)
    assert ps.Flow("f").read_json(tmp_path, on_error="skip").to_arrow().to_pylist() == [{"a": 1}]
    kept = ps.Flow("f").read_json(tmp_path, on_error="keep").to_arrow().to_pylist()
    assert [(each["a"], (each["_error"] or {}).get("text")) for each in kept] == [(None, "nope"), (1, None)]


def test_a_file_of_bad_lines_alone_is_kept_where_types_are_given(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text("nope\n")
    with pytest.raises(ConfigurationError, match=r"1.jsonl is no file of JSON objects"):
        ps.Flow("f").read_json(tmp_path, on_error="keep")
    [kept] = ps.Flow("f").read_json(tmp_path, types={"a": pa.int8()}, on_error="keep").to_arrow().to_pylist()
    assert (kept["a"], kept["_error"]["text"]) == (None, "nope")


def test_a_column_that_is_called_as_errors_are(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [{"_error": 1}])
    with pytest.raises(FlowError, match="have a column '_error'"):
        ps.Flow("f").read_json(path, on_error="skip")
    assert ps.Flow("f").read_json(path).to_arrow().to_pylist() == [{"_error": 1}]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": [1, None, 3],
            "s": ["", 'say "x"\n', None],
            "day": pa.array([1, None, 3], pa.date32()),
            "at": pa.array([1, None, 3], pa.timestamp("us")),
            "price": pa.array(["1.50", None, "2.25"]).cast(pa.decimal128(9, 2)),
        }
    )
    flow = ps.Flow("write")
    flow.from_tables(table).write_json(tmp_path / "json")
    with ps.run_local(flow) as job:
        job.wait()
    types = {name: type for name, type in zip(table.schema.names, table.schema.types, strict=True) if name != "price"}
    rows = (
        ps.Flow("read")
        .read_json(tmp_path / "json", types={**types, "price": pa.float64()})
        .cast({"price": pa.decimal128(9, 2)})
    )
    assert rows.to_arrow().select(table.schema.names).to_pylist() == table.to_pylist()


def test_files_are_rows(tmp_path: Path) -> None:
    content = {f"{number % 3}/{number:03}.bin": bytes([number % 256]) * number for number in range(150)}
    for name, data in content.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    rows = ps.Flow("f").read_binary(tmp_path)
    assert told(rows.to_arrow()) == sorted(content.items())
    assert told(rows.select("path").to_arrow()) == [(name,) for name in sorted(content)]
    assert rows.count() == 150
    splits = BinarySource(tmp_path).splits()
    assert [split.rows for split in splits] == [64, 64, 22]
    assert read(splits[1], 60) == read(splits[1])[60:]


def test_few_bytes_of_files_are_in_memory_at_once(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / str(number)).write_bytes(b"x" * 3_000_000)
    (split,) = BinarySource(tmp_path).splits()
    assert max(batch.nbytes for batch in split.open(0)) < split.open_bytes < 20_000_000

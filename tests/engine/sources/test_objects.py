"""Files of a source that are objects: known by their ETags when they are listed, and read under them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import csv, ipc, parquet

from penstock.engine.core.errors import ConfigurationError, DataError
from penstock.engine.core.source import Split
from penstock.engine.files.listing import InputFile, reason_against
from penstock.engine.files.paths import list_files
from penstock.engine.sources.csv import CsvSource
from penstock.engine.sources.fed import file_split, listing_of
from penstock.engine.sources.ipc import IpcSource
from penstock.engine.sources.parquet import ParquetSource
from support.bucket_twin import BucketTwin


def table(first: int, rows: int = 10) -> pa.Table:
    return pa.table({"n": pa.array(range(100_000 + first, 100_000 + first + rows), pa.int64())})


def as_parquet(rows: pa.Table) -> bytes:
    file = io.BytesIO()
    parquet.write_table(rows, file, use_dictionary=False, compression="none", write_statistics=False)
    return file.getvalue()


def as_csv(rows: pa.Table) -> bytes:
    file = io.BytesIO()
    csv.write_csv(rows, file)
    return file.getvalue()


def as_ipc(rows: pa.Table) -> bytes:
    file = io.BytesIO()
    with ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    return file.getvalue()


def as_stream(rows: pa.Table) -> bytes:
    file = io.BytesIO()
    with ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows)
    return file.getvalue()


KINDS: dict[str, tuple[Callable[[pa.Table], bytes], Callable[[str], Any]]] = {
    "parquet": (as_parquet, ParquetSource),
    "filtered": (as_parquet, lambda url: ParquetSource(url, filter=pc.field("n") >= 0)),
    "csv": (as_csv, CsvSource),
    "arrow": (as_ipc, IpcSource),
    "arrows": (as_stream, IpcSource),
}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def planned(buckets: BucketTwin, bucket: str, kind: str) -> list[Split]:
    """The splits of three objects, as another process has them."""
    write, source = KINDS[kind]
    for number in range(3):
        buckets.put(f"{bucket}/in/{number}", write(table(number * 10)))
    splits: list[Split] = pickle.loads(pickle.dumps(source(f"s3://{bucket}/in").splits()))
    return splits


def rows_of(split: Split) -> list[int]:
    return [number - 100_000 for batch in split.open(0) for number in batch.column("n").to_pylist()]


def test_globs_of_objects(buckets: BucketTwin, bucket: str, kind: str) -> None:
    write, source = KINDS[kind]
    for number, name in enumerate(("a=1/x", "a=2/y", "b/x", "_c/x")):
        buckets.put(f"{bucket}/in/{name}", write(table(number * 10)))

    def first(pattern: str) -> list[int]:
        return [rows_of(split)[0] for split in source(f"s3://{bucket}/in/{pattern}").splits()]

    assert first("a=*") == first("a=*/*") == [0, 10]
    assert first("a=1*") == first("a=[1]/x") == [0]
    assert first("b/**") == [20]
    with pytest.raises(ConfigurationError, match="matches no data files"):
        first("c*")


def test_object_that_was_exchanged_since_it_was_planned_is_named(buckets: BucketTwin, bucket: str, kind: str) -> None:
    splits = planned(buckets, bucket, kind)
    before = buckets.objects[f"{bucket}/in/1"]
    after = buckets.put(f"{bucket}/in/1", KINDS[kind][0](table(90)))
    assert (len(after.data), after.modified) == (len(before.data), before.modified), "only the ETag tells"
    assert rows_of(splits[0]) == list(range(10))
    with pytest.raises(DataError, match=f"{bucket}/in/1 is another object than when the job was planned") as caught:
        rows_of(splits[1])
    assert "write new data to new files" in caught.value.remedy
    buckets.put(f"{bucket}/in/1", before.data)  # the same bytes have the same ETag, whenever they came
    assert rows_of(splits[1]) == list(range(10, 20))


def test_object_that_is_gone_is_an_error_that_is_final(buckets: BucketTwin, bucket: str, kind: str) -> None:
    splits = planned(buckets, bucket, kind)
    del buckets.objects[f"{bucket}/in/1"]
    with pytest.raises(DataError, match=f"{bucket}/in/1 was there when the job was planned and is gone"):
        rows_of(splits[1])


def test_opening_asks_for_nothing_but_bytes_under_a_condition(buckets: BucketTwin, bucket: str, kind: str) -> None:
    splits = planned(buckets, bucket, kind)
    buckets.requests.clear()
    rows_of(splits[2])
    asked = {(method, key) for method, key, _ in buckets.requests}
    assert asked == {("GET", f"{bucket}/in/2")}
    assert len(buckets.requests) <= 2


def test_object_that_is_exchanged_between_two_pieces_is_noticed(buckets: BucketTwin, bucket: str) -> None:
    def stored(first: int) -> bytes:
        file = io.BytesIO()
        rows = pa.table({"n": pa.array(range(first, first + 3_000_000), pa.int64())})
        parquet.write_table(rows, file, row_group_size=1_000_000, use_dictionary=False, compression="none")
        return file.getvalue()

    buckets.put(f"{bucket}/in/large", stored(0))
    (split,) = ParquetSource(f"gs://{bucket}/in", split_by="file").splits()
    batches = split.open(0)
    assert next(batches).column("n")[0].as_py() == 0
    buckets.put(f"{bucket}/in/large", stored(7))
    with pytest.raises(DataError, match="large is another object than when the job was planned"):
        list(batches)


def test_object_that_is_exchanged_while_the_job_is_planned_is_named(buckets: BucketTwin, bucket: str) -> None:
    buckets.put(f"{bucket}/in/0", as_parquet(table(0)))
    source = ParquetSource(f"s3://{bucket}/in", files=list_files((f"s3://{bucket}/in",)))
    buckets.put(f"{bucket}/in/0", as_parquet(table(10)))
    with pytest.raises(ConfigurationError, match="in/0 is another object than when the job was planned"):
        source.splits()


def test_hidden_objects_and_folders_are_not_data(buckets: BucketTwin, bucket: str) -> None:
    buckets.page = 2
    for name in ("b/2", "a", "b/1", "_SUCCESS", ".x", "_staging/y", "b/", "c.d"):
        buckets.put(f"{bucket}/in/{name}", b"" if name.endswith("/") else b"x")
    buckets.put(f"{bucket}/inner", b"x")
    assert [file.id for file in list_files((f"s3://{bucket}/in",))] == ["a", "b/1", "b/2", "c.d"]
    (one,) = list_files((f"s3://{bucket}/in/b/1",))
    assert (one.id, one.version) == ("1", buckets.objects[f"{bucket}/in/b/1"].tag)


def test_split_that_somebody_adds_is_known_by_its_etag(buckets: BucketTwin, bucket: str) -> None:
    url = f"s3://{bucket}/in/0.parquet"
    first = buckets.put(f"{bucket}/in/0.parquet", as_parquet(table(0)))
    before = listing_of(url)
    split = file_split("0", url, table(0).schema)
    buckets.put(f"{bucket}/in/0.parquet", as_parquet(table(50)))
    assert listing_of(url) != before
    with pytest.raises(DataError, match="is another one than when it was added"):
        list(split.open(0))
    buckets.put(f"{bucket}/in/0.parquet", first.data)
    assert listing_of(url) == before


def test_etags_decide_where_both_are_known() -> None:
    def unread(kind: object) -> str:
        raise AssertionError(kind)

    known = InputFile("a", 10, 1, version='"x"')
    assert reason_against(known, InputFile("a", 10, 2, version='"x"'), unread, thorough=True) is None
    found = reason_against(known, InputFile("a", 10, 1, version='"y"'), unread)
    assert found is not None
    assert 'its ETag was "x" and is "y" now' in found.text
    assert not found.vouch, "no touch makes it the same"
    assert reason_against(InputFile("a", 10, 1), InputFile("a", 10, 1, version='"y"'), unread) is None

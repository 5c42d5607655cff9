"""Columns of Parquet files in a bucket: decoded as those of local files, of what is wanted alone, fetched together."""

from __future__ import annotations

import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.engine.kernels.page_library import page_library
from penstock.engine.operators.rowwise.filter import Filter
from penstock.engine.sources.far_columns import PIECE_BYTES, FarBytes
from penstock.engine.sources.parquet import ParquetSource
from penstock.engine.sources.picking import Pick, PickedRows
from support.bucket_twin import BucketTwin

pytestmark = pytest.mark.skipif(page_library() is None, reason="pyarrow reads whole row groups")


def stored(rows: int, **options: Any) -> bytes:
    sink, chance = io.BytesIO(), random.Random(rows)
    columns = {
        "n": pa.array(range(rows), pa.int64()),
        "word": [f"word {chance.randrange(40)}" for _ in range(rows)],
        "text": [f"{each} " * chance.randrange(20) for each in range(rows)],
        "share": [None if chance.random() < 0.1 else each / 7 for each in range(rows)],
    }
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


def planned(buckets: BucketTwin, bucket: str, content: bytes, columns: list[str] | None = None, **options: Any) -> Any:
    buckets.put(f"{bucket}/in/0", content)
    source = ParquetSource(f"s3://{bucket}/in", columns, **options)
    splits = source.splits()
    buckets.requests.clear()
    return source, splits


def chunks_of(
    source: ParquetSource, splits: Any, text: str = "", start: int = 0
) -> list[tuple[tuple[int, ...], list[Any]]]:
    found = []
    for split in splits:
        conditions = (Filter(text).build(None, [source.schema], None).condition(source.schema),) if text else ()
        pick = Pick(source.schema, conditions) if text else None
        for chunk in split.column_stream(start, pick, False).chunks(None):
            picked = chunk if isinstance(chunk, PickedRows) else PickedRows(chunk, (chunk.num_rows,))
            found.append((picked.counts, picked.records.to_pylist()))
    return found


@pytest.mark.parametrize("columns", [None, ["n", "word"], ["share", "text"]])
@pytest.mark.parametrize("text", ["", "{} * 3 > 500", "{} between 60 and 70"])
def test_columns_are_those_of_the_same_file_nearby(buckets: BucketTwin, bucket: str, tmp_path, columns, text) -> None:
    text = text.format("share" if columns == ["share", "text"] else "n")
    for content in (stored(2000, row_group_size=600), stored(700, data_page_size=500, write_page_index=True)):
        (tmp_path / "0").write_bytes(content)
        for split_by in ("file", "row group"):
            near = ParquetSource(tmp_path, columns, split_by=split_by)
            far, splits = planned(buckets, bucket, content, columns, split_by=split_by)
            for start in (0, 150):
                wanted = chunks_of(near, near.splits(), text, start)
                assert chunks_of(far, splits, text, start) == wanted


def test_columns_of_a_row_group_are_fetched_together(buckets: BucketTwin, bucket: str) -> None:
    content = stored(60_000, compression="none")
    source, splits = planned(buckets, bucket, content, ["n", "share"])
    assert len(chunks_of(source, splits)[0][1]) == 60_000
    assert len(buckets.requests) == 2  # between them lies the text, which nobody wants


def test_row_group_that_no_row_passes_is_not_fetched(buckets: BucketTwin, bucket: str) -> None:
    source, splits = planned(buckets, bucket, stored(60_000, row_group_size=20_000), ["n", "share"])
    found = chunks_of(source, splits, "n < 10")
    assert [(counts, len(rows)) for counts, rows in found] == [((20_000, 10), 10), ((20_000, 0), 0), ((20_000, 0), 0)]
    assert len(buckets.requests) == 2


def test_long_ranges_are_fetched_in_pieces_and_near_ones_as_one() -> None:
    asked: list[tuple[int, int]] = []

    class File:
        size = 10 * PIECE_BYTES

        def parts(self, opened: object, ranges: list[tuple[int, int]]) -> list[bytes]:
            asked.extend(ranges)
            return [bytes(end - begin) for begin, end in ranges]

    held: Any = FarBytes(File(), None)  # type: ignore[arg-type]
    held.expect(
        0, [(PIECE_BYTES + 100, 2 * PIECE_BYTES + 200), (100, PIECE_BYTES + 50), (9 * PIECE_BYTES, 11 * PIECE_BYTES)]
    )
    assert asked == [
        (100, PIECE_BYTES + 100),
        (PIECE_BYTES + 100, 2 * PIECE_BYTES + 100),
        (2 * PIECE_BYTES + 100, 2 * PIECE_BYTES + 200),
        (9 * PIECE_BYTES, 10 * PIECE_BYTES),
    ]
    memory = bytearray(300)
    assert held.copy(2 * PIECE_BYTES - 100, memoryview(memory))
    assert not held.copy(2 * PIECE_BYTES, memoryview(memory))
    held.expect(0, [(150, 900)])
    assert len(asked) == 4
    held.forget(0)
    assert not held.copy(100, memoryview(memory)[:10])

"""Rows with which a function raises: left out, or kept with the reason, whatever stands beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import FlowError, UserCodeError

ROWS, BAD = 1000, (0, 7, 8, 500, 999)
GIVEN = pa.table({"id": range(ROWS)})
SCHEMA = pa.schema([pa.field("twice", pa.int64(), nullable=False)])


def twice(batch: pa.RecordBatch) -> dict[str, list[int]]:
    ids = batch["id"].to_pylist()
    for number in ids:
        if number in BAD:
            raise ValueError(f"no {number}")
    return {"twice": [2 * number for number in ids]}


def rows() -> ps.Stream:
    return ps.Flow("bad").from_tables(GIVEN)


GOOD = [2 * number for number in range(ROWS) if number not in BAD]


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("batch_size", [None, 64])
def test_bad_rows_are_kept_in_their_places_or_left_out(batch_size: int | None, concurrency: int) -> None:
    how = {"batch_size": batch_size, "concurrency": concurrency}
    kept = rows().map_batches(twice, SCHEMA, on_error="keep", **how).to_arrow()
    assert kept["twice"].to_pylist() == [None if number in BAD else 2 * number for number in range(ROWS)]
    told = [each for each in kept["_error"].to_pylist() if each is not None]
    assert [each["reason"] for each in told] == [f"ValueError: no {number}" for number in BAD]
    assert [json.loads(each["row"]) for each in told] == [{"id": number} for number in BAD]
    left = rows().map_batches(twice, SCHEMA, on_error="skip", **how).to_arrow()
    assert left.column_names == ["twice"]
    assert left["twice"].to_pylist() == GOOD
    with pytest.raises(UserCodeError, match="no 0"):
        rows().map_batches(twice, SCHEMA, **how).to_arrow()


def test_rows_of_a_function_of_rows_are_left_out_and_the_first_good_one_tells_the_types() -> None:
    def each(row: dict[str, int]) -> list[dict[str, int]]:
        if row["id"] in BAD:
            raise KeyError(row["id"])
        return [{"twice": 2 * row["id"]}] * (row["id"] % 3)

    found = rows().flat_map(each, on_error="skip").to_arrow()
    assert found["twice"].to_pylist() == [2 * n for n in range(ROWS) if n not in BAD for _ in range(n % 3)]


def test_dead_letters_are_a_sink_of_the_job(tmp_path: Path) -> None:
    checked = rows().map_batches(twice, SCHEMA, on_error="keep")
    checked.filter("_error is not null").write_json(tmp_path / "dead")
    checked.filter("_error is null").drop("_error").write_parquet(tmp_path / "good")
    with ps.run_local(checked.flow, parallelism=2) as job:
        job.wait(60)
        assert {sink.rows for sink in job.audit().sinks} == {len(BAD), len(GOOD)}
    lines = [line for path in (tmp_path / "dead").glob("part-*") for line in path.read_text().splitlines()]
    assert sorted(json.loads(json.loads(line)["_error"]["row"])["id"] for line in lines) == list(BAD)


def test_what_the_function_gives_must_fit_all_the_same() -> None:
    with pytest.raises(ps.errors.DataError, match="no column 'twice'"):
        rows().map_batches(lambda batch: {"id": batch["id"]}, SCHEMA, on_error="skip").to_arrow()
    with pytest.raises(FlowError, match="_error"):
        rows().map_batches(twice, pa.schema({"_error": pa.int64()}), on_error="keep")


def test_bytes_and_values_that_are_no_json_are_told() -> None:
    given = pa.table({"image": [b"123"], "day": pa.array([0], pa.date32())})

    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise OSError("no image")

    (found,) = ps.Flow("bad").from_tables(given).map_batches(fail, SCHEMA, on_error="keep").to_arrow().to_pylist()
    assert json.loads(found["_error"]["row"]) == {"image": "3 bytes", "day": "1970-01-01"}

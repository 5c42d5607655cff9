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
        audit = job.audit()
        assert {sink.rows for sink in audit.sinks} == {len(BAD), len(GOOD)}
        assert [(each.of, each.rows, each.left_out) for each in audit.bad] == [("map-batches-1", len(BAD), False)]
        assert f"  bad      map-batches-1: {len(BAD)} rows kept\n" in str(audit)
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


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no \udc80"), r"ValueError: no \udc80"),
        (SpeechlessError(), "SpeechlessError: (it cannot be printed)"),
    ],
)
def test_a_row_is_bad_whatever_the_error_says(error: Exception, reason: str) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise error

    (found,) = rows().limit(1).map_batches(fail, SCHEMA, on_error="keep").to_arrow().to_pylist()
    assert found["_error"]["reason"] == reason
    assert rows().limit(1).map_batches(fail, SCHEMA, on_error="skip").count() == 0


def test_keys_with_whose_rows_a_function_raises() -> None:
    def total(rows: pa.RecordBatch) -> dict[str, list[int]]:
        twice(rows)
        return {"k": rows["k"][:1].to_pylist(), "rows": [rows.num_rows]}

    rows = pa.table({"k": [n // 100 for n in range(ROWS)], "id": range(ROWS)})
    groups = ps.Flow("keys").from_tables(rows).group_by("k")
    schema = pa.schema({"k": pa.int64(), "rows": pa.int64()})
    good = [{"k": k, "rows": 100} for k in range(10) if not {100 * k + n for n in range(100)}.intersection(BAD)]
    assert groups.map_groups(total, schema, on_error="skip").to_arrow().to_pylist() == good
    kept = groups.map_groups(total, schema, on_error="keep").to_arrow().to_pylist()
    bad = [json.loads(each["_error"]["row"]) for each in kept if each["_error"] is not None]
    assert [each["id"][0] // 100 for each in bad] == [0, 5, 9]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_bad_rows_of_sources_and_functions_are_in_the_audit_behind_a_restart_too(
    parallelism: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is counted once, whatever has been counted before the cut that the job goes on from."""
    for part in range(8):
        lines = [str(n) if n % 10 else "bad" for n in range(part * 1000, part * 1000 + 1000)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["id", *lines, ""]))

    def flow() -> ps.Flow:
        made = ps.Flow("counted", lanes=4, round_rows=50)
        rows = made.read_csv(
            [tmp_path / f"{part}.csv" for part in range(8)],
            types={"id": pa.int64()},
            on_error="skip",
            name="lines",
        )
        rows.flat_map(odd, schema=SCHEMA, on_error="skip", name="odd").write_parquet(tmp_path / "out")
        return made

    checkpoints = ps.Checkpoints(tmp_path / "state", every="50ms")
    with ps.run_local(flow(), parallelism=parallelism, checkpoints=checkpoints, rate=1000) as job:
        job.wait_until(lambda _: all(each.rows for each in job.audit().bad), 60)
        assert 0 < job.audit().bad[0].rows < 800
    with ps.run_local(flow(), parallelism=parallelism, checkpoints=checkpoints) as job:
        found = job.wait(60).audit()
    assert {each.of: (each.rows, each.left_out) for each in found.bad} == {"lines": (800, True), "odd": (800, True)}
    assert found.sinks[0].rows == 3200
    told = [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]
    assert told == [f"job counted: {of} has left out 800 rows as bad ones (on_error)" for of in ("lines", "odd")]


def odd(row: dict[str, int]) -> list[dict[str, int]]:
    if row["id"] % 10 == 1:
        raise ValueError("one")
    return [{"twice": row["id"]}] * (row["id"] % 2)

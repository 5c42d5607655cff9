"""Functions of a user as a stream's methods: types without a schema, groups, stages of their own, order in a job."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.core.errors import DataError, FlowError, UserCodeError
from penstock.engine.planner.pipelines import plan_job

ROWS = pa.table({"k": ["a", "b", None, "a"] * 50, "x": list(range(200))})
BATCH = pa.schema([("x", pa.int64())])


def stream(rows: pa.Table = ROWS, parts: int = 4) -> ps.Stream:
    size = -(-rows.num_rows // parts)
    return ps.Flow("calls", lanes=2).from_tables([rows.slice(n * size, size) for n in range(parts)], name="rows")


def images(arrays: dict[str, Any]) -> dict[str, Any]:
    return {"x": arrays["x"], "image": np.zeros((len(arrays["x"]), 2, 3), np.float32) + arrays["x"][:, None, None]}


def means(tensors: dict[str, Any]) -> dict[str, Any]:
    return {"mean": tensors["image"].mean(dim=(1, 2)), "x": tensors["x"]}


def test_types_are_told_by_what_the_first_rows_become() -> None:
    made = stream().map_batches(images, batch_format="numpy")
    assert made.schema == pa.schema([("x", pa.int64()), ("image", pa.fixed_shape_tensor(pa.float64(), (2, 3)))])
    shapes = [arrays["image"].shape for arrays in made.iter_batches(80, batch_format="numpy")]
    assert shapes == [(80, 2, 3), (80, 2, 3), (40, 2, 3)]


def test_tensors_pass_exchanges_files_and_torch(tmp_path: Path) -> None:
    made = stream().map_batches(images, batch_format="numpy").partition_by("x")
    made.write_parquet(tmp_path / "out")
    with ps.run_local(made.flow, parallelism=2) as job:
        job.wait(60)
    read = ps.Flow("read").read_parquet(tmp_path / "out")
    assert read.schema.field("image").type == pa.fixed_shape_tensor(pa.float64(), (2, 3))
    found = read.map_batches(means, batch_format="torch", batch_size=30).to_arrow()
    assert found["mean"].to_pylist() == found["x"].to_pylist()
    assert sorted(found["x"].to_pylist()) == list(range(200))


def nothing(records: pa.RecordBatch) -> None:
    return None


def absent(records: pa.RecordBatch) -> dict[str, Any]:
    return {"x": [None] * records.num_rows}


def fails(records: pa.RecordBatch) -> Any:
    raise ValueError("bad")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (nothing, "the first rows become NoneType"),
        (absent, "column 'x' has no value in what the first rows become"),
        (fails, "raised ValueError.*: bad"),
    ],
)
def test_what_the_first_rows_do_not_tell_has_to_be_said(function: Any, why: str) -> None:
    with pytest.raises(FlowError, match=rf"what {function.__name__} gives is not known: .*{why}") as found:
        stream().map_batches(function)
    assert "schema=" in found.value.remedy


def test_without_rows_a_schema_has_to_be_said() -> None:
    with pytest.raises(FlowError, match="there are no rows to call it with"):
        stream(ROWS.slice(0, 0), 1).map_batches(images)
    with pytest.raises(FlowError, match="its rows are fed"):
        ps.Flow("fed").from_split_sets(BATCH, name="in").map_batches(images)


def unbuildable() -> type:
    class Model:
        def __init__(self) -> None:
            raise RuntimeError("no model here")

        def __call__(self, given: Any) -> Any:
            return given

    return Model


def test_a_class_that_cannot_be_built_is_the_users_error_before_the_job_begins() -> None:
    with pytest.raises(UserCodeError, match=r"Model could not be built[\s\S]*no model here"):
        stream().map_batches(unbuildable())


def twice(row: dict[str, Any], plus: int) -> Iterator[dict[str, Any]]:
    yield {"x": row["x"] + plus}
    yield {"x": row["x"] + plus}


def test_flat_map_makes_rows_of_each_row() -> None:
    made = stream().flat_map(twice, fn_kwargs={"plus": 1})
    assert made.schema == BATCH
    assert made.to_arrow()["x"].to_pylist() == [1 + value // 2 for value in range(400)]


def of_group(arrays: dict[str, Any]) -> dict[str, Any]:
    return {"k": arrays["k"][:1], "rows": [len(arrays["x"])], "ascending": [bool((np.diff(arrays["x"]) > 0).all())]}


@pytest.mark.parametrize("options", [{}, {"exchange": "key"}])
def test_map_groups_gets_all_rows_of_a_key_in_their_order(options: Any) -> None:
    made = stream().group_by("k", **options).map_groups(of_group, batch_format="numpy")
    found = sorted(made.to_arrow().to_pylist(), key=lambda row: str(row["k"]))
    assert found == [
        {"k": None, "rows": 50, "ascending": True},
        {"k": "a", "rows": 100, "ascending": True},
        {"k": "b", "rows": 50, "ascending": True},
    ]


def test_map_groups_takes_keys_that_are_computed() -> None:
    made = (
        stream()
        .group_by((ps.col("x") % 2).alias("odd"))
        .map_groups(
            lambda rows: {"odd": rows["odd"].slice(0, 1), "n": [len(rows["x"])]},
            pa.schema([("odd", pa.int64()), ("n", pa.int64())]),
        )
    )
    assert made.sort("odd").to_arrow().to_pydict() == {"odd": [0, 1], "n": [100, 100]}


def unequally_slow(arrays: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.002 * (int(arrays["x"][0]) % 3))
    return {"x": arrays["x"]}


@pytest.mark.parametrize("threads", [0, 2])
def test_rows_of_calls_at_once_come_in_their_order_in_a_job(threads: int) -> None:
    made = stream().map_batches(unequally_slow, BATCH, batch_format="numpy", batch_size=7, concurrency=4)
    made.collect("found")
    with ps.run_local(made.flow, threads=threads) as job:
        job.wait(60)
        found = job.result("found")["x"].to_pylist()
    assert found == made.to_arrow()["x"].to_pylist(), "a look and a job"
    assert sorted(found) == list(range(200))


def test_a_job_that_is_stopped_in_the_middle_of_calls_makes_them_again(tmp_path: Path) -> None:
    def flow() -> ps.Flow:
        made = stream().map_batches(unequally_slow, BATCH, batch_format="numpy", batch_size=2, concurrency=4)
        made.write_parquet(tmp_path / "out", name="out")
        return made.flow

    options: dict[str, Any] = {"checkpoints": ps.Checkpoints(tmp_path / "state", every="1ms"), "name": "calls"}
    with ps.run_local(flow(), **options) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2 or status.is_over, 60)
    with ps.run_local(flow(), **options) as job:
        assert job.wait(60).audit().clean
    assert sorted(pq.read_table(tmp_path / "out")["x"].to_pylist()) == list(range(200))


def test_what_asks_for_resources_is_a_stage_of_its_own() -> None:
    made = stream().map_batches(images, batch_format="numpy", num_gpus=1, memory=2**30)
    made.collect("out")
    plan = plan_job(made.flow, 2)
    asked = {name: str(stage.resources) for name, stage in plan.stages.items()}
    assert asked == {"rows": "nothing", "forward-1": "1 GPU, 1.0 GiB memory"}
    assert plan.stages["forward-1"].resources.memory == 2**30


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"x": 5}, "no column: 'int' object"),
        ({"x": [object()]}, "no column: Could not convert"),
        ({"x": [np.ones((2, 2)), np.ones((3, 2))]}, "no column: all input arrays"),
        ({0: [1]}, "a column is called 0"),
        ({"x": [[], []]}, "column 'x' has no value"),
        ({"x": [{"a": None}]}, "column 'x' has no value"),
    ],
)
def test_what_tells_no_types_is_an_error_that_asks_for_the_schema(given: dict[Any, Any], why: str) -> None:
    with pytest.raises(FlowError, match=why) as told:
        stream().map_batches(lambda _: given)
    assert told.value.remedy == "say it: schema=pa.schema({...})"


def test_whole_numbers_with_nulls_are_refused_where_a_frame_would_change_them() -> None:
    rows = pa.table({"x": pa.array([2**53, None, 1])})
    assert stream(rows, 1).map_batches(lambda frame: frame, BATCH, batch_format="pandas").to_arrow() == rows
    rows = pa.table({"x": pa.array([2**53 + 1, None, 1])})
    with pytest.raises(DataError, match=r"column 'x' is int64 with nulls"):
        stream(rows, 1).map_batches(lambda frame: frame, BATCH, batch_format="pandas").to_arrow()


@pytest.mark.parametrize("batch_format", ["numpy", "torch"])
def test_the_remedy_for_nulls_is_one_that_functions_have(batch_format: Any) -> None:
    rows = pa.table({"x": pa.array([2, None, 1])})
    with pytest.raises(DataError) as told:
        stream(rows, 1).map_batches(lambda arrays: arrays, BATCH, batch_format=batch_format).to_arrow()
    assert "nulls=" not in (told.value.remedy or "")
    assert "fill_null" in (told.value.remedy or "")


def test_groups_of_columns_that_are_called_as_others_would_be() -> None:
    rows = pa.table({"__a": [1, 1, 2], "a": [3, 4, 5]})
    assert stream(rows, 1).group_by("__a").map_groups(lambda records: records).to_arrow() == rows


def test_functions_before_one_whose_types_are_asked_for_get_few_rows() -> None:
    seen: list[int] = []

    def slow(records: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(records.num_rows)
        return records

    rows = pa.table({"x": list(range(10_000))})
    made = stream(rows, 1).map_batches(slow, BATCH).map_batches(lambda records: records).flat_map(lambda row: row)
    assert seen
    assert max(seen) <= 64
    seen.clear()
    assert made.to_arrow() == rows
    assert seen == [10_000]


def scaled(function: Any) -> Any:
    @functools.wraps(function)
    def with_scale(records: pa.RecordBatch, scale: int) -> Any:
        return function(pa.record_batch({"x": pc.multiply(records["x"], scale)}))

    return with_scale


@scaled
def plain(records: pa.RecordBatch) -> pa.RecordBatch:
    return records


def test_arguments_are_those_of_what_is_called_not_of_what_it_wraps() -> None:
    rows = pa.table({"x": [1, 2]})
    assert stream(rows, 1).map_batches(plain, fn_kwargs={"scale": 3}).to_arrow()["x"].to_pylist() == [3, 6]
    with pytest.raises(FlowError, match="does not take its arguments"):
        stream(rows, 1).map_batches(plain, fn_kwargs={"factor": 3})

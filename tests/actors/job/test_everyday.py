"""What one does with a stream in the first hour gives the same rows on every runner: embedded, Ray, and a plan task."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.engine.core.errors import ConfigurationError

pytestmark = pytest.mark.ray

PATIENCE = 60.0

SPLITS = [pa.table({"k": [f"k{n * 7 % 5}"] * 40, "v": range(n, n + 40)}) for n in range(0, 800, 40)]
SCHEMA = SPLITS[0].schema

ODD = pa.schema({"odd": pa.int64()})


def odd(row: dict[str, int]) -> list[dict[str, int]]:
    if row["v"] % 7 == 0:
        raise ValueError(row["v"])
    return [{"odd": row["v"]}] * (row["v"] % 2)


SHAPES: dict[str, Callable[[ps.Stream], ps.Stream]] = {
    "sample": lambda rows: rows.sample(0.4, seed=3),
    "sample behind keys": lambda rows: rows.partition_by("k").sample(0.4, seed=3),
    "quantiles": lambda rows: rows.group_by("k").agg(
        half=ps.col("v").median(), most=ps.col("v").quantile(0.9), about=ps.col("v").approx_quantile(0.9)
    ),
    "bad rows left out": lambda rows: rows.flat_map(odd, ODD, on_error="skip"),
    "bad rows kept": lambda rows: rows.flat_map(odd, ODD, concurrency=2, on_error="keep"),
    "window": lambda rows: rows.window(
        ["k"],
        ["v"],
        exchange="key",
        tile="ntile(3)",
        share="cume_dist",
        mean=ps.WindowFunction("", "mean", "v", frame=(-6, 0)),
        most=ps.WindowFunction("", "max", "v", frame=(1, 3)),
    ),
    "distinct values by key": lambda rows: rows.group_by("k", exchange="key").agg(
        n=ps.col("v").approx_count_distinct(), one=("v", "quantile_disc(0.5)")
    ),
}


@pytest.fixture(scope="module")
def on_ray(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of all shapes, by a job with two subtasks a stage."""
    folder = tmp_path_factory.mktemp("everyday")
    flow = ps.Flow("everyday")
    rows = flow.from_tables(SPLITS)
    for shape, made in SHAPES.items():
        made(rows).write_parquet(folder / shape)
    with ps.run(flow, parallelism=2, checkpoints=folder / "state") as job:
        job.wait(PATIENCE)
    return folder


def in_any_order(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def fed(shape: str, degree: int, parallelism: int) -> list[str]:
    """By a plan task that is given the splits."""
    task = ps.PlanTask(
        SHAPES[shape](ps.Flow("everyday").from_split_sets(SCHEMA, name="in")), degree=degree, parallelism=parallelism
    )
    for split in SPLITS:
        task.add_split("in", split)
    task.no_more_splits("in")
    found = []
    with task:
        while (batch := task.read(PATIENCE)) is not None:
            found.append(batch)
    return in_any_order(pa.Table.from_batches(found))


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_the_same_on_every_runner(shape: str, on_ray: Path) -> None:
    made = SHAPES[shape](ps.Flow("everyday").from_tables(SPLITS))
    looked = made.to_arrow()
    made.collect("rows")
    with ps.run_local(made.flow, parallelism=3) as job:
        assert job.wait(PATIENCE).result("rows").to_pylist() == looked.to_pylist()
    rows = in_any_order(looked)
    assert rows
    assert in_any_order(ds.dataset(on_ray / shape).to_table()) == rows
    given = fed(shape, 2, 3)
    assert given == fed(shape, 0, 1)
    if "sample" not in shape:  # in which lane a split is read is another matter there
        assert given == rows


def test_a_job_on_ray_looks_at_the_rows_that_this_process_would_see(cluster: str) -> None:
    run = partial(ps.run, parallelism=2, address=cluster)
    rows = ps.Flow("looked-at").from_tables(SPLITS).filter("v % 3 = 0").group_by("k", exchange="key").agg(n="count")
    assert rows.to_arrow(run=run).equals(rows.to_arrow())
    assert rows.take(2, run=run) == rows.take(2)
    rows.collect("rows")
    with pytest.raises(ConfigurationError, match=r"rows: rows collected in an actor(.|\n)*to_arrow\(run=ps.run\)"):
        run(rows.flow)


def test_a_job_that_is_over_is_run_again_and_replaces_what_it_wrote(cluster: str, tmp_path: Path) -> None:
    for rows, resume in ((90, "auto"), (40, "restart")):
        flow = ps.Flow("nightly")
        flow.from_tables(pa.table({"n": range(rows)})).write_parquet(tmp_path / "out", mode="overwrite")
        with ps.run(flow, parallelism=2, checkpoints=tmp_path / "state", resume=resume) as job:
            assert job.wait(PATIENCE).audit().clean
    assert sorted(ds.dataset(tmp_path / "out").to_table()["n"].to_pylist()) == list(range(40))

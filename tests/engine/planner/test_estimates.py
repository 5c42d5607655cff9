"""How many rows nodes give, as far as their sources' footers tell."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.engine.flow.flow import Flow, Stream
from penstock.engine.planner.pipelines import plan_job

START = datetime.date(2000, 1, 1)


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """1,000 rows of as many days, in ten row groups."""
    table = pa.table({"k": range(1000), "day": [START + datetime.timedelta(number) for number in range(1000)]})
    parquet.write_table(table, tmp_path / "days.parquet", row_group_size=100)
    return tmp_path / "days.parquet"


def read_first(days: Path, condition: Callable[[Stream], Stream], others: int) -> int | None:
    flow = Flow("f")
    few = flow.from_tables(pa.table({"k": range(others)}))
    condition(flow.read_parquet(days)).hash_join(few, on=["k"]).collect("out")
    stages = plan_job(flow).stages.values()
    operators = [each for stage in stages for pipeline in stage.pipelines for each in pipeline.operators]
    return next(each.read_first for each in operators if each.config.kind == "hash join")


@pytest.mark.parametrize(("others", "first"), [(90, 1), (110, 0)])
def test_filter_passes_what_lies_between_the_bounds_in_the_footer(days: Path, others: int, first: int) -> None:
    def tenth(rows: Stream) -> Stream:
        return rows.filter("day >= date '2000-01-01' and day < date '2000-04-10'")

    assert read_first(days, tenth, others) == first


def test_bounds_are_those_of_a_column_under_another_name(days: Path) -> None:
    assert read_first(days, lambda rows: rows.project("k", since="day").filter("since < date '2000-04-10'"), 110) == 0
    assert read_first(days, lambda rows: rows.with_columns(day="k + 1").filter("day < 100"), 110) == 1

"""Streams that are shaped: each method beside the rows that it should give."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import FlowError

ROWS = pa.table(
    {
        "k": ["a", "b", "a", None],
        "v": pa.array([1, None, 3, 4], pa.int32()),
        "x": [0.5, None, 2.5, 3.5],
        "s": ["1", "two", None, "4"],
    }
)


def stream() -> ps.Stream:
    return ps.Flow("shaping").from_tables([ROWS], name="rows")


def rows(given: ps.Stream) -> list[dict[str, Any]]:
    given.collect("found")
    with ps.run_local(given.flow) as job:
        found: list[dict[str, Any]] = job.wait(30).result("found").to_pylist()
        return found


def test_select_is_project() -> None:
    found = rows(stream().select("k", ps.col("v") + 1, y="v * 2"))
    assert found[0] == {"k": "a", "v": 2, "y": 2}


def test_drop_and_rename_keep_the_others_in_their_places() -> None:
    found = stream().drop("x", "s").rename({"k": "key"})
    assert found.schema.names == ["key", "v"]
    assert [each["v"] for each in rows(found)] == [1, None, 3, 4]


def test_cast_changes_types_in_place_and_may_give_null() -> None:
    found = stream().cast({"s": int, "v": pa.float64()}, strict=False)
    assert found.schema.types == [pa.string(), pa.float64(), pa.float64(), pa.int64()]
    assert [each["s"] for each in rows(found)] == [1, None, None, 4]


def test_fill_null_fills_what_can_hold_the_value_and_keeps_types() -> None:
    found = stream().fill_null(0)
    assert found.schema.types == ROWS.schema.types
    assert rows(found)[1] == {"k": "b", "v": 0, "x": 0.0, "s": "two"}
    assert rows(stream().fill_null("?"))[3]["k"] == "?"
    assert rows(stream().fill_null(7, ["x"]))[1] == {"k": "b", "v": None, "x": 7.0, "s": "two"}
    assert rows(stream().fill_null(0.5))[1]["v"] is None


def test_drop_nulls_looks_at_all_columns_or_some() -> None:
    assert [each["v"] for each in rows(stream().drop_nulls())] == [1]
    assert [each["v"] for each in rows(stream().drop_nulls(["k", "v"]))] == [1, 3]


def test_group_by_aggregates_columns_and_what_is_computed() -> None:
    grouped = (
        stream()
        .group_by("k")
        .agg(ps.col("v").sum(), (ps.col("x") * 2).max().alias("most"), n="count", least=ps.col("v").min())
    )
    assert rows(grouped) == [
        {"k": "a", "v": 4, "most": 5.0, "n": 2, "least": 1},
        {"k": "b", "v": None, "most": None, "n": 1, "least": None},
        {"k": None, "v": 4, "most": 7.0, "n": 1, "least": 4},
    ]


def test_every_aggregate_of_an_expression_is_that_of_its_function() -> None:
    names = (
        "count",
        "sum",
        "min",
        "max",
        "mean",
        "first",
        "last",
        "count_distinct",
        "collect_list",
        "median",
        "approx_count_distinct",
    )
    pairs = {**{each: each for each in names}, "std": "stddev", "var": "variance"}
    fluent = stream().group_by("k").agg(**{name: getattr(ps.col("v"), name)() for name in pairs})
    asked: Any = {name: ("v", function) for name, function in pairs.items()}
    assert rows(fluent) == rows(stream().aggregate(["k"], **asked))
    shares = stream().group_by("k").agg(a=ps.col("v").quantile(0.3), b=ps.col("v").approx_quantile(1))
    assert rows(shares) == rows(stream().aggregate(["k"], a=("v", "quantile(0.3)"), b=("v", "approx_quantile(1)")))


def test_groups_by_computed_keys() -> None:
    found = rows(stream().group_by((ps.col("v") % 2).alias("odd")).agg(ps.col("v").count()))
    assert found == [{"odd": 1, "v": 2}, {"odd": None, "v": 0}, {"odd": 0, "v": 1}]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: stream().drop("w"), "no column 'w'"),
        (lambda: stream().rename({"w": "x"}), "no column 'w'"),
        (lambda: stream().rename({"v": "x"}), "'x' is given twice"),
        (lambda: stream().cast({"v": pa.large_string()}), "has no name in SQL"),
        (lambda: stream().fill_null(True), "no column can hold True"),
        (lambda: stream().group_by(ps.col("v") % 2).agg(n="count"), "called as the column 'v'"),
        (lambda: stream().group_by("k").agg(ps.col("v").sum(), ps.col("v").max()), "'v' is given twice"),
    ],
)
def test_what_is_wrong_is_said(wrong: Any, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        wrong()


@pytest.mark.parametrize(
    ("keys", "descending", "expected"),
    [
        (["a"], True, "xzyw"),
        (["a", "b"], [True, False], "xzwy"),
        ([["a", "b"]], [True, False], "xzwy"),
        ([["a"], ps.SortKey("b", descending=True)], False, "ywzx"),
        (["a", "b"], True, "xzyw"),
    ],
)
def test_rows_are_sorted_as_in_polars_and_ray_data(keys: list[Any], descending: Any, expected: str) -> None:
    given = ps.Flow("sorted").from_tables(pa.table({"a": [3, 1, 2, 1], "b": ["x", "y", "z", "w"]}))
    assert "".join(given.sort(*keys, descending=descending).to_arrow()["b"].to_pylist()) == expected
    assert "".join(given.top_n(3, *keys, descending=descending).to_arrow()["b"].to_pylist()) == expected[:3]


def test_what_descending_can_not_be() -> None:
    given = ps.Flow("sorted").from_tables(pa.table({"a": [3], "b": ["x"]}))
    with pytest.raises(FlowError, match="2 keys, and 1 in descending="):
        given.sort("a", "b", descending=[True])
    with pytest.raises(FlowError, match=r"descending= is for plain names[^;]*ps.SortKey"):
        given.sort(ps.SortKey("a"), descending=True)


def test_a_window_is_ordered_by_one_key_or_several() -> None:
    given = ps.Flow("sorted").from_tables(pa.table({"a": [1, 2, 1], "b": [1, 2, 3]}))
    for order in (ps.SortKey("b", descending=True), [ps.SortKey("b", descending=True)]):
        assert given.window("a", order, place="row_number").to_arrow()["b"].to_pylist() == [3, 1, 2]

"""Expressions as trees: what is written comes back, names with points are no paths, and deep ones are left to Acero."""

from __future__ import annotations

from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.engine.expressions.bounds import has_answers
from penstock.engine.expressions.implied import implied
from penstock.engine.expressions.kernel_calls import columns_of
from penstock.engine.expressions.shares import UNKNOWN, share_of
from penstock.engine.expressions.tree import (
    MOST_DEPTH,
    Call,
    ColumnPath,
    NotPlainError,
    parts_of,
    serialized,
    tree_of,
)


def test_calls_columns_literals_and_options_come_back() -> None:
    tree = tree_of(serialized((pc.field("a") + 1 > pc.field("s", "t")) & pc.field("b.c").isin(["x", "y"])))
    assert isinstance(tree, Call)
    assert [part.name for part in parts_of(tree) if isinstance(part, Call)] == [
        *("and_kleene", "greater", "add_checked", "is_in"),
    ]
    assert [part.path for part in parts_of(tree) if isinstance(part, ColumnPath)] == [("a",), ("s", "t"), ("b.c",)]
    assert [part.as_py() for part in parts_of(tree) if isinstance(part, pa.Scalar)] == [1]
    (contained,) = [part for part in parts_of(tree) if isinstance(part, Call) and part.name == "is_in"]
    assert contained.options["value_set"].as_py() == ["x", "y"]
    options, bare = contained.function_options
    assert pc.call_function("is_in", [pa.array(["y", "z"])], options).to_pylist() == [True, False]
    assert bare


def test_a_path_into_a_struct_is_not_the_column_with_a_point_in_its_name() -> None:
    inside, named = pc.field("s", "t") < 10, pc.field("s.t") < 10
    assert share_of(named, {"s.t": (0.0, 100.0)}) == pytest.approx(0.1)
    assert share_of(inside, {"s.t": (0.0, 100.0)}) != pytest.approx(0.1)
    assert (columns_of(inside), columns_of(named)) == ({"s"}, {"s.t"})
    assert implied(inside, {"s.t": pc.field("x")}) is None


@pytest.mark.parametrize("terms", [MOST_DEPTH, 3 * MOST_DEPTH, 15 * MOST_DEPTH])
def test_long_chains_of_terms_are_conditions_like_others(terms: int) -> None:
    chain = reduce(or_, [pc.field("a") == 2 * each for each in range(terms)])
    flow = ps.Flow("deep")
    flow.from_tables([pa.table({"a": list(range(3 * terms))})]).filter(chain).collect("found")
    assert ps.run_local(flow).result("found")["a"].to_pylist() == [*range(0, min(2 * terms, 3 * terms), 2)]


def test_nothing_is_known_of_what_is_too_deep() -> None:
    deep = reduce(or_, [pc.field("a") == each for each in range(2 * MOST_DEPTH)])
    with pytest.raises(NotPlainError, match="too deep"):
        tree_of(serialized(deep))
    assert columns_of(deep) is None
    assert share_of(deep, {"a": (0.0, 100.0)}) == UNKNOWN
    assert not has_answers(deep, pa.schema({"a": pa.int64()}))
    assert implied(deep, {"a": pc.field("a")}) is None

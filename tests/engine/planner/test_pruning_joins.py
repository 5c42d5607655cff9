"""Joins ask each side only for keys, condition, and what is wanted of them; nobody is renamed by that."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.engine.core.traits import Columns
from penstock.engine.operators import HashJoin
from penstock.engine.planner.pipelines import plan_job

LEFT = pa.table(
    {
        "k": [n % 10 for n in range(40)],
        "a": range(40),
        "b": [f"left {n}" for n in range(40)],
        "c": [n * 2 for n in range(40)],
        "l": [[n] * (n % 3) for n in range(40)],
    }
)
RIGHT = pa.table(
    {
        "k": range(2, 14),
        "q": range(2, 14),
        "b": [f"right {n}" for n in range(12)],
        "c": [n * 3 for n in range(12)],
        "d": [n * 5 for n in range(12)],
    }
)
INDEX = ps.index.memory(RIGHT, key="k")
BETWEEN = ps.index.Between("c", low="a", high=1000)

JOINS: dict[str, tuple[Any, list[str], list[str]]] = {
    "inner": (lambda one, other: one.hash_join(other, ["k"]).project("a", "d"), ["k", "a"], ["k", "d"]),
    "keys alone": (lambda one, other: one.hash_join(other, ["k"]).project("k"), ["k"], ["k"]),
    "left name": (lambda one, other: one.hash_join(other, ["k"]).project("b"), ["k", "b"], ["k"]),
    "suffix": (lambda one, other: one.hash_join(other, ["k"]).project("b_right"), ["k", "b"], ["k", "b"]),
    "own suffix": (lambda one, other: one.hash_join(other, ["k"], suffix="_r").project("c_r"), ["k", "c"], ["k", "c"]),
    "both keys": (
        lambda one, other: one.hash_join(other, ["k"], right_on=("q",)).project("a", "q"),
        ["k", "a"],
        ["q"],
    ),
    "full": (lambda one, other: one.hash_join(other, ["k"], how="full").project("k", "d"), ["k"], ["k", "d"]),
    "semi": (lambda one, other: one.hash_join(other, ["k"], how="left semi").project("b"), ["k", "b"], ["k"]),
    "right semi": (lambda one, other: one.hash_join(other, ["k"], how="right semi").project("d"), ["k"], ["k", "d"]),
    "anti": (lambda one, other: one.hash_join(other, ["k"], how="anti").project("a"), ["k", "a"], ["k"]),
    "condition": (
        lambda one, other: one.hash_join(other, ["k"], filter=pc.field("c") < pc.field("c_right")).project("a"),
        ["k", "a", "c"],
        ["k", "c"],
    ),
    "condition of a semi join": (
        lambda one, other: one.hash_join(other, ["k"], how="anti", filter="d > a").project("b"),
        ["k", "a", "b"],
        ["k", "d"],
    ),
    "exchange": (
        lambda one, other: one.hash_join(other, ["k"], exchange="key").aggregate(["d"], n="count"),
        ["k"],
        ["k", "d"],
    ),
    "merge": (
        lambda one, other: one.gather().sort("k").merge_join(other.gather().sort("k"), ["k"]).project("a", "d"),
        ["k", "a"],
        ["k", "d"],
    ),
    "everything": (lambda one, other: one.hash_join(other, ["k"]), LEFT.schema.names, RIGHT.schema.names),
    # an index gives all of its columns, which are named as they were
    "lookup": (lambda one, other: one.lookup_join(INDEX, "k").project("a", "d"), ["k", "a", "b", "c"], []),
    "lookup of a name": (lambda one, other: one.lookup_join(INDEX, "k").project("b_right"), ["k", "b", "c"], []),
    "lookup between": (
        lambda one, other: one.lookup_join(INDEX, "k", conditions=(BETWEEN,), how="left").project("d"),
        ["k", "a", "b", "c"],
        [],
    ),
    "unnest": (lambda one, other: one.unnest("l").project("l"), ["l"], []),
    "unnest with places": (
        lambda one, other: one.unnest("l", ordinality="at").filter("at > 1").project("k", "at"),
        ["k", "l"],
        [],
    ),
}


def flow_of(name: str) -> ps.Flow:
    flow = ps.Flow("pruning-joins", lanes=2)
    one = flow.from_tables([LEFT.slice(0, 25), LEFT.slice(25)], name="one")
    other = flow.from_tables([RIGHT], name="other")
    JOINS[name][0](one, other).collect("found")
    return flow


@pytest.mark.parametrize("name", JOINS)
def test_each_side_reads_what_is_needed(name: str) -> None:
    sources = plan_job(flow_of(name), 1).sources
    _, left, right = JOINS[name]
    assert set(sources["one"].schema.names) == set(left)
    assert set(sources["other"].schema.names if "other" in sources else ()) == set(right)


@pytest.mark.parametrize("name", JOINS)
def test_rows_are_those_of_a_plan_that_reads_everything(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ps.run_local(flow_of(name), parallelism=2).result("found")
    monkeypatch.setattr("penstock.engine.planner.pipelines.pruned", lambda flow, sources: flow)
    everything = ps.run_local(flow_of(name), parallelism=2).result("found")
    assert found.schema == everything.schema
    assert found.num_rows
    assert found.equals(everything)


def test_operator_that_would_give_other_columns_needs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    too_few = [Columns({"k"}), Columns({"k", "b"})]
    monkeypatch.setattr(HashJoin, "columns", lambda join, inputs: too_few)
    sources = plan_job(flow_of("suffix"), 1).sources
    assert sources["one"].schema.names == LEFT.schema.names
    assert sources["other"].schema.names == RIGHT.schema.names

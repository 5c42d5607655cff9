"""Whole jobs with exchanges in this process: the rows of DuckDB, in an order that nothing can change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.exchange.channels import OutputChannel
from penstock.engine.kernels.pieces import Bound
from penstock.engine.operators.sequence import regroup
from penstock.engine.plan import rounds
from penstock.engine.planner import pipelines
from penstock.engine.state import memory
from support.operator_harness import rows_of
from support.oracle import query

LANES, PARTS = 4, 8
Build = Callable[[ps.Stream, ps.Stream], ps.Stream]

MANY = [
    pa.table(
        {
            "k": pa.array([(split * 7 + row * row) % 13 if row % 11 else None for row in range(size)], pa.int64()),
            "g": pa.array([f"g{(split + row * 3) % 4}" for row in range(size)], pa.string()),
            "v": pa.array([(split + row * 13) % 23 if row % 7 else None for row in range(size)], pa.int64()),
            "p": pa.array(range(split * 100, split * 100 + size), pa.int64()),
        }
    )
    for split, size in enumerate((40, 7, 0, 61, 23, 40, 1, 0, 33))
]
FEW = [
    pa.table(
        {
            "k": pa.array([split % 15, None, 40 + split][: split % 4], pa.int64()),
            "w": pa.array(range(split % 4), pa.int64()),
        }
    )
    for split in range(30)
]
ALL_MANY, ALL_FEW = pa.concat_tables(MANY), pa.concat_tables(FEW)

FLOWS: dict[str, tuple[Build, str]] = {
    "hash": (lambda a, b: a.partition_by("k", "g"), "select * from a"),
    "range": (lambda a, b: a.partition_by_range("v", [5, 11, 20]), "select * from a"),
    "rebalance": (lambda a, b: a.rebalance().filter("v > 3"), "select * from a where v > 3"),
    "twice": (lambda a, b: a.partition_by("k").partition_by("g").partition_by("p"), "select * from a"),
    "aggregate": (
        lambda a, b: a.aggregate(["k"], exchange="key", n="count", s=("v", "sum"), m=("v", "mean")),
        "select k, count(*), sum(v)::bigint, avg(v) from a group by k",
    ),
    "aggregate of a part": (
        lambda a, b: a.partition_by("g").filter("v > 3").aggregate(["g", "k"], n="count", h=("p", "max")),
        "select g, k, count(*), max(p) from a where v > 3 group by g, k",
    ),
    "distinct": (lambda a, b: a.project("k", "g").distinct(exchange="key"), "select distinct k, g from a"),
    "window": (
        lambda a, b: a.window(["g"], ["p"], exchange="key", n="row_number", s=("v", "sum")),
        "select *, row_number() over w, sum(v) over (w rows unbounded preceding)::bigint from a "
        "window w as (partition by g order by p)",
    ),
    "mark distinct": (
        lambda a, b: a.partition_by("k").mark_distinct("k", "g", marker="new").aggregate(["k", "new"], n="count"),
        "select k, r = 1, count(*) from (select k, row_number() over (partition by k, g) r from a) group by k, r = 1",
    ),
    "union": (
        lambda a, b: a.partition_by("k").project("k").union(b.partition_by("k").project("k")).aggregate(
            ["k"], n="count"
        ),
        "select k, count(*) from (select k from a union all select k from b) group by k",
    ),
    "fork": (
        lambda a, b: (p := a.partition_by("k")).aggregate(["k"], n="count").hash_join(p, ["k"]),
        "select c.k, n, g, v, p from (select k, count(*) n from a group by k) c join a using (k)",
    ),
    "diamond": (
        lambda a, b: a.gather().project("p").union(a.filter("p < 0").partition_by("k").project("p").gather()),
        "select p from a",
    ),
}  # fmt: skip
for _how, _sql in {
    "inner": "select k, g, v, p, w from a join b using (k)",
    "left": "select k, g, v, p, w from a left join b using (k)",
    "right": "select k, g, v, p, w from a right join b using (k)",
    "full": "select k, g, v, p, w from a full join b using (k)",
    "left semi": "select * from a where k in (select k from b)",
    "right semi": "select * from b where k in (select k from a)",
    "anti": "select * from a where not exists (select 1 from b where a.k = b.k)",
}.items():
    FLOWS[f"{_how} join"] = (lambda a, b, how=_how: a.hash_join(b, ["k"], how=how, exchange="key"), _sql)
    if _how in ("inner", "left", "left semi", "anti"):
        FLOWS[f"{_how} join with a broadcast"] = (
            lambda a, b, how=_how: a.rebalance().hash_join(b.filter("w >= 0").broadcast(), ["k"], how=how),
            _sql,
        )


def flow_of(build: Build, rate: float = 0.0, order: Any = "deterministic") -> ps.Flow:
    flow = ps.Flow("exchanges", lanes=LANES, parts=PARTS, order=order)
    stream = build(flow.from_tables(MANY, name="a", rate=rate), flow.from_tables(FEW, name="b", rate=rate / 4))
    (stream if stream.is_gathered else stream.gather()).collect("out")
    return flow


@pytest.fixture
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of a few rows, in batches of fewer."""
    monkeypatch.setattr(pipelines, "ROUND_QUOTA", 17)
    monkeypatch.setattr(rounds, "CHUNK_ROWS", 5)


def starve(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte of credit, no memory, and output of a few rows."""
    monkeypatch.setattr(OutputChannel.__init__, "__defaults__", (1,))
    monkeypatch.setattr(memory.TaskMemory.__init__, "__defaults__", (0, None))
    monkeypatch.setattr(regroup, "Bound", lambda rows, bytes: Bound(3, bytes))


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.usefixtures("cut_small")
def test_rows_are_those_of_duckdb_in_the_same_order_at_any_parallelism(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, sql = FLOWS[name]
    found = ps.run_local(flow_of(build)).result("out")
    assert sorted(rows_of(found), key=str) == sorted(query(sql, a=ALL_MANY, b=ALL_FEW), key=str)
    for parallelism in (2, 3, 4):
        assert ps.run_local(flow_of(build), parallelism=parallelism).result("out").equals(found)
    starve(monkeypatch)
    for parallelism in (1, 3):
        assert ps.run_local(flow_of(build), parallelism=parallelism).result("out").equals(found)


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.usefixtures("cut_small")
def test_rows_without_order_are_the_same_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, sql = FLOWS[name]
    starve(monkeypatch)
    found = ps.run_local(flow_of(build, order="arrival"), parallelism=3).result("out")
    assert sorted(rows_of(found), key=str) == sorted(query(sql, a=ALL_MANY, b=ALL_FEW), key=str)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("twice", 2, 3),
        ("aggregate", 3, 1),
        ("aggregate of a part", 1, 4),
        ("distinct", 2, 4),
        ("window", 3, 2),
        ("mark distinct", 2, 3),
    ],
)
@pytest.mark.usefixtures("cut_small")
def test_a_stopped_job_goes_on_at_another_parallelism_in_the_same_order(
    tmp_path: Any, name: str, before: int, after: int
) -> None:
    build, _ = FLOWS[name]
    expected = ps.run_local(flow_of(build)).result("out")
    checkpoints = ps.Checkpoints(tmp_path / "state", every="20ms")
    with ps.run_local(flow_of(build, rate=100.0), parallelism=before, checkpoints=checkpoints) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 1, timeout=60)
    assert job.status().state not in ("finished", "failed")
    resumed = ps.run_local(flow_of(build), parallelism=after, checkpoints=checkpoints)
    assert resumed.result("out").equals(expected)
    assert resumed.status().restored_from is not None
    assert resumed.audit().clean

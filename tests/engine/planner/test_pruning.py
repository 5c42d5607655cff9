"""Of the sources only the columns that a flow needs are read; rows and their order are what they would be otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import penstock as ps
from penstock.engine.core.errors import DataError
from penstock.engine.expressions.kernel_calls import columns_of
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.planner.pruning import pruned

ROWS = pa.table(
    {
        "a": pa.array(range(100), pa.int64()),
        "b": [f"text {n}" for n in range(100)],
        "c": [n % 7 for n in range(100)],
        "d": [{"x": n, "y": str(n)} for n in range(100)],
        "e": [float(n) for n in range(100)],
    }
)
ALL = ROWS.schema.names

FLOWS = {
    "whole": (lambda rows: rows, ALL),
    "project": (lambda rows: rows.project("a", twice=pc.field("c") * 2), ["a", "c"]),
    "path": (lambda rows: rows.project(x=pc.field("d", "x")), ["d"]),
    "sql": (lambda rows: rows.project(x="a + e"), ["a", "e"]),
    "filter": (lambda rows: rows.filter(ps.field("e") > 10).project("b"), ["b", "e"]),
    "derived and dropped": (lambda rows: rows.with_columns(f=pc.field("e") + 1).project("a"), ["a"]),
    "derived and used": (lambda rows: rows.with_columns(f=pc.field("e") + 1).project("f"), ["e"]),
    "replaced": (lambda rows: rows.with_columns(a=pc.field("c")).project("a", "b"), ["b", "c"]),
    "group": (lambda rows: rows.aggregate(["c"], total=("a", "sum")), ["a", "c"]),
    "count": (lambda rows: rows.aggregate([], n="count"), ["a"]),
    "filtered count": (lambda rows: rows.filter(ps.field("c") == 1).aggregate([], n="count"), ["c"]),
    "exchange": (lambda rows: rows.partition_by("c").project("a"), ["a", "c"]),
    "rebalance": (lambda rows: rows.rebalance().project("e"), ["e"]),
    "sort": (lambda rows: rows.gather().sort("c", "a").project("b"), ["a", "b", "c"]),
    "top": (lambda rows: rows.gather().top_n(5, "e").project("b"), ["b", "e"]),
    "limit": (lambda rows: rows.gather().limit(5).project("b"), ["b"]),
    "function": (lambda rows: rows.map_batches(unchanged, ROWS.schema).project("a"), ALL),
    "distinct": (lambda rows: rows.gather().distinct().project("a"), ALL),
}


def unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def flow_of(name: str, source=None) -> ps.Flow:
    flow = ps.Flow("pruning", lanes=2)
    rows = source(flow) if source else flow.from_tables([ROWS.slice(0, 60), ROWS.slice(60)], name="rows")
    FLOWS[name][0](rows).collect("found")
    return flow


@pytest.mark.parametrize("name", FLOWS)
def test_sources_read_what_is_needed(name: str) -> None:
    plan = plan_job(flow_of(name), 2)
    (source,) = plan.sources.values()
    assert source.schema.names == FLOWS[name][1]
    for split in source.splits:
        assert next(iter(split.open(0))).schema.names == FLOWS[name][1]


@pytest.mark.parametrize("name", FLOWS)
def test_rows_and_fingerprint_are_those_of_a_plan_that_reads_everything(name: str) -> None:
    found = ps.run_local(flow_of(name), parallelism=2).result("found")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.engine.planner.pipelines.pruned", lambda flow, sources: flow)
        whole = flow_of(name)
        assert plan_job(whole, 2).fingerprint == plan_job(whole, 2, prune=False).fingerprint
        everything = ps.run_local(whole, parallelism=2).result("found")
    assert found.schema == everything.schema
    assert found.equals(everything)
    assert plan_job(flow_of(name), 2).fingerprint == plan_job(flow_of(name), 2, prune=False).fingerprint


def test_filter_does_not_copy_what_only_its_condition_needs() -> None:
    flow = ps.Flow("narrow", lanes=2)
    rows = flow.from_tables([ROWS], name="rows")
    rows.filter(ps.field("c") > 1).project("a", "b").collect("few")
    (found,) = [
        each for stage in plan_job(flow, 1).stages.values() for line in stage.pipelines for each in line.operators
        if each.config.kind == "filter"
    ]  # fmt: skip
    assert found.config.output_schema(found.inputs).names == ["a", "b"]


def test_sources_whose_splits_others_give_stay_whole_and_what_follows_is_narrowed() -> None:
    flow = ps.Flow("given")
    given = pa.schema([(name, pa.int64()) for name in "abcd"])
    stream = flow.from_split_sets(given, name="rows").filter("a > 1").aggregate(["b"], n=("c", "sum"))
    stream.collect("out")
    (stage, *_) = plan_job(flow, 1, prune=False).stages.values()
    first, behind = stage.pipelines[0].operators[:2]
    assert stage.pipelines[0].ports[0].schema.names == ["a", "b", "c", "d"]
    assert first.inputs[0].names == ["a", "b", "c", "d"]
    assert behind.inputs[0].names == ["b", "c"]
    rows = pa.table([[1, 2, 3], [1, 1, 2], [7, 8, 9], [0, 0, 0]], schema=given)
    with ps.PlanTask(stream_of(given)) as task:
        assert [row for batch in task.run({"rows": rows}) for row in batch.to_pylist()] == [
            {"b": 1, "n": 8}, {"b": 2, "n": 9}
        ]  # fmt: skip


def stream_of(schema: pa.Schema) -> ps.Stream:
    rows = ps.Flow("given").from_split_sets(schema, name="rows")
    return rows.filter("a > 1").aggregate(["b"], n=("c", "sum"))


def test_all_consumers_count() -> None:
    flow = ps.Flow("forked", lanes=2)
    rows = flow.from_tables([ROWS], name="rows")
    rows.project("a").collect("one")
    rows.filter(ps.field("c") > 1).project("b").collect("two")
    assert plan_job(flow, 1).sources["rows"].schema.names == ["a", "b", "c"]


def test_what_leads_to_no_sink_counts_little() -> None:
    flow = ps.Flow("open", lanes=2)
    rows = flow.from_tables([ROWS], name="rows")
    rows.project("a").collect("one")
    rows.project("b")
    assert set(plan_job(flow, 1).sources["rows"].schema.names) <= {"a", "b"}


FILES = {
    "parquet": (lambda path: pq.write_table(ROWS, path), lambda path: lambda flow: flow.read_parquet(path)),
    "arrow": (
        lambda path: feather.write_feather(ROWS, str(path), "uncompressed"),
        lambda path: lambda flow: flow.read_ipc(path),
    ),
}


@pytest.mark.parametrize("form", FILES)
def test_files_are_read_in_part(tmp_path: Path, form: str) -> None:
    write, source = FILES[form]
    path = tmp_path / f"rows.{form}"
    write(path)
    plan = plan_job(flow_of("filter", source(path)), 1)
    (read,) = plan.sources.values()
    (split,) = read.splits
    assert next(split.open(97)).to_pydict() == {"b": ["text 97", "text 98", "text 99"], "e": [97.0, 98.0, 99.0]}


def test_filter_of_the_files_may_use_what_is_not_read(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    flow = ps.Flow("filtered", lanes=1)
    flow.read_parquet(tmp_path, filter=ps.field("c") == 3).project("a").collect("found")
    assert ps.run_local(flow).result("found").column("a").to_pylist() == list(range(3, 100, 7))


def test_broken_values_are_no_error_in_a_column_that_nobody_needs(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("a,b\n1,2\n")
    (tmp_path / "1.csv").write_text("a,b\n3,four\n5,6\n")
    types = {"a": pa.int64(), "b": pa.int64()}

    def read(*names: str) -> list[dict]:
        flow = ps.Flow("csv", lanes=1)
        flow.read_csv(tmp_path, types=types).project(*names).collect("found")
        return ps.run_local(flow).result("found").to_pylist()

    assert read("a") == [{"a": 1}, {"a": 3}, {"a": 5}]
    with pytest.raises(DataError):
        read("b")


def test_pruned_flow_is_pruned() -> None:
    once = pruned(flow_of("sort"))
    assert [node.schema for node in pruned(once).nodes] == [node.schema for node in once.nodes]


def test_source_that_cannot_be_narrowed_gives_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = flow_of("filter")
    node = flow.node("rows")
    monkeypatch.setattr(type(node.config), "prunable", False)
    assert plan_job(flow, 1).sources["rows"].schema.names == ALL
    assert ps.run_local(flow).result("found").column("b").to_pylist() == [f"text {n}" for n in range(11, 100)]


@pytest.mark.parametrize(
    ("expression", "columns"),
    [
        (pc.field("a"), {"a"}),
        (pc.field("d", "x") + pc.field("a"), {"d", "a"}),
        (pc.if_else(pc.field("a") > 3, pc.field("b"), pc.scalar("no")), {"a", "b"}),
        (pc.field("b").isin(["x", "y"]), {"b"}),
        (pc.scalar(1), set()),
        (pc.field("a").cast(pa.string()), {"a"}),
        (pc.field("a.b"), {"a.b"}),
    ],
)
def test_columns_of_expressions(expression: pc.Expression, columns: set[str]) -> None:
    assert columns_of(expression) == columns


def test_nodes_keep_what_else_they_say() -> None:
    flow = flow_of("sort")
    for before, after in zip(flow.nodes, pruned(flow).nodes, strict=True):
        assert replace(after, schema=before.schema, config=before.config) == before


def test_explain_says_what_is_read() -> None:
    told = flow_of("filter").explain(1)
    assert "  rows: memory, 2 splits, 100 rows, b, e of 5 columns; a round reads" in told
    assert " columns" not in flow_of("whole").explain(1)

"""Readers ask conditions of operators further down: where that is planned, and that rows do not depend on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import dataset

import penstock as ps
from penstock.engine.kernels.page_library import page_library
from penstock.engine.planner.early_filters import plan_early_filters
from penstock.engine.planner.pipelines import plan_job
from penstock.engine.sources.picking import EarlyCondition
from support.oracle import query

LARGE = pa.table(
    {
        "k": pa.array([None if n % 11 == 0 else n % 50 for n in range(1_000)], pa.int64()),
        "v": pa.array(range(1_000), pa.int64()),
        "x": [n / 7 for n in range(1_000)],
        "t": [f"text {n % 5}" for n in range(1_000)],
    }
)
SMALL = pa.table(
    {"k": pa.array([3, 7, 7, 12, None], pa.int64()), "w": [1, 2, 3, 4, 5], "x": [0.0, -0.0, 1.0, 2.0, 3.0]}
)

PATIENCE = 60.0

Build = Callable[[ps.Stream, ps.Stream], ps.Stream]


def joined(how: str, condition: str, **options: object) -> Build:
    return lambda large, small: large.hash_join(small.project("k", "w"), ["k"], how=how, **options).filter(condition)


ASKED: dict[str, tuple[Build, list[str]]] = {
    "renamed": (
        lambda large, small: large.project(n="v", s="t").filter("n > 700 and s = 'text 3'"),
        ['large ((v > 700) and (t == "text 3"))'],
    ),
    "computed": (
        lambda large, small: large.project("v", is_late="v > 700 or v is null").filter("is_late and v < 900"),
        ["large (((v > 700) or is_null(v)) and (v < 900))"],
    ),
    "an exchange": (lambda large, small: large.gather().filter("v > 700"), ["large (v > 700)"]),
    "in two steps": (
        lambda large, small: large.gather().filter("v > 700").filter("t = 'text 3'"),
        ["large (v > 700)", 'large (t == "text 3")'],
    ),
    "inner": (joined("inner", "v > 500 and w < 3"), ["large (v > 500)", "small (w < 3)"]),
    "by key": (joined("inner", "v > 500 and w < 3", exchange="key"), ["large (v > 500)", "small (w < 3)"]),
    "key": (joined("inner", "k > 5"), ["large (k > 5)", "small (k > 5)"]),
    "key of a semi join": (joined("left semi", "k > 5"), ["large (k > 5)", "small (k > 5)"]),
    "left": (joined("left", "v > 500 and w < 3 and k > 5"), ["large ((v > 500) and (k > 5))"]),
    "anti": (joined("anti", "v > 500"), ["large (v > 500)"]),
    "right": (joined("right", "v > 500 and w < 3 and k > 5"), ["small ((w < 3) and (k > 5))"]),
    "right semi": (joined("right semi", "w < 3 and k > 5"), ["large (k > 5)", "small ((w < 3) and (k > 5))"]),
    "full": (joined("full", "v > 500 and w < 3 and k > 5"), []),
    "what a join asks": (
        lambda large, small: large.hash_join(small, ["k"], filter="(v > 500 and w = 1) or (v > 600 and w = 2)"),
        ["large ((v > 500) or (v > 600))", "small ((w == 1) or (w == 2))"],
    ),
    "what a left join asks": (
        lambda large, small: large.hash_join(small, ["k"], how="left", filter="v > 500 and w = 1"),
        ["small (w == 1)"],
    ),
    "groups": (
        lambda large, small: large.aggregate(["t"], n="count").filter("t = 'text 3' and n > 3"),
        ['large (t == "text 3")'],
    ),
    "a union": (
        lambda large, small: large.project("k").union(small.project("k")).filter("k > 5"),
        ["large (k > 5)", "small (k > 5)"],
    ),
    "all readers": (
        lambda large, small: large.filter("v < 100").union(large.filter("v > 900 and t = 'text 3'")),
        ['large ((v < 100) or ((v > 900) and (t == "text 3")))'],
    ),
    "directly behind the source": (lambda large, small: large.filter("v > 700"), []),
    "one of two readers": (lambda large, small: large.filter("v < 100").union(large), []),
    "a limit": (lambda large, small: large.gather().limit(100).filter("v > 7"), []),
    "a function": (lambda large, small: large.map_batches(lambda rows: rows, LARGE.schema).filter("v > 700"), []),
    "turns": (lambda large, small: large.rebalance().filter("v > 700"), []),
    "a condition that may fail": (lambda large, small: large.gather().filter("v // (k - 9) > 2 and v > 700"), []),
    "a column that may fail": (lambda large, small: large.with_columns(q="v // (k - 9)").filter("v > 700"), []),
    "what may fail on the other side": (
        lambda large, small: large.with_columns(q="v // (v + 1)").hash_join(small, ["k"]).filter("w > 9"),
        ["small (w > 9)"],
    ),
    "groups of floats": (lambda large, small: large.aggregate(["x"], n="count").filter("x > 3"), []),
    "keys that are floats": (
        lambda large, small: large.hash_join(small.project("x", "w"), ["x"]).filter("x > 0"),
        ["large (x > 0)"],
    ),
}


def flow_of(build: Build, hidden: bool = False) -> ps.Flow:
    """``hidden``: behind functions of a user, which nobody asks early for."""
    flow = ps.Flow("early", lanes=4)
    large = flow.from_tables([LARGE.slice(at, 100) for at in range(0, 1_000, 100)], name="large")
    small = flow.from_tables([SMALL.slice(0, 3), SMALL.slice(3)], name="small")
    if hidden:
        large, small = (
            each.map_batches(lambda rows: rows, schema)
            for each, schema in ((large, LARGE.schema), (small, SMALL.schema))
        )
    build(large, small).collect("rows")
    return flow


@pytest.mark.parametrize("name", ASKED)
def test_condition_is_asked_where_nothing_but_what_is_read_depends_on_it(name: str) -> None:
    build, asked = ASKED[name]
    plan = plan_job(flow_of(build))
    assert sorted(f"{each.source} {each.condition}" for each in plan.early_filters) == sorted(asked)
    if "may fail" in name:
        return
    found = [ps.run_local(flow_of(build), parallelism=parallelism).result("rows") for parallelism in (1, 2)]
    whole = ps.run_local(flow_of(build, hidden=True)).result("rows")
    assert found == [whole, whole]
    assert whole.num_rows


def test_explain_says_what_is_asked_early_and_for_whom() -> None:
    text = flow_of(joined("inner", "v > 500 and w < 3")).explain(1)
    assert "; early for filter-1: (v > 500)\n" in text
    assert "; early for filter-1: (w < 3)\n" in text


def test_error_stays_where_a_side_that_nothing_of_is_left_would_end_the_other_one() -> None:
    build = ASKED["what may fail on the other side"][0]
    flow = flow_of(lambda large, small: build(large.with_columns(v="v - 501"), small))
    with pytest.raises(ps.errors.PenstockError, match="divide by zero"):
        ps.run_local(flow).result("rows")


CUT_ELSEWHERE: dict[str, Build] = {
    "a condition": lambda large, small: large.hash_join(small, ["g"]).filter("v < 9000"),
    "what a join asks": lambda large, small: large.hash_join(small, ["g"], filter="v < 9000 and w >= 0"),
    "the keys of a join": lambda large, small: large.hash_join(small, ["g"]).hash_join(
        large.flow.from_tables(pa.table({"k": [1, 2, 3]}), name="few"), ["k"]
    ),
    "groups": lambda large, small: large.aggregate(["v"], n="count").filter("v < 9000"),
}


@pytest.mark.parametrize("name", CUT_ELSEWHERE)
def test_batches_that_a_function_of_a_user_sees_are_cut_as_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, count = 90_000, pa.field("count", pa.int64())
    table = pa.table({"k": [n % 7 for n in range(rows)], "g": [n % 2 for n in range(rows)], "v": range(rows)})
    right = pa.table({"g": [0, 0, 1, 1, 1], "w": range(5)})

    def counted(records: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"count": pa.array([records.num_rows])})

    def flow() -> ps.Flow:
        flow = ps.Flow("cuts", lanes=2)
        large = flow.from_tables([table.slice(0, 50_000), table.slice(50_000)], name="large")
        found = CUT_ELSEWHERE[name](large, flow.from_tables(right, name="small"))
        found.project(*found.schema.names[:2]).map_batches(counted, pa.schema([count])).collect("rows")
        return flow

    assert not {each.source for each in plan_job(flow()).early_filters}
    found = [ps.run_local(flow(), parallelism=parallelism).result("rows") for parallelism in (1, 2)]
    for what in ("early", "key"):
        monkeypatch.setattr(f"penstock.engine.planner.pipelines.plan_{what}_filters", lambda *_: ())
    whole = ps.run_local(flow()).result("rows")
    assert found == [whole, whole]


def test_condition_that_drops_little_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.sources.picking.TRIED_ROWS", 300)
    asked: list[int] = []
    passing = EarlyCondition.passing
    monkeypatch.setattr(EarlyCondition, "passing", lambda self, rows: asked.append(len(rows)) or passing(self, rows))
    for condition, times in (("n >= 20", 3), ("t <> 'text 3'", 10)):
        asked.clear()
        flow = flow_of(lambda large, small, condition=condition: large.project("t", n="v").filter(condition))
        ps.run_local(flow, parallelism=1).result("rows")
        assert len(asked) == times


@pytest.mark.parametrize("parallelism", [1, 2])
def test_row_groups_are_left_out_for_what_is_asked_early_and_statistics_say_so(
    tmp_path: Path, parallelism: int
) -> None:
    pq.write_table(LARGE, tmp_path / "large.parquet", row_group_size=100)
    flow = ps.Flow("early", lanes=2)
    large = flow.read_parquet(tmp_path / "large.parquet", name="large")
    small = flow.from_tables(SMALL.select(["k", "w"]), name="small")
    large.hash_join(small, ["k"]).filter("v >= 820 and w < 3", name="late").collect("rows")
    with ps.run_local(flow, parallelism=parallelism) as job:
        rows = job.wait().result("rows")["v"].to_pylist()
        found = job.statistics().left_out
    assert rows == [n for n in range(820, 1_000) if n % 50 in (3, 7) and n % 11]
    if page_library() is not None:
        assert "large: 8 of 10 row groups have nothing that passes its filters, 8 by statistics" in found
    assert "large: 18 % of 1,000 rows pass what late asks" in found
    assert "small: 40 % of 5 rows pass what late asks" in found
    assert "; early for late: (v >= 820); row groups may be left out by statistics or bloom filters" in flow.explain()


def test_side_that_is_read_first_goes_by_what_is_asked_early(tmp_path: Path) -> None:
    pq.write_table(LARGE, tmp_path / "large.parquet")
    flow = ps.Flow("early")
    many, few = (flow.read_parquet(tmp_path / "large.parquet").project("k", name) for name in "vt")
    many.hash_join(few, ["k"]).filter("v < 10").collect("rows")
    assert "reads its left side first; about 10 left and 1,000 right rows" in flow.explain(1)


# ------------------------------------------------------------------ jobs that go on


def slow(output: Path, rate: float) -> ps.Flow:
    flow = ps.Flow("early", lanes=4)
    large = flow.from_tables([LARGE.slice(at, 10) for at in range(0, 1_000, 10)], rate=4 * rate, name="large")
    small = flow.from_tables([SMALL.slice(at, 1) for at in range(5)], name="small")
    joined = large.hash_join(small.project("k", "w"), ["k"], exchange="key")
    joined.filter("v > 100 and w < 4").write_parquet(output)
    return flow


@pytest.mark.parametrize("first", [True, False])
def test_job_goes_on_from_checkpoints_that_were_taken_without_or_with_it(
    first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asking(asks: bool) -> None:
        found = plan_early_filters if asks else lambda graph: ()
        monkeypatch.setattr("penstock.engine.planner.pipelines.plan_early_filters", found)

    asking(first)
    flow = slow(tmp_path / "out", 100.0)
    with ps.run_local(flow, parallelism=2, checkpoints=ps.Checkpoints(tmp_path / "state", every="50ms")) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 3, PATIENCE)
    asking(not first)
    job = ps.run_local(slow(tmp_path / "out", 0.0), parallelism=3, checkpoints=tmp_path / "state").wait(PATIENCE)
    assert bool(job.plan.early_filters) == (not first)
    ps.run_local(slow(tmp_path / "whole", 0.0)).wait(PATIENCE)
    found, whole = (dataset.dataset(tmp_path / name).to_table().to_pylist() for name in ("out", "whole"))
    assert sorted(map(str, found)) == sorted(map(str, whole))
    assert found


# ------------------------------------------------------------------ random flows, from files


def random_rows(chance: random.Random, count: int) -> pa.Table:
    keys = [None if chance.random() < 0.1 else chance.randrange(12) for _ in range(count)]
    texts = [None if chance.random() < 0.1 else chance.choice(("ab", "abc", "b", "")) for _ in range(count)]
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(range(count), pa.int64()), "t": pa.array(texts)})


def condition_over(chance: random.Random, names: list[str]) -> str:
    """Of columns whose names tell their types: ``k…`` and ``v…`` are numbers, ``t…`` text."""
    if chance.random() < 0.4:
        one, other = condition_over(chance, names), condition_over(chance, names)
        return f"({one} {chance.choice(('and', 'and', 'or'))} {other})"
    name = chance.choice(names)
    if name[0] == "t":
        return chance.choice((f"{name} like 'ab%'", f"{name} in ('b', '')", f"{name} is null", f"{name} <> 'abc'"))
    return chance.choice((f"{name} > {chance.randrange(9)}", f"{name} in (1, 2, 3)", f"{name} is not null",
                          f"{name} <= {chance.randrange(60)}",
                          f"{name} <> {chance.choice([each for each in names if each[0] in 'kv'])}"))  # fmt: skip


def drawn(chance: random.Random, streams: list[tuple[ps.Stream, str]]) -> tuple[ps.Stream, str]:
    """A stream of several, with its SQL; its columns are as ``condition_over`` wants them."""
    stream, sql = streams[0]
    for number in range(chance.randrange(2, 7)):
        names = stream.schema.names
        step = chance.choice(("filter", "filter", "project", "join", "join", "group", "gather", "union"))
        if step == "filter":
            condition = condition_over(chance, names)
            stream, sql = stream.filter(condition), f"select * from ({sql}) where {condition}"
        elif step == "project":
            first = chance.choice(names)
            made = {f"{name[0]}{number}{place}": name for place, name in enumerate(names)}
            numbers = [name for name in names if name[0] in "kv"]
            if numbers:
                made[f"v{number}x"] = f"case when {first} is null then 1 else {chance.choice(numbers)} end"
            stream = stream.project(**made)
            sql = f"select {', '.join(f'{given} as {name}' for name, given in made.items())} from ({sql})"
        elif step == "gather":
            stream = stream.gather()
        elif step == "union":
            condition = condition_over(chance, names)
            stream = stream.union(stream.filter(condition))
            sql = f"select * from ({sql}) union all select * from ({sql}) where {condition}"
        elif step == "group":
            keys = chance.sample(names, min(len(names), 2))
            stream = stream.aggregate(keys, exchange=chance.choice(("key", "gather")), **{f"v{number}n": "count"})
            sql = f"select {', '.join(keys)}, count(*) as v{number}n from ({sql}) group by all"
        else:
            stream, sql = random_join(chance, (stream, sql), streams[1 + number % (len(streams) - 1)], number)
    return stream, sql


def random_join(
    chance: random.Random, left: tuple[ps.Stream, str], right: tuple[ps.Stream, str], number: int
) -> tuple[ps.Stream, str]:
    how = chance.choice(("inner", "inner", "left", "right", "full", "left semi", "right semi", "anti"))
    names = {name: f"{name}r{number}" for name in right[0].schema.names}
    other = right[0].project(**{theirs: name for name, theirs in names.items()})
    keys = [name for name in left[0].schema.names if name[0] == "k"] or [left[0].schema.names[0]]
    mine, theirs = chance.choice(keys), names["k" if keys[0][0] == "k" else keys[0][0]]
    pairs = [*left[0].schema.names, *names.values()]
    condition = condition_over(chance, pairs) if chance.random() < 0.5 else None
    stream = left[0].hash_join(
        other, [mine], right_on=[theirs], how=how, filter=condition, exchange=chance.choice(("key", "gather"))
    )
    renamed = f"select {', '.join(f'{name} as {made}' for name, made in names.items())} from ({right[1]})"
    on = f"l.{mine} = r.{theirs}" + ("" if condition is None else f" and {condition}")
    if how in ("left semi", "anti", "right semi"):
        one, two = (("l", left[1]), ("r", renamed)) if how != "right semi" else (("r", renamed), ("l", left[1]))
        exists = "not exists" if how == "anti" else "exists"
        sql = f"select * from ({one[1]}) {one[0]} where {exists} (select 1 from ({two[1]}) {two[0]} where {on})"
        return stream, sql
    return stream, f"select {', '.join(pairs)} from ({left[1]}) l {how} join ({renamed}) r on {on}"


def check(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many conditions were asked early."""
    chance = random.Random(seed)
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", chance.choice((7, 40, 1_000)))
    tables = [random_rows(chance, chance.choice((5, 60, 300))) for _ in range(3)]
    paths = [folder / f"{seed}-{number}.parquet" for number in range(3)]
    for table, path in zip(tables, paths, strict=True):
        pq.write_table(table, path, row_group_size=40, compression=chance.choice(("snappy", "none")))
    state = chance.getstate()

    def built(hidden: bool) -> tuple[ps.Flow, str]:
        chance.setstate(state)
        flow = ps.Flow("random", lanes=4)
        read = [flow.read_parquet(path) for path in paths]
        if hidden:
            read = [each.map_batches(lambda rows: rows, tables[0].schema) for each in read]
        stream, sql = drawn(chance, [(each, f"select * from t{number}") for number, each in enumerate(read)])
        stream.collect("rows")
        return flow, sql

    flow, sql = built(hidden=False)
    whole = ps.run_local(built(hidden=True)[0]).result("rows")
    for parallelism, threads in ((1, 1), (2, 2)):
        found = ps.run_local(flow, parallelism=parallelism, threads=threads).result("rows")
        assert found == whole, (seed, sql)
    expected = query(sql, **{f"t{number}": table for number, table in enumerate(tables)})
    ours = sorted(map(repr, zip(*(column.to_pylist() for column in whole.columns), strict=True)))
    assert ours == sorted(map(repr, expected)), (seed, sql)
    return len(plan_job(flow).early_filters)


def test_random_flows_give_what_they_do_without_and_what_duckdb_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sum(check(seed, tmp_path, monkeypatch) for seed in range(25)) > 10


@pytest.mark.sweep
def test_many_random_flows_give_what_they_do_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(check(seed, tmp_path, monkeypatch) for seed in range(100, 500)) > 100

"""Whole plans against DuckDB while everything blocks: sources, sinks and what lies between pause by chance, channels
take one batch at a time, and a simulated scheduler interleaves it all.

The rows must be DuckDB's, in the same order for every batch size and every seed. A plan in which nothing can run while
work remains is a failure that tells the chain of waiting (``StuckError``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.flow import index
from penstock.engine.flow.flow import Flow, Stream
from support.hesitant import Hesitant, tiny_credit
from support.oracle_data import SIZES, Shape, asked, nearly, plain_rows
from support.plan_simulation import Simulation

SEEDS = (1, 2)
SHAPE = Shape(seed=11, rows=60, distinct=4, nulls=0.2, units=1)
COLUMNS = {"k": "int32", "s": "dictionary", "v": "int32", "l": "list"}

LEFT = SHAPE.table(COLUMNS, clustered=["k"], nulls_anywhere=True)
RIGHT = replace(SHAPE, seed=12, rows=25).table({"k": "int32", "w": "float64"}, clustered=["k"], nulls_anywhere=True)
RIGHT = RIGHT.rename_columns(["k", "w", "q"])
WINDOWS = [{"a": LEFT, "b": RIGHT}, {"a": LEFT.slice(0, 0), "b": RIGHT}, {"a": LEFT.slice(20), "b": RIGHT.slice(0, 9)}]


@dataclass
class Pausing:
    """A stream's methods, each followed by pauses."""

    stream: Stream
    seed: int

    def then(self, made: Stream) -> Pausing:
        # behind a gather, because only the first operator of a pipeline may have work under way elsewhere
        return Pausing(made.flow.apply(Hesitant(self.seed), [made.gather()]), self.seed + 1)


Plan = Callable[[Pausing, Pausing], Pausing]


def stateless(a: Pausing, b: Pausing) -> Pausing:
    a = a.then(a.stream.filter("v > 0 or k is null"))
    a = a.then(a.stream.project("p", "l", t=pc.field("p") + 1))
    return a.then(a.stream.unnest("l", ordinality="n", outer=True))


def merge_join(a: Pausing, b: Pausing) -> Pausing:
    joined = a.then(a.stream.merge_join(b.stream, on=["k"], how="full", filter="(p + q) % 3 <> 1"))
    joined = joined.then(joined.stream.project("p", "q", "w"))
    return joined.then(joined.stream.sort("p", "q"))


def grouped_join(a: Pausing, b: Pausing) -> Pausing:
    joined = a.then(a.stream.merge_join(b.stream, on=["k"]))
    return joined.then(joined.stream.stream_aggregate(by=["k"], n="count", v=("v", "sum"), w=("w", "max")))


def hash_join(a: Pausing, b: Pausing) -> Pausing:
    joined = a.then(a.stream.hash_join(b.stream, on=["k"], how="right", filter="(p + q) % 3 <> 1"))
    joined = joined.then(joined.stream.project("q", "p", "w"))
    return joined.then(joined.stream.sort("q", "p"))


def lookup_join(a: Pausing, b: Pausing) -> Pausing:
    return a.then(a.stream.project("p", "k").lookup_join(index.memory(RIGHT, "k"), "k", how="left"))


def grouped_union(a: Pausing, b: Pausing) -> Pausing:
    both = a.then(a.stream.project("k", "p").union(b.stream.project("k", p=pc.field("q") + 1000)))
    return both.then(both.stream.aggregate(by=["k"], n="count", p=("p", "sum"), f=("p", "first")))


def partial_steps(a: Pausing, b: Pausing) -> Pausing:
    summed = a.then(a.stream.aggregate(by=["s"], n="count", v=("v", "sum"), m=("v", "mean")))
    return summed.then(summed.stream.sort("s"))


def first_rows(a: Pausing, b: Pausing) -> Pausing:
    a = a.then(a.stream.distinct("k", "s"))
    a = a.then(a.stream.project("s", "v", "p"))
    a = a.then(a.stream.top_n(30, "v", "s"))
    return a.then(a.stream.limit(7, offset=2, per="window"))


def windowed(a: Pausing, b: Pausing) -> Pausing:
    made = a.then(a.stream.project("s", "v", "p"))
    return made.then(made.stream.window(["s"], ["v", "p"], n="row_number", t=("v", "sum"), before=("p", "lag")))


MATCHED = "(select * from a join b on a.k = b.k)"
PLANS: dict[str, tuple[Plan, str]] = {
    "filter, project, unnest": (
        stateless,
        """select p, l[n], p + 1, case when n <= coalesce(len(l), 0) then n else 0 end from
           (select *, unnest(range(1, greatest(coalesce(len(l), 0), 1)::bigint + 1)) as n from a
            where v > 0 or k is null)
           order by p, n""",
    ),
    "merge join": (
        merge_join,
        """select p, q, w from a full join b on a.k = b.k and (p + q) % 3 <> 1 order by p nulls last, q nulls last""",
    ),
    "merge join, stream aggregate": (
        grouped_join,
        "select k, count(*), sum(v)::hugeint, max(w) from a join b using (k) group by k order by min(p)",
    ),
    "hash join": (
        hash_join,
        "select q, p, w from a right join b on a.k = b.k and (p + q) % 3 <> 1 order by q nulls last, p nulls last",
    ),
    "lookup join": (
        lookup_join,
        "select p, a.k, w, q from a left join r b on a.k = b.k order by p, q",
    ),
    "union, aggregate": (
        grouped_union,
        """select k, count(*), sum(p)::hugeint, first(p order by p) from
           (select k, p from a union all select k, q + 1000 from b) group by k order by min(p)""",
    ),
    "aggregate in two steps": (
        partial_steps,
        "select s, count(*), sum(v)::hugeint, avg(v) from a group by s order by s nulls last",
    ),
    "distinct, top n, limit": (
        first_rows,
        """select s, v, p from (from a qualify row_number() over (partition by k, s order by p) = 1)
           order by v nulls last, s nulls last, p limit 7 offset 2""",
    ),
    "sort, window": (
        windowed,
        """select s, v, p, row_number() over w, sum(v) over w, lag(p) over w from a
           window w as (partition by s order by v nulls last, p rows unbounded preceding)
           order by s nulls last, v nulls last, p""",
    ),
}

JOINING = (merge_join, grouped_join, hash_join, grouped_union)
"""The plans that read both sources; those of the others that lead nowhere are not planned."""


def in_batches(table: pa.Table, size: int) -> pa.Table:
    """The table in batches of ``size`` rows, with empty ones between them."""
    empty = pa.RecordBatch.from_pylist([], table.schema)
    batches = [empty]
    for batch in table.combine_chunks().to_batches(max_chunksize=size):
        batches += [batch, empty]
    return pa.Table.from_batches(batches)


def built(plan: Plan, seed: int) -> Stream:
    flow = Flow("blocking")
    sources = [flow.from_tables([table.slice(0, 0)], name=name) for name, table in WINDOWS[0].items()]
    a, b = (Pausing(source, seed + number).then(source) for number, source in enumerate(sources))
    return plan(a, b).stream


@pytest.mark.parametrize("name", PLANS)
def test_plan_gives_the_rows_of_duckdb_in_their_order_however_it_is_held_up(name: str) -> None:
    plan, sql = PLANS[name]
    used = "ab" if plan in JOINING else "a"
    wanted = [nearly(asked(sql, r=RIGHT, **window)) for window in WINDOWS]
    assert wanted[0], "a test of nothing"
    for size in SIZES[:4]:
        *sets, last = [{source: in_batches(window[source], size) for source in used} for window in WINDOWS]
        for seed in SEEDS:
            with tiny_credit():
                found = Simulation(lambda seed=seed: built(plan, seed), sets, last, seed).run()
            assert [nearly(plain_rows(rows)) for rows in found] == wanted, f"size {size}, seed {seed}"

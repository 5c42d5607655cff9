"""What ``engine.py`` measures: operators and pipelines, each beside the bare pyarrow code that does the same.

A *case* gives two callables over the same batches. Ours drives the operator as a driver does, on one thread; theirs is
a loop over the batches for what works batch by batch, and one call over the whole input for what does not. Both keep
their result until the end, and pyarrow uses one thread too: a job runs as many drivers as it has cores. Arithmetic is
checked on both sides, as the operators of expressions are: a sum that does not fit is an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.core.operator import OperatorConfig, OperatorContext, exhaust
from penstock.engine.flow import index
from penstock.engine.operators import (
    Aggregate,
    Distinct,
    Filter,
    HashAggregate,
    HashJoin,
    Limit,
    LookupJoin,
    MapBatches,
    MarkDistinct,
    MergeJoin,
    Project,
    Sort,
    SortKey,
    StreamAggregate,
    TopN,
    Union,
    Unnest,
    Window,
    WindowFunction,
)

Work: TypeAlias = Callable[[], Any]
STATELESS, STATEFUL = 0.9, 1.0


@dataclass(frozen=True)
class Case:
    """Two ways to do the same for ``rows`` rows; ``aim``: ours should be so many times as fast."""

    name: str
    peer: str
    rows: int
    ours: Work
    theirs: Work
    aim: float


@dataclass
class Kept:
    """An output that keeps the batches."""

    batches: list[pa.RecordBatch] = field(default_factory=list)

    def emit(self, batch: Batch) -> None:
        self.batches.append(batch.records)


# ---------------------------------------------------------------------- data


def table(rows: int, group: int, seed: int = 1) -> pa.Table:
    """Rows clustered and sorted by ``k`` (``group`` rows each), with a random key ``r``, numbers, texts and lists."""
    chance = np.random.default_rng(seed)
    lengths = chance.integers(0, 6, rows)
    values = pa.array(chance.integers(0, 1000, int(lengths.sum())))
    columns = {
        "k": np.arange(rows) // group,
        "r": chance.integers(0, max(rows // group, 1), rows),
        "v": chance.integers(0, 1000, rows),
        "x": chance.random(rows),
        "s": pa.array([f"carrier {number:03}" for number in range(100)]).take(pa.array(chance.integers(0, 100, rows))),
        "l": pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32)), values),
    }
    return pa.table(columns)


def batches_of(given: pa.Table, size: int) -> list[pa.RecordBatch]:
    """The table in batches of ``size`` rows."""
    return list(given.combine_chunks().to_batches(max_chunksize=size))


# ---------------------------------------------------------------------- driving


def driven(config: OperatorConfig, *ports: Sequence[pa.RecordBatch]) -> Work:
    """A run of one operator over one round: its ports in turn, as far as it accepts them; the build of a hash join
    first."""
    tagged = [[Batch(records, Tag(0, 0, n)) for n, records in enumerate(port)] for port in ports]
    schemas = [port[0].schema for port in ports]
    context = OperatorContext("operator", TaskId("stage", 0), Attempt(1, 1), 1, range(1))
    first = len(ports) - 1 if isinstance(config, HashJoin) else 0

    def run() -> list[pa.RecordBatch]:
        running, out = config.build(context, schemas, None), Kept()
        left = [deque(batches) for batches in tagged]
        port = first
        if len(left) == 1:  # what a driver does besides is measured by the pipelines
            while len(left[0]) > 1:
                exhaust(running.process(0, left[0].popleft(), out))
        while any(left):
            while not left[port] or not running.accepts(port):
                port = (port + 1) % len(left)
            exhaust(running.process(port, left[port].popleft(), out))
            if not left[port]:
                for round in (0, FINAL_ROUND):
                    exhaust(running.end_round(port, round, out))
                exhaust(running.end_port(port, out))
            elif not isinstance(config, HashJoin):
                port = (port + 1) % len(left)
        exhaust(running.finish(out))
        running.close()
        return out.batches

    return run


def looped(each: Callable[[pa.RecordBatch], Any], batches: Sequence[pa.RecordBatch]) -> Work:
    """The bare loop."""
    return lambda: [each(batch) for batch in batches]


def grouped(rows: pa.Table, by: list[str], *asked: tuple[Any, ...]) -> Work:
    """Pyarrow's group by over the whole input."""
    return lambda: rows.group_by(by, use_threads=False).aggregate(list(asked))


def joined(left: pa.Table, right: pa.Table, keys: list[str], how: str = "inner") -> Work:
    """Pyarrow's join over the whole input."""
    return lambda: left.join(right, keys, join_type=how, right_suffix="_right", use_threads=False)


# ---------------------------------------------------------------------- operators


def stateless_cases(rows: int, size: int) -> list[Case]:
    """Operators that work batch by batch."""
    batches = batches_of(table(rows, 10), size)
    narrow = [batch.select(["k", "v", "x"]) for batch in batches]
    schema = pa.schema([("k", pa.int64()), ("d", pa.float64())])

    def project(batch: pa.RecordBatch) -> pa.RecordBatch:
        sums = pc.add_checked(batch.column("v"), batch.column("k"))
        twice = pc.multiply_checked(batch.column("x"), 2.0)
        return pa.RecordBatch.from_arrays([batch.column("k"), batch.column("x"), sums, twice], ["k", "x", "t", "d"])

    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        twice = pc.multiply_checked(batch.column("x"), 2.0)
        return pa.RecordBatch.from_arrays([batch.column("k"), twice], schema=schema)

    def unnest(batch: pa.RecordBatch) -> pa.RecordBatch:
        parents = pc.list_parent_indices(batch.column("l"))
        arrays = [batch.column("k").take(parents), batch.column("s").take(parents), batch.column("l").flatten()]
        return pa.RecordBatch.from_arrays(arrays, ["k", "s", "l"])

    derived = {"t": pc.field("v") + pc.field("k"), "d": pc.field("x") * 2.0}
    few, many = pc.field("v") < 100, pc.field("v") < 900
    lists = [batch.select(["k", "s", "l"]) for batch in batches]
    work: list[tuple[str, Work, Work]] = [
        ("filter, 10 % pass", driven(Filter(few), batches), looped(lambda b: b.filter(pc.less(b["v"], 100)), batches)),
        ("filter, 90 % pass", driven(Filter(many), narrow), looped(lambda b: b.filter(pc.less(b["v"], 900)), narrow)),
        ("project, 2 of 4 computed", driven(Project.keeping(["k", "x"], derived), narrow), looped(project, narrow)),
        ("map batches", driven(MapBatches(doubled, schema), narrow), looped(doubled, narrow)),
        ("unnest", driven(Unnest(("l",)), lists), looped(unnest, lists)),
    ]
    return [Case(name, "pyarrow loop", rows, ours, theirs, STATELESS) for name, ours, theirs in work]


def with_texts(given: pa.Table, count: int) -> pa.Table:
    """The rows with a column ``w`` of so many texts, any of which may be next."""
    numbers = np.random.default_rng(4).integers(0, count, given.num_rows)
    texts = pa.array([f"some text {number}" for number in range(count)])
    return given.append_column("w", texts.take(pa.array(numbers)))


def grouping_cases(rows: int, size: int) -> list[Case]:
    """Aggregations and their like."""
    some, many = table(rows, 10), table(rows, 2)
    few = some.set_column(1, "r", pc.bit_wise_and(some["r"], 63))
    asked = (Aggregate("n", None, "count"), Aggregate("t", "v", "sum"), Aggregate("m", "x", "mean"))
    theirs = (([], "count_all"), ("v", "sum"), ("x", "mean"))
    spread = (Aggregate("lo", "v", "min"), Aggregate("hi", "v", "max"), Aggregate("sd", "x", "stddev"))
    their_spread = (("v", "min"), ("v", "max"), ("x", "stddev"))
    texts = {count: with_texts(some, count) for count in (1000, 100_000)}
    numbered = some.select(["r", "v"]).append_column("p", pa.array(np.arange(rows)))
    return [
        Case(name, "pyarrow " + peer, rows, driven(config, batches_of(given, size)), work, STATEFUL)
        for name, config, given, peer, work in (
            ("stream aggregate, count sum mean", StreamAggregate(("k",), asked), some, "group by",
             grouped(some, ["k"], *theirs)),
            ("stream aggregate, min max stddev", StreamAggregate(("k",), spread), some, "group by",
             grouped(some, ["k"], *their_spread)),
            ("hash aggregate, 64 groups", HashAggregate(("r",), asked), few, "group by",
             grouped(few, ["r"], *theirs)),
            (f"hash aggregate, {rows // 2:,} groups", HashAggregate(("r",), asked), many, "group by",
             grouped(many, ["r"], *theirs)),
            *((f"hash aggregate, {count:,} texts", HashAggregate(("w",), asked), given, "group by",
               grouped(given, ["w"], *theirs)) for count, given in texts.items()),
            ("distinct", Distinct(("r",)), some.select(["r", "v"]), "group by",
             grouped(some.select(["r", "v"]), ["r"], ("v", "first"))),
            ("mark distinct", MarkDistinct(("r",), "new"), some.select(["r", "v"]), "group by, is in",
             lambda: numbered.append_column("new", pc.is_in(numbered["p"], value_set=numbered.group_by(
                 "r", use_threads=False).aggregate([("p", "first")])["p_first"]))),
        )
    ]  # fmt: skip


def joining_cases(rows: int, size: int) -> list[Case]:
    """Joins. The right sides have a key column, and values."""
    left = table(rows, 4).select(["k", "v", "x"])
    right = pa.table({"k": np.arange(0, rows // 4, 2), "w": np.arange(len(range(0, rows // 4, 2)))})
    unique = pa.table({"k": np.arange(rows), "v": np.arange(rows)})
    other = pa.table({"k": np.arange(0, 2 * rows, 2), "w": np.arange(rows)})
    probe = table(rows, 100).select(["r", "v", "x"]).rename_columns(["k", "v", "x"])
    build = pa.table({"k": np.random.default_rng(3).permutation(rows // 100), "w": np.arange(rows // 100)})

    def two(config: OperatorConfig, one: pa.Table, other: pa.Table) -> Work:
        return driven(config, batches_of(one, size), batches_of(other, size))

    return [
        Case(name, "pyarrow join", count, ours, theirs, STATEFUL)
        for name, count, ours, theirs in (
            ("merge join inner, keys unique", 2 * rows, two(MergeJoin(("k",)), unique, other),
             joined(unique, other, ["k"])),
            ("merge join left, 4 rows a key", left.num_rows + right.num_rows,
             two(MergeJoin(("k",), "left"), left, right), joined(left, right, ["k"], "left outer")),
            ("hash join inner, 1 % build", probe.num_rows + build.num_rows, two(HashJoin(("k",)), probe, build),
             joined(probe, build, ["k"])),
            ("hash join left, keys unique", 2 * rows, two(HashJoin(("k",), "left"), unique, other),
             joined(unique, other, ["k"], "left outer")),
            ("lookup join inner", probe.num_rows,
             driven(LookupJoin(index.memory(build, "k"), ("k",)), batches_of(probe, size)),
             joined(probe, build, ["k"])),
        )
    ]  # fmt: skip


def ordering_cases(rows: int, size: int) -> list[Case]:
    """What depends on order."""
    given = table(rows, 1000).select(["k", "r", "v", "x"])
    batches = batches_of(given, size)
    by_x, by_two = (SortKey("x"),), (SortKey("r"), SortKey("x", descending=True))
    running = Window(("k",), (), (WindowFunction("t", "sum", "v"), WindowFunction("n", "row_number")))

    def windowed() -> list[pa.Array]:
        whole = given["v"].combine_chunks()
        return [(pc.cumulative_sum(whole.slice(start, 1000)), np.arange(1, 1001)) for start in range(0, rows, 1000)]

    return [
        Case("sort by a float", "pyarrow sort", rows, driven(Sort(by_x), batches),
             lambda: given.sort_by("x"), STATEFUL),
        Case("sort by two keys", "pyarrow sort", rows, driven(Sort(by_two), batches),
             lambda: given.sort_by([("r", "ascending"), ("x", "descending")]), STATEFUL),
        Case("top n, 100 rows", "pyarrow select k", rows, driven(TopN(by_x, 100), batches),
             lambda: given.take(pc.select_k_unstable(given, 100, [("x", "ascending")])), STATEFUL),
        Case("window, partitions of 1,000", "pyarrow loop", rows, driven(running, batches), windowed, STATEFUL),
    ]  # fmt: skip


# ---------------------------------------------------------------------- overhead


def overhead_cases(calls: int) -> list[tuple[str, Work]]:
    """Every operator over batches of one row: name, and a run of ``calls`` batches."""
    one = batches_of(table(calls, 10), 1)
    plain = [batch.select(["k", "v", "x"]) for batch in one]
    lists = [batch.select(["k", "s", "l"]) for batch in one]
    half = calls // 2
    asked = (Aggregate("t", "v", "sum"),)
    build = pa.table({"k": np.arange(100), "w": np.arange(100)})
    configs: list[tuple[OperatorConfig, list[list[pa.RecordBatch]]]] = [
        (Filter(pc.field("v") < 500), [plain]),
        (Project.keeping(["k"], {"d": pc.field("x") * 2.0}), [plain]),
        (Project.keeping(["k", "x"]), [plain]),
        (MapBatches(_same, plain[0].schema), [plain]),
        (Unnest(("l",)), [lists]),
        (Limit(calls), [plain]),
        (Union(2), [plain[:half], plain[half:]]),
        (StreamAggregate(("k",), asked), [plain]),
        (HashAggregate(("k",), asked), [plain]),
        (Distinct(("k",)), [plain]),
        (MarkDistinct(("k",), "new"), [plain]),
        (MergeJoin(("k",)), [plain[:half], plain[:half]]),
        (HashJoin(("k",)), [plain[:half], plain[:half]]),
        (LookupJoin(index.memory(build, "k"), ("k",)), [plain]),
        (Sort((SortKey("x"),)), [plain]),
        (TopN((SortKey("x"),), 10), [plain]),
        (Window(("k",), (), (WindowFunction("n", "row_number"),)), [plain]),
    ]
    return [(f"{config.kind}: {config.describe()[:40]}", driven(config, *ports)) for config, ports in configs]


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch

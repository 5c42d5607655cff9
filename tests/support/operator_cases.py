"""Every operator, built in or as a user writes it, and rows that it takes: what contract tests run over."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

import penstock as ps
from penstock.engine.core.operator import OperatorConfig
from penstock.engine.kernels.aggregate_protocol import Segments
from penstock.engine.kernels.sorting import as_sort_keys
from penstock.engine.operators import (
    Aggregate,
    Batches,
    Distinct,
    DrawnShuffle,
    Filter,
    FullShuffle,
    HashAggregate,
    HashJoin,
    Limit,
    LookupJoin,
    MapBatches,
    MarkDistinct,
    MergeJoin,
    Mix,
    Pack,
    Project,
    Sample,
    Shuffle,
    Sort,
    StreamAggregate,
    TooLong,
    TopN,
    Union,
    Unnest,
    Window,
    WindowFunction,
)
from penstock.engine.operators.join.join_shape import JOIN_TYPES
from penstock.engine.operators.join.replicated_join import MarkPart, ReplicatedJoin
from penstock.engine.operators.rowwise.bad_rows import BadRows
from penstock.engine.operators.rowwise.filter import NarrowedFilter
from penstock.engine.operators.rowwise.map_batches import ForgivingMapBatches
from penstock.engine.operators.sequence.regroup import Regroup
from penstock.engine.plan.partitioning import HashPartitioning, wire_schema
from support.operator_harness import LANES, Units
from support.own_operators import Above, AboveInParts, AboveUntold, Counted, Doubled

ROUNDS = 3
INDEX = ps.index.memory(pa.table({"k": [1, 2, 2, 5], "c": [10, 20, 21, 50]}), key="k")
TOTAL = (Aggregate("total", "v", "sum"),)


def twice(records: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([records, records])


class MostOfOnesOwn:
    """An aggregate function that no name stands for: the largest number, and 0 of none."""

    name = "most"
    ordered = False

    def state_types(self, column: pa.DataType | None) -> tuple[pa.DataType, ...]:
        return (pa.int64(),)

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        return pa.int64()

    def lift(self, values: pa.Array, rows: int) -> tuple[pa.Array, ...]:
        return (pa.array([value or 0 for value in values.to_pylist()], pa.int64()),)

    def blank(self, column: pa.DataType | None, rows: int) -> tuple[pa.Array, ...]:
        return (pa.array([0] * rows, pa.int64()),)

    def merge(self, state: tuple[pa.Array, ...], segments: Segments) -> tuple[pa.Array, ...]:
        return (pa.array(np.maximum.reduceat(state[0].to_numpy(), segments.starts)),)

    def final(self, state: tuple[pa.Array, ...], column: pa.DataType | None) -> pa.Array:
        return state[0]


LIKE = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("c", pa.int64()), ("l", pa.list_(pa.int64()))])
ONE: dict[str, OperatorConfig] = {
    "filter": Filter("v > 9 or k = 1"),
    "narrowed filter": NarrowedFilter("v > 9 or k = 1", keeps=frozenset({"k"})),
    "project": Project((("k", "k"), ("w", "v + c"), ("v", "v"), ("two", "2"))),
    "project what cannot fail": Project((("key", "k"), ("v", "v"), ("large", "v > 9"), ("c", "coalesce(c, v)"))),
    "map batches": MapBatches(twice, LIKE),
    "map batches that forgive": ForgivingMapBatches(twice, LIKE),
    "map batches in parts": MapBatches(twice, LIKE, 2),
    "unnest": Unnest(("l",), ordinality="place"),
    "unnest outer": Unnest(("l",), outer=True, marker="is_element"),
    "lookup": LookupJoin(INDEX, ("k",)),
    "lookup where": LookupJoin(INDEX, ("k",), how="left", filter="c_right > v", marker="found"),
    "limit": Limit(17, 3),
    "sample": Sample(0.6, seed=3),
    "shuffle": Shuffle(7, seed=3),
    "batches": Batches((9,), "l"),
    "batches of a window": Batches((9,), "l", window=8),
    "batches in buckets": Batches((9, 4), bucket_by="c", boundaries=(20,)),
    "too long": TooLong(1, "split", "l", ("l",)),
    "bad rows": BadRows("rows", column="c"),
    "bad rows left out": BadRows("rows", drops=True, column="c"),
    "full shuffle": FullShuffle(seed=3),
    "drawn shuffle": DrawnShuffle(7, seed=3, interleave=2),
    "sort": Sort(as_sort_keys(["c", "v"])),
    "top n": TopN(as_sort_keys(["c"]), 9),
    "top n of lanes": TopN(as_sort_keys(["c"]), 3, per_lane=True),
    "regroup": Regroup(HashPartitioning(("k",), LANES)),
    "distinct": Distinct(("k",)),
    "distinct rows": Distinct(),
    "distinct in lanes": Distinct(("k",), per_lane=True),
    "mark distinct": MarkDistinct(("k",), "is_first"),
    "window": Window(("k",), (), (WindowFunction("place", "row_number"),)),
    "window of frames": Window(
        ("k",), (), (WindowFunction("m", "mean", "v", frame=(-1, 1)), WindowFunction("t", "ntile(2)"))
    ),
    "aggregate": HashAggregate(("k",), TOTAL),
    "aggregate of one's own": HashAggregate(("k",), (Aggregate("most", "v", MostOfOnesOwn()),)),
    "aggregate all": HashAggregate((), TOTAL),
    "count": HashAggregate(("k",), (Aggregate("n", None, "count"), Aggregate("least", "v", "min"))),
    "median": HashAggregate(("k",), (Aggregate("half", "v", "median"), Aggregate("most", "c", "quantile_disc(0.9)"))),
    "sketches in lanes": HashAggregate(
        ("k",),
        (Aggregate("n", "c", "approx_count_distinct"), Aggregate("half", "v", "approx_quantile(0.5)")),
        step="partial",
    ),
    "partial count": HashAggregate(("k",), (Aggregate("n", None, "count"),), step="partial"),
    "partial aggregate": HashAggregate(("k",), TOTAL, step="partial"),
    "stream aggregate": StreamAggregate(("k",), TOTAL),
    "stream aggregate, in any order": StreamAggregate(("k",), TOTAL).traits.unordered(),
    "pack": Pack(4, "l", documents="documents"),
    "mark part": MarkPart(),
    "above": Above("v", 9),
    "above untold": AboveUntold("v", 9),
    "above in parts": AboveInParts("v", 9),
    "doubled": Doubled("k", ("v", "c")),
    "counted": Counted("k"),
}
WHERE = "v > 20 and c_right < 30 and v <> c"
TWO: dict[str, OperatorConfig] = {
    "union": Union(2),
    "mix": Mix((2.0, 1.0), at_end="go on"),
    "mix to the first end": Mix((2.0, 1.0)),
    "mix that begins again": Mix((2.0, 1.0), at_end="begin again"),
    **{f"hash {how}": HashJoin(("k",), how=how) for how in JOIN_TYPES},
    **{
        f"hash {how} where": HashJoin(("k",), how=how, filter="v > 20 and c_right < 30 and v <> c")
        for how in JOIN_TYPES
    },
    **{f"merge {how}": MergeJoin(("k",), how=how, filter="v != c_right") for how in JOIN_TYPES},
    "hash by two names": HashJoin(("k",), how="full", right_on=("c",)),
    "replicated": ReplicatedJoin(HashJoin(("k",))),
}
CASES = {**ONE, **TWO}


def unit(round: int, lane: int, port: int) -> pa.Table:
    """Rows that are sorted by k, and no two alike."""
    chance = random.Random(f"{round} {lane} {port}")
    keys = sorted(chance.randrange(6) for _ in range(chance.choice((0, 3, 9))))
    first = 1000 * port + 100 * round + 20 * lane
    rows = range(first, first + len(keys))
    lists = [[row] * chance.randrange(4) for row in rows]
    return pa.table([keys, rows, [chance.randrange(40) for _ in rows], lists], schema=LIKE)


def ports_of(name: str) -> list[Units]:
    found: list[Units] = []
    for port in range(2 if name in TWO else 1):
        units = {(round, lane): unit(round, lane, port) for round in range(ROUNDS) for lane in range(LANES)}
        if name == "replicated" and port == 0:
            units = {at: rows.append_column(wire_schema(LIKE).field(4), pa.array([at[1]] * len(rows), pa.uint16()))
                     for at, rows in units.items()}  # fmt: skip
        found.append(units)
    return found


def schemas_of(ports: Sequence[Units]) -> list[pa.Schema]:
    return [port[0, 0].schema for port in ports]

"""What every operator that holds rows promises of its output: pieces within the bound, made one by one.

Rules checked, with one key 6,000 times, cells of 48 KiB and lists of 100,000 elements:

1. A batch has at most ``output_rows`` rows and ``output_bytes`` bytes, or it is one row.
2. At no time more is in memory than what the operator held before its first step, and a few pieces; between two steps
   this holds for the values of groups, too.
3. Rows and their order do not depend on the bound.
4. Where a lane is cut depends on its own rows: not on other lanes of the subtask, nor on what lies on disk. So a
   function behind, which sees batches, gives the same at any parallelism.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.operator import OperatorConfig, Steps
from penstock.engine.operators import (
    Aggregate,
    Distinct,
    HashAggregate,
    Limit,
    MarkDistinct,
    Mix,
    Pack,
    Shuffle,
    Sort,
    SortKey,
    StreamAggregate,
    TopN,
    Union,
    Window,
    WindowFunction,
)
from penstock.engine.operators.sequence.regroup import Regroup
from penstock.engine.plan.partitioning import HashPartitioning
from support.operator_harness import Outcome, context, run
from support.spilling import budget

OUTPUT_ROWS, OUTPUT_BYTES = 1000, 1024 * 1024
ROUNDING = 32
"""Bytes: bits are rounded up, and there is an offset more than there are rows."""
A_FEW = 6
"""Pieces: the one that is made, what it is picked or put together from, and those in the hands of a merge."""

BY_VALUE = (SortKey("v", descending=True),)
LISTS = tuple(Aggregate(f"all {name}", name, "collect_list") for name in "vsl")
OPERATORS: dict[str, OperatorConfig] = {
    "limit": Limit(10**6),
    "union": Union(2),
    "mix": Mix((1.0, 2.0), at_end="go on"),
    "regroup": Regroup(HashPartitioning(("v",), 4)),
    "sort": Sort(BY_VALUE),
    "top n": TopN(BY_VALUE, 10**6),
    "top n per lane": TopN(BY_VALUE, 10**6, per_lane=True),
    "shuffle": Shuffle(2500),
    "shuffle all": Shuffle(10**6),
    "pack": Pack(512, tokens="l", documents="documents"),
    "distinct": Distinct(("v",)),
    "mark distinct": MarkDistinct(("v",), "first"),
    "window": Window(("k",), (SortKey("v"),), (WindowFunction("r", "row_number"), WindowFunction("t", "sum", "v"))),
    "stream aggregate": StreamAggregate(("v",), (Aggregate("s", "s", "first"), Aggregate("l", "l", "last"))),
    "hash aggregate": HashAggregate(("v",), (Aggregate("s", "s", "first"), Aggregate("l", "l", "last"))),
    "partial": HashAggregate(("v",), (Aggregate("s", "s", "first"),), step="partial"),
    "lists": HashAggregate(("v",), LISTS),
    "distinct lists": HashAggregate(("v",), (Aggregate("s", "s", "collect_list", distinct=True),)),
    "ordered lists": HashAggregate(("v",), (Aggregate("s", "s", "collect_list", order_by=("v",)),)),
}
GATHERING = {"hash aggregate": 2, "partial": 2, "lists": 3, "distinct lists": 2, "ordered lists": 2}
"""Operators that have more in memory within a step: values of groups are brought together for their result."""
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int32()))])


@dataclass(frozen=True)
class Extreme:
    """An input: so many rows, with strings and lists of so many characters and elements."""

    rows: int
    characters: int
    elements: int
    batch: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Made as they are asked for, so that nobody else holds them."""
        for low in range(0, self.rows, self.batch):
            numbers = np.arange(low, min(low + self.batch, self.rows))
            lists = pa.array(np.repeat(numbers.astype(np.int32), self.elements))
            offsets = np.arange(len(numbers) + 1, dtype=np.int32) * self.elements
            yield pa.record_batch(
                [
                    pa.array(np.zeros(len(numbers), dtype=np.int64)),
                    pa.array(numbers),
                    pa.array([f"{number:0{self.characters}}" for number in numbers.tolist()]),
                    pa.ListArray.from_arrays(pa.array(offsets), pa.concat_arrays([lists, lists.slice(0, 0)])),
                ],
                schema=SCHEMA,
            )


INPUTS = {
    "one key 6,000 times": Extreme(6000, 8, 2, 700),
    "cells of 48 KiB": Extreme(400, 48 * 1024, 1, 20),
    "lists of 100,000": Extreme(40, 4, 100_000, 2),
}


class Bounded:
    """An output that looks at what comes, and lets go of it."""

    def __init__(self, rows: int, size: int) -> None:
        self._rows, self._size = rows, size

    def emit(self, batch: Batch) -> None:
        records = batch.records
        assert records.num_rows <= self._rows
        assert records.num_rows == 1 or records.nbytes <= self._size, f"{records.num_rows} rows: {records.nbytes} bytes"


def in_memory(config: OperatorConfig, given: Extreme, ports: int, pool: pa.MemoryPool) -> tuple[int, int, int]:
    """Bytes: the most that there were before the steps of a call, between two steps, and at any time."""
    out = Bounded(OUTPUT_ROWS, OUTPUT_BYTES)
    where = replace(context(), output_rows=OUTPUT_ROWS, output_bytes=OUTPUT_BYTES)
    running = config.build(where, [SCHEMA] * ports, None)
    held = most = 0

    def take(call: Callable[..., Steps], *arguments: Any) -> None:
        nonlocal held, most
        steps = call(*arguments, out)
        held = max(held, pool.bytes_allocated())
        for _ in steps or ():
            most = max(most, pool.bytes_allocated())

    for port in range(ports):
        for number, records in enumerate(given.batches()):
            take(running.process, port, Batch(records, Tag(0, 0, number)))
            del records
    for round in (0, FINAL_ROUND):
        for port in range(ports):
            take(running.end_round, port, round)
    for port in range(ports):
        take(running.end_port, port)
    take(running.finish)
    running.close()
    del running, take
    gc.collect()
    assert pool.bytes_allocated() == 0, "it keeps memory"
    return held, most, pool.max_memory()


@pytest.mark.parametrize("input", INPUTS)
@pytest.mark.parametrize("name", OPERATORS)
def test_pieces_are_within_the_bound_and_made_one_by_one(name: str, input: str) -> None:
    extreme = INPUTS[input]
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        held, most, peak = in_memory(OPERATORS[name], extreme, ports_of(name), pool)
    finally:
        pa.set_memory_pool(before)
    row = next(extreme.batches()).slice(0, 1).nbytes
    pieces = A_FEW * (OUTPUT_BYTES + row)
    assert most <= held + pieces
    assert peak <= held * GATHERING.get(name, 1) + pieces


def ports_of(name: str) -> int:
    return 2 if name in ("union", "mix") else 1


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    bound=st.sampled_from([(1, 2**20), (7, 2**20), (2**16, 100), (5, 40)]),
    size=st.sampled_from([1, 3, 1024]),
    spills=st.booleans(),
)
def test_rows_and_their_order_do_not_depend_on_the_bound(
    name: str, seed: int, bound: tuple[int, int], size: int, spills: bool
) -> None:
    chance = np.random.default_rng(seed)
    ports = [units_of(chance) for _ in range(ports_of(name))]
    config = OPERATORS[name]
    straight = run(config, *ports, schemas=[SCHEMA] * len(ports), seed=seed)
    with budget(0 if spills else None) as memory:
        rows, most = bound
        cut = run(
            config,
            *ports,
            schemas=[SCHEMA] * len(ports),
            size=size,
            seed=seed + 1,
            output_rows=rows,
            output_bytes=most,
            memory=memory,
        )
    assert cut.units == straight.units
    if name in ("limit", "union"):
        return  # they pass batches on as they came
    for batch in cut.batches:
        assert batch.records.num_rows <= rows
        assert batch.records.num_rows == 1 or batch.records.nbytes <= most + ROUNDING


BOUNDS = ((5, 2**20), (3, 150), (2**16, 100))


@pytest.mark.parametrize(
    "config", [Distinct(("v",), per_lane=True), OPERATORS["mark distinct"], OPERATORS["stream aggregate"]]
)
@pytest.mark.parametrize("bound", BOUNDS)
def test_a_lane_is_cut_by_its_own_rows(config: OperatorConfig, bound: tuple[int, int]) -> None:
    for seed in range(10):
        units = units_of(np.random.default_rng(seed))
        rows, most = bound
        alone, *others = (
            run(
                config,
                units,
                schemas=[SCHEMA],
                size=3,
                seed=seed,
                parallelisms=(parallelism,),
                output_rows=rows,
                output_bytes=most,
            )
            for parallelism in (4, 2, 1)
        )
        assert [cuts_of(other) for other in others] == [cuts_of(alone)] * 2


@pytest.mark.parametrize("bound", BOUNDS)
def test_sorted_rows_are_cut_alike_in_memory_and_on_disk(bound: tuple[int, int]) -> None:
    for seed in range(10):
        units = units_of(np.random.default_rng(seed))
        rows, most = bound
        found = []
        for spills in (False, True):
            with budget(0 if spills else None) as memory:
                given = {"output_rows": rows, "output_bytes": most, "memory": memory}
                found.append(cuts_of(run(OPERATORS["sort"], units, schemas=[SCHEMA], size=3, seed=seed, **given)))
        assert found[0] == found[1]


def cuts_of(outcome: Outcome) -> list[tuple[int, int, int]]:
    return [(batch.tag.round, batch.tag.lane, batch.records.num_rows) for batch in outcome.batches]


def units_of(chance: np.random.Generator) -> dict[tuple[int, int], pa.Table]:
    """Three rounds of four lanes, clustered by k, sorted by v within."""
    units = {}
    for round in range(3):
        for lane in range(4):
            count = int(chance.integers(0, 12))
            keys = np.sort(chance.integers(0, 3, count)) + 3 * round
            values = chance.integers(0, 9, count)
            order = np.lexsort([values, keys])
            words = ["x" * int(chance.integers(0, 30)) for _ in range(count)]
            lists = [chance.integers(0, 9, int(chance.integers(0, 5))).tolist() for _ in range(count)]
            columns = [pa.array(keys[order]), pa.array(values[order]), pa.array(words, pa.string())]
            units[round, lane] = pa.table([*columns, pa.array(lists, SCHEMA.field("l").type)], schema=SCHEMA)
    return units

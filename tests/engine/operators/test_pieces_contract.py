"""What makes much out of little gives it in steps: a piece of bounded rows and bytes each, made when its step is taken.

Each case is given input of which the output is many times as large; the batches are dropped as they come. An account is
kept of the largest batch and of what Arrow's memory pool holds from step to step, beyond the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.operator import AsynchronousOperator, OperatorConfig, RunningOperator, Steps
from penstock.engine.flow import index
from penstock.engine.kernels.row_bits import row_bits
from penstock.engine.operators import HashJoin, LookupJoin, MapBatches, MergeJoin, Unnest
from penstock.engine.operators.join.equi_join import EquiJoin
from penstock.engine.operators.join.join_shape import JOIN_TYPES
from support.index_kinds import Delayed
from support.operator_harness import context

ROWS, BYTES = 4096, 256 * 1024


@dataclass
class Account:
    """An output that remembers how much came, not what."""

    rows: int = 0
    batches: int = 0
    of_step: int = 0
    largest: tuple[int, int] = (0, 0)
    peak: int = 0

    def emit(self, batch: Batch) -> None:
        records = batch.records
        bits = np.broadcast_to(row_bits(records.columns, np.arange(records.num_rows)), records.num_rows)
        assert records.num_rows == 1 or int(bits.sum()) <= BYTES * 8, "a piece of several rows has too many bytes"
        assert records.num_rows <= ROWS
        self.of_step += 1
        self.rows, self.batches = self.rows + records.num_rows, self.batches + 1
        self.largest = max(self.largest[0], records.num_rows), max(self.largest[1], records.nbytes)

    def take(self, steps: Steps) -> None:
        """Take the steps of a call, which may have emitted one piece itself."""
        for _ in self._noted(steps):
            assert self.of_step <= 1, "a step has emitted several pieces"
            self.of_step = 0
            self.peak = max(self.peak, pa.total_allocated_bytes())

    def _noted(self, steps: Steps) -> Iterator[None]:
        yield
        yield from steps or ()
        yield


def built(config: OperatorConfig, *inputs: pa.Schema) -> RunningOperator:
    return config.build(replace(context(), output_rows=ROWS, output_bytes=BYTES), inputs, None)


def batch_of(records: pa.RecordBatch) -> Batch:
    return Batch(records, Tag(0, 0, 0))


def run(config: OperatorConfig, *ports: pa.RecordBatch) -> Account:
    """The account of one batch for each port, the last port first, and of the end."""
    running = built(config, *(port.schema for port in ports))
    account, before = Account(), pa.total_allocated_bytes()
    for port in reversed(range(len(ports))):
        account.take(running.process(port, batch_of(ports[port]), account))
        account.take(running.end_round(port, FINAL_ROUND, account))
        account.take(running.end_port(port, account))
    account.take(running.finish(account))
    running.close()
    account.peak -= before
    return account


UNNEST = {
    "long lists": pa.record_batch({"k": [1, 2], "l": [np.zeros(100_000, dtype=np.int8)] * 2}),
    "wide cells beside them": pa.record_batch({"k": ["x" * 48_000, "y"], "l": [list(range(3000))] * 2}),
    "wide elements": pa.record_batch({"k": [1, 2], "l": [["x" * 48_000] * 90, ["y"] * 9000]}),
    "lists in lists": pa.record_batch({"k": [1], "l": [[["x" * n] * (n % 7) for n in range(3000)]]}),
}


@pytest.mark.parametrize("name", UNNEST)
@pytest.mark.parametrize("outer", [False, True])
def test_unnest_gives_pieces_made_with_each_step(name: str, outer: bool) -> None:
    records = UNNEST[name]
    account = run(Unnest(("l",), ordinality="at", outer=outer), records)
    assert account.rows == sum(len(each) for each in records.column("l").to_pylist())
    assert account.largest[0] == ROWS or account.largest[1] > BYTES / 2
    assert account.peak < 3 * BYTES


def test_unnest_of_a_dictionary_of_long_lists_does_not_decode_it() -> None:
    lists = pa.array([np.zeros(100_000, dtype=np.int8), np.ones(10, dtype=np.int8)])
    column = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 0] * 50, pa.int32()), lists)
    account = run(Unnest(("l",)), pa.record_batch({"l": column}))
    assert account.rows == 50 * 200_010
    assert account.peak < 3 * BYTES


@pytest.mark.parametrize("wide", [False, True])
def test_map_batches_gives_what_a_function_makes_in_pieces(wide: bool) -> None:
    text = "x" * 48_000 if wide else "x"
    made = pa.table({"t": [text] * 20_000}) if not wide else pa.table({"t": [text, *["y"] * 100] * 20})
    account = run(MapBatches(lambda records: made, made.schema), pa.record_batch({"a": [1]}))
    assert account.rows == made.num_rows
    assert account.batches >= 3
    assert account.peak <= 2 * made.nbytes


EQUAL = 2000
"""Rows of one key on each side: 4 million pairs, of which one column of whole numbers would take 32 MB."""

FILTERS = {"": None, "half of the pairs": "v < w", "no pair": "v < 0"}

SIDES = {
    "numbers": lambda name: pa.record_batch({"k": pa.array([1] * EQUAL), name: range(EQUAL)}),
    "wide cells": lambda name: pa.record_batch(
        {"k": pa.array([1] * 40), name: range(40), f"t{name}": [("x" if n % 8 else "x" * 48_000) for n in range(40)]}
    ),
    "all keys differ": lambda name: pa.record_batch(
        {"k": pa.array(range(0, 40_000, 2) if name == "v" else range(1, 40_000, 2)), name: range(20_000)}
    ),
}


def expected_rows(kind: str, how: str, filter: str) -> int:
    rows = SIDES[kind]("v").num_rows
    if kind == "all keys differ":
        return {"left": rows, "right": rows, "full": 2 * rows, "anti": rows}.get(how, 0)
    pairs = {"": rows * rows, "half of the pairs": rows * (rows - 1) // 2, "no pair": 0}[filter]
    matched = {"": rows, "half of the pairs": rows - 1, "no pair": 0}[filter]
    lone = rows - matched
    added = {"inner": 0, "left": lone, "right": lone, "full": 2 * lone}
    return pairs + added[how] if how in added else lone if how == "anti" else matched


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("kind", SIDES)
@pytest.mark.parametrize("how", JOIN_TYPES)
@pytest.mark.parametrize("join", [HashJoin, MergeJoin])
def test_a_join_gives_pieces_made_with_each_step(join: type[EquiJoin], how: str, kind: str, filter: str) -> None:
    """Whatever is held beyond a few pieces is the numbers that the two sides are joined by: no product of them."""
    left, right = SIDES[kind]("v"), SIDES[kind]("w")
    account = run(join(("k",), how, filter=FILTERS[filter]), left, right)
    assert account.rows == expected_rows(kind, how, filter)
    assert account.peak < left.nbytes + right.nbytes + 6 * BYTES


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("filter", FILTERS)
def test_a_lookup_join_gives_pieces_made_with_each_step(how: str, filter: str) -> None:
    """The same whether the index answers in place, or is waited for."""
    left, right = SIDES["numbers"]("v"), SIDES["numbers"]("w")
    config = LookupJoin(index.memory(pa.table(right), "k"), ("k",), how, filter=FILTERS[filter], marker="m")
    account = run(config, left)
    assert account.rows == expected_rows("numbers", how, filter)
    running, awaited = built(replace(config, index=Delayed(config.index)), left.schema), Account()
    assert isinstance(running, AsynchronousOperator)
    assert running.process(0, batch_of(left), awaited) is None
    while running.poll(awaited):
        assert awaited.of_step <= 1
        awaited.of_step = 0
    assert (awaited.rows, awaited.batches) == (account.rows, account.batches)
    assert account.peak < left.nbytes + right.nbytes + 6 * BYTES

"""Behind a checkpoint that was given all groups: rows wait while another thread copies what they change."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.operator import LANE
from penstock.engine.kernels import growable_array
from penstock.engine.operators.aggregate import hash_aggregate, spilled_groups
from penstock.engine.operators.aggregate.aggregates import Aggregate, Step
from penstock.engine.operators.aggregate.hash_aggregate import HashAggregate
from penstock.engine.state.change_log import Changes
from support.operator_harness import context
from support.sweeps import seeds

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64(), "f": pa.float64()})
NAMES = ("count", "sum", "min", "mean", "first", "last", "variance", "collect_list")
AGGREGATES = tuple(Aggregate(f"{name} {column}", column, name) for name in NAMES for column in ("v", "f"))


class Nowhere:
    def emit(self, batch: Batch) -> None:
        """Drop it."""


class World:
    """An aggregation, and one that is never asked for its changes."""

    def __init__(self, step: Step, seed: int, keys: int = 200) -> None:
        self.chance, self.keys, self.number = random.Random(seed), keys, 0
        config = HashAggregate(("k",), AGGREGATES, step)
        self.operator, self.twin = (config.build(context(), [SCHEMA], None) for _ in range(2))

    def process(self, rows: int) -> None:
        self.number += 1
        draw = np.random.default_rng(self.chance.randrange(2**32))
        values = draw.integers(0, 100, rows)
        columns = [pa.array(draw.integers(0, self.keys, rows)), pa.array(values, mask=values < 5), pa.array(values / 7)]
        batch = Batch(pa.record_batch(columns, schema=SCHEMA), Tag(0, self.chance.randrange(2), self.number))
        for each in (self.operator, self.twin):
            each.process(0, batch, Nowhere())

    def cut(self) -> tuple[Changes, list[Any]]:
        """The changes, and what they have to give."""
        changes = self.operator.changes()
        assert isinstance(changes, Changes)
        return changes, _rows(self.twin.snapshot())


def _rows(table: pa.Table | None) -> list[Any]:
    assert table is not None
    names = sorted(set(table.schema.names) - {"position"})
    return sorted(table.select(names).sort_by([("key.0", "ascending"), (LANE, "ascending")]).to_pylist(), key=repr)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_aggregate, "FEW", 5)
    for name in ("MERGE_BYTES", "PIECE_BYTES"):
        monkeypatch.setattr(spilled_groups, name, 1_000)
    monkeypatch.setattr(hash_aggregate, "PIECE_BYTES", 1_000)
    monkeypatch.setattr(spilled_groups, "AHEAD_BYTES", 20_000)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("step", ["single", "partial"])
@pytest.mark.parametrize("seed", seeds(6, of=60))
def test_a_base_is_what_stood_at_its_cut_whenever_it_is_made(seed: int, step: Step) -> None:
    world = World(step, seed)
    world.process(300)
    for _ in range(4):
        changes, expected = world.cut()
        found: list[Any] = []
        making = threading.Thread(target=lambda changes=changes, found=found: found.append(changes.whole()))
        before, behind = world.chance.randrange(12), world.chance.randrange(8)
        for _ in range(before):
            world.process(world.chance.randrange(1, 120))
        making.start()
        for _ in range(behind):
            world.process(world.chance.randrange(1, 120))
        making.join()
        assert _rows(found[0]) == expected
        assert _rows(world.operator.snapshot()) == _rows(world.twin.snapshot())


@pytest.mark.parametrize("step", ["single", "partial"])
def test_rows_behind_a_base_are_merged_without_a_copy_of_the_groups(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's thread copies nothing large, though every batch changes groups that were given."""
    monkeypatch.setattr(hash_aggregate, "FEW", 5)
    copied: list[tuple[str, int]] = []
    room = growable_array._room

    def noted(values: Any, count: int) -> Any:
        if len(values) >= 100_000:
            copied.append((threading.current_thread().name, len(values)))
        return room(values, count)

    world = World(step, 0, 150_000)
    for first in range(0, world.keys, 50_000):
        world.operator.process(0, _batch(world, np.arange(first, first + 50_000)), Nowhere())
    monkeypatch.setattr(growable_array, "_room", noted)
    changes = world.operator.changes()
    assert isinstance(changes, Changes)
    waited, copied[:] = world.operator._rows, []
    again = np.arange(0, world.keys, 3)
    world.operator.process(0, _batch(world, again), Nowhere())
    assert waited.rows == len(again), "they wait for the thread that makes the base"
    making = threading.Thread(target=changes.whole, name="storing")
    making.start()
    making.join()
    for _ in range(3):
        world.operator.process(0, _batch(world, again), Nowhere())
    assert not waited.rows
    assert copied
    assert {name for name, _ in copied} == {"storing"}


def _batch(world: World, keys: Any) -> Batch:
    world.number += 1
    values = keys % 100
    columns = [pa.array(keys), pa.array(values), pa.array(values / 7)]
    return Batch(pa.record_batch(columns, schema=SCHEMA), Tag(0, 0, world.number))


def test_rows_that_are_merged_at_the_cost_of_the_groups_are_merged_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One piece at a time would cost the groups once for each piece."""
    monkeypatch.setattr(hash_aggregate, "PIECE_BYTES", 1_000)
    monkeypatch.setattr(spilled_groups, "MERGE_BYTES", 20_000)
    schema = pa.schema({"k": pa.int64(), "v": pa.string()})
    operator = HashAggregate(("k",), (Aggregate("most", "v", "max"),)).build(context(), [schema], None)
    waited = []
    for number in range(200):
        columns = [pa.array(range(10)), pa.array([f"a text of number {number}"] * 10)]
        operator.process(0, Batch(pa.record_batch(columns, schema=schema), Tag(0, 0, number)), Nowhere())
        waited.append(operator._rows.rows)
    assert max(waited) > 200
    assert waited.count(0) > 1, "some stay behind"

"""State of which parts are written and others referred to: over checkpoints that complete or are given up, savepoints,
pins and crashes every checkpoint that is kept gives what the state was."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

from penstock.actors.claims.savepoints import SavepointFiles, read_savepoint
from penstock.actors.storage.snapshots import SnapshotFiles
from penstock.coordinator.checkpoint.finalizer import make_savepoint
from penstock.coordinator.log.retained import RetainedCheckpoints
from penstock.coordinator.model.commands import CopySavepoint, StoreSavepoint
from penstock.coordinator.model.manifest import Manifest, Pinned, TaskState, Unpinned, decode, encode
from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.identity import Attempt, CheckpointId, StateHandle, TaskId
from penstock.engine.core.operator import EVERYWHERE, LANE, OperatorConfig, exhaust
from penstock.engine.exchange.flight import Flight
from penstock.engine.operators import Aggregate, Distinct, HashAggregate, HashJoin, MarkDistinct
from penstock.engine.operators.aggregate import hash_aggregate, seen_state
from penstock.engine.operators.aggregate.aggregates import Step
from penstock.engine.operators.join import hash_join
from penstock.engine.operators.join.replicated_join import ReplicatedJoin
from penstock.engine.plan.partitioning import wire_schema
from penstock.engine.state.change_log import MOST_CHANGES, ChangeLog, Changes, StatePart, let_go
from penstock.engine.state.memory import TaskMemory
from support.operator_harness import context
from support.sweeps import seeds

SKETCHES = ("median", "approx_count_distinct", "approx_quantile(0.5)")
NAMES = ("count", "sum", "min", "mean", "first", "last", "count_distinct", "collect_list", "variance", *SKETCHES)
AGGREGATES = (Aggregate("rows", None, "count"), *(Aggregate(name, "v", name) for name in NAMES))
COUNTED = HashAggregate(("k",), AGGREGATES)
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("odd", pa.bool_())])
TASK = TaskId("count", 0)
KINDS: dict[str, OperatorConfig] = {
    "count": COUNTED,
    "count in lanes": dataclasses.replace(COUNTED, step="partial"),
    "distinct": Distinct(("k", "v")),
    "distinct in lanes": Distinct(("k",), per_lane=True),
    "marked": MarkDistinct(("k", "v"), "new", (("odd", "new_odd"),)),
    **{f"{how} join": HashJoin(("k",), how) for how in ("inner", "full", "right semi")},
    **{f"{how} join of copies": ReplicatedJoin(HashJoin(("k",), how)) for how in ("inner", "left")},
}


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hash_aggregate, seen_state, hash_join):
        monkeypatch.setattr(module, "FEW", 5)


class Nowhere:
    def emit(self, batch: Batch) -> None:
        """Drop it."""


class World:
    """A task with an operator, its files, and who keeps its checkpoints."""

    def __init__(self, folder: Path, seed: int, kind: str = "count") -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.config = KINDS[kind]
        self.ports = 2 if isinstance(self.config, HashJoin | ReplicatedJoin) else 1
        self.inputs = [wire_schema(SCHEMA) if isinstance(self.config, ReplicatedJoin) else SCHEMA, SCHEMA][: self.ports]
        self.budget = self.chance.choice([None, 6_000])
        self.inline, self.keys = [0, 4096], 60
        #: rows at once; with few of them states are given whole at one time and in parts at another
        self.sizes = self.chance.choice([[1, 3, 40], [1]])
        self.kept = RetainedCheckpoints(self.chance.choice([1, 2]))
        #: what the state was, by checkpoint; and savepoints, by folder
        self.states: dict[CheckpointId, list[Any]] = {}
        self.savepoints: dict[str, list[Any]] = {}
        self.number = self.rows = self.round = self.lane = 0
        self.attempt = 0
        self.operator: Any = None
        self.crash()

    def crash(self) -> None:
        """Begin again with the newest checkpoint."""
        self.attempt += 1
        if self.operator is not None:
            self.operator.close()
        #: the snapshots that are not stored yet: the state in parts, and what it was
        self.cuts: list[tuple[CheckpointId, Any, pa.Table | None]] = []
        if self.operator is None or self.chance.random() < 0.7:
            self.files = SnapshotFiles(str(self.folder), "job", self.chance.choice(self.inline))
        latest = self.kept.latest
        self.ended: set[int] = set()
        tables, parts = {}, {}
        if latest is not None:
            attempt = Attempt(1, self.attempt)
            tables, parts = self.files.restored(TASK, latest.checkpoint, attempt, latest.tasks[0].state)
        memory, stored = TaskMemory(self.budget).account("operator"), parts.get("count", ())
        where = dataclasses.replace(context(), memory=memory, stored=stored)
        self.operator = self.config.build(where, self.inputs, tables.get("count"))
        for part in stored:
            part.let_go()

    def process(self, size: int = 0) -> None:
        size = size or self.chance.choice(self.sizes)
        keys = [self.chance.choice([None, "x", str(self.chance.randrange(self.keys))]) for _ in range(size)]
        values = [self.chance.choice([None, self.chance.randrange(-9, 9)]) for _ in range(size)]
        odd = [self.chance.choice([None, True, False]) for _ in range(size)]
        columns = [pa.array(keys, pa.string()), pa.array(values, pa.int64()), pa.array(odd)]
        port = self.chance.choice([port for port in range(self.ports) if port not in self.ended])
        part = [pa.array([self.lane] * size, pa.uint16())]
        columns += part[: len(self.inputs[port]) - len(columns)]
        records = pa.record_batch(columns, schema=self.inputs[port])
        exhaust(self.operator.process(port, Batch(records, Tag(self.round, self.lane, self.rows)), Nowhere()))
        self.rows += 1

    def go_on(self) -> None:
        """To the next lane, or round, or behind the end of the right side."""
        if self.lane < 3:
            self.lane += 1
            return
        for port in set(range(self.ports)) - self.ended:
            exhaust(self.operator.end_round(port, self.round, Nowhere()))
        self.round, self.lane = self.round + 1, 0
        if self.ports == 2 and not self.ended and self.chance.random() < 0.5:
            self.ended.add(1)
            exhaust(self.operator.end_port(1, Nowhere()))

    def drain(self) -> None:
        exhaust(self.operator.drain(Nowhere()))

    def cut(self) -> None:
        """Take a snapshot. It is stored later, when newer ones may have been taken: a savepoint is slow, or a
        checkpoint was given up meanwhile."""
        self.number += 1
        if self.chance.random() < 0.1:
            self.operator.changes()  # the cut of a checkpoint that was given up before anybody wrote it
        state = self.operator.changes()
        self.cuts.append((CheckpointId(1, self.number), state, self.operator.snapshot()))

    def checkpoint(self) -> None:
        """Store the oldest snapshot."""
        if not self.cuts or self.chance.random() < 0.5:
            self.cut()
        checkpoint, state, held = self.cuts.pop(0)
        tables = {} if state is None else {"count": state}
        handles = self.files.write(TASK, checkpoint, Attempt(1, self.attempt), tables)
        assert len({each.location for each in handles if f"000001.{checkpoint.number}" in each.location}) <= 1
        assert len(handles) <= 2 * (MOST_CHANGES + 1) + 1
        if self.chance.random() < 0.3:
            self.delete(self.kept.unreferenced(handles))  # it is given up
            return
        manifest = Manifest(
            number=checkpoint.number,
            checkpoint=checkpoint,
            fingerprint="f",
            parallelism={"count": 1},
            tasks=(TaskState(task=TASK, state=handles),),
        )
        read = decode(encode(manifest))
        assert read == manifest
        self.states[checkpoint] = self.plain(held)
        self.delete(self.kept.add(manifest).handles)
        if self.chance.random() < 0.8:
            self.files.completed(TASK, checkpoint)
        if self.chance.random() < 0.2:
            self.savepoint(replace(manifest, kind="savepoint"))

    def savepoint(self, manifest: Manifest) -> None:
        place = str(self.folder / "saved" / str(manifest.number))
        order = StoreSavepoint(manifest.checkpoint, place, *make_savepoint(manifest))
        files = SavepointFiles(str(self.folder), "job")
        files.copy(CopySavepoint(order.checkpoint, order.location, order.manifest, order.copies))
        files.store(order)
        self.savepoints[place] = self.states[manifest.checkpoint]

    def pin(self) -> None:
        latest = self.kept.latest_id
        name = self.chance.choice("ab")
        if name in self.kept.pins:
            self.delete(self.kept.unpinned(Unpinned(number=0, generation=1, name=name)).handles)
        elif latest is not None and self.kept.hold(latest):
            entry = Pinned(number=0, generation=1, checkpoint=latest, name=name)
            self.delete(self.kept.pinned(entry).handles)

    def delete(self, handles: tuple[StateHandle, ...]) -> None:
        self.files.delete(handles)

    def check(self) -> None:
        """Whatever is kept can be read, and nothing else is there."""
        self.kept.validate()
        files = SnapshotFiles(str(self.folder), "job")
        for manifest in self.kept.kept:
            handles = manifest.tasks[0].state
            assert self.same(files.read(handles).get("count"), self.states[manifest.checkpoint])
        for place, state in self.savepoints.items():
            found = SnapshotFiles(place, "job").read(read_savepoint(place).tasks[0].state)
            assert self.same(found.get("count"), state)
        needed = {each.location for one in self.kept.kept for each in one.tasks[0].state if each.location}
        there = {path.relative_to(self.folder).as_posix() for path in (self.folder / "job" / "state").rglob("*.arrow")}
        assert there == needed

    def same(self, found: pa.Table | None, state: list[Any]) -> bool:
        return self.plain(found) == state

    def plain(self, state: pa.Table | None) -> list[Any]:
        """The state as those who are restored from it have it, in memory: one, and each of two."""
        found = []
        for subtask, parallelism in ((0, 1), (0, 2), (1, 2)):
            where = context(subtask, parallelism)
            lanes = pa.array([EVERYWHERE, *where.lanes], pa.int32())
            mine = None if state is None else state.filter(pc.is_in(pc.field(LANE), lanes))
            restored = mine if mine is not None and mine.num_rows else None
            found.append(rows_of(self.config.build(where, self.inputs, restored).snapshot()))
        return found


def test_rows_in_a_manifest_outlive_a_checkpoint_that_is_given_up(tmp_path: Path) -> None:
    files = SnapshotFiles(str(tmp_path), "job")
    state = ChangeLog()
    state.add(StatePart(lambda: pa.table({"v": [1]}), 1))
    stored = files.write(TASK, CheckpointId(1, 1), Attempt(1, 1), {"count": state.cut()})
    _, parts = files.restored(TASK, CheckpointId(1, 1), Attempt(1, 2), stored)
    let_go(parts["count"])
    state = ChangeLog(stored=parts["count"])
    flight = Flight(b"", (pa.table({"v": range(10_000)}),))  # so much that the small state goes into a file, too
    files.delete(files.write(TASK, CheckpointId(1, 2), Attempt(1, 2), {"count": state.cut()}, flight))
    again = files.write(TASK, CheckpointId(1, 3), Attempt(1, 2), {"count": state.cut()})
    assert files.read(again)["count"].to_pylist() == [{"v": 1}]


def of_values(values: pa.Array) -> pa.RecordBatch:
    columns = [pa.nulls(len(values), pa.string()), values, pa.nulls(len(values), pa.bool_())]
    return pa.record_batch(columns, schema=SCHEMA)


def rows_of(table: pa.Table | None) -> list[Any]:
    return [] if table is None else table.to_pylist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds(2, of=60))
def test_every_checkpoint_that_is_kept_gives_what_the_state_was(seed: int, kind: str, tmp_path: Path) -> None:
    world = World(tmp_path, seed, kind)
    steps = [world.process] * 4 + [world.cut] * 2 + [world.checkpoint] * 5 + [world.pin, world.crash, world.drain]
    for _ in range(40):
        world.chance.choice([*steps, world.go_on, world.go_on])()
        world.check()


@pytest.mark.parametrize("step", ["single", "partial"])
@pytest.mark.parametrize("budget", [None, 4_000_000, 1])
def test_little_change_of_much_state_writes_little(step: Step, budget: int | None, tmp_path: Path) -> None:
    files, sizes = SnapshotFiles(str(tmp_path), "job"), []
    where = dataclasses.replace(context(), memory=TaskMemory(budget).account("operator"))
    operator = HashAggregate(("v",), (Aggregate("rows", None, "count"),), step).build(where, [SCHEMA], None)
    for number, rows in enumerate([range(200_000), range(0, 200_000, 100), range(0), range(7, 200_000, 100)], 1):
        values = pa.array(rows, pa.int64())
        records = of_values(values)
        half = records.num_rows // 2
        for lane, part in enumerate([records.slice(0, half), records.slice(half)]):
            operator.process(0, Batch(part, Tag(0, lane, number)), Nowhere())
        state, before = operator.changes(), files.bytes_written
        assert isinstance(state, Changes)
        files.write(TASK, CheckpointId(1, number), Attempt(1, 1), {"count": state})
        files.completed(TASK, CheckpointId(1, number))
        sizes.append(files.bytes_written - before)
    assert sizes[2] == 0
    assert max(sizes[1:]) < sizes[0] / 20


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_checkpoint_of_an_attempt_writes_what_is_new(kind: str, tmp_path: Path) -> None:
    world = World(tmp_path, 0, kind)
    world.budget, world.inline, world.keys = None, [0], 10_000
    world.crash()

    def stored(rows: int) -> int:
        """The bytes of a checkpoint behind so many more rows, and the end of their round."""
        for _ in range(rows):
            world.process(rows)
        for port in range(world.ports):
            exhaust(world.operator.end_round(port, world.round, Nowhere()))
        world.round, world.number = world.round + 1, world.number + 1
        checkpoint, before = CheckpointId(1, world.number), world.files.bytes_written
        handles = world.files.write(TASK, checkpoint, Attempt(1, world.attempt), {"count": world.operator.changes()})
        task, named = TaskState(task=TASK, state=handles), {"number": world.number, "checkpoint": checkpoint}
        world.kept.add(Manifest(fingerprint="f", parallelism={"count": 1}, tasks=(task,), **named))
        world.files.completed(TASK, checkpoint)
        return world.files.bytes_written - before

    whole, changed = stored(50), stored(3)
    world.crash()
    assert stored(0) <= changed < whole / 3
    assert stored(3) < whole / 3


def test_a_newer_snapshot_names_nothing_that_only_an_older_one_has_stored(tmp_path: Path) -> None:
    files = SnapshotFiles(str(tmp_path), "job", 0)
    operator = HashAggregate(("v",), (Aggregate("rows", None, "count"),)).build(context(), [SCHEMA], None)

    def cut(rows: int) -> Any:
        records = of_values(pa.array(range(rows), pa.int64()))
        operator.process(0, Batch(records, Tag(0, 0, 0)), Nowhere())
        return operator.changes()

    def stored(number: int, state: Any) -> tuple[StateHandle, ...]:
        return files.write(TASK, CheckpointId(1, number), Attempt(1, 1), {"count": state})

    stored(1, cut(100))
    files.completed(TASK, CheckpointId(1, 1))
    given_up, next_one = cut(40), cut(3)
    gone = stored(2, given_up)  # puts all parts together
    stored(3, next_one)
    files.delete([each for each in gone if "000002-" in each.location])
    files.completed(TASK, CheckpointId(1, 3))
    assert SnapshotFiles(str(tmp_path), "job").read(stored(4, cut(2)))["count"].num_rows == 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_is_few_rows_and_then_many_names_no_part_of_before(kind: str, tmp_path: Path) -> None:
    """It is restored as a part. While it is few rows no checkpoint names that: the file goes with the last that did."""
    world = World(tmp_path, 0, kind)
    world.budget, world.inline, world.kept = None, [0], RetainedCheckpoints(1)
    world.files = SnapshotFiles(str(tmp_path), "job", 0)
    world.crash()
    keys = iter(range(100))
    for rows in (3, 1, 4, 1):
        for _ in range(rows):
            records = pa.record_batch([[str(next(keys))], [1], [True]], schema=SCHEMA)
            exhaust(world.operator.process(world.ports - 1, Batch(records, Tag(world.round, 0, 0)), Nowhere()))
        for port in range(world.ports):
            exhaust(world.operator.end_round(port, world.round, Nowhere()))
        world.round, world.number = world.round + 1, world.number + 1
        checkpoint, state = CheckpointId(1, world.number), world.operator.changes()
        handles = world.files.write(TASK, checkpoint, Attempt(1, world.attempt), {"count": state})
        world.states[checkpoint] = world.plain(world.operator.snapshot())
        named = {"number": world.number, "checkpoint": checkpoint, "tasks": (TaskState(task=TASK, state=handles),)}
        world.delete(world.kept.add(Manifest(fingerprint="f", parallelism={"count": 1}, **named)).handles)
        world.files.completed(TASK, checkpoint)
        world.check()
        if world.number == 1:
            world.crash()


def test_a_copy_of_another_subtask_is_not_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """At another parallelism: what came later would have another number, and a restore take one number alone."""
    monkeypatch.setattr(hash_join, "FEW", 20)
    config = ReplicatedJoin(HashJoin(("k",), "inner"))
    inputs = [wire_schema(SCHEMA), SCHEMA]

    def right(first: int, behind: int) -> Batch:
        keys = pa.array([str(each) for each in range(first, behind)])
        columns = [keys, pa.nulls(len(keys), pa.int64()), pa.nulls(len(keys), pa.bool_())]
        return Batch(pa.record_batch(columns, schema=SCHEMA), Tag(0, 0, first))

    old = config.build(context(1, 2), inputs, None)
    exhaust(old.process(1, right(0, 15), Nowhere()))
    state = old.changes()
    assert isinstance(state, pa.Table)
    where = dataclasses.replace(context(2, 3), stored=(StatePart(lambda: state, state.num_rows),))
    new = config.build(where, inputs, state)
    exhaust(new.process(1, right(15, 25), Nowhere()))
    changes = new.changes()
    assert isinstance(changes, Changes)
    again = config.build(context(2, 3), inputs, changes.whole()).snapshot()
    assert again is not None
    assert again.num_rows == 25

"""State of which parts are written and others referred to: over checkpoints that complete or are given up, savepoints,
pins and crashes every checkpoint that is kept gives what the state was."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
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
from penstock.engine.operators import Aggregate, HashAggregate
from penstock.engine.operators.aggregate import hash_aggregate
from penstock.engine.state.change_log import MOST_CHANGES, Changes
from support.operator_harness import context
from support.sweeps import seeds

NAMES = ("count", "sum", "min", "mean", "first", "last", "count_distinct", "collect_list", "variance")
COUNTED = HashAggregate(("k",), (Aggregate("rows", None, "count"), *(Aggregate(name, "v", name) for name in NAMES)))
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
TASK = TaskId("count", 0)


class Nowhere:
    def emit(self, batch: Batch) -> None:
        """Drop it."""


class World:
    """A task with an aggregation, its files, and who keeps its checkpoints."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.kept = RetainedCheckpoints(self.chance.choice([1, 2]))
        #: what the state was, by checkpoint; and savepoints, by folder
        self.states: dict[CheckpointId, list[Any]] = {}
        self.savepoints: dict[str, list[Any]] = {}
        self.number = self.rows = 0
        self.attempt = 0
        self.crash()

    def crash(self) -> None:
        """Begin again with the newest checkpoint."""
        self.attempt += 1
        #: the snapshots that are not stored yet: the state in parts, and what it was
        self.cuts: list[tuple[CheckpointId, Any, pa.Table | None]] = []
        self.files = SnapshotFiles(str(self.folder), "job", self.chance.choice([0, 4096]))
        latest = self.kept.latest
        restored = None if latest is None else self.files.read(latest.tasks[0].state).get("count")
        self.operator = COUNTED.build(context(), [SCHEMA], restored)

    def process(self) -> None:
        size = self.chance.choice([1, 3, 40])
        keys = [self.chance.choice([None, "x", str(self.chance.randrange(60))]) for _ in range(size)]
        values = [self.chance.choice([None, self.chance.randrange(-9, 9)]) for _ in range(size)]
        records = pa.record_batch([pa.array(keys, pa.string()), pa.array(values, pa.int64())], schema=SCHEMA)
        self.operator.process(0, Batch(records, Tag(0, 0, self.rows)), Nowhere())
        self.rows += 1

    def drain(self) -> None:
        for _ in self.operator.drain(Nowhere()):
            pass

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
        assert len(handles) <= MOST_CHANGES + 1
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
        self.states[checkpoint] = held.to_pylist() if held is not None else []
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
            found = files.read(handles).get("count")
            assert same(found, self.states[manifest.checkpoint])
        for place, state in self.savepoints.items():
            assert same(SnapshotFiles(place, "job").read(read_savepoint(place).tasks[0].state).get("count"), state)
        needed = {each.location for one in self.kept.kept for each in one.tasks[0].state if each.location}
        there = {path.relative_to(self.folder).as_posix() for path in (self.folder / "job" / "state").rglob("*.arrow")}
        assert there == needed


def same(found: pa.Table | None, state: list[Any]) -> bool:
    return ([] if found is None else found.to_pylist()) == state


@pytest.mark.parametrize("seed", seeds(4, of=100))
def test_every_checkpoint_that_is_kept_gives_what_the_state_was(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_aggregate, "FEW", 5)
    world = World(tmp_path, seed)
    steps = [world.process] * 4 + [world.cut] * 2 + [world.checkpoint] * 5 + [world.pin, world.crash, world.drain]
    for _ in range(40):
        world.chance.choice(steps)()
        world.check()


def test_little_change_of_much_state_writes_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_aggregate, "FEW", 5)
    files, sizes = SnapshotFiles(str(tmp_path), "job"), []
    operator = HashAggregate(("v",), (Aggregate("rows", None, "count"),)).build(context(), [SCHEMA], None)
    for number, rows in enumerate([range(200_000), range(0, 200_000, 100), range(0), range(7, 200_000, 100)], 1):
        values = pa.array(rows, pa.int64())
        records = pa.record_batch([pa.nulls(len(values), pa.string()), values], schema=SCHEMA)
        operator.process(0, Batch(records, Tag(0, 0, number)), Nowhere())
        state, before = operator.changes(), files.bytes_written
        assert isinstance(state, Changes)
        files.write(TASK, CheckpointId(1, number), Attempt(1, 1), {"count": state})
        files.completed(TASK, CheckpointId(1, number))
        sizes.append(files.bytes_written - before)
    assert sizes[2] == 0
    assert max(sizes[1:]) < sizes[0] / 20


def test_a_newer_snapshot_names_nothing_that_only_an_older_one_has_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_aggregate, "FEW", 5)
    files = SnapshotFiles(str(tmp_path), "job", 0)
    operator = HashAggregate(("v",), (Aggregate("rows", None, "count"),)).build(context(), [SCHEMA], None)

    def cut(rows: int) -> Any:
        records = pa.record_batch([pa.nulls(rows, pa.string()), pa.array(range(rows), pa.int64())], schema=SCHEMA)
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

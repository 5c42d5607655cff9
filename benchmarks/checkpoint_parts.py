"""State in parts, by operator: what a checkpoint of little news costs beside a full one, and a restore from parts.

An operator holds ``rows`` rows (groups, keys that were seen, rows of a join's right side) and its states are stored in
a local folder, in this process. *Full*: all of it; *changed*: the mean of twelve checkpoints, for each of which one row
of a hundred has changed or come. *Pause*: what the operator itself does for one of these. *Restore*: read and built
from all parts, beside the same from one. *Restarted*: bytes of the first checkpoint behind the restore. Seconds are of
the processor, of all threads; those of the pause of one thread.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.actors.storage.snapshots import SnapshotFiles
from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.identity import Attempt, CheckpointId, TaskId
from penstock.engine.core.operator import OperatorConfig, OperatorContext, exhaust
from penstock.engine.operators import Aggregate, Distinct, HashAggregate, HashJoin
from penstock.engine.state.change_log import let_go

SCHEMA = pa.schema({"key": pa.int64(), "a": pa.int64()})
TASK, NAME = TaskId("stage", 0), "operator"
CONTEXT = OperatorContext(NAME, TASK, Attempt(1, 1), 1, range(8))
AGGREGATES = (Aggregate("n", "a", "count"), Aggregate("a", "a", "sum"), Aggregate("most", "a", "max"))
CONFIGS: dict[str, OperatorConfig] = {
    "aggregate": HashAggregate(("key",), AGGREGATES),
    "distinct": Distinct(("key",)),
    "join": HashJoin(("key",)),
}
CHUNK, CHANGES = 64 * 1024, 12


@dataclass(frozen=True)
class Parts:
    """Of one operator; see the module."""

    full_bytes: int
    full_seconds: float
    changed_bytes: float
    changed_seconds: float
    pause: float
    restore_seconds: float
    restore_full_seconds: float
    restarted_bytes: int


class _Nowhere:
    def emit(self, batch: Batch) -> None:
        """Drop it."""


class _Task:
    """An operator and its files."""

    def __init__(self, config: OperatorConfig, folder: str) -> None:
        self.config = config
        self.ports = 2 if isinstance(config, HashJoin) else 1
        self.operator: Any = config.build(CONTEXT, [SCHEMA] * self.ports, None)
        self.files = SnapshotFiles(folder, "job")
        self.number = 0
        self.handles: Any = ()
        self.pause = 0.0

    def take(self, keys: Any) -> None:
        for low in range(0, len(keys), CHUNK):
            part = keys[low : low + CHUNK]
            records = pa.record_batch([pa.array(part), pa.array(part * 3)], schema=SCHEMA)
            exhaust(self.operator.process(self.ports - 1, Batch(records, Tag(self.number, 0, low)), _Nowhere()))
        exhaust(self.operator.end_round(self.ports - 1, self.number, _Nowhere()))

    def store(self, attempt: int = 1, whole: bool = False) -> int:
        self.number += 1
        began, before, checkpoint = time.thread_time(), self.files.bytes_written, CheckpointId(1, self.number)
        state = self.operator.snapshot() if whole else self.operator.changes()
        self.pause = time.thread_time() - began
        self.handles = self.files.write(TASK, checkpoint, Attempt(1, attempt), {NAME: state})
        self.files.completed(TASK, checkpoint)
        return self.files.bytes_written - before

    def restore(self, attempt: int) -> None:
        self.operator.close()
        checkpoint = CheckpointId(1, self.number)
        tables, parts = self.files.restored(TASK, checkpoint, Attempt(1, attempt), self.handles)
        context = replace(CONTEXT, stored=parts[NAME])
        self.operator = self.config.build(context, [SCHEMA] * self.ports, tables[NAME])
        let_go(context.stored)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def _restored(task: _Task) -> float:
    """The least of three: the first one also asks the system for the memory."""
    return min(_timed(lambda: task.restore(2))[0] for _ in range(3))


def stored_in_parts(name: str, rows: int) -> Parts:
    """Measure one operator."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        task, share = _Task(CONFIGS[name], folder), max(rows // 100, 1)
        task.take(np.arange(rows))
        full_seconds, full_bytes = _timed(task.store)
        chance = np.random.default_rng(1)
        seconds, written, pauses = [], [], []
        for number in range(CHANGES):
            new = np.arange(rows + number * share, rows + (number + 1) * share)
            task.take(chance.integers(0, rows, share) if name == "aggregate" else new)
            took, size = _timed(task.store)
            seconds, written, pauses = [*seconds, took], [*written, size], [*pauses, task.pause]
        restore_seconds = _restored(task)
        restarted = task.store(2)
        task.store(2, whole=True)
        restore_full = _restored(task)
        changed = float(np.mean(written)), float(np.mean(seconds))
        return Parts(full_bytes, full_seconds, *changed, max(pauses), restore_seconds, restore_full, restarted)

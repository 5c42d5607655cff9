"""A sink that keeps its rows in this process: for tests, notebooks and ``run_local(...).result(name)``.

It commits in two phases like any other: rows become visible with the checkpoint that covers them, and a failed
attempt leaves nothing. Exactly once holds while this process lives: the rows die with it, and a job that spreads over
several processes has its rows in as many places. Use a file sink for anything that should last.

Rows come back round by round, each in the order of their tags, and behind each round those that a task barrier behind
it brought: the order of the stream if it were gathered. In a deterministic flow it does not depend on the parallelism.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import ClassVar

import pyarrow as pa

from ..core.elements import Batch, Tag
from ..core.errors import ConfigurationError, StorageError
from ..core.identity import CheckpointId, CommitPermit, Committable
from ..core.operator import OperatorContext, Output, Stateless
from ..core.traits import Traits
from ..integrity.row_digests import MODULUS, RowDigest, row_digest
from .lane_counts import LaneCounts

_Key = tuple[str, int, int, int]
"""Operator, subtask, and the two parts of the checkpoint id: what one committable stands for."""

_Placed = tuple[int, Batch]
"""A batch, and the last round that had ended when it came."""


@dataclass(slots=True)
class _Rows:
    """The rows of one name of one job."""

    schema: pa.Schema
    #: prepared and neither committed nor cleaned away
    prepared: dict[_Key, tuple[_Placed, ...]] = field(default_factory=dict)
    #: committed: what the user sees
    visible: dict[_Key, tuple[_Placed, ...]] = field(default_factory=dict)


class CollectedRows:
    """What the collect sinks of one process hold, by the UUID of the job and their name. For several threads."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Rows] = {}
        self._lock = Lock()
        self._forgotten: deque[str] = deque()

    def declare(self, job: str, name: str, schema: pa.Schema) -> None:
        """Make a result known, so that it can be read even if it never gets a row."""
        with self._lock:
            self._sweep()
            self._rows.setdefault((job, name), _Rows(schema))

    def prepare(self, job: str, name: str, key: _Key, batches: Sequence[_Placed]) -> None:
        """Keep batches until they are committed."""
        with self._lock:
            self._rows[job, name].prepared[key] = tuple(batches)

    def commit(self, job: str, name: str, key: _Key) -> bool:
        """Make prepared batches visible; again changes nothing. False: they were never prepared here."""
        with self._lock:
            rows = self._rows.get((job, name))
            if rows is not None and key in rows.prepared:
                rows.visible[key] = rows.prepared.pop(key)
            return rows is not None and key in rows.visible

    def clean(self, job: str, name: str, keep: set[_Key]) -> None:
        """Drop prepared batches that ``keep`` does not name."""
        with self._lock:
            if (rows := self._rows.get((job, name))) is not None:
                rows.prepared = {key: batches for key, batches in rows.prepared.items() if key in keep}

    def read(self, job: str, name: str, called: str = "") -> pa.Table:
        """The committed rows so far, in their order (see the module). ``called``: what people know the job as."""
        with self._lock:
            self._sweep()
            if (rows := self._rows.get((job, name))) is None:
                known = sorted(each for owner, each in self._rows if owner == job)
                raise ConfigurationError(
                    f"job {called or job!r} has collected nothing under {name!r} in this process",
                    f"it has: {', '.join(known) or 'nothing'}",
                )
            found = [
                (_position(key, ended, batch.tag), batch.records)
                for key, batches in rows.visible.items()
                for ended, batch in batches
            ]
            schema = rows.schema
        return pa.Table.from_batches([records for _, records in sorted(found, key=lambda each: each[0])], schema)

    def inherit(self, job: str, ancestor: str, cut: CheckpointId) -> None:
        """A job starts from a snapshot of another one of this process: rows up to the cut are its own, too."""
        with self._lock:
            for (owner, name), rows in list(self._rows.items()):
                if owner == ancestor and (job, name) not in self._rows:
                    upto = (cut.generation, cut.number)
                    visible = {key: each for key, each in rows.visible.items() if key[2:] <= upto}
                    prepared = {key: each for key, each in rows.prepared.items() if key[2:] <= upto}
                    self._rows[job, name] = _Rows(rows.schema, prepared, visible)

    def forget(self, job: str) -> None:
        """Drop everything of the job, when somebody looks next. It may be called at any moment of any thread, also by
        the collector of garbage while this thread holds the lock."""
        self._forgotten.append(job)

    def _sweep(self) -> None:
        """Drop what was forgotten. The lock is held."""
        while self._forgotten:
            job = self._forgotten.popleft()
            for key in [key for key in self._rows if key[0] == job]:
                del self._rows[key]


COLLECTED = CollectedRows()
"""The rows of this process: sinks and committers of one job find each other here, by the job's UUID. They
outlive the job, for the next one that goes on in its folder."""


@dataclass(frozen=True, slots=True)
class CollectSink:
    """Keeps the rows in this process, under ``name``; read them with ``COLLECTED.read(job, name)``."""

    name: str
    traits: ClassVar[Traits] = Traits(lane_wise=True)

    @property
    def kind(self) -> str:
        return "collect sink"

    @property
    def guarantee(self) -> str:
        return "exactly once"

    @property
    def place(self) -> str:
        return f"the rows collected as {self.name}"

    def describe(self) -> str:
        return f"collect as {self.name}"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningCollectSink:
        COLLECTED.declare(context.job, self.name, inputs[0])
        return RunningCollectSink(self.name, context, inputs[0], restored)

    def committer(self, job: str) -> CollectCommitter:
        return CollectCommitter(job, self.name)

    def visible_rows(self, job: str) -> int | None:
        """The rows committed in this process."""
        return int(COLLECTED.read(job, self.name).num_rows)

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Memory keeps rows as they come."""
        return schema

    def visible_digest(self, job: str) -> int:
        """Of the rows committed in this process."""
        table = COLLECTED.read(job, self.name)
        return sum(map(RowDigest(table.schema).of, table.to_batches())) % MODULUS

    def check(self, job: str, resuming: bool = False) -> None:
        """Memory needs no check."""


class RunningCollectSink(Stateless):
    """Holds the batches of one subtask until the next checkpoint."""

    def __init__(self, name: str, context: OperatorContext, schema: pa.Schema, restored: pa.Table | None) -> None:
        self._name = name
        self._context = context
        self._counts = LaneCounts(restored, row_digest(context, schema))
        #: all and only the batches since the last checkpoint
        self._batches: list[_Placed] = []
        self._flushed: dict[CheckpointId, list[_Placed]] = {}
        self._ended = -1

    def process(self, port: int, batch: Batch, out: Output) -> None:
        self._counts.take(batch.tag.lane, batch.records)
        self._batches.append((self._ended, batch))

    def end_round(self, port: int, round: int, out: Output) -> None:
        self._ended = round

    def flush(self, checkpoint: CheckpointId) -> None:
        self._flushed[checkpoint], self._batches = self._batches, []

    def prepare(self, checkpoint: CheckpointId) -> list[Committable]:
        batches = self._flushed.pop(checkpoint)
        if not batches:
            return []
        context = self._context
        key = (context.operator, context.task.subtask, checkpoint.generation, checkpoint.number)
        COLLECTED.prepare(context.job, self._name, key, batches)
        return [Committable(context.operator, sum(each.records.num_rows for _, each in batches), {"key": list(key)})]

    @property
    def counts(self) -> LaneCounts:
        """Rows per lane."""
        return self._counts

    def snapshot(self) -> pa.Table | None:
        return self._counts.snapshot()


@dataclass(frozen=True, slots=True)
class CollectCommitter:
    """Makes prepared rows of this process visible."""

    job: str
    name: str

    def commit(self, permit: CommitPermit) -> None:
        for each in permit.committables:
            if not COLLECTED.commit(self.job, self.name, _key(each)):
                raise StorageError(
                    f"the rows that {each.operator!r} collected for checkpoint {permit.checkpoint} are gone",
                    "the process that held them has ended: collect in one process only, or write files",
                )

    def clean(self, keep: Sequence[Committable], claims: Sequence[str] = ()) -> None:
        COLLECTED.clean(self.job, self.name, {_key(each) for each in keep})


def _position(key: _Key, ended: int, tag: Tag) -> tuple[object, ...]:
    """Where the batch stands in the result. The checkpoint before the sequence: numbers may start again after a restore
    within a round."""
    behind = tag.round <= ended
    return (ended if behind else tag.round, behind, tag.round, tag.lane, key[2:], tag.sequence)


def _key(committable: Committable) -> _Key:
    operator, subtask, generation, number = committable.payload["key"]
    return str(operator), int(subtask), int(generation), int(number)

"""The blocks of a leased frame: from the executors' files to the actor that owns them, and the splits that read them.

Rules:

1. A block is one partition's rows in Ray's object store: an Arrow table, or the bytes of a Parquet file which Spark's
   JVM has written, and which its reader decodes by pages. The holder read it on its own node, or fetched it from the
   executor's (``Parcel``), and put it there itself, so it lives as long as the holder, whatever becomes of Spark.
2. What was fetched is *kept* until the lease has made sure that it belongs to its one evaluation; then the group is
   *published*, and readers see it. A partition is whole or not there: a Parquet file has as many rows as Spark has
   counted.
3. A fetch that fails is no reason to give up the others: the lease computes again what has not come.
4. A reader waits for its partition by asking again and again for a few seconds each; it is told if the lease failed.
   What it is told is no fault of the partition: nobody may skip it (``may_be_poison``).
5. ``await_credit`` throttles: the next group waits while more bytes are unread than the lease allows. It never does so
   while a reader waits for a partition that has not come: which one a merge needs next is not known here.
6. The files lie in a folder of Ray's session folder. In it every node of the cluster has one of its own, whose name is
   the node's id: an executor's Python worker writes into the one that it sees, so it needs to know no address, and the
   holder knows the node. A JVM makes the folder where it has to; the holder looks for its files, first on its own node.
   A file is removed when it was fetched; the rest goes with the folder when a lease ends, at the latest with Ray's
   session.
7. A node that joins the cluster later has no folder for Python workers: a lease fails whose frame needs them there.
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
import ray
from pyarrow import parquet
from pyarrow.fs import LocalFileSystem
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...engine.core.errors import ConfigurationError, InternalError, PenstockError
from ...engine.core.state_machine import check_move
from ...engine.files.paths import DataFile, from_row
from ..cluster.calls import short_reason
from .staged_splits import PARQUET, rows_of

Block: TypeAlias = pa.Table | pa.Buffer
"""Rule 1."""

PREPARE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Parcel:
    """A partition that an executor has written: ``path`` is that of its file; empty: it has no rows."""

    partition: int
    path: str
    node: str = ""
    """Where it lies; empty: the holder looks for it (rule 6)."""
    rows: int = 0
    """Of a Parquet file: how many Spark has counted."""


def spool_folder() -> str:
    """The folder of a lease. A JVM makes it where it writes."""
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    return str(session / f"penstock-lease-{uuid.uuid4().hex}")


def make_spool(folder: str) -> None:
    """Make it for Python workers, on all nodes that there are. Raises RayError."""
    ray.get([_on(node, _make_there, f"{folder}/{node}") for node in _nodes()], timeout=PREPARE_SECONDS)


def remove_spool(folder: str) -> None:
    """Remove what is left; on other nodes without waiting for it."""
    with suppress(RayError, ValueError):
        here = ray.get_runtime_context().get_node_id()
        for node in _nodes():
            if node != here:
                _on(node, _remove_there, folder)
    _remove(folder)


def parcels_of(folder: str, answers: Sequence[Any], partitions: Sequence[int]) -> list[Parcel]:
    """One for each partition, by what Python workers answer. In some plans none is asked about one without rows."""
    files = {int(row["partition"]): str(row["file"]) for row in answers if row["rows"]}
    return [_parcel_of(folder, each, files.get(each, "")) for each in partitions]


def _parcel_of(folder: str, partition: int, file: str) -> Parcel:
    return Parcel(partition, f"{folder}/{file}" if file else "", file.partition("/")[0])


def _nodes() -> list[str]:
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])


def _on(node: str, task: Any, *arguments: Any) -> Any:
    """The reference to what the task returns there."""
    return task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(*arguments)


def _make(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)


def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _present(paths: Sequence[str]) -> list[str]:
    """Those of the files that are on this node."""
    return [each for each in paths if os.path.exists(each)]


def _taken(parcel: Parcel) -> Block:
    """The rows of a file on this node, which is removed; what was mapped stays."""
    path = parcel.path
    with pa.memory_map(path) as file:
        if not path.endswith(PARQUET):
            block: Block = pa.ipc.open_file(file).read_all()
        else:
            block = file.read_buffer()
            rows = parquet.read_metadata(pa.BufferReader(block)).num_rows
            if rows != parcel.rows:
                raise OSError(f"Spark has written {parcel.rows} rows, and its file has {rows}")
    os.unlink(path)
    return block


_task = ray.remote(num_cpus=0, max_retries=0)
_make_there, _remove_there, _present_there, _taken_there = map(_task, (_make, _remove, _present, _taken))

WAIT_SECONDS = 5.0
"""How long one question of a reader waits for a block."""

LOST_SECONDS = 60.0
"""A holder that has not answered for so long beyond that is gone."""

FETCH_SECONDS = 300.0
"""How long one partition may take from the node of its executor."""

AT_ONCE = 4
"""Partitions that are fetched at a time."""

AGAIN = "run the script again: leased rows end with what holds them; a frame that is staged is read from its files"
"""The way on where blocks are gone."""


class BlockState(Enum):
    """What has become of a partition. One that has not come, or was forgotten, has none."""

    KEPT = "kept"
    """It was fetched, and is not published (rule 2)."""
    UNREAD = "unread"
    """Published, and no reader has asked for it."""
    READ = "read"
    DROPPED = "dropped"


LEGAL_BLOCK_MOVES: Mapping[BlockState, frozenset[BlockState]] = {
    BlockState.KEPT: frozenset({BlockState.UNREAD}),
    BlockState.UNREAD: frozenset({BlockState.READ, BlockState.DROPPED}),
    BlockState.READ: frozenset({BlockState.DROPPED}),
    BlockState.DROPPED: frozenset(),
}


@dataclass(slots=True)
class _Block:
    """A partition that came: the reference to what is in the store, none of one that was dropped, and its bytes."""

    block: Any
    bytes: int
    state: BlockState = BlockState.KEPT

    def move(self, to: BlockState) -> None:
        self.state = check_move("a leased block", LEGAL_BLOCK_MOVES, self.state, to)


@dataclass(frozen=True, slots=True)
class Held:
    """What a holder has: for the tests, and for the curious."""

    blocks: int
    bytes: int
    unread: int
    dropped: int


_HERE = (BlockState.UNREAD, BlockState.READ)


class BlockHolder:
    """See the module's rules. ``credit``: bytes that may lie unread before more is pulled."""

    def __init__(self, schema: pa.Schema, credit: int) -> None:
        self._schema = schema
        self._credit = credit
        self._changed = threading.Condition()
        #: by partition
        self._blocks: dict[int, _Block] = {}
        #: partitions that readers wait for now, and how many do
        self._wanted: Counter[int] = Counter()
        self._failure: PenstockError | None = None

    def take(self, parcels: Sequence[Parcel]) -> str:
        """Fetch and keep the partitions. Empty: all came; otherwise what went wrong with one of them."""
        here, reasons, elsewhere = ray.get_runtime_context().get_node_id(), [], []
        for parcel in parcels:
            if not parcel.path:
                self._keep(parcel.partition, self._schema.empty_table())
            elif parcel.node == here or (not parcel.node and _present([parcel.path])):
                try:
                    self._keep(parcel.partition, _taken(parcel))
                except (OSError, pa.ArrowException) as error:
                    reasons.append(f"partition {parcel.partition}: {error}")
            else:
                elsewhere.append(parcel)
        try:
            found = _found(elsewhere, here)
        except RayError as error:
            return f"a node does not answer: {short_reason(error)}"
        lost = {each.partition for each in elsewhere} - {each.partition for each in found}
        reasons += [f"partition {each}: no node has its file" for each in sorted(lost)]
        return next(iter(reasons + self._fetch(found)), "")

    def _fetch(self, parcels: Sequence[Parcel]) -> list[str]:
        """Those on other nodes, some at a time; what went wrong."""
        reasons: list[str] = []
        waiting, under_way = deque(parcels), dict[Any, Parcel]()
        while waiting or under_way:
            while waiting and len(under_way) < AT_ONCE:
                parcel = waiting.popleft()
                under_way[_on(parcel.node, _taken_there, parcel)] = parcel
            ready, _ = ray.wait(list(under_way), num_returns=1, timeout=FETCH_SECONDS)
            if not ready:
                late = sorted(parcel.partition for parcel in under_way.values())
                return [f"partitions {late} did not come within {FETCH_SECONDS:g} s"]
            for each in ready:
                parcel = under_way.pop(each)
                try:
                    self._keep(parcel.partition, ray.get(each))
                except RayError as error:
                    reasons.append(f"partition {parcel.partition}: {short_reason(error)}")
        return reasons

    def _keep(self, partition: int, block: Block) -> None:
        size = block.nbytes if isinstance(block, pa.Table) else block.size
        with self._changed:
            self._blocks[partition] = _Block(ray.put(block), size)

    def missing(self, partitions: Sequence[int]) -> list[int]:
        """Those of the group that have not come."""
        return [each for each in partitions if self._state(each) is not BlockState.KEPT]

    def forget(self) -> None:
        """What is kept is of an evaluation that has ended."""
        with self._changed:
            for partition in [*self._in(BlockState.KEPT)]:
                del self._blocks[partition]

    def publish(self) -> int:
        """What is kept is there for the readers; how many bytes that is."""
        with self._changed:
            kept = [self._blocks[partition] for partition in self._in(BlockState.KEPT)]
            for block in kept:
                block.move(BlockState.UNREAD)
            self._changed.notify_all()
            return sum(block.bytes for block in kept)

    def await_credit(self, timeout: float) -> bool:
        """Whether the next group may be pulled; see rule 5."""
        with self._changed:
            return self._changed.wait_for(self._has_credit, timeout)

    def _has_credit(self) -> bool:
        if any(self._state(partition) not in _HERE for partition in self._wanted):
            return True
        return sum(self._blocks[partition].bytes for partition in self._in(BlockState.UNREAD)) <= self._credit

    def _state(self, partition: int) -> BlockState | None:
        block = self._blocks.get(partition)
        return None if block is None else block.state

    def _in(self, *states: BlockState) -> Iterator[int]:
        return (partition for partition, block in self._blocks.items() if block.state in states)

    def block(self, partition: int, timeout: float) -> list[Any] | None:
        """The reference to a partition's block, in a list, so that Ray counts the borrower; None: not here yet."""
        with self._changed:
            self._wanted[partition] += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._is_settled(partition), timeout)
            finally:
                self._wanted[partition] -= 1
                self._wanted += Counter()  # without those that nobody waits for
            state = self._state(partition)
            if state in _HERE:
                block = self._blocks[partition]
                if state is BlockState.UNREAD:
                    block.move(BlockState.READ)
                self._changed.notify_all()
                return [block.block]
            if state is BlockState.DROPPED:
                raise InternalError(f"partition {partition} was dropped, and somebody reads it again")
            if self._failure is not None:
                raise self._failure
            return None

    def _is_settled(self, partition: int) -> bool:
        return self._failure is not None or self._state(partition) in (*_HERE, BlockState.DROPPED)

    def fail(self, error: PenstockError) -> None:
        """The partitions that are not here will not come."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def drop(self, partitions: Iterable[int]) -> None:
        """Nobody will ask for these any more."""
        with self._changed:
            for partition in partitions:
                if self._state(partition) in _HERE:
                    self._blocks[partition].move(BlockState.DROPPED)
                    self._blocks[partition].block = None
            self._changed.notify_all()

    def held(self) -> Held:
        """What is here."""
        with self._changed:
            here = [*self._in(*_HERE)]
            unread, dropped = ([*self._in(state)] for state in (BlockState.UNREAD, BlockState.DROPPED))
            return Held(len(here), sum(self._blocks[each].bytes for each in here), len(unread), len(dropped))


def start_holder(schema: pa.Schema, credit: int) -> Any:
    """The actor, owned by this process."""
    groups = {"pulls": 1, "credit": 1, "readers": 64}
    kind = ray.remote(num_cpus=0, max_restarts=0, concurrency_groups=groups)(BlockHolder)
    return kind.remote(schema, credit)


def ask(holder: Any, method: str, *arguments: Any) -> Any:
    """The answer of ``take``, ``missing``, ``forget`` or ``publish``: one of them at a time."""
    return ray.get(getattr(holder, method).options(concurrency_group="pulls").remote(*arguments))


def await_credit(holder: Any, timeout: float) -> Any:
    """The reference to the answer of ``BlockHolder.await_credit``."""
    return holder.await_credit.options(concurrency_group="credit").remote(timeout)


@dataclass(frozen=True, slots=True)
class BlockFile(DataFile):
    """A Parquet file in memory."""

    block: pa.Buffer | None = None

    def open(self) -> pa.NativeFile:
        return pa.BufferReader(self.block)

    def check(self) -> None:
        """It does not change."""


def _found(parcels: Sequence[Parcel], here: str) -> Sequence[Parcel]:
    """With the nodes where they lie, without those that lie nowhere. Raises RayError."""
    sought = [each.path for each in parcels if not each.node]
    nodes = [node for node in _nodes() if node != here] if sought else []
    answers = ray.get([_on(node, _present_there, sought) for node in nodes], timeout=PREPARE_SECONDS)
    known = {path: node for node, paths in zip(nodes, answers, strict=True) for path in paths}
    placed = [replace(each, node=each.node or known.get(each.path, "")) for each in parcels]
    return [each for each in placed if each.node]


@dataclass(frozen=True, slots=True)
class LeasedSplit:
    """One partition of a leased frame. Its number of rows is known when it has come."""

    id: str
    partition: int
    schema: pa.Schema = field(hash=False)
    holder: Any = field(hash=False)
    rows: ClassVar[int | None] = None
    blocking: ClassVar[bool] = True
    may_be_poison: ClassVar[bool] = False

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        block = self._block()
        if isinstance(block, pa.Table):
            yield from from_row(iter(block.to_batches()), start)
        else:
            file = BlockFile(LocalFileSystem(), f"the block of {self.id}", block.size, self.id, block=block)
            yield from rows_of(file, self.schema, self.schema.names, start)

    def _block(self) -> Block:
        try:
            while True:
                asked = self.holder.block.options(concurrency_group="readers").remote(self.partition, WAIT_SECONDS)
                found = ray.get(asked, timeout=WAIT_SECONDS + LOST_SECONDS)
                if found is not None:
                    return ray.get(found[0])
        except ray.exceptions.RayTaskError as error:
            # Ray raises an error that is of its cause's class as well, and has not its arguments
            if isinstance(error.cause, PenstockError):
                raise error.cause from None
            raise
        except (RayActorError, GetTimeoutError) as error:
            message = f"the holder of split {self.id} is gone: {short_reason(error)}"
            raise ConfigurationError(message, AGAIN) from error
        except RayError as error:
            message = f"the block of split {self.id} is gone, with its node perhaps: {short_reason(error)}"
            raise ConfigurationError(message, AGAIN) from error

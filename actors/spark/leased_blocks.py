"""The blocks of a leased frame: from the executors' files to the actor that owns them, and the splits that read them.

Rules:

1. A block is one partition's rows as an Arrow table in Ray's object store. The holder fetched it from the executor's
   node (``Parcel``) and put it there itself, so it lives as long as the holder, whatever becomes of Spark.
2. What was fetched is *kept* until the lease has made sure that it belongs to its one evaluation; then the group is
   *published*, and readers see it. A partition is whole or not there.
3. A fetch that fails is no reason to give up the others: the lease computes again what has not come.
4. A reader waits for its partition by asking again and again for a few seconds each; it is told if the lease failed.
   What it is told is no fault of the partition: nobody may skip it (``may_be_poison``).
5. ``await_credit`` throttles: the next group waits while more bytes are unread than the lease allows. It never does so
   while a reader waits for a partition that has not come: which one a merge needs next is not known here.
6. Every node of the cluster has a folder of its own in Ray's session folder, whose name is the node's id. An executor's
   Python worker writes into the one that it sees: so it needs to know no address, and the holder knows the node. A file
   is removed when it was fetched; the rest goes with the folder when a lease ends, at the latest with Ray's session.
7. A node that joins the cluster later has no folder, and a lease whose frame an executor computes there fails.
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...engine.core.errors import ConfigurationError, InternalError, PenstockError
from ...engine.core.state_machine import check_move
from ...engine.files.paths import from_row
from ..cluster.calls import short_reason

PREPARE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Parcel:
    """A partition that an executor has written: ``file`` is ``<node>/<name>`` in ``folder``; empty: it has no rows."""

    partition: int
    folder: str
    file: str


def make_spool() -> str:
    """The folder, made on all nodes that there are. Raises RayError."""
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    folder = str(session / f"penstock-lease-{uuid.uuid4().hex}")
    made = [_make.options(scheduling_strategy=_at(node)).remote(f"{folder}/{node}") for node in _nodes()]
    ray.get(made, timeout=PREPARE_SECONDS)
    return folder


def remove_spool(folder: str) -> None:
    """Remove what is left, without waiting for it."""
    with suppress(RayError, ValueError):
        for node in _nodes():
            _remove.options(scheduling_strategy=_at(node)).remote(f"{folder}/{node}")


def fetch(parcel: Parcel) -> Any:
    """The reference to its table, which is made on the node where it lies; the caller owns it."""
    node = parcel.file.partition("/")[0]
    return _fetch.options(scheduling_strategy=_at(node)).remote(f"{parcel.folder}/{parcel.file}")


def parcels_of(folder: str, answers: Sequence[Any], partitions: Sequence[int]) -> list[Parcel]:
    """One for each partition; Spark asks no Python worker about one without rows, in some plans."""
    files = {int(row["partition"]): str(row["file"]) for row in answers if row["rows"]}
    return [Parcel(each, folder, files.get(each, "")) for each in partitions]


def _nodes() -> list[str]:
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])


def _at(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)


@ray.remote(num_cpus=0)
def _make(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)


@ray.remote(num_cpus=0)
def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        os.rmdir(os.path.dirname(folder))


@ray.remote(num_cpus=0, max_retries=0)
def _fetch(path: str) -> pa.Table:
    with pa.memory_map(path) as file:
        table = pa.ipc.open_file(file).read_all()
    os.unlink(path)  # the table keeps what it maps
    return table


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
    """A partition that came: the reference to its table, none of one that was dropped, and the table's bytes."""

    table: Any
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
        reasons: list[str] = []
        waiting, under_way = deque(parcels), dict[Any, Parcel]()
        while waiting or under_way:
            while waiting and len(under_way) < AT_ONCE:
                parcel = waiting.popleft()
                if parcel.file:
                    under_way[fetch(parcel)] = parcel
                else:
                    self._keep(parcel.partition, self._schema.empty_table())
            ready, _ = ray.wait(list(under_way), num_returns=1, timeout=FETCH_SECONDS) if under_way else ([], [])
            if under_way and not ready:
                late = sorted(parcel.partition for parcel in under_way.values())
                return f"partitions {late} did not come within {FETCH_SECONDS:g} s"
            for each in ready:
                parcel = under_way.pop(each)
                try:
                    self._keep(parcel.partition, ray.get(each))
                except RayError as error:
                    reasons.append(f"partition {parcel.partition}: {short_reason(error)}")
        return next(iter(reasons), "")

    def _keep(self, partition: int, table: pa.Table) -> None:
        with self._changed:
            self._blocks[partition] = _Block(ray.put(table), table.nbytes)

    def missing(self, partitions: Sequence[int]) -> list[int]:
        """Those of the group that have not come."""
        return [each for each in partitions if self._state(each) is not BlockState.KEPT]

    def forget(self) -> None:
        """What is kept is of an evaluation that has ended."""
        with self._changed:
            for partition in [*self._in(BlockState.KEPT)]:
                del self._blocks[partition]

    def publish(self) -> None:
        """What is kept is there for the readers."""
        with self._changed:
            for partition in self._in(BlockState.KEPT):
                self._blocks[partition].move(BlockState.UNREAD)
            self._changed.notify_all()

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
        """The reference to a partition's table, in a list, so that Ray counts the borrower; None: not here yet."""
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
                return [block.table]
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
                    self._blocks[partition].table = None
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
        yield from from_row(iter(self._table().to_batches()), start)

    def _table(self) -> pa.Table:
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

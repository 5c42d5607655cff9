"""The actor that owns the blocks of a leased frame, and the splits that read them from it.

Rules:

1. A block is one partition's rows as an Arrow table in Ray's object store. The holder fetched it from the executor's
   actor and put it there itself, so it lives as long as the holder, whatever becomes of Spark.
2. Executors are asked for one or two partitions at a time each. A restarted executor that is asked for more before it
   has started never starts (RayDP 1.6.5), so whoever is not sure asks for one; every fetch has a timeout.
3. The first fetch that fails ends the order. What came before it is kept: a partition is whole or not there.
4. A reader waits for its partition by asking again and again for a few seconds each; it is told if the lease failed.
5. ``await_credit`` holds the next group back while more bytes lie unread than the lease allows. It never does so while
   somebody waits for a partition that has not come: which one a merge needs next is not known here.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from ...engine.errors import ConfigurationError, InternalError, PenstockError, TaskLostError
from ...engine.sources.files import from_row
from ..blocks import to_table
from ..calls import short_reason

WAIT_SECONDS = 5.0
"""How long one question of a reader waits for a block."""

LOST_SECONDS = 60.0
"""A holder that has not answered for so long beyond that is gone."""


@dataclass(frozen=True, slots=True)
class Order:
    """A group of partitions that an executor each keeps as Arrow, and how to ask for them.

    ``partitions``: (position in the frame, position in the group, the executor's actor). ``each``: how many of them one
    executor is asked for at a time; ``timeout``: seconds for each.
    """

    rdd: int
    schema_json: str
    agent: str
    namespace: str
    partitions: tuple[tuple[int, int, str], ...]
    each: int
    timeout: float


@dataclass(frozen=True, slots=True)
class Held:
    """What a holder has: for the tests, and for the curious."""

    blocks: int
    bytes: int
    unread: int
    dropped: int


class BlockHolder:
    """See the module's rules. ``credit``: bytes that may lie unread before more is pulled."""

    def __init__(self, schema: pa.Schema, credit: int) -> None:
        self._schema = schema
        self._credit = credit
        self._changed = threading.Condition()
        #: by partition: the reference to its table, for all and only those that came and were not dropped
        self._blocks: dict[int, Any] = {}
        #: by partition: bytes of all those in ``_blocks``
        self._sizes: dict[int, int] = {}
        #: partitions that came and that no reader has asked for yet
        self._unread: set[int] = set()
        #: partitions that readers wait for now, and how many do
        self._wanted: Counter[int] = Counter()
        self._dropped: set[int] = set()
        self._failure: PenstockError | None = None

    def pull(self, order: Order) -> str:
        """Fetch the partitions that are not here yet. Empty: all came; otherwise what went wrong."""
        waiting = deque(each for each in order.partitions if each[0] not in self._blocks)
        busy: Counter[str] = Counter()
        under_way: dict[Any, tuple[int, str]] = {}
        while waiting or under_way:
            for each in [each for each in waiting if busy[each[2]] < order.each]:
                partition, index, actor = each
                if busy[actor] == order.each:
                    continue
                waiting.remove(each)
                busy[actor] += 1
                try:
                    under_way[_ask(order, index, actor)] = (partition, actor)
                except (RayError, ValueError) as error:
                    return f"partition {partition}: {short_reason(error)}"
            ready, _ = ray.wait(list(under_way), num_returns=1, timeout=order.timeout)
            if not ready:
                late = sorted(partition for partition, _ in under_way.values())
                return f"partitions {late} did not come within {order.timeout:g} s"
            partition, actor = under_way.pop(ready[0])
            busy[actor] -= 1
            try:
                self._keep(partition, to_table(ray.get(ready[0]), self._schema))
            except RayError as error:
                return f"partition {partition}: {short_reason(error)}"
        return ""

    def _keep(self, partition: int, table: pa.Table) -> None:
        block = ray.put(table)
        with self._changed:
            self._blocks[partition] = block
            self._sizes[partition] = table.nbytes
            self._unread.add(partition)
            self._changed.notify_all()

    def await_credit(self, timeout: float) -> bool:
        """Whether the next group may be pulled; see rule 5."""
        with self._changed:
            return self._changed.wait_for(self._has_credit, timeout)

    def _has_credit(self) -> bool:
        if any(partition not in self._blocks for partition in self._wanted):
            return True
        return sum(self._sizes[partition] for partition in self._unread) <= self._credit

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
            if partition in self._blocks:
                self._unread.discard(partition)
                self._changed.notify_all()
                return [self._blocks[partition]]
            if partition in self._dropped:
                raise InternalError(f"partition {partition} was dropped, and somebody reads it again")
            if self._failure is not None:
                raise self._failure
            return None

    def _is_settled(self, partition: int) -> bool:
        return partition in self._blocks or partition in self._dropped or self._failure is not None

    def fail(self, error: PenstockError) -> None:
        """The partitions that are not here will not come."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def drop(self, partitions: Iterable[int]) -> None:
        """Nobody will ask for these any more."""
        with self._changed:
            for partition in partitions:
                if self._blocks.pop(partition, None) is not None:
                    del self._sizes[partition]
                    self._unread.discard(partition)
                    self._dropped.add(partition)
            self._changed.notify_all()

    def held(self) -> Held:
        """What is here."""
        with self._changed:
            return Held(len(self._blocks), sum(self._sizes.values()), len(self._unread), len(self._dropped))


def start_holder(schema: pa.Schema, credit: int) -> Any:
    """The actor, owned by this process."""
    groups = {"pulls": 1, "credit": 1, "readers": 64}
    kind = ray.remote(num_cpus=0, max_restarts=0, concurrency_groups=groups)(BlockHolder)
    return kind.remote(schema, credit)


def pull(holder: Any, order: Order) -> Any:
    """The reference to the answer of ``BlockHolder.pull``."""
    return holder.pull.options(concurrency_group="pulls").remote(order)


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

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        yield from from_row(iter(self._table().to_batches()), start)

    def _table(self) -> pa.Table:
        try:
            while True:
                asked = self.holder.block.options(concurrency_group="readers").remote(self.partition, WAIT_SECONDS)
                found = ray.get(asked, timeout=WAIT_SECONDS + LOST_SECONDS)
                if found is not None:
                    return ray.get(found[0])
        except PenstockError:
            raise
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, PenstockError):
                raise error.cause from None
            raise
        except (RayActorError, GetTimeoutError) as error:
            message = f"the holder of split {self.id} is gone: {short_reason(error)}"
            remedy = "leased blocks end with the script that leased them: run it again"
            raise ConfigurationError(message, remedy) from error
        except RayError as error:
            message = f"the block of split {self.id} is gone: {short_reason(error)}"
            raise TaskLostError(message, "its node may have failed; run the flow again, or stage the frame") from error


def _ask(order: Order, index: int, actor: str) -> Any:
    with java_calls():
        executor = ray.get_actor(actor, namespace=order.namespace)
        return executor.getRDDPartition.remote(order.rdd, index, order.schema_json, order.agent)


@contextlib.contextmanager
def java_calls() -> Iterator[None]:
    """Lets this process call Java actors while the block lasts. Left on, Ray would import the driver's script by its
    name in every worker, and run it again."""
    worker = ray._private.worker.global_worker
    before = worker.load_code_from_local
    worker.set_load_code_from_local(True)
    try:
        yield
    finally:
        worker.set_load_code_from_local(before)

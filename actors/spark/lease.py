"""Lease: a DataFrame's partitions become blocks in Ray's object store while the job runs already, group by group.

Rules:

1. The frame's plan is executed once; what Spark shuffles for it stays in Spark's shuffle files. A *group* of partitions
   is then computed as Arrow inside the executors, pulled by the holder (``holder``), and released, before the next one:
   Spark's memory is that of a group, not that of the frame.
2. One group is under way at a time in this process, of all its leases: executors answer few calls at once.
3. A group that fails (an executor died, a pull took too long) is computed again without the partitions that came. That
   is sound only if Spark computes the same rows again. Where Spark itself says that the order of the rows is not
   determined, a group whose rows some reader may have seen is not pieced together: the job fails, and says so.
4. When the last partition has come the lease is *released*: Spark may stop, and the job does not notice.
5. A lease that fails is not tried again by restarts of the job: its error counts as the user's.
6. Blocks whose splits every retained checkpoint has left behind are dropped; without checkpoints a restart begins at
   the first row, so all are kept until the job is over. Then the holder ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayError

from ...engine.errors import ConfigurationError, PenstockError
from .holder import LeasedSplit, Order, await_credit, pull, start_holder
from .stage import cause_of, describe_frame

PULL_SECONDS = 300.0
"""How long one partition may take from an executor that has it ready."""

ATTEMPTS = 4
CREDIT_SHARE = 0.25
"""Share of the cluster's object store that may hold blocks which nobody has read yet."""

FOLLOW_SECONDS = 5.0
"""Between two looks at the checkpoints that are retained."""

_CREDIT_SECONDS = 5.0
_GROUPS_PER_CORE = 2
_pulling = threading.Lock()
"""Rule 2."""

_log = logging.getLogger("penstock.spark")


class Lease:
    """The script's side of a lease, with a thread of its own. See the module's rules."""

    def __init__(self, frame: Any, schema: pa.Schema, source: str, group: int | None = None) -> None:
        context = frame.sparkSession.sparkContext
        self._context = context
        self._frame = frame._jdf
        self._rdd = self._frame.queryExecution().toRdd()
        self._source = source
        self.count = int(self._rdd.getNumPartitions())
        self._group = group or max(4, _GROUPS_PER_CORE * int(context.defaultParallelism))
        self._namespace = ray.get_runtime_context().namespace
        store = ray.cluster_resources().get("object_store_memory", 0.0)
        self.holder = start_holder(schema, int(store * CREDIT_SHARE))
        #: set when no partition is left to be pulled, for whatever reason
        self._done = threading.Event()
        self._closed = threading.Event()
        self._failure: PenstockError | None = None
        self._thread = threading.Thread(target=self._run, name=f"penstock-lease-{source}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ what a job asks

    @property
    def released(self) -> bool:
        """Whether the job needs Spark no more."""
        return self._done.is_set() and self._failure is None

    def wait_released(self, timeout: float | None = None) -> None:
        """Wait for that. Raises the lease's error, or TimeoutError."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"source {self._source} still needs Spark after {timeout} s")
        if self._failure is not None:
            raise self._failure

    def follow(self, left_behind: Callable[[], Sequence[int]]) -> None:
        """Drop blocks that no retained checkpoint needs, until the job is over."""

        def keep_dropping() -> None:
            while not self._closed.wait(FOLLOW_SECONDS):
                with suppress(RayError):
                    self.holder.drop.options(concurrency_group="readers").remote(list(left_behind()))

        threading.Thread(target=keep_dropping, name=f"penstock-follow-{self._source}", daemon=True).start()

    def close(self) -> None:
        """The job is over: end the holder, and with it the blocks."""
        if not self._closed.is_set():
            self._closed.set()
            with suppress(RayError):
                ray.kill(self.holder)

    # ------------------------------------------------------------------ pulling

    def _run(self) -> None:
        started = time.monotonic()
        try:
            for first in range(0, self.count, self._group):
                self._await_credit()
                if self._closed.is_set():
                    break
                self._hand_over(range(first, min(self.count, first + self._group)))
            else:
                seconds = time.monotonic() - started
                _log.info("Spark may stop: all %d partitions of %s came, in %.1f s", self.count, self._source, seconds)
        except Exception as error:
            if not self._closed.is_set():
                self._fail(error)
        finally:
            self._rdd = self._frame = None
            self._done.set()

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, PenstockError):
            error = ConfigurationError(
                f"Spark could not hand its partitions over: {cause_of(error)}",
                "look for executors that died, and keep Spark running until job.spark_released; or stage the frame",
            )
        self._failure = error.at(self._source)
        _log.warning("%s", self._failure)
        with suppress(RayError):
            self.holder.fail.options(concurrency_group="readers").remote(self._failure)

    def _await_credit(self) -> None:
        while not self._closed.is_set() and not ray.get(await_credit(self.holder, _CREDIT_SECONDS)):
            pass

    def _hand_over(self, group: Sequence[int]) -> None:
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt and not self._is_determined():
                break
            with _pulling:
                if self._closed.is_set():
                    return
                try:
                    with self._prepared(group) as prepared:
                        reason = ray.get(pull(self.holder, self._order(group, prepared, careful=attempt > 0)))
                except ValueError as error:  # of ``_order``
                    reason = str(error)
            if not reason:
                return
            _log.warning(
                "a group of partitions of %s did not come (attempt %d of %d): %s",
                *(self._source, attempt + 1, ATTEMPTS, reason),
            )
        remedy = (
            "look for executors that died, give them more memory, use more and smaller partitions, or stage the frame"
        )
        if not self._is_determined():
            remedy = (
                "sort the rows (sortWithinPartitions by a unique key) so that Spark can compute them again, or stage"
            )
        raise ConfigurationError(f"Spark's partitions could not be pulled: {reason}", remedy)

    def _is_determined(self) -> bool:
        """Whether Spark computes the same rows again, as far as it knows."""
        return str(self._rdd.outputDeterministicLevel()) != "INDETERMINATE"

    @contextmanager
    def _prepared(self, group: Sequence[int]) -> Iterator[Any]:
        """A group's partitions as Arrow in the executors, while the block lasts."""
        from pyspark import StorageLevel

        jvm = self._context._jvm
        chosen = jvm.java.util.HashSet()
        for partition in group:
            chosen.add(partition)
        # a set is a function: whether something is in it
        members = jvm.scala.collection.JavaConverters.asScalaSetConverter(chosen).asScala().toSet()
        pruned = jvm.org.apache.spark.rdd.PartitionPruningRDD.create(self._rdd, members)
        frame = self._frame.sparkSession().internalCreateDataFrame(pruned, self._frame.schema(), False)
        writer = jvm.org.apache.spark.sql.raydp.ObjectStoreWriter
        prepared = writer.prepareRecoverableRDD(frame, self._context._getJavaStorageLevel(StorageLevel.MEMORY_AND_DISK))
        try:
            yield prepared
        finally:
            with suppress(Exception):  # an executor that died has released it already
                writer.releaseRecoverableRDD(prepared.rddId())

    def _order(self, group: Sequence[int], prepared: Any, *, careful: bool) -> Order:
        """``careful``: an executor may have been restarted, and must not be asked for more than one."""
        jvm = self._context._jvm
        master = jvm.io.ray.api.Ray.getActor("RAY_APP_MASTER").get()
        # a restarted executor has a new id in Spark, and its actor the old name
        names = dict(jvm.org.apache.spark.deploy.raydp.RayAppMasterUtils.getRestartedExecutors(master))
        locations = list(prepared.locations())
        if None in locations:
            raise ValueError(f"partition {group[locations.index(None)]} was lost with its executor")
        actors = [f"raydp-executor-{names.get(executor, executor)}" for executor in locations]
        return Order(
            prepared.rddId(),
            prepared.schemaJson(),
            prepared.driverAgentUrl(),
            self._namespace,
            tuple((partition, index, actors[index]) for index, partition in enumerate(group)),
            1 if careful else 2,
            PULL_SECONDS,
        )


class LeasedSource:
    """A leased DataFrame: one partition, one split."""

    #: the planner's: blocks go when they have been read
    reads_once = True

    def __init__(self, schema: pa.Schema, lease: Lease) -> None:
        self._schema = schema
        #: the lease, in the script alone
        self.lease: Lease | None = lease
        self._splits = tuple(
            LeasedSplit(f"spark/{position}", position, schema, lease.holder) for position in range(lease.count)
        )

    @property
    def kind(self) -> str:
        return "spark"

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def describe(self) -> str:
        return describe_frame(self._schema)

    def splits(self) -> Sequence[LeasedSplit]:
        return self._splits

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"lease": None, "_splits": ()}


def lease(frame: Any, schema: pa.Schema, source: str, group: int | None = None) -> LeasedSource:
    """Begin to pull the frame's partitions; ``group``: how many of them Spark prepares at a time. What the frame
    shuffles is shuffled now. Raises ConfigurationError if Spark cannot do that."""
    try:
        return LeasedSource(schema, Lease(frame, schema, source, group))
    except (AttributeError, RayError):
        raise
    except Exception as error:
        remedy = "see the message; the frame must compute in Spark (try frame.count())"
        raise ConfigurationError(f"Spark could not compute the DataFrame: {cause_of(error)}", remedy) from error

"""Spark beside the actors: a RayDP session, and the hand-off of a DataFrame's partitions as Arrow blocks.

This is the only module that imports raydp, and outside ``jobs`` the only one that imports pyspark; both inside
functions. Rules:

1. One Spark session a process (RayDP allows no more). The settings that a session needs, and why, are in
   ``spark_settings``.
2. One Spark partition becomes one block, in the order of the partitions. The blocks belong to this process, so they
   survive Spark: after the hand-off :func:`stop` may free its CPUs and memory.
3. A hand-off is complete or it failed: every block was seen before the first one is handed out. If an executor dies
   meanwhile, the whole conversion is done once more, since half of it cannot be trusted.
4. RayDP needs a switch in Ray's worker to call Java actors. It stands for those calls only: left on, every worker
   would import the driver's script by name and run it again.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from ..engine.errors import ConfigurationError, SetupError, StorageError
from . import java
from .blocks import RayBlockSplit, measure, nullable
from .spark_settings import Quiet, prepare_environment, settings

FIRST_JOB_SECONDS = 120.0
"""How long the first, tiny Spark job may take; an executor usually stands after ten seconds."""

HAND_OFF_SECONDS = 900.0
_ATTEMPTS = 2
_log = logging.getLogger("penstock.spark")


@contextlib.contextmanager
def session(
    name: str,
    *,
    executors: int = 1,
    cores: int = 2,
    memory: str = "1g",
    verbose: bool = False,
    brief: bool = False,
    timeout: float = FIRST_JOB_SECONDS,
    extra: dict[str, str] | None = None,
) -> Iterator[Any]:
    """A Spark session on the Ray cluster that this process is connected to; stopped at the end of the block.

    ``brief``: for a minute's work; the JVMs start in half the time and compute slower. ``extra``: Spark settings of
    your own. Spark takes ``executors * cores`` CPUs of the cluster, and as much memory.
    """
    try:
        yield start(
            name,
            executors=executors,
            cores=cores,
            memory=memory,
            verbose=verbose,
            brief=brief,
            timeout=timeout,
            extra=extra,
        )
    finally:
        stop()


def start(
    name: str,
    *,
    executors: int = 1,
    cores: int = 2,
    memory: str = "1g",
    verbose: bool = False,
    brief: bool = False,
    timeout: float = FIRST_JOB_SECONDS,
    extra: dict[str, str] | None = None,
) -> Any:
    """As :func:`session`, to be ended with :func:`stop`."""
    import ray

    if not ray.is_initialized():
        raise SetupError("Spark runs on Ray, and this process is not connected", "call environment.connect() first")
    _log.info("Spark uses %s", java.ensure().describe())
    raydp = _raydp()
    shortage = _shortage(executors, cores, memory)
    if shortage and ray._private.worker._global_node.head:  # a cluster of this process alone, which does not grow
        raise SetupError(shortage, "ask for fewer or smaller executors, or use a cluster with more room")
    prepare_environment()
    with Quiet(verbose) as quiet, _own_interrupts():
        given = settings(verbose, executors * cores, brief) | (extra or {})
        try:
            spark = raydp.init_spark(name, executors, cores, memory, configs=given)
        except Exception as error:
            stop()
            remedy = "see the message; `--verbose` shows the logs of Spark and Ray"
            raise SetupError(f"Spark could not start: {error}", remedy, "", quiet.tail()) from error
    spark.sparkContext.setLogLevel("WARN" if verbose else "ERROR")  # RayDP sets WARN while it starts
    try:
        _await_executors(spark, timeout, shortage)
    except BaseException:
        stop()
        raise
    return spark


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Leave Ctrl-C to whom it belonged: PySpark's handler calls the JVM amid the very call that it interrupts."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def stop() -> None:
    """End this process's Spark session, if there is one. Blocks that were handed over stay readable."""
    if "raydp" not in sys.modules:
        return
    # A thread of its own talks to the JVM through a connection of its own: after Ctrl-C an answer that nobody will read
    # may be under way on the caller's.
    with ThreadPoolExecutor(1, thread_name_prefix="penstock-stop-spark") as beside:
        beside.submit(_stop).result()


def _stop() -> None:
    from pyspark import SparkContext

    with contextlib.suppress(Exception), Quiet(False):  # there may be no session, or its JVM may be gone
        # Connections that end while Spark stops are no errors. Ray sends the JVM's log to stdout, out of our reach.
        SparkContext._active_spark_context.setLogLevel("OFF")
    with Quiet(False):
        _raydp().stop_spark()


def open_frame(frame: Any) -> SparkFrameSource:
    """The source behind ``Flow.from_spark``: a DataFrame of a RayDP session."""
    return SparkFrameSource(frame)


class SparkFrameSource:
    """A DataFrame as a source: one Spark partition, one split (see ``engine.sources.protocol``).

    The first call of ``splits`` hands the partitions over. The rows of a partition must come in the same order whenever
    Spark computes it: repartition by a key and ``sortWithinPartitions`` by a unique one.
    """

    def __init__(self, frame: Any) -> None:
        # The DataFrame until its partitions were handed over; None from then on, and in every copy that travels.
        self._frame = frame
        self._schema = arrow_schema(frame)
        # One split for each partition, in their order; None before the hand-off.
        self._splits: tuple[RayBlockSplit, ...] | None = None
        # One entry "rows:hash" for each split, in their order; empty before the hand-off.
        self.fingerprint: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "spark"

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def splits(self) -> Sequence[RayBlockSplit]:
        if self._splits is None:
            blocks, measures = hand_over(self._frame)
            self._splits = tuple(
                RayBlockSplit(f"spark/{position}", rows, self._schema, block)
                for position, (block, (rows, _)) in enumerate(zip(blocks, measures, strict=True))
            )
            self.fingerprint = tuple(f"{rows}:{digest}" for rows, digest in measures)
            self._frame = None
        return self._splits

    def describe(self) -> str:
        return f"frame with {', '.join(self._schema.names)}"

    def __getstate__(self) -> dict[str, Any]:
        if self._splits is None:
            raise ConfigurationError("a DataFrame cannot leave its process", "call splits() before the flow travels")
        return self.__dict__ | {"_frame": None}


def arrow_schema(frame: Any) -> pa.Schema:
    """The Arrow schema of a frame's blocks. Timestamps with a zone are labelled UTC, whatever the session's zone is:
    the label of an instant."""
    import warnings

    from pyspark.sql.pandas.types import to_arrow_schema

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PySpark 3.5 uses distutils to compare versions
        try:
            return nullable(to_arrow_schema(frame.schema))
        except Exception as error:
            remedy = "cast or drop the column that the message names before the hand-off"
            raise ConfigurationError(f"a column of the DataFrame has no Arrow type: {error}", remedy) from error


def hand_over(frame: Any, timeout: float = HAND_OFF_SECONDS) -> tuple[list[Any], list[tuple[int, str]]]:
    """A reference to one block for each partition, in their order, and what :func:`blocks.measure` says of each."""
    import ray

    _check_session(frame)
    failure: Exception | None = None
    for attempt in range(_ATTEMPTS):
        try:
            with _prepared(frame) as prepared:
                blocks = _fetch(frame.sparkSession.sparkContext, prepared, timeout)
                return blocks, [measure(ray.get(block)) for block in blocks]
        except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
            _log.warning("hand-off from Spark failed (attempt %d of %d): %s", attempt + 1, _ATTEMPTS, error)
            failure = error
    raise StorageError(
        f"Spark's partitions could not be handed over: {failure}",
        "look for executors that died (--verbose), give them more memory, or use more and smaller partitions",
    ) from failure


@contextlib.contextmanager
def _prepared(frame: Any) -> Iterator[Any]:
    """The frame's partitions as Arrow, held in the executors' storage while the block lasts."""
    from pyspark import StorageLevel

    context = frame.sparkSession.sparkContext
    writer = context._jvm.org.apache.spark.sql.raydp.ObjectStoreWriter
    level = context._getJavaStorageLevel(StorageLevel.MEMORY_AND_DISK)
    prepared = writer.prepareRecoverableRDD(frame._jdf, level)
    try:
        yield prepared
    finally:
        with contextlib.suppress(Exception):  # an executor that died has released it already
            writer.releaseRecoverableRDD(prepared.rddId())


def _fetch(context: Any, prepared: Any, timeout: float) -> list[Any]:
    import ray

    locations = list(prepared.locations())
    arguments = prepared.rddId(), prepared.schemaJson(), prepared.driverAgentUrl()
    names = _executor_names(context)
    with _java_calls():
        executors = {
            executor: ray.get_actor(f"raydp-executor-{names.get(executor, executor)}") for executor in set(locations)
        }
        blocks = [
            executors[locations[position]].getRDDPartition.remote(arguments[0], position, *arguments[1:])
            for position in range(prepared.numPartitions())
        ]
    if blocks:
        _, missing = ray.wait(blocks, num_returns=len(blocks), timeout=timeout)
        if missing:
            raise TimeoutError(f"{len(missing)} of {len(blocks)} partitions did not come within {timeout:g} s")
    return blocks


def _executor_names(context: Any) -> dict[str, str]:
    """The names of executors that were restarted: a new one has a new id in Spark, and its actor the old name."""
    master = context._jvm.io.ray.api.Ray.getActor("RAY_APP_MASTER").get()
    return dict(context._jvm.org.apache.spark.deploy.raydp.RayAppMasterUtils.getRestartedExecutors(master))


@contextlib.contextmanager
def _java_calls() -> Iterator[None]:
    """Lets this process call Java actors while the block lasts; see rule 4."""
    import ray

    worker = ray._private.worker.global_worker
    before = worker.load_code_from_local
    worker.set_load_code_from_local(True)
    try:
        yield
    finally:
        worker.set_load_code_from_local(before)


def _check_session(frame: Any) -> None:
    context = frame.sparkSession.sparkContext
    if context._jsc is None:
        raise ConfigurationError("the Spark session of this DataFrame has ended", "build the flow before Spark stops")
    if not context.master.startswith("ray"):
        remedy = "make the session with penstock.actors.spark_bridge.session(), or write Parquet and read that"
        raise ConfigurationError("this DataFrame belongs to a Spark session that does not run on Ray", remedy)


def _raydp() -> Any:
    try:
        import raydp
    except ImportError as error:
        raise ConfigurationError(f"Spark support is incomplete: {error}", "pip install 'penstock[spark]'") from error
    return raydp


def _shortage(executors: int, cores: int, memory: str) -> str:
    """What the cluster lacks for these executors, as a sentence; empty if they fit.

    RayDP returns a session even when its executors can never be placed, and the first job then waits for ever.
    """
    import ray
    from raydp.utils import parse_memory_size

    free = ray.available_resources()
    cpus, bytes = executors * cores, executors * parse_memory_size(memory)
    if free.get("CPU", 0.0) >= cpus and free.get("memory", 0.0) >= bytes:
        return ""
    return (
        f"Spark asks for {cpus} CPUs and {bytes / 2**30:.1f} GiB ({executors} executors of {cores} CPUs and {memory}); "
        f"the Ray cluster has {free.get('CPU', 0.0):g} CPUs and {free.get('memory', 0.0) / 2**30:.1f} GiB free"
    )


def _await_executors(spark: Any, timeout: float, shortage: str) -> None:
    """Run a tiny job, and give up on it after ``timeout``: without an executor it would wait for ever."""
    failures: list[Exception] = []

    def first_job() -> None:
        try:
            spark.range(1).count()
        except Exception as error:
            failures.append(error)

    started = time.monotonic()
    worker = threading.Thread(target=first_job, name="penstock-first-spark-job", daemon=True)
    worker.start()
    worker.join(timeout)
    if worker.is_alive() or failures:
        reason = f"failed: {failures[0]}" if failures else f"did not finish within {timeout:g} s"
        raise SetupError(
            f"Spark's first job {reason}: its executors did not come up" + (f". {shortage}" if shortage else ""),
            "check that each node of the Ray cluster has a usable Java on the PATH that Ray was started with, and room "
            "for an executor's CPUs and memory (`ray status`); `--verbose` shows the logs",
        )
    _log.info("Spark's executors answered after %.1f s", time.monotonic() - started)

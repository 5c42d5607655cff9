"""Spark beside the actors: a RayDP session with the settings that work.

Here alone is raydp imported, and only ``spark`` (the hand-offs), this module and ``jobs`` import pyspark, all of them
inside functions. Rules:

1. One Spark session a process (RayDP allows no more); a session that the script has already is used and left running.
   The settings that a session needs, and why, are in ``spark.sessions``.
2. A session is up when its executors have answered, or it was refused: without an executor Spark's first job would wait
   for ever.
3. A session ends without a word, whatever state its JVM is in.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..engine.core.arguments import Seconds, checked
from ..engine.core.errors import ConfigurationError, SetupError
from ..engine.files.paths import absolute
from .client.job import Job
from .client.outputs import Output, SparkSession
from .cluster import java
from .cluster.environment import check_cluster, connect
from .spark import sessions
from .spark.sessions import Quiet, prepare_environment, settings
from .spark.source import SparkFrameSource, Way

FIRST_JOB_SECONDS = 120.0
"""How long the first, tiny Spark job may take; an executor is usually up after ten seconds."""

AFTERMATH_SECONDS = 30.0
"""How long a session may take to give back its executors and its names after it has ended."""

AFTERMATH_POLL_SECONDS = 0.1
_ended_at = [-AFTERMATH_SECONDS]
"""When the last session of this process, which has one at a time, ended, by the monotonic clock."""

JAVA_OPTIONS = sessions.JAVA_OPTIONS
"""What Java 17 must open to RayDP, as ``extraJavaOptions`` of a session that ``raydp.init_spark`` makes."""

_log = logging.getLogger("penstock.spark")


@contextlib.contextmanager
@checked(ConfigurationError)
def session(
    name: str = "penstock",
    *,
    executors: int = 1,
    cores: int = 2,
    memory: str = "1g",
    verbose: bool = False,
    brief: bool = False,
    timeout: Seconds = FIRST_JOB_SECONDS,
    extra: dict[str, str] | None = None,
    address: str | None = None,
) -> Iterator[Any]:
    """A Spark session on Ray; stopped at the end of the block, so after ``job.wait_spark_released()`` if it leases.

    It runs on the cluster that this process is connected to, or on the one at ``address``; by default a small one is
    started on this machine, and ends with the process. ``executors`` of ``cores`` CPUs and ``memory`` each are taken
    from it. ``brief``: for a minute's work; the JVMs start in half the time and compute slower. ``extra``: Spark
    settings of your own. ``timeout``: seconds for the first executor to answer. A RayDP session that the process has
    already is given as it is, and is not stopped.
    """
    if (running := current()) is not None:
        check_cluster(address)
        yield running
        return
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
            address=address,
        )
    finally:
        stop()


@checked(ConfigurationError)
def start(
    name: str = "penstock",
    *,
    executors: int = 1,
    cores: int = 2,
    memory: str = "1g",
    verbose: bool = False,
    brief: bool = False,
    timeout: Seconds = FIRST_JOB_SECONDS,
    extra: dict[str, str] | None = None,
    address: str | None = None,
) -> Any:
    """As :func:`session`, to be ended with :func:`stop`. Raises SetupError if there is a session already."""
    if current() is not None:
        remedy = "use that one (ps.spark.session() gives it), or stop it first (ps.spark.stop())"
        raise SetupError("this process has a Spark session on Ray, and there can be only one", remedy)
    _refuse_other_session()
    connect(address, verbose, spark=True)
    import ray

    _log.info("Spark uses %s", java.ensure().describe())
    raydp = _raydp()
    shortage = _room_for(lambda: _shortage(executors, cores, memory))
    if shortage and ray._private.worker._global_node.head:  # a cluster of this process alone, which does not grow
        raise SetupError(shortage, "ask for fewer or smaller executors, or use a cluster with more room")
    prepare_environment()
    with Quiet(verbose) as quiet, _own_interrupts():
        given = settings(verbose, executors * cores, brief) | (extra or {})
        others = _raydps()
        try:
            spark = raydp.init_spark(name, executors, cores, memory, configs=given)
        except Exception as error:
            stop()
            if others:
                message = f"another Spark session runs on this Ray cluster, whose actors are {', '.join(others)}"
                remedy = "wait for the script that it belongs to, or run on a cluster of your own (without address=)"
                raise SetupError(message, remedy, "", f"{error}\n{quiet.tail()}") from error
            remedy = "see the message; `--verbose` shows the logs of Spark and Ray"
            raise SetupError(f"Spark could not start: {error}", remedy, "", quiet.tail()) from error
    spark.sparkContext.setLogLevel("WARN" if verbose else "ERROR")  # RayDP sets WARN while it starts
    try:
        _await_executors(spark, timeout, shortage)
    except BaseException:
        stop()
        raise
    return spark


def current() -> Any:
    """The RayDP session of this process; None if it has none."""
    context = sys.modules.get("raydp.context")
    found = None if context is None else context._global_spark_context
    return None if found is None else found._spark_session


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

    running = current()
    with contextlib.suppress(Exception), Quiet(False):  # there may be no session, or its JVM may be gone
        # Connections that end while Spark stops are no errors. Ray sends the JVM's log to stdout, out of our reach.
        SparkContext._active_spark_context.setLogLevel("OFF")
    with Quiet(False):
        try:
            _raydp().stop_spark()
        except Exception as error:  # rule 3: Ray may be gone before, or have lost RayDP's actors
            _log.debug("RayDP did not stop cleanly: %s", error)
            with contextlib.suppress(Exception):
                if running is not None:
                    running.stop()
    if running is not None:
        _ended_at[0] = time.monotonic()


def _refuse_other_session() -> None:
    """Raise SetupError if the process has a session that RayDP would take for its own, and stop."""
    context = sys.modules.get("pyspark")
    active = None if context is None else context.SparkContext._active_spark_context
    if active is not None:
        raise SetupError(
            f"this process has a Spark session already, on {active.master!r}, and Spark allows one a process",
            "stop it (spark.stop()) before ps.spark.session(), or go on with it: flow.from_spark(frame) takes frames "
            "of any session, which are staged then",
        )


def _room_for(shortage: Callable[[], str]) -> str:
    """What is missing, once what a session of this process had, that has just ended, is free again.

    RayDP's actors end after ``stop`` has returned, a while after on a busy machine. Until then their names are taken
    and their resources in use, and a session that starts meanwhile fails with Ray's own error.
    """
    while True:
        missing = shortage()
        if not (missing or _raydps()) or time.monotonic() - _ended_at[0] > AFTERMATH_SECONDS:
            return missing
        time.sleep(AFTERMATH_POLL_SECONDS)


@checked(ConfigurationError)
def read(spark: SparkSession, result: Job | Output | str | os.PathLike[str], name: str | None = None) -> Any:
    """What a job has committed by now, as a DataFrame of ``spark``, which may be any session.

    ``result``: a job (``name``: which of its sinks, if there are several), an :class:`Output`, or the folder that a
    Parquet sink wrote.
    """
    if isinstance(result, Job):
        result = result.output(name)
    elif not isinstance(result, Output):
        result = Output(absolute(result), None)
    return result.to_spark(spark)


def open_frame(frame: Any, handoff: Way = "auto") -> SparkFrameSource:
    """The source behind ``Flow.from_spark``."""
    return SparkFrameSource(frame, handoff)


def _raydp() -> Any:
    try:
        import raydp
    except ImportError as error:
        raise ConfigurationError(f"Spark support is incomplete: {error}", _remedy()) from error
    return raydp


def _remedy() -> str:
    """PySpark 3.5, which RayDP needs, ends at Python 3.11; the extra is empty on later ones."""
    if sys.version_info >= (3, 12):
        return "use Python 3.11, the last one of PySpark 3.5: RayDP goes no further; all else runs on 3.12 and 3.13"
    return "pip install 'penstock[spark]'"


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


def _raydps() -> list[str]:
    """The names of the actors of RayDP's that are there, in this process's namespace."""
    import ray

    names = ray.util.list_named_actors()
    return [name for name in names if name == "RAY_APP_MASTER" or name.endswith("_SPARK_MASTER")]


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

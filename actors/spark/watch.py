"""Watches over Spark while somebody waits for it: Spark waits for ever once what it runs on has died.

Rules:

1. On Ray, executors belong to RayDP's master, an actor. When that dies they go with it, nobody makes new ones, and
   Spark's driver does not notice: its jobs stay where they are. A session without an executor waits as quietly.
2. So whatever waits for Spark does it here (:func:`watched`): the call has a thread of its own, and whoever waits looks
   at the master and at the executors meanwhile. What has died is named, and how to go on.
3. A session that is not on Ray is not watched: its executors are its driver's, whose end ends the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from ...engine.core.errors import SetupError
from .sessions import is_on_ray

LOOK_SECONDS = 1.0
"""Between two looks at Spark."""

ALONE_SECONDS = 120.0
"""How long Spark may be without an executor: one that died is back after some ten seconds."""

MASTER = "RAY_APP_MASTER"
"""The name of RayDP's actor, in the namespace of the script."""

T = TypeVar("T")


def watched(frame: Any, call: Callable[[], T], work: str) -> T:
    """What ``call`` returns or raises; ``work``: what it does, for the error. Raises SetupError if Spark died."""
    if not is_on_ray(frame):
        return call()
    context = frame.sparkSession.sparkContext
    try:
        return wait_watched(call, Watch(is_master_alive, lambda: executors_of(context)).trouble, work)
    except SetupError:
        with suppress(Exception):  # what waits in the JVM shall not wait for ever
            context._jsc.sc().cancelAllJobs()
        raise


def wait_watched(call: Callable[[], T], trouble: Callable[[], str], work: str) -> T:
    """What ``call`` returns or raises, unless there is ``trouble`` before."""
    from pyspark import InheritableThread

    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            errors.append(error)

    thread = InheritableThread(target=run, name="penstock-spark-call", daemon=True)
    thread.start()
    while True:
        thread.join(LOOK_SECONDS)
        if not thread.is_alive():
            break
        if said := trouble():
            raise lost(said, work)
    if errors:
        raise errors[0]
    return answers[0]


def lost(what: str, work: str) -> SetupError:
    """The error for a Spark that will not answer any more."""
    remedy = (
        "run the same command again: it begins with a new Spark, and a job with a checkpoint folder goes on there (one "
        "that leases begins anew: if it has taken a checkpoint, remove its checkpoint folder and output first); if it "
        "dies again, give its node more memory, or Spark fewer executors"
    )
    return SetupError(f"Spark is gone: {what} while it {work}", remedy)


class Watch:
    """Whether Spark can still answer. ``master``: whether RayDP's actor lives; ``executors``: how many there are."""

    def __init__(
        self, master: Callable[[], bool], executors: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._master = master
        self._executors = executors
        self._clock = clock
        #: since when there has been no executor
        self._alone: float | None = None

    def trouble(self) -> str:
        """What has died; empty while Spark is there."""
        if not self._master():
            return f"RayDP's master (the actor {MASTER}, which owns the executors) died"
        if self._executors() > 0:
            self._alone = None
            return ""
        now = self._clock()
        if self._alone is None:
            self._alone = now
        return f"it has had no executor for {ALONE_SECONDS:g} s" if now - self._alone >= ALONE_SECONDS else ""


def is_master_alive() -> bool:
    """Whether Ray knows RayDP's master. True where Ray cannot be asked: then it will say so itself."""
    import ray
    from ray._private.state import actors

    try:
        master = ray.get_actor(MASTER, namespace=ray.get_runtime_context().namespace)
        # a process that has a handle is given one by name for ever
        return bool(actors(master._actor_id.hex())["State"] != "DEAD")
    except ValueError:
        return False
    except Exception:
        return True


def executors_of(context: Any) -> int:
    """How many executors Spark's driver knows, itself excepted."""
    return len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1

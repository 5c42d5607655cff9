"""What Spark's errors mean, and whether Spark can still answer: it waits for ever when what it runs on has died.

Rules:

1. What the user's Python function raised comes before all else: the last line of the traceback of the Python worker.
   Then the cause that Spark names last, and else its first line, without the name of the call from Python.
2. A traceback that leads into code which is neither Spark's nor ours has been raised by a function of the frame: then
   the remedy speaks of that function, and of nothing else. One that leads through our writer is about disks and stores.
3. On Ray, executors belong to RayDP's master, an actor. When that dies they go with it, no new ones are made, and
   Spark's driver does not notice: its jobs hang. A session without an executor hangs as well. So every call that waits
   for Spark is watched (:func:`watched`): it has a thread of its own, and the caller looks at the master and at the
   executors meanwhile. The error names what has died, and how to go on.
4. A session that is not on Ray is not watched: its executors are its driver's, whose end ends the call.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from ...engine.core.errors import SetupError
from .sessions import is_on_ray

_TRACEBACK = "Traceback (most recent call last):"
_CAUSES = ("Caused by:", "pyarrow.", "OSError", "ModuleNotFoundError")
_WRITER = "/actors/spark/writing.py"
_FRAME = re.compile(r'^  File "([^"]+)", line \d', re.MULTILINE)
_NOT_THEIRS = re.compile(r"(^|/)(pyspark|pyspark\.zip|pyarrow|pandas|numpy)/|^<frozen ")
"""Files that a traceback goes through before it comes to a function of the frame, or without coming to one."""

_FUNCTION = (
    "a function of the frame raised this in Spark's Python worker: repair the function, or leave out the rows that it "
    "cannot take, and run the same command again"
)
_CALL = "An error occurred while calling "
LONGEST, LONGEST_DETAIL = 300, 4000


def cause_of(error: BaseException) -> str:
    """The line of a Spark error that says what has happened."""
    text = str(error)
    return (_raised(text) or _named(text) or type(error).__name__)[:LONGEST]


def detail_of(error: BaseException) -> str:
    """As much of the text as an error of ours carries."""
    return str(error)[:LONGEST_DETAIL]


def remedy_of(error: BaseException, otherwise: str) -> str:
    """What to do about it. ``otherwise``: where no function of the frame has raised it."""
    return _FUNCTION if _is_of_a_function(str(error)) else otherwise


def _is_of_a_function(text: str) -> bool:
    """Rule 2."""
    files = _FRAME.findall("\n".join(_traceback(text)))
    if any(file.endswith(_WRITER) for file in files):
        return False
    return any(not _NOT_THEIRS.search(file) for file in files)


def _traceback(text: str) -> Iterator[str]:
    """The lines of the Python worker's traceback, and of those that it is chained with."""
    _, found, rest = text.partition(_TRACEBACK)
    for line in rest.splitlines() if found else ():
        if line.startswith(("\tat ", "Caused by:", "Driver stacktrace:", "\t...")):
            return
        yield line


def _raised(text: str) -> str:
    """What the Python worker's traceback ends in."""
    said = ""
    for line in _traceback(text):
        if (
            line.strip()
            and not line.startswith(" ")
            and not line.startswith((_TRACEBACK, "During handling", "The above"))
        ):
            said = said if said and not _is_raised(line) else line.strip()
    return said


def _is_raised(line: str) -> bool:
    """Whether the line begins as what a traceback ends in: ``module.Error: words``."""
    name = line.partition(":")[0]
    return name.replace(".", "").replace("_", "").isalnum() and name[:1].isalpha()


def _named(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith(_CAUSES)]
    if causes:
        return causes[-1]
    told = [line.removeprefix(": ") for line in lines if not line.startswith(_CALL)]
    return next(iter(told), "")


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

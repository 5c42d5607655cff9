"""What a failed hand-off is told as, and how long anybody waits for a Spark that is gone. No cluster, no Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.actors.hosting.split_guard import GuardedSplit, SplitGuard
from penstock.actors.spark import failures
from penstock.actors.spark.failures import ALONE_SECONDS, Watch, cause_of, remedy_of, wait_watched
from penstock.actors.spark.lease import _as_failure
from penstock.coordinator.model.split_sets import SplitName
from penstock.engine.core.errors import ConfigurationError, SetupError

PYTHON = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/site/script.py", line 14, in boom
    raise ValueError("bad row 42")
ValueError: bad row 42
of the table: users
"""
CHAINED = """Job aborted due to stage failure: Task 1 in stage 4.0 failed 4 times, most recent failure: Lost task 1.3
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/site/script.py", line 9, in boom
    int("x")
ValueError: invalid literal for int()

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/site/script.py", line 11, in boom
    raise script.BadRow("no number") from None
script.BadRow: no number

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
Caused by: java.io.IOException: closed
"""
INDETERMINATE = """An error occurred while calling o219.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: A shuffle map stage with indeterminate output was \
failed and retried. However, Spark cannot rollback the ResultStage 3 to re-process the input data, and has to fail \
this job. Please eliminate the indeterminacy by checkpointing the RDD before repartition and try again.
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2856)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PYTHON, "ValueError: bad row 42"),
        (CHAINED, "script.BadRow: no number"),
        (INDETERMINATE, "org.apache.spark.SparkException: Job aborted due to stage failure: A shuffle map stage with"),
        ("a\nCaused by: java.io.IOException: No space left on device", "Caused by: java.io.IOException: No space left"),
        ("", "RuntimeError"),
    ],
)
def test_cause_is_what_the_users_function_raised_or_sparks_reason(text: str, said: str) -> None:
    assert cause_of(RuntimeError(text)).startswith(said)


WORKER = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 1247, in main
    process()
  File "/site-packages/pyspark/python/lib/pyspark.zip/pyspark/sql/pandas/serializers.py", line 106, in dump_stream
    for batch in iterator:
"""
THEIRS = '  File "/site-packages/features/clean.py", line 3, in clean\n    raise ValueError("bad row 42")\n'
OURS = '  File "/site-packages/penstock/actors/spark/writing.py", line 160, in write\n    sink.write(table)\n'
ARROWS = '  File "pyarrow/error.pxi", line 92, in pyarrow.lib.check_status\n'
IMPORTS = '  File "<frozen importlib._bootstrap>", line 1140, in _find_and_load_unlocked\n'
ENDS = "ValueError: bad row 42\n\n\tat org.apache.spark.api.python.Runner(PythonRunner.scala:572)\n"


@pytest.mark.parametrize(
    ("text", "of_a_function"),
    [
        (PYTHON, True),
        (CHAINED, True),
        (WORKER + THEIRS + ENDS, True),
        (WORKER + THEIRS + ARROWS + ENDS, True),
        (WORKER + ARROWS + ENDS, False),
        (WORKER + OURS + ARROWS + ENDS, False),
        (WORKER + IMPORTS + ENDS, False),
        (WORKER + ENDS + THEIRS, False),
        (INDETERMINATE, False),
        (THEIRS, False),
        ("", False),
    ],
)
def test_remedy_speaks_of_the_users_function_where_that_has_raised(text: str, of_a_function: bool) -> None:
    remedy = remedy_of(RuntimeError(text), otherwise="give Spark more memory")
    assert remedy.startswith("a function of the frame raised this" if of_a_function else "give Spark more memory")


def test_lease_whose_function_raises_says_nothing_of_spark_that_stopped_early() -> None:
    theirs, sparks = (_as_failure(RuntimeError(text)) for text in (WORKER + THEIRS + ENDS, INDETERMINATE))
    assert "ValueError: bad row 42" in theirs.message
    assert "repair the function" in theirs.remedy
    assert "stopped early" not in theirs.remedy
    assert "memory" not in theirs.remedy
    assert "stopped early" in sparks.remedy


class Failing:
    """A split that cannot be read."""

    id, rows = "spark/0", None

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        raise ConfigurationError("Spark could not compute the rows: ValueError: bad row 42")


class Leased(Failing):
    may_be_poison = False


@pytest.mark.parametrize(("split", "blamed"), [(Failing(), SplitName("rows", "spark/0")), (Leased(), None)])
def test_failed_hand_off_is_no_fault_of_the_split_that_waited_for_it(split: Any, blamed: SplitName | None) -> None:
    guard, said = SplitGuard(), list[SplitName | None]()
    guard.begin(said.append, frozenset())
    with pytest.raises(ConfigurationError):
        list(GuardedSplit(split, SplitName("rows", "spark/0"), guard).open(0))
    assert (guard.raised, said) == (blamed, [blamed])


def test_watch_names_the_master_that_died_and_bears_with_an_executor_that_comes_back() -> None:
    master, executors, now = True, 1, 0.0
    watched = Watch(lambda: master, lambda: executors, lambda: now)
    assert not watched.trouble()
    executors = 0
    assert not watched.trouble()
    now = ALONE_SECONDS - 1
    assert not watched.trouble()
    executors = 1
    assert not watched.trouble()
    executors = 0
    assert not watched.trouble()
    now += ALONE_SECONDS
    assert "no executor for" in watched.trouble()
    master = False
    assert "RAY_APP_MASTER" in watched.trouble()


def test_nobody_waits_for_a_spark_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "LOOK_SECONDS", 0.001)
    never = threading.Event()
    try:
        with pytest.raises(SetupError, match="the master died while it staged rows") as caught:
            wait_watched(never.wait, lambda: "the master died", "staged rows")
    finally:
        never.set()
    assert "run the same command again" in caught.value.remedy
    assert wait_watched(lambda: 5, lambda: "trouble", "staged rows") == 5
    with pytest.raises(ZeroDivisionError):
        wait_watched(lambda: 1 // 0, lambda: "", "staged rows")

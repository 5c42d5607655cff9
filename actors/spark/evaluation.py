"""One evaluation of a DataFrame, from which partitions are asked for in groups.

Rules:

1. The frame is planned once, and all that it shuffles is shuffled once, before its first partition is computed
   (:meth:`Evaluation.begin`). What partitions are computed from after that are the same *map outputs*, or rows of no
   shuffle at all.
2. An executor that dies takes its map outputs with it, and Spark computes them again, without a word. Whether it gets
   the same rows only the author of the frame can know: an order that changes, a random number or a Python function
   puts them elsewhere, and what Spark itself says (``outputDeterministicLevel``) is not true of such functions. So the
   ids of the map outputs are remembered, and :meth:`Evaluation.is_whole` says whether they are still the same ones.
   Spark counts an *epoch* of them; where that has not moved, nothing need be looked at.
3. Only the shuffles that partitions read themselves matter; those behind them were read when these were made.
4. What a frame *keeps* (``cache``, ``persist``) goes with its executor as well, and is computed again. Where partitions
   read such rows, all executors have to live, and no fewer of its partitions may be kept than were before.
5. An evaluation that has lost something cannot be mended: what Spark makes again of one shuffle does not fit what is
   left of the next one, or a broadcast. It is *discarded* (:meth:`Evaluation.discard`), with the outputs of all its
   shuffles, and the frame planned anew; not so where it keeps rows, which are the user's and read by other frames too.
6. A group is computed as partitions of the whole frame, so that ``TaskContext.partitionId()`` in the frame's functions,
   and all that is made of it, is the same as anywhere else in Spark.
7. Spark hands an Arrow batch of so many rows to a Python worker, whatever they weigh, in memory beside the heap of the
   executor: one of 1 GB dies of a batch of 600 MB. So the number is set while a frame is planned, by the width of a row
   where the types tell it, small where they do not (:func:`bounded_batches`). A smaller one of the user's stays.
8. Functions of the frame's own get as many at a time as the session says: their part of the plan is made before
   (:func:`planned_before`). Spark Connect and Spark 4 do not offer that; there the number holds for all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...engine.plan.rounds import CHUNK_ROWS
from .sessions import is_classic
from .writing import BATCH_BYTES

UNKNOWN_WIDTH_ROWS = 128
"""Rows at a time where a row may be of any width: of a megabyte each, 128 MB."""

SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"


@contextmanager
def bounded_batches(frame: Any, schema: pa.Schema) -> Iterator[None]:
    """What is planned of the frame while the block lasts hands over so many rows at a time."""
    conf = frame.sparkSession.conf
    before = conf.get(SETTING)
    conf.set(SETTING, str(rows_at_a_time(schema, int(before))))
    try:
        yield
    finally:
        conf.set(SETTING, before)


def can_be_planned_before(frame: Any) -> bool:
    """Whether Spark lets us plan a frame, and so know what it is computed from, before more is put on it."""
    return is_classic(frame) and str(frame.sparkSession.version).startswith("3.")


def planned_before(frame: Any) -> Any:
    """A frame of the same rows, whose plan so far is made with the session's settings."""
    if not can_be_planned_before(frame):
        return frame
    held = frame._jdf
    made = held.sparkSession().internalCreateDataFrame(held.queryExecution().toRdd(), held.schema(), False)
    return type(frame)(made, frame.sparkSession)


def rows_at_a_time(schema: pa.Schema, asked: int) -> int:
    """``asked``: what the session says; 0: no bound."""
    try:
        width = max(1, sum(int(column.type.bit_width) for column in schema) // 8)
        rows = max(1, min(CHUNK_ROWS, BATCH_BYTES // width))
    except ValueError:
        rows = UNKNOWN_WIDTH_ROWS
    return min(rows, asked) if asked > 0 else rows


ATTEMPTS = 4
"""How often it is tried to compute something in one evaluation. Spark itself gives up a task after as many."""
OTHER_ROWS = (
    "an executor of Spark died, and with it rows that it had shuffled or kept: computed again, they may come in "
    "another order and other partitions, and {}"
)
"""Why a hand-off has ended; and because of what."""

LOOK_SECONDS = 0.02
_SHUFFLE = "ShuffleDependency"

MapOutputs = Mapping[int, tuple[int | None, ...]]
"""By shuffle: the ids of its map outputs; None: it is not there."""


class Evaluation:
    """``rdd``: of the JVM, which gives something for each partition of the frame that is meant. See the module's
    rules."""

    def __init__(self, context: Any, rdd: Any) -> None:
        self._context = context
        self.partitions = int(rdd.getNumPartitions())
        read = _lineage_of(rdd, beyond_shuffles=False)
        whole = _lineage_of(rdd, beyond_shuffles=True)
        self._shuffles = read.shuffles
        self._all_shuffles = whole.shuffles
        self._kept = frozenset(read.kept)
        #: whether it reads rows, maybe behind a shuffle, that Spark keeps (rule 5)
        self.keeps_rows = bool(whole.kept)
        spark_env = self._context._jvm.org.apache.spark.SparkEnv.get()
        self._tracker = spark_env.mapOutputTracker()
        self._outputs: MapOutputs | None = None
        self._epoch = -1
        #: of the moment when all was last found whole (rule 4)
        self._executors: frozenset[str] = frozenset()
        self._kept_counts: Mapping[int, int] = {}

    def begin(self) -> None:
        """Shuffle what is not shuffled, and remember it; where a part of something is lost already, it is not whole
        (rule 5). Raises RuntimeError in Spark's words if that fails."""
        lacking = [each for each in self._shuffles if None in self._outputs_of(each)]
        if lacking and any(self._is_in_part(each) for each in self._all_shuffles):
            return
        for shuffle in lacking:
            if shuffle.rdd().getNumPartitions():
                _await(self._context._jsc.sc().submitMapStage(shuffle))
        self._epoch = int(self._tracker.getEpoch())
        self._outputs = self._now()
        if self._kept:
            self._executors, self._kept_counts = self._living(), self._counts()

    def is_whole(self) -> bool:
        """Whether what was shuffled in the beginning is still there, and what the frame keeps."""
        if self._outputs is None or not self._still_keeps():
            return False
        epoch = int(self._tracker.getEpoch())
        if epoch == self._epoch:
            return True
        if self._now() != self._outputs:
            return False
        self._epoch = epoch
        return True

    def discard(self) -> None:
        """Forget the map outputs of all that it shuffles, so that nothing of it gets into another evaluation."""
        for shuffle in self._all_shuffles:
            if self._tracker.shuffleStatuses().get(shuffle.shuffleId()).isDefined():
                self._tracker.unregisterAllMapAndMergeOutput(shuffle.shuffleId())

    def _now(self) -> MapOutputs:
        return {int(shuffle.shuffleId()): self._outputs_of(shuffle) for shuffle in self._shuffles}

    def _still_keeps(self) -> bool:
        """Rule 4."""
        if not self._kept:
            return True
        executors, counts = self._living(), self._counts()
        if self._executors - executors or any(counts.get(id, 0) < was for id, was in self._kept_counts.items()):
            return False
        self._executors, self._kept_counts = executors, counts
        return True

    def _living(self) -> frozenset[str]:
        """The executors, by their addresses; one that comes back has another."""
        return frozenset(str(self._context._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" ")).split())

    def _counts(self) -> Mapping[int, int]:
        """How many partitions are kept of what partitions read."""
        found = self._context._jsc.sc().getRDDStorageInfo()
        return {int(each.id()): int(each.numCachedPartitions()) for each in found if int(each.id()) in self._kept}

    def _is_in_part(self, shuffle: Any) -> bool:
        outputs = self._outputs_of(shuffle)
        return None in outputs and any(each is not None for each in outputs)

    def _outputs_of(self, shuffle: Any) -> tuple[int | None, ...]:
        status = self._tracker.shuffleStatuses().get(shuffle.shuffleId())
        if not status.isDefined():
            return (None,)
        return tuple(None if each is None else int(each.mapId()) for each in status.get().mapStatuses())


@dataclass(frozen=True, slots=True)
class _Lineage:
    """What an RDD is computed from: shuffles, each once, and the ids of RDDs that are kept."""

    shuffles: list[Any]
    kept: list[int]


def _lineage_of(rdd: Any, *, beyond_shuffles: bool) -> _Lineage:
    """As far as its partitions read it themselves (rule 3), or all of it."""
    found = _Lineage([], [])
    seen: set[int] = set()
    shuffles: set[int] = set()
    waiting = [rdd]
    while waiting:
        each = waiting.pop()
        if each.id() in seen:
            continue
        seen.add(each.id())
        if each.getStorageLevel().isValid():
            found.kept.append(int(each.id()))
        dependencies = each.dependencies()
        for position in range(dependencies.size()):
            dependency = dependencies.apply(position)
            is_shuffle = dependency.getClass().getSimpleName() == _SHUFFLE
            if is_shuffle and dependency.shuffleId() not in shuffles:
                shuffles.add(dependency.shuffleId())
                found.shuffles.append(dependency)
            if beyond_shuffles or not is_shuffle:
                waiting.append(dependency.rdd())
    return found


def _await(future: Any) -> None:
    while not future.isCompleted():
        time.sleep(LOOK_SECONDS)
    found = future.value().get()
    if found.isFailure():
        raise RuntimeError(str(found.failed().get().getMessage()))

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
4. A group is computed as partitions of the whole frame, so that ``TaskContext.partitionId()`` in the frame's functions,
   and all that is made of it, is the same as anywhere else in Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LOOK_SECONDS = 0.02
_SHUFFLE = "ShuffleDependency"

MapOutputs = Mapping[int, tuple[int | None, ...]]
"""By shuffle: the ids of its map outputs; None: it is not there."""


class Evaluation:
    """``answers``: a frame that gives a row for each partition of the frame that is meant. See the module's rules."""

    def __init__(self, answers: Any) -> None:
        self._context = answers.sparkSession.sparkContext
        self._rdd = answers.rdd
        self.partitions = int(self._rdd.getNumPartitions())
        self._shuffles = list(_shuffles_of(self._rdd._jrdd.rdd(), set()))
        self._tracker = self._context._jvm.org.apache.spark.SparkEnv.get().mapOutputTracker()
        self._outputs: MapOutputs = {}
        self._epoch = -1

    def begin(self) -> None:
        """Shuffle what is not shuffled, and remember it. Raises RuntimeError in Spark's words if that fails."""
        for shuffle in self._shuffles:
            if shuffle.rdd().getNumPartitions() and None in self._outputs_of(shuffle):
                _await(self._context._jsc.sc().submitMapStage(shuffle))
        self._epoch = int(self._tracker.getEpoch())
        self._outputs = self._now()

    def is_whole(self) -> bool:
        """Whether what was shuffled in the beginning is still there."""
        epoch = int(self._tracker.getEpoch())
        if epoch == self._epoch:
            return True
        if self._now() != self._outputs:
            return False
        self._epoch = epoch
        return True

    def compute(self, partitions: Sequence[int]) -> list[Any]:
        """The answers' rows of these partitions."""
        return list(self._context.runJob(self._rdd, list, partitions=list(partitions)))

    def _now(self) -> MapOutputs:
        return {int(shuffle.shuffleId()): self._outputs_of(shuffle) for shuffle in self._shuffles}

    def _outputs_of(self, shuffle: Any) -> tuple[int | None, ...]:
        status = self._tracker.shuffleStatuses().get(shuffle.shuffleId())
        if not status.isDefined():
            return (None,)
        return tuple(None if each is None else int(each.mapId()) for each in status.get().mapStatuses())


def _shuffles_of(rdd: Any, seen: set[int]) -> Iterator[Any]:
    """The shuffles that the partitions of an RDD read, each once (rule 3)."""
    waiting = [rdd]
    while waiting:
        each = waiting.pop()
        if each.id() in seen:
            continue
        seen.add(each.id())
        dependencies = each.dependencies()
        for position in range(dependencies.size()):
            dependency = dependencies.apply(position)
            if dependency.getClass().getSimpleName() == _SHUFFLE:
                yield dependency
            else:
                waiting.append(dependency.rdd())


def _await(future: Any) -> None:
    while not future.isCompleted():
        time.sleep(LOOK_SECONDS)
    found = future.value().get()
    if found.isFailure():
        raise RuntimeError(str(found.failed().get().getMessage()))

"""Whether what a leased frame was shuffled into is still the same: over a Spark that is made of paper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.actors.spark.evaluation import Evaluation


class Option:
    """Scala's, and its Seq, as py4j shows them."""

    def __init__(self, *held: Any) -> None:
        self.held = held

    def isDefined(self) -> bool:  # noqa: N802
        return bool(self.held)

    def get(self) -> Any:
        return self.held[0]

    def size(self) -> int:
        return len(self.held)

    def apply(self, position: int) -> Any:
        return self.held[position]


class Rdd:
    def __init__(self, id: int, *dependencies: Any, kept: bool = False) -> None:
        self._id, self._dependencies, self._kept = id, dependencies, kept

    def getStorageLevel(self) -> Any:  # noqa: N802
        return SimpleNamespace(isValid=lambda: self._kept)

    def id(self) -> int:
        return self._id

    def dependencies(self) -> Option:
        return Option(*self._dependencies)

    def getNumPartitions(self) -> int:  # noqa: N802
        return 2


class Dependency:
    def __init__(self, rdd: Rdd, shuffle: int | None = None) -> None:
        self._rdd, self._shuffle = rdd, shuffle

    def rdd(self) -> Rdd:
        return self._rdd

    def shuffleId(self) -> int | None:  # noqa: N802
        return self._shuffle

    def getClass(self) -> Any:  # noqa: N802
        name = "OneToOneDependency" if self._shuffle is None else "ShuffleDependency"
        return SimpleNamespace(getSimpleName=lambda: name)


class Spark:
    """Two shuffles that partitions read, one behind them, and what its tracker knows of their outputs. ``kept``: the
    ids of RDDs whose partitions are kept: 1 and 2 are behind shuffles, 5 is not."""

    def __init__(self, *kept: int) -> None:
        behind = Dependency(Rdd(1, kept=1 in kept), 7)
        self.outputs: dict[int, list[int | None]] = {}
        self.epoch, self.next, self.asked = 0, 100, 0
        left, right = Dependency(Rdd(2, behind, kept=2 in kept), 8), Dependency(Rdd(3), 9)
        self.rdd = Rdd(6, Dependency(Rdd(5, left, Dependency(Rdd(4, right)), kept=5 in kept), None))
        self.executors = {"a:1", "b:2"}
        self.counts = dict.fromkeys(kept, 2)
        self.fails = False

    def getEpoch(self) -> int:  # noqa: N802
        self.asked += 1
        return self.epoch

    def shuffleStatuses(self) -> Any:  # noqa: N802
        return self

    def get(self, shuffle: int) -> Option:
        if shuffle not in self.outputs:
            return Option()
        made = [None if each is None else SimpleNamespace(mapId=lambda id=each: id) for each in self.outputs[shuffle]]
        return Option(SimpleNamespace(mapStatuses=lambda: made))

    def submitMapStage(self, dependency: Dependency) -> Any:  # noqa: N802
        shuffle = dependency.shuffleId()
        assert shuffle is not None
        known = self.outputs.get(shuffle, [None, None])
        self.outputs[shuffle] = [self._made() if each is None else each for each in known]
        self.epoch += 1
        cause = SimpleNamespace(getMessage=lambda: "ValueError: bad row 42")
        done = SimpleNamespace(isFailure=lambda: self.fails, failed=lambda: Option(cause))
        return SimpleNamespace(isCompleted=lambda: True, value=lambda: Option(done))

    def unregisterAllMapAndMergeOutput(self, shuffle: int) -> None:  # noqa: N802
        assert shuffle in self.outputs, "Spark raises"
        self.outputs[shuffle] = [None, None]
        self.epoch += 1

    def getExecutorMemoryStatus(self) -> Any:  # noqa: N802
        return SimpleNamespace(keySet=lambda: SimpleNamespace(mkString=lambda between: between.join(self.executors)))

    def getRDDStorageInfo(self) -> list[Any]:  # noqa: N802
        def info(id: int, count: int) -> Any:
            return SimpleNamespace(id=lambda: id, numCachedPartitions=lambda: count)

        return [info(id, count) for id, count in self.counts.items()]

    def _made(self) -> int:
        self.next += 1
        return self.next

    def lose(self, shuffle: int) -> None:
        self.outputs[shuffle][0] = None
        self.epoch += 1


def evaluation_of(spark: Spark) -> Evaluation:
    tracker = SimpleNamespace(mapOutputTracker=lambda: spark)
    spark_env = SimpleNamespace(get=lambda: tracker)
    context = SimpleNamespace(
        _jvm=SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(SparkEnv=spark_env)))),
        _jsc=SimpleNamespace(sc=lambda: spark),
    )
    return Evaluation(context, spark.rdd)


def test_what_partitions_read_is_shuffled_once_before_the_first_of_them_and_compared_afterwards() -> None:
    spark = Spark()
    evaluation = evaluation_of(spark)
    evaluation.begin()
    assert sorted(spark.outputs) == [8, 9]
    assert evaluation.is_whole()
    spark.epoch += 1  # another job of the session
    assert evaluation.is_whole()
    spark.outputs[7] = [1, 2]  # behind the shuffles that are read
    spark.epoch += 1
    assert evaluation.is_whole()


@pytest.mark.parametrize("made_again", [True, False])
def test_map_outputs_that_were_lost_or_made_again_are_of_another_evaluation(made_again: bool) -> None:
    spark = Spark()
    evaluation = evaluation_of(spark)
    evaluation.begin()
    spark.lose(9)
    if made_again:
        spark.outputs[9][0] = 500
    assert not evaluation.is_whole()
    assert not evaluation.is_whole(), "it stays so"


def test_nothing_of_an_evaluation_that_was_discarded_gets_into_the_next_one() -> None:
    """What was lost of the shuffle behind would be made again, and not fit what is left of the one that read it."""
    spark = Spark()
    evaluation = evaluation_of(spark)
    spark.outputs[7] = [1, 2]
    evaluation.begin()
    before = {each for made in spark.outputs.values() for each in made}
    spark.lose(7)
    spark.lose(8)
    evaluation.discard()
    assert {each for made in spark.outputs.values() for each in made} == {None}
    again = evaluation_of(spark)
    again.begin()
    assert again.is_whole()
    assert not before & {*spark.outputs[8], *spark.outputs[9]}


@pytest.mark.parametrize("lost", [7, 8])
def test_what_was_shuffled_before_and_is_lost_in_part_is_no_beginning(lost: int) -> None:
    spark = Spark()
    spark.outputs = {7: [1, 2], 8: [3, 4]}
    spark.lose(lost)
    evaluation = evaluation_of(spark)
    evaluation.begin()
    assert not evaluation.is_whole()
    evaluation.discard()
    evaluation.begin()
    assert evaluation.is_whole()


def test_rows_that_partitions_read_and_spark_keeps_are_of_another_evaluation_when_they_are_lost() -> None:
    spark = Spark(5)
    evaluation = evaluation_of(spark)
    evaluation.begin()
    spark.counts[5] = 7  # more of them have been computed
    spark.executors.add("c:3")
    assert evaluation.is_whole()
    spark.counts[5] = 6
    assert not evaluation.is_whole(), "fewer are kept"
    spark.counts[5] = 7
    assert evaluation.is_whole()
    spark.executors = {"a:1", "b:2", "d:4"}  # computed again by another one
    assert not evaluation.is_whole()
    assert not evaluation.is_whole(), "it stays so"


@pytest.mark.parametrize(("kept", "is_read"), [(5, True), (2, False), (1, False)])
def test_rows_that_are_kept_behind_a_shuffle_were_read_when_it_was_made(kept: int, is_read: bool) -> None:
    spark = Spark(kept)
    evaluation = evaluation_of(spark)
    assert evaluation.keeps_rows
    evaluation.begin()
    spark.executors.pop()
    assert evaluation.is_whole() != is_read


def test_shuffle_that_fails_is_told_in_sparks_words() -> None:
    spark = Spark()
    spark.fails = True
    with pytest.raises(RuntimeError, match="bad row 42"):
        evaluation_of(spark).begin()

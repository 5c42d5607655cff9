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
    def __init__(self, id: int, *dependencies: Any) -> None:
        self._id, self._dependencies = id, dependencies

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
    """Two shuffles that partitions read, one behind them, and what its tracker knows of their outputs."""

    def __init__(self) -> None:
        behind = Dependency(Rdd(1), 7)
        self.outputs: dict[int, list[int | None]] = {}
        self.epoch, self.next, self.asked = 0, 100, 0
        left, right = Dependency(Rdd(2, behind), 8), Dependency(Rdd(3), 9)
        self.rdd = Rdd(6, Dependency(Rdd(5, left, Dependency(Rdd(4, right))), None))
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
    rdd = SimpleNamespace(_jrdd=SimpleNamespace(rdd=lambda: spark.rdd), getNumPartitions=lambda: 2)
    answers: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context), rdd=rdd)
    return Evaluation(answers)


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
    evaluation.begin()
    assert evaluation.is_whole()
    assert None not in spark.outputs[9]


def test_shuffle_that_fails_is_told_in_sparks_words() -> None:
    spark = Spark()
    spark.fails = True
    with pytest.raises(RuntimeError, match="bad row 42"):
        evaluation_of(spark).begin()

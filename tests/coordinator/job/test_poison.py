"""When a split is poison, and what is done about it."""

from __future__ import annotations

from penstock.coordinator.job.poison import PoisonPolicy, PoisonWatch
from penstock.coordinator.model.events import Failure
from penstock.coordinator.model.split_sets import SplitName
from penstock.engine.core.identity import Attempt, TaskId

TASK, OTHER = TaskId("numbers", 0), TaskId("numbers", 1)
BAD, GOOD = SplitName("numbers", "7"), SplitName("numbers", "8")
PASSING = Failure("the disk is slow", retry=True, kind="StorageError")
LASTING = Failure("no Parquet file", retry=False, remedy="look at it", kind="DataError")


def attempt(number: int) -> Attempt:
    return Attempt(1, number)


def watch(*, limit: int = 3, skip: bool = False) -> PoisonWatch:
    return PoisonWatch(PoisonPolicy(limit, skip))


def die(watch: PoisonWatch, number: int, name: SplitName, task: TaskId = TASK) -> Failure | None:
    watch.begun(task, attempt(number), name)
    return watch.died(task, attempt(number), "killed")


def test_split_that_kills_its_task_again_and_again_stops_the_job_with_its_name() -> None:
    made = watch()
    assert [die(made, 1, BAD), die(made, 2, BAD)] == [None, None]
    failure = die(made, 3, BAD)
    assert failure is not None
    assert not failure.retry
    assert failure.message == "split 7 of numbers has ended numbers[0] 3 times: killed"
    assert failure.operator == "numbers"
    assert "skip_poison=True" in failure.remedy


def test_first_death_blames_nobody_and_makes_the_task_cautious() -> None:
    made = watch(limit=1)
    assert not made.is_cautious(TASK)
    assert made.died(TASK, attempt(1), "killed") is None
    assert made.is_cautious(TASK)
    assert not made.is_cautious(OTHER)


def test_deaths_at_different_splits_are_nobodys_fault() -> None:
    made = watch(limit=2)
    assert [die(made, number, name) for number, name in enumerate([BAD, GOOD, BAD, GOOD])] == [None] * 4


def test_one_death_that_is_reported_twice_counts_once() -> None:
    made = watch(limit=2)
    made.begun(TASK, attempt(1), BAD)
    assert [made.died(TASK, attempt(1), "closed unexpectedly"), made.died(TASK, attempt(1), "killed")] == [None, None]
    assert die(made, 2, BAD) is not None


def test_death_of_an_attempt_that_has_begun_no_split_blames_nobody() -> None:
    made = watch(limit=1)
    made.begun(TASK, attempt(1), BAD)
    assert made.died(TASK, attempt(2), "killed") is None


def test_tasks_are_counted_by_themselves() -> None:
    made = watch(limit=2)
    assert [die(made, 1, BAD), die(made, 1, BAD, OTHER)] == [None, None]


def test_error_that_may_pass_is_tried_again_until_the_limit() -> None:
    made = watch(limit=2)
    assert made.raised(TASK, attempt(1), BAD, PASSING) is PASSING
    assert not made.raised(TASK, attempt(2), BAD, PASSING).retry


def test_error_that_lasts_stops_the_job_at_once_and_keeps_its_remedy() -> None:
    failure = watch().raised(TASK, attempt(1), BAD, LASTING)
    assert failure.message == "split 7 of numbers has ended numbers[0]: no Parquet file"
    assert failure.remedy.endswith("look at it")
    assert not failure.retry


def test_poison_is_skipped_on_request_and_recorded() -> None:
    made = watch(limit=2, skip=True)
    assert die(made, 1, BAD) is None
    failure = die(made, 2, BAD)
    assert failure is not None
    assert failure.retry
    assert [str(each) for each in made.take_skipped()] == [
        "split 7 of numbers was skipped: it has ended numbers[0] 2 times: killed"
    ]
    assert made.take_skipped() == []


def test_split_with_a_lasting_error_is_skipped_at_once_on_request() -> None:
    made = watch(skip=True)
    assert made.raised(TASK, attempt(1), BAD, LASTING).retry
    assert [each.name for each in made.take_skipped()] == [BAD]

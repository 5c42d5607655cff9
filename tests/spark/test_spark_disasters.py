"""Executors that die amid a hand-off, and Spark that stops amid a job: one process, whose results the tests look at."""

from __future__ import annotations

from typing import Any

import pytest

from support import spark_disasters
from support.spark_scripts import facts_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return facts_of(spark_disasters, tmp_path_factory.mktemp("disasters"))


def test_lease_recovers_from_an_executor_that_is_killed(facts: dict[str, Any]) -> None:
    assert facts["leased"] == [True, True], "written by Spark's JVM, and by its Python workers"


def test_functions_of_a_leased_frame_see_the_partition_that_it_is_anywhere_else(facts: dict[str, Any]) -> None:
    assert facts["partitions"] == [list(range(spark_disasters.PARTITIONS))] * 2


def test_lease_of_rows_that_would_be_shuffled_again_fails_and_says_so(facts: dict[str, Any]) -> None:
    assert "rows that it had shuffled" in facts["shuffled"]
    assert "run the same command again" in facts["shuffled"]


def test_lease_of_rows_that_spark_kept_and_lost_fails_and_says_so(facts: dict[str, Any]) -> None:
    assert "rows that it had shuffled or kept" in facts["kept_rows"]


def test_stage_recovers_from_an_executor_that_is_killed_and_accepts_one_file_a_partition(facts: dict[str, Any]) -> None:
    assert facts["staged"]
    assert facts["staged_files"] == spark_disasters.PARTITIONS
    assert facts["computed"] > spark_disasters.PARTITIONS, "nothing was computed again"


def test_stage_of_rows_that_would_be_shuffled_again_is_written_anew(facts: dict[str, Any]) -> None:
    assert facts["staged_shuffle"] == list(range(spark_disasters.ROWS))


def test_stage_of_rows_that_spark_kept_and_lost_fails_and_says_so(facts: dict[str, Any]) -> None:
    assert "some of them are kept" in facts["staged_kept"]


def test_job_goes_on_when_spark_has_stopped_and_a_task_is_killed(facts: dict[str, Any]) -> None:
    assert facts["running_without_spark"]
    assert facts["restarts"] >= 1
    assert facts["exact"]


def test_lease_is_refused_for_a_job_whose_checkpoints_outlive_the_script(facts: dict[str, Any]) -> None:
    assert "the frame cannot be leased" in facts["refused"]
    assert 'remedy: pass handoff="stage"' in facts["refused"]


def test_output_goes_to_ray_data_and_back(facts: dict[str, Any]) -> None:
    assert facts["dataset"] == spark_disasters.ROWS
    assert facts["staged_dataset"]
    assert facts["back"] == [True]

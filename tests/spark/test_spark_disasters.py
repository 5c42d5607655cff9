"""Executors that die amid a hand-off, and Spark that stops amid a job: one process, whose results the tests look at;
another one for the kinds that take minutes."""

from __future__ import annotations

from typing import Any

import pytest

from support import spark_disasters, spark_disasters_more
from support.spark_scripts import facts_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return facts_of(spark_disasters, tmp_path_factory.mktemp("disasters"))


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return facts_of(spark_disasters_more, tmp_path_factory.mktemp("more"))


def test_lease_recovers_from_an_executor_that_is_killed(facts: dict[str, Any]) -> None:
    assert facts["leased"]


def test_functions_of_a_leased_frame_see_the_partition_that_it_is_anywhere_else(facts: dict[str, Any]) -> None:
    assert facts["partitions"] == list(range(spark_disasters.PARTITIONS))


@pytest.mark.large
def test_lease_by_python_workers_recovers_as_well(more: dict[str, Any]) -> None:
    assert more["leased"]
    assert more["partitions"] == list(range(spark_disasters.PARTITIONS))


def test_lease_of_rows_that_would_be_shuffled_again_fails_and_says_so(facts: dict[str, Any]) -> None:
    assert "rows that it had shuffled" in facts["shuffled"]
    assert "run the same command again" in facts["shuffled"]


@pytest.mark.large
def test_lease_of_rows_that_spark_kept_and_lost_fails_and_says_so(more: dict[str, Any]) -> None:
    assert "rows that it had shuffled or kept" in more["kept_rows"]


def test_stage_recovers_from_an_executor_that_is_killed_and_accepts_one_file_a_partition(facts: dict[str, Any]) -> None:
    assert facts["staged"]
    assert facts["staged_files"] == spark_disasters.PARTITIONS
    assert facts["computed"] > spark_disasters.PARTITIONS, "nothing was computed again"


@pytest.mark.large
def test_stage_of_rows_that_would_be_shuffled_again_is_written_anew(more: dict[str, Any]) -> None:
    assert more["staged_shuffle"] == list(range(spark_disasters.ROWS))


@pytest.mark.large
def test_stage_of_rows_that_spark_kept_and_lost_fails_and_says_so(more: dict[str, Any]) -> None:
    assert "some of them are kept" in more["staged_kept"]


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

"""Staging with plain PySpark, without Ray and RayDP: one process, at whose results all the tests here look."""

from __future__ import annotations

from typing import Any

import pytest

from support import spark_plain
from support.guides import tells
from support.spark_scripts import facts_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


DELTA = ["version 0 of 700 rows", "version 1 of 1400 rows", "version 1 of 1400 rows",
         "day    visits  seconds", "int32  int64   int64", "-+ .*", "1      700     454650", "2      700     454650",
         r"\(2 rows\)"]  # fmt: skip


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return facts_of(spark_plain, tmp_path_factory.mktemp("plain"))


def test_fingerprint_does_not_depend_on_how_spark_cuts_its_batches(facts: dict[str, Any]) -> None:
    first, second = facts["batches"]
    assert first == second


@pytest.mark.parametrize("name", ["typed", "old", "nested", "joined", "kept", "holes", "nothing", "wide"])
def test_stage_of_the_jvm_has_the_rows_and_types_of_one_of_python_workers(facts: dict[str, Any], name: str) -> None:
    same, kinds = facts["ways"][name]
    assert same, "the rows, their order, or their types differ"
    assert kinds[:2] == ([[], []] if name == "nothing" else [["parquet"], ["arrow"]])


def test_same_rows_staged_by_the_jvm_again_have_the_same_fingerprint(facts: dict[str, Any]) -> None:
    assert facts["again"]


def test_settings_of_the_session_say_nothing_of_a_stage_and_stay(facts: dict[str, Any]) -> None:
    assert facts["session_left"]


def test_jvm_writes_the_partitions_that_it_is_asked_for_as_those_of_the_whole_frame(facts: dict[str, Any]) -> None:
    assert facts["some"] == [[6, 5], [3, 5], [4, 0], [3, 5]]
    assert facts["some_rows"] == {str(at): {"c0": [*range(5 * at, 5 * at + 5)], "c1": [at] * 5} for at in (3, 6)}
    assert facts["some_files"], "no attempt leaves more than a file of its partition"
    assert facts["thread_left"]


def test_partitions_keep_their_order_and_their_rows_theirs(facts: dict[str, Any]) -> None:
    ids = facts["typed_ids"]
    assert sorted(each for part in ids for each in part) == list(range(12))
    assert all(part == sorted(part) for part in ids)


def test_timestamps_of_a_session_in_another_zone_are_instants_in_utc(facts: dict[str, Any]) -> None:
    assert facts["zoned"].startswith("1969-12-31 23:59:59.000001+00:00")


def test_frames_without_rows_without_columns_and_with_a_thousand_are_handed_over(facts: dict[str, Any]) -> None:
    assert facts["empty"] == [0, 0, 0]
    assert facts["bare"] == 10
    assert facts["wide"] == [9 + 999, 19 + 999]


def test_attempts_that_fail_leave_no_accepted_file(facts: dict[str, Any]) -> None:
    assert facts["shaky"] == [list(range(start, start + 10)) for start in range(0, 40, 10)]
    assert facts["shaky_files"] == 4
    assert facts["found"]


def test_frame_that_spark_cannot_compute_is_refused_with_its_reason_and_leaves_nothing(facts: dict[str, Any]) -> None:
    assert "Spark could not stage the DataFrame" in facts["broken"]
    assert "boom" in facts["broken"]
    assert "the frame must compute in Spark" in facts["broken"]
    assert facts["broken_left"] == []


def test_function_that_raises_is_told_as_such_and_the_remedy_speaks_of_it_alone(facts: dict[str, Any]) -> None:
    message, remedy = facts["raised"]
    assert "Spark could not stage the DataFrame: ValueError: no row of" in message
    assert "repair the function" in remedy
    assert "executors" not in remedy


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("lease", "only a Spark session on Ray can lease"),
        ("stream", "a streaming DataFrame has no fixed partitions"),
        ("unknown", "handoff='copy' does not fit"),
        ("twice", "several columns named 'id'"),
        ("no_frame", "builtins.list is no Spark DataFrame"),
        ("no_type", "column 'held' of the DataFrame has type struct<a:interval year to month>"),
        ("beside", "this process has a Spark session already, on 'local[2,3]'"),
        ("no_name", "column 'pauses' of the DataFrame has type"),
        ("same_field", "it has several fields 'x'"),
        ("other_frame", "has other columns than this one"),
        ("stopped", "the Spark session of this DataFrame has ended"),
        ("same_name", "columns 'id', 'ID' differ in their case alone"),
    ],
)
def test_what_cannot_be_handed_over_is_refused_by_name(facts: dict[str, Any], what: str, words: str) -> None:
    assert words in facts[what], facts[what]
    assert "remedy:" in facts[what]


def test_job_goes_on_from_its_stage_when_spark_is_gone(facts: dict[str, Any]) -> None:
    assert facts["first"] == "cancelled"
    assert facts["spark_released"]
    assert facts["exact"]
    assert facts["audit"] == [0, 0]


def test_results_come_back_as_a_dataframe(facts: dict[str, Any]) -> None:
    assert facts["few"] == sorted(facts["few"])
    assert len(facts["few"]) == 10
    assert facts["read"]
    assert facts["read_job"]


def test_rows_come_back_with_the_types_and_values_that_they_went_with(facts: dict[str, Any]) -> None:
    gone = facts["gone"]
    assert ["pause", "interval day to second"] in gone[0]
    assert ["nothing", "void"] in gone[0]
    assert facts["back"] == [gone, gone]


def test_output_whose_path_is_a_pattern_gives_its_own_rows(facts: dict[str, Any]) -> None:
    assert facts["back_by_folder"] == facts["gone"]


def test_columns_may_have_any_name_that_spark_gives_them(facts: dict[str, Any]) -> None:
    for rows, names in zip(facts["odd_names"], spark_plain.ODD_NAMES, strict=True):
        assert sorted(row[names[0]] for row in rows) == [0, 1, 2]
        assert all(list(row) == names and len(set(row.values())) == 1 for row in rows)
    assert facts["odd_back"] == [[number] * 5 for number in range(3)]
    assert facts["cases_back"] == [[number] * 2 for number in range(3)]


def test_struct_that_an_outer_join_left_null_is_written(facts: dict[str, Any]) -> None:
    assert facts["null_struct"] == [
        {"id": 0, "s": {"x": 0, "l": [0]}},
        {"id": 1, "s": {"x": 1, "l": [1]}},
        {"id": 2, "s": None},
    ]


def test_guide_to_a_delta_table_tells_what_it_says(facts: dict[str, Any]) -> None:
    assert tells(facts["guide"], DELTA), facts["guide"]

"""One of each accident of scripts that hand Spark frames over; ``make chaos`` has more of them (``sparks.py``)."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support import spark_many
from support.spark_accidents import KINDS, TOGETHER, expected, problems, undergo, undergo_together
from support.spark_scripts import facts_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(900)]

IN_A_LEASE = "script killed in a lease"
ALONE = [seed for seed, kind in enumerate(KINDS) if kind not in TOGETHER and kind != IN_A_LEASE]


def test_script_that_is_killed_in_a_lease_and_run_again_gives_each_row_once(tmp_path: Path) -> None:
    assert undergo(KINDS.index(IN_A_LEASE), tmp_path / "story") == []


@pytest.mark.large
@pytest.mark.parametrize("seed", ALONE, ids=[KINDS[seed] for seed in ALONE])
def test_script_that_is_run_again_gives_each_row_once(tmp_path: Path, seed: int) -> None:
    assert undergo(seed, tmp_path / "story") == []


@pytest.mark.large
def test_script_whose_executors_die_gives_each_row_once_or_says_how_to_go_on(tmp_path: Path) -> None:
    seeds = [seed for seed, kind in enumerate(KINDS) if kind in TOGETHER]
    assert undergo_together(seeds, tmp_path) == {seed: [] for seed in seeds}


@pytest.mark.large
def test_frame_of_two_thousand_partitions_is_staged(tmp_path: Path) -> None:
    assert facts_of(spark_many, tmp_path) == {"exact": True, "clean": True, "files": spark_many.PARTITIONS}


def test_judge_notices_rows_that_are_lost_or_repeated_and_errors_that_say_too_little(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    def judged(rows: list[tuple[int, int]], **told: object) -> str:
        table = pa.table({"id": [row[0] for row in rows], "value": [row[1] for row in rows]})
        pq.write_table(table, tmp_path / "out" / "part.parquet")
        (tmp_path / "told").write_text(json.dumps({"state": "finished", "clean": True, **told}))
        return "; ".join(problems(tmp_path))

    assert judged(expected()) == ""
    assert "1 rows are missing" in judged(expected()[:-1])
    assert "2001 rows, 2000 of them different" in judged([*expected(), (0, 0)])
    assert "the audit is not clean" in judged(expected(), clean=False)
    assert "no way on" in judged([], state="failed", clean=False, error="java.io.IOException")

"""One of each accident of scripts that hand Spark frames over; ``make chaos`` has more of them (``sparks.py``)."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from support import spark_big, spark_killed, spark_large, spark_many, spark_many_leased
from support.processes import Household, Program
from support.spark_accidents import KINDS, TOGETHER, expected, problems, undergo, undergo_together
from support.spark_big import MB
from support.spark_scripts import TESTS, facts_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(900)]

IN_A_LEASE = "script killed in a lease"
ALONE = [seed for seed, kind in enumerate(KINDS) if kind not in TOGETHER and kind != IN_A_LEASE]


def test_script_that_is_killed_in_a_lease_and_run_again_gives_each_row_once(tmp_path: Path) -> None:
    assert undergo(KINDS.index(IN_A_LEASE), tmp_path / "story") == []


def test_script_that_is_killed_while_it_stages_and_after_it_gives_each_row_once(tmp_path: Path) -> None:
    """Plain Spark, and the same command three times; ``make chaos`` has the same on Ray."""
    (tmp_path / "marks").mkdir()
    stages = tmp_path / "state" / "killed" / "spark" / "rows"
    with Household(tmp_path) as household:

        def begun(rate: float) -> Program:
            return household.python(spark_killed.__file__, str(tmp_path), str(rate), cwd=tmp_path, PYTHONPATH=TESTS)

        def runs() -> set[str]:
            return {path.name for path in stages.iterdir() if path.is_dir()}

        staging = begun(10.0)
        last = f"{spark_killed.LAST}-*"
        staging.wait_for(lambda: any((tmp_path / "marks").glob(last)) and any(stages.rglob("part-00000-*")))
        kill(staging)
        first = runs()
        assert len(first) == 1
        assert not any(stages.glob("*.json")), "the stage was complete before its script was killed"
        (tmp_path / "go").touch()
        assert not household.wait_gone(60.0), "Spark is still there"

        staged = begun(10.0)
        staged.wait_for(lambda: any((tmp_path / "out").glob("*.parquet")))
        kill(staged)
        assert not household.wait_gone(60.0), "Spark is still there"
        assert not (tmp_path / "told").exists(), "the job was over before its script was killed"
        second, asked = runs(), sorted((tmp_path / "marks").iterdir())
        assert len(second) == 1
        assert not second & first, "what the first run had begun is there"

        done = begun(0.0).wait()
        assert done.returncode == 0, done
        assert sorted((tmp_path / "marks").iterdir()) == asked, "Spark computed the rows again"
    assert sorted(ds.dataset(tmp_path / "out", format="parquet").to_table()["id"].to_pylist()) == spark_killed.ids()
    assert json.loads((tmp_path / "told").read_text()) == {"clean": True}


def kill(program: Program) -> None:
    program.popen.kill()
    program.popen.wait()


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


@pytest.mark.large
@pytest.mark.timeout(1400)
def test_frame_of_two_thousand_partitions_is_leased(tmp_path: Path) -> None:
    facts = facts_of(spark_many_leased, tmp_path, 1200.0)
    assert facts == {"exact": True, "released": True, "splits": spark_many.PARTITIONS}


@pytest.mark.large
def test_partition_of_more_than_two_gigabytes_is_staged(tmp_path: Path) -> None:
    facts = facts_of(spark_big, tmp_path)
    assert facts.pop("bytes") > 2304 * MB > 2**31
    assert facts == {"ids": True, "lengths": [MB], "same": True, "clean": True, "files": 1}


@pytest.mark.large
def test_partition_of_600_megabytes_passes_an_executor_of_one_gigabyte_in_both_ways(tmp_path: Path) -> None:
    facts = facts_of(spark_large, tmp_path)
    whole = {"ids": True, "lengths": [MB], "same": True}
    assert (facts["stage"], facts["lease"]) == (whole, whole)
    assert facts["executors_at_the_end"] == facts["executors_at_first"], "an executor died, and another one did it"


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

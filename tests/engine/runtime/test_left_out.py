"""A user sees what was skipped and what passed: in the statistics of a job, while it waits, and before it runs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.engine.core.identity import Attempt, TaskId
from penstock.engine.kernels.key_filter import KeyFilter
from penstock.engine.kernels.page_library import page_library
from penstock.engine.plan.rounds import lanes_of
from penstock.engine.runtime.driver import WaitReasons
from penstock.engine.runtime.statistics import JobStatistics, PassedStatistics, SourceStatistics, TaskStatistics
from penstock.engine.sources.memory import MemorySource
from penstock.engine.sources.picking import Keys, Pick
from penstock.engine.sources.reader import SplitReader

LINES = pa.table({"part": [n % 50 for n in range(2_000)], "day": range(2_000)})
PARTS = pa.table({"part": [3, 7], "name": ["a", "b"]})


def joined(folder: Path) -> ps.Flow:
    pq.write_table(LINES, folder / "lines.parquet", row_group_size=200)
    flow = ps.Flow("orders", lanes=2)
    lines = flow.read_parquet(folder / "lines.parquet", name="lines").filter("day >= 1100", name="recent")
    parts = flow.from_tables(PARTS, name="parts")
    lines.hash_join(parts, ["part"], name="priced").collect("rows")
    return flow


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers wait for keys however long that takes."""
    monkeypatch.setattr("penstock.engine.sources.reader.PATIENCE_SECONDS", 1e9)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_statistics_of_a_job_say_what_was_left_out_and_what_passed(tmp_path: Path, parallelism: int) -> None:
    with ps.run_local(joined(tmp_path), parallelism=parallelism) as job:
        assert job.wait().result("rows").num_rows == 36
        found = job.statistics().left_out
    skipped = [
        "lines: 5 of 10 row groups have nothing that passes its filters, 5 by statistics",
        "lines: 1,000 rows were not decoded, for what its files tell of their row groups",
    ]
    passed = [
        "lines: 45 % of 2,000 rows pass its filters",
        "lines: 4 % of 900 rows pass the keys that priced has told",
    ]
    assert found == [*(skipped if page_library() is not None else ()), *passed]


def test_explain_says_what_readers_leave_out(tmp_path: Path) -> None:
    line = next(each for each in joined(tmp_path).explain().splitlines() if each.startswith("  lines: parquet"))
    wanted = "; recent is applied as it is read; priced tells which part it needs"
    if page_library() is not None:
        wanted += "; row groups may be left out by statistics or bloom filters"
    assert line.endswith(wanted)


def test_explain_says_nothing_of_filters_that_meet_every_row(tmp_path: Path) -> None:
    flow = ps.Flow("orders", lanes=2)
    lines = flow.from_tables(LINES, name="lines")
    lines.gather().filter("day >= 1100", name="recent").collect("rows")
    assert "as it is read" not in flow.explain()
    assert "statistics" not in flow.explain()


def test_reader_that_waits_for_keys_says_whose() -> None:
    source = MemorySource((LINES,))
    reader = SplitReader("lines", source.schema, source.splits(), lanes_of(0, 1, 1), 1)
    waits = [True]
    reader.pick(Pick(source.schema, (), (Keys(KeyFilter(), ("part",), lambda: waits[0], "priced"),)))
    reasons = WaitReasons([reader], [])

    def said() -> str:
        return str(reasons.explain("", False, [0], aligning=False, ended=False))

    assert said() == "waits for input: lines"
    assert reader.peek() is None
    assert said() == "waits for input: the keys by which priced leaves rows of lines out"
    waits.clear()
    waits.append(False)
    assert said() == "waits for input: lines"
    assert reader.peek() is not None


def test_sentences_are_about_all_subtasks_together() -> None:
    def task(number: int, *sources: SourceStatistics) -> TaskStatistics:
        return TaskStatistics(TaskId("read", number), Attempt(1, 1), "running", (), sources, ())

    def source(groups: int, bloom: int, *passed: tuple[str, int, int]) -> SourceStatistics:
        each = tuple(PassedStatistics(*one) for one in passed)
        return SourceStatistics("lines", 100, 2, "s", 1000, groups, 0, bloom, each)

    tasks = [
        task(0, source(7, 3, ("priced", 1000, 1), ("sold", 0, 0))),
        task(1, source(1, 1, ("priced", 500, 14)), SourceStatistics("whole", 100, 2, "s")),
    ]
    assert JobStatistics({each.task: each for each in tasks}).left_out == [
        "lines: 8 of 2,000 row groups have nothing that passes its filters, 4 by statistics and 4 by bloom filters",
        "lines: 1 % of 1,500 rows pass the keys that priced has told",
    ]

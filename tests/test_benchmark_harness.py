"""The benchmark harness on a clock that the measured work itself moves."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from harness import Row, compare, report, results_folder, sized


class Work:
    """Sides that take given seconds each, one after the other, and note who ran."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def clock(self) -> float:
        return self.now

    def side(self, name: str, *seconds: float, returns: float | None = None) -> Callable[[], float | None]:
        left = iter(seconds)

        def run() -> float | None:
            self.ran.append(name)
            self.now += next(left)
            return returns

        return run


def test_sides_run_in_turn_with_warmup_first() -> None:
    work = Work()
    ours, theirs = work.side("A", *[1.0] * 4), work.side("B", *[2.0] * 4)
    compare("sort", "peer", ours, theirs, rounds=3, warmup=1, clock=work.clock)
    assert work.ran == ["A", "B"] * 4


def test_row_holds_medians_of_counted_rounds_and_the_wider_spread() -> None:
    work = Work()
    ours = work.side("A", 100.0, 2.1, 2.0, 1.9)
    theirs = work.side("B", 0.5, 4.5, 5.5, 5.0)
    row = compare("sort", "peer", ours, theirs, aim=2.0, rounds=3, clock=work.clock)
    assert row == Row("sort", "peer", ours=2.0, theirs=5.0, unit="s", ratio=2.5, spread=0.2, aim=2.0, met=True)


def test_comparison_that_spreads_goes_on_until_it_is_clear() -> None:
    work = Work()
    ours = work.side("A", 9.0, 2.0, 3.0, *[2.0] * 5)
    theirs = work.side("B", *[5.0] * 8)
    row = compare("sort", "peer", ours, theirs, rounds=2, clock=work.clock)
    assert (row.spread, row.verdict) == (0.0, "met")
    assert work.ran == ["A", "B"] * 8


def test_what_spreads_for_nine_rounds_is_unclear() -> None:
    work = Work()
    ours = work.side("A", 9.0, *[1.0, 3.0, 2.0] * 3)
    row = compare("sort", "peer", ours, work.side("B", *[5.0] * 10), rounds=2, clock=work.clock)
    assert row.verdict == "met, unclear"
    assert work.ran.count("A") == 10


def test_aim_is_missed_when_the_ratio_is_below_it() -> None:
    work = Work()
    row = compare(
        "sort", "peer", work.side("A", 2.0), work.side("B", 2.0), aim=1.5, rounds=1, warmup=0, clock=work.clock
    )
    assert (row.ratio, row.met) == (1.0, False)


@pytest.mark.parametrize(("higher_is_better", "ratio"), [(True, 3.0), (False, 1 / 3)])
def test_returned_numbers_are_compared_in_the_direction_asked_for(higher_is_better: bool, ratio: float) -> None:
    work = Work()
    ours, theirs = work.side("A", 7.0, 7.0, returns=30.0), work.side("B", 1.0, 1.0, returns=10.0)
    row = compare(
        "scan", "peer", ours, theirs, unit="rows/s", rounds=1, higher_is_better=higher_is_better, clock=work.clock
    )
    assert (row.ours, row.theirs, row.ratio) == (30.0, 10.0, ratio)


def test_one_timed_and_one_returned_side_are_refused() -> None:
    work = Work()
    ours, theirs = work.side("A", 1.0, 1.0, returns=3.0), work.side("B", 1.0, 1.0)
    with pytest.raises(ValueError, match="from both sides or neither"):
        compare("scan", "peer", ours, theirs, rounds=1, clock=work.clock)


@pytest.mark.parametrize(("unit", "higher_is_better"), [("rows/s", False), ("s", True)])
def test_timed_sides_are_refused_in_another_unit_or_direction(unit: str, higher_is_better: bool) -> None:
    work = Work()
    ours, theirs = work.side("A", 1.0, 1.0), work.side("B", 1.0, 1.0)
    with pytest.raises(ValueError, match="timed in seconds"):
        compare("scan", "peer", ours, theirs, unit=unit, rounds=1, higher_is_better=higher_is_better, clock=work.clock)


def test_result_of_zero_is_refused() -> None:
    work = Work()
    with pytest.raises(ValueError, match="more work"):
        compare("scan", "peer", work.side("A", 0.0), work.side("B", 1.0), rounds=1, warmup=0, clock=work.clock)


def test_no_counted_round_is_refused() -> None:
    work = Work()
    with pytest.raises(ValueError, match="rounds=0"):
        compare("scan", "peer", work.side("A"), work.side("B"), rounds=0, clock=work.clock)


def test_report_writes_rows_with_machine_and_versions_and_prints_them(tmp_path: Path) -> None:
    row = Row("sort", "peer", ours=2.0, theirs=5.0, unit="s", ratio=2.5, spread=0.125, aim=3.0, met=False)
    printed = io.StringIO()
    report([row], tmp_path / "new" / "sort.json", Console(file=printed, width=120))
    content = json.loads((tmp_path / "new" / "sort.json").read_text(encoding="utf-8"))
    assert content["rows"] == [asdict(row)]
    assert {"processor", "cores", "memory", "python", "pyarrow", "numpy"} <= content["machine"].keys()
    cells = [cell.strip() for line in printed.getvalue().splitlines() if "sort" in line for cell in line.split("│")]
    assert cells[1:-1] == ["sort", "peer", "2", "5", "s", "2.50", "12%", "3.00", "missed"]


def test_sizes_and_the_folder_of_results_follow_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PENSTOCK_BENCH", raising=False)
    monkeypatch.delenv("PENSTOCK_BENCH_RESULTS", raising=False)
    assert (sized(1_000, 10), results_folder().parts[-2:]) == (1_000, ("benchmarks", "results"))
    monkeypatch.setenv("PENSTOCK_BENCH", "tiny")
    monkeypatch.setenv("PENSTOCK_BENCH_RESULTS", str(tmp_path))
    assert (sized(1_000, 10), results_folder()) == (10, tmp_path)

"""The benchmark house without peers: our sides run, outputs that differ give no figure, digests tell rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import house
import house_docs
import pyarrow as pa
import pytest
import side
from house_comparisons import SUITES, Comparison, Figure, Spec

from harness import Row, report

HOUSE = Path(house.__file__)


def batch(*columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], [f"c{n}" for n in range(len(columns))])


def test_digest_knows_neither_the_order_of_rows_nor_batches_nor_widths_nor_the_last_bits_of_floats() -> None:
    whole = batch([1, 2, 3], [0.1 + 0.2, 12.5, -7.0], ["a", "b", ""])
    narrow = batch([3, 1], [-7.0, 0.3], ["", "a"])
    narrow = narrow.set_column(0, "c0", narrow["c0"].cast(pa.int16()))
    assert side.digest([whole]) == side.digest([narrow, batch([2], [12.5], ["b"])])


@pytest.mark.parametrize(
    "other",
    [
        batch([1, 2], [0.5, 1.5], ["a", "c"]),
        batch([2, 1], [0.5, 1.5], ["a", "b"]),
        batch([1, 2], [0.5, 1.50001], ["a", "b"]),
        batch([1], [0.5], ["a"]),
        batch([1, 2, 2], [0.5, 1.5, 1.5], ["a", "b", "b"]),
    ],
)
def test_digest_differs_where_rows_do(other: pa.RecordBatch) -> None:
    assert side.digest([other]) != side.digest([batch([1, 2], [0.5, 1.5], ["a", "b"])])


def test_different_outputs_are_an_error() -> None:
    with pytest.raises(house.DifferentRowsError, match="ours gives 2-ab, peer 2-cd"):
        house.compare_digests("work", "peer", {"digest": "2-ab"}, {"digest": "2-cd"})


def test_a_figure_reads_its_own_seconds_of_either_side() -> None:
    spec = Spec("penstock", "none.py", {})
    comparison = Comparison("suite", "work", "peer", spec, spec, 4_000_000, 3.0)
    ours = [{"seconds": 4.0, "running": 1.0}, {"seconds": 4.0, "running": 2.0}]
    row = house.figure_row(comparison, Figure(", running", "running"), ours, [{"seconds": 8.0}, {"seconds": 8.0}])
    assert row == Row("work, running", "peer", 3.0, 0.5, "M rows/s", 6.0, 2 / 3, 3.0, met=True)


def test_geometric_mean_of_ratios() -> None:
    rows = [
        Row("a", "peer", 4.0, 1.0, "x", 4.0, 0.1, 0.5, True),
        Row("b", "peer", 1.0, 4.0, "x", 0.25, 0.2, 0.5, False),
    ]
    found = house.geometric_mean(rows)
    assert (found.ratio, found.spread, found.met) == (pytest.approx(1.0), 0.2, found.ratio >= 1.0)


@pytest.mark.slow
def test_growth_runs_and_draws_its_curves(tmp_path: Path) -> None:
    environ = {**os.environ, "PENSTOCK_BENCH": "tiny", "PENSTOCK_BENCH_RESULTS": str(tmp_path)}
    command = [sys.executable, str(HOUSE.with_name("growth.py"))]
    made = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env=environ)
    assert made.returncode == 0, made.stdout + made.stderr
    rows = json.loads((tmp_path / "growth.json").read_text(encoding="utf-8"))["rows"]
    assert {row["unit"] for row in rows} == {"M rows/s", "MiB", "ns", "ms", "B", "events/s", ""}
    assert (tmp_path / "growth.svg").read_text(encoding="utf-8").count("<polyline") == 4


def test_tables_and_plot_are_written_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        Row("top-n", "Velox", 2.0, 1.0, "M rows/s", 2.0, 0.1, 0.5, met=True),
        Row("1 operators, geometric mean", "Velox", 2.0, 1.0, "M rows/s", 2.0, 0.3, 1.0, met=True),
        Row("a <b>", "Ray Data", 1.0, 2.0, "M rows/s", 0.5, 0.1, 4.0, met=False),
        Row("resuming at 25 %", "1 %", 1.0, 2.0, "s", 0.5, 0.1, 1.0, met=False),
        Row("one process", "duckdb, for reference", 1.0, 9.0, "M rows/s", 0.11, 0.1, 0.0, met=True),
    ]
    told = {"at": "2026-01-02T03:04", "machine": {"cores": "2"}, "failures": ["flink: no Java"], "load_before": 9.0}
    (tmp_path / "latest.json").write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")
    (tmp_path / "machine.json").write_text(json.dumps(told), encoding="utf-8")
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/performance.md"):
        (tmp_path / name).write_text(
            "before\n<!-- bench: begin -->\nold\n<!-- bench: end -->\nafter\n", encoding="utf-8"
        )
    monkeypatch.setattr(house_docs, "ROOT", tmp_path)
    monkeypatch.setattr(house_docs, "PLOT", tmp_path / "docs" / "plots" / "ratios.svg")
    house_docs.write_docs(tmp_path)
    short, whole = (tmp_path / name for name in ("README.md", "docs/performance.md"))
    text = short.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| 1 operators, geometric mean | Velox | 2 | 1 | met, unclear |" in text
    assert "a <b>" not in text
    assert "top-n" not in text
    assert "duckdb" not in text
    assert "resuming" not in text
    assert "2026-01-02: cores 2." in text
    assert "**Preliminary**" in text
    assert "Not measured: flink: no Java." in text
    found = whole.read_text(encoding="utf-8")
    assert "| top-n | Velox | 2 | 1 | M rows/s | 2.00 | 10% | 0.5 | met |" in found
    assert "| one process | duckdb, for reference | 1 | 9 | M rows/s | 0.11 | 10% |  | reference |" in found
    plotted = (tmp_path / "docs" / "plots" / "ratios.svg").read_text(encoding="utf-8")
    assert plotted.count("<rect") == 1 + len(rows)
    assert "a &lt;b&gt; : Ray Data" in plotted


def test_what_was_met_and_is_missed_beyond_its_spread_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [Row(work, "peer", 2.0, 1.0, "s", 2.0, 0.1, 1.0, met=True) for work in ("a", "b", "c")]
    table = house_docs.whole_table([*before, Row("d", "peer", 1.0, 2.0, "s", 0.5, 0.1, 1.0, met=False)])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "performance.md").write_text(f"<!-- bench: begin -->\n{table}\n<!-- bench: end -->\n")
    monkeypatch.setattr(house_docs, "ROOT", tmp_path)
    now = [Row(work, "peer", 1.0, 2.0, "s", ratio, 0.1, 1.0, met=ratio >= 1.0) for work, ratio in
           (("a", 0.5), ("b", 0.95), ("c", 1.5), ("d", 0.5))]  # fmt: skip
    assert house_docs.fallen_back(now) == ["a against peer was met and is missed: 0.50 of 1"]


def test_texts_of_scripts_are_written_between_their_own_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "docs" / "performance.md"
    page.parent.mkdir()
    page.write_text("before\n<!-- tpch: begin -->\nold\n<!-- tpch: end -->\nafter\n", encoding="utf-8")
    report([], tmp_path / "tpch.json", text="| a table |")
    monkeypatch.setattr(house_docs, "ROOT", tmp_path)
    house_docs.write_docs(tmp_path)
    found = page.read_text(encoding="utf-8")
    assert found.startswith("before\n<!-- tpch: begin -->\n| a table |\n\n")
    assert found.endswith("\n<!-- tpch: end -->\nafter\n")
    assert "old" not in found


def run_house(results: Path, *arguments: str, **environment: str) -> list[Mapping[str, Any]]:
    """Tiny, without peers."""
    environ = {**os.environ, "PENSTOCK_BENCH": "tiny", "PENSTOCK_BENCH_RESULTS": str(results), **environment}
    command = [sys.executable, str(HOUSE), "--no-peers", *arguments]
    made = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env=environ)
    assert made.returncode == 0, made.stdout + made.stderr
    assert json.loads((results / "machine.json").read_text(encoding="utf-8"))["failures"] == []
    return list(json.loads((results / "latest.json").read_text(encoding="utf-8")))


@pytest.mark.slow
def test_sides_without_ray_run(tmp_path: Path) -> None:
    rows = run_house(tmp_path, "velox", "references", "import", "--only", "1 K groups")
    assert [row["work"] for row in rows] == ["import penstock", "penstock --help"]
    assert set(rows[0]) == {"work", "peer", "ours", "theirs", "unit", "ratio", "spread", "aim", "met"}


@pytest.mark.ray
def test_jobs_on_ray_run_and_are_compared_with_each_other(tmp_path: Path, cluster: str) -> None:
    rows = run_house(tmp_path, "ray", "flink", "scan", "checkpoints", "--only", "keyed", PENSTOCK_BENCH_RAY=cluster)
    peers = [row["peer"] for row in rows]
    assert peers == ["bare pyarrow scan, 2 threads"] * 2 + ["no checkpoint before the end"]


def test_every_side_of_every_comparison_is_a_script_that_is_there() -> None:
    for suite in ("velox", "ray", "spark", "flink", "scan", "spark-stream", "checkpoints", "references"):
        assert suite in SUITES
    scripts = {each.name for each in (HOUSE.parent / "sides").glob("*.py")}
    environments = {each.stem for each in (HOUSE.parent / "peers").glob("*.txt")} | {"penstock"}
    os.environ["PENSTOCK_BENCH"] = "tiny"
    try:
        found = [comparison for make in SUITES.values() for comparison in make(True)]
    finally:
        del os.environ["PENSTOCK_BENCH"]
    for comparison in found:
        for spec in (comparison.ours, comparison.theirs, *(comparison.check or ())):
            assert (spec.script in scripts, spec.environment in environments) == (True, True), comparison.work

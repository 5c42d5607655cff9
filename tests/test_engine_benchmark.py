"""The engine's benchmark runs at all: both sides of every comparison, over few rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "engine.py"


def test_engine_benchmark_runs_small_and_compares_every_operator_and_pipeline(tmp_path: Path) -> None:
    result = tmp_path / "engine.json"
    command = [sys.executable, str(SCRIPT), "--small", "--output", str(result)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stderr
    rows = json.loads(result.read_text(encoding="utf-8"))["rows"]
    kinds = {row["unit"] for row in rows}
    assert kinds == {"M rows/s", "µs"}
    names = " ".join(row["work"] for row in rows)
    operators = ["filter", "project", "map batches", "unnest", "stream aggregate", "hash aggregate", "distinct"]
    operators += [
        "merge join",
        "hash join",
        "lookup join",
        "sort",
        "top n",
        "window",
        "limit",
        "union",
        "mark distinct",
    ]
    assert [name for name in operators if name not in names] == []
    assert sum("→" in row["work"] for row in rows) == 2 * 4

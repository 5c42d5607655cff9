"""Every script that measures runs to its end, over little data, and leaves rows of results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
RAY = pytest.mark.ray
COLUMNS = {"work", "peer", "ours", "theirs", "unit", "ratio", "spread", "aim", "met"}


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("barrier", ()),
        ("checkpoints", ("--only", "pressure")),
        pytest.param("checkpoints", ("--only", "control"), marks=RAY),
        ("coordinator", ()),
        pytest.param("feed", ("--no-peers",), marks=RAY),
        pytest.param("feed_peers", ("--only", "DataLoader", "--shapes", "1"), marks=RAY),
        ("feed_mesh", ("--only", "requests")),
        ("job_barrier", ("--no-ray",)),
        ("plan", ()),
        ("scheduler", ()),
        ("tpch", ()),
        ("transport", ("--no-ray",)),
        pytest.param("ray_scale", ("--only", "workers"), marks=RAY),
        pytest.param("recovery", ("--only", "deaths"), marks=RAY),
        pytest.param("recovery", ("--only", "pressure"), marks=RAY),
    ],
)
def test_script_runs_to_its_end(script: str, options: tuple[str, ...], tmp_path: Path) -> None:
    environment = os.environ | {"PENSTOCK_BENCH": "tiny", "PENSTOCK_BENCH_RESULTS": str(tmp_path)}
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), *options]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert made.returncode == 0, made.stderr
    rows = json.loads((tmp_path / f"{script}.json").read_text(encoding="utf-8"))["rows"]
    assert rows
    assert all(row.keys() == COLUMNS for row in rows)

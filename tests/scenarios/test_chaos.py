"""Seeded disasters, one of each kind, and a node that dies: the outputs equal those of the undisturbed run.

``make chaos`` runs a hundred (``chaos.py``), and writes the table of docs/reliability.md.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from support.chaos_job import make_flow, outputs
from support.disasters import KINDS, undergo
from support.sweeps import swept

pytestmark = [pytest.mark.ray, pytest.mark.chaos]

SCRIPT = Path(__file__).parent / "chaos.py"

ALONE = {"driver killed", "coordinator killed", "driver and coordinator killed", "driver stopped for good"}
ALONE |= {"driver stopped for a while", "coordinator stopped for a while"}
"""Of these tests/actors/job has tests of their own."""
CASES = [swept(seed) if kind in ALONE else seed for seed, kind in enumerate(KINDS)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    ps.run_local(make_flow(folder, rate=0.0), parallelism=2).wait()
    return outputs(folder)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", CASES, ids=list(KINDS))
def test_outputs_are_equal_after_a_seeded_disaster(
    cluster: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, undisturbed: dict[str, Any], seed: int
) -> None:
    monkeypatch.setenv("PENSTOCK_VALIDATE", "1")
    outcome = undergo(seed, tmp_path, undisturbed)
    assert not outcome.wrong, outcome


def test_outputs_are_equal_after_the_death_of_a_node() -> None:
    """In a cluster of several nodes on this machine, and so in a process of its own."""
    command = [sys.executable, str(SCRIPT), "--nodes", "--seeds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 equal" in done.stdout

"""A job on Ray whose checkpoints lie on a real S3 server: exact whoever is killed and whenever the store is gone, and
restored from copies on its machine (``support/ray_on_store.py``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.object_server import ObjectServer

pytestmark = [pytest.mark.ray, pytest.mark.chaos]

SCRIPT = Path(__file__).parents[2] / "support" / "ray_on_store.py"


@pytest.fixture
def undergo(object_server: ObjectServer, real_bucket: str, tmp_path: Path) -> Any:
    def run(case: str) -> dict[str, Any]:
        tests = os.pathsep.join(filter(None, [str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH")]))
        environment = os.environ | object_server.environment() | {"PYTHONPATH": tests, "PENSTOCK_VALIDATE": "1"}
        words = [sys.executable, str(SCRIPT), case, real_bucket, str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert not found["wrong"], found
        assert found["left"] == [], "copies stay after the end of the job"
        return found

    return run


@pytest.mark.timeout(300)
def test_survivors_and_the_successor_of_a_killed_process_ask_the_store_for_no_state(undergo: Any) -> None:
    found = undergo("killed")
    assert found["restarts"] == 1
    assert found["found"] > 0
    assert (found["missing"], found["damaged"], found["read"]) == (0, 0, 0)


@pytest.mark.timeout(300)
def test_damaged_copies_are_found_out_and_the_store_is_asked(undergo: Any) -> None:
    found = undergo("damaged")
    assert found["damaged"] > 0
    assert found["read"] > 0


@pytest.mark.timeout(300)
def test_job_is_exact_whose_store_is_gone_while_processes_die(undergo: Any) -> None:
    assert undergo("store gone")["generation"] == 2

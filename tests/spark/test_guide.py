"""The guide from Spark to the trainer runs as it stands there, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.guides import GUIDES, blocks, tells
from support.processes import Household

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

TOLD = [
    "Spark has stopped, the job runs",
    "25 steps, then 31 from step 20 on; the five that were lost came again, the same",
    "3213 rows handed out once, 0 gaps, 0 repeats",
]


def test_guide_runs_tells_what_it_says_and_leaves_nothing_running(tmp_path: Path) -> None:
    [guide] = [guide for guide in GUIDES if guide.stem == "spark-to-trainer"]
    (tmp_path / "guide.py").write_text("\n".join(blocks(guide)))
    with Household(tmp_path) as household:
        # as on a machine where nothing of this is set: a cluster of its own, with a token in the home folder
        environment = {"HOME": str(tmp_path), "RAY_AUTH_MODE": None, "RAY_ADDRESS": None}
        done = household.python("guide.py", cwd=tmp_path, **environment).wait(540)
        left = household.wait_gone(20.0)
    assert done.returncode == 0, done
    assert tells(done.stdout, TOLD), done
    assert left == []

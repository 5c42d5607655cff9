"""One of each accident of the ranks of a feed; ``make chaos`` has more of them (``ranks.py``)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.rank_disasters import ALL_KINDS, KINDS, NODE_KILLED, World, problems, undergo, undisturbed
from support.trainer import Plan

pytestmark = [pytest.mark.ray, pytest.mark.chaos]
SCRIPT = Path(__file__).parent / "ranks.py"


@pytest.fixture(scope="module")
def batches() -> list[list[int]]:
    return undisturbed()


@pytest.mark.parametrize("seed", range(len(KINDS)), ids=list(KINDS))
def test_ranks_of_another_number_go_on_with_the_right_batches(
    cluster: str, tmp_path: Path, batches: list[list[int]], seed: int
) -> None:
    assert undergo(seed, tmp_path / "story", batches) == []


def test_ranks_read_on_when_the_node_of_the_feed_is_killed_amid_an_epoch() -> None:
    """In a cluster of several nodes on this machine, and so in a process of its own."""
    seed = list(ALL_KINDS).index(NODE_KILLED)
    command = [sys.executable, str(SCRIPT), "--first", str(seed), "--seeds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"| {NODE_KILLED} | 1 | 1 |" in done.stdout


def test_judge_notices_batches_that_are_lost_repeated_or_altered(tmp_path: Path) -> None:
    batches = [[1, 2], [3, 4], [5, 6]]
    journal = tmp_path / "rank.txt"
    world = World(1, [Plan(rank=0, ranks=1, journal=str(journal), models="w", every=5)])

    def judged(*lines: str) -> list[str]:
        journal.write_text("\n".join(lines))
        return list(problems(world, batches))

    assert judged("[1, [3, 4]]", "[2, [5, 6]]") == []
    assert judged("[2, [5, 6]]") != []
    assert judged("[1, [3, 4]]", "[1, [3, 4]]") != []
    assert judged("[1, [4, 3]]") == ["step 1 gave [4, 3], not [3, 4]"]

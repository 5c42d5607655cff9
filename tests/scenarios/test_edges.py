"""One of each disaster at the edges of a job; ``make chaos`` has more of them (``edges.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.edge_disasters import KINDS, World, undergo


@pytest.mark.parametrize("seed", range(len(KINDS)), ids=list(KINDS))
def test_whoever_ends_well_has_left_exactly_its_rows(tmp_path: Path, seed: int) -> None:
    world = undergo(seed, tmp_path / "world")
    assert world.judge() == "", world.said


def test_judge_notices_rows_that_are_missing_or_too_many(tmp_path: Path) -> None:
    from random import Random

    world = World(tmp_path, Random(0))
    assert world.finish()
    assert world.judge() == ""
    part = world.parts()[0]
    kept = part.read_bytes()
    (world.output / "again.parquet").write_bytes(kept)
    assert world.judge().startswith("0 rows are missing, ")
    (world.output / "again.parquet").unlink()
    part.unlink()
    assert ", 0 are too many" in world.judge()

"""One of each disaster at the edges of a job; ``make chaos`` has more of them (``edges.py``)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.actors.audit import audit
from penstock.engine.plan.plan import Audited
from support.damage import flipped
from support.edge_disasters import KINDS, World, undergo

OTHERS = [seed for seed, kind in enumerate(KINDS) if kind != "sleeper"]


@pytest.mark.parametrize("seed", OTHERS, ids=[list(KINDS)[seed] for seed in OTHERS])
def test_run_that_ends_well_has_left_exactly_its_rows(tmp_path: Path, seed: int) -> None:
    world = undergo(seed, tmp_path / "world")
    assert world.judge() == "", world.said


def test_judge_notices_rows_that_are_missing_or_too_many(tmp_path: Path) -> None:
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


def damaged(folder: Path, audited: Audited, *, footer: bool) -> World:
    """A run that has gone on behind the damage of a file that was committed long before. Its size is what it was."""
    world = World(folder, Random(0), audit=audited)
    world.interrupt(6)
    path = world.parts()[0]
    data = path.read_bytes()
    column = pq.read_metadata(path).row_group(0).column(0)
    start = column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset
    at = len(data) - 1 if footer else start + column.total_compressed_size // 2
    path.write_bytes(flipped(data, 8 * at))
    world.finish()
    return world


@pytest.mark.parametrize("audited", ["content", "counts"])
def test_judge_notices_an_audit_that_says_more_than_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audited: Audited
) -> None:
    footer = audited == "counts"
    world = damaged(tmp_path / "whole", audited, footer=footer)
    assert "finished" not in world.said
    whole = audit._audit_sink

    def boasting(plan: Any, id: str, config: Any, counts: Any, status: Any) -> audit.SinkAudit:
        """It believes what the sink took, and does not look at what is visible."""
        monkeypatch.setattr(type(config), "visible_rows", lambda *_: audit._sum(counts))
        made = whole(replace(plan, audit="counts"), id, config, counts, status)
        return replace(made, same=True if audited == "content" else None)

    monkeypatch.setattr(audit, "_audit_sink", boasting)
    world = damaged(tmp_path / "broken", audited, footer=footer)
    assert world.said == ["finished"]
    assert world.judge().endswith(f"an audit says {'proven' if audited == 'content' else 'counted'}")


def test_counted_is_of_the_number_of_rows_and_not_of_what_is_in_their_pages(tmp_path: Path) -> None:
    world = damaged(tmp_path / "world", "counts", footer=False)
    assert (world.said, world.grades()) == (["finished"], ["counted"])
    assert world.judge() == ""


def test_sleeper_ends_with_an_error_when_another_run_has_finished_meanwhile(tmp_path: Path) -> None:
    world = undergo(list(KINDS).index("sleeper"), tmp_path / "world")
    heir, sleeper = world.said
    assert heir == "finished"
    assert "Error: " in sleeper
    assert world.judge() == ""

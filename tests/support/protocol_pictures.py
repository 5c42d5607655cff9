"""Draws a machine's table of legal moves as the picture that stands in ``docs/design/checkpoints.md``.

``python tests/support/protocol_pictures.py`` puts the pictures of all tables into the page; a test compares them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from penstock.coordinator.checkpoint.finalizer import LEGAL_COMMIT_MOVES, LEGAL_STOP_MOVES
from penstock.coordinator.checkpoint.pending import LEGAL_PHASE_MOVES
from penstock.coordinator.job.reweighting import LEGAL_REWEIGHT_MOVES
from penstock.coordinator.job.takeover import LEGAL_TAKEOVER_MOVES
from penstock.coordinator.log.log_writer import LEGAL_WRITER_MOVES
from penstock.coordinator.model.job_states import LEGAL_JOB_MOVES, LEGAL_TASK_MOVES

PAGE = Path(__file__).parent.parent.parent / "docs" / "design" / "checkpoints.md"
TABLES: Mapping[str, Mapping[Any, frozenset[Any]]] = {
    "checkpoint": LEGAL_PHASE_MOVES,
    "task": LEGAL_TASK_MOVES,
    "job": LEGAL_JOB_MOVES,
    "takeover": LEGAL_TAKEOVER_MOVES,
    "log's writer": LEGAL_WRITER_MOVES,
    "task's commits": LEGAL_COMMIT_MOVES,
    "change of a mixture": LEGAL_REWEIGHT_MOVES,
    "savepoint that the job stops with": LEGAL_STOP_MOVES,
}


def picture(legal: Mapping[Enum, frozenset[Enum]]) -> str:
    """The moves in the order of the states."""
    states = list(legal)
    moves = [(before, after) for before in states for after in states if after in legal[before]]
    return "\n".join(["stateDiagram-v2", *(f"    {before.name} --> {after.name}" for before, after in moves)])


def drawn(page: str, title: str) -> str:
    """The picture in the page."""
    found = re.search(rf"<!-- moves of a {title} -->\n```mermaid\n(.*?)\n```", page, re.DOTALL)
    return found[1] if found is not None else ""


def redraw(page: str) -> str:
    """The page with the pictures as they must be."""
    for title, legal in TABLES.items():
        page = page.replace(f"mermaid\n{drawn(page, title)}\n```", f"mermaid\n{picture(legal)}\n```")
    return page


if __name__ == "__main__":
    PAGE.write_text(redraw(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)

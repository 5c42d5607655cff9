"""CONTRIBUTING.md shows an operator in one file, and the file runs as it stands there."""

from __future__ import annotations

from pathlib import Path

from support.guides import blocks


def test_operator_in_one_file_runs_as_it_stands_there() -> None:
    contributing = Path(__file__).parent.parent / "CONTRIBUTING.md"
    (block,) = blocks(contributing)
    exec(compile(block, str(contributing), "exec", dont_inherit=True), {"__name__": "operator_in_one_file"})

"""The list of tests that have a second try names what there is, with a reason each, and stays short."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LINES = [line.strip() for line in (TESTS / "second_try.txt").read_text().splitlines() if not line.startswith("#")]
ENTRIES = [line for line in LINES if line]


@pytest.mark.parametrize("entry", ENTRIES, ids=[each.partition(" | ")[0] for each in ENTRIES])
def test_second_try_is_for_a_test_that_runs_processes_and_has_a_reason(entry: str) -> None:
    name, _, reason = entry.partition(" | ")
    file, _, function = name.partition("::")
    text = (TESTS.parent / file).read_text()
    assert any(f"pytest.mark.{mark}" in text for mark in ("ray", "spark", "chaos")), "a pure test has one try"
    functions = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    assert not function or function in functions
    assert len(reason.split()) > 1


def test_list_only_gets_shorter() -> None:
    assert len(ENTRIES) <= 17

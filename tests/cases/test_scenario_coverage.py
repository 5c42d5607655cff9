"""Each entry of ``scenarios.json`` is a named test (``scenario_coverage``).

``PENSTOCK_CASES`` may name another folder; it may hold only some of the files.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from cases.scenario_coverage import OTHERWISE, TESTED
from cases.tables import table

TESTS = Path(__file__).parents[1] / "engine" / "scenarios"


def scenario_ids() -> list[str]:
    found = table("scenarios.json")
    if not found:
        pytest.skip("the folder of the tables has no scenarios.json")
    return [each["id"] for each in found["scenarios"]]


def test_every_scenario_has_a_test_or_is_missing_by_name() -> None:
    assert sorted(set(scenario_ids()) - set(TESTED)) == []


@pytest.mark.parametrize("id", TESTED)
def test_scenario_is_carried_by_the_test_that_the_table_names(id: str) -> None:
    file, name = TESTED[id]
    source = (TESTS / file).read_text(encoding="utf-8")
    named = [each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef) and each.name == name]
    assert len(named) == 1, f"{file}::{name} does not exist"
    head = (ast.get_docstring(named[0]) or "").partition(": ")[0].split()
    assert id in {each.strip(",") for each in head} or f'"{id}": ' in source, f"{name} does not carry {id}"


def test_deviations_are_of_scenarios_that_are_tested() -> None:
    assert sorted(set(OTHERWISE) - set(TESTED)) == []

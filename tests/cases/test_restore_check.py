"""Runs the rows about restoring a checkpoint with finished tasks into another graph."""

from __future__ import annotations

import pytest
from cases.tables import HINTS, Row, graph_of, refuse_unknown, rows

from penstock.coordinator.restore.finished_check import FinishedState, OperatorName, check_restore

FILE = "checkpoint_plan.json"


def stored_under(prefix: str, row: Row) -> dict[str, FinishedState]:
    """A state of null: the checkpoint does not know the operator."""
    states = {name: state for vertex in row["vertices"] for name, state in vertex["operators"].items()}
    return {f"{prefix} {name}": FinishedState[state] for name, state in states.items() if state is not None}


@pytest.mark.parametrize("row", rows(FILE, "restore_check_cases"))
def test_restore_check(row: Row) -> None:
    """Every row with the state stored under the derived ids, then under the user's."""
    expect = row["expect"]
    refuse_unknown(expect, {"outcome", *HINTS}, "expectations")
    assert expect["outcome"] in {"ok", "error"}
    operators = {
        vertex["name"]: [OperatorName(f"derived {name}", f"given {name}") for name in vertex["operators"]]
        for vertex in row["vertices"]
    }
    for prefix in ("derived", "given"):
        refusal = check_restore(graph_of(row), operators, stored_under(prefix, row))
        assert (refusal is not None) == (expect["outcome"] == "error"), prefix

"""Reads the scenario tables: rows as pytest cases, and what rows of several sections have in common.

``PENSTOCK_CASES`` names another folder of the same form, which may hold only some of the files. What a reader here does
not know makes the row fail: a state, a pattern, a key where every key is an expectation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.coordinator.checkpoint.pending import VertexStates
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex

FOLDER = Path(os.environ.get("PENSTOCK_CASES") or Path(__file__).parent / "data")
NOT_RUNNING = {"CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "CANCELING", "RECONCILING"}
ENDED = {"FINISHED", "CANCELED", "FAILED"}
HINTS = {"message_contains", "error_like"}
"""Only the kind of an error counts, never its wording."""
Row = dict[str, Any]


def table(name: str) -> dict[str, Any]:
    """A file of the folder; empty if it is not there."""
    path = FOLDER / name
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return content


def rows(name: str, section: str) -> list[Any]:
    """The rows of a section, each a case with its id."""
    return [pytest.param(row, id=row["id"]) for row in table(name).get(section, [])]


def refuse_unknown(found: Collection[str], known: Collection[str], what: str) -> None:
    unknown = set(found) - set(known)
    assert not unknown, f"{what} that the runner does not know: {sorted(unknown)}"


def graph_of(row: Row) -> ExecutionGraph:
    """Vertices without a parallelism have one subtask: their number does not matter to the row."""
    return ExecutionGraph(
        tuple(Vertex(vertex["name"], vertex.get("parallelism", 1)) for vertex in row["vertices"]),
        tuple(JobEdge(edge["source"], edge["target"], Pattern(edge["pattern"])) for edge in row.get("edges", ())),
    )


def states_of(row: Row) -> dict[str, VertexStates]:
    states = {}
    for vertex in row["vertices"]:
        refuse_unknown(vertex["states"], NOT_RUNNING | ENDED | {"RUNNING"}, "states")
        assert len(vertex["states"]) == vertex["parallelism"]
        states[vertex["name"]] = VertexStates.of(
            [state == "RUNNING" for state in vertex["states"]],
            [state in ENDED for state in vertex["states"]],
            [state == "FINISHED" for state in vertex["states"]],
        )
    return states


def by_subtask(mapping: Mapping[int, Any] | list[Any] | tuple[Any, ...]) -> dict[str, Any]:
    """Keys as JSON has them."""
    items = mapping.items() if isinstance(mapping, Mapping) else enumerate(mapping)
    return {str(subtask): value for subtask, value in items}

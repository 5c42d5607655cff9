"""Every table of moves in the package: it names all states of its enum, and all of them can be reached."""

from __future__ import annotations

import importlib
import re
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parent.parent
TABLE = re.compile(r"^(\w+): (?:Mapping|dict)\[(\w+), frozenset\[\2\]\] = \{$", re.MULTILINE)


def tables() -> list[tuple[str, str]]:
    """Module and name of each."""
    found = []
    for folder in ("engine", "coordinator", "actors"):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            module = ".".join(path.relative_to(CHECKOUT).with_suffix("").parts)
            found += [(module, match[1]) for match in TABLE.finditer(path.read_text(encoding="utf-8"))]
    return found


def test_tables_are_found() -> None:
    assert {module.partition(".")[0] for module, _ in tables()} == {"engine", "coordinator", "actors"}
    assert len(tables()) >= 20


@pytest.mark.parametrize(("module", "name"), tables(), ids=lambda each: each.rpartition(".")[2])
def test_table_names_every_state_and_each_can_be_reached_from_the_first(module: str, name: str) -> None:
    table: dict[Enum, Any] = getattr(importlib.import_module(f"penstock.{module}"), name)
    first = next(iter(table))
    assert set(table) == set(type(first))
    reached, left = {first}, [first]
    while left:
        new = table[left.pop()] - reached
        reached |= new
        left += new
    assert reached == set(table)

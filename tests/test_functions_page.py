"""The page of all functions is up to date, names each of them, and its examples are what DuckDB gives."""

from __future__ import annotations

import pytest

from penstock.engine.expressions.sql_functions import FUNCTIONS
from support.functions_page import OTHERS, PAGE, ROW, SCALAR, named, page, registered
from support.sql_values import by_duckdb, by_us

EXAMPLES = [example for functions in SCALAR.values() for example, _ in functions.values()]
IN_ANOTHER_ORDER = {"list_distinct(l)"}


def test_page_is_what_the_registry_gives() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: PYTHONPATH=tests python -m support.functions_page"


def test_page_names_each_function_once() -> None:
    assert sorted(name for functions in SCALAR.values() for name in named(functions)) == sorted(FUNCTIONS)
    for kind, names in registered().items():
        assert sorted(named(OTHERS[kind])) == sorted(names)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_is_what_duckdb_gives(example: str) -> None:
    [ours], [theirs] = by_us(example, ROW), by_duckdb(example, ROW)
    if example in IN_ANOTHER_ORDER:
        ours, theirs = sorted(ours), sorted(theirs)
    assert ours == theirs

"""What a config holds is part of the flow's identity, of whatever class it is."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.compute as pc
import pytest

from penstock.engine.planner.exact import exact_text, expressions_in


@dataclass(frozen=True)
class Holding:
    value: Any


class Struct(msgspec.Struct, frozen=True):
    value: Any


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value

    @cached_property
    def computed(self) -> object:
        return object()


class Slotted:
    __slots__ = ("unset", "value")

    def __init__(self, value: Any) -> None:
        self.value = value


PAIRS = [
    (5, 9),
    (frozenset({5}), frozenset({9})),
    ({"a", "b"}, {"a", "c"}),
    (range(5), range(9)),
    (Path("a"), Path("b")),
    (np.int64(5), np.int64(9)),
    (np.array([5]), np.array([9])),
    (np.array([5]), np.array([5.0])),
    ([np.int32(5)], [np.int32(9)]),
    (re.compile("a"), re.compile("a", re.I)),
    (deque([5]), deque([9])),
    (Struct(5), Struct(9)),
]


@pytest.mark.parametrize("kind", [Holding, Struct, Plain, Slotted])
@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda value: type(value).__name__)
def test_configs_that_hold_different_values_are_different(kind: Any, one: object, other: object) -> None:
    assert exact_text(kind(one)) == exact_text(kind(one)) != exact_text(kind(other))


def test_sets_have_no_order() -> None:
    names = [f"name-{number}" for number in range(100)]
    assert exact_text(Holding(set(names))) == exact_text(Holding({*names[50:], *names[:50]}))


def test_what_a_config_has_computed_does_not_change_it() -> None:
    config = Plain(5)
    before = exact_text(config)
    assert config.computed is config.computed
    assert exact_text(config) == before


def test_a_config_that_holds_itself_has_an_end() -> None:
    config = Plain([])
    config.value.append(config)
    assert exact_text(config) == "value=[Plain]"


def test_expressions_of_a_source_count_whatever_its_class_is_made_of() -> None:
    class Slotted:
        __slots__ = ("least", "other")

        def __init__(self, least: int) -> None:
            self.least = pc.field("v") > least

    assert list(expressions_in(Slotted(1))) != list(expressions_in(Slotted(2)))
    assert len(list(expressions_in(Slotted(1)))) == 1

"""``offers`` says what ``isinstance`` says."""

from __future__ import annotations

import inspect
from typing import Protocol, runtime_checkable

import pytest

from penstock.engine.core import operator
from penstock.engine.core.offering import offers


@runtime_checkable
class Paced(Protocol):
    @property
    def pace(self) -> int | None:
        """How fast."""

    def expect(self) -> None:
        """Something comes."""


class ByMethod:
    pace = None

    def expect(self) -> None:
        """It is fine."""


class ByAttribute:
    def __init__(self) -> None:
        self.pace = 3
        self.expect = print


class Blocked(ByMethod):
    expect = None  # type: ignore[assignment]


class Partly:
    pace = 1


@pytest.mark.parametrize("kind", [ByMethod, ByAttribute, Blocked, Partly, int])
def test_it_says_what_isinstance_says(kind: type) -> None:
    assert offers(kind(), Paced) is isinstance(kind(), Paced)


def test_it_knows_all_members_of_every_protocol_of_operators() -> None:
    protocols = [each for each in vars(operator).values() if getattr(each, "_is_runtime_protocol", False)]
    assert len(protocols) > 5
    for protocol in protocols:
        bases = [base for base in protocol.__mro__ if getattr(base, "_is_protocol", False)]
        members = {name for base in bases for name in (*vars(base), *inspect.get_annotations(base))}
        public = sorted(name for name in members if not name.startswith("_"))
        whole = type("Whole", (), dict.fromkeys(public, len))
        assert offers(whole(), protocol)
        for missing in public:
            assert not offers(type("Less", (), dict.fromkeys({*public} - {missing}, len))(), protocol), missing

"""Cases that show with more seeds what another case shows: left to ``make simulate`` and ``make chaos``."""

from __future__ import annotations

from typing import Any

import pytest


def swept(*values: Any) -> Any:
    """A case of a sweep."""
    return pytest.param(*values, marks=pytest.mark.sweep)


def seeds(few: int, *, of: int) -> list[Any]:
    """The first seeds as they are, and the others as a sweep."""
    return [*range(few), *(swept(seed) for seed in range(few, of))]

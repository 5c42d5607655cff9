"""What a query gives, in a form in which engines can be compared: a process hands it on as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

Rows = list[list[Any]]
CLOSE = 1e-9
"""Averages and quotients are floats in some engines, and decimals in others."""


def texts() -> list[str]:
    """The 22 queries in SQL."""
    lines = Path(__file__).with_name("tpch.sql").read_text(encoding="utf-8").splitlines()
    whole = "\n".join(line for line in lines if not line.startswith("--"))
    return [each.strip() for each in whole.split(";") if each.strip()]


def told(rows: Iterable[Iterable[Any]]) -> Rows:
    """Decimals without zeros at their end, and days, become text."""
    return [[_told(value) for value in row] for row in rows]


def _told(value: Any) -> Any:
    if isinstance(value, Decimal):
        return f"{value:f}".rstrip("0").rstrip(".") if "." in f"{value:f}" else f"{value:f}"
    if isinstance(value, datetime):
        return value.date().isoformat()
    return value.isoformat() if isinstance(value, date) else value


def difference(ours: Rows, theirs: Rows) -> str | None:
    """Where they differ, in order; None if they do not."""
    if len(ours) != len(theirs):
        return f"{len(ours)} rows instead of {len(theirs)}"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if len(one) != len(other) or not all(map(_is_same, one, other)):
            return f"row {number} is {one} instead of {other}"
    return None


def _is_same(one: Any, other: Any) -> bool:
    if one == other or one is None or other is None:
        return bool(one == other)
    numbers = [_number(each) for each in (one, other)]
    if (isinstance(one, str) and isinstance(other, str)) or None in numbers:
        return False
    return math.isclose(*numbers, rel_tol=CLOSE)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))

"""What a row of ``operators.json`` asks for: operators in a chain, their input, the columns to compare.

``operator_builders_<subject>.py`` beside this file each map operators of the table to builders, in a dict ``BUILDERS``;
:func:`plan_of` finds them all. A builder raises what the operators raise for a mistake of the flow, and
:class:`NotUnderstood` for a row that it cannot read; so does a row of an operator that no builder knows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.engine.core.operator import OperatorConfig

Row: TypeAlias = dict[str, Any]


class NotUnderstood(Exception):
    """The runner cannot read a row; an empty answer would be worse than a failure."""


@dataclass(frozen=True)
class Plan:
    """``operators``: a chain, of which the first has the ports. ``ports``: for each port its batches (splits, if the
    row has barriers). ``columns``: of the last operator's output, in the order of the expected rows."""

    operators: Sequence[OperatorConfig]
    ports: Sequence[Sequence[pa.RecordBatch]]
    columns: Sequence[str]


Builder: TypeAlias = Callable[[Row], Plan]


def plan_of(row: Row) -> Plan:
    """The plan of a row; its tables are made by ``operator_tables``."""
    builder = _builders().get(row["operator"])
    if builder is None:
        raise NotUnderstood(f"no builder for operator {row['operator']!r}; there are: {', '.join(_builders())}")
    return builder(row)


def only(row: Row, known: Sequence[str]) -> None:
    """The row has no key beside ``known`` and those that every row has."""
    informative = ("id", "suite", "operator", "inputs", "expect", "note", "origin", "variants_note", "detail")
    unknown = set(row) - {*known, *informative, "output_batch_rows", "barriers"}
    if unknown:
        raise NotUnderstood(f"keys that the runner does not know: {sorted(unknown)}")


def _builders() -> Mapping[str, Builder]:
    found: dict[str, Builder] = {}
    for path in sorted(Path(__file__).parent.glob("operator_builders_*.py")):
        found |= importlib.import_module(f"cases.{path.stem}").BUILDERS
    return found

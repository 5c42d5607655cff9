"""Builders for the rows of ``operators.json`` that join and unnest: merge_join, index_lookup_join, unnest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from cases.operator_plans import Builder, NotUnderstood, Plan, Row, only
from cases.operator_tables import batches_of, made_batches

from penstock.engine.core.operator import OperatorConfig
from penstock.engine.flow import index
from penstock.engine.operators import Between, InList, LookupJoin, MergeJoin, Project, Unnest

JOIN_TYPES = {f"{side}_semi{ending}": f"{side} semi" for side in ("left", "right") for ending in ("", "_filter")}


def merge_join(row: Row) -> Plan:
    """Sides as batches of one sorted sequence, or as splits."""
    only(row, ("join_type", "left_keys", "right_keys", "filter", "output"))
    given = row["inputs"]
    if set(given) == {"left", "right"}:
        ports = [batches_of(given[side]) for side in ("left", "right")]
    elif set(given) == {"left_splits", "right_splits"}:
        ports = [made_batches(given[side]) for side in ("left_splits", "right_splits")]
    else:
        raise NotUnderstood(f"inputs that the runner does not know: {sorted(given)}")
    join = MergeJoin(
        tuple(row["left_keys"]),
        how=JOIN_TYPES.get(row["join_type"], row["join_type"]),
        right_on=tuple(row["right_keys"]),
        filter=row.get("filter") or None,
    )
    return Plan([join, Project.keeping(row["output"])], ports, row["output"])


def index_lookup_join(row: Row) -> Plan:
    """The index is a table in memory."""
    only(row, ("join_type", "left_keys", "right_keys", "conditions", "filter", "output", "marker"))
    table = pa.Table.from_batches(batches_of(row["inputs"]["index"]))
    output = list(row["output"])
    conditions, texts = [], [row["filter"]] if row["filter"] else []
    for each in row["conditions"]:
        if isinstance(each, str):
            texts.append(each)
        else:
            conditions.append(_condition(each))
    join = LookupJoin(
        index.memory(table, row["right_keys"]),
        tuple(row["left_keys"]),
        how=row["join_type"],
        with_key=True,
        conditions=tuple(conditions),
        filter=" and ".join(f"({text})" for text in texts) or None,
        marker=output[-1] if row["marker"] else None,
    )
    return Plan([join, Project.keeping(output)], [batches_of(row["inputs"]["probe"])], output)


def _condition(given: Sequence[Any]) -> Between | InList:
    kind, column, *operands = given
    if kind == "between" and len(operands) == 2:
        return Between(column, *operands)
    if kind == "in" and len(operands) == 1:
        return InList(column, operands[0] if isinstance(operands[0], str) else tuple(operands[0]))
    raise NotUnderstood(f"a condition that the runner does not know: {given}")


def unnest(row: Row) -> Plan:
    """The columns that are replicated, the elements, then ordinality and marker."""
    only(row, ("replicate", "unnest", "ordinality", "marker", "map_columns"))
    maps = row.get("map_columns", [])
    ordinality, marker = ("ordinal" if row["ordinality"] else None), ("marker" if row["marker"] else None)
    operators: list[OperatorConfig] = [Unnest(tuple(row["unnest"]), ordinality=ordinality, marker=marker)]
    elements = [name for column in row["unnest"] for name in _element_names(column, column in maps)]
    columns = [*row["replicate"], *elements, *(name for name in (ordinality, marker) if name)]
    operators.append(Project(tuple((name, pc.field(name)) for name in columns)))
    if set(row["inputs"]) != {"batches"} and set(row["inputs"]) != {"splits"}:
        raise NotUnderstood(f"inputs that the runner does not know: {sorted(row['inputs'])}")
    return Plan(operators, [made_batches(next(iter(row["inputs"].values())), None, maps)], columns)


def _element_names(column: str, is_map: bool) -> list[str]:
    return [f"{column}_key", f"{column}_value"] if is_map else [column]


BUILDERS: dict[str, Builder] = {"merge_join": merge_join, "index_lookup_join": index_lookup_join, "unnest": unnest}

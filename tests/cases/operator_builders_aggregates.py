"""Builders for the rows of ``operators.json`` that aggregate, and for those operators that keep or order rows.

An aggregate is written as in SQL: ``sum(x)``, ``count(distinct x)``, ``array_agg(x order by y desc)``, ``sum(x) where
y > 1``. What stands in it is an expression, computed by a projection before the aggregation; ``=first`` behind an
arbitrary value says which one is taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from cases.operator_plans import Builder, NotUnderstood, Plan, Row, only
from cases.operator_tables import batches_of, made_batches

from penstock.engine.core.operator import OperatorConfig
from penstock.engine.operators import (
    Aggregate,
    Distinct,
    HashAggregate,
    Limit,
    MarkDistinct,
    Project,
    Sort,
    SortKey,
    StreamAggregate,
    TopN,
)
from penstock.engine.operators.aggregate.aggregate_functions import FUNCTIONS

CALL = re.compile(r"(?P<function>\w+)\((?P<inside>.*)\)(?:=(?P<which>first|last))?", re.DOTALL)
PARTS = re.compile(r"(?P<distinct>distinct\s+)?(?P<value>.*?)(?:\s+order\s+by\s+(?P<order>.*))?", re.DOTALL | re.I)
MASK = re.compile(
    r"(?P<call>.*\))\s*(?:where\s+(?P<plain>.*)|filter\s*\(\s*where\s+(?P<filter>.*)\))", re.DOTALL | re.I
)


class Made:
    """The columns that a projection makes for the aggregates, each expression once."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.derived: dict[str, str] = {}

    def column(self, text: str) -> str:
        """The name of the column that ``text`` is, made if it is more than a name."""
        plain = text.strip()
        if plain in self._names:
            return plain
        if plain not in self.derived.values():
            self.derived[f"made_{len(self.derived)}"] = plain
        return next(name for name, value in self.derived.items() if value == plain)


def aggregate_of(name: str, text: str, made: Made) -> Aggregate:
    """One entry of ``aggregates``."""
    masked = MASK.fullmatch(text.strip())
    mask = None if masked is None else masked["plain"] or masked["filter"]
    call = CALL.fullmatch(text.strip() if masked is None else masked["call"].strip())
    if call is None or call["function"] not in FUNCTIONS:
        raise NotUnderstood(f"an aggregate that the runner does not know: {text!r}")
    parts = PARTS.fullmatch(call["inside"].strip())
    assert parts is not None
    counts_rows = call["function"] == "count" and parts["value"] in {"1", "*"}
    return Aggregate(
        name,
        None if counts_rows else made.column(parts["value"]),
        call["which"] or call["function"],
        where=None if mask is None else made.column(mask),
        distinct=parts["distinct"] is not None,
        order_by=sort_keys((parts["order"] or "").split(","), made),
    )


def sort_keys(given: Sequence[Any], made: Made | None = None) -> tuple[SortKey, ...]:
    """Keys as SQL writes them: a column, and perhaps its direction and the place of its nulls."""
    keys = []
    for each in given:
        words = str(each).split()
        if not words:
            continue
        rest = [word.lower() for word in words[1:]]
        nulls = rest[rest.index("nulls") + 1] if "nulls" in rest else "last"
        if set(rest) - {"asc", "desc", "nulls", "first", "last"}:
            raise NotUnderstood(f"a key that the runner does not know: {each!r}")
        keys.append(SortKey(made.column(words[0]) if made else words[0], "desc" in rest, nulls == "first"))
    return tuple(keys)


def input_of(row: Row) -> list[pa.RecordBatch]:
    """The batches or splits of the only port."""
    given = row["inputs"]
    if set(given) in ({"batches"}, {"schema", "batches"}):
        return batches_of(given)
    if set(given) in ({"splits"}, {"schema", "splits"}):
        return made_batches(given["splits"], given.get("schema"))
    raise NotUnderstood(f"inputs that the runner does not know: {sorted(given)}")


def aggregation(row: Row) -> Plan:
    """Streaming aggregation groups clustered rows; its partial result is finished by hash aggregation, which does not
    ask for the clusters of a partial step to be whole groups."""
    only(row, ("step", "group_keys", "aggregates", "ignore_null_keys", "pre_grouped_keys", "params"))
    batches = input_of(row)
    keys = tuple(row["group_keys"])
    made = Made(batches[0].schema.names)
    aggregates = tuple(aggregate_of(f"a{place}", text, made) for place, text in enumerate(row["aggregates"]))
    ignore = {"ignore_null_keys": True} if _params(row).get("ignore_null_keys") else {}
    streaming = row["operator"] == "streaming_aggregation"
    first = (StreamAggregate if streaming else HashAggregate)(keys, aggregates, **ignore)
    operators: list[OperatorConfig] = []
    schema = batches[0].schema
    if made.derived:
        operators.append(Project.with_columns(schema, made.derived))
        schema = operators[0].output_schema([schema])
    if row["step"] == "single":
        operators.append(first)
    elif row["step"] == "partial->final":
        operators += _two_steps(keys, aggregates, schema, streaming=streaming, ignore=ignore)
    else:
        raise NotUnderstood(f"a step that the runner does not know: {row['step']!r}")
    return Plan(operators, [batches], [*keys, *(each.name for each in aggregates)])


def _two_steps(
    keys: tuple[str, ...], aggregates: tuple[Aggregate, ...], schema: pa.Schema, *, streaming: bool, ignore: Row
) -> list[OperatorConfig]:
    partial = HashAggregate(keys, aggregates, step="partial", **ignore)
    final = partial.final(schema)
    return [StreamAggregate(keys, aggregates, step="partial") if streaming else partial, final]


def _params(row: Row) -> Row:
    """Settings, wherever the row has them; those of memory and batch sizes do not change the rows."""
    params = {**row.get("params", {}), **{key: row[key] for key in ("ignore_null_keys",) if key in row}}
    unknown = {key for key in params if not re.search(r"ignore_null_keys|memory|batch|spill|abandon", key)}
    if unknown:
        raise NotUnderstood(f"settings that the runner does not know: {sorted(unknown)}")
    return params


def sort(row: Row) -> Plan:
    """``keys`` as in SQL."""
    only(row, ("keys", "output"))
    batches = input_of(row)
    return Plan([Sort(sort_keys(row["keys"]))], [batches], row.get("output") or batches[0].schema.names)


def top_n(row: Row) -> Plan:
    """``keys`` as in SQL, and ``count``."""
    only(row, ("keys", "count", "output"))
    batches = input_of(row)
    return Plan([TopN(sort_keys(row["keys"]), row["count"])], [batches], row.get("output") or batches[0].schema.names)


def limit(row: Row) -> Plan:
    """``limit`` rows after ``offset``."""
    only(row, ("offset", "limit", "output"))
    batches = input_of(row)
    operator = Limit(row["limit"], row.get("offset", 0))
    return Plan([operator], [batches], row.get("output") or batches[0].schema.names)


def distinct(row: Row) -> Plan:
    """The first row of each of ``keys``."""
    only(row, ("keys", "output"))
    batches = input_of(row)
    operator = Distinct(tuple(row.get("keys", ())))
    return Plan([operator], [batches], row.get("output") or batches[0].schema.names)


def mark_distinct(row: Row) -> Plan:
    """The markers: for the key, then for each of ``masks``."""
    only(row, ("keys", "masks", "output"))
    batches = input_of(row)
    masks = tuple((mask, f"marker_{mask}") for mask in row.get("masks", ()))
    operator = MarkDistinct(tuple(row["keys"]), "marker", masks)
    markers = ["marker", *(name for _, name in masks)]
    kept = Project(tuple((name, pc.field(name)) for name in [*(row.get("output") or []), *markers]))
    return Plan([operator, kept], [batches], [name for name, _ in kept.columns])


BUILDERS: dict[str, Builder] = {
    "streaming_aggregation": aggregation,
    "hash_aggregation": aggregation,
    "order_by": sort,
    "topn": top_n,
    "limit": limit,
    "distinct": distinct,
    "mark_distinct": mark_distinct,
}

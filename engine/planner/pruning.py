"""Which columns of its sources a flow needs: the others are not read. Pure.

Rules:

1. A node must give the columns that some consumer needs. A filter needs those of its condition besides, a sort those of
   its keys, an exchange those that it partitions by, an unnest its lists, a join keys and condition; a projection
   computes what is wanted of it, an aggregation needs its keys and arguments. Whatever else there is needs all of its
   input: sinks, users' functions, what compares whole rows.
2. Sources and projections give one column at least, also to who only counts rows.
3. Nobody is renamed: a join names a column of its right side otherwise if the left one has the name, so a left column
   stays if it is the reason. Where an operator gives other columns than the wanted ones of before, it needs all.
4. Splits are narrowed, not configs: all files are checked as the user has described them, and the flow's fingerprint
   stays what it was. A config whose splits can be narrowed says so with an attribute ``prunable`` that is true; each of
   them then has ``narrowed(columns)``, with the same rows under the same id.
5. Which rows there are, their order and their batches do not depend on it. Values that cannot be read are no error in a
   column that nobody needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from ..expressions.expressions import as_expression
from ..expressions.kernel_calls import columns_of
from ..operators import Filter, HashAggregate, Limit, LookupJoin, Project, Sort, StreamAggregate, TopN, Unnest
from ..operators.join.equi_join import EquiJoin
from ..operators.join.join_shape import LEFT, RIGHT
from ..operators.sequence.regroup import Regroup
from ..plan.plan import SourcePlan
from .graph import Graph, Node

_PASS_ON = (Filter, Sort, TopN, Limit, Regroup, Unnest, LookupJoin, EquiJoin)


class _OthersError(Exception):
    """A node would give other columns."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node


def pruned(flow: Graph) -> Graph:
    """The same flow, whose nodes have the columns that are needed. Its sources' configs are still those of all."""
    whole: set[str] = set()
    while True:
        try:
            return _pruned(flow, whole)
        except _OthersError as error:
            whole.add(error.node)


def _pruned(flow: Graph, whole: set[str]) -> Graph:
    """``whole``: nodes that need all of their inputs."""
    wanted: dict[str, set[str]] = {node.id: set() for node in flow.nodes}
    for node in reversed(flow.nodes):
        schemas = [_schema(flow, source) for source in node.inputs]
        needed = _all(schemas) if node.id in whole else _needed(node, wanted[node.id], schemas)
        for source, names in zip(node.inputs, needed, strict=True):
            wanted[source] |= names
    found = flow.copy()
    for node in flow.nodes:
        found = found.with_node(_narrowed(found, node, wanted[node.id]))
    return found


def narrowed_source(source: SourcePlan, schema: pa.Schema) -> SourcePlan:
    """The source with splits that give the columns of ``schema`` alone."""
    if schema.equals(source.schema):
        return source
    splits = tuple(cast(Any, split).narrowed(schema.names) for split in source.splits)
    return replace(source, schema=schema, splits=splits)


def _schema(flow: Graph, id: str) -> pa.Schema:
    return cast(pa.Schema, flow.node(id).schema)


def _all(schemas: Sequence[pa.Schema]) -> list[set[str]]:
    return [set(schema.names) for schema in schemas]


def _needed(node: Node, wanted: set[str], schemas: Sequence[pa.Schema]) -> list[set[str]]:
    """The columns of each of its inputs, which have these schemas, that a node needs if those are wanted of it."""
    config = node.config
    if isinstance(config, EquiJoin):
        return _of_join(config, wanted, schemas)
    return [_of_only_input(node, wanted, schemas[0])] if len(schemas) == 1 else _all(schemas)


def _of_only_input(node: Node, wanted: set[str], schema: pa.Schema) -> set[str]:
    config = node.config
    if isinstance(config, Project):
        compiled = dict(config.compiled(schema))
        return _used((compiled[name] for name in _kept(config, wanted)), schema)
    if isinstance(config, HashAggregate | StreamAggregate):
        return set(config.needed)
    if node.is_exchange:
        return wanted | set(getattr(config, "keys", ()))
    if isinstance(config, Filter):
        return wanted | _used([as_expression(config.kind, config.predicate, schema)], schema)
    if isinstance(config, Sort | TopN):
        return wanted | {key.column for key in config.keys}
    if isinstance(config, Limit):
        return wanted
    if isinstance(config, Regroup):
        return wanted | set(() if config.partitioning is None else config.partitioning.keys)
    if isinstance(config, Unnest):
        return (wanted | set(config.columns)) & set(schema.names)
    if isinstance(config, LookupJoin):
        return _of_lookup(config, wanted, schema)
    return set(schema.names)


def _of_join(config: EquiJoin, wanted: set[str], schemas: Sequence[pa.Schema]) -> list[set[str]]:
    shape = config.shape(schemas)
    needed = [set(keys) for keys in config.keys]
    filtered = _filtered(config, shape.pairs)
    named = [
        *((source, name in wanted) for source, name in zip(shape.sources, shape.schema.names, strict=True)),
        *((source, name in filtered) for source, name in zip(shape.pair_sources, shape.pairs.names, strict=True)),
    ]
    for source, is_wanted in named:
        if is_wanted:
            needed[source.side].add(schemas[source.side].names[source.position])
    needed[LEFT] |= needed[RIGHT] & set(schemas[LEFT].names)
    return needed


def _of_lookup(config: LookupJoin, wanted: set[str], schema: pa.Schema) -> set[str]:
    shape = config.shape([schema])
    probes = [name for condition in config.conditions for name in condition.probe_columns]
    needed = wanted | _filtered(config, shape.pairs) | set(config.on) | set(probes) | set(config.index.schema.names)
    return needed & set(schema.names)


def _filtered(config: EquiJoin | LookupJoin, pairs: pa.Schema) -> set[str]:
    """The columns of the joined row that the condition names."""
    if config.filter is None:
        return set()
    return _used([as_expression(config.kind, config.filter, pairs)], pairs)


def _kept(config: Project, wanted: set[str]) -> Sequence[str]:
    names = [name for name, _ in config.columns]
    return [name for name in names if name in wanted] or names[:1]


def _used(expressions: Iterable[pc.Expression], schema: pa.Schema) -> set[str]:
    """The columns that expressions name; all, if one of them does not tell."""
    found: set[str] = set()
    for expression in expressions:
        columns = columns_of(expression)
        if columns is None or not columns <= set(schema.names):
            return set(schema.names)
        found |= columns
    return found


def _narrowed(flow: Graph, node: Node, wanted: set[str]) -> Node:
    """The node over its inputs as they are now."""
    if not node.inputs:
        return _source(node, wanted)
    schemas = [_schema(flow, source) for source in node.inputs]
    if node.is_exchange:
        return replace(node, schema=schemas[0])
    if isinstance(node.config, _PASS_ON):
        made, before = node.config.output_schema(schemas), _schema(flow, node.id)
        names = set(made.names)
        if not wanted <= names or not made.equals(pa.schema([each for each in before if each.name in names])):
            raise _OthersError(node.id)
        return replace(node, schema=made)
    if isinstance(node.config, Project):
        kept = set(_kept(node.config, wanted))
        config = replace(node.config, columns=tuple(each for each in node.config.columns if each[0] in kept))
        return replace(node, config=config, schema=config.output_schema(schemas))
    return node


def _source(node: Node, wanted: set[str]) -> Node:
    schema = cast(pa.Schema, node.schema)
    if not getattr(node.config, "prunable", False) or wanted >= set(schema.names):
        return node
    names = wanted or set(schema.names[:1])
    return replace(node, schema=pa.schema([each for each in schema if each.name in names], schema.metadata))

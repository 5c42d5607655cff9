"""Which columns of its sources a flow needs: the others are not read. Pure.

Rules:

1. A node must give the columns that some consumer needs, and needs those that it says for them (``Traits.columns``):
   a filter besides those of its condition, a join keys and condition; a projection computes what is wanted of it. An
   exchange needs those that it partitions by. What says nothing needs all of its input: sinks, users' functions, what
   compares whole rows.
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

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from ..core.operator import OperatorConfig
from ..core.traits import traits_of
from ..plan.partitioning import Exchanging
from ..plan.plan import SourcePlan
from .graph import Graph, Node


class _OthersError(Exception):
    """A node would give other columns."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node


def pruned(flow: Graph, sources: bool = True) -> Graph:
    """The same flow, whose nodes have the columns that are needed. Its sources' configs are still those of all; without
    ``sources``, all that they give, too."""
    whole = set[str]() if sources else {node.id for node in flow.nodes if not node.inputs}
    while True:
        try:
            return _pruned(flow, whole)
        except _OthersError as error:
            whole.add(error.node)


def _pruned(flow: Graph, whole: set[str]) -> Graph:
    """``whole``: nodes that need all of their inputs."""
    wanted: dict[str, set[str]] = {node.id: set() for node in flow.nodes}
    for node in reversed(flow.nodes):
        schemas = [cast(pa.Schema, flow.node(source).schema) for source in node.inputs]
        wanted[node.id] = _of_narrowed(node, wanted[node.id], schemas)
        everything = [set(schema.names) for schema in schemas]
        needed = everything if node.id in whole else _needed(node, wanted[node.id], schemas)
        for source, names in zip(node.inputs, needed, strict=True):
            wanted[source] |= names
    found: dict[str, Node] = {}
    for node in flow.nodes:
        found[node.id] = node if node.id in whole else _narrowed(found, node, wanted[node.id])
    return flow.with_nodes(found.values())


def narrowed_source(source: SourcePlan, schema: pa.Schema) -> SourcePlan:
    """The source with splits that give the columns of ``schema`` alone."""
    if schema.equals(source.schema):
        return source
    splits = tuple(cast(Any, split).narrowed(schema.names) for split in source.splits)
    return replace(source, schema=schema, splits=splits)


def _needed(node: Node, wanted: set[str], schemas: Sequence[pa.Schema]) -> list[set[str]]:
    """The columns of each of its inputs, which have these schemas, that a node needs if those are wanted of it."""
    if node.is_exchange:
        return [wanted | set(cast(Exchanging, node.config).keys)]
    columns = traits_of(node.config).columns_of(schemas)
    return [each.needed(wanted, schema) for each, schema in zip(columns, schemas, strict=True)]


def _of_narrowed(node: Node, wanted: set[str], schemas: Sequence[pa.Schema]) -> set[str]:
    """What is wanted of a node; of one that is narrowed at least one column, if possible one that it looks at in any
    case. ``schemas``: of its inputs, with all columns."""
    if wanted or not node.inputs or node.is_exchange or traits_of(node.config).narrowed is None:
        return wanted
    columns, names = traits_of(node.config).columns_of(schemas), cast(pa.Schema, node.schema).names
    seen = {theirs for each in columns for mine, theirs in each.keeps.items() if mine in (each.reads or ())}
    free = [name for name in names if name in seen] or names
    return set(free[:1])


def _narrowed(narrowed: Mapping[str, Node], node: Node, wanted: set[str]) -> Node:
    """The node over its inputs as they are now, among those that have been ``narrowed``."""
    if not node.inputs:
        return _source(node, wanted)
    schemas = [cast(pa.Schema, narrowed[source].schema) for source in node.inputs]
    if node.is_exchange:
        return replace(node, schema=schemas[0])
    traits, before = traits_of(node.config), node.schema
    if traits.columns is None or before is None:
        return node
    config = cast(OperatorConfig, node.config)
    if traits.narrowed is not None:
        config = traits.narrowed(wanted)
    made = config.output_schema(schemas)
    names = set(made.names)
    if not wanted <= names or not made.equals(pa.schema([each for each in before if each.name in names])):
        raise _OthersError(node.id)
    return replace(node, config=config, schema=made)


def _source(node: Node, wanted: set[str]) -> Node:
    schema = cast(pa.Schema, node.schema)
    if not getattr(node.config, "prunable", False) or wanted >= set(schema.names):
        return node
    names = wanted or set(schema.names[:1])
    return replace(node, schema=pa.schema([each for each in schema if each.name in names], schema.metadata))

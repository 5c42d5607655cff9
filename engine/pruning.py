"""Which columns of its sources a flow needs: the others are not read. Pure.

Rules:

1. A node must give the columns that some consumer needs. A filter needs those of its condition besides, a sort those of
   its keys, an exchange those that it partitions by; a projection computes what is wanted of it, an aggregation needs
   its keys and arguments. Whatever else there is needs all of its input: sinks, users' functions, joins.
2. Sources and projections give one column at least, also to who only counts rows.
3. Splits are narrowed, not configs: all files are checked as the user has described them, and the flow's fingerprint
   stays what it was. A config whose splits can be narrowed says so with an attribute ``prunable`` that is true; each of
   them then has ``narrowed(columns)``, with the same rows under the same id.
4. Which rows there are, their order and their batches do not depend on it. Values that cannot be read are no error in a
   column that nobody needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from .expressions import as_expression
from .graph import Graph, Node
from .kernel_calls import columns_of
from .operators import Filter, HashAggregate, Limit, Project, Sort, StreamAggregate, TopN
from .plan import SourcePlan

_PASS_ON = (Filter, Sort, TopN, Limit)


def pruned(flow: Graph) -> Graph:
    """The same flow, whose nodes have the columns that are needed. Its sources' configs are still those of all."""
    wanted: dict[str, set[str]] = {node.id: set() for node in flow.nodes}
    for node in reversed(flow.nodes):
        for source in node.inputs:
            wanted[source] |= _needed(node, wanted[node.id], _schema(flow, source))
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


def _needed(node: Node, wanted: set[str], schema: pa.Schema) -> set[str]:
    """The columns of its input, which has this schema, that a node needs if these are wanted of it."""
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
    return set(schema.names)


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
        return replace(node, schema=node.config.output_schema(schemas))
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

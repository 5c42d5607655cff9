"""Which sources are read in a drawn order, because a shuffle behind them asks for it. Pure.

Rules:

1. Everything that comes of the source goes through one such shuffle, on ways on which the order of rows matters to
   nobody who says so: exchanges, operators that keep nothing from one epoch to the next (those that work row by row,
   pack, mix and union are), and left sides of joins. Not so where splits of two sources meet by their numbers, and not
   in front of what takes the first rows, or the first of equal ones.
2. Not where somebody outside gives the splits, or where they can be read only once.
3. A lane's round is no longer than what a window has of it: so that a window has rows of all lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from ..core.traits import State, traits_of
from ..plan.plan import SourcePlan
from ..sources.drawn_splits import DrawnSplit, DrawnSplits, Segment
from .graph import Node
from .stages import LiveGraph

LEAST_QUOTA = MANY_ROUNDS = 1024
"""However small the window is, a round has so many rows where there would be more than so many rounds: one costs about
as much as so many rows."""


def with_drawn_splits(graph: LiveGraph, sources: Mapping[str, SourcePlan], lanes: int) -> dict[str, SourcePlan]:
    """The sources, those that are to be drawn with what takes the place of their splits."""
    return {id: _drawn(graph, source, lanes) for id, source in sources.items()}


def as_planned(planned: SourcePlan, found: SourcePlan) -> SourcePlan:
    """A source of a part of a flow, read as the whole flow reads it: in rounds of the same length, and its splits drawn
    or not, whoever else of the flow has a say in that."""
    splits = found.own_splits
    if planned.given:
        splits = cast(Segment | DrawnSplit, planned.splits[0]).drawn.over(splits).segments() if planned.splits else ()
    given = found.own_splits if planned.given else ()
    return replace(planned, config=found.config, schema=found.schema, splits=splits, given=given)


def _drawn(graph: LiveGraph, source: SourcePlan, lanes: int) -> SourcePlan:
    config = source.config
    if source.quota is None or getattr(config, "fed", False) or getattr(config, "reads_once", False):
        return source
    found = _shuffle_behind(graph, source.id)
    asked = None if found is None else traits_of(found.config).draws_splits
    if asked is None:
        return source
    most = LEAST_QUOTA if source.rows is None else source.rows // lanes // MANY_ROUNDS
    quota = max(1, min(LEAST_QUOTA, most), min(source.quota, asked.window // lanes))
    drawn = DrawnSplits(source.id, source.splits, asked, lanes, quota)
    return replace(source, splits=drawn.segments(), given=source.splits, quota=quota)


def _shuffle_behind(graph: LiveGraph, id: str) -> Node | None:
    """The one that all rows of a node go through (rule 1)."""
    found: set[str] = set()
    waiting = [id]
    while waiting:
        for consumer, port in graph.consumers[waiting.pop()]:
            node = graph.nodes[consumer]
            if traits_of(node.config).draws_splits is not None:
                found.add(consumer)
            elif _minds(node, port):
                return None
            else:
                waiting.append(consumer)
    return graph.nodes[found.pop()] if len(found) == 1 else None


def _minds(node: Node, port: int) -> bool:
    """Whether another order may give other rows, or more than another order."""
    traits = traits_of(node.config)
    if node.schema is None or traits.co_partitioned_by:
        return True
    if traits.counts_rows:
        return True
    if traits.build_side is not None:
        return port == traits.build_side.port
    return not (node.is_exchange or traits.ends_epochs or traits.state is State.NONE)

"""How many rows nodes give: guesses, from the rows of sources and the bounds of their columns. Pure, but for footers.

Rules:

1. What is chosen by them changes no row. So they may be wrong, and they are the same at any parallelism: the inputs and
   the flow decide.
2. A condition passes what it would of values that lie evenly between the bounds that the source tells (``bounds``); of
   other columns, and of what is computed, ``shares`` has constants.
3. Where conditions of operators further down are asked early, these ask no more.
4. A join passes of the side that its rows follow as much as is left of the other one's sources. Each group of an
   aggregation has a few rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from ..core.operator import OperatorConfig
from ..core.traits import Multiplicity, Traits, traits_of
from ..expressions.kernel_calls import columns_of
from ..expressions.shares import UNKNOWN, Bounds, as_number, share_of
from ..plan.plan import EarlyFilterPlan, SourcePlan
from .graph import Node
from .stages import LiveGraph

IN_GROUP = 3
"""Rows of a group."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """See the module's rules."""

    graph: LiveGraph
    sources: Mapping[str, SourcePlan]
    early: tuple[EarlyFilterPlan, ...] = ()
    _known: dict[str, float] = field(default_factory=dict)
    #: what sources have told, by their id and the columns
    _told: dict[tuple[str, ...], Mapping[str, Sequence[object]]] = field(default_factory=dict)

    @property
    def are_known(self) -> bool:
        """Whether there is anything to go by: all sources know their rows, and nobody paces or feeds them."""
        return not any(
            source.rows is None or source.rate or getattr(source.config, "fed", False)
            for source in self.sources.values()
        )

    def over(self, graph: LiveGraph, early: tuple[EarlyFilterPlan, ...]) -> Estimates:
        """Those of another graph over the same sources, of whose rows that is asked ``early``."""
        return replace(self, graph=graph, early=early, _known={})

    def of_joins(self) -> dict[str, tuple[int, ...]]:
        """For each join with a build side the rows of its inputs, where there is anything to go by."""
        if not self.are_known:
            return {}
        joins = [node for node in self.graph.nodes.values() if traits_of(node.config).build_side is not None]
        return {node.id: tuple(round(self.of(id)) for id in node.inputs) for node in joins}

    def of(self, id: str) -> float:
        """The rows that a node gives."""
        if id not in self._known:
            self._known[id] = self._guessed(self.graph.nodes[id])
        return self._known[id]

    def _guessed(self, node: Node) -> float:
        if not node.inputs:
            shares = [self._passing(node.id, each.condition) for each in self.early if each.source == node.id]
            return prod(shares, start=float(self.sources[node.id].rows or 0))
        rows = [self.of(source) for source in node.inputs]
        traits = traits_of(node.config)
        if node.is_exchange or traits.rows is not Multiplicity.OTHER:
            return sum(rows)
        if traits.build_side is not None:
            return self._joined(node, traits, rows)
        if traits.condition is not None:
            return rows[0] * self._share(node, traits)
        if traits.is_row_wise():
            return rows[0] * UNKNOWN
        return rows[0] / (IN_GROUP if traits.blocking else 1)

    def _joined(self, node: Node, traits: Traits, rows: list[float]) -> float:
        """A join with what is smaller than it was passes as many rows as are left of that."""
        follows = traits.lineage.follows or 0
        if follows not in traits.needs_match:
            return rows[follows]
        other = node.inputs[1 - follows]
        whole = max((float(self.sources[id].rows or 0) for id in self.graph.sources_of(other)), default=0.0)
        return rows[follows] * min(1.0, rows[1 - follows] / whole if whole else 1.0)

    def _share(self, node: Node, traits: Traits) -> float:
        """Of the rows that a condition passes."""
        assert traits.condition is not None, "it has none"
        if any(node.id in each.by for each in self.early):
            return 1.0
        return self._passing(node.inputs[0], traits.condition([self.graph.schema(source) for source in node.inputs]))

    def _passing(self, id: str, condition: pc.Expression) -> float:
        """The share of the rows that a node gives for which a condition holds."""
        return share_of(condition, self._bounds(id, columns_of(condition) or ()))

    def _bounds(self, id: str, columns: Sequence[str] | set[str]) -> dict[str, Bounds]:
        """Of the columns that a node gives as its source has them."""
        names = {name: name for name in columns}
        node = self.graph.nodes[id]
        while names and len(node.inputs) == 1:
            if not node.is_exchange:
                names = _above(node, names, self.graph.schema(node.inputs[0]))
            node = self.graph.nodes[node.inputs[0]]
        bounds = getattr(node.config, "bounds", None)
        if not names or node.inputs or bounds is None:
            return {}
        key = node.id, *sorted(set(names.values()))
        told = self._told.get(key)
        if told is None:
            told = self._told[key] = bounds(key[1:])
        found: dict[str, Bounds] = {}
        for name, mine in names.items():
            low, high = map(as_number, told.get(mine, (None, None)))
            if low is not None and high is not None:
                found[name] = low, high
        return found


def _above(node: Node, names: Mapping[str, str], schema: pa.Schema) -> dict[str, str]:
    """What columns that a node gives are called in its input, of those that it takes from there."""
    (columns,) = traits_of(cast(OperatorConfig, node.config)).columns_of([schema])
    above = {theirs: mine for mine, theirs in columns.keeps.items()}
    return {name: above[mine] for name, mine in names.items() if mine in above}

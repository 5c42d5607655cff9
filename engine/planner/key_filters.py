"""Which sources may leave out rows that a join drops, as no row of its other input has their keys. Pure.

Rules:

1. A join says which of its inputs that is possible for, and by which keys (``Traits.key_filters``). From there the way
   leads up, through exchanges that take each row for itself, and operators that may miss rows
   (``Traits.may_miss_rows``) and keep a key, to a source. Nobody else may read what is on the way: all that the source
   gives goes to this join. Filters directly behind the source may be any: its reader applies them first (``picking``).
2. No row, no order and no error depends on whether a join tells its keys in time: it would drop the rows itself, and
   whatever is on the way does not mind. Cursors and rounds count what is left out, too. Nor do batches: the way ends at
   what might cut them elsewhere, if a function of a user behind it would see that.
3. Where the join reads its other input first (``reading_order``), the reader waits for what it tells: the rows that it
   would read meanwhile would wait in the join's channels. Whom that stalls has been looked at there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..core.traits import Columns, traits_of
from ..plan.partitioning import Forward, Gather, HashPartitioning, RangePartitioning
from ..plan.plan import KeyFilterPlan
from .graph import Node
from .stages import LiveGraph


def plan_key_filters(graph: LiveGraph, first: Mapping[str, int]) -> tuple[KeyFilterPlan, ...]:
    """See the module's rules. ``first``: which input joins read first, where they do."""
    return tuple(_found(graph, first))


def _found(graph: LiveGraph, first: Mapping[str, int]) -> Iterator[KeyFilterPlan]:
    columns = _ColumnsOfNodes(graph)
    for node in graph.nodes.values():
        if node.is_exchange or node.hold:
            continue
        for port, keys in traits_of(node.config).key_filters.items():
            way = _Way(graph, columns, node.inputs[port], dict(enumerate(keys)))
            if way.leads_to_source:
                yield KeyFilterPlan(
                    join=node.id,
                    port=port,
                    stage=graph.stage_of[node.id].name,
                    source=way.at,
                    keys=tuple(way.keys),
                    columns=tuple(way.keys.values()),
                    scattered=way.scattered,
                    waits=first.get(node.id, port) != port,
                )


class _ColumnsOfNodes:
    """What nodes do with the columns of their inputs: many ways lead through the same nodes."""

    def __init__(self, graph: LiveGraph) -> None:
        self._graph = graph
        self._known: dict[str, Sequence[Columns]] = {}

    def __getitem__(self, id: str) -> Sequence[Columns]:
        found = self._known.get(id)
        if found is None:
            node = self._graph.nodes[id]
            schemas = [self._graph.schema(each) for each in node.inputs]
            found = self._known[id] = traits_of(node.config).columns_of(schemas)
        return found


class _Way:
    """From an input of a join up to a source. ``keys``: place of a key to its name where the way has come to."""

    def __init__(self, graph: LiveGraph, columns: _ColumnsOfNodes, id: str, keys: dict[int, str]) -> None:
        self._graph, self._columns = graph, columns
        self.at, self.keys, self.scattered = id, keys, False
        while (above := self._above(graph.nodes[self.at])) is not None:
            self.at = above
        self.leads_to_source = not graph.nodes[self.at].inputs and self._is_alone(self.at)

    def _is_alone(self, id: str) -> bool:
        return len(self._graph.consumers[id]) == 1

    def _above(self, node: Node) -> str | None:
        """The input that the rows come from; None: the way ends here."""
        if not node.inputs or not self._is_alone(node.id) or node.id in self._graph.cuts_are_seen:
            return None
        if node.is_exchange:
            if not isinstance(node.config, Forward | Gather | HashPartitioning | RangePartitioning):
                return None
            self.scattered |= not isinstance(node.config, Forward)
            return node.inputs[0]
        traits = traits_of(node.config)
        may: Sequence[bool] = [False] * len(node.inputs)
        if traits.may_miss_rows is not None:
            may = traits.may_miss_rows([self._graph.schema(each) for each in node.inputs])
        for port, columns in enumerate(self._columns[node.id]):
            above = {mine: theirs for theirs, mine in columns.keeps.items()}
            keys = {place: above[name] for place, name in self.keys.items() if name in above}
            if keys and (may[port] or node.id in self._graph.picked):
                self.keys = keys
                return node.inputs[port]
        return None
